"""Speed of pre-training: a step against Hugging Face's models on a CPU and on a GPU, and one process against two.

python -m benchmarks pretraining | pretraining_gpu | scaling_processes [--help]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ablations.recipe_runs import pretraining_runs
from benchmarks.contenders import (
    MODES,
    OURS,
    Mode,
    Peer,
    Race,
    Setting,
    beta_lengths,
    burst,
    compiling_anew,
    contender_name,
    in_all_modes,
    masked_documents,
    neobert_recipe,
    race,
)
from benchmarks.data import NEOBERT_MASKING, SHORTEST, web_lengths
from benchmarks.measuring import (
    OPERATIONS_RATIO,
    Benchmark,
    Goal,
    Result,
    operation_counter,
    take_turns,
    wait_passively,
)
from neobert.command_line import count
from neobert.data.preparation import open_specified, tokenized_corpus
from neobert.files import read_lines
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.attention import is_flash_attn_available
from neobert.model.size import parameter_count, training_flops_per_token
from neobert.processes import available_cores, worker_environment
from neobert.recipe import Precision, Pretraining, Subset
from neobert.runs.layout import Layout
from neobert.runs.run_file import Execution, SourceSpecification, write_run_file
from neobert.training.accounting import datasheet_ceiling
from neobert.training.distributed import set_up_device

Measured = tuple[float | None, dict[str, Any]]
"""A ratio (None if not measured) and its figures."""

# A step of models of 4 × 256 on a CPU, compared with BERT and ModernBERT.

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
CONTEXT = 128
DOCUMENTS_PER_STEP = 32
BURST_STEPS = 3
ROUNDS = 5
"""Number of bursts in one pass over the documents."""

BERT_PADDED, BERT_CONCATENATED = Peer("bert", "padded"), Peer("bert", "concatenated")
MODERN_PADDED, MODERN_BUCKETED = Peer("modernbert", "padded"), Peer("modernbert", "bucketed")
PEERS: Mapping[Peer, Sequence[Mode]] = dict.fromkeys((BERT_PADDED, BERT_CONCATENATED, MODERN_BUCKETED), MODES)
"""The modes in which each peer runs."""

Pairs = Sequence[tuple[Sequence[str], Sequence[str]]]
"""Names of our contenders and of theirs; the fastest of both are compared."""


def lowest_ratio(found: Race, pairs: Pairs) -> Measured:
    """Return the lowest ratio over all pairs (None if a side did not run), and the ratio of every pair. A ratio is the
    speed of our fastest contender / their fastest one, by the clock."""
    ratios = {}
    for own, other in pairs:
        ours, theirs = found.fastest(own), found.fastest(other)
        if ours is not None and theirs is not None:
            ratios[f"{ours} / {theirs}"] = found.speed_ratio(ours, theirs)
    is_whole = len(ratios) == len(pairs)
    return min(ratio["wall"] for ratio in ratios.values()) if is_whole else None, ratios


def at_equal_precision(peer: Peer) -> Pairs:
    """Return the pairs of ours and a peer in each precision, compiled or not."""
    return [(in_all_modes(OURS, precision), in_all_modes(peer.name, precision)) for precision in PRECISIONS]


OURS_AT_BEST = [name for precision in PRECISIONS for name in in_all_modes(OURS, precision)]
EQUAL_OPERATIONS = {BERT_CONCATENATED: 1.58, MODERN_BUCKETED: 1.19}
"""The ratios at which both sides compute as many operations a second (`operations_per_token`)."""
COMPARISONS: Mapping[str, tuple[Peer, Pairs, Goal]] = {
    "pretraining_over_bert_padded": (
        BERT_PADDED,
        at_equal_precision(BERT_PADDED),
        Goal(3.0, "at least", "real tokens a second: ours / HF BERT, padded, compiled if faster (worse of fp32, bf16)"),
    ),
    "pretraining_over_bert_concatenated": (
        BERT_CONCATENATED,
        at_equal_precision(BERT_CONCATENATED),
        Goal(
            EQUAL_OPERATIONS[BERT_CONCATENATED],
            "at least",
            "real tokens a second: ours / HF BERT on full rows whose documents see each other (as for padded)",
        ),
    ),
    "pretraining_over_bert_defaults": (
        BERT_PADDED,
        [(OURS_AT_BEST, [contender_name(BERT_PADDED.name, "fp32", "eager")])],
        Goal(6.0, "at least", "real tokens a second: ours at its best / HF BERT as it comes (padded, fp32, eager)"),
    ),
    "pretraining_over_modernbert_bucketed": (
        MODERN_BUCKETED,
        [(in_all_modes(OURS, "bf16"), in_all_modes(MODERN_BUCKETED.name, "bf16"))],
        Goal(
            EQUAL_OPERATIONS[MODERN_BUCKETED],
            "at least",
            "real tokens a second: ours / HF ModernBERT, sparse head, bucketed, at its best (bf16)",
        ),
    ),
}


def small_setting(count: int) -> Setting:
    """Return a setting with `count` documents for models of 4 × 256."""
    recipe = neobert_recipe("fp32", layers=4, width=256, heads=4, feedforward_width=1024, vocabulary_size=8192)
    documents = masked_documents(beta_lengths(count, CONTEXT), recipe.model.vocabulary_size, CONTEXT)
    return Setting(recipe, documents, DOCUMENTS_PER_STEP, torch.device("cpu"))


def operations_per_token(setting: Setting) -> dict[str, int]:
    """Count the operations of each contender per real token, in a burst in fp32, eager."""
    makers, found = setting.contenders(("fp32",), PEERS), {}
    for name in (OURS, *(peer.name for peer in PEERS)):
        step = makers[contender_name(name, "fp32", "eager")]()
        with operation_counter() as counter:
            tokens = burst(step, BURST_STEPS)
        found[name] = round(counter.get_total_flops() / tokens)
    return found


def measure_peers(options: argparse.Namespace) -> Iterator[Result]:
    """A step of pre-training against Hugging Face's BERT and ModernBERT: same documents, predicted tokens and size."""
    wait_passively()
    torch.set_num_threads(available_cores())
    setting = small_setting(DOCUMENTS_PER_STEP * BURST_STEPS * ROUNDS)
    facts, counted = setting.figures([BERT_PADDED, MODERN_PADDED]), operations_per_token(setting)
    with compiling_anew():
        found = race(setting.contenders(PRECISIONS, PEERS), rounds=options.rounds, steps=BURST_STEPS)
    for name, (peer, pairs, _) in COMPARISONS.items():
        ratio, ratios = lowest_ratio(found, pairs)
        own = {OPERATIONS_RATIO: round(counted[peer.name] / counted[OURS], 3), "operations per real token": counted}
        yield Result(name, ratio, {"speed, ours / theirs": ratios, **own, "setting": facts, **found.figures()})


