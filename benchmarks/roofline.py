"""What a step of pre-training could reach on a GPU, computed from what it launches and moves; nothing is measured.

examples:
  python -m benchmarks.roofline --write            # count anew; keep the counts and the table of benchmarks/README.md
  python -m benchmarks.roofline --table            # the table of the counts that are kept
  python -m benchmarks.roofline --layers 12        # another depth

The real step of the engine runs on a pretended GPU, which counts eager operators. Compiled, torch's inductor lowers the
parts that training compiles and decides what it fuses, without Triton and without compiling a kernel
(`benchmarks.lowering`).
Exit codes: 2 bad input, 3 no C++ compiler, or a torch that is built for CUDA.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from benchmarks.contenders import RATE, Mode, neobert_recipe, pretraining_engine
from benchmarks.lowering import Kernels, lower
from benchmarks.measuring import FOLDER, README, between_markers, describe_versions
from benchmarks.pretended_cuda import GPU, PRODUCTS, Counts, PretendedGPU, Product, pretended_cuda, pretending_process
from benchmarks.pretraining import TOKENS_PER_STEP, gpu_setting
from neobert.command_line import count, guarded, parser_from
from neobert.data.batches import Batch
from neobert.errors import EXIT_DONE
from neobert.files import json_bytes, read_json, replace_file
from neobert.model.build import build_masked_language_model
from neobert.model.size import PEAK_FLOPS_PER_SECOND, datasheet_peak
from neobert.recipe import Pretraining, PretrainingPrecision
from neobert.training.compiling import parts_of
from neobert.training.engine import autocast
from neobert.training.pretraining import summed_loss
from reports.tables import markdown_row

CONTEXTS = (1024, 4096)
COUNTED: tuple[tuple[PretrainingPrecision, Mode], ...] = (
    ("bf16", "eager"),
    ("bf16", "compiled"),
    ("bf16_residual", "compiled"),
)
LAYERS = 28
COUNTS = FOLDER / "roofline" / "counts.json"
BEGIN = "<!-- table: python -m benchmarks.roofline --table -->"
END = "<!-- end of the roofline -->"


@dataclass(frozen=True)
class Rates:
    """The rates that a GPU is assumed to reach.

    products: operations per second of matrix products. attention: operations per second of attention by the least
        number of tokens of a document; shorter documents have the first rate. memory: bytes per second.
    """

    products: float
    attention: Mapping[int, float]
    memory: float


PRODUCT_SHARE = 2 / 3
"""Share of the data sheet's bf16 peak that products of these sizes are assumed to reach."""

MEMORY_SHARE = 5 / 6
"""Share of the data sheet's bandwidth that streaming kernels are assumed to reach."""

UNALIGNED_SHARE = 0.5
"""Share of the products' rate that products with a side that is not a multiple of 8 are assumed to reach."""

BANDWIDTH = {"A100": 2.04e12, "H100": 3.35e12, "H200": 4.8e12, "B200": 8.0e12}
"""Bytes per second from NVIDIA's data sheets (SXM modules of 80 GB and more)."""

FLASH_ATTENTION_3 = {512: (333e12, 272e12), 1024: (392e12, 363e12), 2048: (460e12, 422e12), 4096: (476e12, 453e12)}
"""Operations per second, forward and backward, by tokens of a sequence: a head size of 64, no mask, on an H100 (Shah
et al. 2024, figures 5 and 6)."""

FLASH_ATTENTION_2 = {512: (282e12, 198e12), 1024: (306e12, 238e12), 2048: (318e12, 264e12), 4096: (321e12, 279e12)}
"""The same for FlashAttention-2 on an H100, from the same figures. torch's own kernels and flash_attn are of this
version."""


def combined(rates: Mapping[int, tuple[float, float]]) -> dict[int, float]:
    """Return the rates of forward and backward pass together. Of the 12 operations of `attention_flops`, 4 are forward;
    kernels do 10 backward, 2 of them again."""
    return {tokens: 12 / (4 / forward + 10 / backward) for tokens, (forward, backward) in rates.items()}


