"""Checks on one GPU in one process: kernels; numbers, memory, waits and speed of a step; fine-tuning; vectors.

`benchmarks.acceptance` runs each check in a separate process.
"""

import gc
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ablations.ladders import variants
from benchmarks.contenders import MODES, OURS, RATE, Mode, Setting, contender_name, neobert_recipe, race
from benchmarks.data import IDS, NEOBERT_MASKING
from benchmarks.measuring import Goal, Result
from benchmarks.pretraining import TOKENS_PER_STEP, gpu_setting
from neobert.data.batches import Batch, collate
from neobert.data.rows import pack_documents
from neobert.embeddings.contrastive import GradCache, StepCollator, StepTexts, match_texts
from neobert.embeddings.encoders import DTYPES, PackedEncoder
from neobert.errors import MissingData, RunFailed
from neobert.glue.encoding import EncodedSplit, EncodedTask
from neobert.glue.finetuning import Evaluation, FineTuner
from neobert.glue.tasks import TASKS
from neobert.model.attention import is_flash_attn_available, variable_length_kernels
from neobert.model.build import build_classifier, build_encoder, initialize
from neobert.model.heads import encoder_part
from neobert.model.size import MicroBatchShape, training_memory
from neobert.processes import REPOSITORY
from neobert.recipe import Point, Precision, Pretraining
from neobert.training.accounting import datasheet_ceiling, forget_peak_memory, matmul_ceiling
from neobert.training.compiling import CompilePolicy
from neobert.training.distributed import Process, set_up_device
from neobert.training.engine import autocast
from neobert.training.pretraining import summed_loss

CPU = torch.device("cpu")
TINY = {"layers": 3, "width": 64, "heads": 4, "feedforward_width": 96, "vocabulary_size": 512}
TINY_CONTEXT, CONTEXT = 64, 1024


def setting_here(rehearse: bool) -> Setting:
    """Return the setting: NeoBERT's shape on the GPU; in a rehearsal three layers on the CPU, traced but not compiled.

    Raises:
        MissingData: there is no GPU, or it is too small.
    """
    if rehearse:
        return replace(gpu_setting(neobert_recipe("bf16", **TINY), TINY_CONTEXT, 256, CPU), backend="aot_eager")
    if not torch.cuda.is_available():
        raise MissingData("there is no GPU here: --rehearse tries the checks on the CPU")
    device, recipe = set_up_device(), neobert_recipe("bf16")
    tokens = fitting_tokens(recipe, torch.cuda.get_device_properties(device).total_memory)
    return gpu_setting(recipe, CONTEXT, tokens, device)


def fitting_tokens(recipe: Pretraining, memory_bytes: int) -> int:
    """Return the tokens of a step, `TOKENS_PER_STEP` or a half, a quarter, … of them, that fit into a GPU's memory.

    Raises:
        MissingData: not even two rows fit.
    """
    tokens = TOKENS_PER_STEP
    while tokens >= 2 * CONTEXT:
        rows = math.ceil(1.1 * tokens / CONTEXT)  # the most that `rows_per_step` gives
        shape = MicroBatchShape.of(rows, CONTEXT, recipe.highest_predicted_share)
        if training_memory(recipe, CONTEXT, shape, "single", 1, rows * CONTEXT).total <= memory_bytes:
            return tokens
        tokens //= 2
    raise MissingData(f"a step of two rows does not fit into {memory_bytes / 1e9:.0f} GB: take a GPU with more memory")


def on_gpu(setting: Setting, value: float | None) -> float | None:
    """Return a value measured on a GPU; None in a rehearsal, which leaves the claim open."""
    return value if setting.device.type == "cuda" else None


@dataclass(frozen=True)
class Check:
    """A check: `measure` yields a value for each of the `goals`, None if it cannot be judged here."""

    measure: Callable[[Setting], Iterator[Result]]
    goals: Mapping[str, Goal]


