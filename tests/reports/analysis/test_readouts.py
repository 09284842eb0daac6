"""Readouts in reports: the noise of items is what a bootstrap says, intervals with it cover, claims need it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from ablations.declarations import PROTOCOL, Measure

from neobert.glue.tasks import TASKS
from neobert.kinds.readouts import ReadoutName
from neobert.runs.records import pack_numbers
from reports.analysis.deltas import find_deltas
from reports.analysis.inference import seed_interval, t_test, with_examples
from reports.analysis.pairing import Delta
from reports.analysis.quantities import READOUTS, Units
from reports.analysis.readouts import (
    SignalToNoise,
    find_signals,
    influence,
    paired_variance,
    signals_table,
    tells_apart,
)
from reports.evidence import read_evidence
from reports.figures.forests import forest_of_answers, forest_of_readouts
from tests.reports.made_up_study import Study, by_place, change_record, undrawn_figures
from tests.reports.measurements import Numbers, answer, ask
from tests.reports.predictions import with_predictions

# Noise


def units(above: Numbers, below: Numbers | None = None, factor: float = 1.0) -> Units:
    """A model's numbers by unit, as reports read them from a record."""
    own = answer(above, below)
    return Units(own.numerators, own.denominators, own.units, factor)


def test_paired_noise_is_that_of_a_bootstrap_over_units() -> None:
    """Also of ratios, with denominators of each model's own, and of the mean over seeds, which share the units."""
    random = np.random.default_rng(0)
    count, hard = 300, np.random.default_rng(1).gamma(4, 1.5, 300)
    below = [random.poisson(20, count) + 1.0 for _ in range(4)]
    above = [
        own * (hard + shift + random.normal(0, 0.5, count)) for own, shift in zip(below, (0, 0.3, 0, 0.3), strict=True)
    ]
    ours, theirs = ([units(above[place], below[place]) for place in places] for places in ((0, 2), (1, 3)))
    pairs = list(zip(ours, theirs, strict=True))
    drawn = random.integers(0, count, (4000, count))
    values = [up[drawn].sum(axis=1) / down[drawn].sum(axis=1) for up, down in zip(above, below, strict=True)]
    resampled = ((values[0] - values[1]) + (values[2] - values[3])) / 2
    variance = paired_variance(pairs)
    assert variance is not None and math.sqrt(variance) == pytest.approx(resampled.std(), rel=0.06)
    alone = math.sqrt(sum(influence(each).var() for each in (ours[0], theirs[0])) / count)
    assert math.sqrt(variance) < alone / 2, "what makes a text hard for both is no noise of the difference"
    assert paired_variance([(units(np.ones(1)), units(np.zeros(1)))]) is None
    doubled = [tuple(replace(each, factor=2.0) for each in pair) for pair in pairs]
    assert paired_variance(doubled) == pytest.approx(4 * variance)  # type: ignore[arg-type]


def test_intervals_over_seeds_and_examples_cover_and_those_over_seeds_do_not() -> None:
    """The truth is the difference over all seeds and all items: 2,000 studies of four seeds and 100 items."""
    random = np.random.default_rng(2)
    seeds, items, studies = 4, 100, 2000
    covered = of_seeds = 0
    for _ in range(studies):
        of_items = random.normal(0, 5.0, items)
        both = random.normal(0, 2.0, (seeds, items))
        differences = random.normal(0, 0.3, seeds) + of_items.mean() + both.mean(axis=1)
        variance = float((of_items + both.mean(axis=0)).var(ddof=1) / items)
        found = with_examples(differences, variance)
        alone = with_examples(differences, 0.0)
        assert found is not None and alone is not None
        covered += found[0][0] <= 0 <= found[0][1]
        of_seeds += alone[0][0] <= 0 <= alone[0][1]
        assert (found[1] < 0.05) == (not found[0][0] <= 0 <= found[0][1])
    assert 0.94 <= covered / studies <= 0.985
    assert of_seeds / studies < 0.9


def test_without_noise_of_examples_it_is_the_t_interval() -> None:
    values = np.array([0.3, 0.5, 0.1, 0.4])
    found = with_examples(values, 0.0)
    assert found is not None
    assert found[0] == pytest.approx(seed_interval(values)) and found[1] == pytest.approx(t_test(values))
    equal = with_examples([0.2, 0.2, 0.2], 0.01)
    assert equal is not None and equal[0] == pytest.approx((0.2 - 1.959964 * 0.1, 0.2 + 1.959964 * 0.1))
    assert with_examples([0.3], 0.1) is None and with_examples([0.0, 0.0], 0.0) is None


# Deltas


