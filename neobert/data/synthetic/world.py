"""The micro-world: words with two names each, clauses, what follows from a clause, and two corpora.

A clause is a meaning. `say` puts it into the first names of its words, and `sentence` into the names that a speaker
uses, so that one clause by two speakers is a paraphrase. A hypernym, a dropped adjective or a dropped place follows
from an affirmed clause. An antonym or a flipped negation contradicts it. With other words in its slots, the truth stays
open.

Even-numbered words of a kind occur in the train sets, odd-numbered ones in the validation sets (`part`), so that
validation scores measure what the model learned in pre-training about words that are absent from fine-tuning. A
document tells one event several times, so that a masked word can be inferred from its other name in another sentence.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

_NAMES = {
    "animal": "dog=hound cat=kitten horse=pony rabbit=hare",
    "worker": "doctor=medic teacher=tutor farmer=grower soldier=trooper",
    "tool": "hammer=mallet rope=cord lamp=lantern bucket=pail",
    "garment": "coat=jacket shoe=boot hat=cap shirt=blouse",
    "verb": "chase=pursue help=assist push=shove lift=raise clean=wash fix=repair watch=observe guard=protect",
    "place": "forest=jungle river=stream town=village garden=yard",
    # The opposite of each is two places further or before.
    "adjective": "big=large fast=quick small=little slow=sluggish old=aged happy=glad young=youthful sad=gloomy",
    "praise": "great superb lovely pleasant charming perfect splendid amazing brilliant wonderful",
    "blame": "awful boring horrid painful nasty dull ugly dreadful terrible useless",
}
PEOPLE = ["anna", "ben", "clara", "david", "emma", "frank", "grace", "henry"]
NOUN_KINDS = ("animal", "worker", "tool", "garment")
_RELATED = {"animal": "worker", "worker": "animal", "tool": "garment", "garment": "tool"}
ONE = ("the", "a", "this", "one")
MANY = ("these", "two", "some", "many")
"""Determiners, each of one number."""

Words = Mapping[str, tuple[str, ...]]
"""The words of each kind by their first names."""
WORDS: Words = {kind: tuple(pair.split("=")[0] for pair in names.split()) for kind, names in _NAMES.items()}
KIND = {word: kind for kind, words in WORDS.items() for word in words}


def part(side: Literal["train", "validation"]) -> Words:
    """Return the words of one side of the split."""
    return {kind: words[("train", "validation").index(side) :: 2] for kind, words in WORDS.items()}


def plural(word: str) -> str:
    """Return the regular plural or third person: dog → dogs, pony → ponies, push → pushes."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def past(word: str) -> str:
    """Return the regular past: walk → walked, chase → chased."""
    return word + ("d" if word.endswith("e") else "ed")


_INFLECTIONS: dict[str, tuple[Callable[[str], str], ...]] = dict.fromkeys(NOUN_KINDS, (str, plural))
_INFLECTIONS["verb"] = (str, plural, past)

FORMS: dict[str, tuple[str, str]] = {
    inflect(name): (names[0], inflect(other))
    for kind, listed in _NAMES.items()
    for names in (pair.split("=") for pair in listed.split())
    for name, other in zip(names, reversed(names), strict=True)
    for inflect in _INFLECTIONS.get(kind, (str,))
}
"""For each form of a word: the first name of the word, and the same form of its other name."""

Speaker = frozenset[str]
"""The words that somebody calls by their second names."""


def speaker(rng: random.Random, like: Speaker = frozenset(), differing: float = 0.5) -> Speaker:
    """Draw a speaker who names words otherwise than another one does, at the rate `differing`."""
    return frozenset(word for word in KIND if (word in like) != (rng.random() < differing))


def sentence(text: str, by: Speaker = frozenset(), end: str = ".") -> str:
    """Return the text in the names that a speaker uses, with its end mark, all separated by single spaces."""
    words = [FORMS[word][1] if word in FORMS and FORMS[word][0] in by else word for word in text.split()]
    following = [*words[1:], end]
    spelled = ("an" if w == "a" and after[0] in "aeiou" else w for w, after in zip(words, following, strict=True))
    return " ".join([*spelled, end])


Slot = Literal["subject", "verb", "object", "place", "determiner", "quality", "determiner2", "quality2", "not"]
Clause = Mapping[Slot, str]
"""A meaning: the words in its slots. The place, both qualities (adjectives) and `not` may be empty; the determiners of
subject and object tell their numbers."""
Shape = Literal["active", "passive", "who", "what", "where"]

_SHAPES: dict[Shape, str] = {
    "active": "{subject} {verb} {object} {place}",
    "passive": "{object} {be} {past} by {subject} {place}",
    "who": "who {third} {object}",
    "what": "what {do} {subject} {base}",
    "where": "where {do} {subject} {base} {object}",
}


