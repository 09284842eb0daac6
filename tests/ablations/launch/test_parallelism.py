"""How many GPUs per run of the ladder is proposed to take, and what exchanging gradients costs with so many."""

from pathlib import Path

import pytest

from ablations.launch.parallelism import exchange_hours, proposed_gpus
from neobert.kinds.pretraining import PretrainingRun
from tests.ablations.launch.test_costs import PAPER_MACHINE, costs_of, paper_rows


def stages_of(root: Path, name: str) -> list[PretrainingRun]:
    return [run for row in paper_rows(root, name, stages=["pretrain"]) for run in PretrainingRun.among(row.runs)]


@pytest.mark.parametrize(
    ("name", "most", "gpus"),
    [("M0", 8, 4), ("M8", 8, 4), ("M0", 4, 4), ("M0", 3, 3), ("M0", 1, 1), ("M9", 8, 8), ("M9", 6, 6), ("M9", 128, 64)],
)
def test_each_gpu_gets_enough_tokens_of_a_step(tmp_path: Path, name: str, most: int, gpus: int) -> None:
    """131,072 tokens per step up to M8, 2,097,152 from M9 on."""
    first, *_ = stages_of(tmp_path, name)
    assert proposed_gpus(first, most) == gpus


def test_the_price_is_that_of_a_ring_and_nothing_for_one_gpu(tmp_path: Path) -> None:
    """28 × 768, 245 million gradients in fp32: 4.3 ms a step of eight GPUs."""
    first, *_ = stages_of(tmp_path, "M9")
    hours = exchange_hours(first, 8)
    assert 3600 * hours / 8 / first.recipe.stages[0].steps == pytest.approx(4.3e-3, rel=0.02)
    assert exchange_hours(first, 1) == 0
    assert 0 < exchange_hours(first, 2) < exchange_hours(first, 4) < hours


def test_a_dry_run_prices_what_is_planned_and_what_is_proposed(tmp_path: Path) -> None:
    proposal = costs_of(tmp_path, PAPER_MACHINE, "M0", "M8", "M9", stages=["pretrain"]).proposal
    assert proposal.names == {4: ("M0", "M8")}
    assert 0.3 * proposal.planned_hours < proposal.proposed_hours < proposal.planned_hours
    first, second = proposal.lines()
    assert "proposed 4 for M0, M8" in first and "8 as planned" in first and "32,768 tokens" in second
    assert not costs_of(tmp_path, PAPER_MACHINE, "M9", stages=["pretrain"]).proposal.lines()
