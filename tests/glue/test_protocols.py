"""GLUE's protocol as the paper has it and as the released code has it: each reading decides what it names, no more."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ablations.launch.costs import PUBLISHED
from ablations.loading import papers
from ablations.names import chosen_variants
from ablations.plan import plan
from neobert.data.sources import open_source
from neobert.executors.selection import best_of_grid
from neobert.glue import finetuning
from neobert.glue.encoding import EncodedTask
from neobert.glue.finetuning import FineTuner
from neobert.glue.metrics import Scores
from neobert.glue.selection import halves
from neobert.glue.tasks import TASKS
from neobert.identity import neutral_values
from neobert.kinds.glue import GlueStudy
from neobert.model.build import initialize_classifier
from neobert.model.heads import all_but_classifier
from neobert.recipe import FineTuning
from neobert.runs.layout import Layout
from neobert.training.schedule import FineTuningSchedule
from tests.glue.glue_worlds import CPU, classifier, fine_tuner, marked_task, point, protocol
from tests.reports.made_up_study import MadeUpStudy

READINGS = {
    "M10@interval": {"evaluation_interval_steps", "epoch_counted_in"},
    "M10@dense": {"transferred"},
    "M10@biases": {"weight_decay_on"},
    "M10@metric": {"decisive_metric"},
}
CODE_INTERVAL: dict[str, Any] = {"evaluation_interval_steps": 1000, "epoch_counted_in": "examples"}


# The variants


def test_the_code_is_all_of_its_readings_and_each_of_them_is_a_variant() -> None:
    known = papers().variants
    paper, code = (known[name].recipe.finetuning.model_dump() for name in ("M10", "M10@code"))
    assert {name for name in paper if paper[name] != code[name]} == set.union(*READINGS.values())
    for name, fields in READINGS.items():
        reading = known[name].recipe.finetuning.model_dump()
        assert reading == paper | {field: code[field] for field in fields}
        assert known[name].delta().keys() == {f"finetuning.{field}" for field in fields}
    assert set.union(*READINGS.values()) - set(neutral_values(FineTuning)) == {"evaluation_interval_steps"}


def studies_of(root: Path, name: str, documents: int = 100) -> dict[tuple[int, str], GlueStudy]:
    """A variant's studies by stage and task."""
    source = open_source("synthetic", synthetic_documents=documents)
    (row,) = plan(papers(), chosen_variants(papers(), [name]), (0,), "smoke", source, Layout(root))
    return {(unit.run.stage, unit.run.task): unit.run for unit in row.planned if isinstance(unit.run, GlueStudy)}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("M10@interval", set(TASKS)),
        ("M10@dense", {"rte", "stsb", "mrpc", "qnli"}),
        ("M10@biases", set(TASKS)),
        ("M10@metric", {"mnli", "qqp", "mrpc", "stsb", "rte", "qnli"}),  # RTE and QNLI by the trial they start from
        ("M10@code", set(TASKS)),
    ],
)
def test_a_reading_shares_the_trials_that_it_cannot_change(tmp_path: Path, name: str, own: set[str]) -> None:
    paper, reading = studies_of(tmp_path, "M10"), studies_of(tmp_path, name)
    assert paper.keys() == reading.keys()
    for (stage, task), study in reading.items():
        before = paper[stage, task]
        assert (study.weights, study.points) == (before.weights, before.points)
        shared = {study.trial_id(each) for each in study.points} & {before.trial_id(each) for each in before.points}
        assert len(shared) == (0 if task in own else len(study.points)), task
        assert (study.id == before.id) is (task not in own)


# How often a trial is evaluated


@pytest.mark.parametrize(
    ("task", "batch_size", "paper", "code"),
    [
        ("rte", 32, 7, 77),
        ("rte", 8, 31, 249),
        ("rte", 2, 124, 249),
        ("cola", 16, 53, 534),
        ("mnli", 32, 500, 1000),
        ("mnli", 2, 500, 1000),
    ],
)
def test_the_interval_by_both_rules(task: str, batch_size: int, paper: int, code: int) -> None:
    """App. C: min(500, batches // 10). Code: min(1000, examples // batch, batches · batch // 10)."""
    examples = PUBLISHED[task].train
    by_paper, by_code = (
        FineTuningSchedule.of(protocol(epochs=10, **changes), examples, batch_size) for changes in ({}, CODE_INTERVAL)
    )
    assert (by_paper.evaluation_interval, by_code.evaluation_interval) == (paper, code)
    assert by_paper.steps == by_code.steps


