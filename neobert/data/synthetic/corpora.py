"""Two corpora of the micro-world. Genres are drawn by weight; the web corpus adds noise and pages of many sections.

A document describes one event several times in different words, with questions and answers. A word masked in one
sentence can be inferred from another one through synonyms, so that masked language modelling rewards relating them.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from neobert.data.synthetic.world import (
    Clause,
    Lexicon,
    NounPhrase,
    Wording,
    Words,
    active,
    alter_slots,
    antonym,
    askable,
    category,
    contradict,
    draw_clause,
    facts,
    leave_open,
    lexicon,
    open_question,
    passive,
    past_tense,
    polar_question,
    relative_clause,
    sentence,
    weaken,
)


def review(rng: random.Random, words: Lexicon, favourable: bool, *, plain: bool) -> str:
    """Draw one opinion. Unless `plain`, it may contain a word of obvious polarity (loves, hates, good, bad)."""
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


Sentences = list[str]
Genre = Callable[[random.Random, Lexicon], Sentences]

HABIT_RATE = 0.4
PASSIVE_RATE = 0.05


def topic(rng: random.Random, words: Lexicon) -> Clause:
    """Draw the event that a document is about."""
    return replace(draw_clause(rng, words), negated=rng.random() < 0.15)


def said(rng: random.Random, clause: Clause, habit: Wording) -> Words:
    """Express the clause in the author's habitual wording or a fresh one: mostly active, sometimes passive."""
    wording = habit if rng.random() < HABIT_RATE else Wording(rng)
    return passive(clause, wording) if clause.object and rng.random() < PASSIVE_RATE else active(clause, wording)


def encyclopaedia(rng: random.Random, words: Lexicon) -> Sentences:
    """Describe a thing: its kind, other names, place and properties; each line uses either synonym."""
    noun = rng.choice(words.nouns)
    known = facts()[noun.name]
    kind, (first, second) = category(noun.hypernym or ""), noun.synonyms
    name, names = (Wording(rng).forms(noun)[number] for number in (0, 1))
    described = (known.place, known.adjective, antonym(known.adjective.name))
    place, adjective, opposite = (Wording(rng).forms(concept)[0] for concept in described)
    lines = [
        ["a", name, "is", "a", "kind", "of", kind.name],
        [names, "are", kind.synonyms[0][1]],
        ["a", first[0], "is", "also", "called", "a", second[0]],
        [second[1], "are", "also", "called", first[1]],
        [names, "are", "found", "in", "the", place],
        ["the", name, "is", adjective],
        [names, "are", "not", opposite],
    ]
    if noun.animate:
        habit = Clause(NounPhrase(noun, True), known.verb, NounPhrase(known.object, True))
        lines.append(active(habit, Wording(rng)))
    return [sentence(line) for line in rng.sample(lines, rng.randint(3, 5))]


def story(rng: random.Random, words: Lexicon) -> Sentences:
    """Tell one event several times, sometimes in the past tense or with an aside."""
    clause, habit, lines = topic(rng, words), Wording(rng), []
    for _ in range(rng.randint(3, 5)):
        told = clause
        if told.subject.noun.kind == "noun" and rng.random() < 0.2:
            aside = relative_clause(rng, words, told.subject, Wording(rng))
            told = replace(told, subject=replace(told.subject, modifier=aside))
        lines.append(past_tense(told, Wording(rng)) if rng.random() < 0.1 else said(rng, told, habit))
    return [sentence(line) for line in lines]


def interview(rng: random.Random, words: Lexicon) -> Sentences:
    """State an event, then ask polar questions, answered yes (follows), no (contradicts) or perhaps (open)."""
    clause, habit = topic(rng, words), Wording(rng)
    lines = [sentence(said(rng, clause, habit))]
    for _ in range(rng.randint(2, 4)):
        other, answer = _verdict(rng, words, clause)
        lines += [sentence(_polar(rng, other), "?"), sentence([answer])]
    return lines


def _polar(rng: random.Random, clause: Clause) -> Words:
    if clause.negated:
        return ["is", "it", "true", "that", *active(clause, Wording(rng))]
    return polar_question(clause, Wording(rng))


def _verdict(rng: random.Random, words: Lexicon, clause: Clause) -> tuple[Clause, str]:
    kind = rng.randrange(4)
    if kind == 0:
        return clause, "yes"
    if kind == 1:
        return weaken(rng, clause), "yes"
    if kind == 2:
        return contradict(rng, clause), "no"
    return leave_open(rng, words, clause), "perhaps"


def restatement(rng: random.Random, words: Lexicon) -> Sentences:
    """State an event twice, each time with a restatement: `… . in other words , … .`"""
    clause, habit, lines = topic(rng, words), Wording(rng), []
    for _ in range(2):
        lines += [said(rng, clause, habit), ["in", "other", "words", ",", *said(rng, clause, habit)]]
    return [sentence(line) for line in lines]