HOPPER = combined(FLASH_ATTENTION_3)

ATTENTION: Mapping[str, Mapping[int, float]] = {"A100": {512: 170e12}, "H100": HOPPER, "H200": HOPPER, "B200": HOPPER}
"""FlashAttention-2 on the A100 (Dao 2023), FlashAttention-3 on Hopper; the B200 is assumed to be as fast as Hopper."""

HOST_SECONDS_PER_LAUNCH = 6e-6
"""Time that Python and the driver take to launch a kernel while the GPU computes."""

RATES = {
    gpu: Rates(PRODUCT_SHARE * PEAK_FLOPS_PER_SECOND[gpu], ATTENTION[gpu], MEMORY_SHARE * BANDWIDTH[gpu])
    for gpu in BANDWIDTH
}


@dataclass(frozen=True)
class StepCounts:
    """Counts of a step of the engine with one micro-batch.

    launches: number of kernels. streamed_bytes: bytes read and written by all kernels but products and attention.
    attention_flops: operations of attention within documents, forward and backward, by the largest length of
        `FLASH_ATTENTION_3` that does not exceed the document's.
    products: number of times that each matrix product is computed.
    """

    precision: PretrainingPrecision
    mode: Mode
    context: int
    real_tokens: int
    launches: int
    streamed_bytes: int
    attention_flops: Mapping[int, float]
    products: Mapping[Product, int]

    @property
    def product_flops(self) -> float:
        """Number of floating-point operations of all matrix products."""
        return float(sum(product.flops * count for product, count in self.products.items()))

    def seconds(self, rates: Rates) -> float:
        """Return the predicted time of the step: the sum over kernels, each limited by its operations or its bytes, or
        the time of the launches on the host if that is longer."""
        products = sum(count * product_seconds(product, rates) for product, count in self.products.items())
        attention = sum(
            flops / rates.attention[max(length for length in rates.attention if length <= tokens)]
            for tokens, flops in self.attention_flops.items()
        )
        device = products + attention + self.streamed_bytes / rates.memory
        return max(device, self.launches * HOST_SECONDS_PER_LAUNCH)

    def tokens_per_second(self, gpu: str, kernels: str = "FA3") -> float:
        """Return the predicted real tokens per second on a GPU. `kernels` are those of attention, as
        `variable_length_kernels` names them; all but "FA3" are FlashAttention-2."""
        rates = RATES[gpu]
        if rates.attention is HOPPER and kernels != "FA3":
            rates = replace(rates, attention=combined(FLASH_ATTENTION_2))
        return self.real_tokens / self.seconds(rates)

    def as_json(self) -> dict[str, Any]:
        """Return the counts as plain values for JSON."""
        products = [[*product, count] for product, count in sorted(self.products.items())]
        return {**asdict(self), "products": products}

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the counts from the output of `as_json`."""
        products = {Product(*fields): count for *fields, count in content["products"]}
        attention = {int(tokens): flops for tokens, flops in content["attention_flops"].items()}
        return cls(**{**content, "products": products, "attention_flops": attention})


def product_seconds(product: Product, rates: Rates) -> float:
    """Return the time of a matrix product, limited by its operations or its bytes."""
    element = torch.empty((), dtype=getattr(torch, product.dtype)).element_size()
    sides = (product.rows, product.inner, product.columns)
    numbers = product.rows * product.inner + product.inner * product.columns + product.rows * product.columns
    share = 1.0 if all(side % 8 == 0 for side in sides) else UNALIGNED_SHARE
    return max(product.flops / (share * rates.products), product.batch * numbers * element / rates.memory)


def attention_flops(batch: Batch, recipe: Pretraining) -> dict[int, float]:
    """Return the operations of attention, forward and backward, as in `StepCounts`: 12 × width per layer for each pair
    of query and key (Chowdhery et al. 2022, appendix B). The last layer only has queries at predicted tokens."""
    assert batch.plan.boundaries is not None and batch.gather.boundaries is not None
    lengths = batch.plan.boundaries.diff().double()
    asked = batch.gather.boundaries.diff().double()
    model = recipe.model
    flops = 12 * model.width * ((model.layers - 1) * lengths**2 + asked * lengths)
    classes = torch.bucketize(lengths, torch.tensor([*FLASH_ATTENTION_3]), right=True).sub(1).clamp(min=0)
    return {tokens: float(flops[classes == place].sum()) for place, tokens in enumerate(FLASH_ATTENTION_3)}


def first_batch(recipe: Pretraining, context: int, slots: int, mode: Mode) -> Batch:
    """Return a micro-batch of packed web pages for variable-length kernels."""
    return gpu_setting(recipe, context, slots, GPU).own_batches(mode)[0]


@dataclass(frozen=True)
class EagerCounts:
    """Counts of a pretended GPU: of the whole step of the engine, of its forward and backward pass, and of what in that
    pass is `outside` of the parts that are compiled."""

    step: Counts
    passes: Counts
    outside: Counts
    real_tokens: int
    attention_flops: Mapping[int, float]


def count_eager(recipe: Pretraining, context: int, slots: int, mode: Mode) -> EagerCounts:
    """Count the second step of the engine, on a batch for `mode`; runs in a `pretending_process`."""
    with pretended_cuda() as gpu:
        with GPU:
            model = build_masked_language_model(recipe.model, context, recipe.precision)
        model.train()
        engine = pretraining_engine(model, recipe, GPU)
        batch = first_batch(recipe, context, slots, mode)
        there = batch.to(GPU)
        engine.step([there], RATE)  # creates the optimizer's state
        with gpu.counted() as step:
            engine.step([there], RATE)
        with gpu.counted() as passes, autocast(GPU, recipe.precision):
            summed_loss(model, there).backward()
        engine.optimizer.zero_grad(set_to_none=True)
        for module, name in parts_of(model, GPU):
            setattr(module, name, partial(_uncounted, gpu, getattr(module, name)))
        with gpu.counted() as outside, autocast(GPU, recipe.precision):
            summed_loss(model, there).backward()
    return EagerCounts(step, passes, outside, batch.real_tokens, attention_flops(batch, recipe))


class _Skipped(torch.autograd.Function):
    """Has a gradient without a kernel."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, result: Tensor) -> Tensor:
        ctx.given = given
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return torch.empty_like(ctx.given), None


