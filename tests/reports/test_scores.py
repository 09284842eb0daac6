"""Records → scores: what counts, what is left out, and that nothing missing ever becomes a number."""

import math
import statistics
from pathlib import Path

import pytest

from ablations import loading
from neobert.runs.layout import Layout
from reports.frames import read_frames
from reports.remarks import remarks
from reports.rows import read_study
from reports.scores import Estimate, ScoreRow, Seeds, point_name
from tests.reports.made_up_study import LEVELS, MadeUpStudy, change_record

pytestmark = pytest.mark.usefixtures("papers_ladder")


def last_row(study: MadeUpStudy, name: str) -> ScoreRow:
    return study.read().last_rows[name]


def plant(study: MadeUpStudy, name: str, scores: dict[int, list[float]], task: str = "cola") -> None:
    """Pre-train and publish chosen scores of one task: for each seed one a point of the grid."""
    for seed, values in scores.items():
        study.pretrain(name, seed)
        of_task = study.study(name, task, seed)
        study.begin(name, of_task)
        for point, value in zip(of_task.points, values, strict=False):
            study.trial(name, of_task, point, score=value)


def test_a_whole_ladder_has_a_row_a_variant_and_two_for_m10_and_averages_with_their_spread(study: MadeUpStudy) -> None:
    study.write(["M0", "M10"], seeds=(0, 1))
    found = study.read()
    assert [row.name for row in found.rows] == [*LEVELS, "M10"] and found.problems == ()
    assert [row.label for row in found.rows[-2:]] == ["NeoBERT-96 (M10)", "NeoBERT-192 (M10)"]
    for row in (found.rows[0], *found.rows[-2:]):
        cells = [cell.score.mean for cell in row.cells.values() if cell.score]
        assert row.average is not None and row.is_best_of_whole_grid and len(cells) == 8
        assert row.average.mean == pytest.approx(statistics.fmean(cells))
        assert set(row.average.by_seeds) == {Seeds(0, 0), Seeds(1, 1)}
        assert row.average.spread == pytest.approx(statistics.stdev(row.average.by_seeds.values()))


def test_the_nested_average_needs_a_nested_score_of_every_task(study: MadeUpStudy) -> None:
    """Of each seed, in points; a task that was begun from pre-training counts as it is once it starts from MNLI."""
    study.write(["M0"], seeds=(0, 1))
    for seed in (0, 1):
        for of_task in study.studies("M0", seed):
            if (seed, of_task.task) != (1, "rte"):
                study.select(of_task, nested=0.5 + (of_task.task == "cola") * 0.08 + seed / 10)
    assert (nested := last_row(study, "M0").nested) is not None
    assert nested.by_seeds == pytest.approx({Seeds(0, 0): 51.0})
    study.select(study.study("M0", "rte", 1), nested=0.6)
    assert (nested := last_row(study, "M0").nested) is not None
    assert nested.by_seeds == pytest.approx({Seeds(0, 0): 51.0, Seeds(1, 1): 61.0})


@pytest.mark.parametrize(
    ("scores", "place", "counted"),
    [
        pytest.param({0: [0.5, 0.7]}, 1, {0: 70.0}, id="one seed"),
        pytest.param({0: [0.60, 0.90], 1: [0.62, 0.10]}, 0, {0: 60.0, 1: 62.0}, id="the mean over seeds decides"),
        pytest.param({0: [0.6, 0.8], 1: [0.1]}, 1, {0: 80.0}, id="an unfinished seed changes nothing"),
    ],
)
def test_the_best_point_has_the_highest_mean_over_the_seeds_that_have_the_whole_grid(
    study: MadeUpStudy, scores: dict[int, list[float]], place: int, counted: dict[int, float]
) -> None:
    plant(study, "M2", scores)
    row = last_row(study, "M2")
    cell = row.cells["cola"]
    assert cell.score is not None and cell.point == study.recipe("M2").grid.points()[place]
    assert cell.score.by_seeds == pytest.approx({Seeds(seed, seed): value for seed, value in counted.items()})
    assert (cell.score.spread is None) == (len(counted) == 1)
    assert any("seed 1 is unfinished" in note for note in row.notes) == (len(counted) < len(scores))


