"""Compiled fine-tuning gives what eager gives, compiles few graphs for a whole grid, and is chosen where it pays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx import GraphModule

from neobert.execution import CompileWord
from neobert.glue.batching import (
    LEAST_FIXED_TOKENS,
    PackedLayout,
    PaddedLayout,
    fixed_row_tokens,
)
from neobert.glue.finetuning import FineTuner
from neobert.training import compiling
from neobert.training.compiling import compile_model
from tests.glue.glue_worlds import CPU, classifier, digest, encoder_weights, marked_task, point, protocol, random_split

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's

CLOSE = {"rtol": 0.0, "atol": 2e-5}


def tuner_of(
    word: CompileWord, backend: str | Callable[..., Any] = "inductor", train: int = 72, **changes: object
) -> FineTuner:
    study = protocol(epochs=1, **changes)
    model = classifier(2, dropout=study.dropout)
    task = marked_task(train=train)
    return FineTuner(model, encoder_weights(model), task, study, CPU, PackedLayout(), word, backend)


def counting(graphs: list[GraphModule]) -> Callable[..., Callable[..., object]]:
    """A compiler that notes the graphs that it gets and runs them as they are."""

    def backend(graph: GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    return backend


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests() -> None:
    torch.compiler.reset()


@given(st.integers(1, 4096))
def test_fixed_rows_have_room_and_few_lengths(longest):
    tokens = fixed_row_tokens(longest)
    assert longest <= tokens < max(2 * longest, LEAST_FIXED_TOKENS + 1)
    assert tokens in {LEAST_FIXED_TOKENS << doublings for doublings in range(9)}


def test_compiled_updates_equal_eager_ones():
    """Nine updates with dropout in the head, of which the last batch is smaller."""
    cell = point(batch_size=16)
    eager, compiled = (tuner_of(word, "aot_eager", train=70) for word in ("off", "on"))
    plain, fast = eager.run(cell, seed=3), compiled.run(cell, seed=3)
    assert (eager.compiled, compiled.compiled) == (False, True)
    assert fast.curve == plain.curve
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(fast.weights[name], tensor, **CLOSE)


def test_a_grid_compiles_each_size_once_and_gives_equal_bits_each_time():
    """Three points at two batch sizes, rows of one length: two graphs, and evaluations make none."""
    graphs: list[GraphModule] = []
    tuner = tuner_of("on", counting(graphs))
    cells = [point(batch_size=8), point(batch_size=16), point(batch_size=8, learning_rate=1e-3)]
    outcomes = [tuner.run(cell, seed=0) for cell in cells]
    assert len(graphs) == 2
    assert digest(tuner.run(cells[0], seed=0)) == digest(outcomes[0])
    assert len(graphs) == 2


def test_the_graphs_of_a_gpu_are_compiled_once_for_all_sizes():
    """With the policy of a GPU: dynamic rows and tokens, of which each size is then only recorded. The rotary table has
    fixed sizes: symbols for them would have no source, so torch could not write a kernel's guard on them."""
    graphs: list[GraphModule] = []
    tuner = tuner_of("off", train=70)
    tuner.classifier.eval()  # without dropout
    rows, lengths, split = (32, 16, 8), (16, 32, 64), random_split(60, 2)
    batches = [
        tuner.layout.collate(split, np.flatnonzero(split.lengths <= longest)[:count], CPU, count)
        for count, longest in zip(rows, lengths, strict=True)
    ]
    assert len({tuple(batch.token_ids.shape) for batch in batches}) == 3
    exact = [tuner._logits(batch) for batch in batches]
    compile_model([(tuner.classifier.model, "forward")], CPU, backend=counting(graphs), dynamic=True)
    for batch, expected in zip(batches, exact, strict=True):
        torch.testing.assert_close(tuner._logits(batch), expected, **CLOSE)
    assert len(graphs) == 1
    nodes = list(graphs[0].graph.nodes)
    tables = [node.meta["example_value"].shape for node in nodes if node.op == "get_attr" and "table" in node.name]
    assert tables and all(isinstance(size, int) for shape in tables for size in shape)
    ids = next(node.meta["example_value"].shape for node in nodes if node.name == "l_token_ids_")
    assert all(isinstance(size, torch.SymInt) for size in ids)


def test_auto_compiles_on_a_gpu_once_the_updates_done_and_due_are_worth_it(monkeypatch):
    """As if this were a GPU, where compiling is worth nine updates: of runs of five the second is compiled."""
    graphs: list[GraphModule] = []
    tuner = tuner_of("auto", counting(graphs))
    assert tuner.schedule(point()).steps == 5
    plain = tuner.run(point(), seed=0)
    assert not tuner.compiled and not graphs, "on a CPU however many are due"
    monkeypatch.setattr(compiling, "AUTO_DEVICES", ("cpu",))
    monkeypatch.setattr(compiling, "UPDATES_WORTH_COMPILING", 9)
    tuner = tuner_of("auto", counting(graphs))
    assert digest(tuner.run(point(), seed=0)) == digest(plain) and not tuner.compiled
    tuner.run(point(), seed=0)
    assert tuner.compiled and len(graphs) == 1


def test_an_encoder_without_fixed_sizes_is_never_compiled():
    tuner = tuner_of("on")
    tuner.layout = PaddedLayout(0, 32)
    assert tuner._compiles(updates=9) is False


@pytest.mark.slow
def test_torchs_own_compiler_gives_eager_updates():
    """The real compiler in place of one that only traces."""
    eager, compiled = (tuner_of(word) for word in ("off", "on"))
    plain, fast = (tuner.run(point(), seed=0) for tuner in (eager, compiled))
    assert compiled.compiled and fast.score == plain.score
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(fast.weights[name], tensor, **CLOSE)
