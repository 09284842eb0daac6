"""The encoder that a run of contrastive fine-tuning ended with, as a function from texts to vectors."""

import torch

from neobert.data.preparation import open_specified, text_tokenizer
from neobert.embeddings.encoding import TextEncoder, default_precision
from neobert.errors import DamagedFile, MissingData
from neobert.layout import Layout
from neobert.model.build import build_encoder
from neobert.recipe import Precision
from neobert.specifications import EXTERNAL_PREFIX, read_run_file
from neobert.training import checkpoints

PREFIX = "model."


def open_contrastive(
    layout: Layout, run_id: str, device: torch.device, precision: Precision | None = None
) -> TextEncoder:
    """The text encoder of a finished run.

    Raises:
        MissingData: the run is not finished.
        DamagedFile: its last checkpoint is.
        ValueError: its encoder comes from elsewhere, and is opened by transformers.
    """
    folder = layout.contrastive(run_id)
    run_file = read_run_file(folder)
    run = run_file.contrastive
    assert run is not None
    if not (folder / "done.json").exists():
        raise MissingData(f"contrastive fine-tuning {run_id} is not finished: run it to its end first")
    if run.weights.startswith(EXTERNAL_PREFIX):
        raise ValueError(f"{run.weights} is no encoder of this package: load the checkpoint with transformers")
    pretraining = read_run_file(layout.pretraining(run.weights)).pretraining
    assert pretraining is not None
    newest = checkpoints.newest(folder / "checkpoints")
    if newest is None:
        raise DamagedFile(f"run {run_id} is done but has no valid checkpoint: remove its folder to redo it")
    model, data = pretraining.recipe.model, pretraining.recipe.data
    encoder = build_encoder(model, pretraining.context)
    encoder.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in newest.weights().items()})
    tokenizer = text_tokenizer(layout, open_specified(run_file.source), data.tokenizer, model.vocabulary_size)
    precision = precision or default_precision(device)
    return TextEncoder(encoder, tokenizer, run.max_tokens, precision=precision, device=device)