def write(
    study: Study, name: str, right: float, seeds: int = 6, items: int = 400, readout: ReadoutName = "cloze"
) -> None:
    """Runs and their readouts: all seeds answer the same share of items right but for a few."""
    of_name = np.random.default_rng(len(name) + ord(name[-1]))
    answers = (of_name.random(items) < right).astype(float)
    for seed in range(seeds):
        study.pretrain(name, seed)
        own = answers.copy()
        others = np.random.default_rng(seed).choice(items, items // 40, replace=False)
        own[others] = 1 - own[others]
        ask(study, name, seed, readout, answer(own))


def judged_by_cloze(study: Study) -> Delta:
    """M1 against M0 in cloze on web, as if it were the primary measure."""
    findings = study.findings()
    protocol = PROTOCOL.model_copy(update={"primary": (Measure(quantity="cloze", corpus="other"),)})
    deltas = find_deltas(study.group(), (), findings.stored, findings.evidence, findings.signals, protocol)
    (delta,) = (each for each in deltas if each.quantity == "cloze")
    return delta


def test_a_delta_of_a_readout_has_the_noise_of_seeds_and_items(study: Study) -> None:
    write(study, "M0", 0.5)
    write(study, "M1", 0.9)
    delta = judged_by_cloze(study)
    assert delta.comparison is not None and delta.comparison.seeds == 6
    assert delta.examples is not None and delta.both is not None and delta.comparison.interval is not None
    widths = [high - low for low, high in (delta.comparison.interval, delta.examples, delta.both)]
    assert widths[0] < widths[1] < widths[2]
    assert delta.noise is not None and widths[1] == pytest.approx(2 * 1.959964 * math.sqrt(delta.noise.variance))
    assert 2.5 < math.sqrt(delta.noise.variance) < 3.5, "points: about √(0.25 + 0.09) / √400"
    assert delta.verdict == "higher (claimed at 6 seeds)" and len(delta.ids) == 12


def test_what_rests_on_the_items_at_hand_is_not_claimed(study: Study) -> None:
    """Six seeds agree that one model is right a little more often, on items that say nothing."""
    write(study, "M0", 0.5)
    write(study, "M1", 0.52)
    delta = judged_by_cloze(study)
    assert delta.comparison is not None and delta.comparison.interval is not None and delta.both is not None
    low, high = delta.comparison.interval
    assert (low > 0 or high < 0) and delta.judged.p_difference == 1 / 32
    assert delta.both[0] < 0 < delta.both[1] and delta.verdict == "within noise"


def test_seeds_beyond_the_look_change_no_interval_over_both(study: Study) -> None:
    write(study, "M0", 0.5)
    write(study, "M1", 0.6)
    first = judged_by_cloze(study)
    write(study, "M0", 0.5, seeds=7)
    write(study, "M1", 0.9, seeds=7)
    later = judged_by_cloze(study)
    assert first.both is not None and len(later.differences) == 7 and later.claimed == first.claimed
    assert later.noises == first.noises


def test_equivalence_needs_the_noise_of_items_too(study: Study) -> None:
    margin = READOUTS["cloze"].margin
    write(study, "M0", 0.5, items=60)
    for seed in range(6):
        study.pretrain("M1", seed)
        shifted = np.roll((np.random.default_rng(len("M0") + ord("0")).random(60) < 0.5).astype(float), 1)
        shifted[seed] = 1 - shifted[seed]
        ask(study, "M1", seed, "cloze", answer(shifted))
    delta = judged_by_cloze(study)
    assert delta.both is not None and max(map(abs, delta.both)) > margin
    assert delta.judged.p_equivalence is not None and not delta.claimed[1]


def test_other_tokenizers_share_words_and_no_losses(study: Study) -> None:
    for name in ("M2", "M3"):
        write(study, name, 0.5, seeds=2, readout="words")
        for seed in range(2):
            ask(study, name, seed, "loss", answer(np.arange(1.0, 9), np.full(8, 3.0)))
    told = {measured for variant, base, measured in by_place(study.findings()) if (variant, base) == ("M3", "M2")}
    assert "whole words on web" in told and "loss, all [MASK] on web" not in told


def test_answers_to_other_items_are_not_compared(study: Study) -> None:
    for name, items in (("M0", "a" * 12), ("M1", "b" * 12)):
        study.pretrain(name)
        ask(study, name, 0, "cloze", answer(np.ones(5)), items)
    delta = by_place(study.findings())["M1", "M0", "cloze on web"]
    assert delta.comparison is None and delta.reason == "M1 and M0 were not asked the same at any seed"


def test_a_record_without_a_number_for_each_unit_is_named(study: Study) -> None:
    write(study, "M0", 0.5, seeds=1)
    (path,) = study.root.glob("readouts/*/*.json")
    for damage in ({"units": 3}, {"numerators": "AAAA"}, {"denominators": pack_numbers(np.zeros(400), "<i4")}):
        before = path.read_bytes()
        change_record(path, lambda record, damage=damage: record["scores"]["web"].update(damage))  # type: ignore[misc]
        evidence = read_evidence(study.root)
        assert evidence.readouts.empty and any("readouts record" in problem for problem in evidence.problems)
        path.write_bytes(before)


def test_the_figure_of_readouts_shows_each_in_its_own_unit(study: Study) -> None:
    for name, right in (("M0", 0.5), ("M1", 0.7)):
        write(study, name, right, seeds=2)
        for seed in range(2):
            ask(study, name, seed, "words", answer(np.arange(4.0) + seed + right, np.full(4, 3.0)))
    findings = study.findings()
    forest = forest_of_readouts(findings.steps, findings.group)
    assert [(panel.title, panel.unit) for panel in forest.panels] == [
        ("whole words", "bits per byte, lower is better"),
        ("cloze", "points, higher is better"),
    ]
    assert [panel.title for panel in forest_of_answers(findings.steps, findings.group).panels] == ["loss"]
    with undrawn_figures():
        assert {f"readouts.{suffix}" for suffix in ("pdf", "svg", "png", "md")} <= findings.files(
            ("pdf", "svg", "png", "md")
        ).keys()


# Signal to noise


def test_signal_to_noise_is_the_spread_between_arms_over_that_between_seeds(study: Study) -> None:
    """M0 and M1 were trained on another corpus, which moves a readout more than any modification; M6 was asked other
    items; M7 has one seed."""
    values = {"M0": (0.05, 0.07), "M1": (0.05, 0.07), "M2": (0.40, 0.44), "M4": (0.50, 0.58), "M5": (0.60, 0.62)}
    for name, shares in {**values, "M6": (0.1, 0.9), "M7": (0.9,)}.items():
        for seed, share in enumerate(shares):
            study.pretrain(name, seed)
            right = (np.arange(100) < 100 * share).astype(float)
            ask(study, name, seed, "cloze", answer(right), ("b" if name == "M6" else "a") * 12)
    signals = {signal.name: signal for signal in find_signals(study.group())}
    cloze = signals["cloze on web"]
    noise = {"M2": 4 / math.sqrt(2), "M4": 8 / math.sqrt(2), "M5": 2 / math.sqrt(2)}
    assert cloze.between_seeds == pytest.approx(noise) and cloze.seeds == 6
    assert cloze.between_arms == pytest.approx(np.std([42, 54, 61], ddof=1)) and len(cloze.ids) == 6
    assert cloze.ratio == pytest.approx(cloze.between_arms / noise["M2"]), "of the median arm, not pooled"
    page = signals_table(list(signals.values()), study.group()).markdown
    assert "| cloze on web | points | 3 | 6 | 9.61 | 2.83 | 1.41 (M5) | 5.66 (M4) | 3.4 |" in page


def test_a_readout_tells_arms_apart_that_are_half_as_noisy_as_arms_differ() -> None:
    signal = SignalToNoise("cloze on web", "cloze", "web", 12, 10.0, {"M2": 2.0, "M4": 9.0}, ())
    quiet = {0: -3.0, 1: 3.0, 2: 0.0}
    noisy = {0: -8.0, 1: 8.0, 2: 0.0}
    assert tells_apart([signal], "cloze", "web", [quiet, quiet]), "deviation 3"
    assert not tells_apart([signal], "cloze", "web", [quiet, noisy]), "deviation 6"
    assert not tells_apart([signal], "cloze", "wikibook", [quiet, quiet]) and not tells_apart(
        [], "cloze", "web", [quiet, quiet]
    )


def test_two_tasks_alone_are_ranked_and_compared_with_the_noise_of_their_examples(study: Study) -> None:
    """Data folders may have few tasks of GLUE: SST-2 and STS-B."""
    study.without = {task: "not in the folder" for task in TASKS if task not in ("sst2", "stsb")}
    with_predictions(study, ["M0", "M1"], ("sst2", "stsb"))
    assert {"SST-2", "STS-B"} <= {signal.name for signal in find_signals(study.group())}
    delta = by_place(study.findings())["M1", "M0", "GLUE"]
    assert delta.comparison is not None and delta.comparison.seeds == 3 and not delta.no_examples
    assert delta.examples is not None and delta.both is not None and delta.comparison.interval is not None
    widths = [high - low for low, high in (delta.comparison.interval, delta.both)]
    assert 0 < widths[0] < widths[1]


def test_a_readout_that_is_the_same_for_all_arms_is_the_last(study: Study) -> None:
    for name in ("M0", "M1"):
        for seed in (0, 1):
            study.pretrain(name, seed)
            for task in ("cola", "sst2"):
                of_task = study.study(name, task, seed)
                study.begin(name, of_task)
                for point in of_task.points:
                    study.trial(name, of_task, point, score=0.0 if task == "cola" else None)
    signals = study.findings().signals
    assert signals[-1].name == "CoLA" and signals[-1].ratio is None and len(signals) > 2
