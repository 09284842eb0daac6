"""Speed of pre-training: a step against Hugging Face's models on a CPU, and NeoBERT's own shape on a GPU."""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch

from benchmarks.contenders import (
    OURS,
    Peer,
    Setting,
    Step,
    beta_lengths,
    contender_name,
    in_all_modes,
    masked_documents,
    neobert_recipe,
)
from benchmarks.data import NEOBERT_MASKING, SHORTEST, web_lengths
from benchmarks.measuring import (
    OPERATIONS_RATIO,
    Benchmark,
    Goal,
    Result,
    Timing,
    median_ratio,
    operation_counter,
    time_in_turns,
)
from neobert.model.attention import is_flash_attn_available
from neobert.model.size import training_flops_per_token
from neobert.processes import available_cores
from neobert.recipe import Precision, Pretraining
from neobert.training.accounting import datasheet_ceiling
from neobert.training.distributed import set_up_device

WARM_UP_STEPS = 2
BURST_STEPS = 3
ROUNDS = 5
Race = Mapping[str, Sequence[Timing[int]]]
"""Time per real token in each round, by contender."""
Pairs = Sequence[tuple[Sequence[str], Sequence[str]]]
"""Names of our contenders and of theirs; the fastest of both are compared."""


def burst(step: Step, steps: int) -> int:
    """Make `steps` updates; return their real tokens."""
    tokens = sum(step() for _ in range(steps))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tokens


def race(contenders: Mapping[str, Callable[[], Step]], *, rounds: int, steps: int) -> Race:
    """Make and warm up every contender, then time a burst of `steps` updates of each in every round.

    Contenders that cannot run here are left out, and the error of their library is printed.
    """
    bursts: dict[str, Callable[[], int]] = {}
    for name, make in contenders.items():
        try:
            step = make()
            burst(step, WARM_UP_STEPS)
            bursts[name] = partial(burst, step, steps)
        except Exception as error:
            print(f"  {name}: left out, {type(error).__name__}: {error}", flush=True)
    timings = time_in_turns(bursts, rounds)
    return {name: [timing.per(timing.returned) for timing in own] for name, own in timings.items()}


def tokens_per_second(found: Race) -> dict[str, int]:
    """Return the median speed of every contender."""
    return {name: round(statistics.median(1 / timing.wall for timing in own)) for name, own in found.items()}


def fastest(found: Race, names: Sequence[str]) -> str | None:
    """Return which of `names` has the highest median speed, or None if none of them took part."""
    speeds = tokens_per_second(found)
    return max((name for name in names if name in speeds), key=lambda name: speeds[name], default=None)


def lowest_ratio(found: Race, pairs: Pairs) -> tuple[float | None, dict[str, Any]]:
    """Return the lowest ratio over all pairs (None if a side did not run), and the ratio of every pair. A ratio is the
    median over rounds of the speed of our fastest contender / their fastest one, by the clock."""
    ratios = {}
    for own, other in pairs:
        ours, theirs = fastest(found, own), fastest(found, other)
        if ours is not None and theirs is not None:
            ratios[f"{ours} / {theirs}"] = median_ratio(found[theirs], found[ours])
    is_whole = len(ratios) == len(pairs)
    return min(ratio["wall"] for ratio in ratios.values()) if is_whole else None, ratios


@contextmanager
def compiling_anew() -> Iterator[None]:
    """Keep all compiled variants of a function, but none of an earlier run. Contenders of one class share its
    functions, and beyond the default of 8 variants the compiler would silently fall back to eager."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder}),
        torch._dynamo.config.patch(recompile_limit=64),
    ):
        yield


# A step of models of 4 × 256 on a CPU, compared with BERT and ModernBERT.

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
DOCUMENTS_PER_STEP = 32
PADDED, CONCATENATED, BUCKETED = Peer("bert", "padded"), Peer("bert", "concatenated"), Peer("modernbert", "bucketed")


def at_equal_precision(peer: Peer) -> Pairs:
    """Return the pairs of ours and a peer in each precision, compiled or not."""
    return [(in_all_modes(OURS, precision), in_all_modes(peer.name, precision)) for precision in PRECISIONS]


COMPARISONS: Mapping[str, tuple[Peer, Pairs, Goal]] = {
    "pretraining_over_bert_padded": (
        PADDED,
        at_equal_precision(PADDED),
        Goal(3.0, "real tokens a second: ours / HF BERT, padded, compiled if faster (worse of fp32, bf16)"),
    ),
    "pretraining_over_bert_concatenated": (
        CONCATENATED,
        at_equal_precision(CONCATENATED),
        Goal(2.0, "real tokens a second: ours / HF BERT on full rows whose documents see each other (as for padded)"),
    ),
    "pretraining_over_bert_defaults": (
        PADDED,
        [(in_all_modes(OURS, *PRECISIONS), [contender_name(PADDED.name, "fp32", "eager")])],
        Goal(6.0, "real tokens a second: ours at its best / HF BERT as it comes (padded, fp32, eager)"),
    ),
    "pretraining_over_modernbert_bucketed": (
        BUCKETED,
        [(in_all_modes(OURS, "bf16"), in_all_modes(BUCKETED.name, "bf16"))],
        Goal(2.0, "real tokens a second: ours / HF ModernBERT, sparse head, bucketed, at its best (bf16)"),
    ),
}


def small_setting(count: int) -> Setting:
    """Return a setting with `count` documents of up to 128 tokens for models of 4 × 256."""
    recipe = neobert_recipe("fp32", layers=4, width=256, heads=4, feedforward_width=1024, vocabulary_size=8192)
    documents = masked_documents(beta_lengths(count, 128), recipe.model.vocabulary_size, 128)
    return Setting(recipe, documents, DOCUMENTS_PER_STEP, torch.device("cpu"))


def measure_peers(options: argparse.Namespace) -> Iterator[Result]:
    """Measure a step against Hugging Face's BERT and ModernBERT: same documents, predicted tokens and size.

    The command restarts itself so that waiting threads sleep: on shared cores, spinning threads block the thread that
    they wait for, and this would dominate both clocks.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], environment)
    torch.set_num_threads(available_cores())
    setting, peers = small_setting(DOCUMENTS_PER_STEP * BURST_STEPS * ROUNDS), (PADDED, CONCATENATED, BUCKETED)
    counted = {}
    for name, make in setting.contenders(("fp32",), peers, ("eager",)).items():
        with operation_counter() as counter:
            tokens = burst(make(), BURST_STEPS)
        counted[name.partition(", fp32")[0]] = round(counter.get_total_flops() / tokens)
    with compiling_anew():
        found = race(setting.contenders(PRECISIONS, peers), rounds=options.repetitions or ROUNDS, steps=BURST_STEPS)
    for name, (peer, pairs, _) in COMPARISONS.items():
        ratio, ratios = lowest_ratio(found, pairs)
        own = {OPERATIONS_RATIO: round(counted[peer.name] / counted[OURS], 3), "operations per real token": counted}
        speeds: dict[str, Any] = {"speed, ours / theirs": ratios, "real tokens per second": tokens_per_second(found)}
        yield Result(name, ratio, own | speeds | {"threads": torch.get_num_threads()})


