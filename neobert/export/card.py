"""The model card: what the model is, from what, how good, under which licence, and what it is not."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.console import quantity
from neobert.export.checkpoint import PretrainedCheckpoint
from neobert.export.contrastive import ContrastiveCheckpoint
from neobert.export.onnx import OPSET
from neobert.files import json_bytes, replace_file
from neobert.identity import plain
from neobert.model.size import parameter_count

HUB = "hub:"
EVALUATION_RESULTS = Path(".eval_results", "glue.yaml")


@dataclass(frozen=True)
class Score:
    """One number. `origin` is the identity of its data, as records have it: synthetic:…, directory:… or hub:….

    task: the task's name in the hub's words; dataset: the data set's name here; configuration: its part of it.
    """

    task: str
    dataset: str
    configuration: str
    split: str
    origin: str
    metric: str
    value: float
    notes: str

    @property
    def repository(self) -> tuple[str, str] | None:
        """Repository and revision on the hub; None for data from elsewhere, or from several repositories."""
        name, _, revision = self.origin.removeprefix(HUB).rpartition("@")
        return (name, revision) if self.origin.startswith(HUB) and name and "@" not in name else None

    def index_entry(self) -> dict[str, Any]:
        """The number as an entry of a model card's model-index."""
        name, revision = self.repository or (self.origin, None)
        dataset = {"name": f"{self.dataset} {self.configuration} ({self.origin})".replace("  ", " "), "type": name}
        dataset |= {"config": self.configuration, "split": self.split} if self.configuration else {}
        dataset |= {"revision": revision} if revision else {}
        metric = {"type": self.metric, "value": self.value, "name": f"{self.metric}, {self.notes}"}
        return {"task": {"type": self.task}, "dataset": dataset, "metrics": [metric]}


def scores_of(checkpoint: PretrainedCheckpoint) -> list[Score]:
    """Everything recorded: the held-out loss, and the best trial of each GLUE task. Empty for a step on the way."""
    record = checkpoint.record
    if record is None:
        return []
    heldout = [
        Score(
            task="fill-mask",
            dataset=corpus,
            configuration="",
            split="held out",
            origin=checkpoint.run.corpus_origin,
            metric="masked-token cross-entropy in nats",
            value=loss,
            notes=f"record {record['id']}",
        )
        for corpus, loss in record["scores"]["heldout_loss"].items()
    ]
    return heldout + [_best(trials) for _, trials in sorted(_trials(checkpoint).items())]


def _trials(checkpoint: PretrainedCheckpoint) -> dict[str, list[dict[str, Any]]]:
    """The records of each task that have a score: a constant prediction has no correlation."""
    trials: dict[str, list[dict[str, Any]]] = {}
    for record in checkpoint.glue_records():
        if record["scores"]["score"] is not None:
            trials.setdefault(record["config"]["task"], []).append(record)
    return trials


def _best(trials: list[dict[str, Any]]) -> Score:
    metrics = sorted(trials[0]["scores"]["metrics"])
    best = max(trials, key=lambda record: (record["scores"]["score"], record["id"]))
    return Score(
        task="text-classification",
        dataset="glue",
        configuration=best["config"]["task"],
        split="validation",
        origin=best["inputs"]["task"],
        metric=metrics[0] if len(metrics) == 1 else f"mean of {' and '.join(metrics)}",
        value=best["scores"]["score"],
        notes=f"best of {len(trials)} fine-tuning trials, record {best['id']}",
    )


def write_evaluation_results(checkpoint: PretrainedCheckpoint, folder: Path) -> None:
    """Write the hub's file of evaluation results, where there are any on data of the hub: others are no benchmark.

    The format is that of `huggingface_hub.EvalResultEntry`; JSON is YAML.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(
            repository[0],
            score.configuration,
            score.value,
            repository[1],
            notes=f"{score.metric} on the {score.split} set, {score.notes}",
        )
        for score in scores_of(checkpoint)
        if score.configuration and (repository := score.repository)
    ]
    if entries:
        replace_file(folder / EVALUATION_RESULTS, json_bytes(eval_result_entries_to_yaml(entries)))


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


REGISTER = "import neobert.hub  # registers the classes with transformers\n"
CONTRASTIVE_CARD_USES = {
    "hf": """from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModel.from_pretrained("FOLDER")
tokens = tokenizer(["a sentence", "another one"], padding=True, truncation=True, return_tensors="pt")
mask = tokens["attention_mask"].unsqueeze(-1)
vectors = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)""",
    "sentence-transformers": """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
