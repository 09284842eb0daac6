"""A pre-training run of seconds on its own small corpus, for tests that start, kill and compare whole runs."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from neobert.execution import Execution
from neobert.executors.preparation import open_specified
from neobert.executors.pretraining import open_trainer
from neobert.executors.ranks import JobRank
from neobert.files import read_lines
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import KEY_VARIABLE, REPOSITORY, StopRequest
from neobert.recipe import (
    Data,
    Initialization,
    Masking,
    Model,
    Optimization,
    Pretraining,
    Stage,
    Subset,
)
from neobert.runs.claims import Claim, acquire
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, read_run_file, write_run_file
from neobert.runs.worker import Worker, open_parts
from neobert.slurm.job import attempt_variables
from neobert.training.distributed import ALONE, Process
from neobert.training.pretraining import PretrainingTrainer
from tests.slurm.configuration import free_ports
from tests.support.forking import WORKER, ForkedProcess, start_worker
from tests.support.small_models import small_model
from tests.support.waiting import until

STEPS = 24
LABELS = {"variants": ["T"], "parent": "P", "delta": {"model.layers": [1, 2]}}
SOURCE = SourceSpecification(name="synthetic", synthetic_documents=400)
WORLD = open_specified(SOURCE)
Trained = PretrainingRun | ContrastiveRun
Trainable = tuple[Path, PretrainingRun]
"""A folder of runs, and one that lies there."""


def tiny_model(**changes: object) -> Model:
    """A rotary SwiGLU model of 2 × 16."""
    start = Initialization(distribution="normal", weight_scale=0.05, embedding_scale=1.0, position_scale=0.05)
    shape = {"vocabulary_size": 512, "layers": 2, "width": 16, "heads": 2, "feedforward_width": 32}
    return small_model(**{**shape, "dropout": 0.1, "initialization": start, **changes})


def tiny_stage(**changes: object) -> Stage:
    """A stage of 24 steps of 8 documents."""
    fields = {
        "context": 32,
        "tokens_per_step": 256,
        "steps": STEPS,
        "warmup_steps": 4,
        "stable_steps": 0,
        "decay_steps": 20,
        "mixture": (Subset(minimum_tokens=0, share=1.0),),
    }
    return Stage.model_validate({**fields, **changes})


def tiny_recipe(**changes: object) -> Pretraining:
    """Pre-training with dropout, so that resuming must also restore randomness."""
    fields = {
        "model": tiny_model(),
        "data": Data(corpus="web", tokenizer="wordpiece", long_documents="cut"),
        "masking": Masking(rate=0.2, mask_share=0.8, random_share=0.1),
        "packing": "padded",
        "optimization": Optimization(
            optimizer="adamw",
            beta1=0.9,
            beta2=0.95,
            epsilon=1e-8,
            weight_decay=0.01,
            clip_norm=1.0,
            peak_learning_rate=2e-3,
            decay="cosine",
            floor_fraction=0.1,
        ),
        "stages": (tiny_stage(),),
        "precision": "fp32",
        "seed": 0,
        "start": None,
    }
    return Pretraining.model_validate({**fields, **changes})


def tiny_run(previous: PretrainingRun | None = None, **changes: object) -> PretrainingRun:
    """One stage; with `previous` the stage after it."""
    recipe = tiny_recipe(**changes)
    if previous is not None:
        recipe = recipe.model_copy(update={"stages": (*previous.recipe.stages, *recipe.stages)})
    return PretrainingRun(
        recipe=recipe,
        previous=None if previous is None else previous.id,
        position_table=None if recipe.model.positions == "rotary" else recipe.longest_context,
        corpus_origin=WORLD.corpus_origin(recipe.data.corpus),
        tokenizer_origin=WORLD.tokenizer_origin(recipe.data.tokenizer, recipe.model.vocabulary_size),
    )


def write_tiny_run(root: Path, run: PretrainingRun | GlueStudy, **execution: int | str) -> Path:
    """Put a run.json below `root`; returns its folder."""
    settings = {"threads": 1, "processes": 1, "micro_batch_tokens": 128, "checkpoint_interval_steps": 5}
    return write_run_file(Layout(root), run, SOURCE, Execution.model_validate({**settings, **execution}), LABELS)


def trainer_of(root: Path, run: PretrainingRun, **execution: int | str) -> PretrainingTrainer:
    """The run in this process, where it stands."""
    return open_trainer(Layout(root), read_run_file(write_tiny_run(root, run, **execution)), ALONE)


@contextmanager
def claimed(layout: Layout, name: str) -> Iterator[Claim]:
    """The claim of a part that nobody works on."""
    claim = acquire(layout.claims(name))
    assert claim is not None
    with claim:
        yield claim


def worker(
    root: Path, *references: str, variables: Mapping[str, str] | None = None, program: str = WORKER
) -> ForkedProcess:
    """A worker as a process of its own; `variables`, which nothing reads at import, join its environment."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment = alone | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)} | dict(variables or {})
    return start_worker(["--runs", str(root), *references], environment, program)


