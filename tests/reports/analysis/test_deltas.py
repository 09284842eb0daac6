"""Records → deltas: who is paired with whom, what is left out and said."""

import json
import statistics
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ablations.declarations import PROTOCOL, Measure, Protocol

from ablations import ladders
from ablations.ladders import ladder
from neobert.glue.tasks import Task
from neobert.runs.layout import Layout
from reports.analysis.delta_table import deltas_table
from reports.analysis.deltas import find_deltas, places_of_wholes
from reports.analysis.inference import joint_sign_flips
from reports.analysis.pairing import Delta
from reports.analysis.plateau import Regime
from reports.analysis.resampling import resampled_differences
from reports.figures.figure1 import find_bars
from reports.tables import signed
from tests.reports.made_up_study import LEVELS, Study, by_place, change_record, facts_of
from tests.reports.measurements import add_units, answer, ask
from tests.reports.predictions import with_predictions

PRIMARY = "bits per byte on wikibook, 64 tokens"


def reported(study: Study) -> tuple[dict[tuple[str, str, str], Delta], str]:
    """Deltas by (variant, base, what was measured) and the printed page."""
    findings = study.findings()
    table = findings.delta_table
    assert len(table.facts) == len(facts_of(table)) == len(findings.deltas) and table.latex
    return by_place(findings), table.markdown


def test_a_delta_is_the_mean_over_paired_seeds_of_differences_of_averages(study: Study) -> None:
    study.write(["M0", "M1"], seeds=(0, 1, 2))
    deltas, page = reported(study)
    delta = deltas["M1", "M0", "GLUE"]
    rows = study.group().last_rows
    ours, theirs = rows["M1"].average, rows["M0"].average
    assert ours is not None and theirs is not None and delta.comparison is not None
    by_seed = [ours.by_seeds[seeds] - theirs.by_seeds[seeds] for seeds in ours.by_seeds]
    assert list(delta.differences.values()) == pytest.approx(by_seed)
    assert delta.comparison.interval is not None and delta.comparison.mean == pytest.approx(np.mean(by_seed))
    assert delta.judged.p_difference is None and not delta.judged.is_tested, "GLUE is exploratory"
    assert "the smallest p that an exact sign-flip test can reach is 0.25 with 3" in page
    assert len(delta.ids) == 2 * 3 * 8


def test_one_seed_has_no_interval_and_says_so(study: Study) -> None:
    study.common_context = 64
    study.write(["M0", "M1"])
    deltas, page = reported(study)
    found, primary = deltas["M1", "M0", "GLUE"], deltas["M1", "M0", PRIMARY]
    assert found.comparison is not None and found.comparison.interval is None
    assert found.verdict == "" and primary.verdict == "too few seeds"
    assert "One seed: no interval and no test" in page


def test_a_seed_without_partner_is_named_and_left_out(study: Study) -> None:
    study.write(["M0"], seeds=(0, 1, 2))
    study.write(["M1"], seeds=(1, 2, 3))
    deltas, page = reported(study)
    assert list(deltas["M1", "M0", "GLUE"].differences) == [1, 2]
    assert "seed 3 of M1 has no partner and is left out" in page
    assert "seed 0 of M0 has no partner and is left out" in page


def test_a_missing_task_leaves_the_pair_out_with_its_name(study: Study) -> None:
    study.write(["M0", "M1", "M2"])
    for task in study.studies("M1"):
        if task.task == "rte":
            for point in task.points:
                task.trial(Layout(study.root), point).record.unlink()
    deltas, page = reported(study)
    delta = deltas["M1", "M0", "GLUE"]
    assert delta.comparison is None and "M1 has no score on RTE" in delta.reason
    assert "left out: M1 has no score on RTE" in page
    assert deltas["M3", "M2", "GLUE"].reason == "M3: no record"


def test_losses_are_compared_only_where_they_are_on_the_same_text_in_the_same_tokens(study: Study) -> None:
    study.write(["M0", "M1", "M2", "M3", "M8", "M9", "M10"])
    deltas, _ = reported(study)
    assert deltas["M1", "M0", "loss on wikibook"].comparison is not None
    reasons = {(a, b): deltas[a, b, "loss"].reason for a, b in (("M2", "M1"), ("M3", "M2"), ("M10", "M9"))}
    assert reasons["M2", "M1"] == "losses on other text: web and wikibook"
    assert reasons["M3", "M2"] == "losses on other tokens: bpe and wordpiece"
    assert reasons["M10", "M9"] == "both have the same weights"
    assert "losses in other contexts" in deltas["M9", "M8", "loss"].reason


