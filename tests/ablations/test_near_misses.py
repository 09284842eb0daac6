"""Why a planned unit is not the run that is there: the leaves in which they differ, or the numerics version."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ablations.launch.costs import Machine, PlanCosts
from ablations.launch.listing import id_diffs, print_plan
from ablations.plan import PlannedRun, VariantRow
from neobert.console import quantity
from neobert.identity import NUMERICS
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.layout import Layout
from neobert.runs.run_file import write_run_file
from tests.ablations.plans import EXECUTION, SOURCE, SYNTHETIC, rows_of

MACHINE = Machine(None, 1, "ddp", 512, None, None)


def planned(root: Path, name: str = "M4", seed: int = 0) -> VariantRow:
    (row,) = rows_of(root, name, seeds=(seed,))
    return row


def changed(run: PretrainingRun, **optimization: float) -> PretrainingRun:
    changes = {"optimization": run.recipe.optimization.model_copy(update=optimization)}
    return run.model_copy(update={"recipe": run.recipe.model_copy(update=changes)})


def write(root: Path, run: PretrainingRun | GlueStudy, *, done: bool = False) -> Path:
    folder = write_run_file(Layout(root), run, SOURCE, EXECUTION, {})
    if done:
        (folder / ("done.json" if isinstance(run, PretrainingRun) else "selection.json")).write_text("{}")
    return folder


def nearest(root: Path, run: PretrainingRun | GlueStudy) -> str | None:
    row = replace(planned(root), planned=(PlannedRun(run, root / run.folder, "missing"),))
    (found,) = id_diffs([row], Layout(root))
    return found[0].sentence().removeprefix(f"{run.id} differs from ") if found else None


def test_the_run_with_the_fewest_differing_leaves_is_told_with_both_values(tmp_path: Path) -> None:
    run = planned(tmp_path).stages[0]
    near = changed(run, weight_decay=0.1)
    write(tmp_path, near, done=True)
    write(tmp_path, changed(run, weight_decay=0.1, epsilon=1e-6))
    assert nearest(tmp_path, run) == f"{near.id} (done) in optimization.weight_decay: 0.1 → 0.01"


def test_runs_that_differ_in_more_are_not_near(tmp_path: Path) -> None:
    write(tmp_path, planned(tmp_path, "M0").stages[0])
    assert nearest(tmp_path, planned(tmp_path, "M8").stages[0]) is None


def test_equal_leaves_under_another_name_are_another_numerics_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(tmp_path).stages[0]
    old = write(tmp_path, run, done=True).name
    monkeypatch.setitem(NUMERICS, "masking", NUMERICS["masking"] + 1)
    run = run.model_copy()  # ids are kept
    assert run.id != old
    assert nearest(tmp_path, run) == f"{old} (done) in numerics version"
    with_both = changed(run, weight_decay=0.3)
    assert nearest(tmp_path, with_both) == f"{old} (done) in optimization.weight_decay: 0.01 → 0.3; numerics version"


def test_a_field_that_came_later_is_a_difference(tmp_path: Path) -> None:
    run = planned(tmp_path).stages[0]
    path = write(tmp_path, changed(run, weight_decay=0.01 + 1e-9)) / "run.json"
    content = json.loads(path.read_text())
    del content["run"]["recipe"]["packing"]
    path.write_text(json.dumps(content))
    said = nearest(tmp_path, run)
    assert said is not None and "packing: None → padded" in said and "(of another version)" in said


def test_torn_files_are_passed_over(tmp_path: Path) -> None:
    run = planned(tmp_path).stages[0]
    (write(tmp_path, changed(run, epsilon=1e-6)) / "run.json").write_text('{"pretr')
    assert nearest(tmp_path, run) is None


def test_another_grid_is_one_difference_and_other_weights_are_the_pretrainings_matter(tmp_path: Path) -> None:
    row = planned(tmp_path)
    study = next(unit.run for unit in row.planned if isinstance(unit.run, GlueStudy))
    smaller = study.model_copy(update={"points": study.points[:1]})
    write(tmp_path, study.model_copy(update={"weights": "0" * 12}))
    assert nearest(tmp_path, study) is None
    write(tmp_path, smaller, done=True)
    said = nearest(tmp_path, study)
    assert said is not None and said.startswith(f"{smaller.id} (done) in points: 1 points batch_size 32, ")


def test_runs_of_the_plan_itself_and_units_that_are_there_are_not_told(tmp_path: Path) -> None:
    rows = [planned(tmp_path, seed=seed) for seed in (0, 1)]
    for row in rows:
        write(tmp_path, row.stages[0])
    assert id_diffs([planned(tmp_path, seed=seed) for seed in (0, 1)], Layout(tmp_path)) == [[], []]
    third = id_diffs([planned(tmp_path, seed=2), planned(tmp_path, seed=2)], Layout(tmp_path))
    assert [[set(miss.differs) for miss in misses] for misses in third] == [[{"recipe.seed"}], []]


def test_the_plan_prints_costs_and_near_misses_in_json_and_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, changed(planned(tmp_path).stages[0], weight_decay=0.1))
    rows = [planned(tmp_path)]
    print_plan(rows, PlanCosts(Layout(tmp_path), rows, SYNTHETIC, MACHINE), as_json=True)
    (entry,) = json.loads(capsys.readouterr().out)
    assert {"memory_gb_per_gpu", "gpu_hours", "gpu_hours_source", "disk_gb", "near_misses"} <= set(entry)
    assert entry["gpu_hours"] is None and entry["memory_gb_per_gpu"] > 2.5
    (miss,) = entry["near_misses"]
    assert (
        miss["differs"] == {"recipe.optimization.weight_decay": [0.1, 0.01]} and miss["kind"] == "pretraining stage 1"
    )
    print_plan(rows, PlanCosts(Layout(tmp_path), rows, SYNTHETIC, MACHINE), as_json=False)
    said = capsys.readouterr().out
    assert "(waiting) in optimization.weight_decay: 0.1 → 0.01" in said
    said = " ".join(said.split())
    stage = rows[0].stages[0].recipe.stages[0]
    assert f"to do, each run once: {quantity(stage.tokens)} tokens and" in said and "FLOPs of pre-training" in said
    assert "GPU-hours unknown" in said and "GPU-hours are not known" in said and " min" not in said
