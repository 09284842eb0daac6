"""Pre-training in real tokens a second: a step against Hugging Face's models on a CPU and on a GPU, and two processes.

python -m benchmarks pretraining | pretraining_gpu | scaling_processes [--help]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ablations.plan import pretraining_runs
from benchmarks.contenders import (
    MASKING,
    MODES,
    OURS,
    SHORTEST,
    Mode,
    Peer,
    Race,
    Setting,
    beta_lengths,
    compiling_anew,
    contender_name,
    in_all_modes,
    masked_documents,
    neobert_recipe,
    race,
    web_lengths,
)
from benchmarks.measuring import FOLDER, Goal, load_averages, wait_passively, write_result, write_unmeasured
from neobert.data.preparation import open_specified, tokenized_corpus
from neobert.files import read_lines
from neobert.model.attention import is_flash_attn_available
from neobert.model.size import PEAK_FLOPS_PER_SECOND, parameter_count, training_flops_per_token
from neobert.processes import available_cores, worker_environment
from neobert.recipe import Precision, Pretraining, Subset
from neobert.runs.layout import Layout
from neobert.runs.run_file import Execution, Source, write_run_file
from neobert.runs.specifications import PretrainingRun

Measured = tuple[float | None, dict[str, Any]]
"""A ratio, None where it was not measured, and its figures."""

# A step of 4 × 256 models on a CPU, against BERT and ModernBERT.

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
CONTEXT = 128
DOCUMENTS_PER_STEP = 32
BURST_STEPS = 3
ROUNDS = 5
"""So many bursts are one pass over the documents."""

BERT_PADDED, BERT_CONCATENATED = Peer("bert", "padded"), Peer("bert", "concatenated")
MODERN_PADDED = Peer("modernbert", "padded")
MODERN_SPARSE, MODERN_BUCKETED = Peer("modernbert", "padded", sparse=True), Peer("modernbert", "bucketed", sparse=True)
PEERS: Mapping[Peer, Sequence[Mode]] = {
    BERT_PADDED: MODES,
    Peer("bert", "bucketed"): ("eager",),
    BERT_CONCATENATED: MODES,
    MODERN_PADDED: ("eager",),
    MODERN_SPARSE: ("eager",),
    MODERN_BUCKETED: MODES,
}
"""How each peer runs: compiled where shapes stand still, and the strongest one also where they do not."""


@dataclass(frozen=True)
class Comparison:
    """One result file: the lowest, over `pairs` of contenders, of our fastest one's speed / their fastest one's."""

    name: str
    goal: Goal
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]]

    def measure(self, found: Race) -> Measured:
        """The ratio by the clock, None where a side did not run, and the ratio of every pair."""
        ratios = {}
        for own, other in self.pairs:
            ours, theirs = found.fastest(own), found.fastest(other)
            if ours is not None and theirs is not None:
                ratios[f"{ours} / {theirs}"] = found.speed_ratio(ours, theirs)
        is_whole = len(ratios) == len(self.pairs)
        return min(ratio["wall"] for ratio in ratios.values()) if is_whole else None, ratios


def at_equal_precision(peer: Peer) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Ours and a peer, each compiled or not, in both precisions."""
    return [(in_all_modes(OURS, precision), in_all_modes(peer.name, precision)) for precision in PRECISIONS]


OURS_AT_BEST = [name for precision in PRECISIONS for name in in_all_modes(OURS, precision)]
COMPARISONS = (
    Comparison(
        "pretraining_over_bert_padded",
        Goal(3.0, "at least", "real tokens a second: ours / HF BERT, padded, compiled if faster (worse of fp32, bf16)"),
        at_equal_precision(BERT_PADDED),
    ),
    Comparison(
        "pretraining_over_bert_concatenated",
        Goal(
            2.0,
            "at least",
            "real tokens a second: ours / HF BERT on full rows whose documents see each other (as for padded)",
        ),
        at_equal_precision(BERT_CONCATENATED),
    ),
    Comparison(
        "pretraining_over_bert_defaults",
        Goal(6.0, "at least", "real tokens a second: ours at its best / HF BERT as it comes (padded, fp32, eager)"),
        [(OURS_AT_BEST, [contender_name(BERT_PADDED.name, "fp32", "eager")])],
    ),
    Comparison(
        "pretraining_over_modernbert_bucketed",
        Goal(2.0, "at least", "real tokens a second: ours / HF ModernBERT, sparse head, bucketed, eager (bf16)"),
        [(in_all_modes(OURS, "bf16"), [contender_name(MODERN_BUCKETED.name, "bf16", "eager")])],
    ),
)