def test_a_run_is_evaluated_by_its_rule_and_updated_as_by_the_other() -> None:
    task = marked_task(train=80)
    curves, losses = [], []
    for changes in ({}, CODE_INTERVAL):
        evaluations = list(
            fine_tuner(task, epochs=2, patience_evaluations=99, **changes).evaluations(point(batch_size=4), seed=0)
        )
        curves.append([evaluation.step for evaluation in evaluations])
        losses.append(np.mean([evaluation.loss for evaluation in evaluations]))
    assert curves == [list(range(2, 41, 2)), list(range(8, 41, 8))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# What is decayed


def test_biases_are_spared_and_nothing_else() -> None:
    """The head has the only two biases of these models; norms are decayed by both readings."""
    tuner = fine_tuner(marked_task(train=16), weight_decay_on="all_but_biases")
    decayed, spared = tuner._optimizer(point(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    names = {id(parameter): name for name, parameter in tuner.classifier.named_parameters()}
    assert [names[id(parameter)] for parameter in spared["params"]] == ["dense.bias", "classifier.bias"]
    assert len(decayed["params"]) + 2 == len(names)


# What is handed on from MNLI


def first_head(start: Mapping[str, torch.Tensor], **changes: Any) -> dict[str, torch.Tensor]:
    """The head of a task of two classes after an update that moves nothing by more than 1e-9."""
    tuner = FineTuner(classifier(2), start, marked_task(train=16), protocol(**changes), CPU)
    next(tuner.evaluations(point(learning_rate=1e-12, weight_decay=0.0), seed=4))
    return {name: tensor for name, tensor in tuner.classifier.state_dict().items() if not name.startswith("model.")}


def test_dense_goes_along_and_the_classifier_is_drawn_as_ever() -> None:
    trained = classifier(3)
    initialize_classifier(trained, 0.5, seed=9)
    tensors = trained.state_dict()
    encoder = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    drawn, handed_on = first_head(encoder), first_head(all_but_classifier(tensors))
    assert drawn.keys() == handed_on.keys() == {"dense.weight", "dense.bias", "classifier.weight", "classifier.bias"}
    torch.testing.assert_close(handed_on["dense.weight"], tensors["dense.weight"], atol=1e-8, rtol=0)
    torch.testing.assert_close(handed_on["classifier.weight"], drawn["classifier.weight"], atol=1e-8, rtol=0)
    assert (drawn["dense.weight"] - tensors["dense.weight"]).abs().max() > 0.1


# By which number a trial stops and is chosen


def two_metrics(accuracy: float, f1: float) -> Scores:
    return Scores((accuracy + f1) / 2, {"accuracy": accuracy, "f1": f1})


@pytest.mark.parametrize(("word", "best_step", "steps"), [("mean", 6, 9), ("first", 2, 6)])
def test_patience_and_the_best_step_go_by_the_decisive_metric(
    monkeypatch: pytest.MonkeyPatch, word: str, best_step: int, steps: int
) -> None:
    """Accuracy never rises again, while the mean does until the third of five evaluations; the patience is two."""
    told = iter([two_metrics(0.7, 0.1), two_metrics(0.6, 0.3), two_metrics(0.6, 0.5), *[two_metrics(0.6, 0.4)] * 2])
    monkeypatch.setattr(finetuning, "evaluate", lambda *_: next(told))
    task = EncodedTask(TASKS["mrpc"], marked_task(train=72).splits)
    tuner = fine_tuner(task, epochs=1, evaluations_per_epoch=4, patience_evaluations=2, decisive_metric=word)
    outcome = tuner.run(point(batch_size=8), seed=0)
    assert (outcome.best_step, outcome.steps) == (best_step, steps)
    assert outcome.score == pytest.approx(0.4 if word == "first" else 0.55), "the mean is reported by either reading"
    assert dict(outcome.curve)[best_step] == pytest.approx(0.7 if word == "first" else 0.55)


def test_the_first_metric_of_each_task() -> None:
    first = protocol(decisive_metric="first")
    names = {task.name: task.decisive_metric(first) for task in TASKS.values()}
    others = {"mnli": "accuracy_matched", "cola": "matthews", "stsb": "pearson"}
    assert names == dict.fromkeys(TASKS, "accuracy") | others
    assert {task.decisive_metric(protocol()) for task in TASKS.values()} == {None}
    scores = {"score": 0.6, "metrics": {"accuracy_matched": 0.5, "accuracy_mismatched": 0.7}}
    decisive = TASKS["mnli"].decisive_score
    assert (decisive(protocol(), scores), decisive(first, scores)) == (0.6, 0.5)


@pytest.mark.parametrize(("name", "chosen", "nested"), [("M10", 0, (0.4 + 4 / 7) / 2), ("M10@metric", 1, 0.3)])
def test_the_best_of_a_grid_and_its_nested_score_go_by_the_decisive_metric(
    tmp_path: Path, name: str, chosen: int, nested: float
) -> None:
    """Eight of twenty pairs are paraphrases, as many in each half: to say so always has the higher mean of accuracy and
    F1, to deny it always the higher accuracy."""
    first, _ = halves(20)
    labels = np.zeros(20, np.int64)
    labels[[*first[:4], *np.setdiff1d(np.arange(20), first)[:4]]] = 1
    made_up = MadeUpStudy(tmp_path)
    study = made_up.study(name, "mrpc")
    for each, says in zip(study.points, (1, 0, 0, 0), strict=True):
        accuracy, f1 = (0.4, 4 / 7) if says else (0.6, 0.0)
        scores = {"score": (accuracy + f1) / 2, "metrics": {"accuracy": accuracy, "f1": f1}, "curve": []}
        made_up.trial(name, study, each, scores=scores)
        trial = next(trial for trial in study.trials(Layout(tmp_path)) if trial.point == each)
        np.savez(trial.predictions, validation=np.tile(np.eye(2, dtype=np.float32)[says], (20, 1)))
    best = best_of_grid(Layout(tmp_path), [study], {"validation": labels})
    assert best is not None and best.point == study.points[chosen]
    assert best.nested == pytest.approx(nested)
