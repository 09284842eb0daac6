"""The whole encoder: equal to its description, blind to neighbours and padding, exact where it saves work."""

from typing import NamedTuple

import hypothesis
import pytest
import torch
from functorch.compile import make_boxed_func
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from neobert.model import attention, heads
from neobert.model.attention import AttentionPlan, GatherIndex, gather_tokens, packed_plan, padded_plan, whole_rows_plan
from neobert.model.heads import MaskedLanguageModel
from tests.support.described_model import described_logits
from tests.support.small_models import CONTEXT, FORMS, NEOBERT_FORM, language_model, pack, random_document

NETWORKS = {name: language_model(**form) for name, form in FORMS.items()}
CLOSE = {"rtol": 0.0, "atol": 1e-5}
FEW_OR_MANY_DOCUMENTS = st.one_of(
    st.lists(st.integers(1, 8), max_size=3), st.lists(st.integers(1, 3), min_size=5, max_size=7)
)
"""Lengths of the documents of a row, which hold at most `CONTEXT` tokens together."""


@pytest.fixture(params=FORMS)
def network(request) -> MaskedLanguageModel:
    return NETWORKS[request.param]


# Against an independent forward


def test_logits_are_those_of_the_description_with_and_without_padding(network):
    lengths = (CONTEXT, 9, 1)
    documents = [random_document(length) for length in lengths]
    token_ids, numbers, _ = pack([[document] for document in documents], CONTEXT)
    padded = network(token_ids, padded_plan(numbers >= 0))
    for row, document in enumerate(documents):
        expected = described_logits(network.state_dict(), document)
        torch.testing.assert_close(padded[row, : len(document)], expected, **CLOSE)
        alone = network(document[None], whole_rows_plan(document[None]))
        torch.testing.assert_close(alone[0], expected, **CLOSE)


def test_a_head_padded_for_aligned_rows_gives_the_same_loss_and_gradients(network, monkeypatch):
    documents = [random_document(length) for length in (CONTEXT, 9)]
    token_ids, numbers, _ = pack([[document] for document in documents], CONTEXT)
    columns: list[int] = []
    cross_entropy = heads.functional.cross_entropy

    def seen(logits: Tensor, *words: Tensor, **named: object) -> Tensor:
        columns.append(logits.shape[1])
        return cross_entropy(logits, *words, **named)

    monkeypatch.setattr(heads.functional, "cross_entropy", seen)
    found = []
    for device in ("cuda", "cpu"):
        monkeypatch.setattr(attention, "CUDA_KERNELS", (device,))
        loss = network(token_ids, padded_plan(numbers >= 0), None, token_ids)
        found.append([loss, *torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)])
    assert columns == [50, 64]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# Neighbours and padding


@torch.no_grad()
@hypothesis.settings(max_examples=25, derandomize=True)
@hypothesis.given(
    rows=st.lists(FEW_OR_MANY_DOCUMENTS, min_size=1, max_size=3),
    form=st.sampled_from(list(FORMS)),
)
def test_neighbours_and_filler_never_change_a_documents_states(rows, form):
    """Any split of rows, rows of filler alone included: each document has the states that it has alone."""
    encoder = NETWORKS[form].model
    documents = [[random_document(length, seed) for seed, length in enumerate(lengths)] for lengths in rows]
    token_ids, numbers, positions = pack(documents, CONTEXT)
    together = encoder(token_ids, packed_plan(numbers, positions))
    assert torch.isfinite(together).all()
    for row, texts in enumerate(documents):
        for number, text in enumerate(texts):
            alone = encoder(text[None], whole_rows_plan(text[None]))[0]
            torch.testing.assert_close(together[row, numbers[row] == number], alone, **CLOSE)


def test_documents_that_share_a_number_see_each_other(network):
    first, second, other = (random_document(6, seed) for seed in range(3))
    rows = [[first, second], [first, other]]
    token_ids, numbers, positions = pack(rows, 12)
    apart = network.model(token_ids, packed_plan(numbers, positions))
    across = network.model(token_ids, packed_plan(torch.zeros_like(numbers), positions))
    torch.testing.assert_close(apart[0, :6], apart[1, :6], **CLOSE)
    assert (across[0, :6] - across[1, :6]).abs().max() > 1e-2
    assert (across[0, :6] - apart[0, :6]).abs().max() > 1e-2


def test_learned_positions_stop_at_the_context_and_rotary_ones_do_not():
    document = random_document(CONTEXT + 1)[None]
    assert language_model().model(document, whole_rows_plan(document)).shape[1] == CONTEXT + 1
    with pytest.raises(ValueError, match=f"has {CONTEXT}"):
        language_model(**FORMS["M0 form"]).model(document, whole_rows_plan(document))


