"""Tokenising and packing against datasets.map; random documents for others, some as long as web pages."""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from benchmarks.measuring import Result, Timing, in_new_process, paired_ratio, time_call, time_in_turns
from neobert.data.batches import collate, micro_batches
from neobert.data.masking import counter_hash
from neobert.data.packing import pack_documents
from neobert.data.shards import FRAME_TOKENS, TOKEN, Integers, all_documents, prepare
from neobert.data.sources import open_source
from neobert.data.tokenizers import TOKENIZER_FILE, TOKENIZER_FOLDERS, SpecialIds, load_tokenizer
from neobert.processes import available_cores
from neobert.recipe import Masking

ENDLESS = 10**9
NEOBERT_MASKING = Masking(rate=0.2, mask_share=1.0, random_share=0.0)
IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, first_text_id=5, end_text_id=30_000)
SHORTEST = 8
"""Number of tokens of the shortest document, specials included."""


WEB_MEAN, WEB_SIGMA = 620.0, 1.0
"""Log-normal lengths of web pages: 600 billion tokens in 968 million documents (RefinedWeb, Penedo et al. 2023)."""


def web_lengths(count: int, at_least: int = SHORTEST) -> Integers:
    """Return lengths (count,) distributed as those of web pages, uncut, with at least `at_least` tokens."""
    generator = np.random.default_rng(0)
    drawn = generator.lognormal(np.log(WEB_MEAN) - WEB_SIGMA**2 / 2, WEB_SIGMA, size=16 * count)  # enough for 1,024
    return drawn[drawn >= at_least][:count].astype(np.int64)


def write_web_pages(folder: Path, count: int, vocabulary_size: int) -> None:
    """Write a folder for `--data`: `count` texts of random words as long as web pages (corpus
    "web"), and a tokenizer with one token for each word."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = np.array([*special, *(f"w{number}" for number in range(vocabulary_size - len(special)))])
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizers = folder / "tokenizers" / TOKENIZER_FOLDERS["wordpiece"]
    tokenizers.mkdir(parents=True)
    tokenizer.save(str(tokenizers / TOKENIZER_FILE))
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words[len(special) :], length)) for length in web_lengths(count) - FRAME_TOKENS]
    (folder / "corpora" / "web").mkdir(parents=True)
    pq.write_table(pa.table({"text": texts}), folder / "corpora" / "web" / "pages.parquet")


# From text files to rows of tokens on disk: ours, and datasets.map with run_mlm's grouping.

OURS, PEER = "ours", "datasets.map"
CONTEXT, ROWS_PER_STEP = 512, 128
MEGABYTES, TEXTS = 8, "texts.txt"


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """From text files to rows of tokens on the disk: ours against datasets.map with run_mlm's grouping, each time in a
    fresh process, in which every library may use all cores."""
    os.environ.pop("OMP_NUM_THREADS", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = open_source("synthetic", synthetic_documents=ENDLESS)
        source.tokenizer("wordpiece", 2**16, folder).save(folder)
        written, texts = 0, iter(source.documents("web"))
        with (folder / TEXTS).open("w", encoding="utf-8") as file:
            while written < MEGABYTES * 1e6:
                written += file.write(" ".join(next(texts).split()) + "\n")
        ways = {name: partial(in_new_process, tokenize, name, folder) for name in (OURS, PEER)}
        timings = {name: [timing.returned for timing in found] for name, found in time_in_turns(ways, 5).items()}
    ratio = paired_ratio(timings[OURS], timings[PEER])
    rows = {way: found[-1].returned for way, found in timings.items()}
    figures = {"ratio": ratio, "megabytes": MEGABYTES, "rows": rows, "processes": available_cores()}
    yield Result("data_tokenize", ratio["wall"], figures)


def tokenize(way: str, folder: Path) -> Timing[int]:
    """Time one way, after all imports; return its number of rows."""
    with tempfile.TemporaryDirectory() as out:
        return time_call(partial(with_shards, folder, Path(out)) if way == OURS else with_datasets(folder, out))


def with_shards(folder: Path, out: Path) -> int:
    """Make shards, then write all packed rows once as training would read them, masks included."""
    texts = (folder / TEXTS).read_text(encoding="utf-8").splitlines()
    corpus = prepare(texts, load_tokenizer(folder), out / "corpus", origins={})
    documents = all_documents(corpus).truncated(CONTEXT)
    packed = pack_documents(documents, np.arange(len(documents)), counter_hash(0, documents.numbers), CONTEXT)
    with (out / "rows.bin").open("wb") as file:
        for rows in micro_batches(packed, ROWS_PER_STEP):
            file.write(collate(rows, corpus, NEOBERT_MASKING).token_ids.numpy().astype(TOKEN).tobytes())
    return packed.count


def with_datasets(folder: Path, out: str) -> Callable[[], int]:
    """Return load_dataset, a map with a fast tokenizer, and a map with the grouping of transformers' run_mlm, in one
    process a core."""
    from datasets import disable_progress_bars, load_dataset

    from neobert.export.huggingface import transformers_tokenizer

    disable_progress_bars()
    tokenizer = transformers_tokenizer(load_tokenizer(folder), ENDLESS)
    options = {"batched": True, "num_proc": available_cores()}

    def encode(examples: dict[str, list[str]]) -> Any:
        return dict(tokenizer(examples["text"], return_special_tokens_mask=True))

    def run() -> int:
        texts = load_dataset("text", data_files=str(folder / TEXTS), cache_dir=out, split="train")
        return len(texts.map(encode, remove_columns=["text"], **options).map(group, **options))

    return run


def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Concatenate the documents of a batch and cut them into rows; the remainder is dropped."""
    joined = {name: list(chain.from_iterable(lists)) for name, lists in examples.items()}
    end = len(joined["input_ids"]) // CONTEXT * CONTEXT
    return {name: [ids[i : i + CONTEXT] for i in range(0, end, CONTEXT)] for name, ids in joined.items()}
