"""Printed numbers of the committed study, computed once more from its records by the definitions of docs/statistics.md.

Nothing of the reports is used: records are read as JSON, and a formula is written out or is scipy's.
"""

import csv
import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.support.pages import text_of

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDS, MADE = REPOSITORY / "reports" / "study", REPOSITORY / "docs" / "study" / "parts-real_text"
PAGE = REPOSITORY / "docs" / "study.md"
OTHER_MACHINE = REPOSITORY / "reports" / "study_avx2"
PRINTED = 2e-6  # tables have six decimals
READOUTS = {
    "whole words": "words",
    "cloze": "cloze",
    "minimal pairs (BLiMP)": "blimp",
    "loss, all [MASK]": "loss",
    "loss, 80/10/10": "loss_80_10_10",
}
IN_POINTS = {"cloze", "minimal pairs (BLiMP)"}
PAPERS_CHANGES = (
    *(("M1", "wikibook", 1.9), ("M2", "web", 2.9), ("M3", "web", -1.8), ("M4", "web", -0.5), ("M5", "web", -0.6)),
    *(("M6", "web", -2.4), ("M7", "web", 2.4), ("M8", "web", 0.7)),
)
"""Variant, its corpus, and the paper's change of the GLUE average."""
PARTS_OF_M1 = {
    **dict.fromkeys(("M0+rotary", "M1-swiglu", "M1-rmsnorm"), True),
    **dict.fromkeys(("M0+swiglu", "M0+rmsnorm", "M1-rotary"), False),
}
"""Whether each part of M1 has rotary positions."""

Record = Mapping[str, Any]


