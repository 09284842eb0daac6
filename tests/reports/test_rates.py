"""Records of sweeps → curves, optima, figure and table; steps at own rates; pilot seeds in nothing else."""

import json
from pathlib import Path

import pytest

from ablations.loading import papers
from ablations.rates import PILOT_SEEDS
from neobert.files import json_bytes, replace_file
from neobert.runs.collected import RunFiles
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, write_run_file
from reports.differences import LADDER, OWN_RATES, ComparedStep
from reports.figures import rates
from reports.frames import read_frames
from reports.rows import Study, read_study
from tests.reports.made_up_study import (
    EXECUTION,
    MadeUpStudy,
    by_place,
    contents,
    copy,
    facts_of,
    figures,
)

SHIFTS = {"M1": 0.3, "M2": 0.0, "M4": 1.0}  # octaves from the shared rate to the best one


def train(study: MadeUpStudy, name: str, seed: int, loss: float) -> None:
    """Pre-train a variant to a held-out loss on both corpora."""
    study.pretrain(name, seed, scores={"heldout_loss": {"web": loss, "wikibook": loss}, "training_loss": loss})


def pilot(
    study: MadeUpStudy, name: str, *, best: float, seeds: tuple[int, ...] = (1000, 1001), level: float = 3.0
) -> None:
    """A sweep of a variant whose loss is a parabola; `best` is the place of the lowest in octaves, of the first seed a
    tenth less and of the second a tenth more."""
    for step, rate in ((-1, "1e-3"), (0, "2e-3"), (1, "4e-3"), (2, "8e-3")):
        for index, seed in enumerate(seeds):
            own = best + 0.1 * (2 * index - 1) * (len(seeds) > 1)
            train(study, f"{name}@rate{rate}" if step else name, seed, level + 0.2 * (step - own) ** 2)


def fail(study: MadeUpStudy, name: str, seed: int) -> None:
    """Leave what a run leaves that diverged: a run file and an error."""
    (run,) = study.runs(name, seed)
    source = SourceSpecification(name=study.data, synthetic_documents=1)
    folder = write_run_file(Layout(study.root), run, source, EXECUTION, study.labels(name))
    error = {"error": "RunFailed: step 7: the loss is nan", "exit_code": 1, "traceback": "/a/place", "claim": 1}
    replace_file(folder / "error.json", json_bytes(error))


def read(study: MadeUpStudy) -> tuple[Study, dict[tuple[str, str, str], ComparedStep], str]:
    found, table = study.read(), study.tables().get("differences")
    return found, by_place(found), table.markdown if table else ""


def test_the_optimum_is_that_of_the_records_alone(study: MadeUpStudy) -> None:
    """M9 and M10 have the same weights and share a sweep."""
    for name in ("M4", "M9"):
        pilot(study, name, best=0.6)
    sweeps = study.read().sweeps
    sweep = sweeps["M4"]
    assert set(sweeps) == {"M4", "M9", "M10"} and sweep.optimum is not None
    assert sweep.shared_rate == 2e-3 and sweep.curve.seeds == (1000, 1001)
    assert sweep.optimum.exact == pytest.approx(2e-3 * 2**0.6) and sweep.best == "M4@rate3e-3"
    assert {len(ids) for ids in sweep.ids.values()} == {2}
    assert sweeps["M10"].curve == sweeps["M9"].curve and sweeps["M10"].best.startswith("M10@rate")


def test_pilot_seeds_are_in_nothing_but_the_sweep(study: MadeUpStudy) -> None:
    """Not even those at the shared rate, which are runs of the ladder's own variants."""
    for name in ("M2", "M4"):
        for seed in (0, 1, 2):
            study.pretrain(name, seed)
    before, steps, _ = read(study)
    for name in ("M2", "M4"):
        pilot(study, name, best=5.0, level=1.0)
        study.search(name, study.study(name, "cola", PILOT_SEEDS[0]))
    after, again, _ = read(study)
    assert {place: each.judged for place, each in again.items()} == {place: s.judged for place, s in steps.items()}
    assert after.sweeps and not before.sweeps
    evidence = read_frames(papers(), study.root)
    assert not set(evidence.runs.seed) & set(PILOT_SEEDS) and set(evidence.pilots.seed) == {1000, 1001}
    assert evidence.trials.empty
    assert any("measurement(s) of runs with pilot seeds are left out" in problem for problem in evidence.problems)
    for row in after.table_rows:
        assert not set(row.runs.seed) & set(PILOT_SEEDS) and all(
            min(e.by_pretraining.values()) > 1.5 for e in row.losses.values()
        )


