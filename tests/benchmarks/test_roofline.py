"""The roofline: its table is that of its counts, the counts are those of the code, and times follow from both."""

import re
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace

import pytest
import torch

from benchmarks.contenders import MODES, Mode, neobert_recipe
from benchmarks.lowering import trace
from benchmarks.measuring import README, between_markers
from benchmarks.pretended_cuda import PRODUCTS, Product, pretending_process
from benchmarks.roofline import (
    BEGIN,
    CONTEXTS,
    COUNTED,
    END,
    HOST_SECONDS_PER_LAUNCH,
    RATES,
    Rates,
    StepCounts,
    attention_flops,
    count_eager,
    count_step,
    expected_speed,
    first_batch,
    main,
    product_seconds,
    read_counts,
    table,
)
from neobert.errors import EXIT_DONE, EXIT_REFUSED, MissingData
from neobert.recipe import PretrainingPrecision
from tests.support.golden_files import GoldenFiles

SLOTS = 4096
LAYERS = 4

SMALL: tuple[tuple[PretrainingPrecision, Mode], ...] = (
    ("bf16", "eager"),
    ("bf16", "compiled"),
    ("bf16_residual", "eager"),
)

H200 = RATES["H200"]
Steps = dict[tuple[PretrainingPrecision, Mode], StepCounts]


@pytest.fixture(scope="module")
def process() -> Iterator[Executor]:
    """Where a GPU can be pretended."""
    try:
        with pretending_process() as process:
            yield process
    except MissingData as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def small_steps(process: Executor) -> Steps:
    """Steps of four layers and four rows."""
    return {
        (precision, mode): count_step(process, neobert_recipe(precision, layers=LAYERS), mode, CONTEXTS[0], SLOTS)
        for precision, mode in SMALL
    }


def test_the_table_of_the_readme_is_that_of_the_counts() -> None:
    steps = read_counts()
    assert [(step.context, step.precision, step.mode) for step in steps] == [
        (context, *counted) for context in CONTEXTS for counted in COUNTED
    ]
    assert between_markers(README.read_text(), BEGIN, END, table(steps)) == README.read_text()


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the fusion on record is that of torch 2.13")
def test_a_small_step_has_the_counts_on_record(small_steps: Steps, golden: GoldenFiles) -> None:
    """What launches or moves more, or is fused less, shows here."""
    counts = {
        f"{precision}, {mode}": {"launches": step.launches, "streamed_bytes": step.streamed_bytes}
        for (precision, mode), step in small_steps.items()
    }
    golden.compare_entries("roofline.json", counts)


def test_compiling_fuses_and_a_stream_in_bf16_moves_less(small_steps: Steps) -> None:
    """For each row: a batch of exact sizes keeps one without a token."""
    eager, compiled, stream = (small_steps[counted] for counted in SMALL)
    recipe = neobert_recipe("bf16", layers=LAYERS)
    rows = {mode: len(first_batch(recipe, CONTEXTS[0], SLOTS, mode).token_ids) for mode in MODES}
    assert compiled.streamed_bytes / rows["compiled"] < 0.85 * eager.streamed_bytes / rows["eager"]
    assert stream.streamed_bytes < 0.9 * eager.streamed_bytes
    own = {step.mode: step.launches for step in read_counts() if (step.precision, step.context) == ("bf16", 1024)}
    assert own["compiled"] < 0.7 * own["eager"]


def test_a_compiled_step_reads_its_angles_from_a_table() -> None:
    """Kernels would compute them again in every block, and no kernel computes with complex numbers. The activation is
    found, so the search is known to work. All blocks but the last share a graph."""
    recipe = neobert_recipe("bf16", layers=LAYERS)
    block, last, loss = trace(recipe, first_batch(recipe, CONTEXTS[0], SLOTS, "compiled"))
    assert (block.calls, last.calls, loss.calls) == (LAYERS - 1, 1, 1)
    for part in (block, last):
        called = " ".join(str(node.target) for node in part.graph.graph.nodes if node.op.startswith("call"))
        assert re.search("silu", called) and not re.search(r"(cos|sin|pow|polar|complex)\b", called)


def test_what_is_not_compiled_has_no_products(process: Executor) -> None:
    counts = process.submit(count_eager, neobert_recipe("bf16", layers=LAYERS), CONTEXTS[0], SLOTS, "compiled").result()
    outside = counts.outside.launches
    assert outside["embedding"] == outside["_fused_rms_norm"] == outside["_fused_rms_norm_backward"] == 1
    assert not outside.keys() & PRODUCTS and not any("attn" in name or "silu" in name for name in outside)


