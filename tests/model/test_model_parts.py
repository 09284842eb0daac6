"""The parts of the encoder agree with the references of transformers and torch, and the kernels with each other."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend
from transformers import BertConfig, LlamaConfig
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRotaryEmbedding,
)

from neobert.model import attention, layers
from neobert.model.attention import (
    AttentionPlan,
    GatherIndex,
    attend,
    explicit_attention,
    gather_tokens,
    packed_plan,
    padded_plan,
    whole_rows_plan,
)
from neobert.model.encoder import query_key_value
from neobert.model.layers import FewKernelsRMSNorm, RMSNorm, SwiGLU
from neobert.model.positions import HalvesRotation, LearnedPositions, RealRotation, RotaryPositions, Rotation
from neobert.training.distributed import set_up_device
from tests.support.small_models import CONTEXT, small_model

ROWS, TOKENS, HEADS, HEAD_SIZE = 2, 11, 3, 8
WIDTH = HEADS * HEAD_SIZE
CLOSE = {"rtol": 0.0, "atol": 1e-5}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def llama() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=40,
        attn_implementation="eager",
    )


@pytest.fixture(scope="module")
def rotary() -> RotaryPositions:
    return RotaryPositions(small_model(), CONTEXT)


# Norms


def test_the_rms_norm_of_few_kernels_has_the_right_gradients():
    x, weight = normal(3, 5, WIDTH).double().requires_grad_(), normal(WIDTH, seed=1).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: FewKernelsRMSNorm.apply(*given, 1e-5), (x, weight))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_the_rms_norm_of_few_kernels_is_that_of_torch(dtype, tolerance, autocast):
    """Value and both gradients, relative to the largest number; backward under autocast too, as pre-training has it."""
    shape, weight = (4, 12, WIDTH), (1 + normal(WIDTH, seed=1) / 4).to(dtype)
    gradient = normal(*shape, seed=2).to(dtype)
    results = []
    for norm in (FewKernelsRMSNorm.apply, plain_rms_norm):
        given = (3 * normal(*shape)).to(dtype).requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            normed = norm(*given, 1e-5)
            results.append((normed, *torch.autograd.grad(normed, given, gradient)))
    for own, reference in zip(*results, strict=True):
        assert own.dtype == dtype
        assert (own - reference).abs().max() <= tolerance * reference.abs().max()


def plain_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return functional.rms_norm(x, (WIDTH,), weight, epsilon)


def test_compiled_and_vectorised_the_rms_norm_is_the_plain_composition(monkeypatch):
    """A compiler sees one graph without calls back into Python, and vmap sees operations that it knows."""
    monkeypatch.setattr(layers, "FEW_KERNELS_NUMBERS", 0)
    norm, x = RMSNorm(WIDTH, 1e-5), normal(2, 3, WIDTH)
    expected = norm(x)
    assert "FewKernels" in type(expected.grad_fn).__name__
    for other in (torch.compile(norm, backend="eager", fullgraph=True)(x), torch.vmap(norm)(x)):
        assert "FewKernels" not in type(other.grad_fn).__name__
        torch.testing.assert_close(other, expected, rtol=0, atol=1e-6)


# Rotary positions


def test_rotary_rotates_adjacent_pairs_like_gptj(rotary):
    positions = torch.stack((torch.arange(TOKENS), torch.arange(TOKENS) + 300))
    vectors = normal(ROWS, TOKENS, HEADS, HEAD_SIZE)
    turned = rotary.rotation(positions, "complex").rotate(vectors)
    sine, cosine = create_sinusoidal_positions(400, HEAD_SIZE)[positions].chunk(2, dim=-1)
    torch.testing.assert_close(turned, apply_rotary_pos_emb(vectors, sine, cosine), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_in_real_numbers_for_compilers_is_the_same(rotary, dtype):
    positions, vectors = torch.arange(TOKENS).expand(ROWS, TOKENS), normal(ROWS, TOKENS, HEADS, HEAD_SIZE).to(dtype)
    eager, compiled, exported = (rotary.rotation(positions, form) for form in ("complex", "halves", "real"))
    assert isinstance(compiled, HalvesRotation) and isinstance(exported, RealRotation)
    places = torch.tensor([[0, 5], [10, 13]])
    for kind in (compiled, exported):
        at_places = eager.at(places), kind.at(places), gather_tokens(vectors, places)
        for one, other, of in ((eager, kind, vectors), at_places):
            assert one.rotate(of).dtype == other.rotate(of).dtype == dtype
            expected = even_first(one.rotate(of)) if kind.wants_even_dimensions_first else one.rotate(of)
            turned = other.rotate(even_first(of) if kind.wants_even_dimensions_first else of)
            torch.testing.assert_close(turned.float(), expected.float(), rtol=0, atol=1e-6)


def test_the_table_of_a_compiled_model_holds_every_place_of_its_rows(rotary):
    """The same turns as an eager model's but for rounding, beyond the context too; padding has some turn."""
    positions = torch.stack((torch.arange(4096), torch.arange(4096).flip(0)))
    positions[0, -3:] = -1
    vectors = normal(2, 4096, 1, HEAD_SIZE)
    eager, compiled = rotary.rotation(positions, "complex"), rotary.rotation(positions, "halves")
    assert rotary.context < 4096
    turned, expected = compiled.rotate(even_first(vectors)), even_first(eager.rotate(vectors))
    torch.testing.assert_close(turned[positions >= 0], expected[positions >= 0], rtol=0, atol=1e-6)
    assert turned.isfinite().all()


