"""Contenders of the benchmarks of pre-training learn from the same documents, are of one size, and count alike."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

import numpy as np
import pytest
import torch

from ablations.api import plan_variant
from ablations.launch.execute import open_workspace
from ablations.launch.request import Place, Selection
from ablations.loading import load
from benchmarks.data import write_web_pages
from benchmarks.glue import SPEED_LADDER
from benchmarks.measuring import Race, Timing, fastest, lowest_ratio, race, tokens_per_second
from benchmarks.pretraining import (
    BUCKETED,
    COMPARISONS,
    CONCATENATED,
    GOALS_BY_CONTEXT,
    OURS,
    PADDED,
    Batching,
    MaskedDocuments,
    Peer,
    Setting,
    beta_lengths,
    masked_documents,
    neobert_recipe,
    peer_batches,
    result_of_run,
    small_setting,
)
from neobert.model.build import build_masked_language_model
from tests.gpu.steps import gpu_setting

CONTEXT = 32
BATCHINGS: tuple[Batching, ...] = ("padded", "bucketed", "concatenated")
SHAPE = {"layers": 2, "width": 16, "heads": 2, "feedforward_width": 32, "vocabulary_size": 512}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def documents() -> MaskedDocuments:
    """Documents of 8 to 32 tokens; their number is no multiple of a step's."""
    return masked_documents(beta_lengths(75, CONTEXT), SHAPE["vocabulary_size"], CONTEXT)


@pytest.fixture(scope="module")
def setting(documents: MaskedDocuments) -> Setting:
    """A model of 2 × 16 on them."""
    return Setting(neobert_recipe("fp32", **SHAPE), documents, 8, CPU)


def shown_by_peers(documents: MaskedDocuments, batching: Batching) -> tuple[Counter[int], Counter[int]]:
    """(tokens that are read, tokens that are predicted) of all batches, filler left out."""
    batches = peer_batches(documents, batching, 8)
    read = np.concatenate([batch["input_ids"].flatten().numpy() for batch in batches])
    labels = np.concatenate([batch["labels"].flatten().numpy() for batch in batches])
    return Counter(read[read != 0].tolist()), Counter(labels[labels != -100].tolist())


@pytest.mark.parametrize("batching", BATCHINGS)
def test_peers_read_and_predict_the_same_tokens_as_we_do(setting: Setting, batching: Batching) -> None:
    documents, own = setting.documents, setting.own_batches("eager")
    read = torch.cat([batch.token_ids[batch.plan.doc_ids >= 0] for batch in own])
    targets = torch.cat([batch.targets.flatten() for batch in own])
    ours = Counter(read.tolist()), Counter(targets[targets != -100].tolist())
    assert shown_by_peers(documents, batching) == ours
    assert sum(ours[0].values()) == documents.view.framed_lengths.sum() == sum(batch.real_tokens for batch in own)
    assert sum(ours[1].values()) == sum(batch.predicted_tokens for batch in own)


def test_a_fifth_of_the_text_is_predicted_and_all_of_that_is_masked(documents: MaskedDocuments) -> None:
    token_ids, labels, real = documents.grid
    assert torch.equal(labels != -100, token_ids == documents.view.corpus.ids.mask)
    of_text = (labels != -100).sum() / (real.sum() - 2 * len(documents.view))
    assert float(of_text) == pytest.approx(0.2, abs=0.03)


def test_buckets_pad_less_and_neighbouring_steps_differ_in_width(documents: MaskedDocuments) -> None:
    slots = {way: [batch["input_ids"].numel() for batch in peer_batches(documents, way, 8)] for way in BATCHINGS}
    assert sum(slots["bucketed"]) < 0.8 * sum(slots["padded"])
    widths = [batch["input_ids"].shape[1] for batch in peer_batches(documents, "bucketed", 8)]
    assert sorted(widths) != widths and len(set(widths)) > 1


@pytest.mark.parametrize("peer", [Peer("bert", "padded"), Peer("modernbert", "padded")])
def test_padded_and_bucketed_documents_have_one_loss(peer: Peer, setting: Setting) -> None:
    """Summed over all predicted tokens, to 1e-5 relative: padding is seen by nobody. Weights are large, so that what a
    token sees changes the loss."""
    module = peer.build(setting.recipe.model, CONTEXT).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(20 if parameter.ndim > 1 else 1)

    def loss(batching: Batching) -> float:
        batches = peer_batches(setting.documents, batching, 8)
        with torch.no_grad():
            means = [module(**batch).loss * (batch["labels"] != -100).sum() for batch in batches]
        return float(sum(means))

    assert loss("bucketed") == pytest.approx(loss("padded"), rel=1e-5)
    assert loss("concatenated") != pytest.approx(loss("padded"), rel=1e-4), "documents should see each other there"


@pytest.mark.parametrize("make", [lambda: small_setting(32), lambda: gpu_setting(neobert_recipe("bf16"), 64, 256, CPU)])
def test_peers_have_our_size(make: Callable[[], Setting]) -> None:
    setting = make()
    model, context = setting.recipe.model, setting.documents.context
    with torch.device("meta"):
        models = [peer.build(model, context) for peer in (PADDED, BUCKETED)]
        models.append(build_masked_language_model(model, context))
    counts = [sum(parameter.numel() for parameter in each.parameters()) for each in models]
    assert max(counts) / min(counts) < 1.02


