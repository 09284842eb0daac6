"""Seven small tasks of embeddings of the micro-world, one of each category of MTEB.

They name only concepts of `Lexicon.part("validation")`, so that pairs to train on (of the other part) share none of
their words; classification is learned from words of the one part and tested on those of the other.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neobert.data.embedding_tables import Table, TaskTables, checked_tables
from neobert.data.synthetic.grammar import (
    Asked,
    Clause,
    NounPhrase,
    Slot,
    Wording,
    active,
    askable,
    draw_clause,
    draw_noun_phrase,
    open_question,
    sentence,
)
from neobert.data.synthetic.lexicon import Lexicon, lexicon
from neobert.data.synthetic.meaning import alter, alter_slots
from neobert.data.synthetic.reviews import review
from neobert.embeddings.tasks import METRICS, EmbeddingTask
from neobert.result_records import Category

SYNTHETIC_SUITE = "synthetic"
VARIATION_RATE = 0.7

_TRAIN_TEXTS, _TEST_TEXTS = 200, 300
_PAIRS = 300
_QUERIES, _DISTRACTORS = 80, 3
_DOCUMENTS, _SUMMARIES = 40, 3
_MOST_ALTERED = 4

Maker = Callable[[random.Random, Lexicon], Mapping[str, Table]]


@dataclass(frozen=True)
class _Task:
    name: str
    category: Category
    maker: Maker
    instruction: str


def _opinions(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Reviews of two polarities."""

    def reviews(of: Lexicon, count: int) -> Table:
        labels = [number % 2 for number in range(count)]
        return {"text": [review(rng, of, bool(label), plain=True) for label in labels], "label": labels}

    return {"train": reviews(lexicon().part("train"), _TRAIN_TEXTS), "test": reviews(words, _TEST_TEXTS)}


