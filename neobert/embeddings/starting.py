"""The encoder that contrastive fine-tuning starts from: a pre-training run's, or a model from elsewhere."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neobert.data.preparation import open_specified, text_tokenizer
from neobert.embeddings.encoding import DTYPES
from neobert.embeddings.forms import FlatForm, FlatVectors, Form, PaddedForm, PaddedVectors
from neobert.embeddings.pairs import Framing
from neobert.embeddings.specification import ContrastiveRun
from neobert.external import read_model_file
from neobert.glue.measured import encoder_part
from neobert.layout import Layout
from neobert.model.build import build_encoder
from neobert.specifications import Source, read_run_file
from neobert.training.units import last_checkpoint


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """An encoder as a function to vectors, how its batches lie, and its tokenizer. `weights` is None where the model
    has them already; their names begin with "model.", as those of what is saved do."""

    model: nn.Module
    form: Form
    framing: Framing
    weights: dict[str, Tensor] | None

    def load(self) -> None:
        """Put the pre-trained weights into the model."""
        if self.weights is not None:
            self.model.load_state_dict(self.weights)


def starting_point(layout: Layout, run: ContrastiveRun, source: Source, device: torch.device) -> StartingPoint:
    """What a run starts from.

    Raises:
        MissingData, DamagedFile: its files are not there, or not the ones that the run names.
    """
    return _external(layout, run, device) if run.is_external else _own(layout, run, source, device)


def is_there(layout: Layout, run: ContrastiveRun) -> bool:
    """Whether the encoder is pre-trained, or was found elsewhere."""
    done = layout.pretraining(run.weights) / "done.json"
    return (layout.model(run.weights) if run.is_external else done).exists()


def _own(layout: Layout, run: ContrastiveRun, source: Source, device: torch.device) -> StartingPoint:
    pretraining = read_run_file(layout.pretraining(run.weights)).pretraining
    assert pretraining is not None
    model, data = pretraining.recipe.model, pretraining.recipe.data
    origin = pretraining.tokenizer_origin
    return StartingPoint(
        model=FlatVectors(build_encoder(model, pretraining.context)),
        form=FlatForm(device, DTYPES[run.protocol.precision]),
        framing=text_tokenizer(layout, open_specified(source), data.tokenizer, model.vocabulary_size, origin),
        weights=encoder_part(last_checkpoint(layout, run.weights).weights()),
    )


def _external(layout: Layout, run: ContrastiveRun, device: torch.device) -> StartingPoint:
    from neobert.hub.external import load_external

    described = read_model_file(layout, run.weights)
    encoder, tokenizer = load_external(described.require_unchanged(), described.name, described.trust)
    model = PaddedVectors(encoder)
    return StartingPoint(model, PaddedForm(device, encoder.pad_id, run.max_tokens), tokenizer, None)
