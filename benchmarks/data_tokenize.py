"""From text files to rows of tokens on the disk: ours against datasets.map with run_mlm's grouping, and the bare limit.

python -m benchmarks.data_tokenize [--data DIR]
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.data_texts import child, timing_of, write_texts, write_tokenizer
from benchmarks.measuring import Timing, load, median_ratio, seconds, turns
from benchmarks.results import Goal, write_result

GOAL = Goal(2.0, "at least", "MB/s from text files to packed rows on the disk: ours / datasets.map")
OURS, BARE, PEER = "ours", "encode_batch_fast alone", "datasets.map"
RATE = "best MB/s"
PEERS = {
    f"{processes} processes, batches of {batch}": (processes, batch) for processes in (1, 2) for batch in (1000, 4000)
}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_tokenize", description=__doc__)
    parser.add_argument("--data", help="data folder with corpora and tokenizers (default: synthetic text)")
    parser.add_argument("--megabytes", type=float, default=8, help="of text (default: 8)")
    parser.add_argument("--repetitions", type=int, default=5, help="default: 5")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures: dict[str, Any] = {"load_before": load()}
        write_tokenizer(options.data, folder)
        figures |= write_texts(options.data, folder, options.megabytes)
        tried = {peer: timing_of(measured(folder, "datasets", *map(str, form))).wall for peer, form in PEERS.items()}
        best = min(tried, key=lambda peer: tried[peer])
        figures["datasets.map, one run each, wall seconds"] = {peer: round(wall, 2) for peer, wall in tried.items()}
        ways = {OURS: ("ours",), BARE: ("bare",), PEER: ("datasets", *map(str, PEERS[best]))}
        figures |= compared(folder, ways, options.repetitions, figures["megabytes"])
        figures["load_after"] = load()
    print(write_result("data_tokenize", figures["median of paired ratios"]["wall"], GOAL, figures).read_text())
    return 0


def compared(folder: Path, ways: dict[str, tuple[str, ...]], repetitions: int, megabytes: float) -> dict[str, Any]:
    """All ways in turns, each time in a fresh process."""
    timings: dict[str, list[Timing]] = {way: [] for way in ways}
    said: dict[str, Any] = {}
    alone: list[float] = []
    for way in turns(list(ways), repetitions):
        said[way] = measured(folder, *ways[way])
        timings[way].append(timing_of(said[way]))
        alone += [said[way]["tokenised"]] if way == OURS else []
        print(f"  {way}: {timings[way][-1].wall:.2f} s", flush=True)
    return {
        "median of paired ratios": median_ratio(timings[PEER], timings[OURS]),
        "bare rate reached, rows and masks included": median_ratio(timings[BARE], timings[OURS]),
        "bare rate reached by tokenising alone (clock)": shares(timings[BARE], alone),
        "fill": said[OURS]["fill"],
        "version of datasets": said[PEER]["version"],
        "rows": {OURS: said[OURS]["rows"], PEER: said[PEER]["rows"]},
        **{
            way: seconds(timings[way]) | {RATE: round(megabytes / min(t.wall for t in timings[way]), 2)} for way in ways
        },
    }


def shares(bare: list[Timing], alone: list[float]) -> float:
    """The median of the paired ratios of clock seconds."""
    return round(statistics.median(limit.wall / own for limit, own in zip(bare, alone, strict=True)), 3)


def measured(folder: Path, way: str, *form: str) -> dict[str, Any]:
    """One run of one way, its output thrown away."""
    with tempfile.TemporaryDirectory() as out:
        answer: dict[str, Any] = child("benchmarks.data_contenders", way, str(folder), out, *form)
        return answer


if __name__ == "__main__":
    sys.exit(main())
