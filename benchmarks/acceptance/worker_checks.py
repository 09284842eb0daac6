"""Checks of whole training runs on GPUs: the trainer's waits; the real worker compiled, killed and on several ranks."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ablations.recipe_runs import pretraining_runs
from benchmarks.acceptance.checks import Check, on_gpu, random_texts, text_encoder
from benchmarks.contenders import Setting
from benchmarks.measuring import Goal, Result
from benchmarks.pretraining import (
    ROW_TOKENS,
    SOURCE,
    TOKENS_PER_STEP,
    UNCOUNTED_STEPS,
    logged_steps,
    plan_worker,
    recipe_with,
)
from neobert.data.preparation import open_specified, read_corpora
from neobert.errors import EXIT_RUN_FAILED, RunFailed
from neobert.files import read_json
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import StopRequest, start_child, worker_environment
from neobert.recipe import EngineWord, Pretraining
from neobert.runs.layout import Layout
from neobert.runs.run_file import CompileWord, Execution, read_run_file
from neobert.training.distributed import ABORT_SECONDS, VANISHED_SECONDS, JobRank, Process, host_ranks
from neobert.training.pretraining import SIZED_STEPS, PretrainingTrainer

KILLED_BEHIND = 8
"""Number of logged steps at which a run is killed."""


@dataclass(frozen=True)
class SmallRun:
    """A run of the real worker on the embedded corpus, in folders below `root` that share the tokenised corpus.

    micro_batches: number of them per step in every rank. compile: whether the model is compiled.
    """

    root: Path
    run: PretrainingRun
    micro_batches: int = 2
    compile: CompileWord = "off"

    def plan(self, name: str, processes: int = 1, engine: EngineWord = "ddp") -> tuple[Path, Callable[[], Any]]:
        """Create a new folder for the run; return it and a function that starts the worker."""
        stage = self.run.recipe.stages[-1]
        execution = Execution(
            threads=1,
            processes=processes,
            micro_batch_tokens=max(stage.context, stage.tokens_per_step // processes // self.micro_batches),
            checkpoint_interval_steps=5,
            engine=engine,
            compile=self.compile,
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

    def trainer(self, name: str) -> PretrainingTrainer:
        """Create a new folder for the run and return its trainer, in this process."""
        folder, _ = self.plan(name)
        return PretrainingTrainer(Layout(self.root / name), read_run_file(folder), Process(0, 1))


def small_run(root: Path, recipe: Pretraining, **options: Any) -> SmallRun:
    (run,) = pretraining_runs(recipe, 0, open_specified(SOURCE))
    read_corpora(Layout(root), run, SOURCE)
    return SmallRun(root, run, **options)


Lines = Sequence[Mapping[str, Any]]


def largest_difference(one: Lines, other: Lines, key: str = "loss") -> float:
    """Return the largest relative difference between the values of `key` at the same step."""
    pairs = zip(one, other, strict=True)
    return max(abs(line[key] / its[key] - 1) for line, its in pairs)


def compared(name: str, one: Lines, other: Lines, figures: dict[str, Any]) -> Iterator[Result]:
    """Compare losses and gradient norms. A loss alone does not show a wrong scale of the gradient: Adam and clipping
    hide any factor."""
    yield Result(f"losses of {name}", largest_difference(one, other), dict(figures))
    yield Result(f"gradient norms of {name}", largest_difference(one, other, "gradient_norm"), {})


def goals_of(name: str, against: str, loss: float = 0.002, norm: float = 0.01) -> dict[str, Goal]:
    """Return the goals of what `compared` yields."""
    return {
        f"losses of {name}": Goal(loss, "at most", f"largest |loss of {name} / {against} − 1|"),
        f"gradient norms of {name}": Goal(norm, "at most", f"largest |gradient norm of {name} / {against} − 1|"),
    }


def waits(call: Callable[[], Any], device: torch.device) -> bool:
    """Return whether a call waits for the GPU."""
    if device.type == "cpu":
        call()
        return False
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        print(f"waits: {error}", file=sys.stderr, flush=True)
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def count_waits(setting: Setting) -> Iterator[Result]:
    """Count how many of three steps of the trainer, loader included, and three batches of texts wait for the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = small_run(Path(folder), recipe_with(8)).trainer("run")
        trainer.begin()
        steps = trainer.steps(0)
        for step in islice(steps, 3):
            step.measured()
        found = sum(waits(partial(next, steps), setting.device) for _ in range(3))
        steps.close()  # type: ignore[attr-defined]  # a generator, whose thread ends with it
    yield Result("steps that wait", on_gpu(setting, found), {})
    encoder, texts = text_encoder(setting, setting.device, "bf16"), random_texts(setting)

    @torch.no_grad()
    def encode() -> None:
        encoder(encoder.collate(texts, setting.device, "bf16"))

    encode()
    batches = sum(waits(encode, setting.device) for _ in range(3))
    yield Result("batches of texts that wait", on_gpu(setting, batches), {})