def even_first(vectors: Tensor) -> Tensor:
    return torch.cat((vectors[..., ::2], vectors[..., 1::2]), dim=-1)


# Learned positions


def test_learned_positions_add_row_zero_to_padding_and_row_one_to_the_first_token():
    table = LearnedPositions(small_model(positions="learned"), 4)
    added = table.add(torch.zeros(1, 5, WIDTH), torch.tensor([[0, 1, 2, 3, -1]]), longest=5)
    assert torch.equal(added[0], table.weight[[1, 2, 3, 4, 0]])
    assert type(table.rotation(torch.zeros(1, 1), "complex")) is Rotation


# Feed-forwards


def test_swiglu_is_llamas_mlp(llama):
    ours, theirs = SwiGLU(WIDTH, 60), LlamaMLP(llama)
    theirs.gate_proj.weight.data, theirs.up_proj.weight.data = ours.w12.weight.data.chunk(2)
    theirs.down_proj.weight = ours.w3.weight
    hidden = normal(ROWS, TOKENS, WIDTH)
    torch.testing.assert_close(ours(hidden), theirs(hidden), **CLOSE)


# Attention against transformers


def projected(qkv: nn.Linear, part: int) -> Tensor:
    """The weight (heads, head size, width) of query (0), key (1) or value (2)."""
    return qkv.weight.data.unflatten(0, (HEADS, 3, HEAD_SIZE))[:, part]


def test_attention_is_bert_self_attention():
    qkv, hidden = nn.Linear(WIDTH, 3 * WIDTH, bias=False), normal(ROWS, TOKENS, WIDTH)
    config = BertConfig(hidden_size=WIDTH, num_attention_heads=HEADS, attn_implementation="eager")
    theirs = BertSelfAttention(config).eval()
    for part, linear in enumerate((theirs.query, theirs.key, theirs.value)):
        linear.weight.data = projected(qkv, part).flatten(0, 1)
        linear.bias.data.zero_()
    plan = padded_plan(torch.tensor([[1] * 11, [1] * 7 + [0] * 4]))
    query, key, value = query_key_value(qkv, HEADS, hidden, Rotation())
    torch.testing.assert_close(
        attend(query, key, value, plan).flatten(-2), theirs(hidden, attention_mask=plan.bias)[0], **CLOSE
    )