def draw_clause(
    rng: random.Random, words: Words, *, place_rate: float = 0.3, adjective_rate: float = 0.35, not_rate: float = 0.0
) -> Clause:
    """Draw a clause with an animate subject and another noun as its object."""
    subject = rng.choice(nouns(words, "animal", "worker"))
    adjectives = (rng.choice(words["adjective"]) if rng.random() < adjective_rate else "" for _ in range(2))
    return {
        "subject": subject,
        "verb": rng.choice(words["verb"]),
        "object": rng.choice([noun for noun in nouns(words) if noun != subject]),
        "place": rng.choice(words["place"]) if rng.random() < place_rate else "",
        "determiner": rng.choice(ONE + MANY),
        "determiner2": rng.choice(ONE + MANY),
        "quality": next(adjectives),
        "quality2": next(adjectives),
        "not": "not" if rng.random() < not_rate else "",
    }


def nouns(words: Words, *kinds: str) -> list[str]:
    """Return the nouns of some kinds, or of all."""
    return [noun for kind in kinds or NOUN_KINDS for noun in words[kind]]


def say(clause: Clause, shape: Shape = "active") -> str:
    """Say a clause in one of the shapes, or ask for its subject, object or place, in the first names of its words."""
    many, many_objects = clause["determiner"] in MANY, clause["determiner2"] in MANY
    base, third, do = clause["verb"], plural(clause["verb"]), "do" if many else "does"
    return _SHAPES[shape].format(
        subject=_phrase(clause["determiner"], clause["quality"], clause["subject"]),
        object=_phrase(clause["determiner2"], clause["quality2"], clause["object"]),
        verb=f"{do} not {base}" if clause["not"] else base if many else third,
        place=f"in the {clause['place']}" if clause["place"] else "",
        base=base,
        third=third,
        past=past(base),
        do=do,
        be=f"{'are' if many_objects else 'is'} {clause['not']}",
    )


def _phrase(determiner: str, adjective: str, noun: str) -> str:
    return f"{determiner} {adjective} {plural(noun) if determiner in MANY else noun}"


def questions(clause: Clause) -> list[Shape]:
    """Return the questions that a clause answers."""
    return ["who", "what", "where"] if clause["place"] else ["who", "what"]


def alter(rng: random.Random, words: Words, clause: Clause, *counts: int) -> Clause:
    """Put unrelated words into as many slots as one of `counts` says (all if there are fewer), the place last."""
    central: list[Slot] = ["subject", "verb", "object"]
    order = rng.sample(central, 3)
    if clause["place"]:
        order.append("place")
    for slot in order[: rng.choice(counts)]:
        clause = alter_slot(rng, words, clause, slot)
    return clause


def alter_slot(rng: random.Random, words: Words, clause: Clause, slot: Slot) -> Clause:
    """Put an unrelated word into one slot: for a noun, one of another kind that is as animate."""
    kind = KIND[clause[slot]]
    choices = words[_RELATED.get(kind, kind)]
    return {**clause, slot: rng.choice([word for word in choices if word not in clause.values()])}


def weaken(rng: random.Random, clause: Clause) -> Clause:
    """Return a clause that follows: a hypernym for a noun, an adjective or the place left out; not if it is negated."""
    weaker: Clause = {"quality": "", "quality2": "", "place": ""}
    weaker = {**weaker, "subject": KIND[clause["subject"]], "object": KIND[clause["object"]]}
    slots = [slot for slot in weaker if clause[slot] and not clause["not"]]
    return {**clause, **{slot: weaker[slot] for slot in rng.sample(slots, min(1, len(slots)))}}


def contradict(rng: random.Random, clause: Clause) -> Clause:
    """Return a clause that contradicts this one: an antonym (if it is affirmed) or the negation flipped."""
    qualities: list[Slot] = ["quality", "quality2"]
    slots = [slot for slot in qualities if clause[slot] and not clause["not"]]
    if slots and rng.random() < 0.6:
        slot = rng.choice(slots)
        return {**clause, slot: WORDS["adjective"][WORDS["adjective"].index(clause[slot]) ^ 2]}
    return {**clause, "not": "" if clause["not"] else "not"}


