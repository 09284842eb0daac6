"""The tables of docs/objectives.md, from the records in reports/objectives by plain arithmetic."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from ablations import ladders
from tests.support.pages import compare_part, text_of

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


def last_stages() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Arm and record of each last stage; a first one can serve several arms."""
    for record in records():
        if record["kind"] == "pretraining" and record["inputs"]["previous"] is not None:
            (arm,) = record["labels"]["variants"]
            yield arm, record


def values() -> dict[str, dict[str, dict[int, float]]]:
    """By measure, arm and seed; an arm that ends causal has no bits per byte."""
    found: dict[str, dict[str, dict[int, float]]] = {name: {} for name in MEASURES}
    tagging, web, wikibook = MEASURES
    for record in records():
        if record["kind"] == "glue":
            (arm,) = record["labels"]["variants"]
            found[tagging].setdefault(arm, {})[record["seed"]] = 100 * record["scores"]["score"]
    for arm, record in last_stages():
        for own in record["scores"]["heldout"]:
            measure = {"web": web, "wikibook": wikibook}[own["corpus"]]
            found[measure].setdefault(arm, {})[record["seed"]] = own["bits_per_byte"]
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
    compare_part(PAGE, BEGIN, END, rendered(list(ladders.load(str(LADDER)).variants)), write_golden)


def test_the_page_names_the_compute_of_the_records() -> None:
    by_id = {record["id"]: record for record in records()}
    flops = {arm: own["flops"] + by_id[own["inputs"]["previous"]]["flops"] for arm, own in last_stages()}
    page = text_of(PAGE)
    causal, most = (flops[arm] / flops["masked"] for arm in ("causal", "causal75"))
    assert f"*causal* {causal:.2f} times the FLOPs of *masked*, *causal75* {most:.2f} times" in page


def test_the_page_names_when_runs_leave_the_plateau() -> None:
    by_id = {record["id"]: record for record in records()}
    alone, after = [], []
    for arm, own in last_stages():
        if arm == "masked":
            alone.append(by_id[own["inputs"]["previous"]]["scores"]["transition"]["step"])
        if arm in ("causal25", "causal50", "causal75"):
            after.append(own["scores"]["transition"]["step"])
    page = text_of(PAGE)
    assert f"frequencies after {min(alone):.0f} to {max(alone):.0f} steps" in page
    assert f"leaves it within {min(after):.0f} to {max(after):.0f} steps" in page
