"""How fast documents are packed and rows become batches, how full rows are, and what share of a training step that is.

python -m benchmarks.data_loader [--data DIR]
"""

import argparse
import statistics
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data_texts import documents
from benchmarks.measuring import load, timed
from benchmarks.results import Goal, write_result
from neobert.data.batches import StepIterator, collate
from neobert.data.rows import STREAMS, WINDOW_DOCUMENTS, best_fit_decreasing
from neobert.data.shards import Documents, TokenizedCorpus, all_documents, prepare
from neobert.data.sources import DirectorySource
from neobert.data.tokenizers import SpecialIds
from neobert.recipe import Masking, Stage, Subset

STEP_TOKENS_PER_SECOND = 310_000
"""What one GPU is to train in pre-training at a context of 1024: the step that the loader must keep up with."""

GOAL = Goal(
    0.01, "at most", "time of the loader / of a step that trains 310,000 tokens a second (context 1024, packed)"
)
BERT_MASKING = Masking(rate=0.15, mask_share=0.8, random_share=0.1)
NEOBERT_MASKING = Masking(rate=0.2, mask_share=1.0, random_share=0.0)
MASKINGS = {"mask 20 %": NEOBERT_MASKING, "mask 15 %, of it 80/10/10": BERT_MASKING}
SIZES = ((128, 16_384), (1024, 65_536))
"""Context, and tokens of a micro-batch."""

CONTEXTS = (128, 512, 1024, 4096)
MEAN_TOKENS = 400
REAL_DOCUMENTS = 30_000
IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, first_text_id=5, end_text_id=30_000)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_loader", description=__doc__)
    parser.add_argument("--data", help="data folder with corpora and tokenizers (default: log-normal lengths)")
    parser.add_argument("--steps", type=int, default=60, help="of each kind (default: 60)")
    options = parser.parse_args()
    figures: dict[str, Any] = {
        "load_before": load(),
        "documents": "log-normal lengths" if options.data is None else "real",
    }
    settle_allocator()
    with tempfile.TemporaryDirectory() as folder:
        corpus = made_corpus() if options.data is None else real_corpus(options.data, Path(folder))
        view = all_documents(corpus)
        figures["mean tokens a document"] = round(float(view.lengths.mean()), 1)
        figures["packing"] = {f"context {context}": packing(view, context) for context in CONTEXTS}
        loaders = {f"context {size[0]}": loader(view, *size, options.steps) for size in SIZES}
    figures |= {"loader, million tokens a processor second": loaders, "load_after": load()}
    slowest = min(loaders["context 1024"]["packed"].values())
    print(write_result("data_loader", STEP_TOKENS_PER_SECOND / (slowest * 1e6), GOAL, figures).read_text())
    return 0


def settle_allocator() -> None:
    """Free one array of 31 MB: from then on glibc keeps freed memory, as in a process that has built a model.

    Before, each array of half a megabyte is new memory of the system, and clearing its pages takes as long as the rest.
    """
    np.ones(3_900_000)


def made_corpus(count: int = 40_000) -> TokenizedCorpus:
    """Random tokens in documents of log-normal lengths, as web pages have them."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(np.log(MEAN_TOKENS) - 0.5, 1.0, size=count), 1, 20_000).astype(np.int64)
    tokens = generator.integers(IDS.first_text_id, IDS.end_text_id, size=int(lengths.sum())).astype(np.uint16)
    hashes = generator.integers(0, 2**63, size=count).astype(np.uint64)
    return TokenizedCorpus(IDS, lengths, 4 * lengths, hashes, (tokens,), {})


def real_corpus(data: str, folder: Path) -> TokenizedCorpus:
    """The first documents of a data folder."""
    tokenizer = DirectorySource(Path(data)).tokenizer("wordpiece", 2**16, folder)
    return prepare(islice(documents(data), REAL_DOCUMENTS), tokenizer, folder / "corpus", origins={})


def stage(context: int, rows: int) -> Stage:
    """A stage of `rows` rows a step, without end."""
    return Stage(
        context=context,
        tokens_per_step=context * rows,
        steps=10**9,
        warmup_steps=0,
        decay_steps=0,
        mixture=(Subset(minimum_tokens=0, share=1.0),),
    )


def packing(view: Documents, context: int) -> dict[str, float]:
    """Rate and fill of windows of documents, each best-fit packed by itself."""
    lengths = view.truncated(context).framed_lengths
    order = np.random.default_rng(1).permutation(len(lengths))
    windows = [
        lengths[order[i : i + WINDOW_DOCUMENTS]] for i in range(0, len(order) - WINDOW_DOCUMENTS, WINDOW_DOCUMENTS)
    ]
    rows: list[int] = []

    def pack() -> None:
        rows.extend(best_fit_decreasing(window, context).count for window in windows)

    seconds = timed(pack).processor
    tokens = sum(int(window.sum()) for window in windows)
    return {
        "million tokens a second": round(tokens / seconds / 1e6, 1),
        "fill": round(tokens / (sum(rows) * context), 4),
    }


def loader(view: Documents, context: int, tokens: int, steps: int) -> dict[str, dict[str, float]]:
    """Million real tokens a processor second, one thread, from the position in the stream to a batch."""
    return {
        packing_word: {
            name: rate(view, context, tokens, steps, packing_word, masking) for name, masking in MASKINGS.items()
        }
        for packing_word in STREAMS
    }


def rate(view: Documents, context: int, tokens: int, steps: int, packing_word: Any, masking: Masking) -> float:
    """The median of five runs of `steps` steps."""
    iterator = StepIterator(view, stage(context, tokens // context), packing_word, seed=0)
    next(iterator)
    rates: list[float] = []
    for _ in range(5):
        real: list[int] = []

        def run(real: list[int] = real) -> None:
            real.extend(collate(rows, view.corpus, masking).real_tokens for rows in islice(iterator, steps // 5))

        seconds = timed(run).processor
        rates.append(sum(real) / seconds / 1e6)
    return round(statistics.median(rates), 1)


if __name__ == "__main__":
    sys.exit(main())
