# PYTHON_ARGCOMPLETE_OK
"""Say what larger runs will measure, before they exist, from the records of smaller ones; a report scores it later.

python ablations/run.py --variant all@steps0.25 all@steps0.5 --seed 0 1 2 --scale study     two shares of the steps
python reports/forecast.py --scale study                                 all steps: signs, sizes and 80 % intervals
python reports/forecast.py --scale paper --from smoke study              another scale: signs alone
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script: its own folder is on sys.path, the repository with the packages is not
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ablations.ladders import add_ladder_flag, on_ladder
from neobert.command_line import Parser, count, guarded
from neobert.errors import EXIT_DONE, MissingData

if TYPE_CHECKING:
    from ablations.declarations import Declaration
    from ablations.scales import Scale
    from reports.evidence import Evidence
    from reports.forecasts.budgets import Budget
    from reports.forecasts.sealed import Forecast

DEFAULT_SCALE = "study"


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="forecast.py",
        description="Forecast the sign and the size of every step of the ladder at a scale from at least two smaller "
        "budgets: runs with a share of the steps (NAME@steps0.25), or of smaller scales, which give only signs. The "
        "forecast is written once, with a checksum, below forecasts/ of the folder of runs. Commit it before the "
        "longer runs begin; make_figures.py scores it. What is recorded already is not forecast.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused, 3 no runs or too few records.",
    )
    add = parser.add_argument
    add("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add_ladder_flag(parser)
    declared = "forecast for a declared study, with its scale, data, budgets and seeds, and store its hash"
    add("--declaration", type=Path, metavar="FILE", help=declared)
    add("--scale", help="scale that is forecast (default: study)")
    add("--data", help="only records of this source of data, as --data named it (default: the only one)")
    budgets = "study@steps0.25, smoke, … (default: every share of the steps of --scale that has records)"
    add("--from", dest="budgets", nargs="+", metavar="BUDGET", help=budgets)
    add("--seeds", type=count, metavar="N", help="number of seeds of the forecast runs (default: 6, the first look)")
    add("--json", action="store_true", help="print the forecast as JSON")
    return parser.parse_args(given)


def _chosen_budgets(names: list[str] | None, evidence: "Evidence", scale: "Scale", data: str) -> "list[Budget]":
    from ablations.ladders import current
    from reports.forecasts.budgets import budget_named, budgets_on_record

    found = budgets_on_record(evidence, scale, data) if names is None else list(map(budget_named, names))
    if len(set(found)) < 2:
        listed = ", ".join(budget.name for budget in found) or "none"
        raise MissingData(
            f"a forecast of {scale} needs two smaller budgets, not {listed}: train the ladder with two shares of its "
            f"steps (python ablations/run.py{current().flag} --variant all@steps0.25 all@steps0.5), or "
            "name scales with --from"
        )
    return list(dict.fromkeys(found))


def _chosen_data(evidence: "Evidence", data: str | None) -> str:
    there = sorted({own for _, own in evidence.groups()})
    name = Path(data).name if data else None  # records carry a folder's name, not its path
    chosen = [own for own in there if data is None or own in (data, name)]
    if not chosen:
        raise MissingData(f"no record has data {data}; there are records with data {', '.join(there)}")
    if len(chosen) > 1:
        raise ValueError(f"there are records of several sources of data: say which with --data ({', '.join(there)})")
    return chosen[0]


def _take_declared(arguments: argparse.Namespace, declaration: "Declaration") -> None:
    """Fill in scale, data, budgets and seeds of a declaration.

    Raises:
        ValueError: a flag says something else, or the study declares no budgets.
    """
    if not declaration.budgets:
        raise ValueError(f"{arguments.declaration} declares no budgets, so it has no forecast")
    budgets = [f"{declaration.scale}@steps{share:g}" for share in declaration.budgets]
    seeds = min(declaration.protocol.looks)
    wanted = {"scale": declaration.scale, "data": declaration.data, "budgets": budgets, "seeds": seeds}
    for name, value in wanted.items():
        given = vars(arguments)[name]
        if given is not None and given != value and (name != "data" or Path(given).name != value):
            flag = "from" if name == "budgets" else name
            raise ValueError(f"--{flag} says {given}, and {arguments.declaration} declares {value}")
    vars(arguments).update(wanted)


def _forecast(arguments: argparse.Namespace) -> int:
    from ablations.declarations import read_declaration
    from reports.analysis.inference import SEEDS_FOR_A_CLAIM
    from reports.evidence import read_evidence
    from reports.forecasts.budgets import make_forecast, scale_named
    from reports.forecasts.sealed import write_forecast

    declaration = None if arguments.declaration is None else read_declaration(arguments.declaration)
    if declaration is not None:
        _take_declared(arguments, declaration)
    scale = scale_named(arguments.scale or DEFAULT_SCALE)
    evidence = read_evidence(arguments.runs)
    data = _chosen_data(evidence, arguments.data)
    budgets = _chosen_budgets(arguments.budgets, evidence, scale, data)
    seeds = arguments.seeds or SEEDS_FOR_A_CLAIM
    forecast = make_forecast(evidence, scale, data, budgets, seeds, declaration.id if declaration else "")
    path, is_new = write_forecast(arguments.runs, forecast)
    if arguments.json:
        print(forecast.model_dump_json(indent=1))
    else:
        _print(forecast)
        print(f"{path}: {'written' if is_new else 'the same forecast was there already'}; commit it before the runs")
    return EXIT_DONE


def _print(forecast: "Forecast") -> None:
    from neobert.console import output, table
    from reports.forecasts.outcomes import print_prediction

    what = "signs" if forecast.is_of_signs else f"differences over {forecast.seeds} seeds"
    title = f"Forecast of {what} at scale {forecast.scale}, from {', '.join(forecast.budgets)}"
    header = ("Variant", "Against", "Quantity", "At budgets", "Forecast", "80 %", "P(higher)")
    output().print(table(title, header, list(map(print_prediction, forecast.predictions))))
    for sentence in forecast.left_out:
        print(f"not forecast: {sentence}")


def main(given: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = _arguments(given)
    return guarded("forecast.py", on_ladder(arguments, _forecast), arguments.runs)


if __name__ == "__main__":
    sys.exit(main())
