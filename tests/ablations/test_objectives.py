"""Causal variants in commands and in Python: what does not apply is said, and what is asked of it is refused."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

import neobert
from ablations import ladders, run
from ablations.api import TrainedVariant
from ablations.scales import scaled_variant
from neobert.errors import EXIT_DONE, MissingData
from neobert.training.schedule import scheduled_rate
from sweeps import learning_rates
from tests.support.made_up_treebank import treebank
from tests.support.tree_copy import REPOSITORY

LADDER = REPOSITORY / "examples" / "objectives.py"
FLAGS = ["--ladder", str(LADDER), "--cluster", "here"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objectives") / "runs"


@pytest.fixture(scope="module")
def trained(folder: Path) -> Iterator[dict[str, TrainedVariant]]:
    yield {name: neobert.train(name, ladder=LADDER, runs=folder) for name in ("causal", "causal50")}


@pytest.mark.parametrize("scale", ["small", "tiny", "as-written"])
def test_all_arms_have_one_course_of_the_learning_rate_and_one_beta2(scale: str) -> None:
    courses = set()
    with ladders.using(ladders.load(str(LADDER))):
        for variant in ladders.variants().values():
            recipe = scaled_variant(variant, scale, "trained")[0].pretraining
            every = max(1, sum(stage.steps for stage in recipe.stages) // 4000)
            rates = [
                scheduled_rate(step, recipe.optimization, stage)
                for stage in recipe.stages
                for step in range(every, stage.steps + 1, every)
            ]
            assert max(rates) == rates[len(rates) // 2] > rates[-1]
            courses.add((recipe.optimization.beta2, *rates))
    assert len(courses) == 1


def test_lists_and_plans_say_what_does_not_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list needs no treebank."""
    own = tmp_path / "objectives.py"
    own.write_text(LADDER.read_text().replace("../declarations/UD_English-EWT", "UD_English-EWT"))
    flags = ["--ladder", str(own), "--cluster", "here"]
    assert run.main([*flags, "--list"]) == EXIT_DONE
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("ends causal") == 1 and "without fine-tuning: task upos has no train, dev split" in said
    treebank(tmp_path / "UD_English-EWT")
    assert run.main([*flags, "--list"]) == EXIT_DONE
    assert "without fine-tuning" not in capsys.readouterr().out
    plan = [*flags, "--variant", "causal", "causal50", "--dry-run"]
    assert run.main([*plan, "--stages", "pretrain", "glue", "readouts", "perplexity"]) == EXIT_DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "causal ends causal: held-out loss and readouts" in said and "causal50 ends causal" not in said
    assert "left out: readouts: pre-training ends causal" in said
    assert run.main([*plan, "--stages", "readouts", "perplexity", "glue", "--json"]) == EXIT_DONE
    causal, two_stages = ([stage["kind"] for stage in row["stages"]] for row in json.loads(capsys.readouterr().out))
    assert sum(kind.startswith("readouts") for kind in causal) == 0 and len(causal) > 1, "fine-tuning is planned"
    assert len(two_stages) == len(causal) + 2, "its readouts, and its pseudo-perplexity"


def test_seeds_until_a_verdict_need_a_held_out_loss(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([*FLAGS, "--variant", "causal", "--until-decided"]) == 2
    assert "ends causal and has no held-out loss" in capsys.readouterr().err


def test_a_rate_is_chosen_by_a_held_out_loss(capsys: pytest.CaptureFixture[str]) -> None:
    assert learning_rates.main([*FLAGS, "--variant", "causal"]) == 2
    assert "causal ends causal and has no held-out loss to choose a rate by: leave it out" in capsys.readouterr().err


def test_a_causal_variant_in_python(trained: dict[str, TrainedVariant]) -> None:
    causal, two_stages = trained["causal"], trained["causal50"]
    assert "ends causal" in repr(causal) and "held-out loss" in repr(two_stages) and two_stages.loss > 5
    with pytest.raises(ValueError, match="ends causal and has no held-out loss"):
        _ = causal.loss
    with pytest.raises(MissingData, match=r"cannot measure .* predict masked tokens from both sides"):
        causal.evaluate("readouts")
    assert {"next_token_loss", "heldout_loss"} <= set(two_stages.metrics.columns)


def test_a_loop_of_ones_own_gives_the_losses_of_a_causal_stage(
    trained: dict[str, TrainedVariant], folder: Path
) -> None:
    """Bit for bit."""
    with ladders.using(ladders.load(str(LADDER))):
        model = neobert.build("causal50")
        optimizer = neobert.optimizer("causal50", model)
        losses = []
        for batch in neobert.batches("causal50", runs=folder):
            loss = neobert.loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        second = next(islice(neobert.batches("causal50", stage=2, runs=folder), 1))
    metrics = trained["causal50"].metrics
    assert losses == metrics[metrics.stage == 1].loss.dropna().to_list() and len(losses) == 4
    assert batch.plan.causal and not second.plan.causal and second.predicted_tokens < batch.predicted_tokens
