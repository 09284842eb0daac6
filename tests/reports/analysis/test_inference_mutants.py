"""Faults put into a copy of the analysis, one at a time: the tests of the module must notice each of them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.mutants import Mutant, require_noticed
from tests.support.tree_copy import fresh_clone

INFERENCE = "reports/analysis/inference.py"
TESTS: Mapping[str, str] = {
    INFERENCE: "tests/reports/analysis/test_{inference,inference_oracle,family_oracle}.py",
}
"""The tests that must notice the faults of a module."""

HALF = "half = stdtrit(len(values) - 1, 1 - ALPHA / 2) * values.std(ddof=1) / math.sqrt(len(values))"
P_OF_T = "return 2 * _share_above(np.abs(differences.mean(axis=-1)), differences)"
TOST = "return _share_above(margin - np.abs(differences.mean(axis=-1)), differences)"
HOLM = 'return np.take_along_axis(adjusted, np.argsort(order, axis=-1, kind="stable"), axis=-1)'
STEPS = "steps = np.take_along_axis(p_values, order, axis=-1) * np.arange(p_values.shape[-1], 0, -1)"
FDR = """from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p_values, axis=-1))"""

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
}


MUTANTS: Mapping[str, Mutant] = {name: Mutant(INFERENCE, *texts) for name, texts in IN_INFERENCE.items()}


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
