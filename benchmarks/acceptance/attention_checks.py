"""Check of the kernels of attention by row, which external encoders use: those chosen here against cuDNN's."""

import time
from collections.abc import Iterator

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.acceptance.checks import Check, on_gpu
from benchmarks.contenders import Setting
from benchmarks.measuring import Goal, Result

CHOSEN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""What is left once cuDNN is disabled, as by `set_up_device`."""

LENGTHS = range(16, 529, 32)
"""Row lengths of the batches, each of which occurs for the first time."""

ROWS = 32
REPEATS = 20


def seconds_of_attention(setting: Setting, tokens: int, *, padded: bool, repeats: int) -> float:
    """Return the time of forward and backward passes of attention over `ROWS` rows of `tokens`, in bf16."""
    heads, device = setting.recipe.model.heads, setting.device
    head_size = setting.recipe.model.width // heads
    query, key, value = torch.randn(
        3, ROWS, heads, tokens, head_size, device=device, dtype=torch.bfloat16, requires_grad=True
    )
    mask = torch.zeros(ROWS, 1, 1, tokens, device=device, dtype=torch.bfloat16)
    mask[:, :, :, -tokens // 4 :] = float("-inf")
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    for _ in range(repeats):
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask if padded else None)
        torch.autograd.grad(attended.sum(), (query, key, value))
    wait()
    return time.perf_counter() - started


def race_cudnn(setting: Setting) -> Iterator[Result]:
    """Compare the chosen kernels with cuDNN's: on rows of ever new lengths, as batches of texts have them, and on one
    length again and again, where cuDNN may win."""
    rehearses = setting.device.type == "cpu"
    backends = {"chosen": CHOSEN, "cuDNN": [SDPBackend.MATH] if rehearses else [SDPBackend.CUDNN_ATTENTION]}
    for padded in (False, True):
        form = "padded rows" if padded else "dense rows"
        new, again = {}, {}
        for name, allowed in backends.items():
            with sdpa_kernel(allowed):
                seconds_of_attention(setting, 8, padded=padded, repeats=1)  # loads the library
                new[name] = sum(seconds_of_attention(setting, each, padded=padded, repeats=1) for each in LENGTHS)
                again[name] = seconds_of_attention(setting, LENGTHS[-1], padded=padded, repeats=REPEATS)
        figures = {
            f"milliseconds of a new length, {form}": {
                name: round(1000 * seconds / len(LENGTHS), 3) for name, seconds in new.items()
            },
            f"milliseconds of a known length, {form}": {
                name: round(1000 * seconds / REPEATS, 3) for name, seconds in again.items()
            },
        }
        yield Result(f"new lengths, {form}", on_gpu(setting, new["cuDNN"] / new["chosen"]), figures)


ATTENTION = Check(
    race_cudnn,
    {
        f"new lengths, {form}": Goal(
            1, "at least", f"time of attention in cuDNN / in the chosen kernels, {form} of ever new lengths"
        )
        for form in ("dense rows", "padded rows")
    },
)