def test_every_contender_makes_updates_and_counts_its_real_tokens(setting: Setting) -> None:
    """One pass over the documents in one burst: 75 documents in steps of 8, so no form counts its filler."""
    makers = setting.contenders(("fp32", "bf16"), (PADDED, CONCATENATED, BUCKETED))
    assert len(makers) == 2 * 2 * 4
    real_tokens = setting.documents.view.framed_lengths.sum()
    for name in (name for name in makers if name.endswith("eager")):
        step = makers[name]()
        tokens, steps = 0, 0
        while tokens < real_tokens:
            tokens, steps = tokens + step(), steps + 1
        assert tokens == real_tokens, name
        assert 8 <= steps <= 12, name


def raced(**speeds: float) -> Race:
    """A race of one round with these speeds in tokens a second."""
    return {name: [Timing(1 / speed, 1 / speed, 1)] for name, speed in speeds.items()}


def test_a_ratio_is_that_of_speeds_and_the_fastest_counts() -> None:
    found = raced(a=200.0, b=100.0)
    assert tokens_per_second(found) == {"a": 200, "b": 100}
    ratio, figures = lowest_ratio(found, [("a", "b")])
    twice = {"median": 2.0, "lowest": 2.0, "highest": 2.0}
    assert (ratio, figures["speed, ours / theirs"]) == (twice, {"a / b": {"wall": twice, "processor": twice}})
    both = raced(**{"a, fp32": 100.0, "a, bf16": 200.0, "ab, fp32": 300.0})
    assert fastest(both, "a") == "a, bf16" and fastest(both, "a, fp32") == "a, fp32"


def test_on_a_gpu_a_contender_has_left_before_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for owner, call in ((torch.cuda, "synchronize"), (torch.cuda, "empty_cache"), (torch.compiler, "reset")):
        monkeypatch.setattr(owner, call, lambda: None)
    alive = WeakSet[torch.nn.Module]()

    def make() -> Callable[[], int]:
        assert not alive
        module = torch.nn.Linear(2, 2)
        alive.add(module)
        return lambda: int(module.weight.numel())

    found = race({"a": make, "b": make}, rounds=2, steps=3)
    assert [[timing.returned for timing in found[name]] for name in "ab"] == [[12, 12]] * 2


def test_the_speed_of_a_run_is_the_median_of_its_thirds_over_the_goal() -> None:
    """Tokens by seconds of whole parts: steps weigh by their time."""
    seconds = [1.0] * 2 + [0.5, 1.5] + [0.8] * 2
    steps = [{"real_tokens": 248_000, "seconds": each} for each in seconds]
    name, ratio, figures, _ = result_of_run(1024, steps, {"compile_seconds": 9.0})
    assert (name, ratio) == ("pretraining_gpu_1024", {"median": 0.8, "lowest": 0.8, "highest": 1.0})
    assert figures == {"real tokens per second": [248_000, 248_000, 310_000], "steps": 6, "compile_seconds": 9.0}


def test_runs_of_the_speed_of_a_gpu_have_the_published_shape_and_300_steps(tmp_path: Path) -> None:
    write_web_pages(tmp_path, 4, neobert_recipe("bf16").model.vocabulary_size)
    workspace = open_workspace(Selection(load(SPEED_LADDER), "speed", str(tmp_path), tmp_path / "runs"), Place("here"))
    stages = plan_variant(workspace, "M9", 0, ["pretraining"]).stages
    for run, context in zip(stages, GOALS_BY_CONTEXT, strict=True):
        stage, model = run.recipe.stages[-1], run.recipe.model
        assert (model.layers, model.width, model.heads, model.vocabulary_size) == (28, 768, 12, 30_522)
        assert (stage.context, stage.tokens_per_step, stage.steps) == (context, 65_536, 300)


def test_the_worse_precision_counts_and_each_side_is_at_its_best() -> None:
    names = ("bert_padded", "bert_defaults", "modernbert_bucketed")
    padded, defaults, bucketed = (COMPARISONS[f"pretraining_over_{name}"][1] for name in names)
    speeds = {
        f"{OURS}, fp32, eager": 400.0,
        f"{OURS}, bf16, eager": 500.0,
        f"{OURS}, bf16, compiled": 900.0,
        f"{PADDED.name}, fp32, eager": 100.0,
        f"{PADDED.name}, bf16, eager": 200.0,
        f"{PADDED.name}, bf16, compiled": 300.0,
        f"{BUCKETED.name}, bf16, eager": 450.0,
        f"{BUCKETED.name}, bf16, compiled": 600.0,
    }
    assert lowest_ratio(raced(**speeds), padded)[0]["median"] == 3.0
    assert lowest_ratio(raced(**speeds), defaults)[0]["median"] == 9.0
    assert lowest_ratio(raced(**speeds), bucketed)[0]["median"] == 1.5
