"""Selection: the best point by its mean over seeds, the nested score without its bias, and whose weights stay."""

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from neobert.errors import DamagedFile
from neobert.execution import Execution
from neobert.executors import selection
from neobert.executors.selection import best_of_grid
from neobert.files import sha256_of
from neobert.glue.selection import TrialScore, best_point, halves, nested_score
from neobert.kinds.glue import GlueStudy, Trial
from neobert.runs.index import state_of
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record, read_sealed
from neobert.runs.run_file import write_run_file
from tests.ablations.status_worlds import record_trial, study_of
from tests.glue import glue_worlds
from tests.glue.glue_worlds import point
from tests.support.tiny_runs import SOURCE, claimed, tiny_run

scores_of_points = st.lists(
    st.dictionaries(st.integers(0, 2), st.floats(-1, 1, allow_nan=False), max_size=3), min_size=1, max_size=8
)


@given(scores_of_points)
def test_the_best_point_has_most_seeds_and_then_the_highest_mean_and_then_comes_first(
    drawn: list[dict[int, float]],
) -> None:
    points = [point(number + 1) for number in range(len(drawn))]
    values = [(each, score) for each, by_seed in zip(points, drawn, strict=True) for score in by_seed.values()]
    best = best_point(points, [*values, (points[0], None), (point(100), 2.0)])
    if not any(drawn):
        assert best is None
        return
    assert best is not None
    most = max(map(len, drawn))
    means = [statistics.fmean(by_seed.values()) if len(by_seed) == most else -2 for by_seed in drawn]
    assert best == point(means.index(max(means)) + 1)


@given(st.integers(0, 300))
def test_halves_are_disjoint_complete_equal_and_always_the_same(count: int) -> None:
    first, second = halves(count)
    assert sorted([*first, *second]) == list(range(count))
    assert 0 <= len(second) - len(first) <= 1
    again = halves(count)
    assert (again[0] == first).all() and (again[1] == second).all()


def test_the_nested_score_of_equal_points_is_unbiased_where_the_best_of_the_grid_is_not() -> None:
    """Sixty points of coin flips: the best looks better than chance, the nested score does not."""
    rng, grid = np.random.default_rng(0), [point(number + 1) for number in range(60)]
    best, nested = [], []
    for _ in range(200):
        first, second = (rng.normal(0.5, 0.03, 60) for _ in range(2))
        halved = [
            [TrialScore(each, 0, score, score) for each, score in zip(grid, side, strict=True)]
            for side in (first, second)
        ]
        nested.append(nested_score(grid, *halved))
        best.append(max((first + second) / 2))
    assert statistics.fmean(best) > 0.53
    assert abs(statistics.fmean(nested) - 0.5) < 4 * 0.03 / np.sqrt(2 * 200)


def test_the_nested_score_of_stored_predictions_is_the_one_made_by_hand(tmp_path: Path) -> None:
    """Of eight reviews the first point gets all of the first half right and one of the second, the other point two
    and two: 1 of 4 on the second half where the first chose, and 2 of 4 on the first where the second did."""
    layout, run = Layout(tmp_path), tiny_run()
    study = study_of(run, "sst2", points=2)
    labels = {"validation": np.ones(8, np.int64)}
    for number, right in enumerate(((4, 1), (2, 2))):
        logits = np.tile([1.0, 0.0], (8, 1))
        for half, count in zip(halves(8), right, strict=True):
            logits[half[:count]] = [0.0, 1.0]
        record_trial(layout, study, number, score=sum(right) / 8)
        np.savez(study.trials(layout)[number].predictions, validation=logits)
    best = best_of_grid(layout, [study], labels)
    assert best is not None and (best.point, best.mean) == (study.points[0], 5 / 8)
    assert best.nested == (1 / 4 + 2 / 4) / 2


POINTS = tuple(point(learning_rate=rate) for rate in (1e-3, 2e-3, 3e-3))
EXECUTION = Execution(threads=1, processes=1, micro_batch_tokens=128, checkpoint_interval_steps=5)


@pytest.fixture
def study(tmp_path: Path) -> GlueStudy:
    made = glue_worlds.study_of(points=POINTS)
    write_run_file(Layout(tmp_path), made, SOURCE, EXECUTION, {})
    return made


def finish(layout: Layout, study: GlueStudy, number: int, score: float) -> Path:
    """Weights and record of a trial, as a worker publishes them; returns the weights' path."""
    files = study.trials(layout)[number]
    files.weights.parent.mkdir(parents=True, exist_ok=True)
    files.weights.touch()
    record = {"kind": "glue", "id": files.id, "state": "done", "scores": {"score": score}}
    publish_record(files.record, record)
    return files.weights


def test_beaten_weights_go_and_the_best_stay(tmp_path: Path, study: GlueStudy) -> None:
    weights = [finish(Layout(tmp_path), study, number, score) for number, score in enumerate((0.1, 0.5, 0.3))]
    selection.drop_beaten_weights(Layout(tmp_path), study)
    assert [path.exists() for path in weights] == [False, True, False]


def test_a_better_trial_that_finishes_meanwhile_keeps_its_weights(
    tmp_path: Path, study: GlueStudy, monkeypatch
) -> None:
    """Another worker publishes its record just after the best so far was looked up."""
    layout, later = Layout(tmp_path), []
    first = finish(layout, study, 0, 0.1)
    look_up = selection.best_trial

    def best_then_another_finishes(*arguments):
        found = look_up(*arguments)
        if not later:
            later.append(finish(layout, study, 1, 0.9))
        return found

    monkeypatch.setattr(selection, "best_trial", best_then_another_finishes)
    selection.drop_beaten_weights(layout, study)
    assert first.exists() and later[0].exists()
    selection.drop_beaten_weights(layout, study)
    assert not first.exists() and later[0].exists()