def test_bits_per_byte_in_a_common_context_are_compared_for_every_step(study: Study) -> None:
    """Also where tokens or contexts differ, so that losses are not."""
    study.common_context, study.measured = 64, ("web", "wikibook")
    study.write(["M1", "M2", "M3", "M8", "M9", "M10"], seeds=(0, 1))
    deltas, page = reported(study)
    for variant, base in (("M2", "M1"), ("M3", "M2"), ("M9", "M8")):
        assert variant == "M2" or deltas[variant, base, "loss"].reason
        for corpus in ("web", "wikibook"):
            delta = deltas[variant, base, f"bits per byte on {corpus}, 64 tokens"]
            expected = -(study.level(variant) - study.level(base)) / 80
            assert delta.comparison is not None and delta.comparison.mean == pytest.approx(expected, abs=1e-4)
            assert len(delta.ids) == 4
    names = {(delta.variant, delta.base) for delta in deltas.values() if delta.quantity == "bits per byte"}
    assert names == {("M2", "M1"), ("M3", "M2"), ("M9", "M8")}, "M10 and M9 have the same weights"
    assert deltas["M2", "M1", "bits per byte on web, 64 tokens"].is_own
    assert not deltas["M2", "M1", "bits per byte on wikibook, 64 tokens"].is_own
    assert "bits per byte on web, 64 tokens" in page and "it is no strict comparison" in page


@pytest.mark.parametrize(("learned", "is_shown"), [(0.0, False), (0.2, True)])
def test_no_difference_to_a_variant_that_knows_frequencies_alone_is_an_effect(
    study: Study, learned: float, is_shown: bool
) -> None:
    """`learned` are the nats by which M0 beats frequencies of tokens; M1 beats them by half a nat more."""
    study.common_context = 32
    study.levels["M0"] = study.levels["M1"] - 10
    of_both_contexts = 0.125
    study.frequency_loss = 6 - study.levels["M0"] / 20 + of_both_contexts + learned
    study.write(["M0", "M1"])
    deltas, page = reported(study)
    for quantity in ("loss on wikibook", "GLUE"):
        assert (deltas["M1", "M0", quantity].comparison is not None) == is_shown
    why = "M0 has learned no more than frequencies of tokens: "
    assert (f"left out: {why}" in page) != is_shown


def test_losses_on_other_texts_are_not_compared(study: Study) -> None:
    study.write(["M1"], seeds=(0, 1))
    study.common_context = 64
    study.write(["M0"], seeds=(0, 1, 2))
    left_out = "seed 0, 1 was measured on other held-out texts of wikibook on each side"
    assert reported(study)[0]["M1", "M0", "loss on wikibook"].reason == left_out
    study.write(["M1"], seeds=(2,))
    deltas, page = reported(study)
    delta = deltas["M1", "M0", "loss on wikibook"]
    assert list(delta.differences) == [2] and f"{left_out} and is left out" in page
    assert deltas["M1", "M0", "GLUE"].comparison is not None


def test_variants_on_other_bytes_of_the_same_data_are_not_paired(study: Study) -> None:
    study.write(["M1"], seeds=(0, 1))
    Study(study.root, version="2").write(["M0"], seeds=(0, 1))
    deltas, page = reported(study)
    reason = "M1 and M0 rest on other data or numerics: corpus wikibook:1 and wikibook:2"
    assert deltas["M1", "M0", "GLUE"].reason == deltas["M1", "M0", "loss"].reason == reason
    assert f"left out: {reason}" in page


def test_scores_on_other_bytes_of_a_task_are_not_paired(study: Study) -> None:
    study.write(["M0", "M1"])
    for path in study.root.glob("glue/cola/*.json"):
        if "M1" in json.loads(path.read_text())["labels"]["variants"]:
            change_record(path, lambda record: record["inputs"].update(task="other"))
    deltas, _ = reported(study)
    assert deltas["M1", "M0", "GLUE"].reason.startswith("M1 and M0 rest on other data or numerics of CoLA: task ")
    assert deltas["M1", "M0", "loss on wikibook"].comparison is not None


def test_losses_on_every_corpus_that_both_were_measured_on_are_compared_apart(study: Study) -> None:
    study.write(["M0"], seeds=(0, 1))
    study.measured = ("web", "wikibook")
    study.write(["M1", "M2", "M3"], seeds=(0, 1))
    deltas, page = reported(study)
    for corpus in ("web", "wikibook"):
        delta = deltas["M2", "M1", f"loss on {corpus}"]
        expected = [-(study.levels["M2"] - study.levels["M1"]) / 20] * 2
        assert list(delta.differences.values()) == pytest.approx(expected, abs=1e-3)
        assert len(delta.ids) == 4 and f"loss on {corpus}" in page
    assert deltas["M3", "M2", "loss"].reason == "losses on other tokens: bpe and wordpiece"
    assert ("M1", "M0", "loss on wikibook") in deltas and ("M1", "M0", "loss on web") not in deltas


