"""Grid points that share batch size and seed: trained stacked in one model, against one after the other.

python -m benchmarks.grid_stacked        on the CPU with one thread, and on a GPU where there is one
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.grid_world import SOURCE, TASK, pretrained_world
from benchmarks.measuring import in_turns, load, median_ratio, seconds
from benchmarks.results import Goal, write_result, write_unmeasured
from benchmarks.stacking import StackedTuner
from neobert.data.preparation import open_specified, text_tokenizer
from neobert.glue.encoding import EncodedTask, encode_task
from neobert.glue.finetuning import FineTuner
from neobert.glue.metrics import evaluate
from neobert.glue.tasks import task_named
from neobert.layout import Layout
from neobert.model.build import build_classifier, initialize
from neobert.recipe import FineTuning, Model, Point

GOAL = Goal(2.0, "at least", "points a second trained stacked / one after the other ({device}; batch 2–8; best case)")
SMOKE = "smoke model"
BATCH_SIZES = (2, 4, 8)
TRIALS = (2, 6, 12)
EVALUATED_SHARE = 0.6
"""Validation examples per training example between two evaluations, as at smoke scale (300 to 500)."""
FP32_TOLERANCE = 1e-4
"""Largest accepted difference of a logit after a short course."""


@dataclass(frozen=True)
class Setting:
    """A model with a task; `steps` are the updates of a timed course."""

    name: str
    model: Model
    context: int
    task: EncodedTask
    protocol: FineTuning
    steps: int
    device: torch.device

    def protocol_for(self, batch_size: int, steps: int, **changes: Any) -> FineTuning:
        """One epoch of `steps` updates, evaluated at its end."""
        course = {"epochs": 1, "evaluations_per_epoch": 1, "train_examples": steps * batch_size}
        return self.protocol.model_copy(update={**course, **changes})

    def tuners(self, protocol: FineTuning) -> tuple[FineTuner, StackedTuner]:
        """Both ways to train, on models of their own from equal weights."""
        task = _with_validation(self.task, round(EVALUATED_SHARE * (protocol.train_examples or 0)))
        made = []
        for _ in range(2):
            labels = task.task.labels
            classifier = build_classifier(self.model, self.context, labels, protocol.pooling, protocol.dropout)
            initialize(classifier, self.model.initialization, 0)
            made.append(classifier)
        start = {name: value.clone() for name, value in made[0].state_dict().items() if name.startswith("model.")}
        common = (start, task, protocol, self.device)
        return FineTuner(made[0], *common), StackedTuner(made[1], *common)


def _with_validation(task: EncodedTask, examples: int) -> EncodedTask:
    (name,) = task.validation
    split = task.splits[name]
    return EncodedTask(task.task, task.splits | {name: split.take(np.arange(min(examples, len(split))))})


def points(batch_size: int, trials: int) -> list[Point]:
    """Points that share a batch size: two weight decays, learning rates from 5e-4 upwards."""
    return [
        Point(batch_size=batch_size, learning_rate=5e-4 * 1.2 ** (trial // 2), weight_decay=(1e-2, 1e-5)[trial % 2])
        for trial in range(trials)
    ]


def settings(device: torch.device) -> list[Setting]:
    """The smoke model of M10 and two layers of BERT-base's width, on CoLA (synthetic)."""
    with tempfile.TemporaryDirectory() as folder:
        world = pretrained_world(Path(folder))
        recipe = world.run.recipe
        source, task = open_specified(SOURCE), task_named(TASK)
        size, origin = recipe.model.vocabulary_size, world.run.tokenizer_origin
        tokenizer = text_tokenizer(Layout(world.root), source, recipe.data.tokenizer, size, origin)
        splits = {split: source.task_examples(TASK, split) for split in task.splits}
        encoded = encode_task(task, splits, tokenizer, world.study.protocol.max_tokens)
    smoke = Setting(SMOKE, recipe.model, world.run.context, encoded, world.study.protocol, 32, device)
    wide = recipe.model.model_copy(update={"layers": 2, "width": 768, "heads": 12, "feedforward_width": 3072})
    return [smoke, replace(smoke, name="2 layers of BERT-base's width", model=wide, steps=4)]


def compared(setting: Setting, batch_size: int, trials: int, repetitions: int) -> dict[str, Any]:
    """Time both ways on the same points."""
    separate, stacked = setting.tuners(setting.protocol_for(batch_size, setting.steps))
    chosen = points(batch_size, trials)

    def one_after_the_other() -> None:
        for point in chosen:
            separate.run(point, seed=0)

    contenders: dict[str, Callable[[], None]] = {
        "separate": _finished(one_after_the_other, setting.device),
        "stacked": _finished(lambda: stacked.run(chosen, seed=0), setting.device),
    }
    print(f"{setting.name}, batch {batch_size}, {trials} trials", flush=True)
    for warm_up in contenders.values():
        warm_up()
    timings = in_turns(contenders, repetitions)
    gain = median_ratio(timings["separate"], timings["stacked"])
    return {"batch": batch_size, "trials": trials, "points a second, ratio": gain} | {
        way: seconds(timings[way]) for way in contenders
    }