def finish_whole(layout: Layout, study: GlueStudy, number: int, score: float) -> Trial:
    """Weights, predictions and record of a trial as a worker publishes them."""
    files = study.trials(layout)[number]
    files.record.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(files.predictions, validation=np.arange(12, dtype=np.float32).reshape(6, 2) * score)
    save_file({"model.a": np.ones(3, np.float32)}, files.weights)
    sha256 = {"predictions": sha256_of(files.predictions), "weights": sha256_of(files.weights)}
    record = {"kind": "glue", "id": files.id, "state": "done", "scores": {"score": score}, "sha256": sha256}
    publish_record(files.record, record)
    return files


def close(layout: Layout, study: GlueStudy) -> bool:
    """What a worker does with the closing; whether it was made."""
    closing = study.closing(layout)
    with claimed(layout, closing.id) as claim:
        selection.select(layout, study, claim)
    return closing.is_done


def is_ready_to_close(layout: Layout, study: GlueStudy) -> bool:
    """Whether every trial has a whole record."""
    return all(trial.is_done for trial in study.trials(layout))


def means_the_same(first: bytes, second: bytes) -> bool:
    """Whether two JSON texts differ in white space alone."""
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return False


@given(number=st.integers(0, len(POINTS) - 1), place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_a_damaged_trial_never_decides_and_runs_again(
    tmp_path_factory: pytest.TempPathFactory, study: GlueStudy, suffix: str, number: int, place: float, change: int
) -> None:
    """Whichever byte of predictions or record changes, nothing is chosen before the trial was run again."""
    layout = Layout(tmp_path_factory.mktemp("runs"))
    write_run_file(layout, study, SOURCE, EXECUTION, {})
    trials = [finish_whole(layout, study, each, 0.1 * each) for each in range(len(POINTS))]
    path = trials[number].record.with_suffix(suffix)
    whole, content = path.read_bytes(), bytearray(path.read_bytes())
    content[int(place * len(content))] ^= change
    assume(suffix == ".npz" or not means_the_same(whole, bytes(content)))
    path.write_bytes(content)
    assert not is_ready_to_close(layout, study) or not close(layout, study)
    assert not is_ready_to_close(layout, study) and not trials[number].is_done
    finish_whole(layout, study, number, 0.1 * number)
    assert path.with_name(f"{path.name}.damaged-1").read_bytes() == content and path.read_bytes() == whole
    assert is_ready_to_close(layout, study) and close(layout, study)
    assert read_sealed(study.closing(layout).record)["trial"] == trials[2].id


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive"])
def test_torn_predictions_of_an_early_version_are_named(tmp_path: Path, study: GlueStudy, capsys, content) -> None:
    """Their records hold no checksum."""
    layout = Layout(tmp_path)
    for number in range(len(POINTS)):
        finish(layout, study, number, 0.5)
    torn = study.trials(layout)[1].predictions
    torn.write_bytes(content)
    assert not close(layout, study)
    assert f"{torn} cannot be read" in capsys.readouterr().err and not torn.exists()
    finish(layout, study, 1, 0.9)
    assert close(layout, study)


def test_best_weights_that_are_damaged_are_made_again_before_anything_starts_from_them(
    tmp_path: Path, study: GlueStudy
) -> None:
    layout = Layout(tmp_path)
    best = [finish_whole(layout, study, number, 0.1 * number) for number in range(len(POINTS))][-1]
    assert close(layout, study)
    assert selection.best_weights(layout, "cola", study.id) == best.weights
    whole = best.weights.read_bytes()
    best.weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedFile, match="the same command runs its trial again"):
        selection.best_weights(layout, "cola", study.id)
    assert state_of(layout, study) == "waiting" and not best.is_done
    finish_whole(layout, study, len(POINTS) - 1, 0.2)
    assert close(layout, study) and selection.best_weights(layout, "cola", study.id).read_bytes() == whole


@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_choice_is_no_choice(
    tmp_path_factory: pytest.TempPathFactory, study: GlueStudy, place: float, change: int
) -> None:
    layout = Layout(tmp_path_factory.mktemp("runs"))
    for number in range(len(POINTS)):
        finish_whole(layout, study, number, 0.1 * number)
    assert close(layout, study)
    path = study.closing(layout).record
    whole, content = read_sealed(path), bytearray(path.read_bytes())
    content[int(place * len(content))] ^= change
    path.write_bytes(content)
    if state_of(layout, study) == "done":
        assert read_sealed(path) == whole
    else:
        assert close(layout, study) and read_sealed(path) == whole


def test_what_a_trial_of_another_worker_damages_waits_for_its_end(tmp_path: Path, study: GlueStudy) -> None:
    """Somebody runs the damaged trial just now: nothing is moved under its hands."""
    layout = Layout(tmp_path)
    trials = [finish_whole(layout, study, number, 0.5) for number in range(len(POINTS))]
    trials[0].predictions.write_bytes(b"torn")
    with claimed(layout, trials[0].id):
        assert selection.redo_damaged(layout, study) and trials[0].is_done
    assert selection.redo_damaged(layout, study) and not trials[0].is_done