vectors = model.encode(["a sentence", "another one"])  # behind a prompt below: prompt_name=its name""",
    "onnx": f"""import onnxruntime  # opset {OPSET}; rows and tokens are free
from transformers import AutoTokenizer

tokens = AutoTokenizer.from_pretrained("FOLDER")(["a sentence"], return_tensors="np")
hidden, vectors = onnxruntime.InferenceSession("FOLDER/embedding.onnx").run(None, dict(tokens))""",
}
INSTRUCTED = {
    "nothing": "no text",
    "queries": "each query, and before no document,",
    "queries_and_documents": "each query and document",
}
INSTRUCTIONS = (
    "In training the instruction of a data set stood before {} as a first text of its own. The prompts below do the "
    "same as plain text, for data sets of pairs and for tasks of embeddings by the names that mteb looks prompts up "
    "under. One that is not among them has no instruction, or one that no text can stand for here."
)


def contrastive_card(checkpoint: ContrastiveCheckpoint, form: str, parity: dict[str, float]) -> str:
    """README.md of an export of the kind `form`, and the hub's metadata at its head."""
    name = words([f"{_encoder_name(checkpoint)}, contrastive fine-tuning"])
    own = not checkpoint.run.is_external
    use = REGISTER + CONTRASTIVE_CARD_USES[form] if own and form != "onnx" else CONTRASTIVE_CARD_USES[form]
    parts = [
        f"# {name}, step {checkpoint.step:,}",
        "A text encoder: the mean of its hidden states over all tokens, compared by cosine.",
        f"## Use\n\n```python\n{use}\n```",
        f"## Model\n\n{table_of(_contrastive_card_facts(checkpoint))}",
        f"## Instructions\n\n{_instructions(checkpoint)}",
        f"## Scores\n\n{_contrastive_card_score_table(checkpoint)}",
        f"## Protocol\n\n```json\n{json.dumps(plain(checkpoint.run.protocol), indent=1)}\n```",
        f"## Limits\n\n{_contrastive_card_limits(checkpoint)}",
        f"## Parity\n\nMeasured against the run at export: {parity_text(parity)}.",
        f"## Licence\n\n{_licence(own=own)}",
        f"## Citation\n\n```bibtex\n{CITATION}\n```",
    ]
    return f"---\n{_contrastive_card_metadata(form, own=own)}---\n\n" + "\n\n".join(parts) + "\n"


def _encoder_name(checkpoint: ContrastiveCheckpoint) -> str:
    labels = checkpoint.run_file.labels
    return words([labels["model"]] if "model" in labels else labels.get("variants", [])) or checkpoint.run_file.id


def _contrastive_card_facts(checkpoint: ContrastiveCheckpoint) -> dict[str, str]:
    run, labels = checkpoint.run, checkpoint.run_file.labels
    facts = {
        "run": checkpoint.run_file.id,
        "encoder that it started from": f"{_encoder_name(checkpoint)} ({run.weights})",
        "scale": words([labels.get("scale", "not recorded")]),
        "parameters": f"{sum(weight.numel() for weight in checkpoint.encoder.parameters()):,}",
        "texts": f"cut to {run.max_tokens} tokens",
        "tokenizer": words([run.tokenizer_origin]),
    }
    return facts | {f"pairs {words([pairs.name])}": words([pairs.origin]) for pairs in run.sets}


def _instructions(checkpoint: ContrastiveCheckpoint) -> str:
    told = INSTRUCTIONS.format(INSTRUCTED[checkpoint.run.instructed])
    return f"{told}\n\n```json\n{json.dumps(checkpoint.prompts, indent=1)}\n```"


def _contrastive_card_score_table(checkpoint: ContrastiveCheckpoint) -> str:
    if checkpoint.record is None:
        return "None are recorded for this step."
    scores = checkpoint.record["scores"]
    found = scores["heldout_accuracy"]
    told = {
        f"held-out pairs of {words([name])}": f"loss {loss:.4f}, own document found by {found[name]:.1%} of queries"
        for name, loss in scores["heldout_loss"].items()
    }
    return table_of(told)


def _contrastive_card_limits(checkpoint: ContrastiveCheckpoint) -> str:
    unfinished = (
        "" if checkpoint.record else f" This is a checkpoint on the way, of {checkpoint.run.protocol.steps} steps."
    )
    return (
        f"Texts beyond {checkpoint.run.max_tokens} tokens are cut. It reproduces the biases of its corpora and pairs."
        f"{unfinished}"
    )


def _licence(*, own: bool) -> str:
    whose = "MIT for these files, as the harness" if own else "That of the encoder that it started from"
    return f"{whose}; the texts that it was trained on keep their own terms."


def _contrastive_card_metadata(form: str, *, own: bool) -> str:
    fields: dict[str, Any] = {
        "library_name": LIBRARIES[form],
        **({"license": "mit"} if own else {}),
        "pipeline_tag": "sentence-similarity",
        "tags": ["neobert", "sentence-transformers", "feature-extraction"],
    }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())  # JSON is YAML
