"""Speed of encoding MTEB's or synthetic texts with this project's encoder and with sentence-transformers.

python -m benchmarks encoding [--data DIR]      DIR holds mteb and tokenizers; without it texts are synthetic
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from ablations.ladders import variants
from ablations.scales import execution_at, scaled_variant
from benchmarks.measuring import (
    OPERATIONS_RATIO,
    Benchmark,
    Goal,
    Result,
    devices_with,
    median_ratio,
    operation_counter,
    seconds_of,
    time_in_turns,
)
from neobert.command_line import count
from neobert.data.preparation import open_specified
from neobert.data.synthetic import corpus_documents
from neobert.embeddings.encoders import PackedEncoder, TextEncoder
from neobert.errors import MissingData
from neobert.export.checkpoint import open_checkpoint
from neobert.export.publishing import export
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.build import build_masked_language_model, initialize
from neobert.recipe import Precision
from neobert.runs.claims import acquire
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, write_run_file
from neobert.training import checkpoints
from neobert.training.accounting import DTYPES

NAME = "encoding_over_sentence_transformers"
VARIANT = "M10"
CONTEXT = 512
VOCABULARY_SIZE = 30_522
SHAPES = {
    "cpu": {"layers": 6, "width": 384, "heads": 6, "feedforward_width": 1536},
    "cuda": {"layers": 12, "width": 768, "heads": 12, "feedforward_width": 3072},
}
BATCH_SIZES = {"cpu": (8, 16, 32, 64), "cuda": (32, 64, 128, 256)}
LEAST_COSINE = 0.9999
OURS = "this encoder"

MTEB = {
    "Banking77": ("Banking77Classification/test", "text", 2),
    "STS12": ("STS12/test", "sentence1", 2),
    "WikiQA": ("WikiQA-retrieval/corpus", "text", 2),
    "IMDB": ("ImdbClassification/test*", "text", 1),
}
"""For each data set: its file anywhere below mteb/, the text column, and the number of blocks to sample."""

BLOCK_TEXTS = 64
SYNTHETIC_DOCUMENTS = 4000

TextSets = dict[str, list[str]]
Array = np.ndarray[Any, np.dtype[Any]]


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Texts to vectors: this encoder against sentence-transformers with the same weights, at its best batch size."""
    for device in devices_with("sentence_transformers"):
        torch.set_num_threads(options.threads)
        texts, on_cpu = text_sets(options.data), device == "cpu"
        figures = measure_on(device, options.data, samples(texts) if on_cpu else texts, options.repetitions)
        ratio = figures["fp32" if on_cpu else "bf16"]["texts a second, ratio"]["processor" if on_cpu else "wall"]
        shape = f"{SHAPES[device]['layers']} × {SHAPES[device]['width']}"
        own, theirs = figures["fp32"]["operations"].values()
        counted = {OPERATIONS_RATIO: round(theirs / own, 3)}
        yield Result(NAME if on_cpu else f"{NAME}_gpu", ratio, {"threads": options.threads, **counted, shape: figures})


ENCODING = Benchmark(
    measure,
    {
        # 1.1: both sides compute as many operations a second
        NAME: Goal(1.1, "at least", "texts a second on a CPU in fp32, this encoder / sentence-transformers (6 × 384)"),
        f"{NAME}_gpu": Goal(
            1.2, "at least", "texts a second on a GPU in bf16, this encoder / sentence-transformers (12 × 768)"
        ),
    },
    {
        "--data": {"type": Path, "help": "data folder with mteb and tokenizers (default: synthetic texts)"},
        "--repetitions": {"type": count, "default": 2, "help": "of every cell"},
        "--threads": {"type": count, "default": 1, "help": "of torch"},
    },
)


def text_sets(data: Path | None) -> TextSets:
    """Return the distinct texts of each data set, of MTEB or synthetic.

    Raises:
        MissingData: a file is missing.
    """
    if data is not None:
        return {name: _read(data, file, column) for name, (file, column, _) in MTEB.items()}
    documents = list(corpus_documents("web", documents=SYNTHETIC_DOCUMENTS))
    sentences = [document.partition(" . ")[0] for document in documents]
    sets = {"synthetic documents": documents, "synthetic sentences": sentences}
    return {name: list(dict.fromkeys(texts)) for name, texts in sets.items()}


def _read(data: Path, file: str, column: str) -> list[str]:
    from pyarrow import parquet

    found = sorted((data / "mteb").rglob(f"{file}.parquet"))
    if not found:
        raise MissingData(f"there is no {file}.parquet below {data / 'mteb'}: fetch MTEB's data or leave --data out")
    return list(dict.fromkeys(parquet.read_table(found[0], columns=[column])[column].to_pylist()))


def samples(sets: TextSets) -> TextSets:
    """Sample some blocks of each data set; a block has consecutive texts of the data set sorted by characters.

    Batches of up to a block therefore have as much padding as with the whole data set. A random sample would have more.
    """
    return {name: _blocks(texts, MTEB[name][2] if name in MTEB else 2) for name, texts in sets.items()}


def _blocks(texts: list[str], count: int) -> list[str]:
    by_characters = sorted(texts, key=len)
    blocks = len(texts) // BLOCK_TEXTS
    chosen = [int((number + 0.5) * blocks / count) * BLOCK_TEXTS for number in range(count)]
    sample = [text for start in chosen for text in by_characters[start : start + BLOCK_TEXTS]]
    return [sample[place] for place in np.random.default_rng(0).permutation(len(sample))]


