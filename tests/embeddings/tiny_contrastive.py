"""A contrastive run of seconds from a tiny encoder on synthetic pairs, for tests that start, kill and compare runs."""

from pathlib import Path

from ablations.ladder import CONTRASTIVE_PROTOCOL
from neobert.data.sources import SyntheticSource
from neobert.execution import Execution
from neobert.kinds.contrastive import ContrastiveRun, PairSet
from neobert.kinds.pretraining import PretrainingRun
from neobert.recipe import Contrastive
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import write_run_file
from tests.support.exported_runs import write_checkpoints
from tests.support.tiny_runs import SOURCE, tiny_model, tiny_recipe, tiny_run, tiny_stage

STEPS = 12
WORLD = SyntheticSource(10)


def tiny_protocol(**changes: object) -> Contrastive:
    """The paper's protocol in twelve steps of 24 texts."""
    optimization = tiny_recipe().optimization.model_copy(update={"floor_fraction": 1.0})
    short = {"steps": STEPS, "texts_per_step": 24, "warmup_steps": 2, "decay_steps": 0, "most_negatives": 1}
    short |= {"max_tokens": 32, "optimization": optimization, "precision": "fp32"}
    return Contrastive.model_validate({**dict(CONTRASTIVE_PROTOCOL), **short, **changes})


def pair_set(name: str, **changes: object) -> PairSet:
    """A synthetic data set of pairs."""
    fields = {
        "name": name,
        "origin": WORLD.pair_origin(name),
        "instruction": WORLD.pair_instruction(name),
        "texts_per_pair": None,
    }
    return PairSet.model_validate({**fields, **changes})


def write_encoder(
    root: Path, dropout: float = 0.1, context: int = 32, tokenizer_origin: str | None = None, **parts: object
) -> PretrainingRun:
    """A pre-training run that counts as done, with initial weights; `parts` are fields of its model."""
    stage = tiny_stage(context=context, tokens_per_step=8 * context)
    run = tiny_run(model=tiny_model(dropout=dropout, width=32, **parts), stages=(stage,))
    run = run.model_copy(update={"tokenizer_origin": tokenizer_origin or run.tokenizer_origin})
    folder = write_checkpoints(root, run, run.recipe.stages[-1].steps)
    publish_record(folder / "done.json", {"kind": "pretraining", "id": run.id, "state": "done"})
    return run


def tiny_contrastive(
    weights: str, sets: tuple[str, ...] = ("paraphrases", "answers"), **changes: object
) -> ContrastiveRun:
    """Contrastive fine-tuning of an encoder with the synthetic tokenizer."""
    return ContrastiveRun(
        weights=weights,
        context=32,
        protocol=tiny_protocol(**changes),
        sets=tuple(pair_set(name) for name in sets),
        tokenizer_origin=tiny_run().tokenizer_origin,
    )


def write_tiny_contrastive(root: Path, run: ContrastiveRun, **execution: int | str) -> Path:
    """Put a run.json below `root`; returns its folder."""
    settings = {"threads": 1, "processes": 1, "micro_batch_tokens": 100, "checkpoint_interval_steps": 4}
    execution_here = Execution.model_validate({**settings, **execution})
    return write_run_file(Layout(root), run, SOURCE, execution_here, {"variants": ["T"]})