def _things(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Somebody does something to a thing: of which of four kinds is it?"""
    kinds = sorted({noun.hypernym or "" for noun in words.nouns})
    objects = [draw_noun_phrase(rng, words.nouns, words.adjectives, adjective_rate=0.0) for _ in range(_TEST_TEXTS)]
    said = [_event(rng, words, thing) for thing in objects]
    return {"test": {"sentences": said, "labels": [kinds.index(thing.noun.hypernym or "") for thing in objects]}}


def _event(rng: random.Random, words: Lexicon, thing: NounPhrase) -> str:
    clause = Clause(NounPhrase(rng.choice(words.names)), rng.choice(words.transitive_verbs), thing)
    return sentence(active(clause, Wording(rng)))


def _full_clause(rng: random.Random, words: Lexicon) -> Clause:
    """A clause with every slot filled and no adjective."""
    return draw_clause(rng, words, transitive_rate=1.0, place_rate=1.0, adjective_rate=0.0)


def _pair(rng: random.Random, first: Clause, second: Clause) -> tuple[str, str]:
    """Both as sentences, the second mostly in other words than the first."""
    wording = Wording(rng)
    said = sentence(active(first, wording))
    return said, sentence(active(second, wording.varied(VARIATION_RATE)))


def _paraphrases(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Two sentences that say the same, or differ in one or two things."""
    labels = [number % 2 for number in range(_PAIRS)]
    pairs = []
    for label in labels:
        clause = _full_clause(rng, words)
        pairs.append(_pair(rng, clause, clause if label else alter_slots(rng, words, clause, rng.choice((1, 2)))))
    first, second = zip(*pairs, strict=True)
    return {"test": {"sentence1": list(first), "sentence2": list(second), "labels": labels}}


_TOLD: Mapping[Asked, tuple[Slot, ...]] = {
    "who": ("verb", "object"),
    "what": ("subject", "verb"),
    "where": ("subject", "verb", "object"),
}
"""What a question tells, so that a sentence that differs in it is no answer."""


def _answers(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """A question, its answer, and sentences that differ from it in something that the question tells."""
    table: dict[str, list[str | list[str]]] = {"query": [], "positive": [], "negative": []}
    for _ in range(_QUERIES):
        clause, wording = _full_clause(rng, words), Wording(rng)
        asked = rng.choice(askable(clause))
        table["query"].append(sentence(open_question(clause, asked, wording), "?"))
        others = [alter(rng, words, clause, rng.choice(_TOLD[asked])) for _ in range(2 * _DISTRACTORS)]
        answer, *negatives = (sentence(active(other, wording.varied(VARIATION_RATE))) for other in (clause, *others))
        table["positive"].append([answer])
        table["negative"].append(list(dict.fromkeys(negatives)))
    return {"test": table}


def _meaning(clause: Clause) -> tuple[str, ...]:
    """Which concepts a clause is about; two clauses that differ in none of them are never in one corpus."""
    assert clause.object is not None and clause.place is not None
    return clause.subject.noun.name, clause.verb.name, clause.object.noun.name, clause.place.name


def _retrieval(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Sentences, and a corpus in which each is said in other words, beside near misses."""
    meanings: dict[tuple[str, ...], Clause] = {}
    queries: list[Clause] = []
    while len(queries) < _QUERIES:
        clause = _full_clause(rng, words)
        if meanings.setdefault(_meaning(clause), clause) is clause:
            queries.append(clause)
            for _ in range(_DISTRACTORS):
                near = alter_slots(rng, words, clause, 1)
                meanings.setdefault(_meaning(near), near)
    numbers = {id(clause): number for number, clause in enumerate(meanings.values())}
    said = {id(clause): _pair(rng, clause, clause) for clause in meanings.values()}
    names = [f"q{number}" for number in range(_QUERIES)]
    return {
        "corpus": {
            "_id": [f"d{numbers[id(clause)]}" for clause in meanings.values()],
            "text": [said[id(clause)][1] for clause in meanings.values()],
        },
        "queries_test": {"_id": names, "text": [said[id(clause)][0] for clause in queries]},
        "qrels_test": {
            "query-id": names,
            "corpus-id": [f"d{numbers[id(clause)]}" for clause in queries],
            "score": [1] * _QUERIES,
        },
    }


def _similarity(altered: int) -> float:
    return 5.0 - 1.25 * altered


def _similar(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Similarity 5 less a share for each altered thing."""
    altered = [rng.randint(0, _MOST_ALTERED) for _ in range(_PAIRS)]
    clauses = [_full_clause(rng, words) for _ in altered]
    pairs = [
        _pair(rng, clause, alter_slots(rng, words, clause, count))
        for clause, count in zip(clauses, altered, strict=True)
    ]
    first, second = zip(*pairs, strict=True)
    return {"test": {"sentence1": list(first), "sentence2": list(second), "score": list(map(_similarity, altered))}}


def _summaries(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Good summaries of an event, and others that get more and more of it wrong."""
    human: list[list[str]] = []
    machine: list[list[str]] = []
    for _ in range(_DOCUMENTS):
        clause = _full_clause(rng, words)
        human.append([sentence(active(clause, Wording(rng))) for _ in range(_SUMMARIES)])
        wrong = [alter_slots(rng, words, clause, count) for count in range(_MOST_ALTERED + 1)]
        machine.append([sentence(active(other, Wording(rng))) for other in wrong])
    relevance = [[_similarity(count) for count in range(_MOST_ALTERED + 1)] for _ in range(_DOCUMENTS)]
    texts = [" ".join(summaries) for summaries in human]
    return {"test": {"text": texts, "human_summaries": human, "machine_summaries": machine, "relevance": relevance}}


_SAME = "find the same in other words"
_TASKS: Mapping[str, _Task] = {
    task.name: task
    for task in (
        _Task("SyntheticOpinionClassification", "classification", _opinions, "find the same opinion"),
        _Task("SyntheticThingClustering", "clustering", _things, "find the same kind of thing"),
        _Task("SyntheticParaphrasePairs", "pair_classification", _paraphrases, _SAME),
        _Task("SyntheticAnswerReranking", "reranking", _answers, "given a question , find its answer"),
        _Task("SyntheticParaphraseRetrieval", "retrieval", _retrieval, _SAME),
        _Task("SyntheticSentenceSimilarity", "sts", _similar, _SAME),
        _Task("SyntheticSummaryQuality", "summarization", _summaries, _SAME),
    )
}

EMBEDDING_TASKS: tuple[EmbeddingTask, ...] = tuple(
    EmbeddingTask(task.name, task.category, SYNTHETIC_SUITE, METRICS[task.category], "test", (), task.instruction)
    for task in _TASKS.values()
)


def embedding_tables(name: str, *, seed: int = 0) -> TaskTables:
    """The tables of one of `EMBEDDING_TASKS`; the same arguments give the same bytes everywhere."""
    task = _TASKS[name]
    rng = random.Random(f"synthetic embedding task {name} seed {seed}")
    return checked_tables(task.category, task.maker(rng, lexicon().part("validation")), name)
