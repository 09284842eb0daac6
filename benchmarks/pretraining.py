"""Speed of pre-training: steps against Hugging Face's models on a CPU, and runs on a GPU."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import OURS, Peer, Setting, beta_lengths, masked_documents, neobert_recipe
from benchmarks.data import write_web_pages
from benchmarks.measuring import OPERATIONS_RATIO, Pairs, Result, count_operations, lowest_ratio, race, summary
from neobert.files import read_lines
from neobert.processes import REPOSITORY, available_cores
from neobert.recipe import Precision
from neobert.runs.records import read_record

BURST_STEPS = 3
ROUNDS = 5
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
DOCUMENTS_PER_STEP = 32
PADDED, CONCATENATED, BUCKETED = Peer("bert", "padded"), Peer("bert", "concatenated"), Peer("modernbert", "bucketed")


def at_equal_precision(peer: Peer, *precisions: Precision) -> Pairs:
    """Return the pairs of ours and a peer in each precision, compiled or not."""
    return [(f"{OURS}, {precision}", f"{peer.name}, {precision}") for precision in precisions]


COMPARISONS: Mapping[str, tuple[Peer, Pairs]] = {
    "pretraining_over_bert_padded": (PADDED, at_equal_precision(PADDED, *PRECISIONS)),
    "pretraining_over_bert_concatenated": (CONCATENATED, at_equal_precision(CONCATENATED, *PRECISIONS)),
    "pretraining_over_bert_defaults": (PADDED, [(OURS, f"{PADDED.name}, fp32, eager")]),
    "pretraining_over_modernbert_bucketed": (BUCKETED, at_equal_precision(BUCKETED, "bf16")),
}


def small_setting(count: int) -> Setting:
    """Return a setting with `count` documents of up to 128 tokens for models of 4 × 256."""
    recipe = neobert_recipe("fp32", layers=4, width=256, heads=4, feedforward_width=1024, vocabulary_size=8192)
    documents = masked_documents(beta_lengths(count, 128), recipe.model.vocabulary_size, 128)
    return Setting(recipe, documents, DOCUMENTS_PER_STEP, torch.device("cpu"))


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Measure a step against Hugging Face's BERT and ModernBERT: same documents, predicted tokens and size. With a GPU
    measure the speed of a run instead."""
    yield from measure_runs() if torch.cuda.is_available() else measure_steps(options.repetitions or ROUNDS)


def measure_steps(rounds: int) -> Iterator[Result]:
    """Measure steps of ours and of Hugging Face's models on all cores of a CPU."""
    torch.set_num_threads(available_cores())
    setting, peers = small_setting(DOCUMENTS_PER_STEP * BURST_STEPS * ROUNDS), (PADDED, CONCATENATED, BUCKETED)
    counted = count_operations(setting.contenders(("fp32",), peers, ("eager",)), BURST_STEPS)
    found = race(setting.contenders(PRECISIONS, peers), rounds=rounds, steps=BURST_STEPS)
    for name, (peer, pairs) in COMPARISONS.items():
        ratio, figures = lowest_ratio(found, pairs)
        theirs, own = (counted[f"{side}, fp32, eager"] for side in (peer.name, OURS))
        equal = {OPERATIONS_RATIO: round(theirs / own, 3), "operations per real token": counted}
        yield Result(name, ratio, equal | figures | {"threads": torch.get_num_threads()})


GOALS_BY_CONTEXT = {1024: 310_000, 4096: 200_000}
"""Real tokens a second."""
PAGES, WINDOWS = 12_000, 3


def measure_runs() -> Iterator[Result]:
    """Measure the runs of benchmarks/speed.py on random web pages, as run.py starts them."""
    with tempfile.TemporaryDirectory() as folder:
        pages, runs = f"{folder}/pages", f"{folder}/runs"
        write_web_pages(Path(pages), PAGES, neobert_recipe("bf16").model.vocabulary_size)
        command = "ablations/run.py --ladder benchmarks/speed.py --scale speed --variant M9 --stages pretraining"
        place = f"--data {pages} --runs {runs} --cluster here --workers 1 --compile on"
        subprocess.run([sys.executable, *command.split(), *place.split()], cwd=REPOSITORY, check=True)
        for path in sorted(Path(runs).glob("pretraining/*/done.json")):
            record = read_record(path)
            context = record["config"]["recipe"]["stages"][-1]["context"]
            steps = [line for line in read_lines(path.with_name("metrics.jsonl"), "step") if "loss" in line]
            yield result_of_run(context, steps, {key: record[key] for key in RECORDED})


RECORDED = ("tokens_per_second", "model_flops_utilization", "phase_seconds", "compile_seconds", "peak_memory_bytes")


def result_of_run(context: int, steps: Sequence[Mapping[str, Any]], recorded: dict[str, Any]) -> Result:
    """Return the speed in equal parts of the steps of a run / the goal; `recorded` are figures of its record."""
    parts = [steps[len(steps) * part // WINDOWS : len(steps) * (part + 1) // WINDOWS] for part in range(WINDOWS)]
    speeds = [sum(step["real_tokens"] for step in part) / sum(step["seconds"] for step in part) for part in parts]
    figures = {"real tokens per second": [round(speed) for speed in speeds], "steps": len(steps)} | recorded
    return Result(f"pretraining_gpu_{context}", summary([s / GOALS_BY_CONTEXT[context] for s in speeds]), figures)
