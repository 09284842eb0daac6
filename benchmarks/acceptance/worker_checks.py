"""Checks of whole training runs on GPUs: the real worker killed, resumed, and on several ranks."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ablations.recipe_runs import pretraining_runs
from benchmarks.acceptance.checks import Check, on_gpu
from benchmarks.contenders import Setting
from benchmarks.measuring import Goal, Result
from benchmarks.pretraining import ROW_TOKENS, SOURCE, TOKENS_PER_STEP, plan_worker, recipe_with
from neobert.data.preparation import open_specified, tokenized_corpus
from neobert.errors import RunFailed
from neobert.files import read_lines
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import StopRequest, start_child, worker_environment
from neobert.recipe import EngineWord, Pretraining
from neobert.runs.layout import Layout
from neobert.runs.run_file import Execution
from neobert.training.distributed import JobRank, Process, host_ranks

KILLED_BEHIND = 8
"""Number of logged steps at which a run is killed."""


@dataclass(frozen=True)
class SmallRun:
    """A run of the real worker on the embedded corpus, in folders below `root` that share the tokenised corpus."""

    root: Path
    run: PretrainingRun

    def plan(self, name: str, processes: int = 1, engine: EngineWord = "ddp") -> tuple[Path, Callable[[], Any]]:
        """Create a new folder for the run; return it and a function that starts the worker."""
        stage = self.run.recipe.stages[-1]
        execution = Execution(
            threads=1,
            processes=processes,
            micro_batch_tokens=max(stage.context, stage.tokens_per_step // processes // 2),
            checkpoint_interval_steps=5,
            engine=engine,
            compile="off",
        )
        (self.root / name).mkdir()
        folder, command = plan_worker(self.root / name, self.run, execution, self.root)
        return folder, partial(start_child, command, worker_environment(1), sys.stderr.fileno())

    def train(self, name: str, processes: int = 1, engine: EngineWord = "ddp") -> list[dict[str, Any]]:
        """Train without interruption and return the metrics of all steps.

        Raises:
            RunFailed: the worker did not finish.
        """
        folder, start = self.plan(name, processes, engine)
        if code := start().wait():
            raise RunFailed(f"a worker of {processes} processes with engine {engine} ended with exit code {code}")
        return logged_steps(folder)


def logged_steps(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


def small_run(root: Path, recipe: Pretraining) -> SmallRun:
    (run,) = pretraining_runs(recipe, 0, open_specified(SOURCE))
    tokenized_corpus(Layout(root), run, SOURCE)
    return SmallRun(root, run)


def largest_difference(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest relative difference between the losses of the same step."""
    pairs = zip(one, other, strict=True)
    return max(abs(line["loss"] / its["loss"] - 1) for line, its in pairs)


def kill_and_resume(setting: Setting) -> Iterator[Result]:
    """Compare the losses of a run that was killed by SIGKILL and resumed with those of an uninterrupted run."""
    with tempfile.TemporaryDirectory() as name:
        small = small_run(Path(name), recipe_with(8))
        undisturbed = small.train("undisturbed")
        folder, start = small.plan("killed")
        worker = start()
        while worker.poll() is None and logged_so_far(folder) < KILLED_BEHIND:
            time.sleep(0.005)
        worker.kill()
        if worker.wait() == 0:
            raise RunFailed("the run came to its end before it could be killed")
        if code := start().wait():
            raise RunFailed(f"the run that was killed ended with exit code {code} when it was taken up again")
        resumed = logged_steps(folder)
    figures = {"bit for bit": [line["loss"] for line in resumed] == [line["loss"] for line in undisturbed]}
    yield Result("losses behind a kill", largest_difference(resumed, undisturbed), figures)


