"""Made-up trials with stored predictions, whose scores follow from them, for the tests of reports."""

from typing import Any

import numpy as np

from neobert.data.tokenizers import Framed
from neobert.glue.encoding import encode_task, save_encoded
from neobert.glue.metrics import evaluate
from neobert.glue.tasks import TASKS
from neobert.runs.layout import Layout
from tests.reports.made_up_study import Study

EXAMPLES = 60


class OneToken:
    """Frames every text as one token: only labels matter here."""

    def frame_all(self, columns: Any, *, max_tokens: int) -> list[Framed]:
        return [Framed([1], None) for _ in columns[0]]


def with_predictions(study: Study, names: list[str], tasks: tuple[str, ...]) -> dict[str, Any]:
    """Trials of some tasks whose scores follow from stored predictions; the labels by task and split."""
    random, labels = np.random.default_rng(0), {}
    for task in tasks:
        of_task = TASKS[task]
        labels[task] = {
            split: random.integers(0, 6, EXAMPLES) / 1.0 if of_task.is_regression else random.integers(0, 2, EXAMPLES)
            for split in of_task.validation_splits
        }
    for name in names:
        for seed in (0, 1, 2):
            study.pretrain(name, seed)
            for each in (each for each in study.studies(name, seed) if each.task in tasks):
                study.begin(name, each)
                _encode(study, each, labels[each.task])
                for point in each.points:
                    _predicted_trial(study, name, each, point, labels[each.task], random)
    return labels


def _encode(study: Study, of_task: Any, labels: dict[str, Any]) -> None:
    task = TASKS[of_task.task]
    splits = {"train": [0, 1], **{split: list(values) for split, values in labels.items()}}
    texts = {
        split: {column: ["x"] * len(values) for column in task.columns} | {"label": values}
        for split, values in splits.items()
    }
    save_encoded(
        of_task.encoded_task(Layout(study.root)),
        encode_task(task, texts, OneToken(), of_task.protocol.max_tokens),
    )


def _predicted_trial(study: Study, name: str, of_task: Any, point: Any, labels: dict[str, Any], random: Any) -> None:
    task = TASKS[of_task.task]
    noise = 1.0 if name == "M0" else 0.5
    predictions = {}
    for split, values in labels.items():
        if task.is_regression:
            predictions[split] = (values + random.normal(0, 3 * noise, EXAMPLES)).astype(np.float32)
        else:
            logits = np.eye(task.labels)[values] + random.normal(0, noise, (EXAMPLES, task.labels))
            predictions[split] = logits.astype(np.float32)
    score = evaluate(task, predictions, labels).score
    path = study.trial(name, of_task, point, score=score)
    np.savez_compressed(path.with_suffix(".npz"), allow_pickle=False, **predictions)