PRETRAINING = Benchmark(
    measure_peers,
    {name: goal for name, (_, _, goal) in COMPARISONS.items()},
    {"--rounds": {"type": count, "default": ROUNDS, "help": "timed bursts of a contender"}},
)


# NeoBERT's own shape on one GPU, compared with ModernBERT.

TOKENS_PER_STEP = 1 << 16
PEER_TOKENS_PER_STEP = 1 << 15
"""Small enough that the peers' padded rows, with about twice as many slots, also fit on the GPU."""

STEPS_PER_PASS = 64
"""Enough that no step has a padding row, and that documents pack as in a window of training."""

GPU_PEERS: Mapping[Peer, Sequence[Mode]] = {MODERN_PADDED: MODES, MODERN_BUCKETED: MODES}
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


def measure_own_speed(setting: Setting, rounds: int, steps: int, goal: int) -> Measured:
    """Return the speed of our fastest contender / `goal` (None if none runs), and the figures.

    The figures include the model FLOPs utilisation (Chowdhery et al. 2022, appendix B), None for a GPU without a known
    peak.
    """
    found = race(setting.contenders(("bf16",), {}), rounds=rounds, steps=steps)
    fastest = found.fastest(in_all_modes(OURS, "bf16"))
    if fastest is None:
        return None, found.figures()
    speed = found.tokens_per_second(fastest)
    flops = training_flops_per_token(setting.recipe.model, setting.documents.attended_tokens, NEOBERT_MASKING.rate)
    peak = datasheet_ceiling(setting.device, "bf16")
    best = {
        "contender": fastest,
        "real tokens per second": round(speed),
        "operations per token": flops,
        "model flops utilisation": peak and round(speed * flops / peak, 4),
    }
    return speed / goal, {"fastest": best, "setting": setting.figures([])} | found.figures()


def measure_against_peer(setting: Setting, rounds: int, steps: int) -> Measured:
    """Return our fastest contender's speed / ModernBERT's fastest (None if a side does not run), and the figures."""
    found = race(setting.contenders(("bf16",), GPU_PEERS), rounds=rounds, steps=steps)
    theirs = [name for peer in GPU_PEERS for name in in_all_modes(peer.name, "bf16")]
    ratio, ratios = lowest_ratio(found, [(in_all_modes(OURS, "bf16"), theirs)])
    if ratio is None:
        return None, found.figures()
    facts = setting.figures([MODERN_PADDED]) | {"attention of HF ModernBERT": setting.attention}
    return ratio, {**ratios, "setting": facts, **found.figures()}


def measure_gpu(options: argparse.Namespace) -> Iterator[Result]:
    """Pre-training of NeoBERT's own shape on one GPU, and HF ModernBERT beside it; without a GPU "not measured"."""
    if not torch.cuda.is_available():
        print("not measured: there is no GPU here")
        return
    device, recipe = set_up_device(), neobert_recipe("bf16")
    with compiling_anew():
        for context, goal in OWN_SPEED_GOALS.items():
            setting = gpu_setting(recipe, context, TOKENS_PER_STEP, device)
            own_speed = measure_own_speed(setting, options.rounds, options.steps, goal)
            yield Result(f"pretraining_gpu_{context}", *own_speed)
        setting = gpu_setting(recipe, 1024, PEER_TOKENS_PER_STEP, device)
        against_peer = measure_against_peer(setting, options.rounds, options.steps)
        yield Result("pretraining_gpu_over_modernbert", *against_peer)


