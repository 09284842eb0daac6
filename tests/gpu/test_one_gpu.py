"""Steps of NeoBERT's own shape on a GPU: numbers of fp32 on a CPU, memory as planned, no waits, the kernels chosen."""

import re
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from ablations.loading import papers
from benchmarks.data import IDS
from benchmarks.measuring import race, tokens_per_second
from benchmarks.pretraining import MODES, OURS, RATE, Mode, Setting
from neobert.execution import CompileWord
from neobert.glue.encoding import EncodedSplit, EncodedTask
from neobert.glue.finetuning import EvaluatedStep, FineTuner
from neobert.glue.tasks import TASKS
from neobert.model import attention
from neobert.model.build import build_classifier, initialize
from neobert.model.heads import encoder_part
from neobert.model.size import MicroBatchShape, training_memory
from neobert.recipe import Point
from neobert.training.accounting import forget_peak_memory
from tests.gpu.steps import (
    TOKENS_PER_STEP,
    StepNumbers,
    contrastive_step,
    distance,
    exact,
    gpu_setting,
    pretraining_step,
    random_texts,
    text_encoder,
    varied_batches,
    vectors_of,
    waits,
)
from tests.gpu.workers import recipe_with, small_run

pytestmark = pytest.mark.gpu
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def step_in_fp32(setting: Setting) -> StepNumbers:
    return pretraining_step(exact(setting), "eager")


@pytest.mark.parametrize("mode", MODES)
def test_a_step_has_the_loss_and_gradients_of_fp32_on_the_cpu(
    setting: Setting, mode: Mode, step_in_fp32: StepNumbers, record_property: Record
) -> None:
    found = pretraining_step(setting, mode)
    for part in ("gradient", "attention"):
        record_property(f"distance of {part}", distance(getattr(found, part), getattr(step_in_fp32, part)))
    found.assert_near(step_in_fp32)


def test_a_contrastive_step_has_the_vectors_loss_and_gradient_of_fp32_on_the_cpu(setting: Setting) -> None:
    assert distance(vectors_of(setting, "bf16"), vectors_of(exact(setting), "fp32")) <= 0.05
    loss, gradient = contrastive_step(setting, "bf16")
    true_loss, true_gradient = contrastive_step(exact(setting), "fp32")
    assert loss == pytest.approx(true_loss, rel=0.05)
    assert distance(gradient, true_gradient) <= 0.05


def test_a_step_takes_the_memory_that_a_dry_run_computes(setting: Setting, record_property: Record) -> None:
    """Its peak, and in 30 steps of different sizes what the allocator takes beyond theirs."""
    engine, batch = setting.own_engine("eager"), setting.own_batches("eager")[0].to(setting.device)
    engine.step([batch], RATE).measured()  # creates the optimizer's state
    forget_peak_memory(setting.device)
    engine.step([batch], RATE).measured()
    rows, context = batch.token_ids.shape
    shape = MicroBatchShape(rows, context, len(batch.targets))
    computed = training_memory(setting.recipe, context, shape, "single", 1, rows * context)
    peak = torch.cuda.max_memory_allocated()
    record_property("GB at the peak", peak / 1e9)
    assert peak == pytest.approx(computed.total - computed.reserve, rel=0.08)
    torch.cuda.empty_cache()  # else what the first step reserved would count
    forget_peak_memory(setting.device)
    for one in varied_batches(setting, 30):
        engine.step([one.to(setting.device)], RATE).measured()
    reserved = torch.cuda.max_memory_reserved()
    record_property("GB reserved", reserved / 1e9)
    assert reserved - torch.cuda.max_memory_allocated() <= computed.reserve


@pytest.mark.parametrize("context", [1024, 4096])
def test_a_compiled_step_is_faster_than_an_eager_one(setting: Setting, context: int, record_property: Record) -> None:
    """In updates of about 65,536 slots."""
    steps = gpu_setting(setting.recipe, context, TOKENS_PER_STEP, setting.device).contenders(("bf16",), ())
    speeds = tokens_per_second(race(steps, rounds=5, steps=50))
    for name, speed in speeds.items():
        record_property(f"real tokens a second, {name}", speed)
    assert speeds[f"{OURS}, bf16, compiled"] > speeds[f"{OURS}, bf16, eager"]


def test_steps_of_the_trainer_wait_for_nothing(setting: Setting, tmp_path: Path) -> None:
    """Its loader included."""
    trainer = small_run(tmp_path, recipe_with(8)).trainer("run")
    trainer.begin()
    steps = trainer.steps(0)
    for step in islice(steps, 3):
        step.measured()
    assert [waits(partial(next, steps)) for _ in range(3)] == [False] * 3
    steps.close()  # type: ignore[attr-defined]  # a generator, whose thread ends with it


@torch.no_grad()
def test_batches_of_texts_wait_for_nothing(setting: Setting) -> None:
    encoder, texts = text_encoder(setting, "bf16"), random_texts(setting)

    def encode() -> None:
        encoder(encoder.collate(texts, setting.device, "bf16"))

    encode()
    assert [waits(encode) for _ in range(3)] == [False] * 3


TRIGONOMETRY = re.compile(r"(^|_)(cos|sin|polar)(_|$)")
"""Names of kernels that compute angles. Norms may be named after a power."""
FLASH = re.compile(r"flash|fmha", re.IGNORECASE)


