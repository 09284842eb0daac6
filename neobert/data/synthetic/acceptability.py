"""Acceptable and unacceptable sentences: one rule of the grammar broken, and named."""

import random
from dataclasses import dataclass, replace
from typing import Literal

from neobert.data.synthetic.grammar import (
    PLURAL_DETERMINERS,
    SINGULAR_DETERMINERS,
    Clause,
    Wording,
    active,
    draw_clause,
    relative_clause,
    sentence,
)
from neobert.data.synthetic.lexicon import Lexicon

Violation = Literal["agreement", "determiner", "valency", "order"]


@dataclass(frozen=True)
class Judgement:
    """A sentence and the rule that it breaks; None for an acceptable one."""

    text: str
    violation: Violation | None


def judged_sentence(rng: random.Random, words: Lexicon) -> Judgement:
    """An acceptable sentence (6 of 10) or one with a single violation."""
    clause = _with_attractor(rng, words, draw_clause(rng, words, name_rate=0.0))
    if rng.random() < 0.6:
        return Judgement(sentence(active(clause, Wording(rng))), None)
    violation: Violation = rng.choice(("agreement", "agreement", "determiner", "valency", "order"))
    return Judgement(_broken(rng, words, clause, violation), violation)


def _with_attractor(rng: random.Random, words: Lexicon, clause: Clause) -> Clause:
    if rng.random() < 0.6:
        return clause
    modifier = relative_clause(rng, words, clause.subject, Wording(rng))
    return replace(clause, subject=replace(clause.subject, modifier=modifier))


def _broken(rng: random.Random, words: Lexicon, clause: Clause, violation: Violation) -> str:
    wording = Wording(rng)
    if violation == "agreement":
        return sentence(active(clause, wording, agreement=False))
    if violation == "determiner":
        wrong = SINGULAR_DETERMINERS if clause.subject.plural else PLURAL_DETERMINERS
        determiner = rng.choice([word for word in wrong if word != "the"])
        return sentence(active(replace(clause, subject=replace(clause.subject, determiner=determiner)), wording))
    if violation == "valency":
        verbs = words.intransitive_verbs if clause.object else words.transitive_verbs
        return sentence(active(replace(clause, verb=rng.choice(verbs)), wording))
    said = active(clause, wording)
    swapped = rng.randrange(len(said) - 1)
    said[swapped], said[swapped + 1] = said[swapped + 1], said[swapped]
    return sentence(said)