def test_fine_tuning_seeds_of_one_pre_training_are_no_further_seeds(study: Study) -> None:
    """Three fine-tuning seeds on one pre-training tell nothing about other pre-trainings: n is 1."""
    for name in ("M0", "M1"):
        study.pretrain(name)
        for of_task in study.studies(name):
            for seed in (0, 1, 2):
                study.search(name, of_task.model_copy(update={"seed": seed}))
    deltas, page = reported(study)
    delta = deltas["M1", "M0", "GLUE"]
    assert len(delta.seeds) == 3 and len(delta.differences) == 1
    assert (
        delta.comparison is not None
        and delta.comparison.interval is None
        and "are averaged and count as one seed" in page
    )


def learn(study: Study, levels: dict[str, float], seeds: int, noise: float = 0.3) -> None:
    """Runs whose held-out losses have noise of their own: 6 − level / 20 nats, `noise` in levels."""
    random = np.random.default_rng(sum(map(ord, "".join(levels))))
    study.common_context, study.measured = 64, ("web", "wikibook")
    for seed in range(seeds):
        for name, level in levels.items():
            study.levels[name] = level + float(random.normal(0, noise))
            study.pretrain(name, seed)


def test_the_family_is_the_primary_measure_of_all_steps_of_all_designs(study: Study) -> None:
    """Each step on the corpus that its variant was trained on: M1's is wikibook, M2's is web."""
    learn(study, {"M0": 52.0, "M1": 52.0, "M2": 57.0, "M4": 57.0, "M5": 57.0, "M0@dropout": 52.0}, seeds=6)
    deltas, page = reported(study)
    primary = [delta for delta in deltas.values() if delta.judged.place == 0]
    assert {(d.variant, d.corpus, d.design) for d in primary} == {
        ("M1", "wikibook", "ladder"),
        ("M2", "web", "ladder"),
        ("M4", "web", "ladder"),
        ("M5", "web", "ladder"),
        ("M0@dropout", "wikibook", "alternatives"),
    }
    together = joint_sign_flips(np.array([list(delta.differences.values()) for delta in primary]))
    for delta, p_value in zip(primary, together.tolist(), strict=True):
        claimed = delta.claimed[0]
        assert (delta.variant == "M2") == bool(claimed)
        if not claimed:  # no measure of M2 that is tested later is larger
            assert delta.judged.p_difference == pytest.approx(p_value, abs=0.1)
    assert deltas["M2", "M1", "bits per byte on wikibook, 64 tokens"].judged.place == 1
    assert not deltas["M4", "M2", "bits per byte on wikibook, 64 tokens"].judged.is_tested
    assert "6 seeds are at the look of 6" in page and "6 seeds with p ≤ 0.032" in page
    assert "one family of all steps, each in bits per byte on the variant's training corpus" in page


def test_exploratory_measures_have_numbers_and_no_verdict(study: Study) -> None:
    learn(study, {"M0": 52.0, "M1": 57.0}, seeds=6)
    deltas, page = reported(study)
    for measured in ("loss on wikibook", "loss on web"):
        delta = deltas["M1", "M0", measured]
        assert delta.comparison is not None and delta.comparison.p_t is not None and delta.comparison.p_t < 1e-4
        assert delta.verdict == "" and delta.claimed == ("", False)
    assert deltas["M1", "M0", PRIMARY].verdict == "lower (claimed at 6 seeds)"
    lines = [line for line in page.splitlines() if "| loss on" in line]
    assert len(lines) == 2 and all(line.endswith("| exploratory |") for line in lines)


def test_a_protocol_says_what_is_primary_and_what_its_margins_are(study: Study) -> None:
    learn(study, {"M0": 52.0, "M1": 57.0}, seeds=6)
    protocol = Protocol(
        looks={6: 0.04},
        margins=PROTOCOL.margins | {"loss": 9.0},
        primary=(Measure(quantity="cloze"), Measure(quantity="loss")),
        sequence=(),
    )
    findings = study.findings()
    deltas = find_deltas(study.group(), (), findings.stored, findings.evidence, findings.signals, protocol)
    told = {delta.measured: delta for delta in deltas if delta.judged.is_tested}
    assert list(told) == ["loss on wikibook"] and told["loss on wikibook"].claimed[0] == "lower"
    assert told["loss on wikibook"].verdict.endswith("equivalent within 9 (claimed at 6 seeds)")