def measure_environment(setting: Setting) -> Iterator[Result]:
    """Describe the machine, and compare the speed of its matrix products with the data sheet."""
    peak, reached = datasheet_ceiling(setting.device, "bf16"), matmul_ceiling(setting.device, "bf16")
    figures = {
        "TFLOP/s of the fastest product in bf16": round(reached / 1e12, 1),
        "flash-attn": is_flash_attn_available(),
        "CUDA of torch": torch.version.cuda,
        "GPUs": torch.cuda.device_count(),
    }
    if setting.device.type == "cuda":
        properties = torch.cuda.get_device_properties(setting.device)
        figures |= {
            "capability": f"{properties.major}.{properties.minor}",
            "GB of memory": round(properties.total_memory / 1e9, 1),
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
        }
    yield Result("fastest product", None if peak is None else reached / peak, figures)


ENVIRONMENT = Check(
    measure_environment,
    {"fastest product": Goal(0.6, "at least", "the fastest matrix product in bf16 / the peak of the data sheet")},
)


def run_gpu_tests(setting: Setting) -> Iterator[Result]:
    """Run the project's tests that need a GPU; in a rehearsal all of them are skipped."""
    import pytest

    tests = REPOSITORY / "tests"
    files = [path for path in sorted(tests.rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # CUDA has warnings of its own, so warnings are not errors here.
        flags = ["-m", "gpu", "-W", "default", "-p", "no:cacheprovider", f"--junitxml={report}"]
        code = pytest.main([*flags, f"--rootdir={REPOSITORY}", *map(str, files)])
        suite = next(ElementTree.parse(report).iter("testsuite"))
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    failed = counts["failures"] + counts["errors"] if counts["tests"] else int(code)
    yield Result("failed tests", failed, {"exit code of pytest": int(code), **counts})
    yield Result("passed tests", on_gpu(setting, passed), {})


KERNELS = Check(
    run_gpu_tests,
    {
        "failed tests": Goal(0, "at most", "tests that need a GPU and fail"),
        "passed tests": Goal(1, "at least", "tests that need a GPU and pass"),
    },
)


def two_rows(setting: Setting) -> Setting:
    """Return the setting with steps of two rows, which a CPU computes in seconds."""
    return replace(setting, documents_per_step=round(2 / setting.documents.padded_fill))


def gradient_of(setting: Setting, mode: Mode) -> tuple[float, Tensor]:
    """Return the loss of the first batch with initial weights, and its gradient as one vector on the CPU."""
    model = setting.own_engine(mode).model
    batch = setting.own_batches(mode)[0].to(setting.device)
    with autocast(setting.device, setting.recipe.precision):
        loss = summed_loss(model, batch)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), torch.cat([gradient.flatten().cpu() for gradient in gradients])


def distance(found: Tensor, exact: Tensor) -> float:
    """Return the relative distance of two tensors: the norm of their difference / the norm of `exact`."""
    return float((found - exact).norm() / exact.norm())


def compare_steps(setting: Setting) -> Iterator[Result]:
    """Compare loss and gradient of two rows in bf16, eager and compiled, with fp32 on the CPU."""
    small = two_rows(setting)
    exact = small.recipe.model_copy(update={"precision": "fp32"})
    true_loss, true_gradient = gradient_of(replace(small, recipe=exact, device=CPU), "eager")
    for mode in MODES:
        loss, gradient = gradient_of(small, mode)
        yield Result(f"loss, {mode}", abs(loss / true_loss - 1), {mode: {"loss": loss, "loss in fp32": true_loss}})
        yield Result(f"gradient, {mode}", distance(gradient, true_gradient), {})


STEP = Check(
    compare_steps,
    {f"loss, {mode}": Goal(0.005, "at most", f"|loss / that in fp32 on the CPU − 1|, {mode}") for mode in MODES}
    | {
        f"gradient, {mode}": Goal(0.03, "at most", f"distance of the gradient to that in fp32 / its norm, {mode}")
        for mode in MODES
    },
)


def varied_batches(setting: Setting, count: int) -> list[Batch]:
    """Return `count` batches of packed rows on the CPU, each with another number of rows, from two thirds of a step's
    to all of them. Steps of a run differ like this, and the last rows of a window of documents are the fewest."""
    documents = setting.documents
    packed = pack_documents(documents.view, np.arange(len(documents)), documents.keys, documents.context)
    most = round(setting.documents_per_step * documents.padded_fill)
    sizes = np.random.default_rng(0).permutation(np.linspace(2 / 3 * most, most, count).round().astype(int))
    ends = np.cumsum(sizes)
    flat = setting.device.type == "cuda"
    return [
        collate(packed[end - size : end], documents.view.corpus, NEOBERT_MASKING, flat=flat)
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)
    ]


