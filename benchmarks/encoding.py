"""Speed of encoding synthetic texts with this project's encoder and with sentence-transformers."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from copy import deepcopy
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
from neobert.data.preparation import open_specified
from neobert.data.synthetic import corpus_documents
from neobert.embeddings.encoders import PackedEncoder, TextEncoder
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
VARIANT, CONTEXT, VOCABULARY_SIZE = "M10", 512, 30_522
SHAPES = {
    "cpu": {"layers": 6, "width": 384, "heads": 6, "feedforward_width": 1536},
    "cuda": {"layers": 12, "width": 768, "heads": 12, "feedforward_width": 3072},
}
BATCH_SIZES = {"cpu": (8, 16, 32, 64), "cuda": (32, 64, 128, 256)}
LEAST_COSINE = 0.9999
OURS = "this encoder"
BLOCK_TEXTS = 64

Array = np.ndarray[Any, np.dtype[Any]]


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Texts to vectors: this encoder against sentence-transformers with the same weights, at its best batch size."""
    for device in devices_with("sentence_transformers"):
        on_cpu = device == "cpu"
        torch.set_num_threads(1)
        documents = list(corpus_documents("web", documents=4000))
        sets = [list(dict.fromkeys(texts)) for texts in (documents, [each.partition(" . ")[0] for each in documents])]
        figures = measure_on(device, [blocks(texts, 2) for texts in sets] if on_cpu else sets, options.repetitions or 2)
        ratio = figures["fp32" if on_cpu else "bf16"]["texts a second, ratio"]["processor" if on_cpu else "wall"]
        own, theirs = figures["fp32"]["operations"].values()
        yield Result(
            NAME if on_cpu else f"{NAME}_gpu", ratio, {OPERATIONS_RATIO: round(theirs / own, 3), "threads": 1} | figures
        )


ENCODING = Benchmark(
    measure,
    {
        NAME: Goal(1.5, "texts a second on a CPU in fp32, this encoder / sentence-transformers (6 × 384)"),
        f"{NAME}_gpu": Goal(1.2, "texts a second on a GPU in bf16, this encoder / sentence-transformers (12 × 768)"),
    },
)


def blocks(texts: list[str], count: int) -> list[str]:
    """Sample some blocks of texts that are consecutive in the data set sorted by characters.

    Batches of up to a block therefore have as much padding as with the whole data set. A random sample would have more.
    """
    by_characters = sorted(texts, key=len)
    number_of_blocks = len(texts) // BLOCK_TEXTS
    chosen = [int((number + 0.5) * number_of_blocks / count) * BLOCK_TEXTS for number in range(count)]
    sample = [text for start in chosen for text in by_characters[start : start + BLOCK_TEXTS]]
    return [sample[place] for place in np.random.default_rng(0).permutation(len(sample))]


def write_initial_run(root: Path, shape: Mapping[str, int]) -> Path:
    """Write run.json and the checkpoint of step 0 of a pre-training run below `root`; return the folder of the run."""
    source = SourceSpecification(name="synthetic", synthetic_documents=2000)
    recipe = scaled_variant(variants()[VARIANT], "smoke", "trained")[0].pretraining
    model = recipe.model.model_copy(update={**shape, "vocabulary_size": VOCABULARY_SIZE})
    stage = recipe.stages[0].model_copy(update={"context": CONTEXT, "tokens_per_step": CONTEXT})
    run = PretrainingRun(
        recipe=recipe.model_copy(update={"model": model, "stages": (stage,)}),
        previous=None,
        position_table=None,
        corpus_origin="benchmarks: initial weights",
        tokenizer_origin=open_specified(source).tokenizer_origin(recipe.data.tokenizer, VOCABULARY_SIZE),
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


def measure_on(device: str, sets: list[list[str]], repetitions: int) -> dict[str, Any]:
    """Time both libraries with the same weights in each precision; each list of texts is one call."""
    from sentence_transformers import SentenceTransformer

    figures: dict[str, Any] = {"texts": [len(texts) for texts in sets]}
    with tempfile.TemporaryDirectory() as folder:
        run, exported = write_initial_run(Path(folder), SHAPES[device]), Path(folder) / "exported"
        with redirect_stdout(sys.stderr):
            export(run, "sentence-transformers", exported, 0, with_code=False)
        checkpoint = open_checkpoint(run, 0)
        for precision in get_args(Precision):
            encoder = PackedEncoder(deepcopy(checkpoint.network.model))
            ours = TextEncoder(encoder, checkpoint.tokenizer, CONTEXT, precision=precision, device=torch.device(device))
            theirs = SentenceTransformer(str(exported), device=device, model_kwargs={"dtype": DTYPES[precision]})

            def encode(size: int, theirs: Any = theirs) -> Array:
                options = {"batch_size": size, "show_progress_bar": False, "convert_to_tensor": True}
                vectors = [theirs.encode(texts, **options).float().cpu() for texts in sets]
                return np.asarray(torch.cat(vectors).numpy())

            sides: dict[str, Callable[[], Array]] = {
                OURS: lambda ours=ours: np.concatenate([ours.encode(texts) for texts in sets]),  # type: ignore[misc]
                **{f"sentence-transformers, batch {size}": partial(encode, size) for size in BATCH_SIZES[device]},
            }
            figures[precision] = compare(sides, precision, "processor" if device == "cpu" else "wall", repetitions)
    return figures


def compare(
    sides: Mapping[str, Callable[[], Array]], precision: Precision, clock: str, repetitions: int
) -> dict[str, Any]:
    """Find sentence-transformers' best batch size by the clock of the ratio, then time both libraries in turn.

    Raises:
        AssertionError: the vectors differ in fp32.
    """
    first = time_in_turns(sides, 1)
    best = min((name for name in sides if name != OURS), key=lambda name: getattr(first[name][0], clock))
    cosine = least_cosine(first[OURS][0].returned, first[best][0].returned)
    if precision == "fp32" and not cosine > LEAST_COSINE:
        raise AssertionError(f"the vectors of both programs differ: cosine {cosine}")
    both = {name: sides[name] for name in (OURS, best)}
    timings, operations = time_in_turns(both, repetitions), {}
    for name, run in both.items():
        with operation_counter() as counter:
            run()
        operations[name] = counter.get_total_flops()
    ratio = median_ratio(timings[best], timings[OURS])
    seconds = {name: seconds_of(timing) for name, timing in timings.items()}
    return {"operations": operations, "least cosine": round(cosine, 6), "texts a second, ratio": ratio, **seconds}


def least_cosine(ours: Array, theirs: Array) -> float:
    """Return the smallest cosine between the two vectors of a text; both arrays are (texts, width)."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(axis=1) / lengths).min())