def test_a_missing_task_is_named_with_its_reason_and_there_is_no_average(study: MadeUpStudy) -> None:
    study.without = {"mnli": "mnli has no train split here"}
    study.write(["M0"])
    for path in study.root.glob("glue/rte/*.json"):
        path.unlink()
    found = study.read()
    row, lines = found.last_rows["M0"], remarks(found)
    assert row.average is None and row.cells["rte"].score is None and row.cells["cola"].fallback is None
    (line,) = (line for line in lines if line.startswith("M0: no average; "))
    assert "MNLI: mnli has no train split here" in line and "RTE: no record" in line
    assert any(line.startswith("‡ QNLI, MRPC, STS-B of M0 started from pre-training") for line in lines)


def test_a_failed_point_is_named_until_it_has_a_record_and_the_rest_of_the_grid_counts(study: MadeUpStudy) -> None:
    plant(study, "M2", {0: [0.5]})
    of_task = study.study("M2", "cola")
    study.fail(of_task, of_task.points[1])
    cell = last_row(study, "M2").cells["cola"]
    assert cell.score is not None and cell.score.mean == pytest.approx(50.0)
    failed = f"{point_name(of_task.points[1])} (seed 0)"
    assert cell.absent == {"failed": [failed]} and not cell.is_best_of_whole_grid
    assert any(f"failed {failed}" in line for line in remarks(study.read()))
    study.trial("M2", of_task, of_task.points[1], score=0.4)
    assert last_row(study, "M2").cells["cola"].is_best_of_whole_grid


@pytest.mark.parametrize(
    ("state", "score"),
    [("done", None), ("failed", 0.9), ("done", 91.0), ("done", math.inf), ("done", "high")],
)
def test_only_done_trials_with_a_score_that_can_be_one_count(
    study: MadeUpStudy, state: str, score: float | str | None
) -> None:
    plant(study, "M2", {0: [0.5, 0.9]})
    of_task = study.study("M2", "cola")
    path = Layout(study.root).trial("cola", of_task.trial_id(of_task.points[1]))
    change_record(path, lambda record: record.update(state=state, scores=record["scores"] | {"score": score}))
    found = study.read()
    cell = found.last_rows["M2"].cells["cola"]
    assert cell.score is not None and cell.score.mean == pytest.approx(50.0)
    assert sum(map(len, cell.absent.values())) == 1
    assert len(read_frames(loading.papers(), study.root).problems) == (state == "done" and score is not None)


def test_trials_of_the_limited_grid_count_for_m9_and_only_shared_starts_for_m10(study: MadeUpStudy) -> None:
    study.write(["M9", "M10"])
    found = study.read().last_rows
    limited, larger = found["M9"], found["M10"]
    points = {name: set(study.recipe(name).grid.points()) for name in ("M9", "M10")}
    assert limited.cells["rte"].point in points["M9"] and larger.cells["rte"].point in points["M10"]
    mine = study.study("M10", "rte").starts_from.study
    assert mine is not None and mine != study.study("M9", "rte").starts_from.study
    assert limited.cells["rte"].trials == len(points["M9"]) and larger.cells["rte"].trials == len(points["M10"])
    assert limited.cells["cola"].trials == len(points["M9"]) and larger.cells["cola"].trials == len(points["M10"])


def test_m10_is_not_begun_by_the_trials_of_m9_whose_last_checkpoint_alone_is_measured(study: MadeUpStudy) -> None:
    study.write(["M9"])
    group = study.read()
    rows = group.last_rows
    assert rows["M9"].average is not None and rows["M10"].scored_tasks == () and rows["M10"].losses
    assert any("NeoBERT-192 (M10): pre-trained, but no GLUE record of its own" in line for line in remarks(group))
    stages = {name: [row.stage for row in group.rows if row.name == name] for name in ("M9", "M10")}
    assert stages == {"M9": [1], "M10": [0, 1]}


