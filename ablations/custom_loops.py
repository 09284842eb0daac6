"""The parts of pre-training for a training loop of your own. `import neobert` forwards to them.

    torch.set_num_threads(1)  # as runs at the small scales
    model = neobert.build("M7")
    optimizer = neobert.optimizer("M7", model)
    for batch in islice(neobert.batches("M7"), 10):
        loss = neobert.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

These are the updates of `neobert.train("M7")`, bit for bit on the same machine if its steps are not split into
micro-batches, as at the small scales. `scale`, `seed`, `data` and `ladder` are those of `neobert.train`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ablations import ladders
from ablations.api import load_ladder, open_here, plan_variant
from ablations.launch.flags import DEFAULT_RUNS
from ablations.scales import Scale
from neobert.kinds.pretraining import PretrainingRun

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from neobert.data.batches import Batch
    from neobert.model.heads import MaskedLanguageModel


def load(run: str | Path, step: int | None = None) -> "MaskedLanguageModel":
    """Load the model of a run of pre-training with the weights of its last step, or of the checkpoint of `step`.

    `run` is its folder, as `neobert.train(…).folder`. The model is of the class that is trained, in training mode:
    `model(input_ids, attention_mask)` are its logits.

    Raises:
        MissingData: there is no such run or step, or the run is unfinished and no step is given.
        ValueError: the folder is that of another kind of run.
        DamagedFile: a file does not match its checksum.
    """
    from neobert.export.checkpoint import open_checkpoint
    from neobert.model.build import build_masked_language_model

    checkpoint = open_checkpoint(Path(run), step)
    recipe = checkpoint.run.recipe
    model = build_masked_language_model(recipe.model, checkpoint.run.context, recipe.precision)
    model.load_state_dict(checkpoint.weights)
    return model


def batches(
    variant: str,
    scale: Scale | None = None,
    *,
    stage: int = 1,
    seed: int = 0,
    data: str | Path | None = None,
    runs: str | Path = DEFAULT_RUNS,
    ladder: str | Path | None = None,
) -> "Iterator[Batch]":
    """Yield the batch of each step of a stage (counted from 1): masked tokens, attention plan and targets.

    A step is one batch, on the default device. Tokens are made once and kept below `runs`, shared with
    `neobert.train`. Before each step torch's generator is seeded as in a run, so that dropout is the same.

    Raises:
        ValueError: there is no such variant, scale or stage.
        MissingData: the data are not there.
    """
    from neobert.data.preparation import read_corpora
    from neobert.training.distributed import Process, default_device
    from neobert.training.loop import seed_step
    from neobert.training.stage_batches import StageBatches

    with ladders.using(load_ladder(ladder)):
        workspace = open_here(scale, data, runs=runs)
        run = _stage(plan_variant(workspace, variant, seed, ["pretraining"]).stages, stage)
    corpora = read_corpora(workspace.layout, run, workspace.specification)
    tokens_per_step = run.recipe.stages[-1].tokens_per_step
    of_stage = StageBatches(run, corpora, default_device(), tokens_per_step, Process(0, 1))
    for number, step in enumerate(of_stage.steps(of_stage.rows(), few_sizes=False), start=1):
        seed_step(seed, number, 0)
        yield from step.micro_batches


def optimizer(
    variant: str,
    model: "MaskedLanguageModel",
    scale: Scale | None = None,
    *,
    stage: int = 1,
    data: str | Path | None = None,
    ladder: str | Path | None = None,
) -> "Optimizer":
    """Build the optimizer of a stage's recipe (counted from 1). Its `step()` also clips the gradients and follows the
    stage's schedule, by hooks.

    Returns:
        a `torch.optim.Optimizer`; its groups have the number of `updates`, so `state_dict` has the whole state.
    """
    from neobert.training.optimization import build_optimizer, follow_recipe

    with ladders.using(load_ladder(ladder)):
        row = plan_variant(open_here(scale, data, dry_run=True), variant, 0, ["pretraining"])
    recipe = _stage(row.stages, stage).recipe
    built = build_optimizer(model, recipe.optimization)
    follow_recipe(built, model, recipe.optimization, recipe.stages[-1])
    return built


def loss(model: "MaskedLanguageModel", batch: "Batch") -> "Tensor":
    """Return the mean cross-entropy of a batch in nats per predicted token, computed in the model's precision.

    A scalar fp32 tensor, of which `backward` gives the gradients of a run.
    """
    from neobert.training.engine import autocast
    from neobert.training.pretraining import summed_loss

    with autocast(batch.token_ids.device, model.precision):
        return summed_loss(model, batch) / max(1, batch.predicted_tokens)


def _stage(stages: tuple[PretrainingRun, ...], stage: int) -> PretrainingRun:
    if not 1 <= stage <= len(stages):
        raise ValueError(f"there is no stage {stage}: this variant has {len(stages)}, counted from 1")
    return stages[stage - 1]