def test_a_regime_that_fails_takes_the_verdict_and_a_reading_of_losses_follows_a_claim(study: Study) -> None:
    learn(study, {"M0": 52.0, "M1": 57.0, "M2": 52.0, "M4": 57.0}, seeds=6)
    findings = study.findings()
    regime = Regime(
        reasons={("M4", "M2"): {6: "not measurable: M4 leaves the plateau after 90% of the run"}},
        words={("M1", "M0"): ("waiting", -1.0), ("M2", "M1"): ("level", -1.0), ("M4", "M2"): ("level", -1.0)},
    )
    found = find_deltas(study.group(), (), findings.stored, findings.evidence, findings.signals, PROTOCOL, regime)
    told = {(delta.variant, delta.measured): delta for delta in found}
    assert told["M1", PRIMARY].verdict == "lower (claimed at 6 seeds); waiting"
    assert told["M1", "loss on wikibook"].verdict == "", "nothing is claimed"
    bits = told["M4", "bits per byte on web, 64 tokens"]
    assert bits.verdict == "not measurable: M4 leaves the plateau after 90% of the run"
    assert bits.claimed == ("", False) and not bits.judged.is_tested and bits.comparison is not None


def test_a_regime_that_fails_at_a_look_takes_no_claim_of_another(study: Study) -> None:
    learn(study, {"M0": 52.0, "M1": 57.0, "M2": 57.0}, seeds=8)
    findings = study.findings()
    late, wide = "not measurable: M1 leaves late", "not measurable: M2 spreads"
    regime = Regime(reasons={("M1", "M0"): {8: late}, ("M2", "M1"): {6: wide, 8: wide}})
    found = find_deltas(study.group(), (), findings.stored, findings.evidence, findings.signals, PROTOCOL, regime)
    told = {(delta.variant, delta.measured): delta for delta in found}
    claimed, exploratory = told["M1", PRIMARY], told["M1", "loss on wikibook"]
    assert claimed.verdict == f"lower (claimed at 6 seeds); at 8 seeds {late}" and not claimed.no_verdict
    assert exploratory.verdict == ""
    both = told["M2", "bits per byte on web, 64 tokens"]
    assert both.verdict == both.no_verdict == wide and not both.judged.is_tested
    learn(study, {"M4": 57.0}, seeds=8, noise=2.0)
    regime = Regime(reasons={("M4", "M2"): {8: "not measurable: M4 leaves late"}})
    found = find_deltas(study.group(), (), findings.stored, findings.evidence, findings.signals, PROTOCOL, regime)
    (alike,) = (each for each in found if (each.variant, each.measured) == ("M4", "bits per byte on web, 64 tokens"))
    assert alike.verdict == "not measurable: M4 leaves late", "nothing was claimed before"


def test_a_reading_of_level_holds_on_its_side_and_on_the_variants_corpus(study: Study) -> None:
    learn(study, {"M0": 52.0, "M1": 57.0}, seeds=6)
    findings = study.findings()
    for side, reading in ((-1.0, "; level"), (1.0, "")):
        regime = Regime(words={("M1", "M0"): ("level", side)})
        found = find_deltas(study.group(), (), findings.stored, findings.evidence, findings.signals, regime=regime)
        told = {delta.measured: delta.verdict for delta in found if delta.judged.claimed[0]}
        assert told == {
            PRIMARY: f"lower (claimed at 6 seeds){reading}",
            "bits per byte on web, 64 tokens": "lower (claimed at 6 seeds)",
        }


def test_a_part_at_own_rates_is_one_of_the_step_at_own_rates() -> None:
    wholes_of = {("M0+norm", "M0"): ("M1", "M0")}
    step, own, part, own_part = ("M1", "M0"), ("M1@rate1e-3", "M0"), ("M0+norm", "M0"), ("M0+norm@rate2e-3", "M0")
    assert places_of_wholes([step, own, part, own_part], wholes_of) == [None, None, 0, 1]
    assert places_of_wholes([step, part, own_part], wholes_of) == [None, 0, 0], "the best rate of M1 is the shared one"
    moved = ("M0+norm@rate2e-3", "M0@rate4e-3")
    assert places_of_wholes([("M1", "M0@rate4e-3"), step, moved], wholes_of) == [None, None, 0]
    assert places_of_wholes([step, moved], wholes_of) == [None, 0]
    assert places_of_wholes([part, own_part], wholes_of) == [None, None], "their step gets no verdict"


