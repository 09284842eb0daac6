"""Sweeps over peak rates, and over other numbers of the optimizer: one work for each variant, and its outcome."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from ablations import rates
from ablations.launch.execute import Workspace, retry_failed, run_or_submit
from ablations.launch.listing import state_of_all
from ablations.names import at_number, split_numbers
from ablations.plan import PlannedRun, VariantRow, plan
from ablations.rates import Optimum, RateCurve, best_variant
from ablations.variant import Variant
from neobert.console import logs, output, table
from neobert.data.sources import Source
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED, did_you_mean
from neobert.kinds.rates import Numbers, RateRule, RateSearch, RateSweep, RateTrial, mean_loss
from neobert.rates import FIELDS, RATE, RATE_DIGITS, rate_text
from neobert.runs.index import Index
from neobert.runs.kinds import Run
from neobert.search.samplers import RATE_DIGITS as OTHER_DIGITS
from neobert.search.space import Range
from sweeps.studies import StudyRequest, open_storage

POINT_COLUMNS = ("variant", "rate", "seed", "run", "state", "loss")
BEST_COLUMNS = ("variant", "shared rate", "loss at it", "optimum", "loss there", "train as", "remark")


@dataclass(frozen=True)
class RateRequest:
    """The points of a sweep, each trained on pilot `seeds`.

    The rule tries `width` rates on each side of a scale's own, `factor` from one to the next, and at most `most`.
    A sampler of Optuna chooses the `fields` between ends: (name, low, high).
    """

    seeds: tuple[int, ...]
    factor: float
    width: int
    most: int
    fields: tuple[tuple[str, str, str], ...]
    study: StudyRequest


@dataclass(frozen=True, kw_only=True)
class SweepRow(VariantRow):
    """The row of a sweep of one variant, which the user calls `called`. `trained` is the variant's own
    run, whose labels the sweep has too."""

    workspace: Workspace
    most: int
    called: str
    sweep: RateSweep
    trained: PlannedRun

    @classmethod
    def of(cls, workspace: Workspace, request: RateRequest, variant: Variant) -> "SweepRow":
        """Plan the sweep of a variant. Raises ValueError if its name has a number that is searched, or if it cannot
        have the numbers at the ends of the ranges."""
        layout, seeds = workspace.layout, request.seeds
        (own,) = plan(
            workspace.ladder, [variant], seeds[:1], workspace.scale, workspace.source, layout, ["pretraining"]
        )
        by = _rule(own, request) if request.study.sampler == "rule" else _search(own, request)
        sweep = RateSweep(stages=own.stages, seeds=seeds, by=by)
        state = Index(layout).progress(sweep).state
        shared = {each.name: vars(own)[each.name] for each in fields(VariantRow)}
        shared["planned"] = (PlannedRun(sweep, layout.root / sweep.folder, state),)
        return cls(
            **shared,
            workspace=workspace,
            most=request.most,
            called=variant.name,
            sweep=sweep,
            trained=own.planned[-1],
        )

    def run_files(self, source: Source) -> list[tuple[Run, dict[str, Any]]]:
        """Return the sweep, with the labels of the variant's own run and the name from which workers name the others,
        and its first trial, from which jobs prepare the corpus."""
        labels = self.labels(self.trained, source) | {"base": self.name}
        of_first = self.sweep.labels_at(labels, self.sweep.first)
        return [(self.sweep, labels), *((run, of_first) for run in self.sweep.first_runs)]

    @property
    def trials(self) -> tuple[RateTrial, ...]:
        """The trials so far."""
        return self.sweep.trials(self.workspace.layout)

    @property
    def is_open(self) -> bool:
        """Whether a trial has not ended, or points are still to come."""
        parts = self.sweep.parts(self.workspace.layout)
        return len(parts) > len(self.trials) or not all(trial.has_ended for trial in self.trials)

    def rate(self, point: Numbers) -> float:
        """Return the peak rate at a point."""
        return {**self.recipe.pretraining.optimization.model_dump(), **point}[RATE]

    def curve(self) -> RateCurve:
        """Return the losses of finished runs and the errors of failed ones."""
        losses: dict[float, dict[int, float]] = {}
        failures: dict[float, dict[int, str]] = {}
        for trial in self.trials:
            if trial.has_ended and trial.loss is not None:
                losses.setdefault(self.rate(trial.point), {})[trial.seed] = trial.loss
            elif trial.has_ended:
                failures.setdefault(self.rate(trial.point), {})[trial.seed] = self._error(trial)
        return RateCurve(losses, failures)

    def _error(self, trial: RateTrial) -> str:
        index = Index(self.workspace.layout)
        failures = [failure for run in trial.runs for failure in index.progress(run).failures]
        return "; ".join(failure.error for failure in failures) or "its record has no held-out loss"

    def entry(self) -> dict[str, Any]:
        """Return the entry of the variant for --json; losses are in nats per token."""
        shared = self.recipe.pretraining.optimization.peak_learning_rate
        best, reason = self._best_tried() if self.sweep.search else self._vertex()
        at_own = mean_loss(self.sweep.trials_at(self.workspace.layout, self.sweep.own))
        in_order = sorted(self.trials, key=lambda trial: self.rate(trial.point)) if self.sweep.rule else self.trials
        return {
            "variant": self.called,
            "scale": self.workspace.scale,
            "shared_rate": shared,
            "shared_loss": at_own,
            "optimum": best,
            "reason": reason,
            "points": [self._point_entry(trial) for trial in in_order],
        }

    def _point_entry(self, trial: RateTrial) -> dict[str, Any]:
        index = Index(self.workspace.layout)
        planned = [PlannedRun(run, trial.record.parent, index.progress(run).state) for run in trial.runs]
        return {
            "rate": self.rate(trial.point),
            "variant": self.sweep.name_at(self.name, trial.point),
            "seed": trial.seed,
            "run": trial.id,
            "state": state_of_all(planned),
            "loss": trial.loss,
            "error": self._error(trial) if trial.has_ended and trial.loss is None else None,
        }

    def _vertex(self) -> tuple[dict[str, Any] | None, str]:
        """Return the optimum of a rule's rates, and why there is none or what is special about it."""
        curve = self.curve()
        optimum = curve.optimum()
        if optimum is None and self.is_open:
            return None, "not all points are done"
        if optimum is None and not curve.means:
            return None, "no rate trained"
        if optimum is None:
            best = min(curve.means, key=lambda rate: curve.means[rate])
            return None, f"the best rate, {rate_text(best)}, is the last that --most {self.most} allows"
        name = best_variant(self.ladder, self.variant, optimum, self.workspace.scale).name
        return _optimum_entry(optimum, name), optimum.reason

    def _best_tried(self) -> tuple[dict[str, Any] | None, str]:
        """Return the best point of a search."""
        layout = self.workspace.layout
        points = {frozenset(point.items()): point for point in self.sweep.points(layout)}.values()
        found = [(mean_loss(self.sweep.trials_at(layout, point)), point) for point in points]
        means = [(loss, point) for loss, point in found if loss is not None]
        if self.is_open or not means:
            return None, "not all points are done" if self.is_open else "no point trained"
        loss, point = min(means, key=lambda each: each[0])
        name = self.sweep.name_at(self.name, point)
        tried = f"the best of {len(points)} points by the sampler {self.sweep.by.sampler}"
        return _optimum_entry(Optimum(self.rate(point), loss), name), tried


