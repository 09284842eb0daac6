"""The tables of docs/objectives.md, from the records in reports/objectives by plain arithmetic."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from ablations import ladders

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE, RECORDS = REPOSITORY / "docs" / "objectives.md", REPOSITORY / "reports" / "objectives"
LADDER = REPOSITORY / "examples" / "objectives.py"
BEGIN, END = "<!-- from reports/objectives -->\n", "<!-- end -->"
SEEDS, BASE = (0, 1, 2), "masked"
MEASURES = {"Tagging, points": 2, "Bits per byte on web": 3, "Bits per byte on wikibook": 3}
"""Name and decimals."""


def records() -> Iterator[Mapping[str, Any]]:
    with (RECORDS / "records.jsonl").open(encoding="utf-8") as file:
        for line in file:
            content = json.loads(line)["content"]
            if "scores" in content:
                yield content


def values() -> dict[str, dict[str, dict[int, float]]]:
    """By measure, arm and seed, of last stages; an arm that ends causal has no bits per byte."""
    found: dict[str, dict[str, dict[int, float]]] = {name: {} for name in MEASURES}
    tagging, web, wikibook = MEASURES
    for record in records():
        (arm,), seed, scores = record["labels"]["variants"], record["seed"], record["scores"]
        if record["kind"] == "glue":
            found[tagging].setdefault(arm, {})[seed] = 100 * scores["score"]
            continue
        for own in scores["heldout"]:
            measure = {"web": web, "wikibook": wikibook}[own["corpus"]]
            found[measure].setdefault(arm, {})[seed] = own["bits_per_byte"]
    return found


def printed(value: float, digits: int, sign: str = "") -> str:
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def line(arm: str, own: Mapping[int, float], base: Mapping[int, float], digits: int) -> str:
    """Mean ± sd and the values by seed; then the difference to the base with its 95 % t interval."""
    cells = [arm, f"{printed(statistics.fmean(own.values()), digits)} ± {statistics.stdev(own.values()):.{digits}f}"]
    cells += [printed(own[seed], digits) for seed in SEEDS]
    differences = [own[seed] - base[seed] for seed in SEEDS]
    if own == base:
        return f"| {' | '.join([*cells, '—', '—'])} |"
    mean, error = statistics.fmean(differences), stats.sem(differences)
    low, high = stats.t.interval(0.95, len(SEEDS) - 1, mean, error)
    interval = f"{printed(low, digits, '+')} to {printed(high, digits, '+')}"
    return f"| {' | '.join([*cells, printed(mean, digits, '+'), interval])} |"


def rendered(arms: Sequence[str]) -> str:
    lines: list[str] = []
    for name, of_arms in values().items():
        shown = [arm for arm in arms if arm in of_arms]
        assert all(set(of_arms[arm]) == set(SEEDS) for arm in shown) and BASE in shown
        heads = ["Arm", name, *(f"seed {seed}" for seed in SEEDS), "against masked", "95 % over seeds"]
        lines += [f"| {' | '.join(heads)} |", f"| :--- |{' ---: |' * (len(heads) - 1)}"]
        lines += [line(arm, of_arms[arm], of_arms[BASE], MEASURES[name]) for arm in shown]
        lines.append("")
    return "\n".join(lines)


def test_the_page_shows_the_recorded_runs(write_golden: bool) -> None:
    before, after = PAGE.read_text(encoding="utf-8").split(BEGIN)
    page = f"{before}{BEGIN}{rendered(list(ladders.load(str(LADDER)).variants))}{END}{after.split(END)[1]}"
    if write_golden:
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page, (
        "python -m pytest --write-golden writes the tables of the page anew"
    )


def test_the_page_names_the_compute_and_the_plateau_of_the_records() -> None:
    flops: dict[str, float] = {}
    shares: dict[str, list[float]] = {}
    for record in records():
        (arm,) = record["labels"]["variants"]
        if record["kind"] == "pretraining":
            flops[arm] = flops.get(arm, 0.0) + record["flops"]
            if record["scores"]["transition"]:
                shares.setdefault(arm, []).append(record["scores"]["transition"]["step"] / record["steps"])
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    causal, most = (flops[arm] / flops["masked"] for arm in ("causal", "causal75"))
    assert f"*causal* {causal:.2f} times the FLOPs of *masked*, *causal75* {most:.2f} times" in page
    drawn, masked = ([round(100 * bound(shares[arm])) for bound in (min, max)] for arm in ("drawn", "masked"))
    assert (
        f"frequencies after {drawn[0]} to {drawn[1]} % of its run, *masked* after {masked[0]} to {masked[1]} %" in page
    )
