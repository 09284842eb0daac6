"""Compiled models: when models are compiled, that the first steps compile all, and what it changes."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._inductor import config as inductor

from neobert.execution import CompileWord
from neobert.kinds.pretraining import PretrainingRun
from neobert.recipe import Precision
from neobert.runs.layout import Layout
from neobert.training import compiling
from neobert.training.compiling import MOST_SIZES, UPDATES_WORTH_COMPILING, compile_model, wants_compiling
from neobert.training.engine import Step
from neobert.training.pretraining import PretrainingTrainer
from tests.support.tiny_runs import (
    assert_equal_weights,
    beside,
    claimed,
    curve,
    finish,
    kill_after,
    record,
    tiny_model,
    tiny_run,
    tiny_stage,
    trainer_of,
    work,
    write_tiny_run,
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch's own

WARM_UP_STEPS, STEPS = 16, 24
COMPILED_STEPS, STOPPED_AFTER = 8, 5
BF16_BOUND = 2e-3
"""Of a loss, relative: bf16 has 8 bits of precision, and a fused kernel rounds elsewhere than several do."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with the tokenised corpus."""
    root = tmp_path_factory.mktemp("corpus")
    trainer_of(root, tiny_run())
    return root


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Of other tests. The compiler is not tried out on vector instructions that the processor says it has."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=MOST_SIZES), inductor.patch({"cpp.vec_isa_ok": True}):
        yield
    torch._dynamo.reset()


def losses(steps: Iterator[Step]) -> list[float]:
    return [step.measured().loss for step in steps]


@pytest.mark.parametrize(
    ("word", "device", "few", "many"),
    [
        ("auto", "cuda", False, True),
        ("auto", "cpu", False, False),
        ("on", "cpu", True, True),
        ("off", "cuda", False, False),
    ],
)
def test_auto_compiles_on_a_gpu_where_enough_updates_are_due(
    word: CompileWord, device: str, few: bool, many: bool
) -> None:
    updates = (UPDATES_WORTH_COMPILING - 1, UPDATES_WORTH_COMPILING)
    assert [wants_compiling(word, torch.device(device), count) for count in updates] == [few, many]
    assert wants_compiling(word, torch.device(device)) == many, "of pre-training"


# Recompiles


@pytest.mark.parametrize("packing", ["padded", "packed"])
def test_no_step_behind_the_first_ones_compiles_anything(corpus: Path, packing: str) -> None:
    """The graphs are real ones, from torch's tracer; what would be made of them does not matter here."""
    stage = tiny_stage(context=64, tokens_per_step=4096, steps=STEPS)
    run = tiny_run(packing=packing, model=tiny_model(layers=1), stages=(stage,))
    trainer = trainer_of(corpus, run, micro_batch_tokens=2048)
    trainer.engine.restore_optimizer({})
    counter = CompileCounter()
    trainer.model.compile(backend=counter, dynamic=False)
    trainer.compiled = True
    seen = []
    for step in trainer.steps(0):
        step.measured()
        seen.append(counter.frame_count)
    assert len(seen) == STEPS and seen[0] >= 1
    assert seen[WARM_UP_STEPS:] == [seen[WARM_UP_STEPS - 1]] * (STEPS - WARM_UP_STEPS)
    assert seen[-1] <= MOST_SIZES


def test_models_of_earlier_runs_do_not_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it a long-lived worker would train eagerly, and say nothing."""
    monkeypatch.setattr(compiling, "MOST_SIZES", 2)
    counter, device = CompileCounter(), torch.device("cpu")
    for width in range(1, 5):
        layer = torch.nn.Linear(width, width)
        compile_model([(layer, "forward")], device, backend=counter)
        layer(torch.ones(width))
        assert counter.frame_count == width


# The same numbers


def compiled_run(precision: Precision = "fp32") -> PretrainingRun:
    """All of its micro-batches have one size."""
    stage = tiny_stage(context=64, tokens_per_step=1024, steps=COMPILED_STEPS, warmup_steps=2, decay_steps=6)
    model = tiny_model(layers=1, dropout=0.0)
    return tiny_run(packing="packed", precision=precision, model=model, stages=(stage,))


def begun(root: Path, run: PretrainingRun, word: str) -> PretrainingTrainer:
    trainer = trainer_of(root, run, micro_batch_tokens=1024, compile=word)
    assert trainer.restore() == 0
    return trainer


def test_a_compiled_run_has_the_losses_of_an_eager_one_and_each_goes_on_as_it_began_bit_for_bit(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = compiled_run()
    root = beside(tmp_path / "compiled", corpus)
    undisturbed = begun(root, run, "on")
    steps = undisturbed.steps(0)
    first = losses(islice(steps, STOPPED_AFTER))
    assert undisturbed.compiled and undisturbed.totals.compile_seconds > 0
    with claimed(Layout(root), run.id) as claim:
        undisturbed.save(STOPPED_AFTER, claim.check)
    rest = losses(steps)
    apart = beside(tmp_path / "eager", corpus)
    eager = begun(apart, run, "off")
    assert not eager.compiled and losses(eager.steps(0)) == pytest.approx(first + rest, rel=1e-5)
    with claimed(Layout(apart), run.id) as claim:
        eager.save(COMPILED_STEPS, claim.check)
    resumed = trainer_of(apart, run, micro_batch_tokens=1024, compile="on")
    assert resumed.restore() == COMPILED_STEPS and not resumed.compiled
    assert "continues without compiling, as it began" in capsys.readouterr().err

    resumed = trainer_of(root, run, micro_batch_tokens=1024, compile="off")
    assert resumed.restore() == STOPPED_AFTER and resumed.compiled
    assert "continues compiled, as it began" in capsys.readouterr().err
    assert losses(resumed.steps(STOPPED_AFTER)) == rest
    assert resumed.totals.compile_seconds > undisturbed.totals.compile_seconds
    ours, theirs = resumed.model.state_dict(), undisturbed.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.drill
def test_drill_kill_9_of_a_compiled_run_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    """With sizes that come and go, and dropout: each of both commands compiles for itself."""
    run = tiny_run()
    roots = [beside(tmp_path / name, corpus) for name in ("undisturbed", "killed")]
    for root in roots:
        write_tiny_run(root, run, compile="on")
    kill_after(roots[1], run, 7, seconds=600)
    for root in roots:
        finish(root, run.reference)
        assert record(root, run)["compiled"]
    assert curve(roots[0], run) == curve(roots[1], run)
    assert_equal_weights(*roots, run)


@pytest.mark.slow
def test_in_bf16_a_compiled_run_has_the_losses_of_an_eager_one_within_its_precision(
    corpus: Path, tmp_path: Path
) -> None:
    run = compiled_run("bf16")
    curves = [losses(begun(beside(tmp_path / word, corpus), run, word).steps(0)) for word in ("on", "off")]
    assert curves[0] == pytest.approx(curves[1], rel=BF16_BOUND)


def test_a_model_that_cannot_be_compiled_ends_its_run_in_one_sentence(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    root, run = beside(tmp_path / "on", corpus), compiled_run()
    write_tiny_run(root, run, compile="on")
    with inductor.patch({"cpp.cxx": (None, str(tmp_path / "no-such-compiler")), "fx_graph_cache": False}):
        assert work(root, run.reference) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cannot be compiled here" in said and "take --compile off" in said
