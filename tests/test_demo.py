"""`make demo` trains models that know more than token frequencies, and scores that no constant answer has."""

import json
from collections import Counter
from pathlib import Path

import pytest

from neobert.data.sources import open_source
from neobert.glue.tasks import TASKS
from neobert.runs.kinds import read_records
from tests.support.tree_copy import fresh_clone, needs_make, shell

LEAST_GAIN = 0.1
"""In nats over the loss of token frequencies."""


def chance(task: str) -> float:
    """The score of the largest class as the only answer."""
    if TASKS[task].metrics[0] in ("matthews", "pearson"):
        return 0.0
    source = open_source("synthetic", synthetic_documents=1)
    labels = Counter(
        label for split in TASKS[task].validation_splits for label in source.task_examples(task, split)["label"]
    )
    return max(labels.values()) / labels.total()


def shortfalls(runs: Path) -> list[str]:
    """The held-out losses and the scores of studies that are hardly better than without learning."""
    records, problems = read_records(runs)
    assert not problems
    heldout = {each["id"]: each["scores"]["heldout"] for each in records if each["kind"] == "pretraining"}
    found = [
        f"{run} on {each['corpus']}: {each['loss']:.3f} nats, token frequencies {each['frequency_loss']:.3f}"
        for run, losses in heldout.items()
        for each in losses
        if not each["loss"] <= each["frequency_loss"] - LEAST_GAIN
    ]
    assert all(heldout.values())
    for path in sorted(runs.glob("glue/*/studies/*/selection.json")):
        task, score = path.parts[-4], json.loads(path.read_text())["score"]
        if not score > chance(task):
            found.append(f"{task} {path.parent.name}: {score:.3f}, a constant answer {chance(task):.3f}")
    return found


@pytest.mark.slow
@needs_make
def test_every_model_of_make_demo_has_learned(tmp_path: Path) -> None:
    """In a fresh clone whose environment is there already."""
    tree = fresh_clone(tmp_path / "clone", without_studies=True)
    answer = shell(tree, "make --old-file=.venv/demo demo")
    assert answer.returncode == 0, answer.stderr
    assert len(list(tree.glob("runs/pretraining/*/done.json"))) == 3
    assert len(list(tree.glob("runs/glue/*/studies/*/selection.json"))) >= 9
    assert not shortfalls(tree / "runs")
