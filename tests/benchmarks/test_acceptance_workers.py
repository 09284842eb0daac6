"""The acceptance checks of workers see a gradient of the wrong scale, which no loss shows, and a rank that is lost."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.acceptance.__main__ import judge
from benchmarks.acceptance.checks import setting_here, varied_batches
from benchmarks.acceptance.worker_checks import LOST, RANKS, Lines, compared
from benchmarks.contenders import own_batches, pretraining_engine
from neobert.model.build import build_masked_language_model, initialize

PLANTED = """
from neobert.training.engine import Engine

accumulate = Engine._accumulate


def divided(engine, batch, total, phases, *, last):
    return accumulate(engine, batch, total * engine.processes, phases, last=last) * engine.processes


Engine._accumulate = divided
"""
"""A module that every worker imports first: gradients are the mean over ranks, and losses still the sum."""


def lines_with(scale: float) -> Lines:
    """Loss and gradient norm of 24 steps with gradients times `scale`."""
    setting = setting_here(rehearse=True)
    recipe = setting.recipe.model_copy(update={"precision": "fp32"})
    model = build_masked_language_model(recipe.model, setting.documents.context)
    initialize(model, recipe.model.initialization, 0)
    engine = pretraining_engine(model.train(), recipe, setting.device)
    accumulate = engine._accumulate

    def scaled(batch: Any, total: torch.Tensor, *words: Any, last: bool) -> torch.Tensor:
        return accumulate(batch, total / scale, *words, last=last) / scale

    engine._accumulate = scaled  # type: ignore[method-assign]
    batches = own_batches(setting.documents, setting.documents_per_step, setting.device)[:24]
    measured = [engine.step([batch], 1e-3).measured() for batch in batches]
    return [{"loss": step.loss, "gradient_norm": step.gradient_norm} for step in measured]


def test_a_gradient_of_the_wrong_scale_shows_in_its_norm_and_in_no_loss() -> None:
    right = lines_with(1)
    for scale, met in ((1, True), (1 / 2, False), (8, False)):
        claims = judge(RANKS, list(compared("ranks", lines_with(scale), right, {})))["claims"]
        assert claims["losses of ranks"]["met"] and claims["gradient norms of ranks"]["met"] is met


@pytest.mark.drill
def test_a_rehearsal_with_ranks_that_average_what_they_should_sum_is_falsified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command, but for the module that plants the fault in each worker."""
    (tmp_path / "sitecustomize.py").write_text(PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = judge(RANKS, list(RANKS.measure(setting_here(rehearse=True))))
    assert outcome["state"] == "falsified" and outcome["claims"]["losses of ranks"]["met"]
    assert outcome["claims"]["gradient norms of ranks"]["value"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.drill
def test_rank_0_ends_with_a_reason_when_another_rank_is_killed() -> None:
    assert judge(LOST, list(LOST.measure(setting_here(rehearse=True))))["state"] == "held"


def test_steps_that_vary_have_different_numbers_of_rows_and_every_row_once() -> None:
    setting = setting_here(rehearse=True)
    rows = [len(batch.token_ids) for batch in varied_batches(setting, 6)]
    most = max(len(batch.token_ids) for batch in setting.own_batches("eager"))
    assert len(set(rows)) > 1 and min(rows) >= 2 / 3 * most - 1 and max(rows) <= most
