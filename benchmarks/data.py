"""Tokenising, packing and loading, against datasets.map and against the step that it feeds; documents for others."""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Benchmark, Goal, Result, Timing, median_ratio, seconds_of, take_turns, time_call
from neobert.data.batches import collate
from neobert.data.catalog import CORPORA
from neobert.data.shards import TOKEN, Integers, TokenizedCorpus, all_documents, prepare
from neobert.data.sources import open_source
from neobert.data.streams import StepIterator
from neobert.data.tokenizers import TOKENIZER_FILE, SpecialIds, load_tokenizer
from neobert.recipe import Masking, Stage, Subset

ENDLESS = 10**9
BERT_MASKING = Masking(rate=0.15, mask_share=0.8, random_share=0.1, final_rate=None, drawn_up_to=None)
NEOBERT_MASKING = Masking(rate=0.2, mask_share=1.0, random_share=0.0, final_rate=None, drawn_up_to=None)
IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, first_text_id=5, end_text_id=30_000)
SHORTEST = 8
"""Number of tokens of the shortest document, specials included."""
WEB_MEAN, WEB_SIGMA = 620.0, 1.0
"""Log-normal lengths of web pages: 600 billion tokens in 968 million documents (RefinedWeb, Penedo et al. 2023)."""


def web_lengths(count: int, at_least: int = SHORTEST) -> Integers:
    """Return lengths (count,) distributed as those of web pages, uncut, with at least `at_least` tokens."""
    generator = np.random.default_rng(0)
    kept = np.empty(0, dtype=np.int64)
    while len(kept) < count:
        drawn = generator.lognormal(np.log(WEB_MEAN) - WEB_SIGMA**2 / 2, WEB_SIGMA, size=4 * count)
        kept = np.concatenate([kept, drawn[drawn >= at_least].astype(np.int64)])
    return kept[:count]


def random_corpus(lengths: Integers, vocabulary_size: int) -> TokenizedCorpus:
    """Return documents of random tokens with `lengths`, in memory."""
    ids = replace(IDS, end_text_id=vocabulary_size)
    generator = np.random.default_rng(0)
    tokens = generator.integers(ids.first_text_id, ids.end_text_id, size=int(lengths.sum())).astype(np.uint16)
    hashes = generator.integers(0, 2**63, size=len(lengths)).astype(np.uint64)
    return TokenizedCorpus(ids, lengths, 4 * lengths, hashes, (tokens,), {})


def endless_stage(context: int, rows: int) -> Stage:
    return Stage(
        context=context,
        tokens_per_step=context * rows,
        steps=ENDLESS,
        warmup_steps=0,
        stable_steps=0,
        decay_steps=0,
        mixture=(Subset(minimum_tokens=0, share=1.0),),
    )


# From text files to rows of tokens on disk: ours, and datasets.map with run_mlm's grouping.

Outcome = dict[str, Any]
OURS = "ours"
PEERS = {
    f"datasets.map, {processes} processes, batches of {batch}": (processes, batch)
    for processes in (1, 2)
    for batch in (1000, 4000)
}
CONTEXT, ROWS_PER_STEP = 512, 128
FILES, MEGABYTES = 4, 8