def test_a_reading_of_the_protocol_has_a_row_once_a_study_is_its_own(study: MadeUpStudy) -> None:
    """Of M10@dense only the tasks behind MNLI differ from M10's: the others' trials show nothing of it, and count for
    both."""
    study.write(["M9", "M10"])
    assert list(study.read().last_rows) == list(LEVELS)
    study.search("M10@dense", study.study("M10@dense", "rte"))
    rows = study.read().last_rows
    assert list(rows) == [*LEVELS, "M10@dense"] and study.read().problems == ()
    assert rows["M10@dense"].scored_tasks == ("mnli", "qqp", "rte", "sst2", "cola")
    assert rows["M10@dense"].cells["cola"] == rows["M10"].cells["cola"]
    assert set(rows["M10@dense"].cells["rte"].ids.values()).isdisjoint(rows["M10"].cells["rte"].ids.values())


def test_the_best_point_goes_by_the_protocols_metric_and_shows_its_score(study: MadeUpStudy) -> None:
    for name in ("M10", "M10@metric"):
        study.pretrain(name)
        of_task = study.study(name, "qqp")
        study.begin(name, of_task)
        for point, (accuracy, f1) in zip(of_task.points, ((0.7, 0.8), (0.6, 0.95)), strict=False):
            scores = {"score": (accuracy + f1) / 2, "metrics": {"accuracy": accuracy, "f1": f1}, "curve": []}
            study.trial(name, of_task, point, scores=scores)
    rows, points = study.read().last_rows, study.study("M10", "qqp").points
    chosen = {name: rows[name].cells["qqp"] for name in ("M10", "M10@metric")}
    assert (chosen["M10"].point, chosen["M10@metric"].point) == (points[1], points[0])
    assert [cell.score.mean for cell in chosen.values() if cell.score] == pytest.approx([77.5, 75.0])


def test_records_of_no_variant_and_trials_of_no_run_are_reported_and_not_guessed(study: MadeUpStudy) -> None:
    """A trial of another protocol, one without the record of its run, a run of another recipe."""
    plant(study, "M2", {0: [0.5, 0.4]})
    of_task = study.study("M2", "cola")
    other = of_task.model_copy(update={"protocol": of_task.protocol.model_copy(update={"epochs": 99})})
    study.trial("M2", other, of_task.points[0], score=1.0)
    found = study.read()
    cell = found.last_rows["M2"].cells["cola"]
    assert cell.score is not None and cell.score.mean == pytest.approx(50.0)
    assert len(found.problems) == 1 and "1 trial(s)" in found.problems[0]
    (path,) = study.root.glob("pretraining/*/done.json")
    change_record(path, lambda record: record["config"]["recipe"]["masking"].update(rate=0.4))
    assert any("has the recipe of no declared variant" in problem for problem in study.read().problems)
    path.unlink()
    study.pretrain("M0")
    found = study.read()
    assert found.last_rows["M2"].scored_tasks == () and "have no run record" in found.problems[0]


def test_runs_on_other_data_or_numerics_are_left_out_and_named(study: MadeUpStudy) -> None:
    """Two seeds on the first version of a corpus and one on a second make no mean of three."""
    study.write(["M2"], seeds=(0, 1))
    MadeUpStudy(study.root, version="2").write(["M2"], seeds=(2,))
    found = study.read()
    row = found.last_rows["M2"]
    assert row.average is not None and [seeds.pretraining for seeds in row.average.by_seeds] == [0, 1]
    assert sorted(row.losses["web"].by_seeds) == [Seeds(0, 0), Seeds(1, 1)]
    (problem,) = found.problems
    assert "(seed 2) rests on other data or numerics" in problem and "corpus web:2 and web:1" in problem
    (path,) = study.root.glob(f"pretraining/{study.runs('M2', 1)[0].id}/done.json")
    change_record(path, lambda record: record["numerics"].update(masking=9))
    problems = study.read().problems
    assert len(problems) == 2 and any("version of masking 9 and 1" in problem for problem in problems)