def test_every_step_is_told_at_the_shared_rate_and_at_own_rates(study: MadeUpStudy) -> None:
    """M4 is worse than M2 at the rate of both, and better at its own; M1's own rate is the shared one."""
    pilot(study, "M1", best=0.0)
    pilot(study, "M2", best=0.0)
    pilot(study, "M4", best=1.0)
    for seed in range(8):
        noise = 0.004 * (seed % 3 - 1)
        train(study, "M1", seed, 3.2 + noise)
        train(study, "M2", seed, 3.0 - noise)
        train(study, "M4", seed, 3.1 + noise)
        train(study, "M4@rate4e-3", seed, 2.9 + noise)
    group, steps, page = read(study)
    shared = steps[LADDER, "M4 − M2", "held-out loss on web"]
    own = steps[OWN_RATES, "M4@rate4e-3 − M2", "held-out loss on web"]
    assert shared.difference.mean == pytest.approx(0.1, abs=0.01) and shared.word == "worse"
    assert own.difference.mean == pytest.approx(-0.1, abs=0.01) and own.word == "better"
    assert own.difference.by_seed.keys() == shared.difference.by_seed.keys() == set(range(8))
    assert "Own rates: each arm at the peak rate" in page
    at_shared = steps[LADDER, "M2 − M1", "held-out loss on web"]
    assert steps[OWN_RATES, "M2 − M1", "held-out loss on web"].difference == at_shared.difference
    row = group.row_at_best_rate("M4")
    assert row is not None and row.name == "M4@rate4e-3" and group.row_at_best_rate("M0") is None
    assert group.problems == ()


def test_failures_are_points_without_a_loss_and_survive_collecting(study: MadeUpStudy, tmp_path: Path) -> None:
    for name, loss in (("M4@rate1e-3", 3.4), ("M4", 3.2)):
        train(study, name, 1000, loss)
    fail(study, "M4@rate4e-3", 1000)
    out = tmp_path / "collected"
    assert copy(study.root, out) == 0
    for root in (study.root, out):
        group = read_study(read_frames(papers(), root), study.scale, study.data)
        sweep = group.sweeps["M4"]
        assert sweep.optimum is not None and sweep.optimum.reason == "the next rate, 4e-3, failed"
        assert sweep.best == "M4" and sweep.curve.failures == {4e-3: {1000: "RunFailed: step 7: the loss is nan"}}
        page = table.markdown if (table := rates.table(group)) else ""
        assert "the next rate, 4e-3, failed; a run failed at 4e-3" in page
    assert not [name for name, content in contents(RunFiles(out).root).items() if b"/a/place" in content]
    (path,) = study.root.glob("pretraining/*/error.json")
    path.write_text(json.dumps(["no", "failure"]))
    problems = read_frames(papers(), study.root).problems
    assert any("error.json is left out" in problem for problem in problems)


def test_figure_and_table_hold_every_point_and_the_page_shows_them(study: MadeUpStudy, tmp_path: Path) -> None:
    for name, best in SHIFTS.items():
        pilot(study, name, best=best)
    train(study, "M4@rate1.6e-2", 1000, 9.0)
    fail(study, "M4@rate1.6e-2", 1001)
    group = study.read()
    pictures, table = [rates.draw(group) for _ in range(2)], rates.table(group)
    first, again = (picture.files("rates") for picture in pictures if picture)
    assert first == again and set(first) == {"rates.pdf", "rates.svg", "rates.png"}
    assert table is not None
    assert "scale smoke" in table.title and [row[0] for row in table.rows] == list(SHIFTS)
    facts = facts_of(table)
    assert len(facts) == 3 * 8 + 2 and sum(bool(fact["failure"]) for fact in facts) == 1
    assert {fact["records"] for fact in facts if fact["heldout_loss"]} == set(
        read_frames(papers(), study.root).pilots.id
    )
    assert figures(study.root, tmp_path / "out") == 0
    folder = tmp_path / "out" / "smoke-synthetic"
    assert {path.name for path in folder.glob("rates.*")} >= {"rates.md", "rates.csv", "rates.pdf"}
    assert "Held-out loss by peak learning rate" in (tmp_path / "out" / "index.html").read_text()