def _uncounted(gpu: PretendedGPU, part: Callable[..., Tensor], given: Tensor, *others: Any) -> Tensor:
    """Compute a part of a model such that neither its forward nor its backward pass is counted."""
    with gpu.counted(), torch.no_grad():
        result = part(given, *others)
    return _Skipped.apply(given, result)


def lower_first_batch(recipe: Pretraining, context: int, slots: int) -> Kernels:
    """Return the kernels of the compiled parts in a pass over `first_batch`; runs in a `pretending_process`."""
    return lower(recipe, first_batch(recipe, context, slots, "compiled"))


def streamed(counts: Counts) -> int:
    """Return the bytes moved by all operators but products and attention."""
    return sum(size for name, size in counts.bytes_moved.items() if name not in PRODUCTS and "attn" not in name)


def count_step(process: Executor, recipe: Pretraining, mode: Mode, context: int, slots: int) -> StepCounts:
    """Count a step in a `pretending_process`. Outside of the parts of the model that are compiled, a compiled step
    launches and moves the same as an eager one."""
    print(f"context {context}, {recipe.precision}, {mode} …", file=sys.stderr, flush=True)
    eager = process.submit(count_eager, recipe, context, slots, mode).result()
    launches, moved = eager.step.launches.total(), streamed(eager.step)
    if mode == "compiled":
        kernels = process.submit(lower_first_batch, recipe, context, slots).result()
        launches += kernels.launches + eager.outside.launches.total() - eager.passes.launches.total()
        moved += kernels.streamed_bytes + streamed(eager.outside) - streamed(eager.passes)
    return StepCounts(
        precision=recipe.precision,
        mode=mode,
        context=context,
        real_tokens=eager.real_tokens,
        launches=launches,
        streamed_bytes=moved,
        attention_flops=eager.attention_flops,
        products=eager.step.products,
    )