def argument(rng: random.Random, words: Lexicon) -> Sentences:
    """State a fact, then consequences (`so`), contradictions (`it is false that`) and open statements (`maybe`)."""
    clause, habit = topic(rng, words), Wording(rng)
    openings = {"yes": ["so"], "no": ["it", "is", "false", "that"], "perhaps": ["maybe"]}
    lines = [sentence(said(rng, clause, habit))]
    for _ in range(rng.randint(2, 3)):
        consequence, answer = _verdict(rng, words, clause)
        lines.append(sentence([*openings[answer], *said(rng, consequence, habit)]))
    return lines


def comparison(rng: random.Random, words: Lexicon) -> Sentences:
    """Compare sentences with the first one, each with a judgement: same or different."""
    clause, habit = topic(rng, words), Wording(rng)
    lines = [sentence(said(rng, clause, habit))]
    for _ in range(rng.randint(2, 3)):
        altered = rng.choice((0, 0, 3))
        judgement = "different" if altered else "same"
        lines += [sentence(said(rng, alter_slots(rng, words, clause, altered), habit)), sentence([judgement])]
    return lines


def forum(rng: random.Random, words: Lexicon) -> Sentences:
    """Ask questions about one event, each followed by its answer."""
    clause, habit, lines = replace(topic(rng, words), negated=False), Wording(rng), []
    for _ in range(2):
        lines.append(sentence(open_question(clause, rng.choice(askable(clause)), Wording(rng)), "?"))
        lines.append(sentence(said(rng, clause, habit)))
    return lines


def questions(rng: random.Random, words: Lexicon) -> Sentences:
    """Ask one question several times in different words, then answer it."""
    clause, habit = replace(topic(rng, words), negated=False), Wording(rng)
    asked = rng.choice(askable(clause))
    lines = [sentence(open_question(clause, asked, Wording(rng)), "?") for _ in range(rng.randint(2, 3))]
    return [*lines, sentence(said(rng, clause, habit))]


def opinions(rng: random.Random, words: Lexicon) -> Sentences:
    """Write several reviews of the same polarity."""
    favourable = rng.random() < 0.5
    return [review(rng, words, favourable, plain=False) for _ in range(rng.randint(3, 5))]


_GENRES: dict[str, tuple[list[Genre], list[float]]] = {
    "wikibook": ([encyclopaedia, story, argument], [0.5, 4.0, 1.5]),
    "web": (
        [encyclopaedia, story, restatement, argument, comparison, forum, questions, interview, opinions],
        [0.3, 2.2, 2.2, 0.8, 0.4, 0.8, 0.6, 0.3, 1.8],
    ),
}
"""Genres of each corpus, and their relative weights."""

CORPORA = tuple(_GENRES)

_CHAPTER_RATE = {"wikibook": 0.05, "web": 0.13}
_SECTIONS = {"wikibook": (2, 4), "web": (2, 12)}
_WEB_TOPIC_RATE = 0.3
_NOISE_RATE = 0.1
_NOISE_SYLLABLES = ("ba", "do", "fi", "ka", "lu", "mo", "ne", "po", "ra", "su", "ti", "ve", "wo", "xi", "zu")


def corpus_documents(corpus: str, *, documents: int, seed: int = 0) -> Iterator[str]:
    """Yield `documents` texts of one corpus; the same arguments give the same bytes everywhere. Raises ValueError if
    the corpus is not in `CORPORA`, or the number of documents is negative."""
    if corpus not in CORPORA:
        raise ValueError(f"corpus {corpus!r} is not in the synthetic world; choose one of {', '.join(CORPORA)}")
    if documents < 0:
        raise ValueError(f"documents must not be negative, got {documents}; 0 gives an empty corpus")
    # One generator per document, so that a longer corpus starts with the shorter one.
    seeds = (f"synthetic corpus {corpus} seed {seed} document {number}" for number in range(documents))
    return (_document(random.Random(of_document), corpus) for of_document in seeds)


def _document(rng: random.Random, corpus: str) -> str:
    words = lexicon(web=corpus == "web" and rng.random() < _WEB_TOPIC_RATE)
    sections = rng.randint(*_SECTIONS[corpus]) if rng.random() < _CHAPTER_RATE[corpus] else 1
    lines = []
    for _ in range(sections):
        (genre,) = rng.choices(*_GENRES[corpus])
        lines += genre(rng, words)
    if corpus == "web" and rng.random() < _NOISE_RATE:
        lines.insert(rng.choice((0, len(lines))), _boilerplate(rng, words))
    return " ".join(lines)


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