VARIED_STEPS = 30


def compare_memory(setting: Setting) -> Iterator[Result]:
    """Compare the peak memory of a step, and the allocator's memory beyond it in steps of different sizes, with the
    estimate of `--dry-run`."""
    engine, batch = setting.own_engine("eager"), setting.own_batches("eager")[0].to(setting.device)
    engine.step([batch], RATE).measured()  # creates the optimizer's state
    forget_peak_memory(setting.device)
    engine.step([batch], RATE).measured()
    rows, context = batch.token_ids.shape
    shape = MicroBatchShape(rows, context, len(batch.targets))
    computed = training_memory(setting.recipe, context, shape, "single", 1, rows * context)
    expected = computed.total - computed.reserve
    varied = varied_batches(setting, VARIED_STEPS)
    figures: dict[str, Any] = {"rows": rows, "GB computed": round(expected / 1e9, 2)}
    figures["rows of the steps that vary"] = [batch.token_ids.shape[0] for batch in varied]
    if setting.device.type == "cpu":
        engine.step([varied[-1]], RATE).measured()
        yield Result("peak", None, figures)
        yield Result("reserve", None, {})
        return
    peak = torch.cuda.max_memory_allocated()
    yield Result("peak", abs(peak / expected - 1), figures | {"GB at the peak": round(peak / 1e9, 2)})
    torch.cuda.empty_cache()  # else what the first step reserved would count
    forget_peak_memory(setting.device)
    for one in varied:
        engine.step([one.to(setting.device)], RATE).measured()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    yield Result("reserve", (reserved - peak) / computed.reserve, {"GB reserved": round(reserved / 1e9, 2)})


MEMORY = Check(
    compare_memory,
    {
        "peak": Goal(0.08, "at most", "|peak of a step / what --dry-run computes − 1|"),
        "reserve": Goal(
            1,
            "at most",
            f"what the allocator takes beyond the peak in {VARIED_STEPS} steps of different sizes / the reserve",
        ),
    },
)


def measure_speed(setting: Setting) -> Iterator[Result]:
    """Compare the real tokens per second of a step, eager and compiled, with the speed computed for this GPU and the
    kernels of attention that are installed.

    The speed is computed for whole steps; the claim stays open where memory only holds smaller ones.
    """
    for mode in MODES:
        gc.collect()  # frees the last mode's memory on the GPU
        name = contender_name(OURS, "bf16", mode)
        found = race({name: partial(setting.own_step, mode)}, rounds=2, steps=10)
        if found.left_out:
            raise RunFailed(f"the {mode} step does not run: {found.left_out[name]}")
        slots = setting.own_batches(mode)[0].token_ids.numel()
        ratio = over_expected(found.tokens_per_second(name), mode) if slots >= TOKENS_PER_STEP else None
        figures = {"slots of a step": slots, "attention": variable_length_kernels(), **found.figures()}
        yield Result(f"speed, {mode}", on_gpu(setting, ratio), {mode: figures})


def over_expected(speed: float, mode: Mode) -> float | None:
    """Return a speed / the speed of the roofline for this GPU, or None if the roofline has no such GPU."""
    from benchmarks.roofline import expected_speed

    if not torch.cuda.is_available():
        return None
    expected = expected_speed(torch.cuda.get_device_name(), mode, variable_length_kernels())
    return None if expected is None else speed / expected


SPEED = Check(
    measure_speed,
    {
        f"speed, {mode}": Goal(0.85, "at least", f"real tokens a second / what was computed for this GPU, {mode}")
        for mode in MODES
    },
)


TRIGONOMETRY = re.compile(r"(^|_)(cos|sin|polar)(_|$)")
"""Names of kernels that compute angles. Norms may be named after a power."""

FLASH = re.compile(r"flash|fmha", re.IGNORECASE)
SHOWN_KERNELS = 12