def test_products_are_those_of_the_model(small_steps: Steps) -> None:
    """Six operations for each entry of a matrix and token; the last layer and the head at predicted tokens."""
    recipe = neobert_recipe("bf16", layers=LAYERS)
    batch = first_batch(recipe, CONTEXTS[0], SLOTS, "eager")
    width, hidden = recipe.model.width, 2048
    tokens, predicted = batch.token_ids.numel(), len(batch.targets)
    keys_values, others = 2 * width**2, 2 * width**2 + 3 * width * hidden
    columns = -(-recipe.model.vocabulary_size // 64) * 64  # padded on CUDA
    at_predicted = others + columns * width
    entries = tokens * ((LAYERS - 1) * (keys_values + others) + keys_values) + predicted * at_predicted
    assert small_steps["bf16", "eager"].product_flops == pytest.approx(6 * entries, rel=1e-6)


def test_attention_is_counted_by_the_lengths_of_documents() -> None:
    recipe = neobert_recipe("bf16", layers=1)
    batch = first_batch(recipe, CONTEXTS[0], SLOTS, "eager")
    documents = batch.plan.documents
    assert documents is not None
    rows = [row.unique(return_counts=True)[1] for row in documents]
    everywhere = sum(float((lengths.double() ** 2).sum()) for lengths in rows)
    last, both = (attention_flops(batch, neobert_recipe("bf16", layers=layers)) for layers in (1, 2))
    added = {tokens: both[tokens] - last[tokens] for tokens in both}
    assert sum(added.values()) == 12 * recipe.model.width * everywhere
    assert 0.1 * sum(added.values()) < sum(last.values()) < 0.3 * sum(added.values())  # a fifth of the tokens asks
    full_rows = sum(1 for lengths in rows for length in lengths if length == CONTEXTS[0])
    assert added[1024] == 12 * recipe.model.width * full_rows * 1024**2
    assert added[512] > 0 == added[2048] == added[4096]


def test_a_product_takes_the_longer_of_its_operations_and_its_bytes() -> None:
    rates = Rates(products=100e12, attention={}, memory=1e12)
    large, thin = Product("bfloat16", 1, 4096, 4096, 4096), Product("bfloat16", 1, 8, 4096, 4096)
    assert product_seconds(large, rates) == large.flops / 100e12
    assert product_seconds(thin, rates) == pytest.approx(2 * 4096 * 4096 / 1e12, rel=0.01)
    assert product_seconds(large._replace(columns=4097), rates) > 1.9 * product_seconds(large, rates)


def step_of(**changes: object) -> StepCounts:
    fields = {"real_tokens": 1000, "launches": 10, "streamed_bytes": 10**9, "products": {}}
    attention = {"attention_flops": {512: 1e12, 2048: 3e12}}
    return replace(StepCounts("bf16", "eager", 1024, 0, 0, 0, {}, {}), **{**fields, **attention, **changes})


def test_a_step_takes_what_its_kernels_take_or_what_their_launches_do() -> None:
    step = step_of()
    rates = Rates(products=1.0, attention={512: 1e14, 1024: 2e14, 4096: 4e14}, memory=1e12)
    assert step.seconds(rates) == pytest.approx(1e12 / 1e14 + 3e12 / 2e14 + 1e9 / 1e12)
    assert step.tokens_per_second("H200") == 1000 / step.seconds(H200)
    assert step_of(launches=10**6).seconds(H200) == 10**6 * HOST_SECONDS_PER_LAUNCH


def test_counts_survive_their_file() -> None:
    step = step_of(products={Product("bfloat16", 1, 2, 3, 4): 5})
    assert StepCounts.of_json(step.as_json()) == step


@pytest.mark.parametrize("mode", MODES)
def test_a_gpu_that_was_computed_for_is_known_by_its_drivers_name(mode: Mode) -> None:
    step = next(step for step in read_counts() if step.mode == mode)
    assert expected_speed("NVIDIA H100 80GB HBM3", mode, "FA3") == step.tokens_per_second("H100")
    for other in ("Tesla T4", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"):
        assert expected_speed(other, mode, "FA3") is None
    assert expected_speed("NVIDIA A100-SXM4-80GB", mode, "FA3") == step.tokens_per_second("A100")
    for other in ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-80GB"):
        assert expected_speed(other, mode, "FA3") is None


@pytest.mark.parametrize("kernels", ["flash_attn", "torch"])
def test_a_hopper_is_expected_to_be_as_fast_as_the_kernels_that_are_installed(kernels: str) -> None:
    hopper, ampere = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
    with_3, with_2 = (expected_speed(hopper, "compiled", name) for name in ("FA3", kernels))
    assert with_3 is not None and with_2 is not None and 0.85 * with_3 < with_2 < 0.95 * with_3
    assert expected_speed(ampere, "compiled", kernels) == expected_speed(ampere, "compiled", "FA3")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slots", "1024"], "is less than a row of 4096 tokens"),
        (["--write", "--layers", "3"], "leave out --layers"),
        (["--table", "--layers", "3"], "leave out --layers"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == EXIT_REFUSED
    assert said in capsys.readouterr().err


def test_the_command_prints_the_table_that_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--table"]) == EXIT_DONE
    assert capsys.readouterr().out.strip() == table(read_counts())