PRETRAINING_GPU = Benchmark(
    measure_gpu,
    {
        **{
            f"pretraining_gpu_{context}": Goal(
                1.0, "at least", f"real tokens a second on one GPU, 28 × 768, context {context} / {goal:,}"
            )
            for context, goal in OWN_SPEED_GOALS.items()
        },
        "pretraining_gpu_over_modernbert": Goal(
            1.8, "at least", "real tokens a second on one GPU, 28 × 768, context 1024: ours / HF ModernBERT at its best"
        ),
    },
    {
        "--rounds": {"type": count, "default": 5, "help": "timed windows of a contender"},
        "--steps": {"type": count, "default": 50, "help": "updates of a window"},
    },
)

# One process and two, one thread each, through the worker's own command; and the bytes that they exchange.

SOURCE = SourceSpecification(name="synthetic", synthetic_documents=2000)
ROW_TOKENS = 96
ROWS_PER_STEP = (8, 64)
"""Rows of a step at smoke scale, and enough rows that computing takes longer than exchanging gradients."""

STEPS = 24
UNCOUNTED_STEPS = 4


def recipe_with(rows: int) -> Pretraining:
    """Return NeoBERT's recipe in the shape of the smoke scale, with `rows` full rows per step."""
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


def plan_worker(root: Path, run: PretrainingRun, execution: Execution, corpora: Path) -> tuple[Path, list[str]]:
    """Plan a run in an empty folder of runs that shares tokenised corpora with another one; return its folder and the
    command that trains it."""
    (root / "data").symlink_to(corpora / "data")
    folder = write_run_file(Layout(root), run, SOURCE, execution, {"variants": ["M10"]})
    return folder, [sys.executable, "-m", "neobert.runs.worker", "--runs", str(root), f"pretraining/{run.id}"]


def logged_steps(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of all steps of a run."""
    return [line for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


def train_with(processes: int, run: PretrainingRun, corpora: Path) -> float:
    """Train with the real worker in a new folder; return the median real tokens per second."""
    rows_each = run.recipe.stages[0].tokens_per_step // ROW_TOKENS // 2
    execution = Execution(
        threads=1, processes=processes, micro_batch_tokens=rows_each * ROW_TOKENS, checkpoint_interval_steps=STEPS
    )
    with tempfile.TemporaryDirectory() as root:
        folder, command = plan_worker(Path(root), run, execution, corpora)
        subprocess.run(command, check=True, env=worker_environment(1))
        lines = logged_steps(folder)[UNCOUNTED_STEPS:]
    return statistics.median(line["real_tokens"] / line["seconds"] for line in lines)


def compare_processes(corpora: Path, rows: int, repetitions: int) -> dict[str, Any]:
    """Compare one process and two, in turn, on the tokenised corpora of one folder."""
    (run,) = pretraining_runs(recipe_with(rows), 0, open_specified(SOURCE))
    print(f"{rows} rows a step", flush=True)
    sides = {f"{processes} processes": partial(train_with, processes, run, corpora) for processes in (1, 2)}
    speeds = take_turns(sides, repetitions)
    one, two = speeds.values()
    parameters = parameter_count(run.recipe.model, ROW_TOKENS).total
    return {
        "rows per step": rows,
        "ratio": round(statistics.median(both / alone for alone, both in zip(one, two, strict=True)), 3),
        "real tokens per second": {name: [round(speed) for speed in own] for name, own in speeds.items()},
        "parameters": parameters,
        # fp32 gradients, summed around a ring of two (Patarasuk and Yuan 2009)
        "bytes per step that all processes send, computed": 2 * 4 * parameters,
    }


def measure_processes(options: argparse.Namespace) -> Iterator[Result]:
    """Pre-training in one process and in two, one thread each, through the worker's own command."""
    if available_cores() < 2:
        print("not measured: there is one core")
        return
    with tempfile.TemporaryDirectory() as folder:
        (run,) = pretraining_runs(recipe_with(ROWS_PER_STEP[0]), 0, open_specified(SOURCE))
        tokenized_corpus(Layout(Path(folder)), run, run.corpus, SOURCE)
        measured = [compare_processes(Path(folder), rows, options.repetitions) for rows in ROWS_PER_STEP]
    yield Result("scaling_processes", measured[-1]["ratio"], {"steps": STEPS, "by rows per step": measured})


PROCESSES = Benchmark(
    measure_processes,
    {
        "scaling_processes": Goal(
            1.6,
            "at least",
            f"real tokens a second: two processes / one (one thread each, {ROWS_PER_STEP[-1]} rows a step)",
        )
    },
    {"--repetitions": {"type": count, "default": 2, "help": "of each number of processes"}},
)
