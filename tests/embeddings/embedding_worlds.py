"""Encoders that know all or nothing of the synthetic world, and folders of tasks as prefetch leaves them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from neobert.data.mteb_tasks import MTEB_REPOSITORIES
from neobert.data.synthetic.world import FORMS, KIND, NOUN_KINDS, Words
from neobert.embeddings.encoders import NamedEncoder, TextCounts, TextEncoder
from neobert.files import sha256_of
from tests.support.small_corpora import write_table

WIDTH = 96
_KINDS, _OPINION = WIDTH - 8, WIDTH - 1
KIND_WEIGHT = 3.0

SENTENCES = [f"the cat number {number} sleeps" for number in range(12)]
SIMILAR = {"sentence1": SENTENCES[:6], "sentence2": SENTENCES[6:], "score": [0.0, 1.5, 2, 3, 4, 5]}
"""A table of a task of similarity."""


def content_words(words: Words) -> frozenset[str]:
    """Every form of every word."""
    return frozenset(form for form, (word, _) in FORMS.items() if word in words[KIND[word]])


class RandomVectors:
    """A vector of its own for each text, whatever it says, or another `vector`; `before` is called whenever texts are
    encoded."""

    width, context, parameters, pooling, normalized = WIDTH, 128, 1000, "mean", False

    def __init__(
        self, vector: Callable[[str], np.ndarray] | None = None, before: Callable[[], None] = lambda: None
    ) -> None:
        self.vector = vector or seeded
        self.counts = TextCounts()
        self.instructions: set[str | None] = set()
        self.before = before

    def encode(self, texts: Sequence[str], *, instruction: str | None = None) -> np.ndarray:
        self.before()
        self.counts += TextCounts(len(texts), empty=sum(not text.strip() for text in texts))
        self.instructions.add(instruction)
        return np.stack([self.vector(f"{instruction or ''}{text}") for text in texts])


def seeded(word: str) -> np.ndarray:
    """(WIDTH,) numbers that a word always has."""
    generator = np.random.default_rng(list(word.encode()) or [0])
    return generator.normal(size=WIDTH).astype(np.float32)


class KnowsTheWorld(RandomVectors):
    """A text is what it names: concepts whatever they are called, their kinds, and whether things are good."""

    def __init__(self) -> None:
        super().__init__(self.known_vector)
        self.known: dict[str, np.ndarray] = {}
        for form, (word, _) in FORMS.items():
            kind = KIND[word]
            if kind in ("praise", "blame"):
                self.known[form] = np.eye(WIDTH, dtype=np.float32)[_OPINION] * (50 if kind == "praise" else -50)
            elif kind != "adjective":
                vector = seeded(word)
                vector[_KINDS:] = 0
                if kind in NOUN_KINDS:
                    vector[_KINDS + NOUN_KINDS.index(kind)] = KIND_WEIGHT * np.sqrt(WIDTH)
                self.known[form] = vector

    def known_vector(self, text: str) -> np.ndarray:
        total, sign = 1e-3 * seeded(text), 1
        for word in text.split():
            sign = -1 if word == "not" else sign
            total = total + sign * self.known.get(word, np.float32(0))
        return total


def named(encoder: object, revision: str = "0123456789ab") -> NamedEncoder:
    """A test's encoder under a name."""
    return NamedEncoder("neobert/tested", revision, cast(TextEncoder, encoder))


def write_published(folder: Path, task: str, tables: Mapping[str, Mapping[str, Sequence[Any]]], card: str) -> None:
    """A repository of the hub below mteb/, and prefetch's word for it: path of a file, its columns; and its card."""
    place = folder / "mteb" / task
    for name, columns in tables.items():
        write_table(place / name, columns)
    place.mkdir(parents=True, exist_ok=True)
    (place / "README.md").write_text(card)
    repository, revision = MTEB_REPOSITORIES[task]
    path = folder / "manifest.json"
    known = json.loads(path.read_text()) if path.exists() else {"schema": 1, "files": {}, "published": {}}
    for file in (file for file in place.rglob("*") if file.is_file()):
        entry = {
            "repository": repository,
            "revision": revision,
            "bytes": file.stat().st_size,
            "sha256": sha256_of(file),
        }
        known["files"][file.relative_to(folder).as_posix()] = entry
    path.write_text(json.dumps(known))


def card_of(**files: str) -> str:
    """A card that says which file belongs to which configuration and split: config__split=path."""
    lines = ["---", "configs:"]
    for name, path in files.items():
        config, _, split = name.partition("__")
        lines += [f"- config_name: {config}", "  data_files:", f"  - split: {split}", f"    path: {path}"]
    return "\n".join([*lines, "---", ""])