def test_rotary_attention_is_llama_attention_on_permuted_weights(llama, rotary):
    """LLaMA pairs entry i with i + half, ours pairs neighbours: the same with the rows of a head reordered."""
    qkv, hidden = nn.Linear(WIDTH, 3 * WIDTH, bias=False), normal(ROWS, TOKENS, WIDTH)
    theirs = LlamaAttention(llama, layer_idx=0).eval()
    halves = torch.cat((torch.arange(0, HEAD_SIZE, 2), torch.arange(1, HEAD_SIZE, 2)))
    theirs.q_proj.weight.data = projected(qkv, 0)[:, halves].flatten(0, 1)
    theirs.k_proj.weight.data = projected(qkv, 1)[:, halves].flatten(0, 1)
    theirs.v_proj.weight.data = projected(qkv, 2).flatten(0, 1)
    plan = padded_plan(torch.tensor([[1] * 11, [1] * 7 + [0] * 4]))
    positions = torch.arange(TOKENS).expand(ROWS, TOKENS)
    expected, _ = theirs(hidden, LlamaRotaryEmbedding(llama)(hidden, positions), attention_mask=plan.bias)
    query, key, value = query_key_value(qkv, HEADS, hidden, rotary.rotation(positions, "complex"))
    ours = attend(query, key, value, plan).flatten(-2) @ theirs.o_proj.weight.T
    torch.testing.assert_close(ours, expected, **CLOSE)


# Kernels against each other


DOCUMENTS = torch.tensor([[0] * 4 + [1] * 7, [0] * 2 + [1] * 5 + [-1] * 4])
PACKED = packed_plan(DOCUMENTS, torch.tensor([[*range(4), *range(7)], [0, 1, *range(5), -1, -1, -1, -1]]))


PLANS = {
    "packed": PACKED,
    "padded": padded_plan(torch.tensor([[1] * 11, [0] * 3 + [1] * 8])),
    "whole rows": whole_rows_plan(torch.zeros(ROWS, TOKENS)),
}


def vectors_of_attention(head_size: int = HEAD_SIZE, device: str = "cpu") -> list[Tensor]:
    return [normal(ROWS, TOKENS, HEADS, head_size, seed=seed).to(device).requires_grad_() for seed in range(3)]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_explicit_attention_equals_torchs_kernel_with_its_gradients(plan):
    inputs = vectors_of_attention()
    theirs = attend(*inputs, plan)
    ours = explicit_attention(*(tensor.transpose(1, 2) for tensor in inputs), plan.with_bias().bias).transpose(1, 2)
    torch.testing.assert_close(ours, theirs, **CLOSE)
    direction = normal(*ours.shape, seed=9)
    for one, other in zip(
        torch.autograd.grad(ours, inputs, direction), torch.autograd.grad(theirs, inputs, direction), strict=True
    ):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_at_query_slots_is_that_part_of_the_whole(plan, dtype):
    query, key, value = (tensor.detach().to(dtype) for tensor in vectors_of_attention())
    slots = GatherIndex.at(torch.tensor([[0, 4, 10], [9, 9, 2]]), TOKENS, used=torch.tensor([3, 0, 1, 5]))
    at_slots = attend(gather_tokens(query, slots.queries), key, value, plan, slots)
    tolerance = 1e-6 if dtype == torch.float32 else 2**-7
    whole = attend(query, key, value, plan)
    torch.testing.assert_close(at_slots, gather_tokens(whole, slots.indices), rtol=0, atol=tolerance)


def test_a_plan_with_documents_in_place_of_a_bias_attends_the_same():
    """What accelerators do where their variable-length kernels do not apply."""
    cu_seqlens, max_seqlen = attention._cu_seqlens(DOCUMENTS)
    plan = AttentionPlan(PACKED.positions, None, cu_seqlens, max_seqlen, DOCUMENTS)
    query, key, value = vectors_of_attention()
    slots = GatherIndex.at(torch.tensor([[0, 4, 10], [9, 9, 2]]), TOKENS)
    assert torch.equal(attend(query, key, value, plan), attend(query, key, value, PACKED))
    asking = gather_tokens(query, slots.queries)
    assert torch.equal(attend(asking, key, value, plan, slots), attend(asking, key, value, PACKED, slots))


