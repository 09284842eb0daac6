# PYTHON_ARGCOMPLETE_OK
"""Find the peak learning rate at which each variant has the lowest held-out loss, by pre-training on pilot seeds.

python sweeps/learning_rates.py --variant M0..M8 --scale laptop --data DIR  five rates each, more where the best is last
python sweeps/learning_rates.py --variant M4 --pilot-seed 1000 1001 1002    more seeds, a smaller error
python sweeps/learning_rates.py --variant M4 --factor 1.41 --width 3        a finer grid around the scale's own rate
python ablations/run.py --variant M4@rate2.8e-3 --seed 0 1 2                then train at the rate that it names
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.ladders import on_ladder
from ablations.launch.flags import add_common_flags, add_execution_flags
from neobert.command_line import count, guarded, number_above_0, parser_from, seed
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from ablations.plan import VariantRow
    from ablations.rates import Optimum, RateCurve
    from ablations.variant import Variant

LEAST_FACTOR, MOST_FACTOR = 1.2, 10
"""Between neighbouring rates: of nearer ones noise decides the parabola, and farther ones lie on none."""
PILOT_SEEDS_IF_NOT_NAMED = 2  # as few as tell an error
MOST_STEPS = 12
POINT_COLUMNS = ("variant", "rate", "seed", "run", "state", "loss")
BEST_COLUMNS = ("variant", "shared rate", "loss at it", "optimum", "± 1 s.e.", "loss there", "train as", "remark")


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = parser_from("python sweeps/learning_rates.py", __doc__)
    add = parser.add_argument
    add("--variant", nargs="+", action="extend", required=True, metavar="NAME", help="names, M0..M5, or all")
    pilot = "seeds from 1000 to 1099, which no comparison of variants counts (default: 1000 1001)"
    add("--pilot-seed", nargs="+", action="extend", type=seed, metavar="N", help=pilot)
    add("--factor", type=number_above_0, default=2.0, metavar="F", help="between neighbouring rates (default: 2)")
    add("--width", type=count, default=2, metavar="N", help="rates on each side of the scale's own (default: 2)")
    most = "how many rates on each side at most, where the best one lies at an edge (default: 5)"
    add("--most", type=count, default=5, metavar="N", help=most)
    noise = "standard deviation of a run's loss, which gives the optimum an error with one pilot seed too"
    add("--noise", type=number_above_0, metavar="NATS", help=noise)
    add("--retry-failed", action="store_true", help="run failed points again")
    add_common_flags(parser, "points and their states,", models=False)
    add_execution_flags(parser)
    parser.set_defaults(stages=["pretrain"])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 done or submitted, 1 a run failed, 2 refused, 3 missing data)."""
    options = build_parser().parse_args(arguments)
    return guarded("learning_rates.py", on_ladder(options, _run), options.runs)


def _run(options: argparse.Namespace) -> int:
    from ablations.designs import chosen_variants
    from ablations.launch.execute import open_workspace
    from ablations.rates import MARK, PILOT_SEEDS

    seeds = tuple(dict.fromkeys(options.pilot_seed or PILOT_SEEDS[:PILOT_SEEDS_IF_NOT_NAMED]))
    if others := [each for each in seeds if each not in PILOT_SEEDS]:
        raise ValueError(f"--pilot-seed {others[0]}: pilot seeds are {PILOT_SEEDS[0]} to {PILOT_SEEDS[-1]}")
    if not LEAST_FACTOR <= options.factor <= MOST_FACTOR:
        raise ValueError(f"--factor {options.factor:g}: give one from {LEAST_FACTOR} to {MOST_FACTOR}")
    if not options.width <= options.most <= MOST_STEPS:
        raise ValueError(f"--most {options.most}: give one from --width, {options.width}, to {MOST_STEPS}")
    variants = chosen_variants(options.variant)
    if named := [variant.name for variant in variants if MARK in variant.name]:
        raise ValueError(f"{named[0]} has its rate in its name: give the variant alone, and its rate is searched")
    workspace = open_workspace(options)
    return _sweep(workspace, [_Grid(workspace, variant, seeds) for variant in variants])


def _sweep(workspace: "Workspace", grids: "Sequence[_Grid]") -> int:
    """Train what is missing, extend the grids by what came out, and so on; on SLURM submit what is known to be missing.
    The exit code."""
    from ablations.launch.checks import require_heldout_context
    from ablations.launch.execute import carry_out, treat_failures
    from ablations.launch.submit import place_of
    from neobert.console import logs

    options, show = workspace.options, partial(_print_outcome, workspace, grids)
    require_heldout_context(options.heldout_context, [row for grid in grids for row in grid.all_rows])
    for grid in grids:
        grid.extend()  # to all points that were tried before
    if options.dry_run:
        show()
        return EXIT_DONE
    runs = (run for grid in grids for row in grid.all_rows for run in row.runs)
    treat_failures(workspace.layout, runs, retry=options.retry_failed)
    while True:
        for grid in grids:
            grid.plan()
            grid.extend()
        waiting = [row for grid in grids for row in grid.all_rows if _state(row) == "open"]
        if not waiting:
            break
        code = carry_out(workspace, waiting, lambda: None, leave_failed=True)
        if place_of(options) == "slurm":
            logs().print("when these jobs are done, the same command reads their records and goes on", markup=False)
            return code
        if any(_state(row) == "open" for grid in grids for row in grid.planned_again(waiting)):
            return code or EXIT_RUN_FAILED
    show()
    return EXIT_RUN_FAILED if any(_state(row) == "failed" for grid in grids for row in grid.all_rows) else EXIT_DONE