PRETRAINING = Benchmark(measure_peers, {name: goal for name, (_, _, goal) in COMPARISONS.items()})


# NeoBERT's own shape on one GPU, compared with ModernBERT.

TOKENS_PER_STEP = 1 << 16
PEER_TOKENS_PER_STEP = 1 << 15
"""Small enough that the peers' bucketed rows also fit on the GPU."""
STEPS_PER_PASS = 64
"""Enough that no step has a padding row, and that documents pack as in a window of training."""
OWN_SPEED_GOALS = {1024: 310_000, 4096: 200_000}
SHORTEST_DOCUMENTS = {1024: SHORTEST, 4096: 1024}
"""Tokens of the shortest document, by context. The paper's second stage mostly draws documents of at least 1,024
tokens (§3.2)."""


def gpu_setting(recipe: Pretraining, context: int, tokens_per_step: int, device: torch.device) -> Setting:
    """Return a setting with documents as long as web pages, in steps of about `tokens_per_step` slots."""
    rows = tokens_per_step // context
    lengths = web_lengths(STEPS_PER_PASS * rows, SHORTEST_DOCUMENTS.get(context, SHORTEST))
    documents = masked_documents(lengths, recipe.model.vocabulary_size, context)
    attention = "flash_attention_2" if device.type == "cuda" and is_flash_attn_available() else "sdpa"
    return Setting(recipe, documents, round(rows / documents.padded_fill), device, attention)


def utilization(setting: Setting, speed: float) -> float | None:
    """Return the share of the device's peak that the model's operations take (Chowdhery et al. 2022, appendix B), None
    for a device without a known peak."""
    lengths, peak = setting.documents.view.framed_lengths, datasheet_ceiling(setting.device, "bf16")
    attended = float((lengths**2).sum() / lengths.sum())  # by a token, those of its own document
    flops = training_flops_per_token(setting.recipe.model, attended, NEOBERT_MASKING.rate)
    return peak and round(speed * flops / peak, 4)


def measure_gpu(options: argparse.Namespace) -> Iterator[Result]:
    """Measure NeoBERT's own shape on one GPU, and HF ModernBERT beside it; nothing without a GPU."""
    if not torch.cuda.is_available():
        print("not measured: there is no GPU here")
        return
    device, own = set_up_device(), in_all_modes(OURS, "bf16")
    rounds, steps = options.repetitions or ROUNDS, options.steps or 50
    with compiling_anew():
        for context, goal in OWN_SPEED_GOALS.items():
            setting = gpu_setting(neobert_recipe("bf16"), context, TOKENS_PER_STEP, device)
            found = race(setting.contenders(("bf16",), ()), rounds=rounds, steps=steps)
            by_mode = tokens_per_second(found)
            best = max(by_mode.values(), default=None)
            share = None if best is None else utilization(setting, best)
            figures = {"real tokens per second": by_mode, "model flops utilisation": share}
            yield Result(f"pretraining_gpu_{context}", best and best / goal, figures)
        setting = gpu_setting(neobert_recipe("bf16"), 1024, PEER_TOKENS_PER_STEP, device)
        found = race(setting.contenders(("bf16",), (BUCKETED,)), rounds=rounds, steps=steps)
    ratio, ratios = lowest_ratio(found, [(own, in_all_modes(BUCKETED.name, "bf16"))])
    speeds = {"speed, ours / theirs": ratios, "real tokens per second": tokens_per_second(found)}
    yield Result("pretraining_gpu_over_modernbert", ratio, speeds | {"attention of HF ModernBERT": setting.attention})


PRETRAINING_GPU = Benchmark(
    measure_gpu,
    {
        **{
            f"pretraining_gpu_{context}": Goal(
                1.0, f"real tokens a second on one GPU, 28 × 768, context {context} / {goal:,}"
            )
            for context, goal in OWN_SPEED_GOALS.items()
        },
        "pretraining_gpu_over_modernbert": Goal(
            1.8, "real tokens a second on one GPU, 28 × 768, context 1024: ours / HF ModernBERT at its best"
        ),
    },
)
