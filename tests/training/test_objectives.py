"""Objectives of stages: a causal one is exact over kills, says what it measured, and hands its weights to the next."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from neobert.files import read_lines
from neobert.kinds.pretraining import HeldoutScore, PretrainingRun, PretrainingScores
from neobert.model.size import training_flops_per_token
from neobert.recipe import Pretraining
from tests.support.tiny_runs import (
    STEPS,
    assert_equal_weights,
    beside,
    curve,
    final_weights,
    kill_after,
    record,
    tiny_recipe,
    tiny_run,
    tiny_stage,
    trainer_of,
    work,
    write_tiny_run,
)

CAUSAL = tiny_stage(objective="causal", decay_steps=0)
Finished = tuple[Path, PretrainingRun, PretrainingRun]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A causal stage and a masked one after it."""
    root, first = tmp_path_factory.mktemp("objectives"), tiny_run(stages=(CAUSAL,))
    second = tiny_run(previous=first, stages=(tiny_stage(steps=8, warmup_steps=0, decay_steps=8),))
    for run in (first, second):
        write_tiny_run(root, run)
        assert work(root, run.reference) == 0
    return root, first, second


def test_the_objective_is_in_the_id_and_its_default_is_not(finished: Finished) -> None:
    _, first, second = finished
    masked = tiny_run(stages=(tiny_stage(decay_steps=0),))
    assert first.id != masked.id and "objective" not in str(masked.model_dump(mode="json")["recipe"]["masking"])
    content = masked.model_dump(mode="json")
    del content["recipe"]["stages"][0]["objective"], content["recipe"]["masking"]["drawn_up_to"]
    assert PretrainingRun.read(content).id == masked.id, "records of older versions name the same run"
    assert (first.recipe.ends_causal, second.recipe.ends_causal) == (True, False)


def test_a_causal_record_has_the_loss_of_next_tokens_and_none_of_masked_ones(finished: Finished) -> None:
    root, first, _ = finished
    scores = PretrainingScores.model_validate(record(root, first)["scores"])
    assert (scores.heldout_loss, scores.heldout, scores.transition) == ({}, (), None)
    (own,) = scores.next_token
    assert isinstance(own, HeldoutScore) and own.frequency_loss is None and own.units == own.documents
    assert own.bits_per_byte == pytest.approx(own.loss * own.tokens / own.text_bytes / math.log(2))
    lines = list(read_lines(root / first.reference / "metrics.jsonl"))
    assert [line["step"] for line in lines if "next_token_loss" in line] == [6, 12, 18, 24]
    assert not any("heldout_loss" in line or "small_text_loss" in line for line in lines)
    last = [line["next_token_loss"] for line in lines if "next_token_loss" in line]
    assert last[-1] == own.loss < last[0] and curve(root, first)[-1] < curve(root, first)[0]


def test_a_masked_stage_after_it_goes_on_from_its_weights_and_is_measured_as_ever(finished: Finished) -> None:
    root, first, second = finished
    trainer = trainer_of(root, second)
    trainer.begin()
    assert all(
        torch.equal(value, final_weights(root, first)[name]) for name, value in trainer.model.state_dict().items()
    )
    scores = record(root, second)["scores"]
    assert scores["heldout_loss"]["web"] > 0 and scores["transition"] and "next_token" not in scores
    assert [record(root, run)["tokens"] for run in (first, second)] == [STEPS * 256, 8 * 256]


def test_the_work_of_a_causal_stage_is_that_of_its_tensors(finished: Finished) -> None:
    root, first, _ = finished
    real = attended = predicted = 0
    for step in trainer_of(root, first).data():
        for batch in step.micro_batches:
            assert batch.plan.causal and batch.plan.documents is not None
            rows, columns = (batch.plan.documents >= 0).nonzero(as_tuple=True)
            numbers = batch.plan.documents[rows, columns]
            lengths = Counter(zip(rows.tolist(), numbers.tolist(), strict=True)).values()
            real, attended = real + sum(lengths), attended + sum(n * (n + 1) // 2 for n in lengths)
            predicted += batch.predicted_tokens
    told = record(root, first)
    assert told["real_tokens"] == real and predicted > 0.8 * real, "all but [CLS], [SEP] and unknown tokens"
    per_token = training_flops_per_token(first.recipe.model, attended / real, 1.0)
    assert told["flops"] == pytest.approx(per_token * real)


@pytest.mark.parametrize("changes", [{"stages": (CAUSAL,)}, {"masking": "drawn"}], ids=["causal", "drawn rates"])
def test_a_killed_run_equals_an_undisturbed_one(finished: Finished, tmp_path: Path, changes: dict[str, object]) -> None:
    drawn = tiny_recipe().masking.model_copy(update={"rate": 0.1, "drawn_up_to": 0.8})
    run = tiny_run(**{name: drawn if value == "drawn" else value for name, value in changes.items()})
    roots = [beside(tmp_path / name, finished[0]) for name in ("whole", "killed")]
    for root in roots:
        write_tiny_run(root, run)
    assert work(roots[0], run.reference) == 0
    kill_after(roots[1], run, 12)
    assert work(roots[1], run.reference) == 0
    assert_equal_weights(roots[0], roots[1], run)
    assert curve(roots[0], run) == curve(roots[1], run)
    assert record(roots[0], run)["scores"] == record(roots[1], run)["scores"]


def test_a_rate_that_moves_in_a_causal_stage_is_refused() -> None:
    moving = tiny_recipe().masking.model_copy(update={"final_rate": 0.3})
    with pytest.raises(ValueError, match="in the first stage, which is causal"):
        Pretraining.model_validate(tiny_recipe(masking=moving).model_dump() | {"stages": (CAUSAL, tiny_stage())})