def small_setting(count: int) -> Setting:
    """`count` documents for models of 4 × 256."""
    recipe = neobert_recipe("fp32", layers=4, width=256, heads=4, feedforward_width=1024, vocabulary_size=8192)
    documents = masked_documents(beta_lengths(count, CONTEXT), recipe.model.vocabulary_size, CONTEXT)
    return Setting(recipe, documents, DOCUMENTS_PER_STEP, torch.device("cpu"))


def measure_peers(arguments: Sequence[str]) -> int:
    """A step of pre-training against Hugging Face's BERT and ModernBERT: same documents, predicted tokens and size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pretraining", description=measure_peers.__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"timed bursts of a contender (default: {ROUNDS})")
    parser.add_argument("--only", nargs="+", help="parts of names: leave all other contenders out and write no result")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="(default: both)")
    options = parser.parse_args(arguments)
    wait_passively()
    torch.set_num_threads(available_cores())
    setting = small_setting(DOCUMENTS_PER_STEP * BURST_STEPS * ROUNDS)
    figures = {"setting": setting.figures([BERT_PADDED, MODERN_PADDED]), "load_before": load_averages()}
    everyone = setting.contenders(options.precision, PEERS)
    chosen = {
        name: make
        for name, make in everyone.items()
        if options.only is None or any(part in name for part in options.only)
    }
    with compiling_anew():
        found = race(chosen, rounds=options.rounds, steps=BURST_STEPS)
    figures |= {"load_after": load_averages()} | found.figures()
    for comparison in COMPARISONS:
        ratio, ratios = comparison.measure(found)
        print(comparison.name, ratio, ratios, flush=True)
        if len(chosen) == len(everyone) and set(options.precision) == set(PRECISIONS):
            write_result(comparison.name, ratio, comparison.goal, {"speed, ours / theirs": ratios} | figures)
    return 0


# NeoBERT's own shape on one GPU, and ModernBERT beside it.

PEAK_FLOPS = PEAK_FLOPS_PER_SECOND["H200"]
TOKENS_PER_STEP = 1 << 16
PEER_TOKENS_PER_STEP = 1 << 15
"""So many that the peers' padded rows, about twice as many slots, also have room on the GPU."""

STEPS_PER_PASS = 16
GPU_PEERS: Mapping[Peer, Sequence[Mode]] = {MODERN_SPARSE: MODES, MODERN_BUCKETED: MODES}
OWN_SPEED_GOALS = {1024: 310_000, 4096: 200_000}
SHORTEST_DOCUMENTS = {1024: SHORTEST, 4096: 1024}
"""By context. The second stage of the paper mostly draws documents of at least 1,024 tokens (§3.2)."""

GPU_GOALS = {
    **{
        f"pretraining_gpu_{context}": Goal(
            1.0, "at least", f"real tokens a second on one GPU, 28 × 768, context {context} / {goal:,}"
        )
        for context, goal in OWN_SPEED_GOALS.items()
    },
    "pretraining_gpu_over_modernbert": Goal(
        1.8, "at least", "real tokens a second on one GPU, 28 × 768, context 1024: ours / HF ModernBERT at its best"
    ),
}


def gpu_setting(recipe: Pretraining, context: int, tokens_per_step: int, device: torch.device) -> Setting:
    """Documents as long as web pages, in steps of about `tokens_per_step` slots."""
    rows = tokens_per_step // context
    lengths = web_lengths(STEPS_PER_PASS * rows, SHORTEST_DOCUMENTS.get(context, SHORTEST))
    documents = masked_documents(lengths, recipe.model.vocabulary_size, context)
    attention = "flash_attention_2" if device.type == "cuda" and is_flash_attn_available() else "sdpa"
    return Setting(recipe, documents, round(rows / documents.padded_fill), device, attention)


