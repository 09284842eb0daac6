"""Streams of documents: genres drawn by weight, and on the web noise and pages of many sections."""

import random
from collections.abc import Iterator

from neobert.data.synthetic.documents import DIVERSE, NARROW, Genre
from neobert.data.synthetic.lexicon import Lexicon, lexicon

CORPORA = ("wikibook", "web")

_CHAPTER_RATE = {"wikibook": 0.05, "web": 0.13}
_SECTIONS = {"wikibook": (2, 4), "web": (2, 12)}
_WEB_TOPIC_RATE = 0.3
_NOISE_RATE = 0.1
_NOISE_SYLLABLES = ("ba", "do", "fi", "ka", "lu", "mo", "ne", "po", "ra", "su", "ti", "ve", "wo", "xi", "zu")


def corpus_documents(corpus: str, *, documents: int, seed: int = 0) -> Iterator[str]:
    """`documents` texts of one corpus, one after the other; the same arguments give the same bytes everywhere.

    Raises ValueError for a corpus that is not in `CORPORA` or a negative number of documents.
    """
    if corpus not in CORPORA:
        raise ValueError(f"corpus {corpus!r} is not in the synthetic world; choose one of {', '.join(CORPORA)}")
    if documents < 0:
        raise ValueError(f"documents must not be negative, got {documents}; 0 gives an empty corpus")
    return _stream(corpus, documents, seed)


def _stream(corpus: str, documents: int, seed: int) -> Iterator[str]:
    # One generator a document: a longer corpus starts with the shorter one.
    for number in range(documents):
        yield _document(random.Random(f"synthetic corpus {corpus} seed {seed} document {number}"), corpus)


def _document(rng: random.Random, corpus: str) -> str:
    words = lexicon(web=corpus == "web" and rng.random() < _WEB_TOPIC_RATE)
    sections = rng.randint(*_SECTIONS[corpus]) if rng.random() < _CHAPTER_RATE[corpus] else 1
    lines = [line for _ in range(sections) for line in _genre(rng, corpus)(rng, words)]
    if corpus == "web" and rng.random() < _NOISE_RATE:
        lines.insert(rng.choice((0, len(lines))), _boilerplate(rng, words))
    return " ".join(lines)


def _genre(rng: random.Random, corpus: str) -> Genre:
    weighted = NARROW if corpus == "wikibook" else DIVERSE
    genres, weights = [genre for genre, _ in weighted], [weight for _, weight in weighted]
    return rng.choices(genres, weights)[0]


def _boilerplate(rng: random.Random, words: Lexicon) -> str:
    site = "".join(rng.choice(_NOISE_SYLLABLES) for _ in range(rng.randint(2, 3)))
    person = rng.choice(words.names).name
    return rng.choice(
        (
            f"click here to read more on {site} .",
            f"posted by {person} on {site} .",
            f"share this page with {site} .",
            f"{rng.randint(2, 99)} comments .",
        )
    )
