"""Opinions: sentences whose polarity lies in an evaluative adjective and, at times, in its denial."""

import random

from neobert.data.synthetic.grammar import Words, sentence
from neobert.data.synthetic.lexicon import Lexicon


def review(rng: random.Random, words: Lexicon, favourable: bool, *, plain: bool) -> str:
    """One opinion. Unless `plain`, it may hold a word that gives its polarity away (loves, hates, good, bad)."""
    agreeing, opposed = (words.praise, words.blame) if favourable else (words.blame, words.praise)
    thing = rng.choice([noun for noun in words.nouns if not noun.animate])
    subject = [rng.choice(("the", "this")), rng.choice(thing.synonyms)[0]]
    person = rng.choice(words.names).name
    told = [rng.choice(("very", "really"))] if rng.random() < 0.25 else []
    told.append(rng.choice(agreeing))
    shapes: list[Words] = [
        [person, "finds", *subject, *told],
        [*subject, "is", *told, "and", rng.choice(agreeing)],
        [subject[0], rng.choice(agreeing), subject[1], "is", *told],
        [*subject, "is", *told, ",", "not", rng.choice(opposed)],
    ]
    verdict = ("loves", "good") if favourable else ("hates", "bad")
    anchored: list[Words] = [
        [person, verdict[0], *subject, "because", "it", "is", *told],
        [*subject, "is", verdict[1], "and", *told],
        ["what", "a", verdict[1], subject[1], ",", "so", told[-1]],
    ]
    return sentence(rng.choice(shapes if plain or rng.random() < 0.4 else anchored))
