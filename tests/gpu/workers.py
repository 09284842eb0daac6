"""Runs of the real worker, on one GPU or on several, and how their steps are compared.

python -m tests.gpu.workers FAILING --runs DIR RUN    the worker, whose rank FAILING fails while others wait for it
"""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ablations.recipe_runs import pretraining_runs
from benchmarks.pretraining import neobert_recipe
from neobert.execution import CompileWord, Execution
from neobert.executors.corpus import tokenized_corpus
from neobert.executors.preparation import open_specified
from neobert.executors.pretraining import open_trainer
from neobert.executors.ranks import JobRank
from neobert.files import read_lines
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import start_child, worker_environment
from neobert.recipe import EngineWord, Pretraining, Subset
from neobert.runs import worker
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, read_run_file, write_run_file
from neobert.training.distributed import ALONE, Process
from neobert.training.engine import Engine
from neobert.training.pretraining import PretrainingTrainer
from tests.slurm.configuration import free_ports

SOURCE = SourceSpecification(name="synthetic", synthetic_documents=2000)
ROW_TOKENS = 96
KILLED_BEHIND = 8
"""Number of logged steps at which a run is killed."""

Lines = Sequence[Mapping[str, Any]]


def recipe_with(rows: int, steps: int = 24) -> Pretraining:
    """Return NeoBERT's recipe in the shape of the smoke scale, with `rows` full rows per step."""
    shape = {"layers": 6, "width": 120, "heads": 4, "feedforward_width": 480, "vocabulary_size": 1024}
    return short_recipe(neobert_recipe("bf16", **shape), rows, ROW_TOKENS, steps)


def short_recipe(recipe: Pretraining, rows: int, row_tokens: int, steps: int) -> Pretraining:
    """Return a recipe with one stage of `steps` steps, at a constant rate, of `rows` full rows."""
    stage = recipe.stages[0].model_copy(
        update={
            "context": row_tokens,
            "tokens_per_step": rows * row_tokens,
            "mixture": (Subset(minimum_tokens=0, share=1.0),),
            "steps": steps,
            "warmup_steps": 0,
            "decay_steps": 0,
        }
    )
    return recipe.model_copy(update={"stages": (stage,), "packing": "packed"})


@dataclass(frozen=True)
class SmallRun:
    """A run of the real worker, in folders below `root` that share the tokenised corpus.

    micro_batches: number of them per step in every rank. compile: whether the model is compiled.
    """

    root: Path
    run: PretrainingRun
    source: SourceSpecification = SOURCE
    micro_batches: int = 2
    compile: CompileWord = "off"

    def plan(self, name: str, processes: int = 1, engine: EngineWord = "ddp") -> Path:
        """Create a new folder of runs with this run alone; return the folder of the run."""
        stage = self.run.recipe.stages[-1]
        execution = Execution(
            threads=1,
            processes=processes,
            micro_batch_tokens=max(stage.context, stage.tokens_per_step // processes // self.micro_batches),
            checkpoint_interval_steps=5,
            engine=engine,
            compile=self.compile,
        )
        root = self.root / name
        root.mkdir()
        (root / "data").symlink_to(self.root / "data")
        return write_run_file(Layout(root), self.run, self.source, execution, {"variants": ["M10"]})

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start the worker of a planned run."""
        runs, work = ["--runs", str(self.root / name)], f"pretraining/{self.run.id}"
        command = [sys.executable, "-m", "neobert.runs.worker", *runs, work]
        return start_child(command, worker_environment(1), sys.stderr.fileno())

    def train(self, name: str, processes: int = 1, engine: EngineWord = "ddp") -> Lines:
        """Train without interruption and return the metrics of all steps."""
        folder = self.plan(name, processes, engine)
        assert self.start(name).wait() == 0, f"a worker of {processes} processes with engine {engine} failed"
        return logged_steps(folder)

    def trainer(self, name: str) -> PretrainingTrainer:
        """Plan the run and return its trainer, in this process."""
        return open_trainer(Layout(self.root / name), read_run_file(self.plan(name)), ALONE)


def small_run(root: Path, recipe: Pretraining, source: SourceSpecification = SOURCE, **options: Any) -> SmallRun:
    """Return a run of a recipe, whose corpus is tokenised."""
    (run,) = pretraining_runs(recipe, 0, open_specified(source))
    tokenized_corpus(Layout(root), run, run.corpus, source)
    return SmallRun(root, run, source, **options)


def start_with_a_rank_that_fails(small: SmallRun, name: str, rank: int) -> list[subprocess.Popen[bytes]]:
    """Start the two ranks of a planned run; one fails once the other waits in a collective."""
    (port,) = free_ports(1)
    places = [JobRank(name, Process(each, 2), port=port) for each in range(2)]
    command = [sys.executable, "-m", "tests.gpu.workers", str(rank), "--runs", str(small.root / name)]
    return [
        start_child(
            [*command, f"pretraining/{small.run.id}"],
            worker_environment(1) | place.variables(),
        )
        for place in places
    ]


FAILING_STEP, LOST = 3, "the gradient is lost"


def main(arguments: Sequence[str]) -> int:
    """Run the worker; its rank of the first argument fails in a step that all others are in."""
    failing, *words = arguments
    step, steps = Engine.step, count(1)

    def fail(engine: Engine[Any], *values: Any, **named: Any) -> Any:
        if next(steps) == FAILING_STEP and dist.get_rank() == int(failing):
            time.sleep(2)  # the others come to their exchange of gradients, and wait there
            raise RuntimeError(LOST)
        return step(engine, *values, **named)

    Engine.step = fail  # type: ignore[method-assign]
    return worker.main(words)


def logged_steps(folder: Path) -> Lines:
    """Return the metrics of all steps of a run."""
    return [line for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


def wait_for_steps(worker: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until all attempts at a run have logged `KILLED_BEHIND` steps, or its worker has ended."""
    while worker.poll() is None:
        if sum(path.read_bytes().count(b"\n") for path in folder.glob("attempts/*/metrics.jsonl")) >= KILLED_BEHIND:
            return
        time.sleep(0.005)


def assert_near(one: Lines, other: Lines, loss: float, gradient_norm: float) -> None:
    """Assert that losses and gradient norms of the same steps differ by at most these shares.

    A loss alone does not show a wrong scale of the gradient: Adam and clipping hide any factor.
    """
    for key, share in {"loss": loss, "gradient_norm": gradient_norm}.items():
        differences = [abs(line[key] / its[key] - 1) for line, its in zip(one, other, strict=True)]
        assert max(differences) <= share, key


def children_of(pid: int) -> dict[int, bytes]:
    """Return the command lines of the child processes of a process, in the order of their start."""
    numbers = (int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split())
    return {number: Path(f"/proc/{number}/cmdline").read_bytes() for number in sorted(numbers)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