def test_parts_of_a_step_without_a_verdict_change_no_verdict(study: Study) -> None:
    """M0+positions differs by little and from seed to seed by less, so that it would lower the pooled variance."""
    learn(study, {"M0": 52.0, "M1": 57.0, "M2": 56.0, "M4": 56.5}, seeds=6, noise=0.5)
    regime = Regime(reasons={("M1", "M0"): {6: "not measurable: M1 leaves late"}})

    def judged() -> dict[tuple[str, str], str]:
        findings = study.findings()
        sources = study.group(), (), findings.stored, findings.evidence, findings.signals
        found = find_deltas(*sources, PROTOCOL, regime)
        return {(each.variant, each.measured): each.judged.words for each in found if each.judged.is_tested}

    before = judged()
    study.levels["M0"] = study.levels["M0+positions"] = 52.0
    for seed in range(6):
        study.pretrain("M0+positions", seed)
    assert before and judged() == before and not any(variant == "M0+positions" for variant, _ in before)


def test_a_part_without_pilot_seeds_is_scaled_as_the_steps_are(study: Study) -> None:
    levels = {"M0": 52.0, "M1": 57.0, "M0+positions": 54.0, "M2": 57.0}
    learn(study, levels, seeds=6)
    random = np.random.default_rng(4)
    for seed in range(1000, 1004):
        for name in ("M0", "M1", "M2"):
            study.levels[name] = levels[name] + float(random.normal(0, 0.3))
            study.pretrain(name, seed)
    deltas, _ = reported(study)
    steps = [deltas["M1", "M0", PRIMARY], deltas["M2", "M1", "bits per byte on web, 64 tokens"]]
    part = deltas["M0+positions", "M0", PRIMARY]
    scales = [step.scale for step in steps]
    assert part.pilots == {"M0+positions": 0, "M0": 4} and None not in scales
    assert part.scale == pytest.approx(statistics.geometric_mean(filter(None, scales)))
    assert part.judged.is_tested and part.claimed[0] == "lower"


@pytest.mark.parametrize(
    ("looks", "declared", "counted", "verdict"),
    [
        (PROTOCOL.looks, range(1, 9), 5, "too few seeds"),
        ({5: 0.07}, range(1, 9), 5, "lower (claimed at 5 seeds)"),
        ({5: 0.07}, (8, 9), 0, "too few seeds"),
        (PROTOCOL.looks, None, 6, "lower (claimed at 6 seeds)"),
    ],
)
def test_looks_count_the_declared_seeds_alone(
    study: Study, looks: dict[int, float], declared: Collection[int] | None, counted: int, verdict: str
) -> None:
    """Six seeds from 0 are trained, and all are in the mean."""
    learn(study, {"M0": 52.0, "M1": 57.0}, seeds=6)
    protocol = PROTOCOL.model_copy(update={"looks": looks})
    findings = study.findings()
    sources = study.group(), (), findings.stored, findings.evidence, findings.signals
    deltas = find_deltas(*sources, protocol, declared=declared)
    (told,) = [delta for delta in deltas if delta.measured == PRIMARY]
    assert len(told.counted) == counted and told.verdict.startswith(verdict)
    assert told.comparison is not None and told.comparison.seeds == 6
    page = deltas_table(deltas, findings.group, "", protocol).markdown
    assert ("seeds are at the look of" in page) == ("claimed" in verdict)


def test_steps_without_a_primary_measure_are_in_no_family(study: Study) -> None:
    study.write(["M0", "M1"], seeds=range(6))
    deltas, _ = reported(study)
    assert not any(delta.judged.is_tested for delta in deltas.values())


def test_pilot_seeds_are_counted_where_they_are_measured(study: Study) -> None:
    """Two pilot seeds have losses of both arms. That they have no cloze items does not make them none."""
    study.common_context, study.measured = 64, ("web", "wikibook")
    for seed in (*range(6), 1000, 1001):
        for name in ("M0", "M1"):
            study.levels[name] = (52.0 if name == "M0" else 57.0) + 0.1 * (seed % 3)
            study.pretrain(name, seed)
            if seed < 6:
                ask(study, name, seed, "cloze", answer(np.arange(40) % 4 < (1 if name == "M0" else 2)))
    protocol = PROTOCOL.model_copy(update={"sequence": (Measure(quantity="cloze", corpus="other"),)})
    findings = study.findings()
    deltas = find_deltas(findings.group, (), findings.stored, findings.evidence, findings.signals, protocol)
    assert {delta.quantity for delta in deltas if delta.judged.is_tested} == {"bits per byte", "cloze"}
    page = deltas_table(deltas, findings.group, "", protocol).markdown
    assert "needs 4 pilot seeds of every arm; these have fewer: M1 2, M0 2." in page
    assert "Only held-out losses are measured on pilot seeds; other measures are always pooled." in page