def lines(name: str, folder: Path = RECORDS) -> Iterator[Mapping[str, Any]]:
    with (folder / f"{name}.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


@pytest.fixture(scope="module")
def records() -> Mapping[str, Record]:
    return {line["content"]["id"]: line["content"] | {"path": line["path"]} for line in lines("records")}


def table(name: str) -> list[dict[str, str]]:
    with (MADE / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def numbers_by_key(text: str) -> dict[str, float]:
    return {key: float(value) for key, _, value in (each.rpartition(":") for each in text.split())}


def by_seed(text: str) -> dict[int, float]:
    return {int(seed): value for seed, value in numbers_by_key(text).items()}


def of_arm(records: Mapping[str, Record], row: Mapping[str, str], arm: str) -> list[Record]:
    return [own for own in map(records.__getitem__, row["records"].split()) if arm in own["labels"]["variants"]]


def values_of(found: Iterable[Record], quantity: str, corpus: str, context: int | None = None) -> dict[int, float]:
    """A quantity by seed of pre-training, of one arm's records."""
    values: dict[int, float] = {}
    for record in found:
        scores = record["scores"]
        if quantity in READOUTS:
            value = scores[corpus or READOUTS[quantity]]["value"]
        elif quantity == "loss":
            value = scores["heldout_loss"][corpus]
        else:
            assert quantity == "bits per byte"
            (own,) = (own for own in scores["heldout"] if (own["corpus"], own["context"]) == (corpus, context))
            value = own["loss"] * own["tokens"] / own["text_bytes"] / math.log(2)
        assert record["seed"] not in values
        values[record["seed"]] = value * (100 if quantity in IN_POINTS else 1)
    return values


def t_interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Mean and both ends of the 95 % interval of Student's t."""
    values = list(values)
    ends = stats.t.interval(0.95, len(values) - 1, statistics.fmean(values), stats.sem(values))
    return statistics.fmean(values), float(ends[0]), float(ends[1])


def require_printed(row: Mapping[str, str], expected: Mapping[str, float]) -> None:
    """Compare the numbers that a row prints; both must have the same."""
    printed = {name: float(row[name]) for name in expected if row[name]}
    assert printed == pytest.approx(dict(expected), abs=PRINTED), row["variant"]


def test_differences_are_those_of_paired_seeds_with_their_t_intervals(records: Mapping[str, Record]) -> None:
    seen = set()
    for row in table("deltas"):
        if not row["records"]:
            continue
        corpus, context = "", None
        if found := re.search(r" on (\w+)(?:, (\d+) tokens)?$", row["measured"]):
            corpus, context = found[1], int(found[2] or 0)
        ours, theirs = (
            values_of(of_arm(records, row, arm), row["quantity"], corpus, context)
            for arm in (row["variant"], row["against"])
        )
        paired = {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}
        assert by_seed(row["differences_by_seed"]) == pytest.approx(paired, abs=PRINTED)
        mean, low, high = t_interval(paired.values())
        first, second = ([own[seed] for seed in paired] for own in (ours, theirs))
        require_printed(
            row,
            {
                "seeds": len(paired),
                "difference": mean,
                "sd": statistics.stdev(paired.values()),
                "t_low": low,
                "t_high": high,
                "p_t": float(stats.ttest_rel(first, second).pvalue),
                "correlation": float(stats.pearsonr(first, second).statistic),
            },
        )
        seen.add(row["quantity"])
    assert seen == {"loss", "bits per byte", *READOUTS}


def test_each_answer_is_the_difference_in_the_measure_that_it_names() -> None:
    deltas = {
        (row["variant"], row["against"], row["measured"].removeprefix("held-out ")): row for row in table("deltas")
    }
    waits = {(row["variant"], row["against"]): row["waiting"] for row in table("waiting")}
    answers = table("answer")
    for row in answers:
        of = deltas[row["variant"], row["against"], row["measured"]]
        ends = ("both_low", "both_high") if of["both_low"] else ("t_low", "t_high")
        assert (row["difference"], row["low"], row["high"]) == (of["difference"], *(of[end] for end in ends))
        assert row["waiting"] == waits[row["variant"], row["against"]]
    assert len(answers) == len(waits) == 8 + 4 + 6, "M5 to M8 also at their own rates, and M1 in six parts"


def transition_of(record: Record) -> float:
    """The step at which the loss on the small text falls below the level, linear in the logarithm of the step."""
    found = record["scores"]["transition"]
    level, curve = found["frequency_loss"] - found["margin"], found["curve"]
    after = next(number for number, point in enumerate(curve) if point["loss"] < level)
    before, beyond = curve[after - 1], curve[after]
    share = (before["loss"] - level) / (before["loss"] - beyond["loss"])
    return float(before["step"] ** (1 - share) * beyond["step"] ** share)


def loss_at(record: Record, step: float) -> float:
    """The loss on the small text at a step, linear in the logarithm of the step."""
    points = [(math.log(point["step"]), point["loss"]) for point in record["scores"]["transition"]["curve"]]
    return float(np.interp(math.log(step), *np.array(points).T))


def test_runs_leave_the_plateau_and_differ_at_equal_time_since_as_printed(records: Mapping[str, Record]) -> None:
    compared = 0
    for row in (row for row in table("waiting") if row["records"]):
        arms = [
            {record["seed"]: record for record in of_arm(records, row, arm)} for arm in (row["variant"], row["against"])
        ]
        left = [{seed: transition_of(record) for seed, record in arm.items()} for arm in arms]
        assert by_seed(row["transitions_by_seed"]) == pytest.approx(left[0], abs=PRINTED)
        assert by_seed(row["transitions_against_by_seed"]) == pytest.approx(left[1], abs=PRINTED)
        for arm, name in zip(arms, ("level", "level_against"), strict=True):
            levels = [
                own["frequency_loss"] - own["margin"] for own in (each["scores"]["transition"] for each in arm.values())
            ]
            assert float(row[name]) == pytest.approx(min(levels), abs=PRINTED)
        seeds, expected = sorted(left[0].keys() & left[1].keys()), dict[str, float]()
        names = {"waiting": [left[0][seed] - left[1][seed] for seed in seeds]}
        if row["at_end"]:
            compared += 1
            end, since = int(row["steps"]), round(int(row["steps"]) / 3)
            ours, theirs = arms
            names["at_end"] = [loss_at(ours[seed], end) - loss_at(theirs[seed], end) for seed in seeds]
            names["since"] = [
                loss_at(ours[seed], left[0][seed] + since) - loss_at(theirs[seed], left[1][seed] + since)
                for seed in seeds
            ]
        for name, values in names.items():
            expected |= dict(zip((name, f"{name}_low", f"{name}_high"), t_interval(values), strict=True))
        require_printed(row, expected)
    assert compared >= 5


def test_readouts_have_the_spread_of_their_arms_over_that_of_the_median_arms_seeds(
    records: Mapping[str, Record],
) -> None:
    for row in table("readouts"):
        name, _, rest = row["readout"].partition(" on ")
        corpus, _, context = rest.removesuffix(" tokens").partition(", ")
        quantity = "loss" if name == "held-out loss" else name
        arms: dict[str, list[Record]] = defaultdict(list)
        for record in map(records.__getitem__, row["records"].split()):
            (arm,) = (each for each in record["labels"]["variants"] if re.fullmatch(r"M\d+", each))
            arms[arm].append(record)
        values = {arm: list(values_of(own, quantity, corpus, int(context or 0)).values()) for arm, own in arms.items()}
        spread = {arm: statistics.stdev(own) for arm, own in values.items()}
        assert numbers_by_key(row["by_arm"]) == pytest.approx(spread, abs=PRINTED)
        between, within = statistics.stdev(map(statistics.fmean, values.values())), statistics.median(spread.values())
        expected = {
            "between_arms": between,
            "between_seeds": within,
            "least_between_seeds": min(spread.values()),
            "most_between_seeds": max(spread.values()),
            "signal_to_noise": between / within,
        }
        require_printed(row | {"variant": row["readout"]}, expected)


def test_scores_of_tags_are_means_of_both_metrics_over_seeds(records: Mapping[str, Record]) -> None:
    """And differences those of paired seeds with their t interval."""
    rows = {row["variant"]: row for row in table("own-tasks") if row["task"] == "upos"}
    scores = {
        name: {
            found["seed"]: 100 * found["scores"]["score"] for found in map(records.__getitem__, row["records"].split())
        }
        for name, row in rows.items()
    }
    for name, row in rows.items():
        own = scores[name]
        require_printed(row, {"score": statistics.fmean(own.values()), "sd": statistics.stdev(own.values())})
        if row["difference"]:
            mean, low, high = t_interval(own[seed] - scores[row["against"]][seed] for seed in own)
            require_printed(row, {"difference": mean, "difference_low": low, "difference_high": high})
    assert len(rows) >= 9 and sum(bool(row["difference"]) for row in rows.values()) >= 8


def test_another_machine_differs_as_printed(records: Mapping[str, Record]) -> None:
    """In the table, and in the page's sentence on it."""
    there = {own["id"]: own for line in lines("records", OTHER_MACHINE) if "scores" in (own := line["content"])}
    pairs = [
        (own["scores"]["heldout_loss"]["web"], records[each]["scores"]["heldout_loss"]["web"])
        for each, own in there.items()
    ]
    size = statistics.fmean(abs(other - here) for other, here in pairs)
    deviation = statistics.stdev(here for _, here in pairs)
    mean = statistics.fmean(other - here for other, here in pairs)
    (row,) = table("machines")
    assert len(pairs) == int(row["runs"]) == 6
    require_printed(row, {"difference": mean, "absolute": size, "sd": deviation, "ratio": size / deviation})
    page = text_of(PAGE)
    assert f"by {size:.4f} nats on average, {size / deviation:.1f} times their standard deviation over seeds" in page
    assert f"the mean by {mean:.4f}" in page


def test_forecasts_are_scored_as_their_formulas_say() -> None:
    """The CRPS of a normal distribution (Gneiting and Raftery 2007, equation 5) and Brier's score."""

    def crps(mean: float, sd: float, measured: float) -> float:
        z = (measured - mean) / sd
        return sd * float(z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))

    deltas = {(row["variant"], row["against"], row["measured"]): row["difference"] for row in table("deltas")}
    rows = table("forecasts")
    for row in rows:
        measured, higher = float(row["measured"]), float(float(row["measured"]) > 0)
        name = "held-out bits per byte" if row["quantity"] == "bits per byte" else f"held-out {row['quantity']}"
        tokens = ", 32 tokens" if row["quantity"] == "bits per byte" else ""
        assert deltas[row["variant"], row["against"], f"{name} on {row['corpus']}{tokens}"] == row["measured"]
        assert row["covered"] == str(float(row["low"]) <= measured <= float(row["high"])).lower()
        assert row["persistence"] == row["means"].split()[-1]
        expected = {"brier": (float(row["probability_higher"]) - higher) ** 2}
        for method in ("persistence", "line"):
            mean, sd = float(row[method]), float(row[f"{method}_sd"])
            expected[f"{method}_crps"] = crps(mean, sd, measured)
            # The mean and sd are those of the table, and its last digits matter where sd is small.
            ends = [
                (float(stats.norm.cdf((mean + one * PRINTED / 4) / (sd + other * PRINTED / 4))) - higher) ** 2
                for one in (-1, 1)
                for other in (-1, 1)
            ]
            assert min(ends) - PRINTED <= float(row[f"{method}_brier"]) <= max(ends) + PRINTED
        require_printed(row, expected)
    for score in table("forecast-scores"):
        if score["method"] == "persistence" and score["unit"] == "nats per token":
            own = [row for row in rows if row["quantity"] != "bits per byte"]
            errors = [abs(float(row["persistence"]) - float(row["measured"])) for row in own]
            crpss = [float(row["persistence_crps"]) for row in own]
            require_printed(
                score | {"variant": "persistence"},
                {"mean_absolute_error": statistics.fmean(errors), "crps": statistics.fmean(crpss)},
            )


def test_gains_are_ratios_of_the_compute_at_which_curves_meet(records: Mapping[str, Record]) -> None:
    """The worse of two final losses, and the compute at which the better run first had it: linear in its logarithm."""
    curves = {
        line["path"].split("/")[1]: [each for each in line["content"] if "heldout" in each] for line in lines("curves")
    }

    def curve(record: Record, corpus: str) -> tuple[list[float], list[float]]:
        losses = [each["heldout_losses"][corpus] for each in curves[record["id"]]]
        return [math.log(record["flops"] * each["step"] / record["steps"]) for each in curves[record["id"]]], losses

    def reached(compute: list[float], losses: list[float], target: float) -> float:
        after = next(number for number, loss in enumerate(losses) if loss <= target)
        if after == 0:
            return compute[0]
        share = (losses[after - 1] - target) / (losses[after - 1] - losses[after])
        return compute[after - 1] + share * (compute[after] - compute[after - 1])

    rows = table("compute")
    for row in rows:
        assert row["unit"] == "FLOPs"
        pair = [
            {own["seed"]: curve(own, row["corpus"]) for own in of_arm(records, row, arm)}
            for arm in (row["variant"], row["against"])
        ]
        gains, bounds = {}, {}
        for seed, (ours, theirs) in {seed: (pair[0][seed], pair[1][seed]) for seed in pair[0]}.items():
            better, worse = (ours, theirs) if ours[1][-1] < theirs[1][-1] else (theirs, ours)
            gain = worse[0][-1] - reached(*better, worse[1][-1])
            gains[seed] = gain if better is ours else -gain
            if better[1][0] < worse[1][-1]:
                bounds[seed] = "least" if better is ours else "most"
        assert by_seed(row["gains_by_seed"]) == pytest.approx(
            {seed: math.exp(gain) for seed, gain in gains.items()}, abs=PRINTED
        )
        assert row["bounds_by_seed"] == " ".join(f"{seed}:{bound}" for seed, bound in sorted(bounds.items()))
        mean, *ends = (math.exp(each) for each in t_interval(gains.values()))
        require_printed(row, {"gain": mean} | ({} if bounds else dict(zip(("low", "high"), ends, strict=True))))
    assert len(rows) == 14 + 2 * 6 and not [row for row in rows if "M3" in (row["variant"], row["against"])]


def test_optima_are_vertices_of_parabolas_in_the_logarithm_of_the_rate(records: Mapping[str, Record]) -> None:
    rows, jumps = table("rates"), set[str]()
    for arm in sorted({row["variant"] for row in rows if row["optimum"]}):
        own = [row for row in rows if row["variant"] == arm]
        losses: dict[float, dict[int, float]] = defaultdict(dict)
        for row in own:
            record = records[row["records"]]
            loss = record["scores"]["heldout_loss"][record["config"]["recipe"]["data"]["corpus"]]
            assert record["seed"] == int(row["pilot_seed"]) and float(row["heldout_loss"]) == pytest.approx(
                loss, abs=PRINTED
            )
            losses[float(row["peak_learning_rate"])][record["seed"]] = loss
        common = set.intersection(*(set(by_pilot) for by_pilot in losses.values()))
        assert common == {1000, 1001}
        points = [
            (math.log(rate), statistics.fmean(by_pilot[seed] for seed in common))
            for rate, by_pilot in sorted(losses.items())
        ]
        best = min(range(len(points)), key=lambda place: points[place][1])
        assert 0 < best < len(points) - 1
        near = np.array(points[best - 1 : best + 2])
        square, linear, constant = np.polyfit(near[:, 0], near[:, 1], 2)
        vertex, lowest = -linear / (2 * square), constant - linear**2 / (4 * square)
        sides = {math.copysign(1, place - points[best][0]) for place, _ in sorted(points, key=lambda at: at[1])[1:3]}
        if len(sides) == 1:  # the loss jumps on the other side
            jumps, (vertex, lowest) = jumps | {arm}, points[best]
        for row in own:
            assert float(row["optimum"]) == pytest.approx(math.exp(vertex), rel=1e-5)
            assert float(row["optimum_loss"]) == pytest.approx(lowest, abs=PRINTED)
    assert jumps == {"M0+rotary", "M1-swiglu"}


def test_the_pages_own_sentences_have_the_numbers_of_records(records: Mapping[str, Record]) -> None:
    """Parts of speech, and the predictions in words with their outcomes."""
    page = text_of(PAGE)
    arms: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in records.values():
        if record["seed"] < 6 and not any("@" in name for name in record["labels"]["variants"]):
            arms[record["kind"], record["labels"]["variants"][0]][record["seed"]] = record

    def paired(kind: str, ours: str, theirs: str, value: Callable[[Record], float]) -> list[float]:
        return [value(arms[kind, ours][seed]) - value(arms[kind, theirs][seed]) for seed in range(6)]

    def on_web(record: Record) -> float:
        return float(record["scores"]["heldout_loss"]["web"])

    def interval_of(values: list[float], digits: int) -> str:
        mean, low, high = (f"{each:+.{digits}f}".replace("-", "−") for each in t_interval(values))
        return f"{mean} ({low} to {high})"

    def told(values: list[float], digits: int) -> str:
        mean, low, high = (f"{each:+.{digits}f}".replace("-", "−") for each in t_interval(values))
        return f"{mean} points ({low} to {high}" if digits == 2 else f"{mean} nats of training loss ({low} to {high}"

    tags = partial(paired, "glue", value=lambda record: 100 * record["scores"]["score"])
    earlier = partial(paired, "pretraining", value=transition_of)
    for arm, has_rotary in PARTS_OF_M1.items():
        numbers = f"{interval_of(earlier(arm, 'M0'), 0)} | {interval_of(tags(arm, 'M0'), 2)}"
        assert f"| {arm} | {'yes' if has_rotary else 'no'} | {numbers} |" in page
    assert told(tags("M1", "M0"), 2) in page and "M3 is 3.70 points below M2 (3.17 to 4.23)" in page
    assert t_interval(tags("M2", "M3")) == pytest.approx((3.70, 3.17, 4.23), abs=5e-3)
    first, last = (
        statistics.fmean(
            paired("glue", "M1", "M0", lambda record, at=at: 100 * record["scores"]["curve"][at][1])  # type: ignore[misc]
        )
        for at in (0, -1)
    )
    assert f"from {first:.1f} points (after 37) to {last:.1f}" in page
    unread = {each: arms["glue", each][0]["unread_words"]["dev"] / 25_147 for each in ("M2", "M3")}
    assert f"{unread['M3']:.1%} lie beyond M3's 32 tokens, and {unread['M2']:.1%}".replace("%", " %") in page
    bytes_per_token = {
        each: own["text_bytes"] / own["tokens"]
        for each in ("M2", "M3")
        for own in arms["pretraining", each][0]["scores"]["heldout"]
        if own["corpus"] == "web"
    }
    assert f"tokens are {1 - bytes_per_token['M3'] / bytes_per_token['M2']:.0%} shorter".replace("%", " %") in page
    losses = [on_web(record) for record in arms["pretraining", "M2"].values()]
    apart = statistics.fmean(abs(one - other) for one, other in itertools.combinations(losses, 2))
    assert f"Two different seeds of M2 differ by {apart:.4f} on average" in page

    curves = {line["path"].split("/")[1]: line["content"] for line in lines("curves") if "pretraining/" in line["path"]}

    def since(record: Record) -> float:
        middle = record["scores"]["transition"]["step"] + 2667
        near = (each for each in curves[record["id"]] if "loss" in each and abs(each["step"] - middle) <= 200)
        return statistics.fmean(each["loss"] for each in near)

    level = paired("pretraining", "M1", "M0", since)
    waited, waited_by_step = (-statistics.fmean(earlier(arm, "M0")) for arm in ("M0+rotary", "M1"))
    of_step = f"{waited / waited_by_step:.0%}".replace("%", " %")
    assert f"M0+rotary leaves the plateau {waited:.0f} steps earlier, {of_step} of M1's {waited_by_step:.0f}" in page
    step = statistics.fmean(paired("pretraining", "M4", "M2", on_web))
    spread = statistics.stdev(on_web(arms["pretraining", "M5"][seed]) for seed in range(6))
    signs = sum(
        math.copysign(1, -float(row["difference"])) == math.copysign(1, change)
        for row in table("deltas")
        if row["design"] == "ladder"
        for variant, corpus, change in PAPERS_CHANGES
        if (row["variant"], row["measured"]) == (variant, f"held-out bits per byte on {corpus}, 32 tokens")
    )
    assert told(level, 3) in page
    assert f"M4 − M2 is {step:+.3f} nats on web" in page and f"deviation of M5 is {spread:.3f} nats" in page
    assert signs == 6 and "six of eight signs are the paper's" in page
    given = {"a": 0.85, "c": 0.70, "d": 0.50, "e": 0.45, "f": 0.40, "g": 0.70}
    holds = {
        "a": abs(step) <= 0.05,
        "c": waited / waited_by_step > 0.8,
        "d": abs(statistics.fmean(level)) <= 0.05,
        "e": spread < 0.03,
        "g": signs >= 5,
    }
    place = ("ladder", "M6", "held-out bits per byte on web, 32 tokens")
    (sixth,) = (row for row in table("deltas") if (row["design"], row["variant"], row["measured"]) == place)
    holds["f"] = max(abs(float(sixth["t_low"])), abs(float(sixth["t_high"]))) <= 0.016
    score = statistics.fmean((given[name] - held) ** 2 for name, held in holds.items())
    assert f"Their Brier score is {score:.3f}" in page
    for name, held in holds.items():
        (row,) = re.findall(rf"\| {name} \| [^|]* \| (holds|fails) \((0\.\d+)\) \|", page)
        assert row == ("holds" if held else "fails", f"{given[name]:.2f}")


def test_the_pages_own_sentences_have_the_numbers_of_tables() -> None:
    """Spreads of pilot seeds, and differences in tagging."""
    page = text_of(PAGE)
    pilots: dict[str, list[float]] = defaultdict(list)
    for row in table("rates"):
        if float(row["peak_learning_rate"]) == float(row["shared_rate"]):
            pilots[row["variant"]].append(float(row["heldout_loss"]))
    first_ratio, fifth_ratio = (
        statistics.stdev(pilots[arm]) / statistics.stdev(pilots[parent]) for arm, parent in (("M1", "M0"), ("M5", "M4"))
    )
    assert f"M1 spreads {first_ratio:.1f} times as much as M0 (and M5 {fifth_ratio:.1f} times as much as M4)" in page
    pilots_apart = statistics.fmean(abs(one - other) for one, other in itertools.combinations(pilots["M2"], 2))
    assert f"two of its four pilot seeds by {pilots_apart:.3f}," in page
    own_tags = {row["variant"]: f"{float(row['difference'] or 0):+.2f}".replace("-", "−") for row in table("own-tasks")}
    assert f"{own_tags['M8@rate1.7e-3'][1:]} points worse at own rates" in page
    assert f"({own_tags['M5@rate1.6e-3']} at own rates, {own_tags['M5']} at the shared one)" in page
    assert (
        f"M6 is {own_tags['M6'][1:]} points below M5 at the shared rate and {own_tags['M6@rate1.2e-3'][1:]} at own"
        in page
    )