# Loss, slots and gradients


class PackedBatch(NamedTuple):
    """Three documents in a row, one in the next, none in the last. `targets` are at the `slots`, four in each of two
    rows and then unused ones; `everywhere` are the same at all tokens."""

    token_ids: Tensor
    numbers: Tensor
    plan: AttentionPlan
    slots: GatherIndex
    targets: Tensor
    everywhere: Tensor


@pytest.fixture
def batch() -> PackedBatch:
    texts = [[random_document(7), random_document(9, 1), random_document(6, 2)], [random_document(20, 3)], []]
    token_ids, numbers, positions = pack(texts, CONTEXT)
    columns = torch.tensor([[0, 6, 7, 21, 0], [3, 4, 9, 19, 0], [0, 0, 0, 0, 0]])
    slots = GatherIndex.at(columns, token_ids.shape[1], used=torch.tensor([0, 1, 2, 3, 5, 6, 7, 8, 0, 0]))
    targets = (gather_tokens(token_ids, slots.indices) + 1) % 50
    targets[8:] = -100
    everywhere = torch.full_like(token_ids, -100)
    everywhere.view(-1)[slots.indices[:8]] = targets[:8]
    return PackedBatch(token_ids, numbers, packed_plan(numbers, positions), slots, targets, everywhere)


def test_the_loss_is_torchs_cross_entropy_of_the_targets(network, batch):
    token_ids, _, plan, slots, targets, _ = batch
    chosen = network(token_ids, plan, slots)[targets != -100].log_softmax(-1)
    expected = -chosen.gather(1, targets[targets != -100][:, None]).sum()
    loss = network(token_ids, plan, slots, targets)
    assert loss.shape == () and loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)


def test_states_loss_and_gradients_at_slots_are_the_full_ones(network, batch):
    token_ids, _, plan, slots, targets, everywhere = batch
    states = network.model(token_ids, plan)
    at_slots = network.model(token_ids, plan, slots)
    torch.testing.assert_close(at_slots, gather_tokens(states, slots.indices), rtol=0, atol=2e-6)
    parameters = list(network.parameters())
    pruned, full = network(token_ids, plan, slots, targets), network(token_ids, plan, None, everywhere)
    torch.testing.assert_close(pruned, full, rtol=1e-6, atol=0)
    for one, other in zip(torch.autograd.grad(pruned, parameters), torch.autograd.grad(full, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_gradients_of_a_packed_batch_are_the_sum_over_its_documents(network, batch):
    token_ids, numbers, plan, _, _, everywhere = batch
    parameters = list(network.parameters())
    packed = torch.autograd.grad(network(token_ids, plan, None, everywhere), parameters)
    each = []
    for row, number in ((0, 0), (0, 1), (0, 2), (1, 0)):
        here = numbers[row] == number
        document = token_ids[row, here][None]
        loss = network(document, whole_rows_plan(document), None, everywhere[row, here][None])
        each.append(torch.autograd.grad(loss, parameters))
    for together, *apart in zip(packed, *each, strict=True):
        torch.testing.assert_close(together, sum(apart), rtol=0, atol=1e-4)


def test_dropout_acts_in_training_alone():
    network = language_model(dropout=0.5)
    document = random_document(8)[None]
    plan = whole_rows_plan(document)
    undropped = language_model().model(document, plan)
    assert not torch.equal(network.train().model(document, plan), undropped)
    assert torch.equal(network.eval().model(document, plan), undropped)


def test_the_encoder_compiles_to_one_graph_without_angles_which_an_evaluation_may_trace_first():
    """Rotary positions come from a table: a compiler would fuse their computation into every block."""
    graphs = []

    def noted(graph, inputs):
        graphs.append({node.target for node in graph.graph.nodes if node.op == "call_function"})
        return make_boxed_func(graph)

    document = random_document(8)[None]
    network, plan = language_model(**NEOBERT_FORM), whole_rows_plan(document)
    backend = aot_autograd(fw_compiler=noted, bw_compiler=noted)
    compiled = torch.compile(network.model, backend=backend, fullgraph=True, dynamic=False)
    with torch.inference_mode():
        states = compiled(document, plan)
    compiled(document, plan).sum().backward()
    torch.testing.assert_close(states.clone(), network.model(document, plan), **CLOSE)
    assert len(graphs) == 3
    aten = torch.ops.aten
    angles = {aten.cos.default, aten.sin.default, aten.polar.default, aten.pow.Scalar}
    assert all(aten.mm.default in graph and not graph & angles for graph in graphs)
