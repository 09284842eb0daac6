"""The model card of an exported contrastive run."""

import json
from typing import Any

from neobert.export.card import CITATION, LIBRARIES, parity_text, table_of, words
from neobert.export.contrastive import ContrastiveCheckpoint
from neobert.export.graph import OPSET
from neobert.identity import plain

REGISTER = "import neobert.hub  # registers the classes with transformers\n"
USES = {
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
    use = REGISTER + USES[form] if own and form != "onnx" else USES[form]
    parts = [
        f"# {name}, step {checkpoint.step:,}",
        "A text encoder: the mean of its hidden states over all tokens, compared by cosine.",
        f"## Use\n\n```python\n{use}\n```",
        f"## Model\n\n{table_of(_facts(checkpoint))}",
        f"## Instructions\n\n{_instructions(checkpoint)}",
        f"## Scores\n\n{_score_table(checkpoint)}",
        f"## Protocol\n\n```json\n{json.dumps(plain(checkpoint.run.protocol), indent=1)}\n```",
        f"## Limits\n\n{_limits(checkpoint)}",
        f"## Parity\n\nMeasured against the run at export: {parity_text(parity)}.",
        f"## Licence\n\n{_licence(own=own)}",
        f"## Citation\n\n```bibtex\n{CITATION}\n```",
    ]
    return f"---\n{_metadata(form, own=own)}---\n\n" + "\n\n".join(parts) + "\n"


def _encoder_name(checkpoint: ContrastiveCheckpoint) -> str:
    labels = checkpoint.run_file.labels
    return words([labels["model"]] if "model" in labels else labels.get("variants", [])) or checkpoint.run_file.id


def _facts(checkpoint: ContrastiveCheckpoint) -> dict[str, str]:
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


def _score_table(checkpoint: ContrastiveCheckpoint) -> str:
    if checkpoint.record is None:
        return "None are recorded for this step."
    scores = checkpoint.record["scores"]
    found = scores["heldout_accuracy"]
    told = {
        f"held-out pairs of {words([name])}": f"loss {loss:.4f}, own document found by {found[name]:.1%} of queries"
        for name, loss in scores["heldout_loss"].items()
    }
    return table_of(told)


def _limits(checkpoint: ContrastiveCheckpoint) -> str:
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


def _metadata(form: str, *, own: bool) -> str:
    fields: dict[str, Any] = {
        "library_name": LIBRARIES[form],
        **({"license": "mit"} if own else {}),
        "pipeline_tag": "sentence-similarity",
        "tags": ["neobert", "sentence-transformers", "feature-extraction"],
    }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())  # JSON is YAML
