"""Scales: how a recipe shrinks while it keeps the modification it is about.

A rule maps one number of the paper to a smaller one and looks at that number alone (layers and width together are one
shape), so equal numbers stay equal and a scaled variant differs from its scaled parent by nothing that it does not
declare. Numbers without a row in a table follow the scale's formula.
"""

from collections.abc import Mapping
from typing import Any, Literal

from ablations.contrastive import scaled_embedding
from ablations.modification import Recipe, validated
from ablations.scale_rules import LAPTOP, PROXY, SMOKE, Rules, Shape, Vocabulary
from neobert.processes import available_cores
from neobert.recipe import FineTuning, Grid
from neobert.runs.specifications import Execution

__all__ = [
    "SCALES",
    "Scale",
    "Shape",
    "Vocabulary",
    "execution_at",
    "groups_here",
    "scaled",
    "scaled_measurement",
    "sharing_cores",
    "trained_vocabulary_size",
    "workers_here",
]

Scale = Literal["smoke", "laptop", "proxy", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "proxy", "paper")


SHORTEST_CONTEXT = 512
"""Of the paper's variants, in tokens: every one can be measured in it."""

RULES: Mapping[Scale, Rules] = {"smoke": SMOKE, "laptop": LAPTOP, "proxy": PROXY}


def scaled(recipe: Recipe, scale: Scale, vocabulary: Vocabulary) -> Recipe:
    """The recipe at a scale; `vocabulary` says whether tokenizers are trained on the data or published ones.

    Raises:
        ValueError: the shrunk recipe is impossible.
    """
    if scale == "paper":
        return recipe
    rules = RULES[scale]
    tree = recipe.model_dump()
    pretraining = tree["pretraining"]
    _shrink_model(pretraining["model"], rules, vocabulary)
    pretraining["optimization"].update(rules.optimization)
    peak = pretraining["optimization"]["peak_learning_rate"]
    pretraining["optimization"]["peak_learning_rate"] = rules.peak_learning_rates.get(peak, peak)
    pretraining["precision"] = rules.precision
    for stage in pretraining["stages"]:
        _shrink_stage(stage, rules)
    tree["finetuning"] = _shrunk_finetuning(tree["finetuning"], rules)
    tree["grid"] = _shrunk_grid(tree["grid"], rules)
    tree["embedding"] = scaled_embedding(scale, recipe.embedding).model_dump()
    return validated(tree, f"scale {scale}")


def trained_vocabulary_size(scale: Scale) -> int | None:
    """The size of vocabularies that are trained at a scale; None where they have the size of the published ones."""
    return None if scale == "paper" else RULES[scale].trained_vocabulary_size


def scaled_measurement(protocol: FineTuning, grid: Grid, scale: Scale) -> tuple[FineTuning, Grid]:
    """A protocol and a grid at a scale, as those of a variant."""
    if scale == "paper":
        return protocol, grid
    finetuning = _shrunk_finetuning(protocol.model_dump(), RULES[scale])
    return FineTuning.model_validate(finetuning), Grid.model_validate(_shrunk_grid(grid.model_dump(), RULES[scale]))


def _shrunk_finetuning(finetuning: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    return {**finetuning, **rules.finetuning, "max_tokens": _context(rules, finetuning["max_tokens"])}


def _shrunk_grid(grid: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    return {axis: _grid_axis(values, rules.grid[axis]) for axis, values in grid.items()}


def _shrink_model(model: dict[str, Any], rules: Rules, vocabulary: Vocabulary) -> None:
    ratio = model["feedforward_width"] / model["width"]
    layers, width = rules.shapes[vocabulary].get((model["layers"], model["width"])) or _formula_shape(
        model["layers"], model["width"], rules
    )
    model.update(rules.model)
    model.update(layers=layers, width=width, heads=rules.heads, feedforward_width=round(ratio * width))
    if rules.trained_vocabulary_size is not None and vocabulary == "trained":
        model["vocabulary_size"] = rules.trained_vocabulary_size


def _formula_shape(layers: int, width: int, rules: Rules) -> Shape:
    layer_divisor, width_divisor = rules.shape_divisors
    step = 2 * rules.heads
    return max(2, round(layers / layer_divisor)), max(step, round(width / width_divisor / step) * step)


def _context(rules: Rules, tokens: int) -> int:
    return rules.contexts.get(tokens) or max(rules.contexts[512] * tokens // 512, min(tokens, 1))


def _shrink_stage(stage: dict[str, Any], rules: Rules) -> None:
    steps = rules.steps.get(stage["steps"]) or max(1, stage["steps"] * rules.steps[1_000_000] // 1_000_000)
    stage["decay_steps"] = round(steps * stage["decay_steps"] / stage["steps"])
    stage["warmup_steps"] = round(steps * rules.warmup_fraction) if stage["warmup_steps"] else 0
    stage["steps"] = steps
    stage["context"] = _context(rules, stage["context"])
    tokens = rules.tokens_per_step.get(stage["tokens_per_step"])
    stage["tokens_per_step"] = tokens or max(1, stage["tokens_per_step"] // 256 // stage["context"]) * stage["context"]
    for subset in stage["mixture"]:
        subset["minimum_tokens"] = _context(rules, subset["minimum_tokens"]) if subset["minimum_tokens"] else 0


def _grid_axis(values: tuple[float, ...], table: Mapping[float, float]) -> tuple[float, ...]:
    """The values that the scale keeps, or all of them where it keeps none."""
    return tuple(table[value] for value in values if value in table) or values


def synthetic_documents(scale: Scale) -> int:
    """Documents a corpus of the synthetic source holds at a scale."""
    return {"smoke": 16_000, "laptop": 100_000, "proxy": 400_000, "paper": 4_000_000}[scale]


def workers_here(wanted: int | None, execution: Execution, gpus: int) -> int:
    """How many workers this machine gets: as many as wanted, else one a GPU, or one for every `threads` cores."""
    return wanted or gpus or max(1, available_cores() // execution.threads)


def groups_here(workers: int, execution: Execution, gpus: int) -> int:
    """How many of the workers may train at once where each takes several processes."""
    fitting = (gpus or available_cores() // execution.threads) // execution.processes
    return max(1, min(workers, fitting))


def sharing_cores(execution: Execution, workers: int) -> Execution:
    """The same beside other workers: together they have no more threads than there are cores, or all would crawl."""
    threads = min(execution.threads, max(1, available_cores() // workers))
    return execution.model_copy(update={"threads": threads})


def execution_at(scale: Scale) -> Execution:
    """How a scale runs on one machine unless flags say otherwise. One thread a worker: for small models a second thread
    mostly burns time, and equal threads make equal bits."""
    shortest = SHORTEST_CONTEXT if scale == "paper" else RULES[scale].contexts[SHORTEST_CONTEXT]
    common = Execution(
        threads=1, processes=1, micro_batch_tokens=1 << 14, checkpoint_interval_steps=200, heldout_context=shortest
    )
    if scale in ("smoke", "laptop"):
        return common
    large = {"threads": available_cores(), "micro_batch_tokens": 1 << 16, "checkpoint_interval_steps": 1000}
    return common.model_copy(update=large)