_OPINIONS = (
    "{person} finds {the} {thing} {told}",
    "{the} {thing} is {told} and {again}",
    "{the} {again} {thing} is {told}",
    "{the} {thing} is {told} , not {opposite}",
)
_OBVIOUS_OPINIONS = (
    "{person} {loves} {the} {thing} because it is {told}",
    "{the} {thing} is {good} and {told}",
    "what a {good} {thing} , so {told}",
)
_DEFINITIONS = (
    "a {one} is a kind of {kind}",
    "{ones} are {kinds}",
    "a {one} is also called a {other}",
    "{ones} are also called {others}",
)
_NOISE = ("click here to read more on {site}", "posted by {person} on {site}", "{number} comments on {site}")
_SYLLABLES = ["ba", "do", "fi", "ka", "lu", "mo", "ne", "po", "ra", "su", "ti", "ve", "wo", "xi", "zu"]

Genre = Literal["definitions", "story", "restatement", "argument", "questions", "opinions"]
_GENRES: dict[str, dict[Genre, float]] = {
    "wikibook": {"definitions": 0.5, "story": 4, "argument": 1.5},
    "web": {"definitions": 0.3, "story": 2.2, "restatement": 2.2, "argument": 1.8, "questions": 1.4, "opinions": 1.8},
}
"""Genres of each corpus, and their relative weights."""
_CHAPTERS = {"wikibook": (0.05, 2, 4), "web": (0.13, 2, 12)}
"""Rate of documents with several sections, and the least and the largest number of them."""
CORPORA = tuple(_GENRES)


def review(rng: random.Random, words: Words, favourable: bool, *, obvious_rate: float = 0.0) -> str:
    """Draw one opinion. At `obvious_rate` it has a word of obvious polarity (loves, hates, good, bad)."""
    agreeing, opposed = (words["praise"], words["blame"]) if favourable else (words["blame"], words["praise"])
    text = rng.choice(_OBVIOUS_OPINIONS if rng.random() < obvious_rate else _OPINIONS).format(
        person=rng.choice(PEOPLE),
        the=rng.choice(("the", "this")),
        thing=rng.choice(nouns(words, "tool", "garment")),
        told=rng.choice(("", "", "", "", "", "", "very ", "really ")) + rng.choice(agreeing),
        again=rng.choice(agreeing),
        opposite=rng.choice(opposed),
        loves="loves" if favourable else "hates",
        good="good" if favourable else "bad",
    )
    return sentence(text, speaker(rng))


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
    rate, *sections = _CHAPTERS[corpus]
    count = rng.randint(*sections) if rng.random() < rate else 1
    genres = rng.choices(list(_GENRES[corpus]), list(_GENRES[corpus].values()), k=count)
    lines = [line for genre in genres for line in _section(rng, genre)]
    if corpus == "web" and rng.random() < 0.1:
        site = "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3)))
        noise = rng.choice(_NOISE).format(person=rng.choice(PEOPLE), site=site, number=rng.randint(2, 99))
        lines.insert(rng.choice((0, len(lines))), sentence(noise))
    return " ".join(lines)


def _section(rng: random.Random, genre: Genre) -> list[str]:
    """Write the sentences of one genre about one thing, opinion or event."""
    if genre == "definitions":
        thing = rng.choice(nouns(WORDS))
        one, other = rng.sample((thing, FORMS[thing][1]), 2)
        named = {"one": one, "ones": plural(one), "other": other, "others": plural(other)}
        kinds = {"kind": KIND[thing], "kinds": plural(KIND[thing])}
        return [sentence(line.format(**named, **kinds)) for line in rng.sample(_DEFINITIONS, 3)]
    if genre == "opinions":
        favourable = rng.random() < 0.5
        return [review(rng, WORDS, favourable, obvious_rate=0.6) for _ in range(rng.randint(3, 5))]
    event, habit = draw_clause(rng, WORDS, not_rate=0.0 if genre == "questions" else 0.15), speaker(rng)
    said: list[tuple[str, Clause]] = [("", event)] * rng.randint(3, 5)
    if genre == "questions":
        asked = [sentence(say(event, shape), speaker(rng), "?") for shape in rng.choices(questions(event), k=2)]
        return [line for question in asked for line in (question, _told(rng, event, habit))]
    if genre == "restatement":
        said = [("", event), ("in other words , ", event)] * 2
    if genre == "argument":
        follows = [("so ", event), ("so ", weaken(rng, event)), ("it is false that ", contradict(rng, event))]
        said = [("", event), *rng.sample([*follows, ("maybe ", alter(rng, WORDS, event, 2, 3))], rng.randint(2, 3))]
    return [_told(rng, clause, habit, opening) for opening, clause in said]


def _told(rng: random.Random, clause: Clause, habit: Speaker, opening: str = "") -> str:
    """Say the clause mostly active, sometimes passive, as its author uses to or as somebody else would."""
    shape: Shape = "passive" if rng.random() < 0.05 else "active"
    return sentence(opening + say(clause, shape), habit if rng.random() < 0.4 else speaker(rng))
