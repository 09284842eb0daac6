"""Tokenising, packing and loading: against datasets.map, and against the step that it feeds.

python -m benchmarks data_tokenize | data_loader [--help]
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.measuring import Benchmark, Goal, Result, Timing, median_ratio, seconds_of, take_turns, time_call
from neobert.command_line import count, number_above_0
from neobert.data.batches import collate
from neobert.data.catalog import CORPORA
from neobert.data.shards import TOKEN, Documents, Integers, TokenizedCorpus, all_documents, prepare
from neobert.data.sources import Source, open_source
from neobert.data.streams import StepIterator
from neobert.data.tokenizers import TOKENIZER_FILE, SpecialIds, load_tokenizer
from neobert.recipe import Masking, Stage, Subset

T = TypeVar("T")
Outcome = dict[str, Any]
"""Figures from a child process."""

FILES = 4
MOST_TOKENS = 2**16  # largest size of the vocabulary
ENDLESS = 10**9
BERT_MASKING = Masking(rate=0.15, mask_share=0.8, random_share=0.1, final_rate=None, drawn_up_to=None)
NEOBERT_MASKING = Masking(rate=0.2, mask_share=1.0, random_share=0.0, final_rate=None, drawn_up_to=None)
IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, first_text_id=5, end_text_id=30_000)
DATA = {"default": "synthetic", "help": "data folder with corpora and tokenizers"}
SHORTEST = 8
"""Number of tokens of the shortest document, specials included."""

WEB_MEAN, WEB_SIGMA = 620.0, 1.0
"""Log-normal lengths of web pages: 600 billion tokens in 968 million documents (RefinedWeb, Penedo et al. 2023)."""


def texts_of(source: Source) -> Iterator[str]:
    """Yield documents of both corpora in turn, without line breaks."""
    for texts in zip(*map(source.documents, CORPORA), strict=False):
        yield from (" ".join(text.split()) for text in texts)


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
        objective="masked",
        decay_steps=0,
        mixture=(Subset(minimum_tokens=0, share=1.0),),
    )


def call_in_child(run: Callable[..., T], *arguments: Any) -> T:
    """Call a function of this module in a fresh process, in which every library may use all cores."""
    os.environ.pop("OMP_NUM_THREADS", None)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
        return child.submit(run, *arguments).result()


# From text files to rows of tokens on disk: ours, datasets.map with run_mlm's grouping, and the tokenizer alone.

OURS, PEER = "ours", "datasets.map"
PEER_FORMS = {
    f"{processes} processes, batches of {batch}": (processes, batch) for processes in (1, 2) for batch in (1000, 4000)
}
CONTEXT = 512
ROWS_PER_STEP = 128


def measure_tokenizing(options: argparse.Namespace) -> Iterator[Result]:
    """From text files to rows of tokens on the disk: ours against datasets.map with run_mlm's grouping."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = open_source(options.data, synthetic_documents=ENDLESS)
        source.tokenizer("wordpiece", MOST_TOKENS, folder).save(folder)
        figures: dict[str, Any] = {"texts": options.data if options.data == "synthetic" else "real"}
        figures |= write_texts(texts_of(source), folder, options.megabytes)
        tried = {form: _tokenize(folder, PEER, *words).wall for form, words in PEER_FORMS.items()}
        figures["datasets.map, one run each, wall seconds"] = {form: round(wall, 2) for form, wall in tried.items()}
        best = PEER_FORMS[min(tried, key=lambda form: tried[form])]
        figures |= _compare(folder, best, options.repetitions, figures["megabytes"])
    yield Result("data_tokenize", figures["median of paired ratios"]["wall"], figures)


TOKENIZE = Benchmark(
    measure_tokenizing,
    {"data_tokenize": Goal(2.0, "at least", "MB/s from text files to packed rows on the disk: ours / datasets.map")},
    {
        "--data": DATA,
        "--megabytes": {"type": number_above_0, "default": 8, "help": "of text"},
        "--repetitions": {"type": count, "default": 5, "help": "of each way"},
    },
)


def write_texts(texts: Iterable[str], folder: Path, megabytes: float) -> dict[str, Any]:
    """Write the first documents to `FILES` files; return their number and size."""
    paths = [folder / f"texts-{number}.txt" for number in range(FILES)]
    written = documents = 0
    with ExitStack() as opened:
        files = [opened.enter_context(path.open("w", encoding="utf-8")) for path in paths]
        for text in texts:
            written += files[documents % FILES].write(text + "\n")
            documents += 1
            if written >= megabytes * 1e6:
                break
    return {"documents": documents, "megabytes": round(sum(path.stat().st_size for path in paths) / 1e6, 2)}


