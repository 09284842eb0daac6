"""The micro-world: concepts with synonyms, hypernyms, antonyms and facts; clauses, their wordings and entailments.

A `Clause` is a meaning. A `Wording` turns it into words by choosing a synonym for each concept, so one clause in a
wording and in a varied wording gives a paraphrase. Edits of a clause follow the logic of the world. A synonym preserves
truth. A hypernym, a dropped adjective or a dropped place follows from an affirmed clause. An antonym or a flipped
negation contradicts it. With altered slots, the truth stays open.

Every concept that can occur in fine-tuning data has two synonyms with the same inflections. Even-numbered concepts of a
kind occur in the train sets, odd-numbered ones in the validation sets (`Lexicon.part`), so that validation scores
measure what the model learned in pre-training about words that are absent from fine-tuning.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

Part = Literal["train", "validation"]

WORLD_SEED = 2026
"""Seed of the facts. It is a constant, so that documents and tasks of every seed are about the same world."""

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
    """Encyclopaedic facts about a noun: its usual place, quality, action and object of the action."""

    place: Concept
    adjective: Concept
    verb: Concept
    object: Concept


@dataclass(frozen=True)
class Lexicon:
    """Concepts that texts are drawn from; `part` restricts them to one side of the fine-tuning split."""

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
        """Return the concepts of one side of the split. Names, hypernyms and function words are on both sides."""
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
        """Return every form of every concept that is subject to the split."""
        concepts = (*self.nouns, *self.transitive_verbs, *self.intransitive_verbs, *self.places, *self.adjectives)
        forms = {word for concept in concepts for synonym in concept.synonyms for word in synonym}
        return frozenset(forms | set(self.praise) | set(self.blame))


def plural(word: str) -> str:
    """Return the regular plural or third person: dog → dogs, pony → ponies, brush → brushes."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def past(word: str) -> str:
    """Return the regular past: walk → walked, chase → chased."""
    return word + ("d" if word.endswith("e") else "ed")


def _concept(
    kind: str,
    words: str,
    *inflections: Callable[[str], str],
    hypernym: str | None = None,
    opposite: str | None = None,
) -> Concept:
    synonyms = tuple((word, *(inflect(word) for inflect in inflections)) for word in words.split())
    return Concept(kind, synonyms[0][0], synonyms, hypernym, opposite)


@cache
def lexicon(*, web: bool = False) -> Lexicon:
    """Return the words of the world; `web` adds the categories that only occur in the web corpus."""
    categories = [name for name in _CATEGORIES if web or name not in _WEB_ONLY_CATEGORIES]
    opposites = [pair for left, right in _OPPOSITES for pair in ((left, right), (right, left))]
    return Lexicon(
        nouns=tuple(
            _concept("noun", words, plural, hypernym=category)
            for category in categories
            for words in _CATEGORIES[category]
        ),
        transitive_verbs=tuple(_concept("transitive", words, plural, past) for words in _TRANSITIVE),
        intransitive_verbs=tuple(_concept("intransitive", words, plural, past) for words in _INTRANSITIVE),
        places=tuple(_concept("place", words) for words in _PLACES),
        adjectives=tuple(_concept("adjective", words, opposite=other.split()[0]) for words, other in opposites),
        praise=tuple(_PRAISE.split()),
        blame=tuple(_BLAME.split()),
        names=tuple(_concept("name", name) for name in _NAMES.split()),
    )


@cache
def category(name: str) -> Concept:
    """Return a hypernym as a noun without synonyms: animal, animals."""
    return _concept("noun", name, plural, hypernym=name)


@cache
def antonym(adjective: str) -> Concept:
    adjectives = {concept.name: concept for concept in lexicon(web=True).adjectives}
    return adjectives[adjectives[adjective].opposite or ""]


@cache
def facts() -> dict[str, Facts]:
    """Return the facts of each noun, by the noun's name."""
    rng, words = random.Random(f"facts of world {WORLD_SEED}"), lexicon(web=True)
    return {
        noun.name: Facts(
            place=rng.choice(words.places),
            adjective=rng.choice(words.adjectives),
            verb=rng.choice(words.transitive_verbs),
            object=rng.choice([other for other in words.nouns if other is not noun]),
        )
        for noun in words.nouns
    }


