"""The numbers of docs/muon.md are those of reports/muon/runs.csv, one line a run."""

from pathlib import Path

import pandas as pd

from tests.support.pages import compare_part

DOCS = Path(__file__).resolve().parents[2] / "docs" / "muon.md"
RUNS = Path(__file__).resolve().parents[2] / "reports" / "muon" / "runs.csv"
BEGIN, END = "<!-- from reports/muon/runs.csv -->\n", "<!-- end -->"
CORPORA = {"web": "web, the corpus of training", "wikibook": "wikibook"}
ARMS = ("fused", "split")


def spread(values: pd.Series) -> str:
    return f"{values.mean():+.3f} ± {values.std():.3f}".replace("-", "−")


def table(losses: pd.DataFrame) -> list[str]:
    """One corpus: `losses` by rate and seed, a column an arm."""
    seeds = sorted(losses.index.unique("seed"))
    heads = ["rate", *(f"{arm}, seed {seed}" if seed == seeds[0] else f"{seed}" for arm in ARMS for seed in seeds)]
    lines = [f"| {' | '.join([*heads, 'split − fused'])} |", f"|{'---|' * (len(heads) + 1)}"]
    for rate, of_rate in losses.groupby("rate"):
        by_seed = of_rate.droplevel("rate")
        cells = [f"{by_seed.at[seed, arm]:.3f}" for arm in ARMS for seed in seeds]
        lines.append(f"| {rate:g} | {' | '.join(cells)} | {spread(by_seed.split - by_seed.fused)} |")
    return lines


def best_rates(losses: pd.DataFrame) -> str:
    """The arms at the rates at which their means are lowest, and whether a rate lies at the edge of the grid."""
    means = losses.groupby("rate").mean()
    best = {arm: float(means[arm].idxmin()) for arm in ARMS}
    at_best = {arm: losses.xs(best[arm], level="rate")[arm] for arm in ARMS}
    said = [f"{arm} is best at {rate:g} ({means.at[rate, arm]:.3f})" for arm, rate in best.items()]
    edges = {means.index.min(): "lowest", means.index.max(): "highest"}
    edge = [f" The best rate of {arm} is the {edges[rate]} of the grid." for arm, rate in best.items() if rate in edges]
    difference = spread(at_best["split"] - at_best["fused"])
    return f"{', '.join(said).capitalize()}; there split − fused is {difference}.{''.join(edge)}"


def rendered(runs: pd.DataFrame) -> str:
    if runs.empty:
        return "No run is recorded yet.\n"
    lines: list[str] = []
    for corpus, title in CORPORA.items():
        losses = runs.pivot(index=["rate", "seed"], columns="arm", values=corpus)
        lines += [f"On {title}:", "", *table(losses), "", best_rates(losses), ""]
    return "\n".join(lines)


def test_the_page_shows_the_recorded_runs(write_golden: bool) -> None:
    runs = pd.read_csv(RUNS)
    assert not runs.isna().any(axis=None) and runs.run.is_unique
    of_arm = {arm: set(zip(own.rate, own.seed, strict=True)) for arm, own in runs.groupby("arm")}
    assert of_arm.get("fused") == of_arm.get("split"), "every run has one of the other arm to compare with"
    compare_part(DOCS, BEGIN, END, rendered(runs), write_golden)
