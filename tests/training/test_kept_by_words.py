"""Checkpoints by words seen: exact over kills and ranks, counted on over stages, never garbage, exported by name."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_REFUSED
from neobert.export.__main__ import main
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.cleanup import collectable
from neobert.runs.layout import Layout
from neobert.training import checkpoints
from neobert.training.schedule import milestones
from tests.support.tiny_runs import (
    STEPS,
    beside,
    finish,
    kill_after,
    record,
    tiny_run,
    tiny_stage,
    work,
    write_tiny_run,
)

UNIT = 500
Finished = tuple[Path, PretrainingRun, PretrainingRun]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A stage and one after it, both counted."""
    root, first = tmp_path_factory.mktemp("words"), tiny_run()
    second = tiny_run(previous=first, stages=(tiny_stage(steps=8, warmup_steps=0, decay_steps=8),))
    for run in (first, second):
        write_tiny_run(root, run, checkpoint_words=UNIT)
        assert work(root, run.reference) == 0
    return root, first, second


def weights_at(root: Path, run: PretrainingRun, step: int) -> bytes:
    return (
        checkpoints.folder_of(root / "pretraining" / run.id / "checkpoints", step) / "model.safetensors"
    ).read_bytes()


def test_a_killed_run_and_ranks_keep_the_same_checkpoints(finished: Finished, tmp_path: Path) -> None:
    """The two processes compute other sums, so that of theirs only the steps are the same."""
    root, run, _ = finished
    kept = record(root, run)["checkpoints_by_words"]
    assert (
        len(kept) > 3 and min(kept, key=kept.__getitem__) == f"chck_{UNIT}" and set(kept.values()) - milestones(STEPS)
    )
    killed, ranks = (beside(tmp_path / name, root) for name in ("killed", "ranks"))
    write_tiny_run(killed, run, checkpoint_words=UNIT)
    kill_after(killed, run, 14)
    assert work(killed, run.reference) == 0
    assert record(killed, run)["checkpoints_by_words"] == kept
    assert all(weights_at(killed, run, step) == weights_at(root, run, step) for step in kept.values())
    write_tiny_run(ranks, run, checkpoint_words=UNIT, processes=2)
    finish(ranks, run.reference)
    assert record(ranks, run)["checkpoints_by_words"] == kept


def test_a_run_of_the_same_id_without_the_flag_has_the_same_weights(finished: Finished, tmp_path: Path) -> None:
    """One that is begun without it keeps what is still to come."""
    root, run, _ = finished
    folder = write_tiny_run(beside(tmp_path / "half", root), run)
    kill_after(tmp_path / "half", run, 14)
    write_tiny_run(tmp_path / "half", run, checkpoint_words=UNIT)
    assert work(tmp_path / "half", run.reference) == 0
    kept, late = (record(each, run)["checkpoints_by_words"] for each in (root, tmp_path / "half"))
    assert late.items() < kept.items() and max(late.values()) == max(kept.values())
    assert weights_at(tmp_path / "half", run, STEPS) == weights_at(root, run, STEPS)
    assert folder.name == run.id


def test_they_stay_when_a_folder_of_runs_is_cleaned(finished: Finished) -> None:
    root, run, _ = finished
    kept = set(record(root, run)["checkpoints_by_words"].values())
    checkpoint = checkpoints.folder_of(
        root / "pretraining" / run.id / "checkpoints", next(iter(kept - milestones(STEPS)))
    )
    assert not [each for each in collectable(Layout(root))[0] if each.path == checkpoint]
    assert set(checkpoints.steps_on_disk(checkpoint.parent)) >= kept | milestones(STEPS)


def test_each_is_exported_in_the_folder_of_its_name(finished: Finished, tmp_path: Path, capsys) -> None:
    root, first, second = finished
    flags = ["--to", "hf", "--no-remote-code", "--by-words"]
    assert main([str(root / "pretraining" / second.id), *flags, "--out", str(tmp_path / "all")]) == EXIT_DONE
    said = json.loads(capsys.readouterr().out)["checkpoints"]
    kept = {
        (run.id, name): step
        for run in (first, second)
        for name, step in record(root, run)["checkpoints_by_words"].items()
    }
    numbers = [int(name.removeprefix("chck_")) for name in said if name != "main"]
    assert numbers == sorted({*numbers}) and len(numbers) == len(kept) and numbers[-1] > UNIT * len(numbers) / 2
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == sorted(said)
    for name, done in said.items():
        step = second.total if name == "main" else kept[done["run"], name]
        assert done["step"] == step
        expected = load_file(
            root / "pretraining" / done["run"] / "checkpoints" / f"step-{step:08d}" / "model.safetensors"
        )
        assert load_file(tmp_path / "all" / name / "model.safetensors")["decoder.bias"].equal(expected["decoder.bias"])


def test_what_cannot_be_exported_by_words_is_one_sentence(finished: Finished, tmp_path: Path, capsys) -> None:
    root, run, _ = finished
    flags = ["--to", "hf", "--by-words", "--out", str(tmp_path / "out")]
    assert main([str(root / "pretraining" / run.id), *flags, "--step", "0"]) == EXIT_REFUSED
    assert "leave --step out" in capsys.readouterr().err
    other = beside(tmp_path / "runs", root)
    folder = write_tiny_run(other, run)
    assert main([str(folder), *flags]) == EXIT_MISSING and "is not finished" in capsys.readouterr().err
    assert work(other, run.reference) == 0
    assert main([str(folder), *flags]) == EXIT_MISSING
    assert "kept no checkpoint by words: pre-train with --checkpoint-words" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
