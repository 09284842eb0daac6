"""Pre-training of NeoBERT's own shape on one GPU, in real tokens a second, and Hugging Face's ModernBERT beside it.

python -m benchmarks.pretraining_gpu [--rounds N] [--steps N]        without a GPU: "not measured"
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import MODES, Course, Mode, compiling_anew, in_all_modes, neobert_recipe
from benchmarks.documents import MASKING, SHORTEST, masked_documents, web_lengths
from benchmarks.own import NAME
from benchmarks.peers import Peer
from benchmarks.race import Race, race
from benchmarks.results import FOLDER, Goal, write_result
from neobert.model.attention import is_flash_attn_available
from neobert.model.size import PEAK_FLOPS_PER_SECOND, training_flops_per_token
from neobert.recipe import Pretraining

PEAK_FLOPS = PEAK_FLOPS_PER_SECOND["H200"]
TOKENS_PER_STEP = 1 << 16
PEER_TOKENS_PER_STEP = 1 << 15
"""So many that the peers' padded rows, about twice as many slots, also have room on the GPU."""

STEPS_PER_PASS = 16
MODERN_SPARSE, MODERN_BUCKETED = Peer("modernbert", "padded", sparse=True), Peer("modernbert", "bucketed", sparse=True)
WAYS: Mapping[Peer, Sequence[Mode]] = {MODERN_SPARSE: MODES, MODERN_BUCKETED: MODES}

OWN_SPEED_GOALS = {1024: 310_000, 4096: 200_000}
SHORTEST_DOCUMENTS = {1024: SHORTEST, 4096: 1024}
"""By context. The second stage of the paper mostly draws documents of at least 1,024 tokens (§3.2)."""

Measured = tuple[float | None, dict[str, Any]]
"""A ratio, None where it was not measured, and its figures."""

PEER_RESULT = "pretraining_gpu_over_modernbert"
PEER_GOAL = Goal(
    1.8, "at least", "real tokens a second on one GPU, 28 × 768, context 1024: ours / HF ModernBERT at its best"
)


def speed_result(context: int) -> tuple[str, Goal]:
    """Name and goal of the result about our own speed at a context."""
    goal = OWN_SPEED_GOALS[context]
    of = f"real tokens a second on one GPU, 28 × 768, context {context} / {goal:,}"
    return f"pretraining_gpu_{context}", Goal(1.0, "at least", of)


def gpu_course(recipe: Pretraining, context: int, tokens_per_step: int, device: torch.device) -> Course:
    """Documents as long as web pages, in steps of about `tokens_per_step` slots."""
    rows = tokens_per_step // context
    lengths = web_lengths(STEPS_PER_PASS * rows, SHORTEST_DOCUMENTS.get(context, SHORTEST))
    documents = masked_documents(lengths, recipe.model.vocabulary_size, context)
    attention = "flash_attention_2" if device.type == "cuda" and is_flash_attn_available() else "sdpa"
    return Course(recipe, documents, round(rows / documents.padded_fill), device, attention)


def speed_figures(course: Course, found: Race, name: str) -> dict[str, Any]:
    """Speed of a contender and how much of the GPU's peak it uses (Chowdhery et al. 2022, appendix B)."""
    speed = found.tokens_per_second(name)
    flops = training_flops_per_token(course.recipe.model, course.documents.attended_tokens, MASKING.rate)
    return {
        "contender": name,
        "real tokens per second": round(speed),
        "operations per token": flops,
        "model flops utilisation": round(speed * flops / PEAK_FLOPS, 4),
    }


def measure_own_speed(course: Course, rounds: int, steps: int, goal: int) -> Measured:
    """Our fastest contender's speed / `goal`, None where none runs, and the figures."""
    found = race(course.contenders(("bf16",), {}), rounds=rounds, steps=steps)
    fastest = found.fastest(in_all_modes(NAME, "bf16"))
    if fastest is None:
        return None, found.figures()
    best = {"fastest": speed_figures(course, found, fastest)}
    return found.tokens_per_second(fastest) / goal, best | {"setting": course.figures([])} | found.figures()


def measure_against_peer(course: Course, rounds: int, steps: int) -> Measured:
    """Our fastest contender's speed / ModernBERT's fastest one's, None where a side does not run, and the figures."""
    found = race(course.contenders(("bf16",), WAYS), rounds=rounds, steps=steps)
    ours = found.fastest(in_all_modes(NAME, "bf16"))
    theirs = found.fastest([name for peer in WAYS for name in in_all_modes(peer.name, "bf16")])
    if ours is None or theirs is None:
        return None, found.figures()
    setting = course.figures([MODERN_SPARSE]) | {"attention of HF ModernBERT": course.attention}
    ratio = found.speed_ratio(ours, theirs)
    return ratio["wall"], {f"{ours} / {theirs}": ratio, "setting": setting} | found.figures()


def results(rounds: int, steps: int, device: torch.device) -> Iterator[tuple[str, Goal, Measured]]:
    """Name, goal and measurement of all three result files; the last races at a context of 1024."""
    recipe = neobert_recipe("bf16")
    for context, goal in OWN_SPEED_GOALS.items():
        course = gpu_course(recipe, context, TOKENS_PER_STEP, device)
        yield *speed_result(context), measure_own_speed(course, rounds, steps, goal)
    course = gpu_course(recipe, 1024, PEER_TOKENS_PER_STEP, device)
    yield PEER_RESULT, PEER_GOAL, measure_against_peer(course, rounds, steps)


def write_not_measured(folder: Path = FOLDER) -> None:
    """Say so in the files that are not there yet; what a GPU measured once stays."""
    for name, goal in [*map(speed_result, OWN_SPEED_GOALS), (PEER_RESULT, PEER_GOAL)]:
        if not (folder / f"{name}.json").exists():
            write_result(name, None, goal, {}, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining_gpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="timed windows of a contender (default: 5)")
    parser.add_argument("--steps", type=int, default=50, help="updates of a window (default: 50)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        write_not_measured()
        print("not measured: there is no GPU here")
        return 0
    with compiling_anew():
        for name, goal, (ratio, figures) in results(options.rounds, options.steps, torch.device("cuda")):
            print(write_result(name, ratio, goal, figures).read_text(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
