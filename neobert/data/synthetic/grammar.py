"""Clauses and how they are said: agreement, negation, voice, relative clauses, questions.

A `Clause` is a meaning; the functions below turn it into words. Which synonym a concept is given is decided by a
`Wording`, so that one clause said with a wording and with its varied twin is a paraphrase.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from neobert.data.synthetic.lexicon import Concept, Lexicon

Words = list[str]
Asked = Literal["who", "what", "where"]
Slot = Literal["subject", "verb", "object", "place"]

SINGULAR_DETERMINERS = ("the", "a", "this")
PLURAL_DETERMINERS = ("the", "these", "two", "some")


@dataclass(frozen=True)
class NounPhrase:
    """A determiner, perhaps an adjective, a noun or name, and words after the noun (a relative clause)."""

    noun: Concept
    plural: bool = False
    determiner: str = "the"
    adjective: Concept | None = None
    modifier: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clause:
    """Who does what to whom, where, and whether it is denied."""

    subject: NounPhrase
    verb: Concept
    object: NounPhrase | None = None
    place: Concept | None = None
    negated: bool = False


class Wording:
    """One speaker's choice of synonyms: drawn at a concept's first mention and kept afterwards."""

    def __init__(self, rng: random.Random, chosen: dict[str, int] | None = None) -> None:
        self._rng = rng
        self._chosen = {} if chosen is None else chosen

    def forms(self, concept: Concept) -> tuple[str, ...]:
        if len(concept.synonyms) == 1:
            return concept.synonyms[0]
        if concept.name not in self._chosen:
            self._chosen[concept.name] = self._rng.randrange(2)
        return concept.synonyms[self._chosen[concept.name]]

    def varied(self, rate: float) -> "Wording":
        """Another speaker: of the concepts mentioned so far each is called differently at `rate`, at least one is."""
        names = list(self._chosen)
        changed = {name for name in names if self._rng.random() < rate} or {self._rng.choice(names)}
        return Wording(self._rng, {name: index ^ (name in changed) for name, index in self._chosen.items()})


def sentence(words: Sequence[str], end: str = ".") -> str:
    """Words and their end mark, separated by spaces, with `a` before a vowel written `an`."""
    following = (*words[1:], end)
    spelled = ("an" if w == "a" and after[0] in "aeiou" else w for w, after in zip(words, following, strict=True))
    return " ".join((*spelled, end))


def noun_phrase_words(phrase: NounPhrase, wording: Wording) -> Words:
    noun = wording.forms(phrase.noun)
    if phrase.noun.kind == "name":
        return [noun[0]]
    adjective = [wording.forms(phrase.adjective)[0]] if phrase.adjective else []
    return [phrase.determiner, *adjective, noun[phrase.plural], *phrase.modifier]


def place_words(place: Concept | None, wording: Wording) -> Words:
    return ["in", "the", wording.forms(place)[0]] if place else []


def active(clause: Clause, wording: Wording, *, agreement: bool = True) -> Words:
    """`the dog chases a cat in the forest`; with `agreement=False` the verb takes the wrong number."""
    as_plural = clause.subject.plural == agreement
    base, third, _ = wording.forms(clause.verb)
    finite = [base if as_plural else third]
    verb = [*_do(as_plural), "not", base] if clause.negated else finite
    return [*noun_phrase_words(clause.subject, wording), *verb, *_rest(clause, wording)]


def past_tense(clause: Clause, wording: Wording) -> Words:
    """`the dog chased a cat`, `the dog did not chase a cat`."""
    base, _, past = wording.forms(clause.verb)
    verb = ["did", "not", base] if clause.negated else [past]
    return [*noun_phrase_words(clause.subject, wording), *verb, *_rest(clause, wording)]


def passive(clause: Clause, wording: Wording, *, agreement: bool = True) -> Words:
    """`a cat is chased by the dog`. Asserts an object."""
    assert clause.object is not None
    be = "are" if clause.object.plural == agreement else "is"
    denial = ["not"] if clause.negated else []
    agent = ["by", *noun_phrase_words(clause.subject, wording), *place_words(clause.place, wording)]
    return [*noun_phrase_words(clause.object, wording), be, *denial, wording.forms(clause.verb)[2], *agent]


def polar_question(clause: Clause, wording: Wording) -> Words:
    """`does the dog chase a cat`."""
    do, subject = _do(clause.subject.plural), noun_phrase_words(clause.subject, wording)
    return [*do, *subject, wording.forms(clause.verb)[0], *_rest(clause, wording)]


def open_question(clause: Clause, asked: Asked, wording: Wording) -> Words:
    """`who chases a cat`, `what does the dog chase`, `where does the dog chase a cat`."""
    base, third, _ = wording.forms(clause.verb)
    objects = noun_phrase_words(clause.object, wording) if clause.object else []
    if asked == "who":
        return ["who", third, *objects]
    inverted = [*_do(clause.subject.plural), *noun_phrase_words(clause.subject, wording), base]
    return [asked, *inverted, *(objects if asked == "where" else [])]


def askable(clause: Clause) -> list[Asked]:
    """The open questions that a clause answers."""
    asked: list[Asked] = ["who", "what"] if clause.object else ["who"]
    return [*asked, "where"] if clause.place else asked


def _do(as_plural: bool) -> Words:
    return ["do"] if as_plural else ["does"]


def _rest(clause: Clause, wording: Wording) -> Words:
    objects = noun_phrase_words(clause.object, wording) if clause.object else []
    return [*objects, *place_words(clause.place, wording)]


def draw_noun_phrase(
    rng: random.Random, nouns: Sequence[Concept], adjectives: Sequence[Concept], adjective_rate: float = 0.35
) -> NounPhrase:
    """A phrase about one of `nouns`, with agreeing determiner and, at `adjective_rate`, one of `adjectives`."""
    noun, is_plural = rng.choice(nouns), rng.random() < 0.5
    determiner = rng.choice(PLURAL_DETERMINERS if is_plural else SINGULAR_DETERMINERS)
    adjective = rng.choice(adjectives) if rng.random() < adjective_rate else None
    return NounPhrase(noun, is_plural, determiner, adjective)


def draw_clause(
    rng: random.Random,
    words: Lexicon,
    *,
    subject: NounPhrase | None = None,
    transitive_rate: float = 0.75,
    place_rate: float = 0.3,
    adjective_rate: float = 0.35,
    name_rate: float = 0.15,
) -> Clause:
    """A clause whose subject is animate and whose object, if any, is another concept than its subject."""
    if subject is None and rng.random() < name_rate:
        subject = NounPhrase(rng.choice(words.names))
    if subject is None:
        subject = draw_noun_phrase(rng, words.animate_nouns, words.adjectives, adjective_rate)
    place = rng.choice(words.places) if rng.random() < place_rate else None
    if rng.random() >= transitive_rate:
        return Clause(subject, rng.choice(words.intransitive_verbs), None, place)
    others = [noun for noun in words.nouns if noun is not subject.noun]
    patient = draw_noun_phrase(rng, others, words.adjectives, adjective_rate)
    return Clause(subject, rng.choice(words.transitive_verbs), patient, place)


def relative_clause(rng: random.Random, words: Lexicon, head: NounPhrase, wording: Wording) -> tuple[str, ...]:
    """`that chases the cats` or `near the cats`: its own noun may differ from the head in number (an attractor)."""
    others = [noun for noun in words.nouns if noun is not head.noun]
    other = draw_noun_phrase(rng, others, words.adjectives, adjective_rate=0.0)
    if rng.random() < 0.4:
        return ("near", *noun_phrase_words(other, wording))
    verb = wording.forms(rng.choice(words.transitive_verbs))[0 if head.plural else 1]
    return ("that", verb, *noun_phrase_words(other, wording))
