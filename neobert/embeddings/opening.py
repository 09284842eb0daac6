"""Encoders as functions from texts to vectors: what a contrastive run ended with, what it began with, and any other."""

from pathlib import Path

import torch
from torch import Tensor

from neobert.data.preparation import open_specified, text_tokenizer
from neobert.embeddings.encoding import Embedder, TextEncoder, default_precision
from neobert.errors import MissingData
from neobert.external import ExternalModel, read_model_file
from neobert.glue.measured import encoder_part
from neobert.layout import Layout
from neobert.model.build import build_encoder
from neobert.recipe import EmbeddingPrecision
from neobert.sentence_modules import SentenceModules, read_sentence_modules
from neobert.specifications import PretrainingRun, RunFile, Source, read_run_file
from neobert.training import checkpoints
from neobert.training.units import last_checkpoint

PREFIX = "model."


def open_contrastive(
    layout: Layout,
    run_id: str,
    device: torch.device,
    precision: EmbeddingPrecision | None = None,
    step: int | None = None,
) -> Embedder:
    """What a finished contrastive run ended with, or what any had at `step`; texts are as long as it was trained on.

    Raises:
        MissingData: the run is not finished or has no such step, or the model from elsewhere that it trained is gone.
        DamagedFile: the checkpoint is, or that model has changed.
    """
    folder = layout.contrastive(run_id)
    run_file = read_run_file(folder) if step is not None else _finished(folder, f"contrastive fine-tuning {run_id}")
    run = run_file.contrastive
    assert run is not None
    last = last_checkpoint(layout, run_id) if step is None else checkpoints.load(folder / "checkpoints", step)
    weights = encoder_part(last.weights())
    if run.is_external:
        return _external(read_model_file(layout, run.weights), weights, device, precision, run.max_tokens)
    pretraining = read_run_file(layout.pretraining(run.weights)).pretraining
    assert pretraining is not None
    return _own(layout, pretraining, run_file.source, weights, device, precision, run.max_tokens)


def open_pretrained(
    layout: Layout,
    run_id: str,
    device: torch.device,
    precision: EmbeddingPrecision | None = None,
    max_tokens: int | None = None,
) -> TextEncoder:
    """What a finished pre-training run ended with; texts are cut to `max_tokens`, and to what its stages taught.

    Raises:
        MissingData: the run is not finished.
        DamagedFile: its last checkpoint is.
    """
    folder = layout.pretraining(run_id)
    run_file = _finished(folder, f"pre-training {run_id}")
    run = run_file.pretraining
    assert run is not None
    longest = run.recipe.longest_context
    context = min(max_tokens or longest, longest)
    return _own(
        layout,
        run,
        run_file.source,
        encoder_part(last_checkpoint(layout, run_id).weights()),
        device,
        precision,
        context,
    )


def open_external(
    model: ExternalModel,
    device: torch.device,
    precision: EmbeddingPrecision | None = None,
    max_tokens: int | None = None,
) -> Embedder:
    """A model from elsewhere as it is, with its modules of sentence-transformers where it has any; texts are cut to
    `max_tokens`, and to what it reads.

    Raises:
        MissingData: it is gone.
        DamagedFile: it has changed.
        ValueError: transformers cannot load it, or its modules are not read here.
    """
    modules = read_sentence_modules(Path(model.folder), model.name)
    return _external(model, None, device, precision, max_tokens, modules)


def _finished(folder: Path, name: str) -> RunFile:
    run_file = read_run_file(folder)
    if not (folder / "done.json").exists():
        raise MissingData(f"{name} is not finished: run it to its end first")
    return run_file


def _own(
    layout: Layout,
    run: PretrainingRun,
    source: Source,
    weights: dict[str, Tensor],
    device: torch.device,
    precision: EmbeddingPrecision | None,
    context: int,
) -> TextEncoder:
    model, data = run.recipe.model, run.recipe.data
    encoder = build_encoder(model, run.context)
    encoder.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in weights.items()})
    opened = open_specified(source)
    tokenizer = text_tokenizer(layout, opened, data.tokenizer, model.vocabulary_size, run.tokenizer_origin)
    return TextEncoder(encoder, tokenizer, context, precision=precision or default_precision(device), device=device)


def _external(
    described: ExternalModel,
    weights: dict[str, Tensor] | None,
    device: torch.device,
    precision: EmbeddingPrecision | None,
    max_tokens: int | None,
    modules: SentenceModules | None = None,
) -> Embedder:
    from neobert.embeddings.external_encoding import ExternalTextEncoder
    from neobert.hub.external import load_external

    encoder, tokenizer = load_external(described.require_unchanged(), described.name, described.trust)
    if weights is not None:
        encoder.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in weights.items()})
    limits = (max_tokens, described.context, modules.max_tokens if modules else None)
    context = min((limit for limit in limits if limit is not None), default=None)
    precision = precision or default_precision(device)
    return ExternalTextEncoder(encoder, tokenizer, context, precision=precision, device=device, modules=modules)