def _optimum_entry(optimum: Optimum, name: str) -> dict[str, Any]:
    numbers = {"rate": optimum.rate, "exact": optimum.exact, "loss": optimum.loss, "fitted": optimum.fitted}
    return {**numbers, "train_as": name}


def _rule(own: VariantRow, request: RateRequest) -> RateRule:
    steps = range(-request.most, request.most + 1)
    grid = [rates.grid_rate(own.ladder, own.variant, own.scale, request.factor, step) for step in steps]
    return RateRule(rates=tuple(grid), width=request.width)


def _search(own: VariantRow, request: RateRequest) -> RateSearch:
    """Return the requested search, by default of the rate between the ends of the grid."""
    ends: dict[str, tuple[float, float]] = {}
    for name, *words in request.fields:
        ends[name] = _ends(name, words)
    if not ends:
        edges = (-request.width, request.width)
        low, high = (rates.grid_rate(own.ladder, own.variant, own.scale, request.factor, step) for step in edges)
        ends = {RATE: (low, high)}
    named = dict(split_numbers(own.ladder, own.variant.name)[1])
    for name, pair in ends.items():
        if name in named:
            raise ValueError(f"{own.name} has its {name} in its name: give the variant alone, and it is searched")
        for end in pair:
            at_number(own.variant, name, end)  # raises if it is impossible
    space = {name: Range(low=low, high=high, log=low > 0) for name, (low, high) in ends.items()}
    study = {"sampler": request.study.sampler, "trials": request.study.trials}
    return RateSearch.model_validate({**study, "space": space})


