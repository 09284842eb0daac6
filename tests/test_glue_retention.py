"""Which weights of a study stay, whoever finishes in between."""

from pathlib import Path

import pytest
from glue_worlds import point, protocol
from tiny_runs import SOURCE

from neobert.glue import closing
from neobert.layout import Layout
from neobert.progress import trial_files
from neobert.records import publish_record
from neobert.specifications import Execution, GlueStudy, Start, write_run_file

POINTS = tuple(point(learning_rate=rate) for rate in (1e-3, 2e-3, 3e-3))
EXECUTION = Execution(threads=1, processes=1, micro_batch_tokens=128, checkpoint_interval_steps=5)


@pytest.fixture
def study(tmp_path: Path) -> GlueStudy:
    start = Start(kind="pretraining", task=None, study=None, rule=None, reason=None)
    made = GlueStudy(
        task="cola",
        weights="0123456789ab",
        stage=0,
        context=32,
        protocol=protocol(),
        points=POINTS,
        seed=0,
        starts_from=start,
        task_origin="tests",
        tokenizer_origin="tests",
    )
    write_run_file(Layout(tmp_path), made, SOURCE, EXECUTION, {})
    return made


def finish(layout: Layout, study: GlueStudy, number: int, score: float) -> Path:
    """Weights and record of a trial, as a worker publishes them; returns the weights' path."""
    files = trial_files(layout, study)[number]
    files.weights.parent.mkdir(parents=True, exist_ok=True)
    files.weights.touch()
    record = {"kind": "glue", "id": files.id, "state": "done", "scores": {"score": score}}
    publish_record(files.record, record)
    return files.weights


def test_beaten_weights_go_and_the_best_stay(tmp_path: Path, study: GlueStudy) -> None:
    weights = [finish(Layout(tmp_path), study, number, score) for number, score in enumerate((0.1, 0.5, 0.3))]
    closing.drop_beaten_weights(Layout(tmp_path), study)
    assert [path.exists() for path in weights] == [False, True, False]


def test_a_better_trial_that_finishes_meanwhile_keeps_its_weights(
    tmp_path: Path, study: GlueStudy, monkeypatch
) -> None:
    """Another worker publishes its record just after the best so far was looked up."""
    layout, later = Layout(tmp_path), []
    first = finish(layout, study, 0, 0.1)
    look_up = closing._best

    def best_then_another_finishes(*arguments):
        found = look_up(*arguments)
        if not later:
            later.append(finish(layout, study, 1, 0.9))
        return found

    monkeypatch.setattr(closing, "_best", best_then_another_finishes)
    closing.drop_beaten_weights(layout, study)
    assert first.exists() and later[0].exists()
    closing.drop_beaten_weights(layout, study)
    assert not first.exists() and later[0].exists()