SYNCS = Check(
    count_waits,
    {
        "steps that wait": Goal(
            0, "at most", "of three steps of the trainer, its loader included, those that wait for the GPU"
        ),
        "batches of texts that wait": Goal(0, "at most", "of three batches of texts, those that wait for the GPU"),
    },
)


def kill_and_resume(setting: Setting) -> Iterator[Result]:
    """Compare the losses of a run that was killed by SIGKILL and resumed with those of an uninterrupted run."""
    with tempfile.TemporaryDirectory() as name:
        small = small_run(Path(name), recipe_with(8))
        undisturbed = small.train("undisturbed")
        folder, start = small.plan("killed")
        worker = start()
        wait_for_steps(worker, folder)
        worker.kill()
        if worker.wait() == 0:
            raise RunFailed("the run came to its end before it could be killed")
        if code := start().wait():
            raise RunFailed(f"the run that was killed ended with exit code {code} when it was taken up again")
        resumed = logged_steps(folder)
    figures = {"bit for bit": [line["loss"] for line in resumed] == [line["loss"] for line in undisturbed]}
    yield Result("losses behind a kill", largest_difference(resumed, undisturbed), figures)


def wait_for_steps(worker: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until all attempts at a run have logged `KILLED_BEHIND` steps, or its worker has ended."""
    while worker.poll() is None:
        if sum(path.read_bytes().count(b"\n") for path in folder.glob("attempts/*/metrics.jsonl")) >= KILLED_BEHIND:
            return
        time.sleep(0.005)


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


def in_fp32(root: Path, ranks: int) -> SmallRun:
    """Return a run in fp32 with eight rows per rank."""
    return small_run(root, recipe_with(8 * ranks).model_copy(update={"precision": "fp32"}))


def compare_ranks(setting: Setting) -> Iterator[Result]:
    """Compare losses and gradient norms of a run on all GPUs with those on one."""
    with tempfile.TemporaryDirectory() as name:
        small = in_fp32(Path(name), rank_count(setting))
        one, all_of_them = small.train("one"), small.train("all", rank_count(setting))
    yield from compared("ranks", all_of_them, one, {"ranks": rank_count(setting)})


RANKS = Check(compare_ranks, goals_of("ranks", "on one GPU, fp32"))


ENGINES: tuple[EngineWord, ...] = ("zero1", "zero2")


def compare_zero(setting: Setting) -> Iterator[Result]:
    """Compare losses and gradient norms of a run under ZeRO stages 1 and 2 with those under DDP."""
    with tempfile.TemporaryDirectory() as name:
        small = in_fp32(Path(name), rank_count(setting))
        ddp = small.train("ddp", rank_count(setting))
        for engine in ENGINES:
            yield from compared(engine, small.train(engine, rank_count(setting), engine), ddp, {})


ZERO = Check(compare_zero, {key: goal for engine in ENGINES for key, goal in goals_of(engine, "of ddp, fp32").items()})


def compiled_recipe(setting: Setting, rows: int) -> Pretraining:
    """Return the recipe of compiled workers in bf16: NeoBERT's own shape on a GPU, two layers in a rehearsal. All sizes
    of its steps are compiled before the first one."""
    shape = setting.recipe.model.model_copy(update={"vocabulary_size": 1024})
    if setting.device.type == "cpu":
        shape = shape.model_copy(update={"layers": 2})
    recipe = recipe_with(rows)
    stage = recipe.stages[0].model_copy(update={"steps": SIZED_STEPS})
    return recipe.model_copy(update={"model": shape, "stages": (stage,)})


def compare_compiled_workers(setting: Setting) -> Iterator[Result]:
    """Compare compiled workers in bf16, on one GPU and on all of them, with an eager worker on one."""
    ranks = rank_count(setting)
    with tempfile.TemporaryDirectory() as name:
        eager = small_run(Path(name), compiled_recipe(setting, 16 * ranks), micro_batches=1)
        compiled = replace(eager, compile="on")
        exact = eager.train("eager")
        for who, processes in {"one, compiled": 1, "all, compiled": ranks}.items():
            yield from compared(who, compiled.train(who, processes), exact, {f"ranks of {who}": processes})
            seconds = seconds_spent_compiling(Path(name) / who)
            late = {f"seconds spent compiling, {who}": seconds}
            yield Result(f"late compiling, {who}", seconds["in steps"], late)


def seconds_spent_compiling(root: Path) -> dict[str, float]:
    """Return the seconds that the only run below `root` spent compiling, before its first step and in steps."""
    (folder,) = root.glob("pretraining/*")
    whole = read_json(folder / "done.json")["compile_seconds"]
    before = read_json(folder / "checkpoints" / "step-00000000" / "state.json")["totals"]["compile_seconds"]
    return {"before": round(before, 1), "in steps": round(whole - before, 3)}


COMPILED = Check(
    compare_compiled_workers,
    {
        key: goal
        for who in ("one, compiled", "all, compiled")
        for key, goal in {
            **goals_of(who, "of an eager worker on one GPU, bf16", loss=0.005, norm=0.02),
            f"late compiling, {who}": Goal(1, "at most", f"seconds of steps spent compiling, {who}"),
        }.items()
    },
)


SLOTS_EACH = (TOKENS_PER_STEP, TOKENS_PER_STEP // 4)
"""Slots of a rank in a step: as many as fit, and those of the paper's small steps on several GPUs."""


def measure_scaling(setting: Setting) -> Iterator[Result]:
    """Compare the real tokens per second of a rank on all GPUs with one GPU alone, compiled, with equally many slots
    per rank."""
    for slots in SLOTS_EACH:
        ranks, speeds = rank_count(setting), []
        rows = slots // ROW_TOKENS if setting.device.type == "cuda" else 16
        for processes in (1, ranks):
            with tempfile.TemporaryDirectory() as name:
                recipe = compiled_recipe(setting, rows * processes)
                compile: CompileWord = "on" if setting.device.type == "cuda" else "off"
                small = small_run(Path(name), recipe, micro_batches=1, compile=compile)
                lines = small.train("run", processes)[UNCOUNTED_STEPS:]
            speeds.append(float(np.median([line["real_tokens"] / line["seconds"] for line in lines])))
        alone, together = speeds
        figures = {f"real tokens a second, {slots} slots": [round(speed) for speed in speeds], "ranks": ranks}
        yield Result(f"scaling, {slots} slots", on_gpu(setting, together / ranks / alone), figures)


SCALING = Check(
    measure_scaling,
    {
        f"scaling, {slots} slots": Goal(
            0.85, "at least", f"tokens a second of a rank among all GPUs / of one alone, compiled, {slots:,} slots each"
        )
        for slots in SLOTS_EACH
    },
)


GRACE_SECONDS = 10.0
"""Time that a process may take to write its error and to end, beyond what the ranks' own limits allow."""


def kill_a_rank(setting: Setting) -> Iterator[Result]:
    """Kill rank 1 with SIGKILL in the middle of training, and see whether rank 0 ends with an error in time."""
    with tempfile.TemporaryDirectory() as name:
        small = small_run(Path(name), recipe_with(8 * rank_count(setting)))
        folder, start = small.plan("lost", rank_count(setting))
        first = start()
        wait_for_steps(first, folder)
        ranks = [pid for pid, command in children_of(first.pid).items() if b"neobert.runs.worker" in command]
        if not ranks:
            raise RunFailed("the run came to its end before a rank could be killed")
        os.kill(ranks[0], signal.SIGKILL)
        killed = time.perf_counter()
        try:
            code = first.wait(2 * LOST_SECONDS)
        except subprocess.TimeoutExpired:
            first.kill()
            code = first.wait()
        seconds = time.perf_counter() - killed
        error = read_json(folder / "error.json")["error"] if (folder / "error.json").exists() else None
    yield Result("end of rank 0", seconds, {"exit code of rank 0": code, "its error": error})
    yield Result("reason of rank 0", float(error is not None and code == EXIT_RUN_FAILED), {})


LOST_SECONDS = VANISHED_SECONDS + ABORT_SECONDS + GRACE_SECONDS

LOST = Check(
    kill_a_rank,
    {
        "end of rank 0": Goal(LOST_SECONDS, "at most", "seconds between the death of rank 1 and the end of rank 0"),
        "reason of rank 0": Goal(1, "at least", "1 where rank 0 failed and left an error file"),
    },
)


def children_of(pid: int) -> dict[int, bytes]:
    """Return the command lines of the child processes of a process, in the order of their start."""
    numbers = (int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split())
    return {number: Path(f"/proc/{number}/cmdline").read_bytes() for number in sorted(numbers)}
