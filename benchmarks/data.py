"""Tokenising, packing and loading: against datasets.map, against the step that it feeds, and over the corpus's size.

python -m benchmarks data_tokenize | data_loader | data_scaling [--help]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Goal, Timing, load_averages, median_ratio, seconds_of, time_call, turns, write_result
from neobert.data.batches import StepIterator, collate
from neobert.data.catalog import CORPORA
from neobert.data.rows import STREAMS, WINDOW_DOCUMENTS, PackingWord, best_fit_decreasing
from neobert.data.shards import TOKEN, Documents, TokenizedCorpus, all_documents, open_shards, prepare
from neobert.data.sources import DirectorySource
from neobert.data.synthetic import corpus_documents
from neobert.data.tokenizers import TOKENIZER_FILE, SpecialIds, TextTokenizer, load_tokenizer, train_wordpiece
from neobert.recipe import Masking, Stage, Subset

FILES = 4
TOKENIZER_TEXTS, VOCABULARY = 2000, 8192
ENDLESS = 10**9
BERT_MASKING = Masking(rate=0.15, mask_share=0.8, random_share=0.1)
NEOBERT_MASKING = Masking(rate=0.2, mask_share=1.0, random_share=0.0)

Outcome = dict[str, Any]
"""What a child process prints as JSON."""


def documents(data: str | None) -> Iterator[str]:
    """Documents of both corpora in turns, without line ends: of a data folder, or synthetic ones without end."""
    sources = [
        corpus_documents(corpus, documents=ENDLESS) if data is None else DirectorySource(Path(data)).documents(corpus)
        for corpus in CORPORA
    ]
    for texts in zip(*sources, strict=False):
        yield from (" ".join(text.split()) for text in texts)


def write_tokenizer(data: str | None, folder: Path) -> None:
    """tokenizer.json of BERT's kind: that of the data folder, or one trained on synthetic text."""
    if data is None:
        tokenizer: TextTokenizer = train_wordpiece(list(islice(documents(None), TOKENIZER_TEXTS)), VOCABULARY)
    else:
        tokenizer = DirectorySource(Path(data)).tokenizer("wordpiece", 2**16, folder)
    tokenizer.save(folder)


def endless_stage(context: int, rows: int) -> Stage:
    """A stage of `rows` rows a step, without end."""
    return Stage(
        context=context,
        tokens_per_step=context * rows,
        steps=ENDLESS,
        warmup_steps=0,
        decay_steps=0,
        mixture=(Subset(minimum_tokens=0, share=1.0),),
    )


def run_child(child: str, *arguments: str) -> Outcome:
    """One of CHILDREN in a fresh process; every library may use all cores."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "benchmarks.data", child, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    outcome: Outcome = json.loads(done.stdout.splitlines()[-1])
    return outcome


# From text files to rows of tokens on the disk: ours, datasets.map with run_mlm's grouping, and the bare limit.

TOKENIZE_GOAL = Goal(2.0, "at least", "MB/s from text files to packed rows on the disk: ours / datasets.map")
OURS, BARE, PEER = "ours", "encode_batch_fast alone", "datasets.map"
PEER_FORMS = {
    f"{processes} processes, batches of {batch}": (str(processes), str(batch))
    for processes in (1, 2)
    for batch in (1000, 4000)
}
CONTEXT = 512
ROWS_PER_STEP = 128
BARE_BATCH = 2048


def measure_tokenizing(arguments: Sequence[str]) -> int:
    """From text files to rows of tokens on the disk: ours against datasets.map with run_mlm's grouping."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks data_tokenize", description=measure_tokenizing.__doc__)
    parser.add_argument("--data", help="data folder with corpora and tokenizers (default: synthetic text)")
    parser.add_argument("--megabytes", type=float, default=8, help="of text (default: 8)")
    parser.add_argument("--repetitions", type=int, default=5, help="default: 5")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures: dict[str, Any] = {"load_before": load_averages()}
        write_tokenizer(options.data, folder)
        figures |= write_texts(options.data, folder, options.megabytes)
        tried = {form: _tokenize(folder, "datasets", *words)["wall"] for form, words in PEER_FORMS.items()}
        best = min(tried, key=lambda form: tried[form])
        figures["datasets.map, one run each, wall seconds"] = {form: round(wall, 2) for form, wall in tried.items()}
        ways = {OURS: ("ours",), BARE: ("bare",), PEER: ("datasets", *PEER_FORMS[best])}
        figures |= _compare(folder, ways, options.repetitions, figures["megabytes"])
        figures["load_after"] = load_averages()
    write_result("data_tokenize", figures["median of paired ratios"]["wall"], TOKENIZE_GOAL, figures)
    return 0