@pytest.mark.parametrize("head_size", [8, 12, 11])
def test_heads_padded_for_a_kernel_give_the_same(monkeypatch, head_size):
    inputs = vectors_of_attention(head_size)
    expected = attend(*inputs, PACKED)
    sizes: list[int] = []
    kernel = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda *given, **how: sizes.append(given[0].shape[-1]) or kernel(*given, **how),
    )
    monkeypatch.setattr(attention, "CUDA_KERNELS", ("cpu",))
    torch.testing.assert_close(attend(*inputs, PACKED), expected, **CLOSE)
    assert sizes == [-(-head_size // 8) * 8]


def test_padding_on_either_side_is_given_no_place():
    plan = padded_plan(torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]]))
    assert plan.positions.tolist() == [[0, 1, 2, -1], [-1, -1, 0, 1], [-1, -1, -1, -1]]


@pytest.mark.gpu
@pytest.mark.parametrize("head_size", [64, 84, 88])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_variable_length_kernels_equal_the_cpu_with_their_gradients(head_size, dtype):
    plan = packed_plan(DOCUMENTS, PACKED.positions, torch.device("cuda"))
    on_cpu, on_cuda = vectors_of_attention(head_size), vectors_of_attention(head_size, "cuda")
    expected = attend(*on_cpu, PACKED)
    ours = attend(*(tensor.to(dtype) for tensor in on_cuda), plan)
    tolerance = {"rtol": 0.0, "atol": 1e-4 if dtype == torch.float32 else 3e-2}
    torch.testing.assert_close(ours.float().cpu(), expected, **tolerance)
    direction = normal(*expected.shape, seed=9)
    theirs = torch.autograd.grad(expected, on_cpu, direction)
    for one, other in zip(torch.autograd.grad(ours.float(), on_cuda, direction.cuda()), theirs, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=10 * tolerance["atol"])
    query, key, value = (tensor.detach().to(dtype) for tensor in on_cuda)
    cu_seqlens = torch.tensor([0, 2, 3, 3, 5, 6, 6, 6, 6], dtype=torch.int32)
    in_a_run = GatherIndex(torch.tensor([[0, 3, 10, 13, 14, 20]]), cu_seqlens=cu_seqlens[: len(plan.cu_seqlens)])
    by_row = GatherIndex.at(torch.tensor([[0, 4, 10], [9, 9, 2]]), TOKENS)
    for slots in (by_row, in_a_run)[: 1 if dtype == torch.float32 else 2]:
        there = slots.mapped(Tensor.cuda)
        at_slots = attend(gather_tokens(query, there.queries), key, value, plan, there)
        torch.testing.assert_close(at_slots.float().cpu(), gather_tokens(expected, slots.indices).detach(), **tolerance)


@pytest.mark.gpu
def test_padded_rows_take_variable_length_kernels_and_other_rows_not_those_of_cudnn():
    device = set_up_device()
    mask = torch.tensor([[1] * 11, [0] * 3 + [1] * 8])
    query, key, value = (vectors.detach() for vectors in vectors_of_attention(64))
    expected = attend(query, key, value, padded_plan(mask))
    plan = padded_plan(mask, device).to(device)
    there = [vectors.to(device, torch.bfloat16) for vectors in (query, key, value)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        ours = attend(*there, plan)
    called = {event.key for event in seen.key_averages()}
    assert not any("scaled_dot_product" in name for name in called) and any("flash" in name for name in called)
    torch.testing.assert_close(ours.float().cpu()[mask.bool()], expected[mask.bool()], rtol=0, atol=3e-2)
    rows = [vectors.transpose(1, 2) for vectors in there]
    for bias in (None, plan.bias.bfloat16()):
        assert torch._fused_sdp_choice(*rows, attn_mask=bias) != SDPBackend.CUDNN_ATTENTION.value