def logged_so_far(folder: Path) -> int:
    """Return the number of lines of metrics that all attempts at a run have written."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("attempts/*/metrics.jsonl"))


RESUME = Check(
    kill_and_resume,
    {"losses behind a kill": Goal(0.002, "at most", "largest |loss of a killed and resumed run / of another − 1|")},
)


def form_group(setting: Setting) -> Iterator[Result]:
    """Form a process group of one on the back end that ranks use here; run a sum and a barrier, and end the group."""
    execution = Execution(threads=1, processes=1, micro_batch_tokens=1, checkpoint_interval_steps=1)
    with (
        tempfile.TemporaryDirectory() as name,
        host_ranks(Layout(Path(name)), JobRank("check", Process(0, 1))) as ranks,
        ranks.lead("check", execution, StopRequest(), print),
    ):
        value = torch.full((), 3.0, device=setting.device)
        dist.all_reduce(value)
        dist.barrier()
        backend = dist.get_backend()
    yield Result("sum in a group of one", abs(value.item() - 3.0), {"back end": backend})
    yield Result("back end", on_gpu(setting, float(backend == "nccl")), {})


GROUP = Check(
    form_group,
    {
        "sum in a group of one": Goal(0, "at most", "distance of a sum over a group of one process to its summand"),
        "back end": Goal(1, "at least", "1 where the group's back end is NCCL"),
    },
)


def rank_count(setting: Setting) -> int:
    """Return the number of ranks: all GPUs, or two in a rehearsal."""
    return torch.cuda.device_count() if setting.device.type == "cuda" else 2


def compare_ranks(setting: Setting) -> Iterator[Result]:
    """Compare the losses of a run on all GPUs with those on one."""
    with tempfile.TemporaryDirectory() as name:
        small = small_run(Path(name), recipe_with(8 * rank_count(setting)).model_copy(update={"precision": "fp32"}))
        one, all_of_them = small.train("one"), small.train("all", rank_count(setting))
    yield Result("losses of ranks", largest_difference(all_of_them, one), {"ranks": rank_count(setting)})


RANKS = Check(
    compare_ranks, {"losses of ranks": Goal(0.002, "at most", "largest |loss on all GPUs / on one − 1|, fp32")}
)


ENGINES: tuple[EngineWord, ...] = ("zero1", "zero2")


def compare_zero(setting: Setting) -> Iterator[Result]:
    """Compare the losses of a run under ZeRO stages 1 and 2 with those under DDP."""
    with tempfile.TemporaryDirectory() as name:
        small = small_run(Path(name), recipe_with(8 * rank_count(setting)).model_copy(update={"precision": "fp32"}))
        ddp = small.train("ddp", rank_count(setting))
        for engine in ENGINES:
            losses = small.train(engine, rank_count(setting), engine)
            yield Result(f"losses of {engine}", largest_difference(losses, ddp), {})


ZERO = Check(
    compare_zero,
    {
        f"losses of {engine}": Goal(0.002, "at most", f"largest |loss of {engine} / of ddp − 1|, fp32")
        for engine in ENGINES
    },
)


UNCOUNTED_STEPS = 4


def measure_scaling(setting: Setting) -> Iterator[Result]:
    """Compare the real tokens per second of a rank on all GPUs with one GPU alone, with equally many rows per rank."""
    ranks, speeds = rank_count(setting), []
    rows = TOKENS_PER_STEP // ROW_TOKENS if setting.device.type == "cuda" else 16
    shape = setting.recipe.model.model_copy(update={"vocabulary_size": 1024})
    with tempfile.TemporaryDirectory() as name:
        for processes in (1, ranks):
            recipe = recipe_with(rows * processes).model_copy(update={"model": shape})
            (Path(name) / f"of {processes}").mkdir()
            lines = small_run(Path(name) / f"of {processes}", recipe).train("run", processes)[UNCOUNTED_STEPS:]
            speeds.append(float(np.median([line["real_tokens"] / line["seconds"] for line in lines])))
    alone, together = speeds
    figures = {"ranks": ranks, "real tokens a second": [round(speed) for speed in speeds]}
    yield Result("scaling efficiency", on_gpu(setting, together / ranks / alone), figures)


SCALING = Check(
    measure_scaling,
    {"scaling efficiency": Goal(0.85, "at least", "tokens a second of a rank among all GPUs / of one alone")},
)