def table(steps: Sequence[StepCounts]) -> str:
    """Return a Markdown table with one row per step and the predicted speed on each GPU."""
    head = ("context", "step", "launches", "GB moved", "TFLOP", *(f"{gpu}, tokens/s" for gpu in RATES))
    rows = [head, ("---",) * len(head)]
    for step in steps:
        flops = step.product_flops + sum(step.attention_flops.values())
        facts = (f"{step.launches:,}", f"{step.streamed_bytes / 1e9:.0f}", f"{flops / 1e12:.0f}")
        speeds = [f"{step.tokens_per_second(gpu) / 1000:.0f}k" for gpu in RATES]
        rows.append((f"{step.context:,}", f"{step.precision}, {step.mode}", *facts, *speeds))
    return "\n".join(map(markdown_row, rows))


def read_counts() -> list[StepCounts]:
    """Read the stored counts, those of the table in the README."""
    return [StepCounts.of_json(content) for content in read_json(COUNTS)["steps"]]


def expected_speed(gpu_name: str, mode: Mode, kernels: str) -> float | None:
    """Return the predicted real tokens per second in bf16 at a context of 1,024, with these `kernels` of attention, for
    the GPU with the driver's name `gpu_name`; None for an unknown GPU or a slower form of it."""
    words = set(re.split(r"[\s-]+", gpu_name))
    if datasheet_peak(gpu_name) is None or words & {"40GB", "PCIE"}:  # A100s with the same peak and slower memory
        return None
    steps = {(step.precision, step.mode, step.context): step for step in read_counts()}
    step = steps["bf16", mode, CONTEXTS[0]]
    return next((step.tokens_per_second(gpu, kernels) for gpu in RATES if gpu in words), None)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = parser_from("python -m benchmarks.roofline", __doc__)
    parser.add_argument("--layers", type=count, default=LAYERS, help=f"of the model (default: {LAYERS})")
    parser.add_argument("--slots", type=count, default=TOKENS_PER_STEP, help=f"of a step (default: {TOKENS_PER_STEP})")
    parser.add_argument(
        "--write", action="store_true", help="keep the counts, and put the table into benchmarks/README.md"
    )
    parser.add_argument("--table", action="store_true", help="count nothing: the table of the counts that are kept")
    parser.add_argument("--json", action="store_true", help="print counts and predictions instead of the table")
    options = parser.parse_args(arguments)
    return guarded("benchmarks.roofline", lambda: compute(options), COUNTS)


def compute(options: argparse.Namespace) -> int:
    """Count the steps or read the stored counts, and print them.

    Raises:
        ValueError: a step has no room for a row of the longest context, or what is kept is not of that step.
        MissingData: no GPU can be pretended here.
    """
    if options.slots < max(CONTEXTS):
        raise ValueError(f"--slots {options.slots} is less than a row of {max(CONTEXTS)} tokens: give more")
    if (options.write or options.table) and (options.layers, options.slots) != (LAYERS, TOKENS_PER_STEP):
        raise ValueError("what is kept is NeoBERT's own step: leave out --layers and --slots")
    if options.table:
        steps = read_counts()
    else:
        with pretending_process() as process:
            steps = [
                count_step(process, neobert_recipe(precision, layers=options.layers), mode, context, options.slots)
                for context in CONTEXTS
                for precision, mode in COUNTED
            ]
    content = {"versions": describe_versions(), "steps": [step.as_json() for step in steps]}
    if options.write:
        if not options.table:
            replace_file(COUNTS, json_bytes(content))
        replace_file(README, between_markers(README.read_text(), BEGIN, END, table(steps)).encode())
    if options.json:
        speeds = [{gpu: round(step.tokens_per_second(gpu)) for gpu in RATES} for step in steps]
        print(json_bytes(content | {"tokens per second, computed": speeds}).decode())
    else:
        print(table(steps))
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