def write_initial_run(root: Path, shape: Mapping[str, int], source: SourceSpecification) -> Path:
    """Write run.json and the checkpoint of step 0 of a pre-training run below `root`; return the folder of the run.

    The model is the study's last one in another shape.
    """
    recipe, _ = scaled_variant(variants()[VARIANT], "smoke", "trained")
    model = recipe.pretraining.model.model_copy(update={**shape, "vocabulary_size": VOCABULARY_SIZE})
    stage = recipe.pretraining.stages[0].model_copy(update={"context": CONTEXT, "tokens_per_step": CONTEXT})
    run = PretrainingRun(
        recipe=recipe.pretraining.model_copy(update={"model": model, "stages": (stage,)}),
        previous=None,
        position_table=None,
        corpus_origin="benchmarks: initial weights",
        tokenizer_origin=open_specified(source).tokenizer_origin(recipe.pretraining.data.tokenizer, VOCABULARY_SIZE),
    )
    layout = Layout(root)
    folder = write_run_file(layout, run, source, execution_at("smoke"), {"variants": [VARIANT]})
    network = build_masked_language_model(model, CONTEXT)
    initialize(network, model.initialization, 0)
    claim = acquire(layout.claims(run.id))
    assert claim is not None
    with claim:
        optimizer = {"step": torch.zeros(1)}
        checkpoints.save(folder / "checkpoints", 0, network.state_dict(), optimizer, {"step": 0}, claim)
    return folder


@dataclass(frozen=True)
class EncoderPair:
    """The same weights in both libraries, on one device and in one precision, and the texts; each list is one call."""

    ours: TextEncoder
    theirs: Any
    texts: TextSets

    def our_vectors(self) -> Array:
        """Return our vectors, (texts, width)."""
        return np.concatenate([self.ours.encode(texts) for texts in self.texts.values()])

    def their_vectors(self, batch_size: int) -> Array:
        """Return sentence-transformers' vectors, (texts, width)."""
        options = {"batch_size": batch_size, "show_progress_bar": False, "convert_to_tensor": True}
        vectors = [self.theirs.encode(texts, **options).float().cpu() for texts in self.texts.values()]
        return np.asarray(torch.cat(vectors).numpy())


def _theirs(batch_size: int) -> str:
    return f"sentence-transformers, batch {batch_size}"


def measure_on(device: str, data: Path | None, texts: TextSets, repetitions: int) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer

    figures: dict[str, Any] = {"texts": {name: len(own) for name, own in texts.items()}}
    source = SourceSpecification(name="synthetic" if data is None else str(data.resolve()), synthetic_documents=2000)
    with tempfile.TemporaryDirectory() as folder:
        run, exported = write_initial_run(Path(folder), SHAPES[device], source), Path(folder) / "exported"
        with redirect_stdout(sys.stderr):
            export(run, "sentence-transformers", exported, 0, with_code=False)
        checkpoint = open_checkpoint(run, 0)
        for precision in get_args(Precision):
            print(precision, flush=True)
            encoder = PackedEncoder(deepcopy(checkpoint.network.model))
            ours = TextEncoder(encoder, checkpoint.tokenizer, CONTEXT, precision=precision, device=torch.device(device))
            theirs = SentenceTransformer(str(exported), device=device, model_kwargs={"dtype": DTYPES[precision]})
            figures[precision] = compare(EncoderPair(ours, theirs, texts), repetitions)
    return figures


def compare(pair: EncoderPair, repetitions: int) -> dict[str, Any]:
    """Find sentence-transformers' best batch size, then time both libraries in turn.

    Raises:
        AssertionError: the vectors differ in fp32.
    """
    sizes = BATCH_SIZES[pair.ours.device.type]
    encode: dict[str, Callable[[], Array]] = {OURS: pair.our_vectors}
    encode |= {_theirs(size): partial(pair.their_vectors, size) for size in sizes}
    first = time_in_turns(encode, 1)
    clock = "processor" if pair.ours.device.type == "cpu" else "wall"  # that of the ratio
    best = min(sizes, key=lambda size: getattr(first[_theirs(size)][0], clock))
    cosine = least_cosine(first[OURS][0].returned, first[_theirs(best)][0].returned)
    if pair.ours.precision == "fp32" and not cosine > LEAST_COSINE:
        raise AssertionError(f"the vectors of both programs differ: cosine {cosine}")
    both = {name: encode[name] for name in (OURS, _theirs(best))}
    timings = time_in_turns(both, repetitions)
    return {
        "operations": {name: operations_of(run) for name, run in both.items()},
        "least cosine": round(cosine, 6),
        "texts a second, ratio": median_ratio(timings[_theirs(best)], timings[OURS]),
        "first pass": {name: seconds_of(timing) for name, timing in first.items()},
        **{name: seconds_of(timing) for name, timing in timings.items()},
    }


def operations_of(encode: Callable[[], Array]) -> int:
    with operation_counter() as counter:
        encode()
    return counter.get_total_flops()


def least_cosine(ours: Array, theirs: Array) -> float:
    """Return the smallest cosine between the two vectors of a text; both arrays are (texts, width)."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(axis=1) / lengths).min())
