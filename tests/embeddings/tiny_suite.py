"""The synthetic tasks on tiny encoders, for tests that start, kill and share evaluations."""

from collections.abc import Sequence
from pathlib import Path

from ablations.ladder import M9
from ablations.loading import papers
from ablations.recipe_runs import EmbeddingChoice, EncoderWeights, embedding_runs
from ablations.scaling import scaled
from neobert.execution import Execution
from neobert.executors.preparation import open_specified
from neobert.kinds.mteb import EmbeddingEvaluation
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.layout import Layout
from neobert.runs.run_file import write_run_file
from tests.embeddings.tiny_contrastive import write_encoder
from tests.support.tiny_runs import SOURCE

EXECUTION = Execution(threads=1, processes=1, micro_batch_tokens=128, checkpoint_interval_steps=5)
LABELS = {"variants": ["T"], "scale": "smoke", "data": "synthetic"}
SOURCE_HERE = open_specified(SOURCE)
SMOKE = scaled(papers(), M9.recipe, "smoke", "trained").embedding


def zero_shot(encoder: PretrainingRun, tasks: Sequence[str] | None = None) -> EmbeddingEvaluation:
    """Tasks, or all of them, on what an encoder was pre-trained to."""
    choice = EmbeddingChoice(tasks=tasks, zero_shot=True)
    (evaluation,), _ = embedding_runs(EncoderWeights.of_stage(encoder), SMOKE, [0], SOURCE_HERE, ("mteb",), choice)
    assert isinstance(evaluation, EmbeddingEvaluation)
    return evaluation


def write_evaluation(root: Path, evaluation: EmbeddingEvaluation) -> Path:
    """Put a run.json below `root`; returns its folder."""
    return write_run_file(Layout(root), evaluation, SOURCE, EXECUTION, LABELS)


def write_zero_shot(root: Path, tasks: Sequence[str] | None = None) -> EmbeddingEvaluation:
    """An evaluation on an encoder of initial weights that counts as done."""
    evaluation = zero_shot(write_encoder(root), tasks)
    write_evaluation(root, evaluation)
    return evaluation
