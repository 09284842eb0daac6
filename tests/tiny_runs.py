"""A pre-training run of seconds on its own small corpus, for tests that start, kill and compare whole runs."""

import os
import subprocess
import sys
from pathlib import Path

from neobert.launching.here import REPOSITORY
from neobert.layout import Layout
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
from neobert.specifications import Execution, PretrainingRun, Source, write_run_file

STEPS = 24
LABELS = {"variants": ["T"], "parent": "P", "delta": {"model.layers": [1, 2]}}
SOURCE = Source(name="synthetic", synthetic_documents=400)


def tiny_model(**changes: object) -> Model:
    """A rotary SwiGLU model of 2 × 16."""
    fields = {
        "vocabulary_size": 512,
        "layers": 2,
        "width": 16,
        "heads": 2,
        "feedforward_width": 32,
        "positions": "rotary",
        "rotary_base": 10_000,
        "feedforward": "swiglu",
        "norm": "rms_norm",
        "norm_epsilon": 1e-5,
        "dropout": 0.1,
        "initialization": Initialization(
            distribution="normal", weight_scale=0.05, embedding_scale=1.0, position_scale=0.05
        ),
    }
    return Model.model_validate({**fields, **changes})


def tiny_stage(**changes: object) -> Stage:
    """A stage of 24 steps of 8 documents."""
    fields = {
        "context": 32,
        "tokens_per_step": 256,
        "steps": STEPS,
        "warmup_steps": 4,
        "decay_steps": 20,
        "mixture": (Subset(minimum_tokens=0, share=1.0),),
    }
    return Stage.model_validate({**fields, **changes})


def tiny_recipe(**changes: object) -> Pretraining:
    """Pre-training with dropout, so that resuming must also restore randomness."""
    fields = {
        "model": tiny_model(),
        "data": Data(corpus="web", tokenizer="wordpiece"),
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
        position_table=recipe.longest_context if recipe.model.positions == "learned" else None,
        corpus_origin="synthetic:tests",
        tokenizer_origin="synthetic:tests",
    )


def write_tiny_run(root: Path, run: PretrainingRun, **execution: int) -> Path:
    """Put a run.json below `root`; returns its folder."""
    settings = {"threads": 1, "processes": 1, "micro_batch_tokens": 128, "checkpoint_interval_steps": 5}
    return write_run_file(Layout(root), run, SOURCE, Execution.model_validate({**settings, **execution}), LABELS)


def worker(root: Path, *references: str) -> "subprocess.Popen[bytes]":
    """The real worker command as a process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "neobert.work", "--runs", str(root), *references]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def finish(root: Path, *references: str) -> tuple[int, str]:
    """Run the worker command to its end; exit code and what it said."""
    process = worker(root, *references)
    said = process.communicate(timeout=300)[1].decode()
    return process.returncode, said


def reference(run: PretrainingRun) -> str:
    """How a worker is told about a run."""
    return f"pretraining/{run.id}"
