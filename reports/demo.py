"""python -m reports.demo: what the two arms of `make demo` show, as a picture and a sentence.

Reads the records of examples/demo.py below --runs, draws the training loss of each run against its steps, and compares
the arms at paired seeds if both have trained. Exit codes: 0 done, 3 no such records.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from neobert.command_line import guarded, parser_from
from neobert.console import output, table
from neobert.errors import EXIT_DONE, MissingData
from neobert.files import replace_file
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from reports.curves import read_curve, thinned
from reports.figures.drawing import COLOURS, Picture, single_axes
from reports.scores import LEAST_GAIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LADDER = "demo.py"
ARMS = ("learned", "rope")
COLUMNS = ("variant", "seed", "held-out loss", "loss of token frequencies")
Lines = Sequence[Mapping[str, float]]
"""The lines of a metrics.jsonl with a training loss."""


@dataclass(frozen=True)
class DemoRun:
    """A finished run: its held-out loss in nats per token at the end, and that of predicting each token by its
    frequency."""

    variant: str
    seed: int
    heldout_loss: float
    frequency_loss: float


def read_runs(runs: Path) -> dict[DemoRun, Lines]:
    """Return the runs of the demo's ladder with their curves, ordered by variant and seed.

    Raises:
        MissingData: an arm has no finished run.
    """
    found: dict[DemoRun, Lines] = {}
    for path in Layout(runs).root.glob("pretraining/*/done.json"):
        record = read_record(path)
        labels, scores = record["labels"], record["scores"]
        if labels.get("ladder") != LADDER:
            continue
        for variant in labels["variants"]:
            (loss,) = scores["heldout_loss"].values()
            run = DemoRun(variant, record["seed"], loss, scores["heldout"][0]["frequency_loss"])
            lines = read_curve(path.with_name("metrics.jsonl"), record.get("sha256", {}).get("metrics"))
            found[run] = [line for line in lines if "loss" in line]
    ordered = dict(sorted(found.items(), key=lambda item: (item[0].variant, item[0].seed)))
    for arm in ARMS:
        if not any(run.variant == arm for run in ordered):
            raise MissingData(f"{runs} has no finished run of {arm}: `make demo` trains it")
    return ordered


def sentence(runs: Sequence[DemoRun], steps: int) -> str:
    """Return what the runs show: the difference between the arms at the seeds that both have, if both have trained."""
    losses: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for run in runs:
        losses[run.variant][run.seed] = run.heldout_loss
    first, second = (losses[arm] for arm in ARMS)
    shown = (
        f"After {steps:,} steps the held-out loss is {fmean(first.values()):.2f} nats per token with learned positions "
        f"and {fmean(second.values()):.2f} with RoPE"
    )
    frequencies = fmean(run.frequency_loss for run in runs)
    untrained = [arm for arm in ARMS if fmean(losses[arm].values()) > frequencies - LEAST_GAIN]
    if untrained:
        return (
            f"{shown}. Token frequencies alone give {frequencies:.2f}: {' and '.join(untrained)} has not trained yet, "
            "so the two are not compared."
        )
    differences = [f"{second[seed] - first[seed]:+.2f}" for seed in sorted(first.keys() & second.keys())]
    return f"{shown}; the difference at paired seeds is {' and '.join(differences)}."


def draw(runs: Mapping[DemoRun, Lines]) -> "Figure":
    """Draw the training losses; steps are on a logarithmic axis."""
    figure, axes = single_axes(3.6, 2.6)
    colours = dict(zip(ARMS, COLOURS, strict=False))
    for run, lines in runs.items():
        label = run.variant if run.seed == min(each.seed for each in runs if each.variant == run.variant) else None
        axes.plot(*zip(*thinned(lines), strict=True), color=colours[run.variant], linewidth=1, label=label)
    axes.axhline(
        next(iter(runs)).frequency_loss, color="#595959", linestyle=":", linewidth=1, label="token frequencies"
    )
    axes.set(xscale="log", xlabel="step", ylabel="training loss (nats per token)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = parser_from("python -m reports.demo", __doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    parser.add_argument("--out", type=Path, default=Path("reports/out"), help="where the picture goes")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args(arguments)

    def show() -> int:
        runs = read_runs(options.runs)
        path = options.out / "demo.png"
        replace_file(path, Picture(lambda: draw(runs)).files("demo")["demo.png"])
        if options.json:
            print(json.dumps([asdict(run) for run in runs]))
            return EXIT_DONE
        rows = [(run.variant, run.seed, f"{run.heldout_loss:.2f}", f"{run.frequency_loss:.2f}") for run in runs]
        output().print(table("Learned positions or RoPE", COLUMNS, rows))
        print(sentence(list(runs), steps=max(int(line["step"]) for lines in runs.values() for line in lines)))
        print(path)
        return EXIT_DONE

    return guarded("reports.demo", show, options.runs)


if __name__ == "__main__":
    raise SystemExit(main())
