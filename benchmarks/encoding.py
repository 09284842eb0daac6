"""Speed of encoding synthetic texts with this project's encoder and with sentence-transformers, on a CPU."""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ablations.loading import papers
from benchmarks.measuring import OPERATIONS_RATIO, Result, count_operations, paired_ratio, time_in_turns
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
TEXTS = 128

Array = np.ndarray[Any, np.dtype[Any]]


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Texts to vectors in fp32: this encoder against sentence-transformers with the same weights, at the best of its
    batch sizes by processor time. Raises AssertionError if their vectors differ."""
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    documents = list(corpus_documents("web", documents=4000))
    sets = [middle(documents), middle([document.partition(" . ")[0] for document in documents])]
    model = papers().variants["M10"].recipe.pretraining.model.model_copy(update=SHAPE)
    network = build_masked_language_model(model, CONTEXT)
    initialize(network, model.initialization, 0)
    twin = NeoBERTForMaskedLM(NeoBERTConfig.from_recipe(model, CONTEXT, dtype="float32"))
    twin.load_state_dict(network.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        source = open_source("synthetic", synthetic_documents=2000)
        tokenizer = source.tokenizer("wordpiece", model.vocabulary_size, Path(folder))
        save_modules(twin.model, transformers_tokenizer(tokenizer, CONTEXT), Path(folder) / "exported", {})
        theirs = SentenceTransformer(f"{folder}/exported", device="cpu")
    ours = TextEncoder(PackedEncoder(network.model), tokenizer, CONTEXT, precision="fp32", device=torch.device("cpu"))

    def encode(size: int) -> Array:
        return np.concatenate([theirs.encode(texts, batch_size=size, show_progress_bar=False) for texts in sets])

    sides: dict[str, Callable[[], Array]] = {f"batch {size}": partial(encode, size) for size in BATCH_SIZES}
    first = time_in_turns(sides, 1)
    best = min(first, key=lambda name: first[name][0].processor)
    both = {OURS: lambda: np.concatenate([ours.encode(texts) for texts in sets]), best: sides[best]}
    timings = time_in_turns(both, 2)
    own, other = (torch.from_numpy(found[0].returned) for found in timings.values())
    cosine = float(functional.cosine_similarity(own, other).min())
    assert cosine > LEAST_COSINE, f"the vectors of both programs differ: cosine {cosine}"
    ratio = paired_ratio(timings[OURS], timings[best])
    counted = count_operations({OURS: lambda: len(both[OURS]()), best: lambda: len(both[best]())}, 1)
    figures = {
        "ratio": ratio,
        "operations per text": counted,
        OPERATIONS_RATIO: round(counted[best] / counted[OURS], 3),
    }
    figures |= {"least cosine": round(cosine, 6), "threads": torch.get_num_threads()}
    yield Result("encoding_over_sentence_transformers", ratio["processor"], figures)


def middle(texts: list[str]) -> list[str]:
    """Return texts that are consecutive in the data set sorted by characters, so that batches have as little padding as
    with all of it."""
    by_characters = sorted(dict.fromkeys(texts), key=len)
    return by_characters[len(by_characters) // 2 :][:TEXTS]
