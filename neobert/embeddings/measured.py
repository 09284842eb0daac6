"""The encoder behind scores, opened: of this package or from elsewhere, fine-tuned or as it was pre-trained."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neobert.data.preparation import open_specified, text_tokenizer
from neobert.embeddings.encoding import TextEncoder, default_precision
from neobert.embeddings.forms import PaddedVectors
from neobert.embeddings.opening import open_contrastive
from neobert.embeddings.padded import PaddedTextEncoder
from neobert.embeddings.suite import EncoderIdentity, SupportsEncode
from neobert.embeddings.suite_specification import MeasuredEncoder
from neobert.errors import DamagedFile
from neobert.external import read_model_file
from neobert.glue.measured import encoder_part
from neobert.layout import Layout
from neobert.model.build import build_encoder
from neobert.specifications import EXTERNAL_PREFIX, RunFile, read_run_file
from neobert.training import checkpoints

OWN = "neobert"
"""The organisation in names of this package's encoders; mteb wants one."""

UNFIT = re.compile(r"[^\w.-]+")


def is_there(layout: Layout, encoder: MeasuredEncoder) -> bool:
    """Whether the weights are done, or were found elsewhere."""
    if encoder.protocol == "contrastive":
        return (layout.contrastive(encoder.weights) / "done.json").exists()
    if is_external(encoder):
        return layout.model(encoder.weights).exists()
    return (layout.pretraining(encoder.weights) / "done.json").exists()


def is_external(encoder: MeasuredEncoder) -> bool:
    """Whether the encoder was pre-trained elsewhere."""
    return encoder.pretraining.startswith(EXTERNAL_PREFIX)


def open_measured(layout: Layout, run_file: RunFile, device: torch.device) -> tuple[SupportsEncode, EncoderIdentity]:
    """The encoder of an evaluation, and what mteb is told of it.

    Raises:
        MissingData, DamagedFile: its files are not there, or not the ones that the evaluation names.
    """
    assert run_file.mteb is not None
    encoder = run_file.mteb.encoder
    if is_external(encoder):
        return _external(layout, encoder, device)
    own = _own(layout, run_file, encoder, device)
    return own, _identity(f"{OWN}/{_told(run_file.labels)}", encoder, own.encoder, own.encoder.width)


def _own(layout: Layout, run_file: RunFile, encoder: MeasuredEncoder, device: torch.device) -> TextEncoder:
    if encoder.protocol == "contrastive":
        return open_contrastive(layout, encoder.weights, device)
    pretraining = read_run_file(layout.pretraining(encoder.weights)).pretraining
    assert pretraining is not None
    model, data = pretraining.recipe.model, pretraining.recipe.data
    built = build_encoder(model, pretraining.context)
    weights = encoder_part(_newest(layout.pretraining(encoder.weights) / "checkpoints").weights())
    built.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})
    source = open_specified(run_file.source)
    tokenizer = text_tokenizer(layout, source, data.tokenizer, model.vocabulary_size)
    return TextEncoder(built, tokenizer, encoder.context, precision=default_precision(device), device=device)


def _external(
    layout: Layout, encoder: MeasuredEncoder, device: torch.device
) -> tuple[PaddedTextEncoder, EncoderIdentity]:
    from neobert.hub.external import load_external

    described = read_model_file(layout, encoder.pretraining)
    loaded, tokenizer = load_external(described.require_unchanged(), described.name)
    model = PaddedVectors(loaded)
    if encoder.protocol == "contrastive":
        model.load_state_dict(_newest(layout.contrastive(encoder.weights) / "checkpoints").weights())
    padded = PaddedTextEncoder(
        model,
        tokenizer,
        width=loaded.width,
        context=encoder.context,
        pad_id=loaded.pad_id,
        precision=default_precision(device),
        device=device,
    )
    name = described.name if "/" in described.name else f"{OWN}/{UNFIT.sub('-', described.name)}"
    return padded, _identity(name, encoder, loaded, loaded.width)


def _newest(folder: Path) -> checkpoints.Checkpoint:
    found = checkpoints.newest(folder)
    if found is None:
        raise DamagedFile(f"run {folder.parent.name} is done but has no valid checkpoint: remove its folder to redo it")
    return found


def _identity(name: str, encoder: MeasuredEncoder, model: nn.Module, width: int) -> EncoderIdentity:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return EncoderIdentity(name, encoder.revision, width, encoder.context, parameters)


def _told(labels: dict[str, Any]) -> str:
    """The variants that the weights are, as a part of a name."""
    return UNFIT.sub("-", "-".join(map(str, labels.get("variants", ())))) or "encoder"
