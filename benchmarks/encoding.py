"""Speed of encoding synthetic texts with this project's encoder and with sentence-transformers, on a CPU."""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ablations.loading import papers
from benchmarks.measuring import OPERATIONS_RATIO, Result, comparison, operations, time_in_turns
from neobert.data.sources import open_source
from neobert.data.synthetic import corpus_documents
from neobert.embeddings.encoders import PackedEncoder, TextEncoder
from neobert.export.huggingface import save_modules, transformers_tokenizer
from neobert.hub import NeoBERTConfig, NeoBERTForMaskedLM
from neobert.model.build import build_masked_language_model, initialize

CONTEXT = 512
SHAPE = {"layers": 6, "width": 384, "heads": 6, "feedforward_width": 1536, "vocabulary_size": 30_522}
BATCH_SIZES = (8, 16, 32, 64)
LEAST_COSINE = 0.9999
OURS = "this encoder"
BLOCK_TEXTS = 64

Array = np.ndarray[Any, np.dtype[Any]]
Sides = Mapping[str, Callable[[], Array]]


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Texts to vectors: this encoder against sentence-transformers with the same weights, at its best batch size."""
    torch.set_num_threads(1)
    documents = list(corpus_documents("web", documents=4000))
    sentences = [document.partition(" . ")[0] for document in documents]
    sets = [blocks(list(dict.fromkeys(texts))) for texts in (documents, sentences)]
    with tempfile.TemporaryDirectory() as name:
        figures = compare(sides_of(Path(name), sets), options.repetitions or 2)
    yield Result("encoding_over_sentence_transformers", figures["ratio"]["processor"], figures)


def blocks(texts: list[str]) -> list[str]:
    """Sample two blocks of texts that are consecutive in the data set sorted by characters.

    Batches of up to a block therefore have as much padding as with the whole data set. A random sample would have more.
    """
    by_characters = sorted(texts, key=len)
    starts = [len(texts) // 4, 3 * len(texts) // 4]
    return [text for start in starts for text in by_characters[start : start + BLOCK_TEXTS]]


def sides_of(folder: Path, sets: list[list[str]]) -> Sides:
    """Return what encodes all texts with the same weights in fp32: ours, and sentence-transformers for each batch size.
    Each list of texts is one call."""
    from sentence_transformers import SentenceTransformer

    model = papers().variants["M10"].recipe.pretraining.model.model_copy(update=SHAPE)
    network = build_masked_language_model(model, CONTEXT)
    initialize(network, model.initialization, 0)
    source = open_source("synthetic", synthetic_documents=2000)
    tokenizer = source.tokenizer("wordpiece", model.vocabulary_size, folder)
    twin = NeoBERTForMaskedLM(NeoBERTConfig.from_recipe(model, CONTEXT, dtype="float32"))
    twin.load_state_dict(network.state_dict())
    save_modules(twin.model, transformers_tokenizer(tokenizer, CONTEXT), folder / "exported", {})
    ours = TextEncoder(PackedEncoder(network.model), tokenizer, CONTEXT, precision="fp32", device=torch.device("cpu"))
    theirs = SentenceTransformer(str(folder / "exported"), device="cpu")

    def encode(size: int) -> Array:
        return np.concatenate([theirs.encode(texts, batch_size=size, show_progress_bar=False) for texts in sets])

    return {
        OURS: lambda: np.concatenate([ours.encode(texts) for texts in sets]),
        **{f"sentence-transformers, batch {size}": partial(encode, size) for size in BATCH_SIZES},
    }


def compare(sides: Sides, repetitions: int) -> dict[str, Any]:
    """Find sentence-transformers' best batch size by processor time, then time both libraries in turn. Raises
    AssertionError if their vectors differ."""
    first = time_in_turns(sides, 1)
    best = min((name for name in sides if name != OURS), key=lambda name: first[name][0].processor)
    ours, theirs = (torch.from_numpy(first[name][0].returned) for name in (OURS, best))
    cosine = float(functional.cosine_similarity(ours, theirs).min())
    assert cosine > LEAST_COSINE, f"the vectors of both programs differ: cosine {cosine}"
    both = {name: sides[name] for name in (OURS, best)}
    figures, counted = comparison(OURS, best, time_in_turns(both, repetitions)), {}
    for name, run in both.items():
        with operations() as counter:
            run()
        counted[name] = counter.get_total_flops()
    figures |= {"operations": counted, OPERATIONS_RATIO: round(counted[best] / counted[OURS], 3)}
    return figures | {"least cosine": round(cosine, 6), "threads": torch.get_num_threads()}