def _finished(run: Callable[[], object], device: torch.device) -> Callable[[], None]:
    def whole() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return whole


@dataclass(frozen=True)
class Trained:
    """Six trials after sixteen updates of four examples: logits (trials, …), mean losses and scores (trials)."""

    logits: Tensor
    losses: Tensor
    scores: list[float | None]

    def difference(self, other: "Trained") -> dict[str, Any]:
        """How far two ways to train the same trials are apart."""
        return {
            "largest difference of a logit": float((self.logits - other.logits).abs().max()),
            "largest difference of a mean loss": float((self.losses - other.losses).abs().max()),
            "equal scores": sum(a == b for a, b in zip(self.scores, other.scores, strict=True)),
            "trials": len(self.scores),
        }


def trained(setting: Setting, precision: str, dropout: float) -> tuple[Trained, Trained]:
    """Separately, and stacked. With dropout both see the same masks: equal seeds draw them, and the stacked trials
    share one draw."""
    separate, stacked = setting.tuners(setting.protocol_for(4, 16, precision=precision, dropout=dropout))
    chosen, task = points(4, 6), separate.encoded
    logits, losses, scores = [], [], []
    for point in chosen:
        *_, evaluation = separate.evaluations(point, seed=0)
        (values,) = separate.predict().values()
        logits.append(torch.from_numpy(values))
        losses.append(evaluation.loss)
        scores.append(evaluation.score)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batching rule.*")  # slow, not wrong: torch's flash kernel on CPU
        outcome = stacked.run(chosen, seed=0)
    ((split, predictions),) = outcome.predictions.items()
    stacked_scores = [evaluate(task.task, {split: own.numpy()}, task.labels).score for own in predictions]
    return (
        Trained(torch.stack(logits), torch.tensor(losses), scores),
        Trained(predictions, outcome.losses, stacked_scores),
    )


def checked_differences(setting: Setting) -> dict[str, Any]:
    """How far stacked trials are from separate ones, without and with dropout.

    In fp32 they must be equal but for rounding. In bf16, where rounding is coarse and Adam turns it into whole steps,
    the distance stands beside the one that bf16 itself makes.

    Raises:
        AssertionError: stacked training is not the separate one.
    """
    found: dict[str, Any] = {}
    for dropout in (0.0, 0.1):
        (alone, stacked), (alone_bf16, stacked_bf16) = (trained(setting, kind, dropout) for kind in ("fp32", "bf16"))
        figures = stacked.difference(alone)
        if figures["largest difference of a logit"] > FP32_TOLERANCE:
            raise AssertionError(f"{setting.name}, dropout {dropout}: {figures} exceeds {FP32_TOLERANCE}")
        found[f"fp32, dropout {dropout:g}"] = figures
        found[f"bf16, dropout {dropout:g}"] = stacked_bf16.difference(alone_bf16)
        found[f"for comparison: bf16 from fp32, both separate, dropout {dropout:g}"] = alone_bf16.difference(alone)
    return found


def measured(device: torch.device, repetitions: int, smoke_only: bool) -> tuple[float, dict[str, Any]]:
    """The best ratio on a device, and all figures."""
    figures: dict[str, Any] = {"load_before": load()}
    best, clock = 0.0, "processor" if device.type == "cpu" else "wall"
    for setting in settings(device)[: 1 if smoke_only else None]:
        equality = checked_differences(setting)
        print(setting.name, equality, flush=True)
        times = repetitions if setting.name == SMOKE else max(1, repetitions // 3)
        rows = [compared(setting, size, trials, times) for size in BATCH_SIZES for trials in TRIALS]
        best = max(best, *(row["points a second, ratio"][clock] for row in rows))
        figures[setting.name] = {"equal to separate training": equality, "timings": rows}
    return best, figures | {"load_after": load()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid_stacked", description=__doc__)
    parser.add_argument(
        "--repetitions", type=int, default=3, help="a cell, a third of it for the wider model (default: 3)"
    )
    parser.add_argument("--smoke-only", action="store_true", help="leave the wider model out")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    best, figures = measured(torch.device("cpu"), options.repetitions, options.smoke_only)
    print(write_result("grid_stacked", best, _goal("CPU"), figures).read_text())
    if torch.cuda.is_available():
        best, figures = measured(torch.device("cuda"), options.repetitions, options.smoke_only)
        write_result("grid_stacked_gpu", best, _goal("GPU"), figures)
    else:
        write_unmeasured("grid_stacked_gpu", _goal("GPU"))
    return 0


def _goal(device: str) -> Goal:
    return replace(GOAL, of=GOAL.of.format(device=device))


if __name__ == "__main__":
    sys.exit(main())
