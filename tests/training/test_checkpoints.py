"""Checkpoints: the newest valid one wins, whatever happened to the others."""

import shutil
from pathlib import Path

import pytest
import torch

from neobert import files
from neobert.errors import DamagedFile, MissingData
from neobert.runs.claims import Claim, ClaimLost, acquire
from neobert.training import checkpoints

STATE = {"data": {"step": 3}, "totals": {"real_tokens": 7}}


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    taken = acquire(tmp_path / "claims" / "run")
    assert taken is not None
    return taken


def save(folder: Path, step: int, claim: Claim) -> None:
    weights = {"model.weight": torch.full((3, 2), float(step))}
    optimizer = {"exp_avg/model.weight": torch.ones(3, 2) * step, "step/model.weight": torch.tensor(float(step))}
    checkpoints.save(folder, step, weights, optimizer, STATE, claim.check)


def test_what_is_saved_comes_back(tmp_path: Path, claim: Claim) -> None:
    save(tmp_path / "c", 5, claim)
    found = checkpoints.newest(tmp_path / "c")
    assert found is not None and found.step == 5 and found.state() == STATE
    assert torch.equal(found.weights()["model.weight"], torch.full((3, 2), 5.0))
    assert set(found.optimizer()) == {"exp_avg/model.weight", "step/model.weight"}


@pytest.mark.parametrize("name", [checkpoints.WEIGHTS, checkpoints.OPTIMIZER, checkpoints.STATE, checkpoints.MANIFEST])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_makes_the_one_before_it_win(tmp_path: Path, claim: Claim, name: str, damage: str) -> None:
    for step in (5, 10):
        save(tmp_path / "c", step, claim)
    path = tmp_path / "c" / "step-00000010" / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-3])
    else:
        path.unlink()
    found = checkpoints.newest(tmp_path / "c")
    assert found is not None and found.step == 5
    with pytest.raises(DamagedFile, match=r"step-00000010 .*another step \(there: 5, 10\)"):
        checkpoints.load(tmp_path / "c", 10)


def test_a_missing_step_is_named_with_those_there(tmp_path: Path, claim: Claim) -> None:
    save(tmp_path / "c", 5, claim)
    with pytest.raises(MissingData, match=r"no checkpoint of step 7 \(there: 5\)"):
        checkpoints.load(tmp_path / "c", 7)


@pytest.mark.parametrize("operation", ["sha256_of", "publish_folder", "save_tensors"])
def test_a_save_that_breaks_off_leaves_the_old_checkpoint_and_no_rubbish(
    tmp_path: Path, claim: Claim, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    save(tmp_path / "c", 5, claim)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, operation, fail)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "c", 10, claim)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-00000005"]
    save(tmp_path / "c", 10, claim)
    found = checkpoints.newest(tmp_path / "c")
    assert found is not None and found.step == 10


def test_a_folder_that_was_half_written_is_not_a_checkpoint(tmp_path: Path, claim: Claim) -> None:
    """What a kill -9 leaves: a temporary folder, or with a bad file system a renamed but empty one."""
    save(tmp_path / "c", 5, claim)
    (tmp_path / "c" / f"step-00000010{files.TEMPORARY_MARK}abc").mkdir()
    (tmp_path / "c" / "step-00000015").mkdir()
    found = checkpoints.newest(tmp_path / "c")
    assert found is not None and found.step == 5
    files.clear_temporaries(tmp_path / "c")
    save(tmp_path / "c", 15, claim)
    assert checkpoints.steps_on_disk(tmp_path / "c") == [5, 15]


def test_whoever_lost_the_claim_saves_nothing(tmp_path: Path, claim: Claim) -> None:
    (claim.folder / "1.released").touch()
    assert acquire(claim.folder) is not None
    with pytest.raises(ClaimLost):
        save(tmp_path / "c", 5, claim)
    assert checkpoints.newest(tmp_path / "c") is None


def test_retention_keeps_milestones_and_the_newest(tmp_path: Path, claim: Claim) -> None:
    """Milestones behind the newest keep their weights; only the newest can be resumed from."""
    for step in range(0, 60, 10):
        save(tmp_path / "c", step, claim)
        checkpoints.prune(tmp_path / "c", frozenset({0, 20}), step)
    assert checkpoints.steps_on_disk(tmp_path / "c") == [0, 20, 40, 50]
    for step in (0, 20):
        milestone = checkpoints.load(tmp_path / "c", step)
        assert torch.equal(milestone.weights()["model.weight"], torch.full((3, 2), float(step)))
        assert not (milestone.folder / checkpoints.OPTIMIZER).exists()
    for step in (50, 40):
        (tmp_path / "c" / f"step-{step:08d}" / checkpoints.WEIGHTS).unlink()
    assert checkpoints.newest(tmp_path / "c") is None


def test_a_run_that_fell_back_keeps_what_it_saves_and_can_always_resume(tmp_path: Path, claim: Claim) -> None:
    """Behind the step to which it falls back lie milestones without optimizer state, or damaged checkpoints."""
    saved = tmp_path / "c"

    def train() -> None:
        for step in range(0, 60, 10):
            save(saved, step, claim)
            checkpoints.prune(saved, frozenset({0, 20, 30}), step)
            found = checkpoints.newest(saved)
            assert found is not None and found.step == step

    train()
    for step in (40, 50):
        shutil.rmtree(saved / f"step-{step:08d}")
    train()
    for step in (40, 50):
        (saved / f"step-{step:08d}" / checkpoints.WEIGHTS).write_bytes(b"")
    train()


def test_an_optimizer_state_that_no_checksum_covers_is_not_resumed_from(
    tmp_path: Path, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kill -9 leaves between the new manifest and the end of the file, here with a bit flipped since: only the
    weights are valid. Saving the step again makes it whole, and pruning again removes the file."""
    saved = tmp_path / "c"
    for step in range(0, 40, 10):
        save(saved, step, claim)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.prune(saved, frozenset({0, 10, 20, 30}), 30)
    monkeypatch.undo()
    path = checkpoints.folder_of(saved, 0) / checkpoints.OPTIMIZER
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    for step in (10, 20, 30):
        (checkpoints.folder_of(saved, step) / checkpoints.STATE).unlink()
    assert checkpoints.is_valid(path.parent) and checkpoints.newest(saved) is None
    save(saved, 0, claim)
    found = checkpoints.newest(saved)
    assert found is not None and torch.equal(found.optimizer()["exp_avg/model.weight"], torch.zeros(3, 2))
    for step in (10, 20, 30):
        save(saved, step, claim)
    checkpoints.prune(saved, frozenset({0}), 30)
    assert not path.exists()


def test_a_folder_with_another_name_is_no_checkpoint(tmp_path: Path, claim: Claim) -> None:
    for name in ("step-1²", "step-００００００１５", "step-", "step-old"):
        (tmp_path / "c" / name).mkdir(parents=True)
    save(tmp_path / "c", 5, claim)
    assert checkpoints.steps_on_disk(tmp_path / "c") == [5]
