"""GPUs of one machine: as many processes as were requested, each on its own, or a sentence and exit code 2."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations import run
from ablations.launch import checks, execute, request
from ablations.launch.execute import plan_locally
from neobert import processes
from neobert.execution import Execution
from neobert.processes import visible_gpus

Started = list[tuple[str | None, tuple[str, ...]]]
"""Of each worker the GPUs that it sees, and the kinds of its units."""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """As many GPUs as a test puts under `count`, with `memory` bytes each, on 16 cores."""
    has = {"count": 0, "memory": 10 * 10**9}
    for module in (request, execute, checks):
        monkeypatch.setattr(module, "visible_gpus", lambda: tuple(map(str, range(has["count"]))))
    for module in (request, execute):
        monkeypatch.setattr(module, "available_cores", lambda: 16)
    monkeypatch.setattr(checks, "gpu_memory_bytes", lambda: has["memory"])
    return has


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Of each worker that would have been started: the GPUs that it sees, and the kinds of its units."""
    seen: Started = []

    def start(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        units = command[command.index("--runs") + 2 :]
        seen.append((environment.get("CUDA_VISIBLE_DEVICES"), tuple(sorted({unit.split("/")[0] for unit in units}))))
        return subprocess.Popen(["true"])

    monkeypatch.setattr(processes, "start_child", start)
    return seen


@pytest.mark.parametrize(
    ("count", "flags", "expected"),
    [
        (4, ["--workers", "2"], [("0", ("glue", "pretraining")), ("1", ("glue", "pretraining"))]),
        (
            4,
            ["--gpus", "2"],
            [("0,1", ("pretraining",)), ("2,3", ("pretraining",)), *((str(index), ("glue",)) for index in range(4))],
        ),
        (4, ["--gpus", "3", "--engine", "zero2", "--workers", "1"], [("0,1,2", ("pretraining",)), ("0", ("glue",))]),
        (
            2,
            ["--gpus", "2", "--workers", "3"],
            [("0,1", ("pretraining",)), ("0", ("glue",)), ("1", ("glue",)), ("0", ("glue",))],
        ),
        (0, ["--gpus", "16"], [(None, ("pretraining",)), *[(None, ("glue",))] * 16]),
    ],
)
def test_only_trials_share_a_gpu_and_only_if_asked_to(
    gpus: dict[str, int],
    started: Started,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    flags: list[str],
    expected: Started,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus["count"] = count
    assert run.main(["--variant", "M0", "--cluster", "here", "--runs", str(tmp_path), *flags]) == 0
    assert started == expected
    (run_file,) = tmp_path.glob("pretraining/*/run.json")
    execution = json.loads(run_file.read_text())["execution"]
    wanted = int(flags[flags.index("--gpus") + 1]) if "--gpus" in flags else 1
    assert execution["processes"] == wanted
    assert execution["engine"] == ("zero2" if "zero2" in flags else "ddp")


@pytest.mark.parametrize(
    ("codes", "ended", "phases"), [((1, 0), 1, 2), ((75,), 75, 1)], ids=["pre-training failed", "interrupted"]
)
def test_failed_pre_training_keeps_nothing_else_from_starting(
    gpus: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    codes: tuple[int, ...],
    ended: int,
    phases: int,
) -> None:
    """Of runs that train together. After an interruption nothing starts."""
    gpus["count"] = 2
    begun, left = list[int](), iter(codes)
    monkeypatch.setattr(processes, "work_here", lambda *_, **__: begun.append(1) or next(left))
    assert run.main(["--variant", "M0", "--gpus", "2", "--cluster", "here", "--runs", str(tmp_path)]) == ended
    assert len(begun) == phases


@pytest.mark.parametrize(
    ("count", "flags", "sentence"),
    [
        (2, ["--gpus", "8"], "8 GPUs for a run are requested, but this machine has 2 GPUs"),
        (1, ["--workers", "8"], "8 workers are requested, but this machine has 1 GPU of 10.0 GB, and a trial of glue "),
        (2, ["--workers", "8"], " takes up to 2.5 GB: take 6 or fewer"),
        (1, ["--workers", "2", "--stages", "pretrain"], "which only trials of fine-tuning a variant share: take 1 or"),
        (0, ["--gpus", "17"], "17 GPUs for a run are requested, but this machine has no GPU and 16 cores"),
        (8, ["--gpus", "100000000"], "gpus_per_node = 100000000: Input should be less than or equal to 1000"),
        (8, ["--gpus", "8", "--engine", "single"], "engine single trains in one process"),
        (8, ["--engine", "zero2"], "say how many with --gpus"),
        (8, ["--nodes", "2"], "2 nodes need --cluster slurm"),
        (8, ["--partition", "gpu"], "--partition is a SLURM option: use --cluster slurm or leave it out"),
        (8, ["--memory-gb", "10"], "--memory-gb is a SLURM option"),
    ],
)
def test_what_this_machine_cannot_do_is_refused(
    gpus: dict[str, int],
    started: Started,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    count: int,
    flags: list[str],
    sentence: str,
) -> None:
    gpus["count"] = count
    command = ["--variant", "M0", "--cluster", "here", "--runs", str(tmp_path / "runs"), *flags]
    for more in ([], ["--dry-run"]):
        assert run.main([*command, *more]) == 2
        said = capsys.readouterr().err
        assert sentence in said and said.count("\n") == 1
    assert not started and not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("toy_scale")
def test_two_processes_train_together_where_there_is_no_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real command with the real workers: gloo on the cores of this machine."""
    if visible_gpus():
        pytest.skip("this machine has GPUs")
    monkeypatch.setattr(request, "available_cores", lambda: 2)
    command = ["--variant", "M0", "--stages", "pretrain", "--cluster", "here", "--gpus", "2", "--engine", "zero1"]
    assert run.main([*command, "--runs", str(tmp_path)]) == 0
    (done,) = tmp_path.glob("pretraining/*/done.json")
    record = json.loads(done.read_text())
    assert (record["processes"], record["engine"]) == (2, "zero1")
    assert "no GPU here: 2 processes train together on its cores" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "count", "names"),
    [(None, 2, ("0", "1")), ("4,5, 6", 3, ("4", "5", "6")), ("GPU-1a,GPU-2b", 2, ("GPU-1a", "GPU-2b")), ("", 0, ())],
)
def test_gpus_are_named_as_the_environment_names_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str | None, count: int, names: tuple[str, ...]
) -> None:
    """torch is asked by a process; here a stand-in says how many it sees."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {count}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(processes, "GPU_DEVICES", ("null",))
    monkeypatch.setattr(os, "environ", {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable})
    assert visible_gpus.__wrapped__() == names
    monkeypatch.setattr(processes, "GPU_DEVICES", ("no-such-device",))
    assert visible_gpus.__wrapped__() == ()


@pytest.mark.parametrize(("name", "value"), [("SLURM_CPUS_PER_TASK", "0"), ("SLURM_CPUS_ON_NODE", "4(x2)")])
def test_a_variable_of_the_scheduler_that_is_no_number_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, name: str, value: str
) -> None:
    for each in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    flags = ["--variant", "M0", "--scale", "proxy", "--dry-run", "--cluster", "here", "--runs", str(tmp_path)]
    assert run.main(flags) == 2
    assert f"the environment variable {name} is '{value}', and must be a whole number" in capsys.readouterr().err


@given(
    gpus=st.integers(0, 8),
    cores=st.integers(1, 64),
    threads=st.integers(1, 64),
    count=st.integers(1, 8),
    open_parts=st.integers(0, 50),
    workers=st.none() | st.integers(1, 24),
)
def test_training_never_shares_a_gpu_fine_tuning_does_so_evenly_and_no_worker_idles(
    gpus: int, cores: int, threads: int, count: int, open_parts: int, workers: int | None
) -> None:
    execution = Execution(threads=threads, processes=count, micro_batch_tokens=1, checkpoint_interval_steps=1)
    names = tuple(map(str, range(gpus)))
    if gpus and count > gpus:
        return  # refused before
    plan = plan_locally(names, cores, execution, open_parts, workers)
    assert plan.workers == workers or plan.workers <= max(1, open_parts)
    assert 1 <= plan.threads <= threads and (plan.threads == 1 or plan.threads * plan.workers <= cores)
    runs: Any = [SimpleNamespace(id=job, job=job) for job in ("pretrain", "mteb", "glue")]
    phases = plan.phases(runs)
    assert [run for batch, _ in phases for run in batch] == runs
    for batch, workers_gpus in phases:
        used = Counter(name for seen in workers_gpus if seen is not None for name in seen.split(","))
        assert used.keys() <= set(names)
        most = -(-plan.workers // gpus) if gpus and [run.job for run in batch] == ["glue"] else 1
        assert all(most - 1 <= shared <= most for shared in used.values())
    assert len(phases[-1][1]) == plan.workers, "all workers fine-tune"
