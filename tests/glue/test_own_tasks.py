"""Tasks that a ladder declares: what can be declared, and how classes and metrics are named."""

import json

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn import metrics as sk

from neobert.glue.encoding import true_labels
from neobert.glue.metrics import evaluate
from neobert.glue.tasks import Task
from tests.glue.glue_worlds import study_of

REVIEWS = Task(
    name="reviews",
    kind="classification",
    columns=("text",),
    classes=("bad", "fair", "good"),
    metrics=("accuracy", "f1_macro"),
    folder="/somewhere",
)
STARS = Task(name="stars", kind="regression", columns=("text",), metrics=("pearson",))


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (REVIEWS, {"name": "My Tags"}, "'My Tags' cannot be the name of a task"),
        (REVIEWS, {"columns": ("text", "more", "most")}, "has 3 columns: name one of text, or two for pairs"),
        (REVIEWS, {"columns": ()}, "has 0 columns"),
        (REVIEWS, {"classes": None}, "classes are for classification"),
        (REVIEWS, {"classes": ("bad",)}, "needs two classes or more"),
        (REVIEWS, {"classes": ("bad", "good", "bad")}, "needs two classes or more, each once"),
        (REVIEWS, {"metrics": ()}, "has no metric"),
        (REVIEWS, {"metrics": ("accuracy", "accuracy")}, "would have two scores of one name"),
        (REVIEWS, {"metrics": ("acuracy",)}, "Input should be 'accuracy'"),
        (REVIEWS, {"metrics": ("pearson",)}, "pearson is no metric of classification"),
        (REVIEWS, {"metrics": ("f1",)}, "f1 is that of class 1 of two: take f1_macro"),
        (REVIEWS, {"validation_splits": ("train",)}, "name one or more, and not 'train'"),
        (STARS, {"metrics": ("accuracy",)}, "accuracy is no metric of regression"),
        (STARS, {"classes": ("a", "b")}, "classes are for classification, and regression has none"),
        (STARS, {"colums": ("text",)}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_a_task_is_refused_in_a_sentence(task, changes, message):
    with pytest.raises(ValidationError, match=message):
        Task(**(dict(task) | changes))


def test_what_decides_a_score_is_in_ids_and_the_place_of_the_files_is_not():
    """Of GLUE's tasks nothing is, so that their ids hold (tests/runs/test_identities.py)."""
    study = study_of(task="reviews", own_task=REVIEWS)
    ids = {study.id} | {
        study_of(task="reviews", own_task=REVIEWS.model_copy(update=changes)).id
        for changes in ({"metrics": ("accuracy",)}, {"label_column": "verdict"}, {"classes": ("good", "fair", "bad")})
    }
    assert len(ids) == 4
    moved = REVIEWS.model_copy(update={"folder": "/elsewhere", "starts_from": "mnli"})
    assert study_of(task="reviews", own_task=moved).id == study.id
    read = type(study).read(json.loads(study.model_dump_json()))
    assert read.id == study.id and read.about.columns == ("text",) and read.about.folder == ""


def test_f1_of_all_classes_is_their_mean():
    true, logits = np.arange(30) % 3, np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    found = evaluate(REVIEWS, {"validation": logits}, {"validation": true})
    assert found.metrics["f1_macro"] == sk.f1_score(true, logits.argmax(1), average="macro")


def test_names_of_classes_are_numbered_in_their_order():
    assert true_labels(REVIEWS, "here", {"label": ["good", "bad"]}).tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"here, row 0: label 'goood' is none of the classes of reviews .*'good'"):
        true_labels(REVIEWS, "here", {"label": ["goood"]})
    with pytest.raises(ValueError, match=r"label 1 is none of the classes of reviews .write classes as their number"):
        true_labels(REVIEWS, "here", {"label": [1]})
