"""Tiny models and tasks for the tests of fine-tuning."""

import hashlib

import numpy as np
import torch

from ablations.ladder import GLUE_PROTOCOL
from neobert.glue.encoding import EncodedSplit, EncodedTask
from neobert.glue.finetuning import FineTuner
from neobert.glue.tasks import TASKS
from neobert.kinds.glue import GlueStudy, TrialStart
from neobert.model.build import build_classifier, initialize
from neobert.recipe import FineTuning, Initialization, Point
from tests.support.tiny_runs import tiny_model

CPU = torch.device("cpu")
VOCABULARY = 40
CONTEXT = 64


def classifier(labels, *, positions="rotary", dropout=0.1):
    """Two blocks of width 32 with fixed values."""
    start = Initialization(distribution="normal", weight_scale=0.2, embedding_scale=1.0, position_scale=1.0)
    shape = {"vocabulary_size": VOCABULARY, "width": 32, "feedforward_width": 64, "positions": positions}
    model = tiny_model(dropout=0, initialization=start, **shape)
    built = build_classifier(model, CONTEXT, labels, dropout)
    initialize(built, start, 0)
    return built


def split_of(texts, labels):
    """An encoded split of lists of token ids."""
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    dtype = np.float32 if isinstance(labels[0], float) else np.int64
    token_types = np.zeros(offsets[-1], np.int8)
    return EncodedSplit(np.concatenate(texts).astype(np.int32), offsets, token_types, np.asarray(labels, dtype))


def random_split(count, labels, seed=0):
    """Texts of 2 to 31 random tokens, mostly short, with random labels."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(5, VOCABULARY, 2 + int(30 * rng.random() ** 2)) for _ in range(count)]
    return split_of(texts, [int(label) for label in rng.integers(0, labels, count)])


def marked_split(count, seed, *, shuffled=False):
    """Separable: token 3 stands somewhere in the texts of class 1, token 4 in those of class 0."""
    rng = np.random.default_rng(seed)
    classes = [int(label) for label in rng.integers(0, 2, count)]
    texts = []
    for label in classes:
        text = np.concatenate([[1], rng.integers(5, VOCABULARY, rng.integers(3, 12)), [2]])
        text[rng.integers(1, len(text) - 1)] = 3 if label else 4
        texts.append(text)
    return split_of(texts, [int(label) for label in rng.permutation(classes)] if shuffled else classes)


def counted_split(count, seed):
    """Regression: how many of eight tokens are token 3, 0 to 5."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, count)
    texts = [np.concatenate([[1], rng.permutation([3] * n + [4] * (8 - n)), [2]]) for n in counts]
    return split_of(texts, [float(number) for number in counts])


def marked_task(train=256, validation=64, **options):
    """CoLA's labels and metric over separable texts."""
    return EncodedTask(
        TASKS["sst2"], {"train": marked_split(train, 1, **options), "validation": marked_split(validation, 2)}
    )


def protocol(**changes):
    """The paper's protocol, shortened, in fp32."""
    short = {"epochs": 3, "max_tokens": CONTEXT, "precision": "fp32"}
    return FineTuning(**(GLUE_PROTOCOL.model_dump() | short | changes))


def point(batch_size=16, learning_rate=2e-3, weight_decay=0.01):
    """A cell of a grid."""
    return Point(batch_size=batch_size, learning_rate=learning_rate, weight_decay=weight_decay)


def study_of(**changes):
    """A study of one point on CoLA from pre-trained weights."""
    fields = {
        "task": "cola",
        "weights": "0123456789ab",
        "stage": 0,
        "context": 32,
        "protocol": protocol(),
        "points": (point(),),
        "seed": 0,
        "starts_from": TrialStart(kind="pretraining", task=None, study=None, rule=None, reason=None),
        "task_origin": "tests",
        "tokenizer_origin": "tests",
    }
    return GlueStudy(**(fields | changes))


def encoder_weights(model):
    """The tensors that a run starts from: the classifier's own, which a run changes."""
    return {name: tensor for name, tensor in model.state_dict().items() if name.startswith("model.")}


def fine_tuner(task, **changes):
    """A fine-tuner of the tiny model on a task."""
    study = protocol(**changes)
    model = classifier(task.task.labels, dropout=study.dropout)
    return FineTuner(model, encoder_weights(model), task, study, CPU)


def digest(outcome):
    """A hash of every bit of an outcome."""
    sha = hashlib.sha256(
        repr((outcome.score, outcome.metrics, outcome.best_step, outcome.steps, outcome.curve)).encode()
    )
    for arrays in (outcome.predictions, {name: tensor.numpy() for name, tensor in outcome.weights.items()}):
        for name in sorted(arrays):
            sha.update(name.encode() + arrays[name].tobytes())
    return sha.hexdigest()