Words = list[str]
Asked = Literal["who", "what", "where"]
Slot = Literal["subject", "verb", "object", "place"]

SINGULAR_DETERMINERS = ("the", "a", "this")
PLURAL_DETERMINERS = ("the", "these", "two", "some")


@dataclass(frozen=True)
class NounPhrase:
    """A determiner, an optional adjective, a noun or name, and words after the noun (a relative clause)."""

    noun: Concept
    plural: bool = False
    determiner: str = "the"
    adjective: Concept | None = None
    modifier: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clause:
    """A meaning: subject, verb, object and place, and whether it is negated."""

    subject: NounPhrase
    verb: Concept
    object: NounPhrase | None = None
    place: Concept | None = None
    negated: bool = False


class Wording:
    """One speaker's choice of synonyms, drawn at a concept's first mention and kept afterwards."""

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
        """Return another speaker's wording: each concept mentioned so far changes its synonym at `rate`, at least one
        does."""
        names = list(self._chosen)
        changed = {name for name in names if self._rng.random() < rate} or {self._rng.choice(names)}
        return Wording(self._rng, {name: index ^ (name in changed) for name, index in self._chosen.items()})


def sentence(words: Sequence[str], end: str = ".") -> str:
    """Join words and the end mark with spaces, writing `a` before a vowel as `an`."""
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
    """Return `the dog chases a cat in the forest`; with `agreement=False` the verb has the wrong number."""
    as_plural = clause.subject.plural == agreement
    base, third, _ = wording.forms(clause.verb)
    verb = [_do(as_plural), "not", base] if clause.negated else [base if as_plural else third]
    return [*noun_phrase_words(clause.subject, wording), *verb, *_rest(clause, wording)]


def past_tense(clause: Clause, wording: Wording) -> Words:
    """Return `the dog chased a cat`, `the dog did not chase a cat`."""
    base, _, past = wording.forms(clause.verb)
    verb = ["did", "not", base] if clause.negated else [past]
    return [*noun_phrase_words(clause.subject, wording), *verb, *_rest(clause, wording)]


def passive(clause: Clause, wording: Wording) -> Words:
    """Return `a cat is chased by the dog`. The clause must have an object."""
    assert clause.object is not None
    be = "are" if clause.object.plural else "is"
    denial = ["not"] if clause.negated else []
    agent = ["by", *noun_phrase_words(clause.subject, wording), *place_words(clause.place, wording)]
    return [*noun_phrase_words(clause.object, wording), be, *denial, wording.forms(clause.verb)[2], *agent]


def polar_question(clause: Clause, wording: Wording) -> Words:
    """Return `does the dog chase a cat`."""
    subject = noun_phrase_words(clause.subject, wording)
    return [_do(clause.subject.plural), *subject, wording.forms(clause.verb)[0], *_rest(clause, wording)]


def open_question(clause: Clause, asked: Asked, wording: Wording) -> Words:
    """Return `who chases a cat`, `what does the dog chase` or `where does the dog chase a cat`."""
    base, third, _ = wording.forms(clause.verb)
    objects = noun_phrase_words(clause.object, wording) if clause.object else []
    if asked == "who":
        return ["who", third, *objects]
    inverted = [_do(clause.subject.plural), *noun_phrase_words(clause.subject, wording), base]
    return [asked, *inverted, *(objects if asked == "where" else [])]


def askable(clause: Clause) -> list[Asked]:
    """Return the open questions that a clause answers."""
    asked: list[Asked] = ["who", "what"] if clause.object else ["who"]
    return [*asked, "where"] if clause.place else asked


def _do(as_plural: bool) -> str:
    return "do" if as_plural else "does"


def _rest(clause: Clause, wording: Wording) -> Words:
    objects = noun_phrase_words(clause.object, wording) if clause.object else []
    return [*objects, *place_words(clause.place, wording)]


