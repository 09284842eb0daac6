"""A sweep over peak rates. The grid of each variant is extended until the best rate lies inside it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from ablations import rates
from ablations.launch.checks import require_heldout_context
from ablations.launch.execute import Workspace, retry_failed, run_or_submit
from ablations.launch.listing import state_of_all
from ablations.launch.submit import place_of
from ablations.plan import VariantRow, plan
from ablations.rates import Optimum, RateCurve, best_variant, next_step, rate_text, shared_rate, variant_at
from ablations.variant import Variant
from neobert.console import logs, output, table
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED
from neobert.runs.index import Index
from neobert.runs.records import read_record

State = Literal["done", "failed", "open"]
POINT_COLUMNS = ("variant", "rate", "seed", "run", "state", "loss")
BEST_COLUMNS = ("variant", "shared rate", "loss at it", "optimum", "within 1 s.e.", "loss there", "train as", "remark")


def _state(row: VariantRow) -> State:
    """Return whether a stage of a row failed, all are done, or neither."""
    states = {planned.state for planned in row.planned}
    return "failed" if "failed" in states else "done" if states == {"done"} else "open"


@dataclass
class RateGrid:
    """The grid of one variant so far: the rows of its plan by step, one row per pilot seed."""

    workspace: Workspace
    variant: Variant
    seeds: Sequence[int]
    rows: dict[int, list[VariantRow]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        width = self.workspace.options.width
        self.rows = {step: self._plan_step(step) for step in range(-width, width + 1)}

    @property
    def all_rows(self) -> list[VariantRow]:
        """The rows of all steps, in ascending order."""
        return [row for _, rows in sorted(self.rows.items()) for row in rows]

    def rate(self, step: int) -> float:
        """Return the rate of a step."""
        options = self.workspace.options
        return rates.grid_rate(self.variant, options.scale, options.factor, step)

    def plan(self) -> None:
        """Plan all steps again, to read their current states."""
        self.rows = {step: self._plan_step(step) for step in self.rows}

    def _plan_step(self, step: int) -> list[VariantRow]:
        options, workspace = self.workspace.options, self.workspace
        at_rate = variant_at(self.variant, self.rate(step), options.scale)
        return plan([at_rate], self.seeds, options.scale, workspace.source, workspace.layout, ["pretraining"])

    def extend(self) -> None:
        """Add the steps that follow from finished ones, until an added step is not finished."""
        while all(_state(row) != "open" for row in self.all_rows):
            means = self.curve().means
            tried = {step: means.get(self.rate(step)) for step in self.rows}
            step = next_step(tried, self.workspace.options.most)
            if step is None:
                return
            self.rows[step] = self._plan_step(step)

    def curve(self) -> RateCurve:
        """Return the losses of finished runs and the errors of failed ones."""
        losses: dict[float, dict[int, float]] = {}
        failures: dict[float, dict[int, str]] = {}
        for step, rows in sorted(self.rows.items()):
            for row in rows:
                if (state := _state(row)) == "failed":
                    failures.setdefault(self.rate(step), {})[row.seed] = self._error(row)
                elif state == "done" and (loss := self._loss(row)) is not None:
                    losses.setdefault(self.rate(step), {})[row.seed] = loss
                elif state == "done":
                    failures.setdefault(self.rate(step), {})[row.seed] = "its record has no held-out loss"
        return RateCurve(losses, failures)

    def _loss(self, row: VariantRow) -> float | None:
        """Return the held-out loss of a finished row on its own corpus, in nats per token."""
        last = row.stages[-1]
        return last.heldout_loss(read_record(last.closing(self.workspace.layout).record)["scores"]["heldout_loss"])

    def _error(self, row: VariantRow) -> str:
        index = Index(self.workspace.layout)
        return "; ".join(failure.error for run in row.stages for failure in index.progress(run).failures)

    def entry(self) -> dict[str, Any]:
        """Return the entry of the variant for --json; losses are in nats per token."""
        curve, shared = self.curve(), shared_rate(self.variant, self.workspace.options.scale)
        optimum = curve.optimum(self.workspace.options.noise)
        return {
            "variant": self.variant.name,
            "scale": self.workspace.options.scale,
            "shared_rate": shared,
            "shared_loss": curve.means.get(shared),
            "optimum": None if optimum is None else self._optimum_entry(optimum),
            "reason": self._why_none(curve) if optimum is None else optimum.reason,
            "points": [
                {
                    "rate": self.rate(step),
                    "variant": row.name,
                    "seed": row.seed,
                    "run": row.stages[-1].id,
                    "state": state_of_all(row.planned),
                    "loss": curve.losses.get(self.rate(step), {}).get(row.seed),
                    "error": curve.failures.get(self.rate(step), {}).get(row.seed),
                }
                for step, rows in sorted(self.rows.items())
                for row in rows
            ],
        }

    def _optimum_entry(self, optimum: Optimum) -> dict[str, Any]:
        return {
            "rate": optimum.rate,
            "exact": optimum.exact,
            "interval": optimum.interval,
            "loss": optimum.loss,
            "fitted": optimum.fitted,
            "train_as": best_variant(self.variant, optimum, self.workspace.options.scale).name,
        }

    def _why_none(self, curve: RateCurve) -> str:
        if any(_state(row) == "open" for row in self.all_rows):
            return "not all points are done"
        if not curve.means:
            return "no rate trained"
        best = min(curve.means, key=lambda rate: curve.means[rate])
        return f"the best rate, {rate_text(best)}, is the last that --most {self.workspace.options.most} allows"


def sweep(workspace: Workspace, grids: Sequence[RateGrid]) -> int:
    """Train missing points and extend the grids by the results, repeatedly; return the exit code.

    On SLURM only submit the points that are known to be missing.
    """
    options, show = workspace.options, partial(_print_outcome, workspace, grids)
    require_heldout_context(options.heldout_context, [row for grid in grids for row in grid.all_rows])
    for grid in grids:
        grid.extend()  # to all points of earlier sweeps
    if options.dry_run:
        show()
        return EXIT_DONE
    runs = (run for grid in grids for row in grid.all_rows for run in row.runs)
    retry_failed(workspace.layout, runs, retry=options.retry_failed)
    while waiting := _replanned(grids, extend=True):
        options.cluster = place_of(options)  # once: a controller may be too busy with these jobs to answer again
        code = run_or_submit(workspace, waiting, lambda: None, leave_failed=True)
        if options.cluster == "slurm":
            logs().print("when these jobs are done, the same command reads their records and goes on", markup=False)
            return code
        if _replanned(grids, extend=False):
            return code or EXIT_RUN_FAILED
    show()
    return EXIT_RUN_FAILED if _in_state(grids, "failed") else EXIT_DONE


def _in_state(grids: Sequence[RateGrid], state: State) -> list[VariantRow]:
    return [row for grid in grids for row in grid.all_rows if _state(row) == state]


def _replanned(grids: Sequence[RateGrid], *, extend: bool) -> list[VariantRow]:
    """Read the state of all points, add those that follow from them if `extend`, and return the open ones."""
    for grid in grids:
        grid.plan()
        if extend:
            grid.extend()
    return _in_state(grids, "open")


def _print_outcome(workspace: Workspace, grids: Sequence[RateGrid]) -> None:
    """Print every point with its state and loss, then the best rate of each variant."""
    entries = [grid.entry() for grid in grids]
    if workspace.options.json:
        print(json.dumps(entries, indent=1))
        return
    points = [{**point, "variant": entry["variant"]} for entry in entries for point in entry["points"]]
    title = f"Held-out loss by peak rate, {workspace.options.scale} scale, in nats per token"
    output().print(table(title, POINT_COLUMNS, [_point_cells(point) for point in points]))
    for point in points:
        if point["error"]:
            logs().print(f"failed: {point['run']}: {point['error']}", markup=False)
    title = "The best peak rate: vertex of a parabola through three rates"
    output().print(table(title, BEST_COLUMNS, [_best_cells(entry) for entry in entries]))


def _point_cells(point: Mapping[str, Any]) -> list[object]:
    shown = {**point, "rate": rate_text(point["rate"]), "loss": _loss_text(point["loss"])}
    return [shown[column] for column in POINT_COLUMNS]


def _best_cells(entry: Mapping[str, Any]) -> list[object]:
    best = entry["optimum"]
    cells: list[object] = [entry["variant"], rate_text(entry["shared_rate"]), _loss_text(entry["shared_loss"])]
    if best is None:
        return [*cells, None, None, None, None, entry["reason"]]
    interval = best["interval"] and " to ".join(map(rate_text, best["interval"]))
    return [*cells, rate_text(best["rate"]), interval, _loss_text(best["loss"]), best["train_as"], entry["reason"]]


def _loss_text(loss: float | None) -> str | None:
    return None if loss is None else f"{loss:.4f}"
