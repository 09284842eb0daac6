"""A step of pre-training against Hugging Face's BERT and ModernBERT: same documents, same predicted tokens, same size.

python -m benchmarks.pretraining_peers [--rounds N] [--only PART ...] [--precision fp32 bf16]
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.contenders import MODES, Course, Mode, compiling_anew, contender_name, in_all_modes, neobert_recipe
from benchmarks.documents import beta_lengths, masked_documents
from benchmarks.measuring import load, wait_passively
from benchmarks.own import NAME
from benchmarks.peers import Peer
from benchmarks.race import Race, race
from benchmarks.results import Goal, write_result
from neobert.launching.here import available_cores
from neobert.recipe import Precision

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
CONTEXT = 128
DOCUMENTS_PER_STEP = 32
BURST_STEPS = 3
ROUNDS = 5
"""So many bursts are one pass over the documents."""

BERT_PADDED, BERT_CONCATENATED = Peer("bert", "padded"), Peer("bert", "concatenated")
MODERN_PADDED, MODERN_BUCKETED = Peer("modernbert", "padded"), Peer("modernbert", "bucketed", sparse=True)
WAYS: Mapping[Peer, Sequence[Mode]] = {
    BERT_PADDED: MODES,
    Peer("bert", "bucketed"): ("eager",),
    BERT_CONCATENATED: MODES,
    MODERN_PADDED: ("eager",),
    Peer("modernbert", "padded", sparse=True): ("eager",),
    MODERN_BUCKETED: MODES,
}
"""How each peer runs: compiled where shapes stand still, and the strongest one also where they do not."""

Pair = tuple[Sequence[str], Sequence[str]]


@dataclass(frozen=True)
class Comparison:
    """One result file: the lowest, over `pairs` of contenders, of our fastest one's speed / their fastest one's."""

    name: str
    goal: Goal
    pairs: Sequence[Pair]

    def measured(self, found: Race) -> tuple[float | None, dict[str, Any]]:
        """The ratio by the clock, None where a side did not run, and the ratio of every pair."""
        ratios = {}
        for own, other in self.pairs:
            ours, theirs = found.fastest(own), found.fastest(other)
            if ours is not None and theirs is not None:
                ratios[f"{ours} / {theirs}"] = found.speed_ratio(ours, theirs)
        is_whole = len(ratios) == len(self.pairs)
        return min(ratio["wall"] for ratio in ratios.values()) if is_whole else None, ratios


def at_equal_precision(peer: Peer) -> list[Pair]:
    """Ours and a peer, each compiled or not, in both precisions."""
    return [(in_all_modes(NAME, precision), in_all_modes(peer.name, precision)) for precision in PRECISIONS]


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
        [
            (
                [name for precision in PRECISIONS for name in in_all_modes(NAME, precision)],
                [contender_name(BERT_PADDED.name, "fp32", "eager")],
            )
        ],
    ),
    Comparison(
        "pretraining_over_modernbert_bucketed",
        Goal(2.0, "at least", "real tokens a second: ours / HF ModernBERT, sparse head, bucketed, eager (bf16)"),
        [(in_all_modes(NAME, "bf16"), [contender_name(MODERN_BUCKETED.name, "bf16", "eager")])],
    ),
)


def small_course(count: int) -> Course:
    """`count` documents for models of 4 × 256."""
    recipe = neobert_recipe("fp32", layers=4, width=256, heads=4, feedforward_width=1024, vocabulary_size=8192)
    documents = masked_documents(beta_lengths(count, CONTEXT), recipe.model.vocabulary_size, CONTEXT)
    return Course(recipe, documents, DOCUMENTS_PER_STEP, torch.device("cpu"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining_peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"timed bursts of a contender (default: {ROUNDS})")
    parser.add_argument("--only", nargs="+", help="parts of names: leave all other contenders out and write no result")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="(default: both)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(available_cores())
    course = small_course(DOCUMENTS_PER_STEP * BURST_STEPS * ROUNDS)
    figures = {"setting": course.figures([BERT_PADDED, MODERN_PADDED]), "load_before": load()}
    everyone = course.contenders(options.precision, WAYS)
    chosen = {name: make for name, make in everyone.items() if _is_chosen(name, options.only)}
    with compiling_anew():
        found = race(chosen, rounds=options.rounds, steps=BURST_STEPS)
    figures |= {"load_after": load()} | found.figures()
    for comparison in COMPARISONS:
        ratio, ratios = comparison.measured(found)
        print(comparison.name, ratio, ratios, flush=True)
        if len(chosen) == len(everyone) and set(options.precision) == set(PRECISIONS):
            write_result(comparison.name, ratio, comparison.goal, {"speed, ours / theirs": ratios} | figures)
    return 0


def _is_chosen(name: str, parts: Sequence[str] | None) -> bool:
    return parts is None or any(part in name for part in parts)


if __name__ == "__main__":
    wait_passively("benchmarks.pretraining_peers")
    sys.exit(main())
