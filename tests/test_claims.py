"""Claims: one owner at a time, dead owners make way, paused owners are fenced."""

import json
import os
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from neobert.grid import claims


def test_a_held_unit_is_refused_to_everybody_else(tmp_path: Path) -> None:
    claim = claims.acquire(tmp_path / "unit")
    assert claim is not None
    with claim:
        assert claims.acquire(tmp_path / "unit") is None
        assert claims.is_claimed(tmp_path / "unit")
    assert not claims.is_claimed(tmp_path / "unit")
    assert claims.acquire(tmp_path / "unit") is not None


def test_processes_that_race_never_hold_a_unit_together(tmp_path: Path) -> None:
    """Four processes run over the same units; whoever holds one finds itself alone in it."""
    context = get_context("spawn")
    processes = [
        context.Process(target=_hold_alone, args=(tmp_path, 15, tmp_path / f"clashes-{number}")) for number in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert not list(tmp_path.glob("clashes-*"))


def _hold_alone(folder: Path, units: int, clashes: Path) -> None:
    for unit in range(units):
        claim = claims.acquire(folder / str(unit))
        if claim is None:
            continue
        with claim:
            marker = folder / f"inside-{unit}"
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                clashes.touch()
            time.sleep(0.001)
            marker.unlink()


def test_a_dead_owner_makes_way_at_once(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from neobert.grid.claims import acquire
assert acquire(Path({str(tmp_path / "unit")!r})) is not None
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    claim = claims.acquire(tmp_path / "unit")
    assert claim is not None and claim.number == 2


def test_an_owner_on_another_machine_makes_way_when_its_lease_is_over(tmp_path: Path) -> None:
    folder = tmp_path / "unit"
    folder.mkdir()
    owner = folder / "1"
    owner.write_text(json.dumps({"host": "elsewhere", "pid": 1, "birth": "1"}))
    assert claims.acquire(folder, lease_seconds=30) is None
    past = time.time() - 31
    os.utime(owner, (past, past))
    assert claims.acquire(folder, lease_seconds=30) is not None


def test_an_owner_paused_past_its_lease_publishes_nothing(tmp_path: Path) -> None:
    first = claims.acquire(tmp_path / "unit")
    assert first is not None
    first.check()
    content = json.loads((first.folder / "1").read_text()) | {"host": "elsewhere"}
    (first.folder / "1").write_text(json.dumps(content))
    os.utime(first.folder / "1", (0, 0))
    second = claims.acquire(tmp_path / "unit")
    assert second is not None and second.token > first.token
    with pytest.raises(claims.ClaimLost, match="taken over"):
        first.check()
    second.check()


def test_a_heartbeat_keeps_a_claim_alive_past_its_lease(tmp_path: Path) -> None:
    claim = claims.acquire(tmp_path / "unit", lease_seconds=0.4)
    assert claim is not None
    owner = claim.folder / "1"
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"host": "elsewhere"}))
    with claim:
        time.sleep(0.9)
        assert claims.acquire(tmp_path / "unit", lease_seconds=0.4) is None


def test_a_reused_pid_is_not_taken_for_the_owner(tmp_path: Path) -> None:
    claim = claims.acquire(tmp_path / "unit")
    assert claim is not None
    owner = claim.folder / "1"
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"birth": "12"}))
    assert claims.acquire(tmp_path / "unit") is not None
