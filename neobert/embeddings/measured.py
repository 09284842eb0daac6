"""The encoder behind scores, opened: of this package or from elsewhere, fine-tuned or as it was pre-trained."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from neobert.embeddings.encoding import Embedder
from neobert.embeddings.opening import open_contrastive, open_external, open_pretrained
from neobert.embeddings.suite import EncoderIdentity, SupportsEncode
from neobert.embeddings.suite_specification import MeasuredEncoder
from neobert.external import read_model_file
from neobert.layout import Layout
from neobert.sentence_modules import SentenceModules, read_sentence_modules
from neobert.specifications import EXTERNAL_PREFIX, RunFile

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
    opened = _opened(layout, encoder, device)
    name = _name(layout, run_file, encoder)
    identity = EncoderIdentity(name, encoder.revision, opened.width, encoder.context, opened.parameters)
    modules = _modules(layout, encoder)
    return opened, replace(identity, pooling=modules.pooling, normalized=modules.normalize) if modules else identity


def _modules(layout: Layout, encoder: MeasuredEncoder) -> SentenceModules | None:
    """What stands behind the hidden states of a model from elsewhere that is measured as it was published."""
    if encoder.protocol != "zero_shot" or not is_external(encoder):
        return None
    model = read_model_file(layout, encoder.weights)
    return read_sentence_modules(Path(model.folder), model.name)


def _opened(layout: Layout, encoder: MeasuredEncoder, device: torch.device) -> Embedder:
    if encoder.protocol == "contrastive":
        return open_contrastive(layout, encoder.weights, device, encoder.precision)
    if is_external(encoder):
        return open_external(read_model_file(layout, encoder.weights), device, encoder.precision, encoder.context)
    return open_pretrained(layout, encoder.weights, device, encoder.precision, encoder.context)


def _name(layout: Layout, run_file: RunFile, encoder: MeasuredEncoder) -> str:
    if not is_external(encoder):
        return f"{OWN}/{_told(run_file.labels)}"
    name = read_model_file(layout, encoder.pretraining).name
    return name if "/" in name else f"{OWN}/{UNFIT.sub('-', name)}"


def _told(labels: dict[str, Any]) -> str:
    """The variants that the weights are, as a part of a name."""
    return UNFIT.sub("-", "-".join(map(str, labels.get("variants", ())))) or "encoder"