def measure_own_speed(setting: Setting, rounds: int, steps: int, goal: int) -> Measured:
    """Our fastest contender's speed / `goal`, None where none runs, and the figures.

    They say how much of the GPU's peak it uses (Chowdhery et al. 2022, appendix B).
    """
    found = race(setting.contenders(("bf16",), {}), rounds=rounds, steps=steps)
    fastest = found.fastest(in_all_modes(OURS, "bf16"))
    if fastest is None:
        return None, found.figures()
    speed = found.tokens_per_second(fastest)
    flops = training_flops_per_token(setting.recipe.model, setting.documents.attended_tokens, MASKING.rate)
    best = {
        "contender": fastest,
        "real tokens per second": round(speed),
        "operations per token": flops,
        "model flops utilisation": round(speed * flops / PEAK_FLOPS, 4),
    }
    return speed / goal, {"fastest": best, "setting": setting.figures([])} | found.figures()


def measure_against_peer(setting: Setting, rounds: int, steps: int) -> Measured:
    """Our fastest contender's speed / ModernBERT's fastest one's, None where a side does not run, and the figures."""
    found = race(setting.contenders(("bf16",), GPU_PEERS), rounds=rounds, steps=steps)
    ours = found.fastest(in_all_modes(OURS, "bf16"))
    theirs = found.fastest([name for peer in GPU_PEERS for name in in_all_modes(peer.name, "bf16")])
    if ours is None or theirs is None:
        return None, found.figures()
    facts = setting.figures([MODERN_SPARSE]) | {"attention of HF ModernBERT": setting.attention}
    ratio = found.speed_ratio(ours, theirs)
    return ratio["wall"], {f"{ours} / {theirs}": ratio, "setting": facts} | found.figures()


def gpu_results(rounds: int, steps: int, device: torch.device) -> Iterator[Measured]:
    """One measurement for each of GPU_GOALS; the last races at a context of 1024."""
    recipe = neobert_recipe("bf16")
    for context, goal in OWN_SPEED_GOALS.items():
        setting = gpu_setting(recipe, context, TOKENS_PER_STEP, device)
        yield measure_own_speed(setting, rounds, steps, goal)
    setting = gpu_setting(recipe, 1024, PEER_TOKENS_PER_STEP, device)
    yield measure_against_peer(setting, rounds, steps)


def measure_gpu(arguments: Sequence[str], folder: Path = FOLDER) -> int:
    """Pre-training of NeoBERT's own shape on one GPU, and HF ModernBERT beside it; without a GPU "not measured"."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pretraining_gpu", description=measure_gpu.__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="timed windows of a contender (default: 5)")
    parser.add_argument("--steps", type=int, default=50, help="updates of a window (default: 50)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        for name, goal in GPU_GOALS.items():
            write_unmeasured(name, goal, folder)
        print("not measured: there is no GPU here")
        return 0
    with compiling_anew():
        results = gpu_results(options.rounds, options.steps, torch.device("cuda"))
        for (name, goal), (ratio, figures) in zip(GPU_GOALS.items(), results, strict=True):
            write_result(name, ratio, goal, figures, folder)
    return 0


# One process and two, one thread each, through the worker's own command; and what they exchange.

SOURCE = Source(name="synthetic", synthetic_documents=2000)
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")
ROW_TOKENS = 96
ROWS_PER_STEP = (8, 64)
"""Rows of a step at smoke scale, and enough of them to compute for longer than to exchange gradients."""

PROCESSES_GOAL = Goal(
    1.6, "at least", f"real tokens a second: two processes / one (one thread each, {ROWS_PER_STEP[-1]} rows a step)"
)

STEPS = 24
UNCOUNTED_STEPS = 4
PROCESSES = 2


@dataclass(frozen=True)
class Speed:
    """Median real tokens a second, and the bytes a step that anyone on this machine sent to it."""

    tokens_per_second: float
    loopback_bytes_per_step: float | None


def recipe_with(rows: int) -> Pretraining:
    """NeoBERT at the smoke scale's shape on full rows, `rows` of them a step."""
    recipe = neobert_recipe("bf16", layers=6, width=120, heads=4, feedforward_width=480, vocabulary_size=1024)
    stage = recipe.stages[0].model_copy(
        update={
            "context": ROW_TOKENS,
            "tokens_per_step": rows * ROW_TOKENS,
            "mixture": (Subset(minimum_tokens=0, share=1.0),),
            "steps": STEPS,
            "warmup_steps": 0,
            "decay_steps": 0,
        }
    )
    return recipe.model_copy(update={"stages": (stage,), "packing": "packed"})