def test_a_compiled_step_attends_in_flash_kernels_and_computes_no_angles(
    setting: Setting, record_property: Record
) -> None:
    engine, batch = setting.own_engine("compiled"), setting.own_batches("compiled")[0].to(setting.device)
    for _ in range(3):
        engine.step([batch], RATE).measured()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        engine.step([batch], RATE).measured()
    times = {
        event.key: event.self_device_time_total
        for event in seen.key_averages()
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation  # whose time is that of its kernels
    }
    total = sum(times.values())
    for name in sorted(times, key=lambda name: -times[name])[:12]:
        record_property(f"share of {name[:100]}", times[name] / total)
    assert sum(time for name, time in times.items() if TRIGONOMETRY.search(name)) <= 0.04 * total
    assert sum(time for name, time in times.items() if FLASH.search(name)) >= 0.1 * total


def test_flash_attn_has_the_values_and_gradients_of_torchs_kernels(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package of the extra `flash`, on documents of which one is empty."""
    pytest.importorskip("flash_attn", reason="flash_attn is not installed (extra flash)")
    monkeypatch.setattr(attention, "current_flash_attention_impl", lambda: None)
    documents = torch.tensor([0, 3, 3, 70, 128], dtype=torch.int32, device=setting.device)
    plan = attention.AttentionPlan(documents[None], cu_seqlens=documents, max_seqlen=67)
    tokens = torch.randn(3, 1, 128, 4, 64, device=setting.device, dtype=torch.bfloat16, requires_grad=True)
    found = []
    for function in (attention.flash_attn_varlen_func, None):
        monkeypatch.setattr(attention, "flash_attn_varlen_func", function)
        attended = attention.attend(*tokens, plan)
        found.append((attended.float(), *torch.autograd.grad(attended.square().sum(), tokens)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.02, atol=0.02)


CHOSEN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""What is left once cuDNN is disabled, as by `set_up_device`."""


@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
def test_rows_of_always_new_lengths_are_attended_to_no_slower_than_by_cudnn(setting: Setting, padded: bool) -> None:
    """External encoders compute attention by row, and their batches differ in length."""

    def seconds(tokens: int) -> float:
        query, key, value = torch.randn(
            3, 32, 12, tokens, 64, device=setting.device, dtype=torch.bfloat16, requires_grad=True
        )
        mask = torch.zeros(32, 1, 1, tokens, device=setting.device, dtype=torch.bfloat16)
        mask[..., -tokens // 4 :] = float("-inf")
        torch.cuda.synchronize()
        started = time.perf_counter()
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask if padded else None)
        torch.autograd.grad(attended.sum(), (query, key, value))
        torch.cuda.synchronize()
        return time.perf_counter() - started

    found = []
    for allowed in (CHOSEN, [SDPBackend.CUDNN_ATTENTION]):
        with sdpa_kernel(allowed):
            seconds(8)  # loads the library
            found.append(sum(map(seconds, range(16, 529, 32))))
    assert found[0] <= found[1]


EXAMPLES, BATCH_SIZE = 320, 8


def random_task(vocabulary_size: int) -> EncodedTask:
    """Return a task like SST-2 with random texts of 33 to 64 tokens, so that all rows are padded to one length."""
    generator = np.random.default_rng(0)

    def split(examples: int) -> EncodedSplit:
        offsets = np.cumsum(np.concatenate([[0], generator.integers(33, 65, examples)]))
        ids = generator.integers(IDS.first_text_id, vocabulary_size, offsets[-1])
        labels = generator.integers(0, 2, examples)
        return EncodedSplit(ids.astype(np.int32), offsets, np.zeros(len(ids), np.int8), labels)

    return EncodedTask(TASKS["sst2"], {"train": split(EXAMPLES), "validation": split(BATCH_SIZE)})


def seconds_of_updates(tuner: FineTuner, point: Point) -> float:
    """Return the time of an epoch's updates alone, without evaluation and copies of weights."""
    optimizer, batches = tuner._optimizer(point), islice(tuner._batches(BATCH_SIZE, 0), EXAMPLES // BATCH_SIZE)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for batch in batches:
        tuner._update(optimizer, batch)
    torch.cuda.synchronize()
    return time.perf_counter() - started


def test_cuda_graphs_fine_tune_twice_as_fast_with_the_same_loss(setting: Setting, record_property: Record) -> None:
    model = setting.recipe.model
    protocol = (
        papers().variants["M10"].recipe.finetuning.model_copy(update={"dropout": 0.0, "evaluations_per_epoch": 1})
    )
    point = Point(batch_size=BATCH_SIZE, learning_rate=1e-5, weight_decay=0.01)
    found: list[tuple[EvaluatedStep, float]] = []
    words: tuple[CompileWord, ...] = ("off", "on")
    for word in words:
        classifier = build_classifier(model, setting.documents.context, 2, 0.0)
        initialize(classifier, model.initialization, 0)
        start: dict[str, Any] = {name: tensor.clone() for name, tensor in encoder_part(classifier.state_dict()).items()}
        task = random_task(model.vocabulary_size)
        tuner = FineTuner(classifier, start, task, protocol, setting.device, compile=word)
        evaluations = tuner.evaluations(point, seed=0)
        next(evaluations)
        found.append((next(evaluations), seconds_of_updates(tuner, point)))
        record_property(f"ms of an update, {word}", 1000 * found[-1][1] * BATCH_SIZE / EXAMPLES)
    (eager, eager_seconds), (graphs, graphs_seconds) = found
    assert graphs.loss == pytest.approx(eager.loss, rel=0.01)
    assert eager_seconds >= 2 * graphs_seconds
