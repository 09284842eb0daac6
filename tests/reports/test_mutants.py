"""Faults put into a copy of the reports, one at a time: the tests of the module must notice each of them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.mutants import Mutant, require_noticed
from tests.support.tree_copy import fresh_clone

INFERENCE, VERDICTS, DELTAS, PAIRING, PILOTS, READOUTS, RESAMPLING, GAIN = (
    f"reports/analysis/{name}.py"
    for name in ("inference", "verdicts", "deltas", "pairing", "pilots", "readouts", "resampling", "compute_gain")
)
SCORES, RATES = "reports/scores.py", "reports/rates.py"
OUTCOMES, EXTRAPOLATION, COMPARATORS = (
    f"reports/forecasts/{name}.py" for name in ("outcomes", "extrapolation", "comparators")
)
OWN, OF_FORECASTS = "tests/reports/analysis/test_", "tests/reports/forecasts/test_"
TESTS: Mapping[str, str] = {
    INFERENCE: f"{OWN}{{inference,verdicts,inference_oracle,readouts,family_oracle}}.py",
    VERDICTS: f"{OWN}verdicts.py",
    DELTAS: f"{OWN}{{readouts,deltas}}.py tests/reports/test_rates.py",
    PAIRING: f"{OWN}{{readouts,deltas}}.py",
    PILOTS: f"{OWN}deltas.py",
    READOUTS: f"{OWN}readouts.py",
    RESAMPLING: f"{OWN}resampling.py",
    GAIN: f"{OWN}compute_gain.py",
    SCORES: "tests/reports/test_scores.py tests/reports/test_rates.py",
    RATES: "tests/reports/test_rates.py",
    OUTCOMES: f"{OF_FORECASTS}comparators.py",
    COMPARATORS: f"{OF_FORECASTS}comparators.py",
    EXTRAPOLATION: f"{OF_FORECASTS}extrapolation.py",
}
"""The tests that must notice the faults of a module."""

HALF = "half = stdtrit(len(values) - 1, 1 - ALPHA / 2) * values.std(ddof=1) / math.sqrt(len(values))"
P_OF_T = "return 2 * _share_above(np.abs(differences.mean(axis=-1)), differences)"
TOST = "return _share_above(margin - np.abs(differences.mean(axis=-1)), differences)"
HOLM = 'return np.take_along_axis(adjusted, np.argsort(order, axis=-1, kind="stable"), axis=-1)'
STEPS = "steps = np.take_along_axis(p_values, order, axis=-1) * np.arange(p_values.shape[-1], 0, -1)"
FDR = """from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p_values, axis=-1))"""

FLIPS = "return p_values.reshape(*batch, steps, measures)"
SCALE = "np.sqrt((values**2).sum(axis=-1) + counts * pooled_variance(differences))[..., None]"
NEXT = "places[left, chosen[left]] += 1"
BOTH = "return (mean - half, mean + half), float(2 * stdtr(degrees, -abs(mean) / error))"
DIRECTION = "direction if is_apart else"
WITHIN = "interval is None or max(map(abs, interval)) <= measure.margin"
KEPT = "{at: max(p, without.get(at, 1.0)) for at, p in self._p_values.items()}"
OPEN = "return place == 0 or any(look.direction for look in found[step][place - 1])"
FIRST = "next((look for look in self.looks if look.direction), None)"
SUBTRACT = "ours.by_seeds[seeds] - theirs.by_seeds[seeds]"
OWN_BASE = "group.row_at_best_rate(row.name), group.row_at_best_rate(row.parent)"
SPREAD = "between_arms=statistics.stdev(map(statistics.fmean, by_seed.values()))"
TRIALS = "np.array([1 / (len(counts) * counts[each.pretraining]) for each in seeds])"

IN_INFERENCE = {
    "the interval divides by n": (HALF, HALF.replace("ddof=1", "ddof=0")),
    "the interval is that of a normal distribution": (
        HALF,
        HALF.replace("stdtrit(len(values) - 1, 1 - ALPHA / 2)", "1.96"),
    ),
    "the interval is 5 % too narrow": (HALF, f"{HALF} * 0.95"),
    "the interval is 8 % too wide": (HALF, f"{HALF} * 1.08"),
    "the interval is one of 94 %": (HALF, HALF.replace("ALPHA / 2", "0.03")),
    "the interval has n degrees of freedom": (HALF, HALF.replace("len(values) - 1", "len(values)")),
    "Holm is Bonferroni": (STEPS, STEPS.replace("np.arange(p_values.shape[-1], 0, -1)", "p_values.shape[-1]")),
    "Holm is 20 times too strict": (STEPS, f"{STEPS} * 20"),
    "Holm never claims": (HOLM, "return np.ones_like(p_values)"),
    "Holm is a false discovery rate": (HOLM, FDR),
    "Holm corrects for a test too few": (HOLM, f"{HOLM} * 0.9"),
    "the t test is one-sided": (P_OF_T, f"{P_OF_T} / 2"),
    "the p of the t test is 10 % too large": (P_OF_T, f"{P_OF_T} * 1.1"),
    "the p of equivalence is doubled": (TOST, TOST.replace("return ", "return 2 * ")),
    "equivalence takes the smaller p": (TOST, TOST.replace("margin - ", "margin + ")),
    "equivalence is never found": (TOST, "return np.ones(differences.shape[:-1])"),
    "the sign flips are one-sided": (FLIPS, FLIPS.replace("return p_values", "return (p_values / 2)")),
    "the sign flips never reject": (FLIPS, FLIPS.replace("return p_values", "return np.ones_like(p_values)")),
    "the sign flips correct for nothing": ("(family.max(axis=1) >=", "(family[studies, chosen] >="),
    "the sign flips pool hardly anything": (SCALE, SCALE.replace("counts *", "0.01 * counts *")),
    "the upper quartile is pooled": ("POOLED_QUANTILE = 0.25", "POOLED_QUANTILE = 0.75"),
    "a measure that is passed leaves its step": (NEXT, "places[left, chosen[left]] = measures"),
    "p falls along the sequence": ("highest = np.maximum(highest, shares)", "highest = shares"),
    "variances are not shrunk": ("weight = np.minimum(1, noise", "weight = np.minimum(0, noise"),
    "three arms are shrunk": ("max(0, logarithms.shape[-1] - 3)", "logarithms.shape[-1]"),
    "the detectable effect is that of one in two studies": ("POWER = 0.8", "POWER = 0.5"),
    "the detectable effect ignores the family": ("(np.maximum(own, others) >=", "(own >="),
    "equivalence has the level of differences": ("EQUIVALENCE_LEVEL = 0.005", "EQUIVALENCE_LEVEL = 0.032"),
    "the variance over examples is divided again": (
        "total = of_seeds + variance",
        "total = of_seeds + variance / seeds",
    ),
    "p over both is one-sided": (BOTH, BOTH.replace("float(2 * ", "float(1 * ")),
    "a seed collapsed that is two deviations away": ("COLLAPSE_IN_DEVIATIONS = 6", "COLLAPSE_IN_DEVIATIONS = 2"),
}
IN_VERDICTS = {
    "nothing is corrected over the family": (
        "p_values = stepwise_p_values(statistics)",
        "p_values = stepwise_p_values(statistics.reshape(-1, 1, 1, statistics.shape[-1])).reshape(shape)",
    ),
    "collapsed seeds are not left out": (KEPT, "self._p_values"),
    "collapsed seeds are always left out": (KEPT, "{at: without.get(at, 1.0) for at in self._p_values}"),
    "a claim needs no interval over texts": (
        "p_difference <= self.level and p_both <= ALPHA",
        "p_difference <= self.level",
    ),
    "equivalence needs no interval over texts": (WITHIN, "True"),
    "equivalence needs the nearer end alone": (WITHIN, WITHIN.replace("max(", "min(")),
    "equivalence is claimed in any readout": ("is_equivalent and measure.tells_apart", "is_equivalent"),
    "equivalences are not corrected": (
        "zip(self._first, adjust(tost), strict=True)",
        "zip(self._first, tost, strict=True)",
    ),
    "the verdict never claims": (DIRECTION, '"" if is_apart else'),
    "the verdict has the wrong sign": ('direction = "higher" if sum', 'direction = "lower" if not sum'),
    "every measure is tested": (OPEN, "return True"),
    "an equivalence opens the next measure": (
        OPEN,
        OPEN.replace("look.direction for", "look.direction or look.is_equivalent for"),
    ),
    "the last look counts": (FIRST, "self.looks[-1] if self.looks and self.looks[-1].direction else None"),
    "seeds beyond the look count": (
        "islice(sorted(self.differences.items()), seeds)",
        "islice(sorted(self.differences.items()), 99)",
    ),
    "seeds count in the order of records": (
        "islice(sorted(self.differences.items()), seeds)",
        "islice(self.differences.items(), seeds)",
    ),
    "fewer seeds than the look are enough": ("len(self.differences) >= seeds else", "len(self.differences) > 2 else"),
    "nothing is divided by known deviations": ("self._measures[at].scale or 1.0] for", "1.0] for"),
}
IN_DELTAS = {
    "own rates against the parent at the shared rate": (OWN_BASE, "group.row_at_best_rate(row.name), rows[row.parent]"),
    "the interval of GLUE is one of 90 %": ("np.nanpercentile(draws, (2.5, 97.5))", "np.nanpercentile(draws, (5, 95))"),
    "the interval over items is one of 90 %": ("NORMAL_QUANTILE = 1.959964", "NORMAL_QUANTILE = 1.644854"),
    "the noise of all seeds counts at a look": ("delta.units[: len(seeds)]", "delta.units"),
    "collapsed seeds are not handed on": (
        "collapsed={seed for seeds in delta.collapsed.values() for seed in seeds},",
        "",
    ),
    "each design is a family": (
        "chain.from_iterable(judge(tested, protocol.looks))",
        "chain.from_iterable(judge([own], protocol.looks)[0] for own in tested)",
    ),
    "steps without a verdict are in the family": (
        "delta.comparison is not None and not delta.no_verdict:",
        "delta.comparison is not None:",
    ),
    "pilot seeds of another kind are not noticed": (
        "if reason := why_unlike_pilots(deltas[sequence[0][1]], rows, evidence):",
        "if reason := '':",
    ),
    "margins are not those of the protocol": (
        "protocol.margins.get(delta.quantity, QUANTITIES[delta.quantity].margin)",
        "QUANTITIES[delta.quantity].margin",
    ),
    "the intervals over texts are not handed on": (
        "both={seeds: (own, p) for seeds, (own, p) in both.items() if own is not None and p is not None},",
        "",
    ),
}
IN_PAIRING = {
    "any corpus is primary": ('delta.is_own == (measure.corpus == "own")', "True"),
    "variant and parent are exchanged": (SUBTRACT, "theirs.by_seeds[seeds] - ours.by_seeds[seeds]"),
    "seeds are not paired": (SUBTRACT, "ours.by_seeds[seeds] - theirs.mean"),
    "losses on other texts are paired": ("if texts[seed] > 1]", "if texts[seed] > 9]"),
    "untrained models are compared": ('"; ".join(filter(None, (variant.untrained, base.untrained)))', '""'),
    "losses on other tokens are compared": ("    if first.tokens != second.tokens:\n", "    if False:\n"),
    "answers to other items are compared": ("{(each.items, each.seed): each for", '{("", each.seed): each for'),
    "items are not counted in points": ("factor = QUANTITIES[empty.quantity].factor", "factor = 1"),
    "bits have the noise of nats": (
        "own.bits_per_byte / own.loss if delta.quantity == BITS",
        "own.loss / own.loss if delta.quantity == BITS",
    ),
    "every corpus is the variant's own": (
        'is_own=delta.corpus in ("", variant.recipe.pretraining.data.corpus)',
        "is_own=True",
    ),
}
IN_PILOTS = {
    "three pilot seeds are enough": ("LEAST_PILOTS = 4", "LEAST_PILOTS = 3"),
    "one arm's deviation is that of the difference": (
        "math.sqrt(sum(known[arm] for arm in own))",
        "math.sqrt(known[own[0]])",
    ),
    "pilot seeds of one kind are all that is seen": ("if are_unlike(", "if not are_unlike("),
    "pilot seeds of any recipe count": ("(pilots.recipe == recipe) & ", ""),
}
IN_READOUTS = {
    "arms of all corpora count": (
        "rows = largest(trained, lambda row: row.recipe.pretraining.data.corpus)",
        "rows = trained",
    ),
    "the spread between arms divides by n": (SPREAD, SPREAD.replace("stdev", "pstdev")),
    "the noise is that of the noisiest arm": ("return statistics.median(", "return max("),
    "one seed tells the noise of an arm": ("LEAST_SEEDS = 2", "LEAST_SEEDS = 1"),
    "the worst readout is the first": ("key=_sorting_ratio, reverse=True", "key=_sorting_ratio"),
    "answers to all items are mixed": (' & (answers["items"] == usual)', ""),
    "a readout tells arms apart at any ratio": ("LEAST_RATIO = 2.0", "LEAST_RATIO = 0.0"),
    "any readout tells for any other": ("if (each.readout, each.corpus) == (readout, corpus)", "if each.readout"),
    "the noise of units is not paired": (
        "influence(ours) - influence(theirs) for",
        "influence(ours) + influence(theirs) for",
    ),
    "units of a ratio have no denominators": ("(above - above.sum() / below.sum() * below)", "(above - above.mean())"),
}
IN_OTHERS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    SCORES: {
        "the first fine-tuning seed stands for all": (
            "return {seed: statistics.fmean(values) for seed, values in own.items()}",
            "return {seed: values[0] for seed, values in own.items()}",
        ),
        "a hundredth of a nat is trained": ("LEAST_GAIN = 0.1\n", "LEAST_GAIN = 0.01\n"),
        "frequencies of other corpora count": ("self.heldout.corpus.isin(corpora) & ", ""),
        "the farthest rate counts as the best": ("own[min(near, key=lambda rate", "own[max(near, key=lambda rate"),
    },
    RATES: {
        "a sweep is judged on wikibook": ("measured.get((run, recipe.data.corpus))", 'measured.get((run, "wikibook"))'),
    },
    RESAMPLING: {
        "draws of GLUE are summed over tasks": ("np.mean(differences, axis=0)", "np.sum(differences, axis=0)"),
        "seeds are weighted by their trials": (TRIALS, "np.full(len(seeds), 1 / len(seeds))"),
    },
    GAIN: {
        "a gain over an untrained parent": (" or variant.untrained or base.untrained", ""),
    },
    OUTCOMES: {
        "an interval has an upper end alone": (
            "interval[0] <= self.measured <= interval[1]",
            "self.measured <= interval[1]",
        ),
        "all seeds are scored": ("sorted(delta.differences)[: forecast.seeds]", "sorted(delta.differences)"),
    },
    EXTRAPOLATION: {
        "the seeds of the larger runs are without noise": (
            "np.append(1 / counts[:-1], 1 / seeds)",
            "np.append(1 / counts[:-1], 0.0)",
        ),
        "noise is not drawn towards the family's": (
            "pooled, total = squares + PRIOR_DEGREES * typical, degrees + PRIOR_DEGREES",
            "pooled, total = squares, degrees",
        ),
    },
    COMPARATORS: {
        "persistence takes the smallest budget": ("predicted.budgets[-1]", "predicted.budgets[0]"),
        "the CRPS lacks its constant": (" - 1 / math.sqrt(math.pi))", ")"),
        "a difference counts as a step": ("by_step[step].append(value)", "by_step[step, value].append(value)"),
    },
}
BY_MODULE: Mapping[str, Mapping[str, tuple[str, str]]] = {
    INFERENCE: IN_INFERENCE,
    VERDICTS: IN_VERDICTS,
    DELTAS: IN_DELTAS,
    PAIRING: IN_PAIRING,
    PILOTS: IN_PILOTS,
    READOUTS: IN_READOUTS,
    **IN_OTHERS,
}
MUTANTS: Mapping[str, Mutant] = {
    name: Mutant(module, *texts) for module, own in BY_MODULE.items() for name, texts in own.items()
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_fault_has_its_place(mutant: str) -> None:
    assert MUTANTS[mutant].text()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_clone(tmp_path_factory.mktemp("mutants") / "clone")


@pytest.mark.drill
@pytest.mark.parametrize("mutant", [None, *MUTANTS])
def test_the_tests_notice_every_fault_and_pass_without_one(tree: Path, mutant: str | None) -> None:
    require_noticed(tree, MUTANTS[mutant] if mutant else None, TESTS)