def train_with(root: Path, run: PretrainingRun, processes: int) -> Speed:
    """Train `run` in the folder with the real worker; it must not have been trained there."""
    rows_each = run.recipe.stages[0].tokens_per_step // ROW_TOKENS // PROCESSES
    execution = Execution(
        threads=1, processes=processes, micro_batch_tokens=rows_each * ROW_TOKENS, checkpoint_interval_steps=STEPS
    )
    folder = write_run_file(Layout(root), run, SOURCE, execution, {"variants": ["M10"]})
    before = _loopback_bytes()
    command = [sys.executable, "-m", "neobert.runs.worker", "--runs", str(root), f"pretraining/{run.id}"]
    subprocess.run(command, check=True, env=worker_environment(1))
    after = _loopback_bytes()
    lines = [line for line in read_lines(folder / "metrics.jsonl") if "loss" in line][UNCOUNTED_STEPS:]
    speed = statistics.median(line["real_tokens"] / line["seconds"] for line in lines)
    return Speed(speed, None if before is None or after is None else (after - before) / STEPS)


def _loopback_bytes() -> int | None:
    return int(LOOPBACK.read_text()) if LOOPBACK.exists() else None


def ring_bytes(parameters: int, processes: int) -> float:
    """What one process sends a step where fp32 gradients are summed around a ring (Patarasuk and Yuan 2009)."""
    return 4 * parameters * 2 * (processes - 1) / processes


def compare_processes(corpora: Path, rows: int, repetitions: int) -> dict[str, Any]:
    """Both numbers of processes in turns on the tokenised corpora of one folder."""
    (run,) = pretraining_runs(recipe_with(rows), 0, open_specified(SOURCE))
    speeds: dict[int, list[Speed]] = {1: [], PROCESSES: []}
    for repetition in range(repetitions):
        for processes in sorted(speeds, reverse=repetition % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "data").symlink_to(corpora / "data")
                speeds[processes].append(train_with(Path(folder), run, processes))
            print(f"  {rows} rows a step, {processes} processes: {speeds[processes][-1]}", flush=True)
    parameters = parameter_count(run.recipe.model, ROW_TOKENS).total
    pairs = zip(speeds[1], speeds[PROCESSES], strict=True)
    return {
        "rows per step": rows,
        "ratio": round(statistics.median(both.tokens_per_second / one.tokens_per_second for one, both in pairs), 3),
        "real tokens per second": {
            f"{count} processes": [round(speed.tokens_per_second) for speed in found] for count, found in speeds.items()
        },
        "parameters": parameters,
        "bytes per step that all processes send, computed": PROCESSES * ring_bytes(parameters, PROCESSES),
        "bytes per step seen on the loopback device": {
            f"{count} processes": [
                None if speed.loopback_bytes_per_step is None else round(speed.loopback_bytes_per_step)
                for speed in found
            ]
            for count, found in speeds.items()
        },
    }


def measure_processes(arguments: Sequence[str]) -> int:
    """Pre-training in one process and in two, one thread each, through the worker's own command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scaling_processes", description=measure_processes.__doc__
    )
    parser.add_argument("--repetitions", type=int, default=2, help="of each number of processes (default: 2)")
    options = parser.parse_args(arguments)
    if available_cores() < PROCESSES:
        write_result("scaling_processes", None, PROCESSES_GOAL, {"reason": f"fewer than {PROCESSES} cores"})
        return 0
    figures: dict[str, Any] = {"load_before": load_averages()}
    with tempfile.TemporaryDirectory() as folder:
        (run,) = pretraining_runs(recipe_with(ROWS_PER_STEP[0]), 0, open_specified(SOURCE))
        tokenized_corpus(Layout(Path(folder)), run, SOURCE)
        measured = [compare_processes(Path(folder), rows, options.repetitions) for rows in ROWS_PER_STEP]
    figures |= {"load_after": load_averages(), "steps": STEPS, "by rows per step": measured}
    write_result("scaling_processes", measured[-1]["ratio"], PROCESSES_GOAL, figures)
    return 0