def test_the_notes_on_looks_are_those_of_the_protocol(study: Study) -> None:
    """M1 has five seeds, of which four count, and M2 three."""
    study.common_context, study.measured = 64, ("web", "wikibook")
    for name, seeds in (("M0", 5), ("M1", 5), ("M2", 3)):
        for seed in range(seeds):
            study.levels[name] = LEVELS[name] + 0.1 * (seed % 3)
            study.pretrain(name, seed)
    protocol = PROTOCOL.model_copy(update={"looks": {4: 0.13}})
    findings = study.findings()
    deltas = find_deltas(findings.group, (), findings.stored, findings.evidence, findings.signals, protocol)
    assert {d.verdict.partition(";")[0] for d in deltas if d.variant == "M1" and d.judged.is_tested} == {
        "lower (claimed at 4 seeds)"
    }
    page = deltas_table(deltas, findings.group, "", protocol).markdown
    assert "5 seeds are at the look of 4." in page and "Below 4 seeds no difference" in page
    assert "Below 6 seeds" not in page


def test_a_ladder_without_glue_has_no_differences_in_glue(study: Study) -> None:
    """What is not compared has the reason that there is, not that of tasks which nobody declared."""
    task = Task(name="stars", kind="regression", columns=("text",), metrics=("r2",))
    with ladders.using(replace(ladders.current(), tasks={"stars": task})):
        for seed in range(2):
            study.pretrain("M0", seed)
            study.pretrain("M1", seed)
        findings = study.findings()
        assert {delta.quantity for delta in findings.deltas} == {"loss"}
        page = findings.tables["answer"].markdown if "answer" in findings.tables else ""
        assert "MNLI" not in page + findings.delta_table.markdown
        assert "M2 against M1" not in page and "M2: no record" in findings.delta_table.markdown


def test_deviations_of_pilot_seeds_divide_the_differences(study: Study) -> None:
    """M4 and M5 spread twenty times as much as the others; four pilot seeds of every arm tell."""
    levels = {"M0": 52.0, "M1": 52.5, "M2": 57.0, "M4": 57.2, "M5": 57.3, "M6": 57.1}
    random = np.random.default_rng(7)
    study.common_context, study.measured = 64, ("web", "wikibook")

    def train(seeds: range) -> None:
        for seed in seeds:
            for name, level in levels.items():
                spread = 4.0 if name in ("M4", "M5", "M6") else 0.1
                study.levels[name] = level + float(random.normal(0, spread))
                study.pretrain(name, seed)

    train(range(6))
    train(range(1000, 1003))
    deltas, page = reported(study)
    few = deltas["M1", "M0", PRIMARY]
    assert few.scale is None and few.pilots == {"M1": 3, "M0": 3} and few.verdict == "within noise"
    assert "Dividing by deviations needs 4 pilot seeds of every arm; these have fewer: M1 3, M0 3, M2 3" in page
    assert "Only held-out losses are measured on pilot seeds" not in page
    train(range(1003, 1004))
    deltas, page = reported(study)
    enough = deltas["M1", "M0", PRIMARY]
    assert enough.comparison is not None and few.comparison is not None
    assert enough.scale is not None and enough.comparison.differences == few.comparison.differences
    assert enough.verdict == "lower (claimed at 6 seeds)"
    place = "M5", "M4", "bits per byte on web, 64 tokens"
    assert deltas[place].verdict.startswith("not measurable: M4: its seeds have"), "but for its regime"
    findings = study.findings()
    unchecked = find_deltas(study.group(), (), findings.stored, findings.evidence, findings.signals)
    (noisy,) = [delta for delta in unchecked if (delta.variant, delta.base, delta.measured) == place]
    assert noisy.scale is not None and noisy.scale > 10 * enough.scale and noisy.verdict == "within noise"
    assert enough.judged.detectable is not None and few.judged.detectable is not None
    assert enough.judged.detectable < few.judged.detectable / 3
    assert "Differences are divided by their deviation known from pilot seeds in: bits per byte on" in page
    facts = {(line["variant"], line["measured"]): line for line in facts_of(study.findings().delta_table)}
    line = facts["M1", f"held-out {PRIMARY}"]
    assert (line["test"], line["pilot_seeds"]) == ("joint flips, pilot deviations", "M1:4 M0:4")
    assert line["p_family"] == "6:0.031250" and float(line["pilot_sd"]) == pytest.approx(enough.scale, abs=1e-6)


