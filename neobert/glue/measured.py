"""The model that a study measures: a variant's checkpoint or an encoder from elsewhere, under the protocol's head."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from neobert.data.corpora import Source
from neobert.data.preparation import text_tokenizer
from neobert.external import read_model_file
from neobert.glue.batching import SHARED_ROWS, Form
from neobert.glue.encoding import Framing
from neobert.glue.padded import PaddedRows, padded_logits
from neobert.glue.tasks import task_named
from neobert.layout import Layout
from neobert.model.build import build_classifier
from neobert.model.heads import Classifier
from neobert.specifications import GlueStudy, read_run_file
from neobert.training.units import last_checkpoint

Weights = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class MeasuredModel:
    """A classifier whose encoder is to be fine-tuned, and how texts come to it.

    weights: the pre-trained tensors of the encoder, named as in the classifier ("model.…"); read when asked for.
    framing: the tokenizer, from a source that may have to bring it.
    """

    classifier: Classifier
    weights: Callable[[], Weights]
    framing: Callable[[Source], Framing]
    form: Form[Any]


def is_there(layout: Layout, study: GlueStudy) -> bool:
    """Whether the model is pre-trained, or was found elsewhere."""
    done = layout.pretraining(study.weights) / "done.json"
    return (layout.model(study.weights) if study.is_external else done).exists()


def measured_model(layout: Layout, study: GlueStudy) -> MeasuredModel:
    """The model of a study.

    Raises:
        MissingData, DamagedFile: its files are not there, or not the ones that the study names.
    """
    return _external(layout, study) if study.is_external else _own(layout, study)


def _own(layout: Layout, study: GlueStudy) -> MeasuredModel:
    run = read_run_file(layout.pretraining(study.weights)).pretraining
    assert run is not None
    model, data, protocol = run.recipe.model, run.recipe.data, study.protocol
    labels = task_named(study.task).labels
    return MeasuredModel(
        classifier=build_classifier(model, run.context, labels, protocol.pooling, protocol.dropout),
        weights=lambda: encoder_part(last_checkpoint(layout, study.weights).weights()),
        framing=lambda source: text_tokenizer(
            layout, source, data.tokenizer, model.vocabulary_size, run.tokenizer_origin
        ),
        form=SHARED_ROWS,
    )


def _external(layout: Layout, study: GlueStudy) -> MeasuredModel:
    from neobert.hub.external import load_external

    model = read_model_file(layout, study.weights)
    encoder, tokenizer = load_external(model.require_unchanged(), model.name, model.trust)
    classifier = Classifier(encoder, encoder.width, task_named(study.task).labels, study.protocol.dropout)
    rows = PaddedRows(encoder.pad_id, study.protocol.max_tokens)
    return MeasuredModel(
        classifier=classifier,
        weights=lambda: encoder_part(classifier.state_dict()),
        framing=lambda source: tokenizer,
        form=Form(rows.lay_out, padded_logits),
    )


def encoder_part(weights: Weights) -> Weights:
    """The tensors of a classifier that are not its head's."""
    return {name: tensor for name, tensor in weights.items() if name.startswith("model.")}


def all_but_classifier(weights: Weights) -> Weights:
    """The tensors of a classifier below its last layer, whose shape is the task's."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")}
