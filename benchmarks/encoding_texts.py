"""Lists of texts for the benchmark of encoding, one a data set as MTEB gives them: of MTEB itself, or synthetic."""

from pathlib import Path

import numpy as np

from neobert.data.synthetic import corpus_documents
from neobert.errors import MissingData

MTEB = {
    "Banking77": ("Banking77Classification/test", "text", 2),
    "STS12": ("STS12/test", "sentence1", 2),
    "WikiQA": ("WikiQA-retrieval/corpus", "text", 2),
    "IMDB": ("ImdbClassification/test*", "text", 1),
}
"""Data sets: file below mteb/, wherever it lies, its text column, and how many blocks of texts stand for it."""

SHORT = ("Banking77", "STS12", "synthetic sentences")

BLOCK_TEXTS = 64
SYNTHETIC_DOCUMENTS = 4000

TextSets = dict[str, list[str]]


def text_sets(data: Path | None) -> TextSets:
    """All different texts of each data set.

    Raises:
        MissingData: one of the files is not there.
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
    """Some blocks of each data set; a block is what stands together when all are sorted by their number of characters.

    So batches of up to a block have as much padding as with the whole data set; a random sample has more.
    """
    return {name: _blocks(texts, MTEB[name][2] if name in MTEB else 2) for name, texts in sets.items()}


def short_samples(sets: TextSets) -> TextSets:
    """A block of each data set of sentences."""
    return {name: _blocks(texts, 1) for name, texts in sets.items() if name in SHORT}


def _blocks(texts: list[str], count: int) -> list[str]:
    by_characters = sorted(texts, key=len)
    blocks = len(texts) // BLOCK_TEXTS
    chosen = [int((number + 0.5) * blocks / count) * BLOCK_TEXTS for number in range(count)]
    sample = [text for start in chosen for text in by_characters[start : start + BLOCK_TEXTS]]
    return [sample[place] for place in np.random.default_rng(0).permutation(len(sample))]