def test_an_arm_whose_pilot_seeds_spread_otherwise_has_no_verdict(study: Study) -> None:
    """One of four pilot seeds of M1 is of another kind, as none of its six others is: M2's parent too."""
    levels = {"M0": 52.0, "M1": 54.0, "M2": 57.0, "M4": 60.0}
    learn(study, levels, seeds=6, noise=0.1)
    random = np.random.default_rng(4)
    for seed in range(1000, 1004):
        for name, level in levels.items():
            study.levels[name] = level + float(random.normal(0, 0.1)) - 20 * (name == "M1" and seed == 1002)
            study.pretrain(name, seed)
    deltas, page = reported(study)
    for variant, base in (("M1", "M0"), ("M2", "M1")):
        own = [
            delta for delta in deltas.values() if (delta.variant, delta.base) == (variant, base) and delta.comparison
        ]
        assert own and not any(delta.judged.is_tested for delta in own)
        assert {delta.verdict.partition(" (")[0] for delta in own} == {
            "not measurable: the pilot seeds of M1 spread otherwise than its other seeds"
        }
    assert deltas["M4", "M2", "bits per byte on web, 64 tokens"].claimed[0] == "lower"
    assert "the pilot seeds of M1 spread otherwise than its other seeds (sd 0.12" in page


def test_the_correlation_of_paired_seeds_is_told_and_what_it_is_worth(study: Study) -> None:
    learn(study, {"M0": 52.0, "M1": 54.0}, seeds=6)
    deltas, page = reported(study)
    delta = deltas["M1", "M0", PRIMARY]
    ours, theirs = (list(arm.values()) for arm in delta.arms.values())
    assert delta.correlation == pytest.approx(np.corrcoef(ours, theirs)[0, 1])
    assert f"| {signed(delta.correlation, 2)} |" in page
    buys = delta.correlation > 0.1
    assert ("Pairing buys nothing here" not in page) == buys
    shared = Study(study.root / "shared")
    shared.common_context = 64
    shared.write(["M0", "M1"], seeds=range(4))
    deltas, page = reported(shared)
    assert deltas["M1", "M0", PRIMARY].correlation == pytest.approx(1.0) and "Pairing buys nothing" not in page


def test_numbers_by_document_give_intervals_over_texts(study: Study) -> None:
    """Both sides share the difficulty of the texts: only what they do not share is noise of the difference."""
    learn(study, {"M0": 52.0, "M1": 52.6}, seeds=6, noise=0.05)
    deltas, page = reported(study)
    without = deltas["M1", "M0", PRIMARY]
    assert without.both is None and without.claimed[0] == "lower"
    assert "No interval over texts: the records have no numbers per document." in page
    random = np.random.default_rng(3)
    hard, own = random.normal(0, 1.0, 9), random.normal(0, 0.002, 9)
    for seed in range(6):
        add_units(study, "M0", seed, hard)
        add_units(study, "M1", seed, hard + own)
    deltas, page = reported(study)
    with_texts, in_nats = deltas["M1", "M0", PRIMARY], deltas["M1", "M0", "loss on wikibook"]
    assert with_texts.examples is not None and with_texts.both is not None and "No interval over texts" not in page
    half = (with_texts.examples[1] - with_texts.examples[0]) / 2
    assert half == pytest.approx(1.959964 * (own / 4).std(ddof=1) / 3, rel=0.01), "nats / 4 are made-up bits per byte"
    assert in_nats.noise is not None and with_texts.noise is not None
    assert in_nats.noise.variance == pytest.approx(16 * with_texts.noise.variance, rel=0.01)
    assert with_texts.claimed[0] == "lower"
    for seed in range(6):
        add_units(study, "M1", seed, hard + 50 * own)
    far = reported(study)[0]["M1", "M0", PRIMARY]
    assert far.comparison == with_texts.comparison and far.verdict == "within noise"
    assert far.both is not None and far.both[0] < 0 < far.both[1]


def test_a_collapsed_seed_is_named_with_its_values_and_carries_no_claim(study: Study) -> None:
    study.common_context = 64
    study.write(["M0", "M1", "M2", "M4"], seeds=tuple(range(6)))
    before = reported(study)[0]["M1", "M0", PRIMARY]
    assert before.claimed[0] == "lower"
    (run,) = study.runs("M1", 3)
    path = Layout(study.root).pretraining(run.id) / "done.json"

    def collapse(record: dict[str, Any]) -> None:
        for score in record["scores"]["heldout"]:
            score["bits_per_byte"] = 0.5  # better than the others: all six seeds have the same sign

    change_record(path, collapse)
    deltas, page = reported(study)
    delta = deltas["M1", "M0", PRIMARY]
    assert all(value < 0 for value in delta.differences.values())
    assert delta.verdict == "within noise; collapsed: seed 3 of M1" and delta.judged.p_difference == 1 / 16
    assert f"Collapsed in {PRIMARY}: seed 3 of M1, far from the arm's other seeds (0: " in page
    assert "3: 0.5000" in page and not deltas["M1", "M0", "GLUE"].collapsed