def write_texts(data: str | None, folder: Path, megabytes: float) -> dict[str, Any]:
    """Write the first documents to `FILES` files; what they are, for a result file."""
    paths = [folder / f"texts-{number}.txt" for number in range(FILES)]
    written = count = 0
    files = [path.open("w", encoding="utf-8") for path in paths]
    for text in documents(data):
        written += files[count % FILES].write(text + "\n")
        count += 1
        if written >= megabytes * 1e6:
            break
    for file in files:
        file.close()
    size = sum(path.stat().st_size for path in paths)
    return {"texts": "synthetic" if data is None else "real", "documents": count, "megabytes": round(size / 1e6, 2)}


def _compare(folder: Path, ways: dict[str, tuple[str, ...]], repetitions: int, megabytes: float) -> dict[str, Any]:
    """All ways in turns, each time in a fresh process."""
    timings: dict[str, list[Timing]] = {way: [] for way in ways}
    said: dict[str, Outcome] = {}
    tokenised_alone: list[float] = []
    for way in turns(list(ways), repetitions):
        said[way] = _tokenize(folder, *ways[way])
        timings[way].append(Timing(said[way]["wall"], said[way]["processor"]))
        tokenised_alone += [said[way]["tokenised"]] if way == OURS else []
        print(f"  {way}: {timings[way][-1].wall:.2f} s", flush=True)
    shares = [limit.wall / own for limit, own in zip(timings[BARE], tokenised_alone, strict=True)]
    return {
        "median of paired ratios": median_ratio(timings[PEER], timings[OURS]),
        "bare rate reached, rows and masks included": median_ratio(timings[BARE], timings[OURS]),
        "bare rate reached by tokenising alone (clock)": round(statistics.median(shares), 3),
        "fill": said[OURS]["fill"],
        "version of datasets": said[PEER]["version"],
        "rows": {OURS: said[OURS]["rows"], PEER: said[PEER]["rows"]},
        **{
            way: {**seconds_of(found), "best MB/s": round(megabytes / min(timing.wall for timing in found), 2)}
            for way, found in timings.items()
        },
    }


def _tokenize(folder: Path, way: str, *form: str) -> Outcome:
    """One run of one way, its output thrown away."""
    with tempfile.TemporaryDirectory() as out:
        return run_child("tokenize", way, str(folder), out, *form)


def tokenize(way: str, folder: str, out: str, *form: str) -> Outcome:
    """The child of `data_tokenize`: one way, timed after all imports."""
    paths = sorted(Path(folder).glob("*.txt"))
    if way == "ours":
        run = with_shards(paths, Path(folder), Path(out))
    elif way == "bare":
        run = with_tokenizer_alone(paths, Path(folder))
    else:
        run = with_datasets(paths, Path(folder), Path(out), *map(int, form))
    outcome: Outcome = {}
    timing = time_call(lambda: outcome.update(run()))
    return {"wall": timing.wall, "processor": timing.processor, **outcome}


def read_texts(paths: Iterable[Path]) -> Iterator[str]:
    """The documents of text files."""
    for path in paths:
        with path.open(encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file)


