"""Pairs of sentences of the micro-world that belong together, each with a near miss as hard negative.

They name only concepts of `Lexicon.part("train")`, so that what they teach can be measured on other words.
"""

import random
from collections.abc import Callable, Iterator

from neobert.data.pairs import Pair
from neobert.data.synthetic.grammar import Clause, Wording, active, askable, draw_clause, open_question, sentence
from neobert.data.synthetic.lexicon import Lexicon, lexicon
from neobert.data.synthetic.meaning import alter_slots, contradict, weaken

VARIATION_RATE = 0.7

Maker = Callable[[random.Random, Lexicon], Pair]


def _paraphrase(rng: random.Random, words: Lexicon) -> Pair:
    clause = draw_clause(rng, words, transitive_rate=0.85)
    return _said(rng, clause, clause, alter_slots(rng, words, clause, 1))


def _entailment(rng: random.Random, words: Lexicon) -> Pair:
    premise = draw_clause(rng, words, transitive_rate=0.85, adjective_rate=0.6)
    return _said(rng, premise, weaken(rng, premise), contradict(rng, premise))


def _said(rng: random.Random, query: Clause, document: Clause, negative: Clause) -> Pair:
    wording = Wording(rng)
    said = sentence(active(query, wording))
    varied = wording.varied(VARIATION_RATE)
    return Pair(said, sentence(active(document, varied)), (sentence(active(negative, varied)),))


def _answer(rng: random.Random, words: Lexicon) -> Pair:
    clause = draw_clause(rng, words, transitive_rate=1.0, adjective_rate=0.2)
    wording = Wording(rng)
    question = sentence(open_question(clause, rng.choice(askable(clause)), wording), "?")
    return Pair(question, sentence(active(clause, wording.varied(VARIATION_RATE))))


_SETS: dict[str, tuple[Maker, int, str]] = {
    "paraphrases": (_paraphrase, 2000, "find the same in other words"),
    "answers": (_answer, 1500, "given a question , find its answer"),
    "entailments": (_entailment, 1000, "given a sentence , find what follows from it"),
}

PAIR_SETS = tuple(_SETS)


def pair_instruction(name: str) -> str:
    """What stands before the queries of a set."""
    return _SETS[name][2]


def pairs(name: str, *, seed: int = 0) -> Iterator[Pair]:
    """The pairs of one set of `PAIR_SETS`; no query comes twice."""
    maker, count, _ = _SETS[name]
    rng, words, seen = random.Random(f"synthetic pairs {name} seed {seed}"), lexicon().part("train"), set[str]()
    while len(seen) < count:
        pair = maker(rng, words)
        if pair.query not in seen:
            seen.add(pair.query)
            yield pair
