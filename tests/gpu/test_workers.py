"""The real worker on a GPU: compiled, killed and resumed; with two GPUs their ranks, ZeRO, a lost rank and speed."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from benchmarks.data import write_web_pages
from benchmarks.pretraining import Setting
from neobert.errors import EXIT_RUN_FAILED
from neobert.execution import Execution
from neobert.executors.ranks import JobRank, host_ranks
from neobert.files import read_json
from neobert.processes import StopRequest
from neobert.recipe import EngineWord
from neobert.runs.run_file import SourceSpecification
from neobert.training.distributed import ABORT_SECONDS, VANISHED_SECONDS, Process
from tests.gpu.steps import CONTEXT, TOKENS_PER_STEP
from tests.gpu.workers import (
    LOST,
    SmallRun,
    assert_near,
    children_of,
    logged_steps,
    recipe_with,
    short_recipe,
    small_run,
    start_with_a_rank_that_fails,
    wait_for_steps,
)

pytestmark = [pytest.mark.gpu, pytest.mark.production]
GRACE_SECONDS = 10.0
"""Time that a process may take to write its error and to end, beyond what the ranks' own limits allow."""
STEPS, UNCOUNTED_STEPS = 16, 4
PAGES = 8000
"""About five million tokens."""


def test_a_run_that_was_killed_goes_on_with_the_losses_of_another(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    small = small_run(tmp_path, recipe_with(8))
    undisturbed = small.train("undisturbed")
    folder = small.plan("killed")
    worker = small.start("killed")
    wait_for_steps(worker, folder)
    worker.kill()
    assert worker.wait() != 0, "the run came to its end before it could be killed"
    assert small.start("killed").wait() == 0
    resumed = logged_steps(folder)
    record_property("bit for bit", [line["loss"] for line in resumed] == [line["loss"] for line in undisturbed])
    assert_near(resumed, undisturbed, loss=0.002, gradient_norm=0.01)


def test_a_group_of_one_process_forms_on_nccl_sums_and_ends(setting: Setting, tmp_path: Path) -> None:
    execution = Execution(threads=1, processes=1, micro_batch_tokens=1, checkpoint_interval_steps=1)
    with (
        host_ranks(JobRank("check", Process(0, 1))) as ranks,
        ranks.lead("check", execution, StopRequest(), print),
    ):
        value = torch.full((), 3.0, device=setting.device)
        dist.all_reduce(value)
        dist.barrier()
        assert (dist.get_backend(), value.item()) == ("nccl", 3.0)


def real_run(setting: Setting, root: Path, rows: int) -> SmallRun:
    """Return a run of NeoBERT's own shape and vocabulary in bf16, with `rows` rows of web pages in a step, one
    micro-batch of every rank."""
    pages = root / "pages"
    if not pages.exists():
        write_web_pages(pages, PAGES, setting.recipe.model.vocabulary_size)
    source = SourceSpecification(name=str(pages), synthetic_documents=1)
    return small_run(root, short_recipe(setting.recipe, rows, CONTEXT, STEPS), source, micro_batches=1)


def test_compiled_workers_on_one_gpu_and_on_all_have_the_steps_of_an_eager_one(
    setting: Setting, tmp_path: Path
) -> None:
    processes = torch.cuda.device_count()
    eager = real_run(setting, tmp_path, 16 * processes)
    expected = eager.train("eager")
    for count in {1, processes}:
        name = f"{count} compiled"
        found = replace(eager, compile="on").train(name, count)
        assert_near(found, expected, loss=0.005, gradient_norm=0.02)


def in_fp32(root: Path, ranks: int) -> SmallRun:
    """Return a run in fp32 with eight rows per rank."""
    return small_run(root, recipe_with(8 * ranks).model_copy(update={"precision": "fp32"}))


def test_all_gpus_have_the_steps_of_one(ranks: int, tmp_path: Path) -> None:
    small = in_fp32(tmp_path, ranks)
    assert_near(small.train("all", ranks), small.train("one"), loss=0.002, gradient_norm=0.01)


@pytest.mark.parametrize("engine", ["zero1", "zero2"])
def test_zero_has_the_steps_of_ddp(engine: EngineWord, ranks: int, tmp_path: Path) -> None:
    small = in_fp32(tmp_path, ranks)
    assert_near(small.train(engine, ranks, engine), small.train("ddp", ranks), loss=0.002, gradient_norm=0.01)


def test_a_rank_that_is_killed_while_others_wait_for_it_ends_them_with_the_reason(ranks: int, tmp_path: Path) -> None:
    small = small_run(tmp_path, recipe_with(8 * ranks))
    folder = small.plan("lost", ranks)
    first = small.start("lost")
    wait_for_steps(first, folder)
    others = [pid for pid, command in children_of(first.pid).items() if b"neobert.runs.worker" in command]
    assert others, "the run came to its end before a rank could be killed"
    os.kill(others[0], signal.SIGSTOP)
    time.sleep(2)  # the others come to the exchange of gradients, and wait there
    os.kill(others[0], signal.SIGKILL)
    code, seconds = end_of(first, VANISHED_SECONDS + ABORT_SECONDS + GRACE_SECONDS)
    error = read_json(folder / "error.json")["error"]
    assert code == EXIT_RUN_FAILED and re.search(r"rank \d+ sent no heartbeat|NCCL", error), (seconds, error)


def end_of(process: "subprocess.Popen[bytes]", allowed_seconds: float) -> tuple[int, float]:
    """Return the exit code of a process, and the seconds until then, no more than it is allowed."""
    began = time.perf_counter()
    try:
        return process.wait(allowed_seconds), time.perf_counter() - began
    finally:
        process.kill()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_while_another_waits_for_it_ends_both_within_seconds(
    failing: int, ranks: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """NCCL's collective is aborted, which no CPU can try."""
    small = small_run(tmp_path, recipe_with(16))
    folder = small.plan("failed", 2)
    tasks = start_with_a_rank_that_fails(small, "failed", failing)
    assert tasks[failing].wait(300) == EXIT_RUN_FAILED
    code, seconds = end_of(tasks[1 - failing], ABORT_SECONDS + GRACE_SECONDS)
    record_property("seconds until the other rank ends", seconds)
    assert code == EXIT_RUN_FAILED and LOST in read_json(folder / "error.json")["error"]


@pytest.mark.parametrize("slots", [TOKENS_PER_STEP, TOKENS_PER_STEP // 4])
def test_a_compiled_rank_among_all_is_nearly_as_fast_as_one_alone(
    slots: int, ranks: int, setting: Setting, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """With equally many slots: as many as fit, and those of the paper's small steps on several GPUs."""
    speeds = []
    for processes in (1, ranks):
        root = tmp_path / str(processes)
        root.mkdir()
        compiled = replace(real_run(setting, root, slots // CONTEXT * processes), compile="on")
        lines = compiled.train("run", processes)[UNCOUNTED_STEPS:]
        speeds.append(float(np.median([line["real_tokens"] / line["seconds"] for line in lines])))
        record_property(f"real tokens a second of {processes}", speeds[-1])
    assert speeds[1] / ranks >= 0.85 * speeds[0]