def _ends(name: str, texts: Sequence[str]) -> tuple[float, float]:
    """Return the ends of a range in as many digits as points have. Raises ValueError for other words."""
    if name not in FIELDS:
        raise ValueError(f"--field {name!r} is no number of the optimizer: {did_you_mean(name, FIELDS)}")
    digits = RATE_DIGITS if name == RATE else OTHER_DIGITS
    try:
        low, high = (float(f"{float(text):.{digits}g}") for text in texts)
    except ValueError as error:
        raise ValueError(f"--field {name} {' '.join(texts)}: give two numbers, LOW and HIGH") from error
    if not 0 <= low < high < math.inf:
        raise ValueError(f"--field {name} {' '.join(texts)}: LOW must be at least 0 and below HIGH")
    return low, high


# The command


def sweep(workspace: Workspace, request: RateRequest, sweeps: Sequence[SweepRow]) -> int:
    """Run or submit what is open of the sweeps, whose workers add the next points; return the exit code."""
    layout, show = workspace.layout, partial(_print_outcome, workspace, sweeps)
    if workspace.dry_run:
        show()
        return EXIT_DONE
    works = [each.sweep for each in sweeps]
    retry_failed(layout, works, retry=request.study.retry_failed)
    opened: Callable[[], dict[str, str]] = partial(open_storage, workspace, request.study.storage, works)
    if waiting := [each for each in sweeps if each.is_open]:
        # decided once: a controller may be too busy with these jobs to answer again
        workspace = replace(workspace, place=workspace.place.decided())
        code = run_or_submit(workspace, waiting, lambda: None, leave_failed=True, environment=opened)
        if workspace.place.cluster == "slurm":
            logs().print("these jobs find the next points by themselves, until the sweep is done", markup=False)
            logs().print("when they are done, the same command reads their records", markup=False)
            return code
        if any(each.is_open for each in sweeps):
            return code or EXIT_RUN_FAILED
    else:
        opened()
    show()
    return EXIT_RUN_FAILED if any(trial.has_failed for each in sweeps for trial in each.trials) else EXIT_DONE


def _print_outcome(workspace: Workspace, sweeps: Sequence[SweepRow]) -> None:
    """Print every point with its state and loss, then the best rate of each variant."""
    entries = [each.entry() for each in sweeps]
    if workspace.as_json:
        print(json.dumps(entries, indent=1))
        return
    is_search = any(each.sweep.search for each in sweeps)
    points = [
        {**point, "variant": point["variant"] if is_search else entry["variant"]}
        for entry in entries
        for point in entry["points"]
    ]
    title = f"Held-out loss by peak rate, {workspace.scale} scale, in nats per token"
    output().print(table(title, POINT_COLUMNS, [_point_cells(point) for point in points]))
    for point in points:
        if point["error"]:
            logs().print(f"failed: {point['run']}: {point['error']}", markup=False)
    how = "the best point that was tried" if is_search else "vertex of a parabola through three rates"
    title = f"The best peak rate: {how}"
    output().print(table(title, BEST_COLUMNS, [_best_cells(entry) for entry in entries]))


def _point_cells(point: Mapping[str, Any]) -> list[object]:
    shown = {**point, "rate": rate_text(point["rate"]), "loss": _loss_text(point["loss"])}
    return [shown[column] for column in POINT_COLUMNS]


def _best_cells(entry: Mapping[str, Any]) -> list[object]:
    best = entry["optimum"]
    cells: list[object] = [entry["variant"], rate_text(entry["shared_rate"]), _loss_text(entry["shared_loss"])]
    if best is None:
        return [*cells, None, None, None, entry["reason"]]
    return [*cells, rate_text(best["rate"]), _loss_text(best["loss"]), best["train_as"], entry["reason"]]


def _loss_text(loss: float | None) -> str | None:
    return None if loss is None else f"{loss:.4f}"
