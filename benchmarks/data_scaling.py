"""Time and peak memory of tokenising, opening and the first training batches at 1, 10 and 100 times a small corpus.

python -m benchmarks.data_scaling [--documents N]
"""

import argparse
import json
import resource
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.data_loader import NEOBERT_MASKING, stage
from benchmarks.data_texts import child, documents, write_tokenizer
from benchmarks.measuring import load, timed
from benchmarks.results import Goal, write_result

GOAL = Goal(1.15, "at most", "processor time a token to tokenise, open and begin: 100 times a corpus / 10 times")
FACTORS = (1, 10, 100)
MEMORY_BOUND_MEGABYTES = 16
"""How much higher memory may stand after tokenising 100 times than after 10 times."""

FIRST, SECOND = "tokenise", "open and first batches"
BLOCK_TEXTS = 500
FIRST_STEPS = 4


def main() -> int:
    """The command; with --one it is a child that measures one size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_scaling", description=__doc__)
    parser.add_argument("--documents", type=int, default=2000, help="of the smallest corpus (default: 2000)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(Path(options.one), options.documents)))
        return 0
    figures: dict[str, Any] = {"load_before": load()}
    with tempfile.TemporaryDirectory() as name:
        write_tokenizer(None, Path(name))
        sizes = {factor: measured(Path(name), factor * options.documents) for factor in FACTORS}
    figures |= {f"{factor} times": sizes[factor] for factor in FACTORS} | {"load_after": load()}
    figures |= memory(sizes[10], sizes[100])
    ratio = sizes[100]["processor nanoseconds a token"] / sizes[10]["processor nanoseconds a token"]
    print(write_result("data_scaling", ratio, GOAL, figures).read_text())
    return 0


def memory(small: dict[str, Any], large: dict[str, Any]) -> dict[str, Any]:
    """How much higher the peaks of the larger corpus are."""
    growth = {part: round(large["peak megabytes"][part] - small["peak megabytes"][part], 1) for part in (FIRST, SECOND)}
    return {
        "growth of the peak from 10 to 100 times, megabytes": growth,
        "bound on that of tokenising, megabytes": MEMORY_BOUND_MEGABYTES,
        "memory of tokenising is flat": growth[FIRST] <= MEMORY_BOUND_MEGABYTES,
        "tokens on the disk, megabytes": round(2 * large["tokens"] / 1e6, 1),
    }


def measured(folder: Path, count: int) -> dict[str, Any]:
    """One size in a fresh process."""
    answer: dict[str, Any] = child("benchmarks.data_scaling", "--one", str(folder), "--documents", str(count))
    print(f"  {count} documents: {answer}", flush=True)
    return answer


def one(folder: Path, count: int) -> dict[str, Any]:
    """Everything from texts to the first batches; memory is the process's highest, and what it had after imports."""
    from neobert.data.batches import StepIterator, collate
    from neobert.data.shards import all_documents, open_shards, prepare
    from neobert.data.tokenizers import load_tokenizer

    block = list(islice(documents(None), BLOCK_TEXTS))
    texts = (f"{number} {block[number % BLOCK_TEXTS]}" for number in range(count))
    out = folder / f"corpus-{count}"
    tokenizer = load_tokenizer(folder)

    def begin() -> None:
        corpus = open_shards(out)
        steps = StepIterator(all_documents(corpus).split_heldout()[0], stage(1024, 16), "packed", seed=0)
        for rows in islice(steps, FIRST_STEPS):
            collate(rows, corpus, NEOBERT_MASKING)

    parts: dict[str, Callable[[], Any]] = {
        FIRST: lambda: prepare(texts, tokenizer, out, origins={}),
        SECOND: begin,
    }
    timings, peaks = {}, {"imports": peak_megabytes()}
    for name, run in parts.items():
        timings[name], peaks[name] = timed(run), peak_megabytes()
    tokens = open_shards(out).tokens
    processor = sum(timing.processor for timing in timings.values())
    return {
        "documents": count,
        "tokens": tokens,
        "wall seconds": {name: round(timing.wall, 3) for name, timing in timings.items()},
        "processor seconds": {name: round(timing.processor, 3) for name, timing in timings.items()},
        "processor nanoseconds a token": round(processor / tokens * 1e9, 1),
        "peak megabytes": peaks,
    }


def peak_megabytes() -> float:
    """The most memory that this process has had at a time."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)


if __name__ == "__main__":
    sys.exit(main())