def profile_step(setting: Setting) -> Iterator[Result]:
    """Profile the GPU time of a compiled step: it should compute no sines, and attention should use flash kernels."""
    engine, batch = setting.own_engine("compiled"), setting.own_batches("compiled")[0].to(setting.device)
    for _ in range(3):
        engine.step([batch], RATE).measured()
    is_gpu = setting.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]) as seen:
        engine.step([batch], RATE).measured()
    kind = DeviceType.CUDA if is_gpu else DeviceType.CPU
    times = {
        event.key: event.self_device_time_total if is_gpu else event.self_cpu_time_total
        for event in seen.key_averages()
        if event.device_type == kind and not event.is_user_annotation  # whose time is that of the kernels in it
    }
    total = sum(times.values())

    def share(pattern: re.Pattern[str]) -> float:
        return sum(time for name, time in times.items() if pattern.search(name)) / total

    longest = sorted(times, key=lambda name: -times[name])[:SHOWN_KERNELS]
    figures = {"share of the time": {name[:100]: round(times[name] / total, 4) for name in longest}}
    yield Result("rotary positions", on_gpu(setting, share(TRIGONOMETRY)), figures)
    yield Result("flash attention", on_gpu(setting, share(FLASH)), {})


PROFILE = Check(
    profile_step,
    {
        "rotary positions": Goal(0.04, "at most", "share of a compiled step in kernels that compute sines"),
        "flash attention": Goal(0.005, "at least", "share of a compiled step in flash attention's kernels"),
    },
)


FINE_TUNED_EXAMPLES, BATCH_SIZE = 320, 8
FINE_TUNED_UPDATES = FINE_TUNED_EXAMPLES // BATCH_SIZE


def random_task(setting: Setting) -> EncodedTask:
    """Return a task like SST-2 with random texts of 33 to 64 tokens, so that all rows are padded to one length."""
    generator = np.random.default_rng(0)

    def split(examples: int) -> EncodedSplit:
        offsets = np.cumsum(np.concatenate([[0], generator.integers(33, 65, examples)]))
        ids = generator.integers(IDS.first_text_id, setting.recipe.model.vocabulary_size, offsets[-1])
        labels = generator.integers(0, 2, examples)
        return EncodedSplit(ids.astype(np.int32), offsets, np.zeros(len(ids), np.int8), labels)

    return EncodedTask(TASKS["sst2"], {"train": split(FINE_TUNED_EXAMPLES), "validation": split(BATCH_SIZE)})


def seconds_of_updates(tuner: FineTuner, point: Point) -> float:
    """Return the time of an epoch's updates alone, without evaluation and copies of weights."""
    optimizer, batches = tuner._optimizer(point), islice(tuner._batches(BATCH_SIZE, 0), FINE_TUNED_UPDATES)
    wait = torch.cuda.synchronize if tuner.device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    for batch in batches:
        tuner._update(optimizer, batch)
    wait()
    return time.perf_counter() - started


def compare_graphs(setting: Setting) -> Iterator[Result]:
    """Compare fine-tuning with CUDA graphs and eager fine-tuning: time per update and training loss."""
    model = setting.recipe.model
    protocol = variants()["M10"].recipe.finetuning.model_copy(update={"dropout": 0.0, "evaluations_per_epoch": 1})
    point = Point(batch_size=BATCH_SIZE, learning_rate=1e-5, weight_decay=0.01)
    found: dict[str, tuple[Evaluation, float]] = {}
    first_seconds: dict[str, float] = {}
    for policy in (CompilePolicy("off"), CompilePolicy("on", setting.backend)):
        classifier = build_classifier(model, setting.documents.context, 2, 0.0)
        initialize(classifier, model.initialization, 0)
        start = {name: tensor.clone() for name, tensor in encoder_part(classifier.state_dict()).items()}
        tuner = FineTuner(classifier, start, random_task(setting), protocol, setting.device, policy=policy)
        evaluations = tuner.evaluations(point, seed=0)
        started = time.perf_counter()
        next(evaluations)
        first_seconds[policy.word] = round(time.perf_counter() - started, 2)
        found[policy.word] = next(evaluations), seconds_of_updates(tuner, point)
    (eager, eager_seconds), (graphs, graphs_seconds) = found["off"], found["on"]
    figures = {
        "milliseconds of an eager update": round(1000 * eager_seconds / FINE_TUNED_UPDATES, 2),
        "milliseconds of an update as a graph": round(1000 * graphs_seconds / FINE_TUNED_UPDATES, 2),
        "seconds to the first evaluation, compiling included": first_seconds,
    }
    yield Result("graphs over eager", on_gpu(setting, eager_seconds / graphs_seconds), figures)
    yield Result("loss of graphs", abs(graphs.loss / eager.loss - 1), {})


