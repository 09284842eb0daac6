"""Model cards of exports, from the template card.md beside this file: the model, its data, its losses, its limits."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from neobert.console import quantity
from neobert.export.checkpoint import ExportSource
from neobert.identity import plain
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.pretraining import PretrainingRun
from neobert.own_code import sources_in

TEMPLATE = Path(__file__).with_name("card.md")
REGISTER = "import neobert.hub  # registers the classes with transformers\n"
SENTENCE_VECTORS = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
vectors = model.encode(["a sentence", "another one"])"""
MASKED_WORDS = """from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForMaskedLM.from_pretrained("FOLDER")"""
MEAN_VECTORS = """from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModel.from_pretrained("FOLDER")
tokens = tokenizer(["a sentence", "another one"], padding=True, truncation=True, return_tensors="pt")
mask = tokens["attention_mask"].unsqueeze(-1)
vectors = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)"""
INSTRUCTED = {
    "nothing": "no text",
    "queries": "each query, and before no document,",
    "queries_and_documents": "each query and document",
}


def model_card(checkpoint: ExportSource, target: str, parity: Mapping[str, float], prompts: Mapping[str, str]) -> str:
    """Return the README.md of an export for `target`, with the hub's metadata at its head.

    parity: the measured deviations. prompts: those of a contrastive run.
    """
    run = checkpoint.run
    if isinstance(run, PretrainingRun):
        details, is_ours = _pretrained(checkpoint, run), True
    else:
        details, is_ours = _contrastive(checkpoint, run, prompts), not run.is_external
    use, task = details.pop("use"), details.pop("task")
    is_synthetic = any(origin.startswith("synthetic:") for origin in details.pop("origins"))
    if target == "sentence-transformers":
        use, task = SENTENCE_VECTORS, "sentence-similarity"
    metadata = ModelCardData(
        library_name="transformers" if target == "hf" else target,
        license="mit" if is_ours else None,
        language="en",
        pipeline_tag=task,
        tags=["neobert", "encoder", "ablation", *(["synthetic"] if is_synthetic else [])],
    )
    card = ModelCard.from_template(
        metadata,
        template_path=str(TEMPLATE),
        step=f"{checkpoint.step:,}",
        steps=f"{run.total:,}",
        use=f"{REGISTER if is_ours else ''}{use}",
        is_synthetic=is_synthetic,
        parity=", ".join(f"{what} within {deviation:.1e}" for what, deviation in parity.items()),
        licence="MIT for these files, as the harness" if is_ours else "That of the encoder that it started from",
        **details,
    )
    return str(card)


def _pretrained(checkpoint: ExportSource, run: PretrainingRun) -> dict[str, Any]:
    labels, record, stage = checkpoint.run_file.labels, checkpoint.record, run.recipe.stages[-1]
    before = sum(earlier.tokens for earlier in run.recipe.stages[:-1])
    facts = {
        "run": run.id,
        "scale": labels.get("scale", "not recorded"),
        "parameters": f"{checkpoint.model.num_parameters():,}",
        "context": f"{run.context} tokens",
        "data": f"{run.recipe.data.corpus} ({run.corpus_origin})",
        "tokenizer": f"{run.recipe.data.tokenizer} ({run.tokenizer_origin})",
        "token slots read": quantity(before + stage.tokens_per_step * checkpoint.step),
    }
    scores = {}
    if record is not None:
        facts["real tokens of this stage"] = quantity(record["real_tokens"])
        facts["GPU-hours of this stage"] = f"{record['gpu_hours']:.2f}"
        losses = record["scores"]["heldout_loss"]
        scores = {f"held-out loss on {corpus}, nats per masked token": f"{loss:.4f}" for corpus, loss in losses.items()}
    reach = f"Sequences beyond {run.context} tokens are refused."
    if not run.position_table:
        reach = f"It was trained on at most {run.context} tokens; longer sequences are read with a warning."
    return {
        "title": ", ".join(labels.get("variants", [])) or run.id,
        "introduction": "An encoder of the ablation study from BERT to NeoBERT, exported by its harness.",
        "use": MASKED_WORDS,
        "task": "fill-mask",
        "origins": [run.corpus_origin],
        "own_parts": list(sources_in(run.recipe.model)),
        "facts": facts,
        "scores": scores,
        "prompts": None,
        "recipe": json.dumps(plain(run.recipe), indent=1),
        "limits": f"It reads English only, and generates no text. {reach}",
    }


def _contrastive(checkpoint: ExportSource, run: ContrastiveRun, prompts: Mapping[str, str]) -> dict[str, Any]:
    labels, record = checkpoint.run_file.labels, checkpoint.record
    start = labels.get("model") or ", ".join(labels.get("variants", [])) or run.id
    facts = {
        "run": run.id,
        "encoder that it started from": f"{start} ({run.weights})",
        "scale": labels.get("scale", "not recorded"),
        "parameters": f"{checkpoint.model.num_parameters():,}",
        "texts": f"cut to {run.max_tokens} tokens",
        "tokenizer": run.tokenizer_origin,
        **{f"pairs {pairs.name}": pairs.origin for pairs in run.sets},
    }
    scores = record["scores"] if record else {"heldout_loss": {}}
    return {
        "title": f"{start}, contrastive fine-tuning",
        "introduction": "A text encoder: the mean of its hidden states over all tokens, compared by cosine.",
        "use": MEAN_VECTORS,
        "task": "sentence-similarity",
        "origins": [pairs.origin for pairs in run.sets],
        "facts": facts,
        "scores": {
            f"held-out pairs of {name}": f"loss {loss:.4f}, {scores['heldout_accuracy'][name]:.1%} of queries find "
            "their document"
            for name, loss in scores["heldout_loss"].items()
        },
        "prompts": json.dumps(prompts, indent=1),
        "instructed": INSTRUCTED[run.instructed],
        "recipe": json.dumps(plain(run.protocol), indent=1),
        "limits": f"Texts beyond {run.max_tokens} tokens are cut.",
    }