def slurm_tasks(
    root: Path, *references: str, count: int, nodes: str = "node[1-2]", job: str = "7", program: str = WORKER
) -> list[ForkedProcess]:
    """What a step of a job starts: `count` times the same command, each with its variables."""
    step = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(count), "SLURM_JOB_NODELIST": nodes}
    (port,) = free_ports(1)
    first = JobRank(attempt_variables(step)[KEY_VARIABLE], Process(0, count), port=port)
    ranks = [replace(first, process=Process(rank, count)) for rank in range(count)]
    return [worker(root, *references, variables=step | rank.variables(), program=program) for rank in ranks]


def ends(processes: list[ForkedProcess]) -> tuple[list[int], str]:
    """Wait for processes; their exit codes and all that they said."""
    said = "".join(process.communicate(timeout=300)[1].decode() for process in processes)
    return [process.returncode for process in processes], said


def beside(root: Path, corpus: Path) -> Path:
    """A new folder of runs that shares the tokenised corpora of another."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "data").symlink_to(corpus / "data")
    return root


def curve(root: Path, run: Trained) -> list[float]:
    """The loss of each step."""
    return [line["loss"] for line in read_lines(root / run.reference / "metrics.jsonl") if "loss" in line]


def record(root: Path, run: Trained) -> dict[str, Any]:
    """What a finished run has published."""
    content: dict[str, Any] = json.loads((root / run.reference / "done.json").read_text())
    return content


def starts(root: Path) -> list[str]:
    """What workers began below a folder of runs, one entry a start; in equal entries something ran twice."""
    return [line["part"] for line in read_lines(root / "starts.jsonl")]


def final_weights(root: Path, run: Trained) -> dict[str, torch.Tensor]:
    """The last checkpoint's tensors."""
    return load_file(root / run.reference / "checkpoints" / f"step-{run.total:08d}" / "model.safetensors")


def assert_equal_weights(first: Path, second: Path, run: Trained) -> None:
    """Bit for bit."""
    ours, theirs = final_weights(first, run), final_weights(second, run)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def wait_for_steps(root: Path, run: Trained, count: int, seconds: float = 120) -> None:
    """Return as soon as the first attempt has noted so many steps."""
    path = root / run.reference / "attempts" / "000001" / "metrics.jsonl"
    until(lambda: path.exists() and path.read_bytes().count(b'"gradient_norm"') >= count, seconds, pause_seconds=0.002)


def finish(root: Path, *references: str) -> str:
    """Run the worker command to its end, which is a good one; what it said."""
    codes, said = ends([worker(root, *references)])
    assert codes == [0], said
    return said


def kill_after(root: Path, run: Trained, steps: int, seconds: float = 120) -> None:
    """Start the worker, and kill it (−9) as soon as its first attempt has noted so many steps."""
    process = worker(root, run.reference)
    wait_for_steps(root, run, steps, seconds)
    process.kill()
    process.communicate()


def work(root: Path, *references: str) -> int:
    """The worker in this process, which spares the import of torch; its exit code."""
    layout = Layout(root)
    parts = [part for each in references for part in open_parts(layout, each)]
    return Worker(layout, parts, StopRequest()).run()