GRAPHS = Check(
    compare_graphs,
    {
        "graphs over eager": Goal(2, "at least", "updates of fine-tuning a second, as CUDA graphs / eager, batch 8"),
        "loss of graphs": Goal(0.01, "at most", "|training loss of CUDA graphs / of eager updates − 1|"),
    },
)


TEXTS = 64


def random_texts(setting: Setting) -> list[tuple[Any, Any]]:
    """Return texts of random tokens, the longest first."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(3.5, 0.6, TEXTS), 5, setting.documents.context).astype(np.int64)
    vocabulary = IDS.first_text_id, setting.recipe.model.vocabulary_size
    return [(generator.integers(*vocabulary, length), np.zeros(length, np.int8)) for length in np.sort(lengths)[::-1]]


def text_encoder(setting: Setting, device: torch.device, precision: Precision) -> PackedEncoder:
    recipe = setting.recipe
    encoder = PackedEncoder(build_encoder(recipe.model, setting.documents.context))
    initialize(encoder, recipe.model.initialization, recipe.seed)
    return encoder.to(device, DTYPES[precision]).eval()


@torch.no_grad()
def vectors_of(setting: Setting, device: torch.device, precision: Precision) -> Tensor:
    """Return vectors (texts, width) of random texts, on the CPU."""
    encoder = text_encoder(setting, device, precision)
    vectors: Tensor = encoder(encoder.collate(random_texts(setting), device, precision))
    return vectors.float().cpu()


def contrastive_step(setting: Setting, device: torch.device, precision: Precision) -> tuple[float, Tensor]:
    """Return the loss of a contrastive step on pairs of random texts, computed with GradCache, and the gradient as one
    vector on the CPU."""
    encoder = text_encoder(setting, device, "fp32")
    numbers = np.arange(TEXTS)
    matching = match_texts(numbers[::2], numbers[1::2], numbers[:0], keep_false_negatives=False)
    step, process = StepTexts(random_texts(setting), matching), Process(0, 1)
    collator = StepCollator(encoder, int(step.lengths.sum()) // 3, precision, process, device)
    batches = collator.collate(step, collator.split(step.lengths), process)
    cache = GradCache(temperature=0.07, always=True)
    with autocast(device, precision):
        losses = [cache.loss(encoder, batch) for batch in cache.prepare(encoder, batches)]
    loss = torch.stack(losses).sum()
    loss.backward()
    gradients = [weight.grad for weight in encoder.parameters() if weight.grad is not None]
    return loss.item(), torch.cat([gradient.flatten().cpu() for gradient in gradients])


def compare_vectors(setting: Setting) -> Iterator[Result]:
    """Compare vectors of texts, and loss and gradient of a contrastive step, in bf16 with fp32 on the CPU."""
    exact, found = vectors_of(setting, CPU, "fp32"), vectors_of(setting, setting.device, "bf16")
    yield Result("vectors", distance(found, exact), {})
    exact_loss, exact_gradient = contrastive_step(setting, CPU, "fp32")
    loss, gradient = contrastive_step(setting, setting.device, "bf16")
    yield Result("contrastive loss", abs(loss / exact_loss - 1), {"loss": loss, "loss in fp32": exact_loss})
    yield Result("contrastive gradient", distance(gradient, exact_gradient), {})


CONTRASTIVE = Check(
    compare_vectors,
    {
        "vectors": Goal(0.05, "at most", "distance of vectors in bf16 to those in fp32 on the CPU / their norm"),
        "contrastive loss": Goal(0.05, "at most", "|contrastive loss in bf16 / that in fp32 on the CPU − 1|"),
        "contrastive gradient": Goal(
            0.05, "at most", "distance of a contrastive step's gradient in bf16 to that in fp32 on the CPU / its norm"
        ),
    },
)