def _compare(folder: Path, best: tuple[int, int], repetitions: int, megabytes: float) -> dict[str, Any]:
    """Time both ways in turn, each time in a fresh process."""
    ways = {OURS: partial(_tokenize, folder, OURS), PEER: partial(_tokenize, folder, PEER, *best)}
    timings = take_turns(ways, repetitions)
    ours, theirs = timings[OURS][-1].returned, timings[PEER][-1].returned
    return {
        "median of paired ratios": median_ratio(timings[PEER], timings[OURS]),
        "fill": ours["fill"],
        "version of datasets": theirs["version"],
        "rows": {OURS: ours["rows"], PEER: theirs["rows"]},
        **{
            way: {**seconds_of(found), "best MB/s": round(megabytes / min(timing.wall for timing in found), 2)}
            for way, found in timings.items()
        },
    }


def _tokenize(folder: Path, way: str, *form: int) -> Timing[Outcome]:
    with tempfile.TemporaryDirectory() as out:
        return call_in_child(tokenize, way, folder, Path(out), *form)


def tokenize(way: str, folder: Path, out: Path, *form: int) -> Timing[Outcome]:
    """Time one way after all imports; runs in a child process."""
    paths = sorted(folder.glob("*.txt"))
    return time_call(with_shards(paths, folder, out) if way == OURS else with_datasets(paths, folder, out, *form))


def read_texts(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        with path.open(encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file)


def with_shards(paths: list[Path], folder: Path, out: Path) -> Callable[[], Outcome]:
    """Make shards, then write one epoch of packed rows as training would read them, masks included."""

    def run() -> Outcome:
        corpus = prepare(read_texts(paths), load_tokenizer(folder), out / "corpus", origins={})
        steps = StepIterator(all_documents(corpus), endless_stage(CONTEXT, ROWS_PER_STEP), "packed", seed=0)
        count = slots = tokens = 0
        with (out / "rows.bin").open("wb") as file:
            while count < corpus.documents:
                rows = next(steps)
                batch = collate(rows, corpus, NEOBERT_MASKING)
                file.write(batch.token_ids.numpy().astype(TOKEN).tobytes())
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
    workers = processes if processes > 1 else None

    def encode(examples: dict[str, list[str]]) -> Any:
        return dict(tokenizer(examples["text"], return_special_tokens_mask=True))

    def run() -> Outcome:
        files = [str(path) for path in paths]
        texts = load_dataset("text", data_files=files, cache_dir=str(out), split="train")
        encoded = texts.map(encode, batched=True, batch_size=batch, num_proc=workers, remove_columns=["text"])
        rows = encoded.map(group, batched=True, batch_size=batch, num_proc=workers)
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

MASKINGS = {"mask 20 %": NEOBERT_MASKING, "mask 15 %, of it 80/10/10": BERT_MASKING}
LOADED_CONTEXT, LOADED_TOKENS = 1024, 65_536
"""Context and tokens of a micro-batch."""

DOCUMENTS = 40_000


def measure_loader(options: argparse.Namespace) -> Iterator[Result]:
    """How fast documents become batches of packed rows with masks, and what share of a step that is."""
    # Free a large array, after which glibc keeps freed memory, as in a process that has built a model. Otherwise each
    # array of half a megabyte is new memory from the system, and clearing its pages takes as long as the rest.
    np.ones(3_900_000)
    with tempfile.TemporaryDirectory() as folder:
        if options.data:
            source = open_source(options.data, synthetic_documents=ENDLESS)
            tokenizer = source.tokenizer("wordpiece", MOST_TOKENS, Path(folder))
            texts = islice(texts_of(source), DOCUMENTS)
            view = all_documents(prepare(texts, tokenizer, Path(folder) / "corpus", origins={}))
        else:
            view = all_documents(random_corpus(web_lengths(DOCUMENTS), IDS.end_text_id))
        rates = {name: loading_rate(view, options.steps, masking) for name, masking in MASKINGS.items()}
        figures = {
            "documents": "real" if options.data else "log-normal lengths",
            "mean tokens a document": round(float(view.lengths.mean()), 1),
            "loader, million tokens a processor second": rates,
        }
    yield Result("data_loader", STEP_TOKENS_PER_SECOND / (min(rates.values()) * 1e6), figures)


LOADER = Benchmark(
    measure_loader,
    {
        "data_loader": Goal(
            0.01, "at most", "time of the loader / of a step that trains 310,000 tokens a second (context 1024, packed)"
        )
    },
    {
        "--data": {"help": "data folder with corpora and tokenizers (default: random tokens in log-normal lengths)"},
        "--steps": {"type": count, "default": 60, "help": "of each masking"},
    },
)


def loading_rate(view: Documents, steps: int, masking: Masking) -> float:
    """Return million real tokens per processor second, with one thread, from the position in the stream to a batch of
    packed rows: the median of five runs of a fifth of `steps`."""
    stage = endless_stage(LOADED_CONTEXT, LOADED_TOKENS // LOADED_CONTEXT)
    iterator = StepIterator(view, stage, "packed", seed=0)
    next(iterator)

    def load() -> int:
        return sum(collate(rows, view.corpus, masking).real_tokens for rows in islice(iterator, steps // 5))

    timings = [time_call(load) for _ in range(5)]
    return round(statistics.median(each.returned / each.processor / 1e6 for each in timings), 1)
