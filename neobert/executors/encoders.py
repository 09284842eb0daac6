"""Encoders of runs and external models, found by the id of their weights."""

import re

import torch

from neobert.data.tokenizers import Framing
from neobert.embeddings.encoders import EmbeddingModel, NamedEncoder, PackedEncoder, PaddedEncoder, TextEncoder
from neobert.errors import MissingData
from neobert.executors.corpus import text_tokenizer
from neobert.executors.external import read_model_file
from neobert.executors.preparation import open_specified
from neobert.executors.training import last_checkpoint
from neobert.external import EXTERNAL_PREFIX, ExternalModel
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.mteb import EmbeddingEvaluation
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.build import build_encoder
from neobert.model.heads import encoder_part
from neobert.processes import StopRequest
from neobert.recipe import EmbeddingPrecision
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile, SourceSpecification, read_run_file
from neobert.training import checkpoints

ORGANISATION = "neobert"
"""Organisation for models without one in their name, because mteb requires one."""

UNFIT = re.compile(r"[^\w.-]+")
"""Characters not allowed in a model's name."""


def base_model(
    layout: Layout,
    weights: str,
    source: SourceSpecification,
    context: int | None,
    stop: StopRequest | None = None,
) -> tuple[EmbeddingModel, Framing]:
    """Return the model that contrastive fine-tuning trains, and its tokenizer.

    For a pre-training run `weights`, this is the run's encoder with initial weights, and its tokenizer from `source`.
    For an external model `weights`, the published parameters are loaded. A `stop` ends the training of a tokenizer.

    Raises:
        MissingData, DamagedFile: files are missing, or do not match the id.
        ValueError: transformers cannot load them.
    """
    if weights.startswith(EXTERNAL_PREFIX):
        return _external_model(read_model_file(layout, weights), context)
    run = read_run_file(layout.pretraining(weights)).specification(PretrainingRun)
    tokenizer = text_tokenizer(layout, run, open_specified(source), stop)
    return PackedEncoder(build_encoder(run.recipe.model, run.context)), tokenizer


def load_encoder(
    layout: Layout,
    weights: str,
    device: torch.device,
    precision: EmbeddingPrecision = "fp32",
    max_tokens: int | None = None,
    *,
    step: int | None = None,
) -> TextEncoder:
    """Load the encoder with the id `weights`: the last checkpoint (or that of `step`) of a pre-training or contrastive
    run, or an external model as published.

    Texts are cut to `max_tokens`, and to the longest context that the encoder was trained on or accepts.

    Raises:
        MissingData: the run is not finished or has no such step, or an external model is gone.
        DamagedFile: the checkpoint is damaged, or the external model has changed.
        ValueError: transformers cannot load the model.
    """
    if weights.startswith(EXTERNAL_PREFIX):
        described = read_model_file(layout, weights)
        context = _least(max_tokens, described.context)
        model, tokenizer = _external_model(described, context)
        return TextEncoder(model, tokenizer, context, precision=precision, device=device)
    folder = layout.trained(weights)
    run_file = read_run_file(folder)
    if step is None and not (folder / "done.json").exists():
        kind = "contrastive fine-tuning" if run_file.run.kind == "contrastive" else "pre-training"
        raise MissingData(f"{kind} {weights} is not finished: run it to its end first")
    if isinstance(run_file.run, ContrastiveRun):
        base, longest = run_file.run.weights, run_file.run.max_tokens
    else:
        base, longest = weights, run_file.specification(PretrainingRun).recipe.longest_context
    context = _least(max_tokens, longest)
    model, tokenizer = base_model(layout, base, run_file.source, context)
    checkpoint = last_checkpoint(layout, weights) if step is None else checkpoints.load(folder / "checkpoints", step)
    model.load_state_dict(encoder_part(checkpoint.weights()))
    return TextEncoder(model, tokenizer, context, precision=precision, device=device)


def _external_model(described: ExternalModel, context: int | None) -> tuple[EmbeddingModel, Framing]:
    from neobert.hub.external import load_external

    encoder, tokenizer = load_external(described.require_unchanged(), described.name, described.trusts_code)
    return PaddedEncoder(encoder, context), tokenizer


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def load_named_encoder(layout: Layout, run_file: RunFile, device: torch.device) -> NamedEncoder:
    """Load the encoder of an evaluation. Raises MissingData or DamagedFile if its files are missing or other ones."""
    measured = run_file.specification(EmbeddingEvaluation).encoder
    if measured.pretraining.startswith(EXTERNAL_PREFIX):
        name = read_model_file(layout, measured.pretraining).name
        name = name if "/" in name else f"{ORGANISATION}/{UNFIT.sub('-', name)}"
    else:
        variants = UNFIT.sub("-", "-".join(map(str, run_file.labels.get("variants", ()))))
        name = f"{ORGANISATION}/{variants or 'encoder'}"
    encoder = load_encoder(layout, measured.weights, device, measured.precision, measured.context)
    return NamedEncoder(name, measured.revision, encoder)