def test_stored_predictions_give_an_interval_over_examples_around_the_difference(study: Study) -> None:
    with_predictions(study, ["M0", "M1"], ("cola", "stsb", "mrpc"))
    deltas, page = reported(study)
    delta = deltas["M1", "M0", "GLUE"]
    assert delta.comparison is not None and delta.examples is not None, delta.no_examples
    low, high = delta.examples
    assert low < delta.comparison.mean < high and 2 < high - low < 40
    findings = study.findings()
    rows = findings.group.last_rows
    draws = resampled_differences(rows["M1"], rows["M0"], findings.bars.tasks, findings.stored, delta.seeds)
    assert np.mean(draws < low) == pytest.approx(0.025, abs=0.001) == pytest.approx(np.mean(draws > high), abs=0.001)
    assert delta.noise is not None and delta.noise.variance == pytest.approx(draws.var(ddof=1))
    again, _ = reported(study)
    assert again["M1", "M0", "GLUE"].examples == delta.examples
    assert "No interval over examples" not in page


def test_a_further_run_without_glue_takes_no_interval_over_examples(study: Study) -> None:
    """Not even one whose id is the first."""
    with_predictions(study, ["M0", "M1"], ("cola",))
    before = reported(study)[0]["M1", "M0", "GLUE"]
    first = min(study.runs("M1", seed)[0].id for seed in range(3))
    study.pretrain("M1", next(seed for seed in range(3, 999) if study.runs("M1", seed)[0].id < first))
    after = reported(study)[0]["M1", "M0", "GLUE"]
    assert before.examples is not None and after.examples == before.examples


def test_another_grid_on_the_same_weights_has_a_difference_and_no_verdict(study: Study) -> None:
    """M10's points hold M9's: the best of more is never worse, whatever is true."""
    study.write(["M8", "M9", "M10"], seeds=range(6))
    findings = study.findings()
    protocol = PROTOCOL.model_copy(update={"primary": (Measure(quantity="GLUE"),)})
    tasks = findings.bars.tasks
    deltas = find_deltas(study.group(), tasks, findings.stored, findings.evidence, findings.signals, protocol)
    told = {(delta.variant, delta.base): delta for delta in deltas if delta.quantity == "GLUE" and delta.differences}
    delta, other = told["M10", "M9"], told["M9", "M8"]
    assert delta.comparison is not None and delta.verdict.startswith("not measurable: the grids differ")
    assert not delta.judged.is_tested and delta.claimed == ("", False)
    alone = joint_sign_flips(np.array([list(other.differences.values())]))
    assert [other.judged.p_difference] == alone.tolist(), "a family by itself"


@pytest.mark.parametrize("damage", ["gone", "torn", "other", "labels"])
def test_predictions_that_cannot_be_read_are_named_and_the_rest_goes_on(study: Study, damage: str) -> None:
    with_predictions(study, ["M0", "M1"], ("cola",))
    for path in sorted(study.root.glob("glue/cola/*.npz")):
        if damage == "gone":
            path.unlink()
        elif damage == "torn":
            path.write_bytes(path.read_bytes()[:50])
        elif damage == "other":
            change_record(path.with_suffix(".json"), lambda record: record.update(sha256={"predictions": "0" * 64}))
    if damage == "labels":
        for path in study.root.glob("data/glue/*.safetensors"):
            path.unlink()
    deltas, page = reported(study)
    delta = deltas["M1", "M0", "GLUE"]
    assert delta.comparison is not None and delta.examples is None
    words = {"gone": "predictions are not kept", "torn": "cannot be read", "labels": "labels of the examples"}
    words["other"] = "does not match the checksum in its record"
    assert f"No interval over examples: {delta.no_examples}" in page and words[damage] in delta.no_examples


def test_variants_of_designs_are_compared_with_what_they_are_one_factor_from(study: Study) -> None:
    study.write(["M0", "M9"])
    for name in ("M9-norm", "M0+masking"):
        study.levels[name] = 54.0
        study.write([name])
    deltas, page = reported(study)
    assert deltas["M9", "M9-norm", "GLUE"].design == "leave-one-out"
    assert deltas["M0+masking", "M0", "GLUE"].design == "add-one"
    assert "every delta is what M9 owes to one modification" in page and "Add-one:" in page
    group = study.group()
    assert set(group.design_rows) == {"M9-norm", "M0+masking"} and group.problems == ()
    assert [bar.row.name for bar in find_bars(group).bars] == list(ladder())
