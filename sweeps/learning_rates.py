"""Find the peak learning rate at which each variant has the lowest held-out loss, by pre-training on pilot seeds.

python sweeps/learning_rates.py --variant M0..M8 --scale study --data DIR   five rates each; more if an edge is best
python sweeps/learning_rates.py --variant M4 --pilot-seed 1000 1001 1002    more seeds
python sweeps/learning_rates.py --variant M4 --factor 1.41 --width 3        a finer grid around the scale's own rate
python sweeps/learning_rates.py --variant M4 --sampler tpe --trials 12 --field weight_decay 0.01 0.3
                                                                            other numbers, by a sampler of Optuna
optuna-dashboard runs/optuna.journal                                        to watch the sweeps while they run
python ablations/run.py --variant M4@rate2.8e-3 --seed 0 1 2                then train at the rate that it names
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.launch.flags import (
    Flags,
    add_data_flags,
    add_execution_flags,
    add_place_flags,
    selection_from,
    workspace_from,
)
from neobert.command_line import Parser, count, guarded, number_above_0, parser_from, seed
from sweeps.studies import add_study_flags, study_from

if TYPE_CHECKING:
    from sweeps.rate_sweep import RateRequest

LEAST_FACTOR, MOST_FACTOR = 1.2, 10
"""Bounds of --factor: noise dominates the parabola of closer rates, and the losses of farther ones do not fit one."""
PILOT_SEEDS_IF_NOT_NAMED = 2
MOST_STEPS = 12
SAMPLERS = ("rule", "random", "tpe", "gp", "qmc")


def build_parser() -> Parser:
    """Return the command's parser."""
    parser = parser_from("python sweeps/learning_rates.py", __doc__)
    add = parser.add_argument
    add("--variant", nargs="+", action="extend", required=True, metavar="NAME", help="names, M0..M5, or all")
    pilot = "seeds from 1000 to 1099, which are in no comparison of variants (default: 1000 1001)"
    add("--pilot-seed", nargs="+", action="extend", type=seed, metavar="N", help=pilot)
    add("--factor", type=number_above_0, default=2.0, metavar="F", help="ratio of neighbouring rates (default: 2)")
    add("--width", type=count, default=2, metavar="N", help="rates on each side of the scale's own (default: 2)")
    most = "largest number of rates on each side, if the best rate is at an edge (default: 5)"
    add("--most", type=count, default=5, metavar="N", help=most)
    add_study_flags(parser, SAMPLERS, "the rule (default) that extends the grid, or a sampler of Optuna")
    ranges = "a number of the optimizer that a sampler chooses (default: the peak rate, between the ends of the grid)"
    add("--field", nargs=3, action="append", metavar=("NAME", "LOW", "HIGH"), help=ranges)
    add_data_flags(parser)
    add_place_flags(parser, "points and their states,")
    add_execution_flags(parser)
    parser.set_defaults(stages=["pretraining"])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done or submitted, 1 a run failed, 2 refused, 3 missing data)."""
    flags = vars(build_parser().parse_args(arguments))
    return guarded("learning_rates.py", lambda: _run(flags), flags["runs"])


def _run(flags: Flags) -> int:
    from ablations.names import chosen_variants
    from ablations.rates import MARK
    from sweeps.rate_sweep import SweepRow, sweep

    request, selection = request_from(flags), selection_from(flags)
    variants = chosen_variants(selection.ladder, selection.variants)
    if named := [variant.name for variant in variants if MARK in variant.name]:
        raise ValueError(f"{named[0]} has its rate in its name: give the variant alone, and its rate is searched")
    workspace = workspace_from(flags, selection)
    return sweep(workspace, request, [SweepRow.of(workspace, request, variant) for variant in variants])


def request_from(flags: Flags) -> "RateRequest":
    """Return what the flags request. Raises ValueError if they contradict each other, or a value is out of bounds."""
    from ablations.rates import PILOT_SEEDS
    from sweeps.rate_sweep import RateRequest

    factor, width, most = flags["factor"], flags["width"], flags["most"]
    seeds = tuple(dict.fromkeys(flags["pilot_seed"] or PILOT_SEEDS[:PILOT_SEEDS_IF_NOT_NAMED]))
    if others := [each for each in seeds if each not in PILOT_SEEDS]:
        raise ValueError(f"--pilot-seed {others[0]}: pilot seeds are {PILOT_SEEDS[0]} to {PILOT_SEEDS[-1]}")
    if not LEAST_FACTOR <= factor <= MOST_FACTOR:
        raise ValueError(f"--factor {factor:g}: give one from {LEAST_FACTOR} to {MOST_FACTOR}")
    if not width <= most <= MOST_STEPS:
        raise ValueError(f"--most {most}: give one from --width, {width}, to {MOST_STEPS}")
    study, fields = study_from(flags, SAMPLERS), flags["field"] or ()
    if study.sampler == "rule" and (study.trials or fields):
        flag = "--trials" if study.trials else "--field"
        raise ValueError(
            f"{flag} goes with a sampler of Optuna, as the rule tries rates alone: add one, or leave it out"
        )
    return RateRequest(seeds, factor, width, most, tuple(map(tuple, fields)), study)


if __name__ == "__main__":
    sys.exit(main())
