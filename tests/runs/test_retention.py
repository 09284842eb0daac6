"""Cleanup: of finished training the milestones stay, of unfinished training everything, and nobody is disturbed."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablations import run
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.cleanup import remove, superseded
from neobert.runs.layout import Layout
from tests.ablations.status_worlds import (
    aged,
    checkpoint,
    claim,
    declare,
    fail,
    finish_pretraining,
    finish_study,
    study_of,
    tokenize,
    write,
)
from tests.support.tiny_runs import STEPS, tiny_run

MILESTONES = (0, 6, 12, 18, 24)
STATES = ("absent", "declared", "running", "failed", "done")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def whole_checkpoint(layout: Layout, run: PretrainingRun, step: int) -> Path:
    """A checkpoint with a manifest that fits its files."""
    folder = checkpoint(layout, run, step)
    write(folder / "manifest.json", {"step": step, "sha256": {"model.safetensors": "…", "state.json": "…"}})
    return folder


def paths(layout: Layout) -> set[str]:
    """What may go, relative to the folder of runs."""
    return {str(found.path.relative_to(layout.root)) for found in superseded(layout, [])}


def trained(layout: Layout, state: str = "done", seed: int = 0) -> PretrainingRun:
    """A run with checkpoints at all milestones and one in between."""
    made = tiny_run(seed=seed)
    for step in (*MILESTONES, 20):
        whole_checkpoint(layout, made, step)
    if state != "absent":
        declare(layout, made)
    if state == "running":
        claim(layout, made.id)
    if state == "failed":
        fail(layout.pretraining(made.id) / "error.json", made.id, "no")
    if state == "done":
        finish_pretraining(layout, made)
    return made


@settings(max_examples=8)
@given(states=st.lists(st.sampled_from(STATES), min_size=1, max_size=4))
def test_only_what_lies_between_the_milestones_of_finished_training_goes(
    states: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Corpora, weights of trials and all records stay, and a second round finds nothing."""
    layout = Layout(tmp_path_factory.mktemp("runs"))
    runs = [trained(layout, state, seed=number) for number, state in enumerate(states)]
    study = study_of(runs[0], points=2)
    declare(layout, study)
    finish_study(layout, study)
    tokenize(layout, runs[0].data_id)
    expected = {
        f"pretraining/{made.id}/checkpoints/step-00000020"
        for made, state in zip(runs, states, strict=True)
        if state == "done"
    }
    assert paths(layout) == expected
    files = {path for path in layout.root.rglob("*") if path.is_file()}
    assert all(remove(layout, found) for found in superseded(layout, []))
    gone = {path.parent.relative_to(layout.root).as_posix() for path in files if not path.exists()}
    assert gone == expected and paths(layout) == set()


@pytest.mark.parametrize("damage", ["no last checkpoint", "no manifest", "torn manifest", "a file is gone"])
def test_the_checkpoint_before_a_damaged_last_one_stays(layout: Layout, damage: str) -> None:
    """It is what the stage can be finished from again, also if the damage comes after the listing."""
    made = trained(layout)
    (found,) = superseded(layout, [])
    last = layout.pretraining(made.id) / "checkpoints" / f"step-{STEPS:08d}"
    if damage == "no last checkpoint":
        last.rename(last.with_name("elsewhere"))
    elif damage == "no manifest":
        (last / "manifest.json").unlink()
    elif damage == "torn manifest":
        (last / "manifest.json").write_text("{")
    else:
        (last / "model.safetensors").unlink()
    assert paths(layout) == set() and not remove(layout, found) and found.path.exists()


def test_who_holds_a_claim_is_never_disturbed(layout: Layout) -> None:
    """Neither listed, nor removed where the claim came after the listing."""
    made = trained(layout)
    (found,) = superseded(layout, [])
    held = claim(layout, made.id)
    assert paths(layout) == set() and not remove(layout, found) and found.path.exists()
    aged(held, 300)
    assert remove(layout, found) and not found.path.exists()


def test_the_command_is_dry_unless_told_to_delete(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    made = trained(layout)
    path = layout.pretraining(made.id) / "checkpoints" / "step-00000020"
    runs = ["--runs", str(layout.root)]
    assert run.main(["--gc", *runs]) == 0
    told = capsys.readouterr().out
    assert "step-00000020" in told and "1 could go" in told and "--gc --delete" in told and path.exists()
    assert run.main(["--gc", "--json", *runs]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["path"] == str(path.relative_to(layout.root)) and entry["bytes"] > 100 and not entry["removed"]
    assert run.main(["--gc", "--delete", "--json", *runs]) == 0
    assert json.loads(capsys.readouterr().out)[0]["removed"] and not path.exists()
    assert run.main(["--gc", "--delete", *runs]) == 0
    assert "0 removed" in capsys.readouterr().out


def test_the_command_refuses_what_makes_no_sense(layout: Layout) -> None:
    assert run.main(["--gc", "--runs", str(layout.root / "nowhere")]) == 3
    with pytest.raises(SystemExit) as refused:
        run.main(["--delete", "--variant", "M7"])
    assert refused.value.code == 2
