"""The model card: what the model is, from what, how good, under which licence, and what it is not."""

import json
import re
from typing import Any

from neobert.console import quantity
from neobert.export.graph import OPSET
from neobert.export.scores import scores_of
from neobert.export.source import PretrainedCheckpoint
from neobert.identity import plain
from neobert.model.size import parameter_count

LIBRARIES = {"hf": "transformers", "sentence-transformers": "sentence-transformers", "onnx": "onnx"}
USES = {
    "hf": """import neobert.hub  # registers the classes with transformers
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForMaskedLM.from_pretrained("FOLDER")""",
    "sentence-transformers": """import neobert.hub  # registers the classes with transformers
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("FOLDER").encode(["a sentence", "another one"])""",
    "onnx": f"""import onnxruntime  # opset {OPSET}; rows and tokens are free
from transformers import AutoTokenizer

tokens = AutoTokenizer.from_pretrained("FOLDER")(["a sentence"], return_tensors="np")
(logits,) = onnxruntime.InferenceSession("FOLDER/model.onnx").run(None, dict(tokens))
hidden, vectors = onnxruntime.InferenceSession("FOLDER/embedding.onnx").run(None, dict(tokens))""",
}
REMOTE_USES = {
    "hf": """from transformers import AutoModelForMaskedLM, AutoTokenizer  # needs torch and pydantic too

tokenizer = AutoTokenizer.from_pretrained("FOLDER", trust_remote_code=True)
model = AutoModelForMaskedLM.from_pretrained("FOLDER", trust_remote_code=True)""",
    "sentence-transformers": """from sentence_transformers import SentenceTransformer  # needs pydantic too

model = SentenceTransformer("FOLDER", trust_remote_code=True)
vectors = model.encode(["a sentence", "another one"])""",
}
"""The same where the folder holds the model's code."""
CITATION = """@article{lebreton2025neobert,
  title = {NeoBERT: A Next-Generation BERT},
  author = {Le Breton, Lola and Fournier, Quentin and Morris, John Xavier and El Mezouar, Mariam and Chandar, Sarath},
  journal = {arXiv preprint arXiv:2502.19587},
  year = {2025}
}"""


def model_card(checkpoint: PretrainedCheckpoint, form: str, parity: dict[str, float], with_code: bool = False) -> str:
    """README.md of an export of the kind `form`, `with_code` beside it, and the hub's metadata at its head."""
    name = words(checkpoint.run_file.labels.get("variants", [])) or checkpoint.run_file.id
    parts = [
        f"# {name}, step {checkpoint.step:,}",
        "An encoder of the ablation study from BERT to NeoBERT, exported by the harness that trained it.",
        *_uses(form, with_code),
        f"## Model\n\n{table_of(_facts(checkpoint))}",
        *_delta(checkpoint),
        f"## Scores\n\n{_score_table(checkpoint)}",
        f"## Recipe\n\n```json\n{json.dumps(plain(checkpoint.run.recipe), indent=1)}\n```",
        f"## Limits\n\n{_limits(checkpoint)}",
        f"## Parity\n\nMeasured against the training engine at export: {parity_text(parity)}.",
        "## Licence\n\nMIT for these files, as the harness; the texts that it was trained on keep their own terms.",
        f"## Citation\n\n```bibtex\n{CITATION}\n```",
    ]
    return f"---\n{_metadata(checkpoint, form, name)}---\n\n" + "\n\n".join(parts) + "\n"


def _uses(form: str, with_code: bool) -> list[str]:
    uses = {"Use": USES[form]}
    if with_code:
        uses["Use without the package"] = REMOTE_USES[form]
    return [f"## {title}\n\n```python\n{code}\n```" for title, code in uses.items()]


def _delta(checkpoint: PretrainedCheckpoint) -> list[str]:
    """What the variant changes against its parent, where the run was labelled with it."""
    labels = checkpoint.run_file.labels
    if not labels.get("parent"):
        return []
    changes = {
        words([path]): f"{words([before])} → {words([after])}" for path, (before, after) in labels["delta"].items()
    }
    return [f"## Changes against {words([labels['parent']])}\n\n{table_of(changes)}"]


def _metadata(checkpoint: PretrainedCheckpoint, form: str, name: str) -> str:
    results = [score.index_entry() for score in scores_of(checkpoint)]
    fields: dict[str, Any] = {
        "library_name": LIBRARIES[form],
        "license": "mit",
        "language": "en",
        "pipeline_tag": "sentence-similarity" if form == "sentence-transformers" else "fill-mask",
        "tags": ["neobert", "encoder", "ablation"],
    }
    if results:
        fields["model-index"] = [{"name": name, "results": results}]
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())  # JSON is YAML


def _score_table(checkpoint: PretrainedCheckpoint) -> str:
    rows = [
        (
            f"{score.dataset}/{score.configuration}".rstrip("/"),
            score.origin,
            score.metric,
            f"{score.value:.4f}",
            score.notes,
        )
        for score in scores_of(checkpoint)
    ]
    if not rows:
        return "None are recorded for this step."
    lines = ["| | data | metric | value | |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(words([cell]) for cell in row)} |" for row in rows)])


def _facts(checkpoint: PretrainedCheckpoint) -> dict[str, str]:
    run, labels, record = checkpoint.run, checkpoint.run_file.labels, checkpoint.record
    stage = run.recipe.stages[-1]
    before = sum(earlier.tokens for earlier in run.recipe.stages[:-1])
    facts = {
        "run": checkpoint.run_file.id,
        "scale": words([labels.get("scale", "not recorded")]),
        "parameters": f"{parameter_count(run.recipe.model, run.context).total:,}",
        "context": f"{run.context} tokens",
        "data": f"{run.recipe.data.corpus} ({words([run.corpus_origin])})",
        "tokenizer": f"{run.recipe.data.tokenizer} ({words([run.tokenizer_origin])})",
        "token slots read": quantity(before + stage.tokens_per_step * checkpoint.step),
    }
    if record is not None:
        facts["real tokens of this stage"] = quantity(record["real_tokens"])
        facts["GPU-hours of this stage"] = f"{record['gpu_hours']:.2f}"
    return facts


def _limits(checkpoint: PretrainedCheckpoint) -> str:
    run = checkpoint.run
    reach = (
        f"Sequences beyond {run.context} tokens are refused."
        if run.position_table
        else f"It was trained on at most {run.context} tokens; longer sequences are read with a warning."
    )
    unfinished = (
        "" if checkpoint.record else f" This is a checkpoint on the way, of {run.recipe.stages[-1].steps} steps."
    )
    return f"English text only; it reproduces the biases of its corpus, and generates no text. {reach}{unfinished}"


def parity_text(parity: dict[str, float]) -> str:
    """What was compared, and how far it is off."""
    return ", ".join(f"{what} within {deviation:.1e}" for what, deviation in parity.items())


def table_of(rows: dict[str, str]) -> str:
    """A table of names and values."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def words(values: list[Any]) -> str:
    """Labels as plain words: nothing in them is markup."""
    return ", ".join(re.sub(r"[^\w ,.:=@/+-]", "", str(value)) for value in values)
