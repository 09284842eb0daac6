"""Faults put into a copy of the reports, one at a time: the test that is named for it must notice each of them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.mutants import Mutant, require_noticed, require_passed
from tests.support.tree_copy import fresh_clone

INFERENCE, VERDICTS, DELTAS, PAIRING, PILOTS, READOUTS, RESAMPLING, GAIN = (
    f"reports/analysis/{name}.py"
    for name in ("inference", "verdicts", "deltas", "pairing", "pilots", "readouts", "resampling", "compute_gain")
)
SCORES, RATES = "reports/scores.py", "reports/rates.py"
OUTCOMES, EXTRAPOLATION, COMPARATORS = (
    f"reports/forecasts/{name}.py" for name in ("outcomes", "extrapolation", "comparators")
)
HALF = "half = stdtrit(len(values) - 1, 1 - ALPHA / 2) * values.std(ddof=1) / math.sqrt(len(values))"
P_OF_T = "return 2 * _share_above(np.abs(differences.mean(axis=-1)), differences)"
TOST = "return _share_above(margin - np.abs(differences.mean(axis=-1)), differences)"
HOLM = 'return np.take_along_axis(adjusted, np.argsort(order, axis=-1, kind="stable"), axis=-1)'
STEPS = "steps = np.take_along_axis(p_values, order, axis=-1) * np.arange(p_values.shape[-1], 0, -1)"
FDR = """from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p_values, axis=-1))"""

FLIPS = "return p_values.reshape(*batch, steps, measures)"
SCALE = "np.sqrt((values**2).sum(axis=-1) + counts * pooled)[..., None]"
NEXT = "places[left, chosen[left]] += 1"
BOTH = "return (mean - half, mean + half), float(2 * stdtr(degrees, -abs(mean) / error))"
DIRECTION = "direction if is_apart else"
WITHIN = "interval is None or max(map(abs, interval)) <= measure.margin"
KEPT = "{at: max(p, without.get(at, 1.0)) for at, p in self._p_values.items()}"
OPEN = "return any(look.direction for look in found[step][place - 1])"
FIRST = "next((look for look in self.looks if look.direction), None)"
SUBTRACT = "ours.by_seeds[seeds] - theirs.by_seeds[seeds]"
OWN_BASE = "group.row_at_best_rate(row.name), group.row_at_best_rate(row.parent)"
SPREAD = "between_arms=statistics.stdev(map(statistics.fmean, by_seed.values()))"
TRIALS = "np.array([1 / (len(counts) * counts[each.pretraining]) for each in seeds])"

IN_INFERENCE = {
    "analysis/test_readouts.py::test_without_noise_of_examples_it_is_the_t_interval": {
        "the interval divides by n": (HALF, HALF.replace("ddof=1", "ddof=0")),
        "the interval is that of a normal distribution": (
            HALF,
            HALF.replace("stdtrit(len(values) - 1, 1 - ALPHA / 2)", "1.96"),
        ),
        "the interval is 5 % too narrow": (HALF, f"{HALF} * 0.95"),
        "the interval is 8 % too wide": (HALF, f"{HALF} * 1.08"),
        "the interval is one of 94 %": (HALF, HALF.replace("ALPHA / 2", "0.03")),
        "the interval has n degrees of freedom": (HALF, HALF.replace("len(values) - 1", "len(values)")),
        "the t test is one-sided": (P_OF_T, f"{P_OF_T} / 2"),
        "the p of the t test is 10 % too large": (P_OF_T, f"{P_OF_T} * 1.1"),
        "the variance over examples is divided again": (
            "total = of_seeds + variance",
            "total = of_seeds + variance / seeds",
        ),
        "p over both is one-sided": (BOTH, BOTH.replace("float(2 * ", "float(1 * ")),
    },
    "analysis/test_inference.py::test_tests_that_there_are_not_do_not_count_in_the_family": {
        "Holm is Bonferroni": (STEPS, STEPS.replace("np.arange(p_values.shape[-1], 0, -1)", "p_values.shape[-1]")),
        "Holm is 20 times too strict": (STEPS, f"{STEPS} * 20"),
        "Holm never claims": (HOLM, "return np.ones_like(p_values)"),
        "Holm corrects for a test too few": (HOLM, f"{HOLM} * 0.9"),
    },
    "analysis/test_family_oracle.py::test_effects_are_found_more_often_than_by_t_tests_with_holm": {
        "Holm is a false discovery rate": (HOLM, FDR),
    },
    "analysis/test_verdicts.py::test_equivalences_are_corrected_over_all_measures_of_all_steps": {
        "the p of equivalence is doubled": (TOST, TOST.replace("return ", "return 2 * ")),
        "equivalence has the level of differences": ("EQUIVALENCE_LEVEL = 0.005", "EQUIVALENCE_LEVEL = 0.032"),
    },
    "analysis/test_verdicts.py::test_between_looks_the_first_seeds_of_the_last_one_are_tested": {
        "equivalence takes the smaller p": (TOST, TOST.replace("margin - ", "margin + ")),
    },
    "analysis/test_verdicts.py::test_an_equivalence_needs_both_ends_of_the_interval_over_texts_within_the_margin": {
        "equivalence is never found": (TOST, "return np.ones(differences.shape[:-1])"),
    },
    "analysis/test_inference.py::test_measures_in_sequence_are_passed_one_by_one": {
        "the sign flips are one-sided": (FLIPS, FLIPS.replace("return p_values", "return (p_values / 2)")),
        "the sign flips never reject": (FLIPS, FLIPS.replace("return p_values", "return np.ones_like(p_values)")),
        "a measure that is passed leaves its step": (NEXT, "places[left, chosen[left]] = measures"),
    },
    "analysis/test_verdicts.py::test_claims_are_corrected_over_the_family": {
        "the sign flips correct for nothing": ("(family.max(axis=1) >=", "(family[studies, chosen] >="),
        "the sign flips pool hardly anything": (SCALE, SCALE.replace("counts *", "0.01 * counts *")),
    },
    "analysis/test_inference.py::test_joint_sign_flips_are_counted_one_by_one": {
        "the upper quartile is pooled": ("POOLED_QUANTILE = 0.25", "POOLED_QUANTILE = 0.75"),
        "p falls along the sequence": ("highest = np.maximum(highest, shares)", "highest = shares"),
    },
    "analysis/test_inference.py::test_variances_are_shrunk_as_far_as_they_are_noise": {
        "variances are not shrunk": ("weight = np.minimum(1, noise", "weight = np.minimum(0, noise"),
        "three arms are shrunk": ("max(0, logarithms.shape[-1] - 3)", "logarithms.shape[-1]"),
    },
    "analysis/test_inference.py::test_the_detectable_effect_is_claimed_in_four_of_five_studies": {
        "the detectable effect is that of one in two studies": ("POWER = 0.8", "POWER = 0.5"),
        "the detectable effect ignores the family": ("(np.maximum(own, others) >=", "(own >="),
    },
    "analysis/test_inference.py::test_collapsed_seeds_are_those_far_from_their_own_arm": {
        "a seed collapsed that is two deviations away": ("COLLAPSE_IN_DEVIATIONS = 6", "COLLAPSE_IN_DEVIATIONS = 2"),
    },
}
IN_VERDICTS = {
    "analysis/test_verdicts.py::test_claims_are_corrected_over_the_family": {
        "nothing is corrected over the family": (
            "p_values = stepwise_p_values(statistics, self._wholes)",
            "p_values = stepwise_p_values(statistics.reshape(-1, 1, 1, statistics.shape[-1])).reshape(shape)",
        ),
    },
    "analysis/test_verdicts.py::test_a_part_is_tested_once_its_step_is_claimed": {
        "parts are tested like steps": ("return whole is None or any(", "return True or any("),
    },
    "analysis/test_verdicts.py::test_parts_do_not_change_the_pooled_variance_of_steps": {
        "parts pool their variance with steps": ("steps or places", "places"),
    },
    "analysis/test_verdicts.py::test_with_collapsed_seeds_the_larger_p_counts_of_all_seeds_and_of_the_rest": {
        "collapsed seeds are not left out": (KEPT, "self._p_values"),
        "collapsed seeds are always left out": (KEPT, "{at: without.get(at, 1.0) for at in self._p_values}"),
    },
    "analysis/test_verdicts.py::test_a_difference_needs_the_interval_over_texts_at_the_same_look": {
        "a claim needs no interval over texts": (
            "p_difference <= self.level and p_both <= ALPHA",
            "p_difference <= self.level",
        ),
    },
    "analysis/test_verdicts.py::test_an_equivalence_needs_both_ends_of_the_interval_over_texts_within_the_margin": {
        "equivalence needs no interval over texts": (WITHIN, "True"),
        "equivalence needs the nearer end alone": (WITHIN, WITHIN.replace("max(", "min(")),
    },
    "analysis/test_verdicts.py::test_nothing_is_equivalent_in_a_readout_that_tells_no_arms_apart": {
        "equivalence is claimed in any readout": ("is_equivalent and measure.tells_apart", "is_equivalent"),
    },
    "analysis/test_verdicts.py::test_equivalences_are_corrected_over_all_measures_of_all_steps": {
        "equivalences are not corrected": (
            "zip(whole, adjust(tost), strict=True)",
            "zip(whole, tost, strict=True)",
        ),
    },
    "analysis/test_verdicts.py::test_between_looks_the_first_seeds_of_the_last_one_are_tested": {
        "the verdict never claims": (DIRECTION, '"" if is_apart else'),
        "the verdict has the wrong sign": ('direction = "higher" if sum', 'direction = "lower" if not sum'),
        "seeds beyond the look count": (
            "islice(sorted(self.differences.items()), seeds)",
            "islice(sorted(self.differences.items()), 99)",
        ),
        "seeds count in the order of records": (
            "islice(sorted(self.differences.items()), seeds)",
            "islice(self.differences.items(), seeds)",
        ),
        "fewer seeds than the look are enough": (
            "len(self.differences) < seeds or",
            "len(self.differences) < 3 or",
        ),
    },
    "analysis/test_verdicts.py::test_an_equivalence_opens_no_further_measure": {
        "every measure is tested": (OPEN, "return True"),
        "an equivalence opens the next measure": (
            OPEN,
            OPEN.replace("look.direction for", "look.direction or look.is_equivalent for"),
        ),
    },
    "analysis/test_verdicts.py::test_a_claim_stays": {
        "the last look counts": (FIRST, "self.looks[-1] if self.looks and self.looks[-1].direction else None"),
    },
    "analysis/test_verdicts.py::test_dividing_by_known_deviations_finds_a_precise_step_beside_noisy_ones": {
        "nothing is divided by known deviations": ("self._measures[at].scale or 1.0] for", "1.0] for"),
    },
}
IN_DELTAS = {
    "analysis/test_steps.py::test_a_part_is_tested_once_its_step_is_claimed": {
        "parts are steps": ("return [whole_of(*pair) for pair in pairs]", "return [None for _ in pairs]"),
    },
    "test_rates.py::test_verdicts_that_differ_at_own_rates_are_named": {
        "own rates against the parent at the shared rate": (
            OWN_BASE,
            "group.row_at_best_rate(row.name), rows[row.parent]",
        ),
    },
    "analysis/test_deltas.py::test_stored_predictions_give_an_interval_over_examples_around_the_difference": {
        "the interval of GLUE is one of 90 %": (
            "np.nanpercentile(draws, (2.5, 97.5))",
            "np.nanpercentile(draws, (5, 95))",
        ),
    },
    "analysis/test_readouts.py::test_a_delta_of_a_readout_has_the_noise_of_seeds_and_items": {
        "the interval over items is one of 90 %": ("NORMAL_QUANTILE = 1.959964", "NORMAL_QUANTILE = 1.644854"),
    },
    "analysis/test_readouts.py::test_seeds_beyond_the_look_change_no_interval_over_both": {
        "the noise of all seeds counts at a look": (
            "by_seed[seed] for seed in seeds]",
            "by_seed[seed] for seed in by_seed]",
        ),
    },
    "analysis/test_deltas.py::test_a_collapsed_seed_is_named_with_its_values_and_carries_no_claim": {
        "collapsed seeds are not handed on": (
            "collapsed=delta.collapsed_at,",
            "",
        ),
    },
    "analysis/test_deltas.py::test_the_family_is_the_primary_measure_of_all_steps_of_all_designs": {
        "each design is a family": (
            "chain.from_iterable(judge(tested, protocol.looks, wholes))",
            "chain.from_iterable(judge([own], protocol.looks)[0] for own in tested)",
        ),
    },
    "analysis/test_deltas.py::test_a_regime_that_fails_takes_the_verdict_and_a_reading_of_losses_follows_a_claim": {
        "steps without a verdict are in the family": (
            "delta.comparison is not None and not delta.no_verdict:",
            "delta.comparison is not None:",
        ),
    },
    "analysis/test_deltas.py::test_an_arm_whose_pilot_seeds_spread_otherwise_has_no_verdict": {
        "pilot seeds of another kind are not noticed": (
            "why_unlike_pilots(primary, rows, evidence, seeds) for look",
            "'' for look",
        ),
    },
    "analysis/test_deltas.py::test_a_protocol_says_what_is_primary_and_what_its_margins_are": {
        "margins are not those of the protocol": (
            "protocol.margin_of(delta.quantity)",
            "PROTOCOL.margin_of(delta.quantity)",
        ),
    },
    "analysis/test_readouts.py::test_what_rests_on_the_items_at_hand_is_not_claimed": {
        "the intervals over texts are not handed on": (
            "both={seeds: (own, p) for seeds, (own, p) in both.items() if own is not None and p is not None},",
            "",
        ),
    },
}
IN_PAIRING = {
    "analysis/test_deltas.py::test_the_family_is_the_primary_measure_of_all_steps_of_all_designs": {
        "any corpus is primary": ('delta.is_own == (measure.corpus == "own")', "True"),
    },
    "analysis/test_deltas.py::test_exploratory_measures_have_numbers_and_no_verdict": {
        "variant and parent are exchanged": (SUBTRACT, "theirs.by_seeds[seeds] - ours.by_seeds[seeds]"),
    },
    "analysis/test_deltas.py::test_losses_on_every_corpus_that_both_were_measured_on_are_compared_apart": {
        "seeds are not paired": (SUBTRACT, "ours.by_seeds[seeds] - theirs.mean"),
        "losses on other tokens are compared": ("    if first.tokens != second.tokens:\n", "    if False:\n"),
    },
    "analysis/test_deltas.py::test_losses_on_other_texts_are_not_compared": {
        "losses on other texts are paired": ("if texts[seed] > 1]", "if texts[seed] > 9]"),
    },
    "analysis/test_deltas.py::test_no_difference_to_a_variant_that_knows_frequencies_alone_is_an_effect": {
        "untrained models are compared": ('"; ".join(filter(None, (variant.untrained, base.untrained)))', '""'),
    },
    "analysis/test_readouts.py::test_answers_to_other_items_are_not_compared": {
        "answers to other items are compared": ("{(each.items, each.seed): each for", '{("", each.seed): each for'),
    },
    "analysis/test_readouts.py::test_equivalence_needs_the_noise_of_items_too": {
        "items are not counted in points": ("factor = QUANTITIES[empty.quantity].factor", "factor = 1"),
        "every corpus is the variant's own": (
            'is_own=delta.corpus in ("", variant.recipe.pretraining.data.corpus)',
            "is_own=True",
        ),
    },
    "analysis/test_deltas.py::test_numbers_by_document_give_intervals_over_texts": {
        "bits have the noise of nats": (
            "own.bits_per_byte / own.loss if delta.quantity == BITS",
            "own.loss / own.loss if delta.quantity == BITS",
        ),
    },
}
IN_PILOTS = {
    "analysis/test_deltas.py::test_deviations_of_pilot_seeds_divide_the_differences": {
        "three pilot seeds are enough": ("LEAST_PILOTS = 4", "LEAST_PILOTS = 3"),
        "one arm's deviation is that of the difference": (
            "math.sqrt(sum(known[arm] for arm in own))",
            "math.sqrt(known[own[0]])",
        ),
    },
    "analysis/test_deltas.py::test_an_arm_whose_pilot_seeds_spread_otherwise_has_no_verdict": {
        "pilot seeds of one kind are all that is seen": ("if are_unlike(", "if not are_unlike("),
        "pilot seeds of any recipe count": ("(pilots.recipe == recipe) & ", ""),
    },
}
IN_READOUTS = {
    "analysis/test_readouts.py::test_signal_to_noise_is_the_spread_between_arms_over_that_between_seeds": {
        "arms of all corpora count": (
            "rows = largest(trained, lambda row: row.recipe.pretraining.data.corpus)",
            "rows = trained",
        ),
        "the spread between arms divides by n": (SPREAD, SPREAD.replace("stdev", "pstdev")),
        "the noise is that of the noisiest arm": ("return statistics.median(", "return max("),
        "answers to all items are mixed": (' & (answers["items"] == usual)', ""),
    },
    "analysis/test_readouts.py::test_answers_to_other_items_are_not_compared": {
        "one seed tells the noise of an arm": ("LEAST_SEEDS = 2", "LEAST_SEEDS = 1"),
    },
    "analysis/test_readouts.py::test_a_readout_that_is_the_same_for_all_arms_is_the_last": {
        "the worst readout is the first": ("key=_sorting_ratio, reverse=True", "key=_sorting_ratio"),
    },
    "analysis/test_readouts.py::test_a_readout_tells_arms_apart_that_are_half_as_noisy_as_arms_differ": {
        "a readout tells arms apart at any ratio": ("LEAST_RATIO = 2.0", "LEAST_RATIO = 0.0"),
        "any readout tells for any other": ("if (each.readout, each.corpus) == (readout, corpus)", "if each.readout"),
    },
    "analysis/test_readouts.py::test_paired_noise_is_that_of_a_bootstrap_over_units": {
        "the noise of units is not paired": (
            "influence(ours) - influence(theirs) for",
            "influence(ours) + influence(theirs) for",
        ),
        "units of a ratio have no denominators": (
            "(above - above.sum() / below.sum() * below)",
            "(above - above.mean())",
        ),
    },
}
IN_OTHERS: Mapping[str, Mapping[str, Mapping[str, tuple[str, str]]]] = {
    SCORES: {
        "test_scores.py::test_a_seed_of_pretraining_counts_with_the_mean_of_its_fine_tuning_seeds": {
            "the first fine-tuning seed stands for all": (
                "return {seed: statistics.fmean(values) for seed, values in own.items()}",
                "return {seed: values[0] for seed, values in own.items()}",
            ),
        },
        "test_scores.py::test_a_row_is_trained_from_a_tenth_of_a_nat_below_the_frequencies_of_its_own_corpus": {
            "a hundredth of a nat is trained": ("LEAST_GAIN = 0.1\n", "LEAST_GAIN = 0.01\n"),
            "frequencies of other corpora count": ("self.heldout.corpus.isin(corpora) & ", ""),
        },
        "test_rates.py::test_of_two_rates_that_count_as_the_optimum_the_nearer_one_is_taken": {
            "the farthest rate counts as the best": ("own[min(near, key=lambda rate", "own[max(near, key=lambda rate"),
        },
    },
    RATES: {
        "test_rates.py::test_a_sweep_goes_by_the_loss_on_the_variants_own_corpus": {
            "a sweep is judged on wikibook": (
                "measured.get((run, recipe.data.corpus))",
                'measured.get((run, "wikibook"))',
            ),
        },
    },
    RESAMPLING: {
        "analysis/test_resampling.py::test_resampled_differences_are_means_over_tasks_in_points": {
            "draws of GLUE are summed over tasks": ("np.mean(differences, axis=0)", "np.sum(differences, axis=0)"),
        },
        "analysis/test_resampling.py::test_a_resampled_score_is_the_mean_over_seeds_of_means_over_fine_tuning_seeds": {
            "seeds are weighted by their trials": (TRIALS, "np.full(len(seeds), 1 / len(seeds))"),
        },
    },
    GAIN: {
        "analysis/test_compute_gain.py::test_there_is_no_gain_of_or_over_a_row_that_has_learned_only_frequencies": {
            "a gain over an untrained parent": (" or variant.untrained or base.untrained", ""),
        },
    },
    OUTCOMES: {
        "forecasts/test_comparators.py::test_an_interval_holds_what_lies_between_both_of_its_ends": {
            "an interval has an upper end alone": (
                "interval[0] <= self.measured <= interval[1]",
                "self.measured <= interval[1]",
            ),
        },
        "forecasts/test_comparators.py::test_the_first_seeds_are_scored_and_later_ones_change_nothing": {
            "all seeds are scored": ("delta.first(forecast.seeds)", "list(delta.counted)"),
        },
    },
    EXTRAPOLATION: {
        "forecasts/test_extrapolation.py::test_the_noise_of_the_larger_runs_own_seeds_is_in_the_forecast": {
            "the seeds of the larger runs are without noise": (
                "np.append(1 / counts[:-1], 1 / seeds)",
                "np.append(1 / counts[:-1], 0.0)",
            ),
        },
        "forecasts/test_extrapolation.py::test_the_noise_of_a_difference_is_drawn_towards_that_of_its_family": {
            "noise is not drawn towards the family's": (
                "pooled, total = squares + PRIOR_DEGREES * typical, degrees + PRIOR_DEGREES",
                "pooled, total = squares, degrees",
            ),
        },
    },
    COMPARATORS: {
        "forecasts/test_comparators.py::test_persistence_is_the_largest_budget_with_the_noise_of_both_means": {
            "persistence takes the smallest budget": ("predicted.budgets[-1]", "predicted.budgets[0]"),
        },
        "forecasts/test_comparators.py::test_the_crps_is_its_integral": {
            "the CRPS lacks its constant": (" - 1 / math.sqrt(math.pi))", ")"),
        },
        "forecasts/test_comparators.py::test_a_step_counts_once": {
            "a difference counts as a step": ("by_step[step].append(value)", "by_step[step, value].append(value)"),
        },
    },
}
BY_MODULE: Mapping[str, Mapping[str, Mapping[str, tuple[str, str]]]] = {
    INFERENCE: IN_INFERENCE,
    VERDICTS: IN_VERDICTS,
    DELTAS: IN_DELTAS,
    PAIRING: IN_PAIRING,
    PILOTS: IN_PILOTS,
    READOUTS: IN_READOUTS,
    **IN_OTHERS,
}
"""The faults of a module by the test that must notice them, a path below this folder."""
MUTANTS: Mapping[str, Mutant] = {
    name: Mutant(module, *texts, f"tests/reports/{test}")
    for module, by_test in BY_MODULE.items()
    for test, own in by_test.items()
    for name, texts in own.items()
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_fault_has_its_place_and_its_test(mutant: str) -> None:
    assert MUTANTS[mutant].text() and MUTANTS[mutant].test_exists()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_clone(tmp_path_factory.mktemp("mutants") / "clone")


@pytest.mark.drill
def test_without_a_fault_the_tests_pass(tree: Path) -> None:
    require_passed(tree, {mutant.test for mutant in MUTANTS.values()})


@pytest.mark.drill
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_test_notices_every_fault(tree: Path, mutant: str) -> None:
    require_noticed(tree, MUTANTS[mutant])