def with_shards(paths: list[Path], folder: Path, out: Path) -> Callable[[], Outcome]:
    """Shards, then one epoch of packed rows written out as training would read them, masks included."""

    def run() -> Outcome:
        begun = time.perf_counter()
        corpus = prepare(read_texts(paths), load_tokenizer(folder), out / "corpus", origins={})
        tokenised = time.perf_counter() - begun
        steps = StepIterator(all_documents(corpus), endless_stage(CONTEXT, ROWS_PER_STEP), "packed", seed=0)
        count = slots = tokens = 0
        with (out / "rows.bin").open("wb") as file:
            while count < corpus.documents:
                rows = next(steps)
                batch = collate(rows, corpus, NEOBERT_MASKING)
                file.write(batch.token_ids.numpy().astype(TOKEN).tobytes())
                count += len(rows.spans.documents)
                slots, tokens = slots + rows.count * CONTEXT, tokens + rows.real_tokens
        return {"rows": slots // CONTEXT, "fill": round(tokens / slots, 4), "tokenised": tokenised}

    return run


def with_tokenizer_alone(paths: list[Path], folder: Path) -> Callable[[], Outcome]:
    """encode_batch_fast over texts in memory and nothing else: the limit."""
    texts = list(read_texts(paths))
    tokenizer = load_tokenizer(folder).tokenizer

    def run() -> Outcome:
        for first in range(0, len(texts), BARE_BATCH):
            tokenizer.encode_batch_fast(texts[first : first + BARE_BATCH], add_special_tokens=False)
        return {}

    return run


def with_datasets(paths: list[Path], folder: Path, out: Path, processes: int, batch: int) -> Callable[[], Outcome]:
    """load_dataset, map of a fast tokenizer, map of a grouping as transformers' run_mlm has it."""
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
    """All documents of a batch one after the other, cut into rows; what is left over at the end is dropped."""
    joined = {name: list(chain.from_iterable(lists)) for name, lists in examples.items()}
    end = len(joined["input_ids"]) // CONTEXT * CONTEXT
    return {name: [ids[i : i + CONTEXT] for i in range(0, end, CONTEXT)] for name, ids in joined.items()}


# How fast documents are packed and rows become batches, how full rows are, and what share of a step that is.

STEP_TOKENS_PER_SECOND = 310_000
"""What one GPU is to train in pre-training at a context of 1024: the step that the loader must keep up with."""

LOADER_GOAL = Goal(
    0.01, "at most", "time of the loader / of a step that trains 310,000 tokens a second (context 1024, packed)"
)
MASKINGS = {"mask 20 %": NEOBERT_MASKING, "mask 15 %, of it 80/10/10": BERT_MASKING}
SIZES = ((128, 16_384), (1024, 65_536))
"""Context, and tokens of a micro-batch."""

CONTEXTS = (128, 512, 1024, 4096)
MEAN_TOKENS = 400
REAL_DOCUMENTS = 30_000
IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, first_text_id=5, end_text_id=30_000)


