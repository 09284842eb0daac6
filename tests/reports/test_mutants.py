"""Faults put into scores, rates, resampling, gains and forecasts, one at a time: the tests must notice each of them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.mutants import Mutant, require_noticed
from tests.support.tree_copy import fresh_clone

SCORES, RATES = "reports/scores.py", "reports/rates.py"
RESAMPLING, GAIN = "reports/analysis/resampling.py", "reports/analysis/compute_gain.py"
OUTCOMES, EXTRAPOLATION = "reports/forecasts/outcomes.py", "reports/forecasts/extrapolation.py"
COMPARATORS = "reports/forecasts/comparators.py"
TESTS: Mapping[str, str] = {
    SCORES: "tests/reports/test_scores.py tests/reports/test_rates.py",
    RATES: "tests/reports/test_rates.py",
    RESAMPLING: "tests/reports/analysis/test_resampling.py",
    GAIN: "tests/reports/analysis/test_compute_gain.py",
    OUTCOMES: "tests/reports/forecasts/test_comparators.py",
    COMPARATORS: "tests/reports/forecasts/test_comparators.py",
    EXTRAPOLATION: "tests/reports/forecasts/test_extrapolation.py",
}
TRIALS = "np.array([1 / (len(counts) * counts[each.pretraining]) for each in seeds])"

MUTANTS: Mapping[str, Mutant] = {
    "the first fine-tuning seed stands for all": Mutant(
        SCORES,
        "return {seed: statistics.fmean(values) for seed, values in own.items()}",
        "return {seed: values[0] for seed, values in own.items()}",
    ),
    "a hundredth of a nat is trained": Mutant(SCORES, "LEAST_GAIN = 0.1\n", "LEAST_GAIN = 0.01\n"),
    "frequencies of other corpora count": Mutant(SCORES, "self.heldout.corpus.isin(corpora) & ", ""),
    "the farthest rate counts as the best": Mutant(
        SCORES, "own[min(near, key=lambda rate", "own[max(near, key=lambda rate"
    ),
    "a sweep is judged on wikibook": Mutant(
        RATES, "measured.get((run, recipe.data.corpus))", 'measured.get((run, "wikibook"))'
    ),
    "draws of GLUE are summed over tasks": Mutant(
        RESAMPLING, "np.mean(differences, axis=0)", "np.sum(differences, axis=0)"
    ),
    "seeds are weighted by their trials": Mutant(RESAMPLING, TRIALS, "np.full(len(seeds), 1 / len(seeds))"),
    "a gain over an untrained parent": Mutant(GAIN, " or variant.untrained or base.untrained", ""),
    "an interval has an upper end alone": Mutant(
        OUTCOMES, "interval[0] <= self.measured <= interval[1]", "self.measured <= interval[1]"
    ),
    "all seeds are scored": Mutant(
        OUTCOMES, "sorted(delta.differences)[: forecast.seeds]", "sorted(delta.differences)"
    ),
    "the seeds of the larger runs are without noise": Mutant(
        EXTRAPOLATION, "np.append(1 / counts[:-1], 1 / seeds)", "np.append(1 / counts[:-1], 0.0)"
    ),
    "noise is not drawn towards the family's": Mutant(
        EXTRAPOLATION,
        "pooled, total = squares + PRIOR_DEGREES * typical, degrees + PRIOR_DEGREES",
        "pooled, total = squares, degrees",
    ),
    "persistence takes the smallest budget": Mutant(COMPARATORS, "predicted.budgets[-1]", "predicted.budgets[0]"),
    "the CRPS lacks its constant": Mutant(COMPARATORS, " - 1 / math.sqrt(math.pi))", ")"),
    "a difference counts as a step": Mutant(
        COMPARATORS, "by_step[step].append(value)", "by_step[step, value].append(value)"
    ),
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