def _state(row: "VariantRow") -> Literal["done", "failed", "open"]:
    """Whether all stages of a row are done, one of them failed, or neither."""
    states = {planned.state for planned in row.planned}
    return "failed" if "failed" in states else "done" if states == {"done"} else "open"


@dataclass
class _Grid:
    """The grid of one variant, as far as it is tried: the rows of its plan by step, one a pilot seed."""

    workspace: "Workspace"
    variant: "Variant"
    seeds: Sequence[int]
    rows: "dict[int, list[VariantRow]]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        width = self.workspace.options.width
        self.rows = {step: self._plan_step(step) for step in range(-width, width + 1)}

    @property
    def all_rows(self) -> "list[VariantRow]":
        """The rows of all steps, upwards."""
        return [row for _, rows in sorted(self.rows.items()) for row in rows]

    def rate(self, step: int) -> float:
        """The rate of a step."""
        from ablations.rates import grid_rate

        options = self.workspace.options
        return grid_rate(self.variant, options.scale, options.factor, step)

    def plan(self) -> None:
        """Plan all steps anew, with their states of now."""
        self.rows = {step: self._plan_step(step) for step in self.rows}

    def planned_again(self, rows: "Sequence[VariantRow]") -> "list[VariantRow]":
        """The grid's own of some rows, planned anew."""
        self.plan()
        wanted = {(row.name, row.seed) for row in rows}
        return [row for row in self.all_rows if (row.name, row.seed) in wanted]

    def _plan_step(self, step: int) -> "list[VariantRow]":
        from ablations.plan import plan
        from ablations.rates import variant_at

        options, workspace = self.workspace.options, self.workspace
        at_rate = variant_at(self.variant, self.rate(step), options.scale)
        return plan([at_rate], self.seeds, options.scale, workspace.source, workspace.layout, ["pretrain"])

    def extend(self) -> None:
        """Add what follows from finished steps, and what follows from these where they are finished, too."""
        from ablations.rates import next_step

        while all(_state(row) != "open" for row in self.all_rows):
            means = self.curve().means
            tried = {step: means.get(self.rate(step)) for step in self.rows}
            step = next_step(tried, self.workspace.options.most)
            if step is None:
                return
            self.rows[step] = self._plan_step(step)

    def curve(self) -> "RateCurve":
        """What finished and failed runs say."""
        from ablations.rates import RateCurve

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

    def _loss(self, row: "VariantRow") -> float | None:
        """The held-out loss of a finished row on its own corpus, in nats a token."""
        from neobert.runs.records import read_record

        last = row.stages[-1]
        return last.heldout_loss(read_record(last.closing(self.workspace.layout).record)["scores"]["heldout_loss"])

    def _error(self, row: "VariantRow") -> str:
        from neobert.runs.index import Index

        index = Index(self.workspace.layout)
        return "; ".join(failure.error for run in row.stages for failure in index.progress(run).failures)

    def entry(self) -> dict[str, Any]:
        """What --json prints of the variant; losses are in nats a token."""
        from ablations.launch.listing import state_of_all
        from ablations.rates import shared_rate

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

    def _optimum_entry(self, optimum: "Optimum") -> dict[str, Any]:
        from ablations.rates import best_variant

        return {
            "rate": optimum.rate,
            "exact": optimum.exact,
            "interval": optimum.interval,
            "loss": optimum.loss,
            "fitted": optimum.fitted,
            "train_as": best_variant(self.variant, optimum, self.workspace.options.scale).name,
        }

    def _why_none(self, curve: "RateCurve") -> str:
        from ablations.rates import rate_text

        if any(_state(row) == "open" for row in self.all_rows):
            return "not all points are done"
        if not curve.means:
            return "no rate trained"
        best = min(curve.means, key=lambda rate: curve.means[rate])
        return f"the best rate, {rate_text(best)}, is the last that --most {self.workspace.options.most} allows"


def _print_outcome(workspace: "Workspace", grids: Sequence[_Grid]) -> None:
    """Every point with its state and loss, then the best rate of each variant."""
    from neobert.console import logs, output, table

    entries = [grid.entry() for grid in grids]
    if workspace.options.json:
        print(json.dumps(entries, indent=1))
        return
    points = [{**point, "variant": entry["variant"]} for entry in entries for point in entry["points"]]
    title = f"Held-out loss by peak rate, {workspace.options.scale} scale, in nats a token"
    output().print(table(title, POINT_COLUMNS, [_point_cells(point) for point in points]))
    for point in points:
        if point["error"]:
            logs().print(f"failed: {point['run']}: {point['error']}", markup=False)
    title = "The best peak rate: vertex of a parabola through three rates"
    output().print(table(title, BEST_COLUMNS, [_best_cells(entry) for entry in entries]))


def _point_cells(point: Mapping[str, Any]) -> list[object]:
    from ablations.rates import rate_text

    shown = {**point, "rate": rate_text(point["rate"]), "loss": _loss_text(point["loss"])}
    return [shown[column] for column in POINT_COLUMNS]


def _best_cells(entry: Mapping[str, Any]) -> list[object]:
    from ablations.rates import rate_text

    best = entry["optimum"]
    cells: list[object] = [entry["variant"], rate_text(entry["shared_rate"]), _loss_text(entry["shared_loss"])]
    if best is None:
        return [*cells, None, None, None, None, entry["reason"]]
    interval = best["interval"] and " to ".join(map(rate_text, best["interval"]))
    return [*cells, rate_text(best["rate"]), interval, _loss_text(best["loss"]), best["train_as"], entry["reason"]]


def _loss_text(loss: float | None) -> str | None:
    return None if loss is None else f"{loss:.4f}"


if __name__ == "__main__":
    sys.exit(main())