def test_groups_of_scale_and_data_are_never_mixed_and_an_unknown_scale_is_left_out(study: MadeUpStudy) -> None:
    study.write(["M0"])
    MadeUpStudy(study.root, data="corpus").write(["M0"])
    study.pretrain("M1", labels={"variants": ["M1"], "scale": "smokey", "data": "synthetic"})
    evidence = read_frames(loading.papers(), study.root)
    assert evidence.groups() == [("smoke", "corpus"), ("smoke", "synthetic")]
    for scale, data in evidence.groups():
        average = read_study(evidence, scale, data).last_rows["M0"].average
        assert average is not None and len(average.by_seeds) == 1
    assert "labels.scale" in evidence.problems[0] and "did you mean 'smoke'" in evidence.problems[0]


@pytest.mark.parametrize("trained", [True, False])
def test_runs_on_a_folder_are_their_variants_whichever_tokenizers_it_has(tmp_path: Path, trained: bool) -> None:
    """The shapes of a scale depend on whether tokenizers are trained, which records alone can tell."""
    study = MadeUpStudy(tmp_path / "runs", scale="study", data="texts", trained=trained)
    study.write(["M0", "M8"])
    found = read_study(read_frames(loading.papers(), study.root), "study", "texts")
    assert found.problems == () and found.vocabulary == ("trained" if trained else "published")
    assert [row.name for row in found.rows if row.average] == ["M0", "M8"]


@pytest.mark.parametrize("seed", [0, 2])
def test_a_task_that_one_seed_has_begun_takes_no_other_seed_from_the_score(study: MadeUpStudy, seed: int) -> None:
    for name in ("M0", "M1"):
        plant(study, name, {each: [0.4, 0.5] for each in range(3)}, "sst2")
    plant(study, "M0", {each: [0.4, 0.5] for each in range(3)}, "cola")
    plant(study, "M1", {seed: [0.9]}, "cola")
    found = study.read()
    row = found.last_rows["M1"]
    assert row.scored_tasks == found.shared_tasks == ("sst2",) and f"cola of seed {seed} is unfinished" in row.notes[0]
    mean = row.mean_over(found.shared_tasks)
    assert mean is not None and len(mean.by_seeds) == 3


def test_a_seed_of_pretraining_counts_with_the_mean_of_its_fine_tuning_seeds() -> None:
    estimate = Estimate({Seeds(0, 7): 3.0, Seeds(0, 0): 1.0, Seeds(1, 1): 5.0})
    assert estimate.by_pretraining == {0: 2.0, 1: 5.0}


@pytest.mark.parametrize(("gain", "is_trained"), [(0.02, False), (0.09, False), (0.11, True)])
def test_a_row_is_trained_from_a_tenth_of_a_nat_below_the_frequencies_of_its_own_corpus(
    study: MadeUpStudy, gain: float, is_trained: bool
) -> None:
    """Whatever it is on the other corpus: there M2, which reads the web, is above the frequencies."""
    study.measured, study.common_context, study.frequency_loss = ("web", "wikibook"), 16, 4.0
    losses = {"web": 4.0 - gain, "wikibook": 4.5}
    for run in study.runs("M2"):
        heldout = {
            "heldout": [each | {"loss": losses[each["corpus"]]} for each in study.heldout(run, losses)["heldout"]]
        }
        study.pretrain("M2", scores={"heldout_loss": losses, "training_loss": 4.0, **heldout})
    assert (last_row(study, "M2").untrained == "") == is_trained