def measure_loader(arguments: Sequence[str]) -> int:
    """How fast documents are packed and rows become batches, how full rows are, and what share of a step that is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks data_loader", description=measure_loader.__doc__)
    parser.add_argument("--data", help="data folder with corpora and tokenizers (default: log-normal lengths)")
    parser.add_argument("--steps", type=int, default=60, help="of each kind (default: 60)")
    options = parser.parse_args(arguments)
    before = load_averages()
    # Once a large array is freed, glibc keeps freed memory, as in a process that has built a model. Before that each
    # array of half a megabyte is new memory of the system, and clearing its pages takes as long as the rest.
    np.ones(3_900_000)
    with tempfile.TemporaryDirectory() as folder:
        corpus = random_corpus() if options.data is None else real_corpus(options.data, Path(folder))
        view = all_documents(corpus)
        loaders = {
            f"context {context}": {
                packing: {
                    name: loading_rate(view, context, tokens, options.steps, packing, masking)
                    for name, masking in MASKINGS.items()
                }
                for packing in STREAMS
            }
            for context, tokens in SIZES
        }
        figures = {
            "load_before": before,
            "documents": "log-normal lengths" if options.data is None else "real",
            "mean tokens a document": round(float(view.lengths.mean()), 1),
            "packing": {f"context {context}": packing_rate(view, context) for context in CONTEXTS},
            "loader, million tokens a processor second": loaders,
            "load_after": load_averages(),
        }
    slowest = min(loaders["context 1024"]["packed"].values())
    write_result("data_loader", STEP_TOKENS_PER_SECOND / (slowest * 1e6), LOADER_GOAL, figures)
    return 0


def random_corpus(count: int = 40_000) -> TokenizedCorpus:
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


def packing_rate(view: Documents, context: int) -> dict[str, float]:
    """Rate and fill of windows of documents, each best-fit packed by itself."""
    lengths = view.truncated(context).framed_lengths
    order = np.random.default_rng(1).permutation(len(lengths))
    starts = range(0, len(order) - WINDOW_DOCUMENTS, WINDOW_DOCUMENTS)
    windows = [lengths[order[start : start + WINDOW_DOCUMENTS]] for start in starts]
    rows: list[int] = []

    def pack() -> None:
        rows.extend(best_fit_decreasing(window, context).count for window in windows)

    seconds = time_call(pack).processor
    tokens = sum(int(window.sum()) for window in windows)
    return {
        "million tokens a second": round(tokens / seconds / 1e6, 1),
        "fill": round(tokens / (sum(rows) * context), 4),
    }


def loading_rate(
    view: Documents, context: int, tokens: int, steps: int, packing: PackingWord, masking: Masking
) -> float:
    """Million real tokens a processor second, one thread, from the position in the stream to a batch of `tokens`: the
    median of five runs of a fifth of `steps`."""
    iterator = StepIterator(view, endless_stage(context, tokens // context), packing, seed=0)
    next(iterator)
    rates: list[float] = []
    for _ in range(5):
        real: list[int] = []

        def run(real: list[int] = real) -> None:
            real.extend(collate(rows, view.corpus, masking).real_tokens for rows in islice(iterator, steps // 5))

        seconds = time_call(run).processor
        rates.append(sum(real) / seconds / 1e6)
    return round(statistics.median(rates), 1)


# Time and peak memory of tokenising, opening and the first training batches at 1, 10 and 100 times a small corpus.

SCALING_GOAL = Goal(
    1.15, "at most", "processor time a token to tokenise, open and begin: 100 times a corpus / 10 times"
)
FACTORS = (1, 10, 100)
MEMORY_BOUND_MEGABYTES = 16
"""How much higher memory may stand after tokenising 100 times than after 10 times."""

FIRST, SECOND = "tokenise", "open and first batches"
BLOCK_TEXTS = 500
FIRST_STEPS = 4


def measure_scaling(arguments: Sequence[str]) -> int:
    """Time and memory of tokenising, opening and the first batches at 1, 10 and 100 times a corpus."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks data_scaling", description=measure_scaling.__doc__)
    parser.add_argument("--documents", type=int, default=2000, help="of the smallest corpus (default: 2000)")
    options = parser.parse_args(arguments)
    before, sizes = load_averages(), {}
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(None, Path(folder))
        for factor in FACTORS:
            sizes[factor] = run_child("prepare_corpus", folder, str(factor * options.documents))
            print(f"  {factor} times: {sizes[factor]}", flush=True)
    small, large = sizes[10], sizes[100]
    growth = {part: round(large["peak megabytes"][part] - small["peak megabytes"][part], 1) for part in (FIRST, SECOND)}
    figures = {
        "load_before": before,
        **{f"{factor} times": found for factor, found in sizes.items()},
        "load_after": load_averages(),
        "growth of the peak from 10 to 100 times, megabytes": growth,
        "bound on that of tokenising, megabytes": MEMORY_BOUND_MEGABYTES,
        "memory of tokenising is flat": growth[FIRST] <= MEMORY_BOUND_MEGABYTES,
        "tokens on the disk, megabytes": round(2 * large["tokens"] / 1e6, 1),
    }
    ratio = large["processor nanoseconds a token"] / small["processor nanoseconds a token"]
    write_result("data_scaling", ratio, SCALING_GOAL, figures)
    return 0


def prepare_corpus(folder: str, documents_of_it: str) -> Outcome:
    """The child of `data_scaling`: everything from texts to the first batches; memory is the process's highest."""
    count, out = int(documents_of_it), Path(folder) / f"corpus-{documents_of_it}"
    block = list(islice(documents(None), BLOCK_TEXTS))
    texts = (f"{number} {block[number % BLOCK_TEXTS]}" for number in range(count))
    tokenizer = load_tokenizer(Path(folder))

    def begin() -> None:
        corpus = open_shards(out)
        view = all_documents(corpus).split_heldout()[0]
        for rows in islice(StepIterator(view, endless_stage(1024, 16), "packed", seed=0), FIRST_STEPS):
            collate(rows, corpus, NEOBERT_MASKING)

    parts: dict[str, Callable[[], Any]] = {
        FIRST: lambda: prepare(texts, tokenizer, out, origins={}),
        SECOND: begin,
    }
    timings, peaks = {}, {"imports": peak_megabytes()}
    for name, run in parts.items():
        timings[name], peaks[name] = time_call(run), peak_megabytes()
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


CHILDREN: dict[str, Callable[..., Outcome]] = {"tokenize": tokenize, "prepare_corpus": prepare_corpus}

if __name__ == "__main__":
    print(json.dumps(CHILDREN[sys.argv[1]](*sys.argv[2:])))