def draw_noun_phrase(
    rng: random.Random, nouns: Sequence[Concept], adjectives: Sequence[Concept], adjective_rate: float = 0.35
) -> NounPhrase:
    """Draw a phrase with one of `nouns`, an agreeing determiner and, at `adjective_rate`, one of `adjectives`."""
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
    """Draw a clause with an animate subject and, if transitive, an object that is a different concept."""
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
    """Draw `that chases the cats` or `near the cats`; its noun may differ from the head in number (an attractor)."""
    others = [noun for noun in words.nouns if noun is not head.noun]
    other = draw_noun_phrase(rng, others, words.adjectives, adjective_rate=0.0)
    if rng.random() < 0.4:
        return ("near", *noun_phrase_words(other, wording))
    verb = wording.forms(rng.choice(words.transitive_verbs))[0 if head.plural else 1]
    return ("that", verb, *noun_phrase_words(other, wording))


def alter(rng: random.Random, words: Lexicon, clause: Clause, slot: Slot) -> Clause:
    """Replace the concept in one filled slot of the clause by an unrelated one."""
    if slot == "verb":
        verbs = words.transitive_verbs if clause.object else words.intransitive_verbs
        return replace(clause, verb=_other(rng, verbs, clause.verb))
    if slot == "place":
        return replace(clause, place=_other(rng, words.places, clause.place))
    if slot == "subject":
        return replace(clause, subject=_other_noun(rng, words, clause.subject, clause.object))
    assert clause.object is not None
    return replace(clause, object=_other_noun(rng, words, clause.object, clause.subject))


def alter_slots(rng: random.Random, words: Lexicon, clause: Clause, count: int) -> Clause:
    """Alter `count` of the filled slots (all if there are fewer), the place last."""
    central: list[Slot] = ["subject", "verb", "object"] if clause.object else ["subject", "verb"]
    order = rng.sample(central, len(central))
    if clause.place:
        order.append("place")
    for slot in order[:count]:
        clause = alter(rng, words, clause, slot)
    return clause


def weaken(rng: random.Random, clause: Clause) -> Clause:
    """Return a clause that follows: a hypernym for a noun, or an adjective or the place left out. Negated clauses are
    unchanged."""
    if clause.negated:
        return clause
    edits = [replace(clause, subject=phrase) for phrase in _weaker_phrases(clause.subject)]
    if clause.object:
        edits += [replace(clause, object=phrase) for phrase in _weaker_phrases(clause.object)]
    if clause.place:
        edits.append(replace(clause, place=None))
    return rng.choice(edits) if edits else clause


def contradict(rng: random.Random, clause: Clause) -> Clause:
    """Return a clause that contradicts this one: an antonym (if it is affirmed) or the negation flipped."""
    antonyms = []
    if clause.subject.adjective and not clause.negated:
        antonyms.append(replace(clause, subject=_opposite(clause.subject, clause.subject.adjective)))
    if clause.object and clause.object.adjective and not clause.negated:
        antonyms.append(replace(clause, object=_opposite(clause.object, clause.object.adjective)))
    if antonyms and rng.random() < 0.6:
        return rng.choice(antonyms)
    return replace(clause, negated=not clause.negated)


def leave_open(rng: random.Random, words: Lexicon, clause: Clause) -> Clause:
    """Return a clause that neither follows nor contradicts: two or three slots are altered."""
    return alter_slots(rng, words, clause, rng.choice((2, 3)))


def _weaker_phrases(phrase: NounPhrase) -> list[NounPhrase]:
    found = [replace(phrase, adjective=None)] if phrase.adjective else []
    if phrase.noun.hypernym:
        found.append(replace(phrase, noun=category(phrase.noun.hypernym)))
    return found


def _opposite(phrase: NounPhrase, adjective: Concept) -> NounPhrase:
    return replace(phrase, adjective=antonym(adjective.name))


def _other(rng: random.Random, choices: tuple[Concept, ...], current: Concept | None) -> Concept:
    return rng.choice([concept for concept in choices if concept is not current])


def _other_noun(rng: random.Random, words: Lexicon, phrase: NounPhrase, partner: NounPhrase | None) -> NounPhrase:
    if phrase.noun.kind == "name":
        return replace(phrase, noun=_other(rng, words.names, phrase.noun))
    taken = [phrase.noun] + ([partner.noun] if partner else [])
    choices = [noun for noun in words.nouns if noun not in taken and noun.animate == phrase.noun.animate]
    return replace(phrase, noun=rng.choice(choices))