def measure_tokenizing(options: argparse.Namespace) -> Iterator[Result]:
    """From text files to rows of tokens on the disk: ours against datasets.map with run_mlm's grouping, each time in a
    fresh process. The peer's best form is tried first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = open_source("synthetic", synthetic_documents=ENDLESS)
        source.tokenizer("wordpiece", 2**16, folder).save(folder)
        written, texts = 0, chain.from_iterable(zip(*map(source.documents, CORPORA), strict=False))
        for number in range(FILES):
            with (folder / f"texts-{number}.txt").open("w", encoding="utf-8") as file:
                while written < MEGABYTES * 1e6 * (number + 1) / FILES:
                    written += file.write(" ".join(next(texts).split()) + "\n")
        tried = {form: tokenize_anew(folder, words).wall for form, words in PEERS.items()}
        best = min(tried, key=lambda form: tried[form])
        ways = {OURS: partial(tokenize_anew, folder, None), best: partial(tokenize_anew, folder, PEERS[best])}
        timings = take_turns(ways, options.repetitions or 5)
    ratios = median_ratio(timings[best], timings[OURS])
    figures = {way: {**seconds_of(found), **found[-1].returned} for way, found in timings.items()}
    yield Result("data_tokenize", ratios["wall"], {"ratio": ratios, "tried": tried, "megabytes": MEGABYTES, **figures})


TOKENIZE = Benchmark(
    measure_tokenizing,
    {"data_tokenize": Goal(2.0, "MB/s from text files to packed rows on the disk: ours / datasets.map")},
)


def tokenize_anew(folder: Path, form: tuple[int, int] | None) -> Timing[Outcome]:
    """Run one way in a fresh process, in which every library may use all cores. `form` is that of the peer."""
    os.environ.pop("OMP_NUM_THREADS", None)
    with tempfile.TemporaryDirectory() as out, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
        return child.submit(_tokenize, folder, Path(out), form).result()


def _tokenize(folder: Path, out: Path, form: tuple[int, int] | None) -> Timing[Outcome]:
    """Time one way after all imports."""
    paths = sorted(folder.glob("*.txt"))
    return time_call(with_shards(paths, folder, out) if form is None else with_datasets(paths, folder, out, *form))


def with_shards(paths: list[Path], folder: Path, out: Path) -> Callable[[], Outcome]:
    """Make shards, then write one epoch of packed rows as training would read them, masks included."""

    def run() -> Outcome:
        texts = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
        corpus = prepare(texts, load_tokenizer(folder), out / "corpus", origins={})
        steps = StepIterator(all_documents(corpus), endless_stage(CONTEXT, ROWS_PER_STEP), "packed", seed=0)
        count = slots = tokens = 0
        with (out / "rows.bin").open("wb") as file:
            while count < corpus.documents:
                rows = next(steps)
                file.write(collate(rows, corpus, NEOBERT_MASKING).token_ids.numpy().astype(TOKEN).tobytes())
                count += len(rows.spans.documents)
                slots, tokens = slots + rows.count * CONTEXT, tokens + rows.real_tokens
        return {"rows": slots // CONTEXT, "fill": round(tokens / slots, 4)}

    return run


def with_datasets(paths: list[Path], folder: Path, out: Path, processes: int, batch: int) -> Callable[[], Outcome]:
    """Run load_dataset, a map with a fast tokenizer, and a map with the grouping of transformers' run_mlm."""
    from datasets import __version__, disable_progress_bars, load_dataset
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    disable_progress_bars()
    backend = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    specials = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=specials)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=10**9, **names)
    options = {"batched": True, "batch_size": batch, "num_proc": processes if processes > 1 else None}

    def encode(examples: dict[str, list[str]]) -> Any:
        return dict(tokenizer(examples["text"], return_special_tokens_mask=True))

    def run() -> Outcome:
        texts = load_dataset("text", data_files=list(map(str, paths)), cache_dir=str(out), split="train")
        rows = texts.map(encode, remove_columns=["text"], **options).map(group, **options)
        return {"rows": len(rows), "version": __version__}

    return run


def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Concatenate the documents of a batch and cut them into rows; the remainder is dropped."""
    joined = {name: list(chain.from_iterable(lists)) for name, lists in examples.items()}
    end = len(joined["input_ids"]) // CONTEXT * CONTEXT
    return {name: [ids[i : i + CONTEXT] for i in range(0, end, CONTEXT)] for name, ids in joined.items()}


# Speed of packing rows and collating batches: the loader's share of the time of a step.

STEP_TOKENS_PER_SECOND = 310_000
"""Target speed of pre-training on one GPU at a context of 1024, with which the loader must keep up."""


def measure_loader(options: argparse.Namespace) -> Iterator[Result]:
    """How fast documents become batches of packed rows with masks, and what share of a step that is: million real
    tokens per processor second with one thread, the median of five runs."""
    # Free a large array, after which glibc keeps freed memory, as in a process that has built a model. Otherwise each
    # array of half a megabyte is new memory from the system, and clearing its pages takes as long as the rest.
    np.ones(3_900_000)
    view, rates = all_documents(random_corpus(web_lengths(40_000), IDS.end_text_id)), {}
    for name, masking in {"mask 20 %": NEOBERT_MASKING, "mask 15 %, of it 80/10/10": BERT_MASKING}.items():
        rows = StepIterator(view, endless_stage(1024, 64), "packed", seed=0)
        next(rows)

        def load(rows: Iterator[Any] = rows, masking: Masking = masking) -> int:
            return sum(collate(each, view.corpus, masking).real_tokens for each in islice(rows, options.steps or 12))

        timings = [time_call(load) for _ in range(5)]
        rates[name] = round(statistics.median(each.returned / each.processor / 1e6 for each in timings), 1)
    ratio = STEP_TOKENS_PER_SECOND / (min(rates.values()) * 1e6)
    yield Result("data_loader", ratio, {"loader, million tokens a processor second": rates})


LOADER = Benchmark(
    measure_loader,
    {
        "data_loader": Goal(
            0.01, "time of the loader / of a step that trains 310,000 tokens a second (context 1024, packed)", "at most"
        )
    },
)
