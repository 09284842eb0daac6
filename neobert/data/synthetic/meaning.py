"""What follows from a clause and what does not: the edits behind paraphrase, inference and similarity.

Each edit returns a new clause. Relations hold in the world's own logic: a synonym keeps the truth; a hypernym, a
dropped adjective or a dropped place follow from an affirmed clause; an antonym or a flipped negation contradicts it;
altered slots leave it open.
"""

import random
from dataclasses import replace

from neobert.data.synthetic.grammar import Clause, NounPhrase, Slot
from neobert.data.synthetic.lexicon import Concept, Lexicon, category, concepts


def slots(clause: Clause) -> list[Slot]:
    """The content slots that a clause fills."""
    filled: list[Slot] = ["subject", "verb"]
    if clause.object:
        filled.append("object")
    if clause.place:
        filled.append("place")
    return filled


def alter(rng: random.Random, words: Lexicon, clause: Clause, slot: Slot) -> Clause:
    """The clause with another, unrelated concept in one slot."""
    if slot == "verb":
        verbs = words.transitive_verbs if clause.object else words.intransitive_verbs
        return replace(clause, verb=_other(rng, verbs, clause.verb))
    if slot == "place":
        assert clause.place is not None
        return replace(clause, place=_other(rng, words.places, clause.place))
    if slot == "subject":
        return replace(clause, subject=_other_noun(rng, words, clause.subject, clause.object))
    assert clause.object is not None
    return replace(clause, object=_other_noun(rng, words, clause.object, clause.subject))


def alter_slots(rng: random.Random, words: Lexicon, clause: Clause, count: int) -> Clause:
    """`count` of the filled slots altered (all of them where there are fewer); the place is altered last."""
    central: list[Slot] = [slot for slot in slots(clause) if slot != "place"]
    order: list[Slot] = rng.sample(central, len(central))
    if clause.place:
        order.append("place")
    for slot in order[:count]:
        clause = alter(rng, words, clause, slot)
    return clause


def weaken(rng: random.Random, clause: Clause) -> Clause:
    """A clause that follows: a hypernym for a noun, or an adjective or the place left out. Unchanged if denied."""
    edits = [] if clause.negated else _weakenings(clause)
    return rng.choice(edits) if edits else clause


def contradict(rng: random.Random, clause: Clause, antonym_rate: float = 0.6) -> Clause:
    """A clause that cannot hold with this one: an antonym (of an affirmed clause) or the negation flipped."""
    antonyms = [] if clause.negated else _antonyms(clause)
    if antonyms and rng.random() < antonym_rate:
        return rng.choice(antonyms)
    return replace(clause, negated=not clause.negated)


def leave_open(rng: random.Random, words: Lexicon, clause: Clause) -> Clause:
    """A clause that neither follows nor is excluded: two or three slots altered."""
    return alter_slots(rng, words, clause, rng.choice((2, 3)))


def _weakenings(clause: Clause) -> list[Clause]:
    found = [replace(clause, subject=phrase) for phrase in _weaker_phrases(clause.subject)]
    if clause.object:
        found += [replace(clause, object=phrase) for phrase in _weaker_phrases(clause.object)]
    if clause.place:
        found.append(replace(clause, place=None))
    return found


def _weaker_phrases(phrase: NounPhrase) -> list[NounPhrase]:
    found = [replace(phrase, adjective=None)] if phrase.adjective else []
    if phrase.noun.hypernym:
        found.append(replace(phrase, noun=category(phrase.noun.hypernym)))
    return found


def _antonyms(clause: Clause) -> list[Clause]:
    found = []
    if clause.subject.adjective:
        found.append(replace(clause, subject=_opposite(clause.subject)))
    if clause.object and clause.object.adjective:
        found.append(replace(clause, object=_opposite(clause.object)))
    return found


def _opposite(phrase: NounPhrase) -> NounPhrase:
    assert phrase.adjective is not None and phrase.adjective.opposite is not None
    return replace(phrase, adjective=concepts()[phrase.adjective.opposite])


def _other(rng: random.Random, choices: tuple[Concept, ...], current: Concept) -> Concept:
    return rng.choice([concept for concept in choices if concept is not current])


def _other_noun(rng: random.Random, words: Lexicon, phrase: NounPhrase, partner: NounPhrase | None) -> NounPhrase:
    if phrase.noun.kind == "name":
        return replace(phrase, noun=_other(rng, words.names, phrase.noun))
    taken = [phrase.noun] + ([partner.noun] if partner else [])
    choices = [noun for noun in words.nouns if noun not in taken and noun.animate == phrase.noun.animate]
    return replace(phrase, noun=rng.choice(choices))
