"""Faults put into a copy of the reports, one at a time: the test that is named for it must notice each of them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.mutants import Mutant, require_noticed, require_passed
from tests.support.tree_copy import fresh_clone

BY_MODULE: Mapping[str, Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "reports/differences.py": {
        "test_differences.py::test_a_step_is_in_the_loss_on_the_corpus_that_its_variant_was_trained_on": {
            "each step is a family": ("families[design, step.measure.name]", "families[design, step.variant]"),
            "losses on other tokens are compared": ("variant.tokens == parent.tokens and ", ""),
            "the parent's corpus counts": (
                "corpus = variant.recipe.pretraining.data.corpus",
                "corpus = parent.recipe.pretraining.data.corpus",
            ),
        },
        "test_differences.py::test_a_model_that_knows_frequencies_alone_is_not_trained": {
            "untrained parents are compared": ("any(row.untrained for row in self._rows)", "self.variant.untrained"),
        },
        "test_differences.py::test_every_number_of_the_table_is_that_of_scipy_on_the_records": {
            "variant and parent are exchanged": ("for own in estimates]", "for own in reversed(estimates)]"),
        },
        "test_differences.py::test_losses_on_other_texts_are_not_compared": {
            "losses on other texts are paired": ("if texts[seed] > 1}", "if texts[seed] > 9}"),
        },
        "test_differences.py::test_a_larger_grid_on_the_same_weights_is_not_compared": {
            "a choice among more points is compared": ("grids[0] != grids[1]", "False"),
        },
        "test_differences.py::test_embeddings_are_compared_in_the_mean_of_the_tasks_that_both_have": {
            "each side has its own tasks": (
                "(mean := each.mean_over(shared))",
                "(mean := each.mean_over(list(each.scores)))",
            ),
        },
        "test_differences.py::test_minimal_pairs_are_compared_on_the_same_items": {
            "answers to other items are compared": (
                'common = sorted(set(variant.answers["items"]) & set(parent.answers["items"]))',
                'common = sorted(set(variant.answers["items"]))',
            ),
        },
    },
    "reports/rows.py": {
        "test_rates.py::test_of_two_rates_that_count_as_the_optimum_the_nearer_one_is_taken": {
            "the farthest rate counts as the best": ("own[min(near, key=lambda rate", "own[max(near, key=lambda rate"),
        },
    },
    "reports/scores.py": {
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
    },
    "reports/rates.py": {
        "test_rates.py::test_a_sweep_goes_by_the_loss_on_the_variants_own_corpus": {
            "a sweep is judged on wikibook": ("losses.get((run, recipe.data.corpus))", 'losses.get((run, "wikibook"))'),
        },
    },
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
