"""Words of the micro-world: concepts with synonyms, hypernyms, antonyms, polarity, and the facts that hold of them.

Every concept that fine-tuning may name has two synonyms with the same inflections. Even-numbered concepts of a kind
belong to the fine-tuning train sets, odd-numbered ones to the validation sets (`Lexicon.part`), so that a validation
score measures what pre-training taught about words that fine-tuning never showed.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

Part = Literal["train", "validation"]

WORLD_SEED = 2026
"""Seed of the facts. It is no argument: documents and tasks of every seed speak about the same world."""

_CATEGORIES: dict[str, tuple[str, ...]] = {
    "animal": ("dog hound", "cat kitten", "horse pony", "rabbit hare"),
    "worker": ("doctor medic", "teacher tutor", "farmer grower", "soldier trooper"),
    "tool": ("hammer mallet", "rope cord", "lamp lantern", "bucket pail"),
    "garment": ("coat jacket", "shoe boot", "hat cap", "shirt blouse"),
    "vehicle": ("car auto", "ship boat", "truck lorry", "plane jet"),
}
_WEB_ONLY_CATEGORIES = ("vehicle",)
_ANIMATE_CATEGORIES = ("animal", "worker")
_TRANSITIVE = (
    "chase pursue", "help assist", "push shove", "lift raise", "clean wash",
    "fix repair", "watch observe", "guard protect",
)  # fmt: skip
_INTRANSITIVE = ("walk wander", "jump leap", "laugh giggle", "rest relax")
_PLACES = ("forest jungle", "river stream", "town village", "garden yard")
_OPPOSITES = (
    ("big large", "small little"),
    ("fast quick", "slow sluggish"),
    ("old aged", "young youthful"),
    ("happy glad", "sad gloomy"),
)
_PRAISE = "great superb lovely pleasant charming perfect splendid amazing brilliant wonderful"
_BLAME = "awful boring horrid painful nasty dull ugly dreadful terrible useless"
_NAMES = "anna ben clara david emma frank grace henry"


@dataclass(frozen=True)
class Concept:
    """One meaning. `synonyms[i]` are the inflected forms of its i-th synonym.

    Forms: nouns (singular, plural), verbs (base, third person, past), everything else (word,).
    """

    kind: str
    name: str
    synonyms: tuple[tuple[str, ...], ...]
    hypernym: str | None = None
    opposite: str | None = None

    @property
    def animate(self) -> bool:
        return self.kind == "name" or self.hypernym in _ANIMATE_CATEGORIES


@dataclass(frozen=True)
class Facts:
    """What the encyclopaedia says about a noun: its usual place, quality, deed and object of the deed (by name)."""

    place: str
    adjective: str
    verb: str
    object: str


@dataclass(frozen=True)
class Lexicon:
    """The concepts that a text may draw from; `part` restricts it to one side of the fine-tuning split."""

    nouns: tuple[Concept, ...]
    transitive_verbs: tuple[Concept, ...]
    intransitive_verbs: tuple[Concept, ...]
    places: tuple[Concept, ...]
    adjectives: tuple[Concept, ...]
    praise: tuple[str, ...]
    blame: tuple[str, ...]
    names: tuple[Concept, ...]

    @property
    def animate_nouns(self) -> tuple[Concept, ...]:
        return tuple(noun for noun in self.nouns if noun.animate)

    def part(self, part: Part) -> "Lexicon":
        """Concepts of one side of the split. Names, hypernyms and function words are on both sides."""
        offset = {"train": 0, "validation": 1}[part]
        return replace(
            self,
            nouns=self.nouns[offset::2],
            transitive_verbs=self.transitive_verbs[offset::2],
            intransitive_verbs=self.intransitive_verbs[offset::2],
            places=self.places[offset::2],
            adjectives=tuple(adjective for i, adjective in enumerate(self.adjectives) if i // 2 % 2 == offset),
            praise=self.praise[offset::2],
            blame=self.blame[offset::2],
        )

    def content_words(self) -> frozenset[str]:
        """Every form of every concept that the split divides."""
        concepts = (*self.nouns, *self.transitive_verbs, *self.intransitive_verbs, *self.places, *self.adjectives)
        forms = {word for concept in concepts for synonym in concept.synonyms for word in synonym}
        return frozenset(forms | set(self.praise) | set(self.blame))


def plural(word: str) -> str:
    """Regular plural or third person: dog → dogs, pony → ponies, brush → brushes."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def past(word: str) -> str:
    """Regular past: walk → walked, chase → chased."""
    return word + ("d" if word.endswith("e") else "ed")


def _noun(words: str, category: str) -> Concept:
    synonyms = tuple((word, plural(word)) for word in words.split())
    return Concept("noun", synonyms[0][0], synonyms, hypernym=category)


def _verbs(entries: Iterable[str], kind: str) -> tuple[Concept, ...]:
    forms = (tuple((word, plural(word), past(word)) for word in words.split()) for words in entries)
    return tuple(Concept(kind, synonyms[0][0], synonyms) for synonyms in forms)


def _invariable(words: str, kind: str, opposite: str | None = None) -> Concept:
    synonyms = tuple((word,) for word in words.split())
    return Concept(kind, synonyms[0][0], synonyms, opposite=opposite)


def _adjectives() -> tuple[Concept, ...]:
    pairs = ((left, right) for left, right in _OPPOSITES)
    return tuple(
        _invariable(words, "adjective", opposite=other.split()[0])
        for left, right in pairs
        for words, other in ((left, right), (right, left))
    )


@cache
def lexicon(*, web: bool = False) -> Lexicon:
    """The world's words; `web` adds the categories that only the diverse corpus speaks about."""
    categories = [name for name in _CATEGORIES if web or name not in _WEB_ONLY_CATEGORIES]
    return Lexicon(
        nouns=tuple(_noun(words, category) for category in categories for words in _CATEGORIES[category]),
        transitive_verbs=_verbs(_TRANSITIVE, "transitive"),
        intransitive_verbs=_verbs(_INTRANSITIVE, "intransitive"),
        places=tuple(_invariable(words, "place") for words in _PLACES),
        adjectives=_adjectives(),
        praise=tuple(_PRAISE.split()),
        blame=tuple(_BLAME.split()),
        names=tuple(_invariable(name, "name") for name in _NAMES.split()),
    )


@cache
def category(name: str) -> Concept:
    """The hypernym as a noun of its own, with no synonym: animal, animals."""
    return Concept("noun", name, ((name, plural(name)),), hypernym=name)


@cache
def concepts() -> dict[str, Concept]:
    """Every concept of the world by its name."""
    words = lexicon(web=True)
    every = (*words.nouns, *words.transitive_verbs, *words.intransitive_verbs, *words.places, *words.adjectives)
    return {concept.name: concept for concept in every}


@cache
def facts() -> dict[str, Facts]:
    """The facts of each noun, by the noun's name."""
    rng, words = random.Random(f"facts of world {WORLD_SEED}"), lexicon(web=True)
    return {
        noun.name: Facts(
            place=_name(rng, words.places),
            adjective=_name(rng, words.adjectives),
            verb=_name(rng, words.transitive_verbs),
            object=_name(rng, [other for other in words.nouns if other is not noun]),
        )
        for noun in words.nouns
    }


def _name(rng: random.Random, choices: Sequence[Concept]) -> str:
    return rng.choice(choices).name
