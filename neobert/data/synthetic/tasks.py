"""Labelled data of the micro-world: eight tasks in GLUE's format, three sets of pairs, seven embedding tasks.

Train sets and pairs use only the concepts of `Lexicon.part("train")`, validation sets and embedding tasks only those of
`part("validation")`, so that scores are measured on unseen words. Column names, label ids and splits are those of
nyu-mll/glue and of mteb.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from neobert.data.catalog import TASK_SPLITS, require_split
from neobert.data.mteb_tasks import CATEGORY_FACTS, Category, EmbeddingTask, Table, TaskTables, checked_tables
from neobert.data.pairs import Pair
from neobert.data.synthetic.corpora import review
from neobert.data.synthetic.world import (
    PLURAL_DETERMINERS,
    SINGULAR_DETERMINERS,
    Asked,
    Clause,
    Lexicon,
    NounPhrase,
    Part,
    Slot,
    Wording,
    Words,
    active,
    alter,
    alter_slots,
    askable,
    contradict,
    draw_clause,
    draw_noun_phrase,
    leave_open,
    lexicon,
    open_question,
    passive,
    relative_clause,
    sentence,
    weaken,
)

Violation = Literal["agreement", "determiner", "valency", "order"]


def judged_sentence(rng: random.Random, words: Lexicon) -> tuple[str, Violation | None]:
    """Draw a sentence and the rule that it violates, None for an acceptable one (6 of 10)."""
    clause = _with_attractor(rng, words, draw_clause(rng, words, name_rate=0.0))
    if rng.random() < 0.6:
        return sentence(active(clause, Wording(rng))), None
    violation: Violation = rng.choice(("agreement", "agreement", "determiner", "valency", "order"))
    return _broken(rng, words, clause, violation), violation


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


Example = tuple[tuple[str, ...], int | float]
Maker = Callable[[random.Random, Lexicon], Example]

VARIATION_RATE = 0.4
FREE_VARIATION_RATE = 0.7
"""Rate at which the second sentence uses other synonyms than the first: in GLUE tasks, and in all others."""
ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2
_MOST_ALTERED = 4
"""Number of slots of a full clause."""


def _pair(rng: random.Random, first: Clause, second: Clause, rate: float = VARIATION_RATE) -> tuple[str, str]:
    """Return both clauses as sentences, the second with partly different synonyms."""
    wording = Wording(rng)
    said = sentence(active(first, wording))
    return said, sentence(active(second, wording.varied(rate)))


def _full_clause(rng: random.Random, words: Lexicon) -> Clause:
    """Draw a clause with every slot filled and no adjective."""
    return draw_clause(rng, words, transitive_rate=1.0, place_rate=1.0, adjective_rate=0.0)


def _similarity(altered: int) -> float:
    """Return the similarity of two clauses that differ in `altered` slots."""
    return 5.0 - 1.25 * altered


def _cola(rng: random.Random, words: Lexicon) -> Example:
    text, violation = judged_sentence(rng, words)
    return (text,), int(violation is None)


def _sst2(rng: random.Random, words: Lexicon) -> Example:
    favourable = rng.random() < 0.5
    return (review(rng, words, favourable, plain=True),), int(favourable)


def _mrpc(rng: random.Random, words: Lexicon) -> Example:
    clause, same = draw_clause(rng, words, transitive_rate=0.85), rng.random() < 0.6
    other = clause if same else alter_slots(rng, words, clause, rng.choice((2, 3)))
    return _pair(rng, clause, other), int(same)


def _qqp(rng: random.Random, words: Lexicon) -> Example:
    clause, same = draw_clause(rng, words, transitive_rate=1.0, adjective_rate=0.2), rng.random() < 0.4
    asked = rng.choice(askable(clause))
    other = clause if same else alter_slots(rng, words, clause, rng.choice((2, 3)))
    wording = Wording(rng)
    first = sentence(open_question(clause, asked, wording), "?")
    return (first, sentence(open_question(other, asked, wording.varied(VARIATION_RATE)), "?")), int(same)


def _stsb(rng: random.Random, words: Lexicon) -> Example:
    clause, altered = _full_clause(rng, words), rng.randint(0, _MOST_ALTERED)
    return _pair(rng, clause, alter_slots(rng, words, clause, altered)), _similarity(altered)


def _inference(rng: random.Random, words: Lexicon, label: int) -> tuple[Clause, Clause]:
    premise = draw_clause(rng, words, transitive_rate=0.85, adjective_rate=0.6)
    premise = replace(premise, negated=rng.random() < 0.2)
    if label == ENTAILMENT:
        return premise, weaken(rng, premise) if rng.random() < 0.5 else premise
    if label == CONTRADICTION:
        return premise, contradict(rng, premise)
    return premise, leave_open(rng, words, premise)


def _mnli(rng: random.Random, words: Lexicon, *, mismatched: bool = False) -> Example:
    """Draw an example; in the mismatched genre the premise is reported (`anna says that …`) or passive."""
    label = rng.randrange(3)
    premise, hypothesis = _inference(rng, words, label)
    wording = Wording(rng)
    said = _other_genre(rng, words, premise, wording) if mismatched else active(premise, wording)
    return (sentence(said), sentence(active(hypothesis, wording.varied(VARIATION_RATE)))), label


def _other_genre(rng: random.Random, words: Lexicon, premise: Clause, wording: Wording) -> Words:
    if premise.object and rng.random() < 0.3:
        return passive(premise, wording)
    return [rng.choice(words.names).name, "says", "that", *active(premise, wording)]


def _rte(rng: random.Random, words: Lexicon) -> Example:
    label = rng.randrange(2)
    premise, hypothesis = _inference(rng, words, rng.choice((NEUTRAL, CONTRADICTION)) if label else ENTAILMENT)
    return _pair(rng, premise, hypothesis), label


def _qnli(rng: random.Random, words: Lexicon) -> Example:
    clause, label = draw_clause(rng, words, transitive_rate=1.0, adjective_rate=0.2), rng.randrange(2)
    asked = rng.choice(askable(clause))
    told = alter_slots(rng, words, clause, rng.choice((2, 3))) if label else clause
    wording = Wording(rng)
    question = sentence(open_question(clause, asked, wording), "?")
    return (question, sentence(active(told, wording.varied(VARIATION_RATE)))), label


_SENTENCE, _SENTENCES = ("sentence",), ("sentence1", "sentence2")
_INFERENCE = ("premise", "hypothesis")

_TASKS: dict[str, tuple[tuple[str, ...], Maker, int]] = {
    "cola": (_SENTENCE, _cola, 1000),
    "sst2": (_SENTENCE, _sst2, 600),
    "mrpc": (_SENTENCES, _mrpc, 1000),
    "stsb": (_SENTENCES, _stsb, 1000),
    "qqp": (("question1", "question2"), _qqp, 1000),
    "mnli": (_INFERENCE, _mnli, 1000),
    "qnli": (("question", "sentence"), _qnli, 1000),
    "rte": (_SENTENCES, _rte, 600),
}
_VALIDATION_EXAMPLES = 300


def example_counts(task: str) -> tuple[int, int]:
    """Return the number of examples in the train split, and in all validation splits together."""
    return _TASKS[task][2], _VALIDATION_EXAMPLES * (len(TASK_SPLITS[task]) - 1)


def task_examples(task: str, split: str, *, seed: int = 0) -> dict[str, list[Any]]:
    """Return the columns of one split of a task, named as in GLUE; no example occurs twice. Raises ValueError if there
    is no such task or split."""
    require_split(task, split)
    columns, maker, train_examples = _TASKS[task]
    if split == "validation_mismatched":
        maker = partial(_mnli, mismatched=True)
    count = train_examples if split == "train" else _VALIDATION_EXAMPLES
    part: Part = "train" if split == "train" else "validation"
    rng = random.Random(f"synthetic task {task} {split} seed {seed}")
    examples = _distinct(rng, maker, lexicon().part(part), count)
    table = {column: [texts[i] for texts, _ in examples] for i, column in enumerate(columns)}
    return table | {"label": [label for _, label in examples], "idx": list(range(count))}


def _distinct(rng: random.Random, maker: Maker, words: Lexicon, count: int) -> list[Example]:
    found: dict[tuple[str, ...], Example] = {}
    while len(found) < count:
        example = maker(rng, words)
        found.setdefault(example[0], example)
    return list(found.values())


def _paraphrase(rng: random.Random, words: Lexicon) -> Pair:
    clause = draw_clause(rng, words, transitive_rate=0.85)
    return _said(rng, clause, clause, alter_slots(rng, words, clause, 1))


def _entailment(rng: random.Random, words: Lexicon) -> Pair:
    premise = draw_clause(rng, words, transitive_rate=0.85, adjective_rate=0.6)
    return _said(rng, premise, weaken(rng, premise), contradict(rng, premise))


def _said(rng: random.Random, query: Clause, document: Clause, negative: Clause) -> Pair:
    wording = Wording(rng)
    said = sentence(active(query, wording))
    varied = wording.varied(FREE_VARIATION_RATE)
    return Pair(said, sentence(active(document, varied)), (sentence(active(negative, varied)),))


def _answer(rng: random.Random, words: Lexicon) -> Pair:
    clause = draw_clause(rng, words, transitive_rate=1.0, adjective_rate=0.2)
    wording = Wording(rng)
    question = sentence(open_question(clause, rng.choice(askable(clause)), wording), "?")
    return Pair(question, sentence(active(clause, wording.varied(FREE_VARIATION_RATE))))


_SETS: dict[str, tuple[Callable[[random.Random, Lexicon], Pair], int, str]] = {
    "paraphrases": (_paraphrase, 2000, "find the same in other words"),
    "answers": (_answer, 1500, "given a question , find its answer"),
    "entailments": (_entailment, 1000, "given a sentence , find what follows from it"),
}

PAIR_SETS = tuple(_SETS)


def pair_instruction(name: str) -> str:
    """Return the instruction put before the queries of a set."""
    return _SETS[name][2]


def pairs(name: str) -> Iterator[Pair]:
    """Yield the pairs of one set of `PAIR_SETS`; no query occurs twice."""
    maker, count, _ = _SETS[name]
    rng, words, seen = random.Random(f"synthetic pairs {name} seed 0"), lexicon().part("train"), set[str]()
    while len(seen) < count:
        pair = maker(rng, words)
        if pair.query not in seen:
            seen.add(pair.query)
            yield pair


SYNTHETIC_SUITE = "synthetic"
TableMaker = Callable[[random.Random, Lexicon], Mapping[str, Table]]

_TRAIN_TEXTS, _TEST_TEXTS = 200, 300
_PAIRS = 300
_QUERIES, _DISTRACTORS = 80, 3
_DOCUMENTS, _SUMMARIES = 40, 3


def _opinions(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Make reviews, positive and negative."""

    def reviews(of: Lexicon, count: int) -> Table:
        labels = [number % 2 for number in range(count)]
        return {"text": [review(rng, of, bool(label), plain=True) for label in labels], "label": labels}

    return {"train": reviews(lexicon().part("train"), _TRAIN_TEXTS), "test": reviews(words, _TEST_TEXTS)}


def _things(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Make sentences about a thing, labelled with its kind, one of four."""
    kinds = sorted({noun.hypernym or "" for noun in words.nouns})
    objects = [draw_noun_phrase(rng, words.nouns, words.adjectives, adjective_rate=0.0) for _ in range(_TEST_TEXTS)]
    said = []
    for thing in objects:
        clause = Clause(NounPhrase(rng.choice(words.names)), rng.choice(words.transitive_verbs), thing)
        said.append(sentence(active(clause, Wording(rng))))
    return {"test": {"sentences": said, "labels": [kinds.index(thing.noun.hypernym or "") for thing in objects]}}


def _paraphrases(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Make pairs of sentences with the same meaning, or with one or two slots altered."""
    labels = [number % 2 for number in range(_PAIRS)]
    pairs = []
    for label in labels:
        clause = _full_clause(rng, words)
        other = clause if label else alter_slots(rng, words, clause, rng.choice((1, 2)))
        pairs.append(_pair(rng, clause, other, FREE_VARIATION_RATE))
    first, second = zip(*pairs, strict=True)
    return {"test": {"sentence1": list(first), "sentence2": list(second), "labels": labels}}


_TOLD: Mapping[Asked, tuple[Slot, ...]] = {
    "who": ("verb", "object"),
    "what": ("subject", "verb"),
    "where": ("subject", "verb", "object"),
}
"""Slots stated in each kind of question; a sentence that differs in one of them is not an answer."""


def _answers(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Make questions, their answers, and negatives that differ in a slot stated in the question."""
    table: dict[str, list[str | list[str]]] = {"query": [], "positive": [], "negative": []}
    for _ in range(_QUERIES):
        clause, wording = _full_clause(rng, words), Wording(rng)
        asked = rng.choice(askable(clause))
        table["query"].append(sentence(open_question(clause, asked, wording), "?"))
        others = [alter(rng, words, clause, rng.choice(_TOLD[asked])) for _ in range(2 * _DISTRACTORS)]
        answer, *negatives = (
            sentence(active(other, wording.varied(FREE_VARIATION_RATE))) for other in (clause, *others)
        )
        table["positive"].append([answer])
        table["negative"].append(list(dict.fromkeys(negatives)))
    return {"test": table}


def _meaning(clause: Clause) -> tuple[str, ...]:
    """Return the concepts of a clause; no two clauses of a corpus have the same ones."""
    assert clause.object is not None and clause.place is not None
    return clause.subject.noun.name, clause.verb.name, clause.object.noun.name, clause.place.name


def _retrieval(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Make query sentences, and a corpus with a paraphrase of each and near misses."""
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
    said = {id(clause): _pair(rng, clause, clause, FREE_VARIATION_RATE) for clause in meanings.values()}
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


def _similar(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Make pairs of sentences that differ in none to all of their slots."""
    altered = [rng.randint(0, _MOST_ALTERED) for _ in range(_PAIRS)]
    clauses = [_full_clause(rng, words) for _ in altered]
    pairs = [
        _pair(rng, clause, alter_slots(rng, words, clause, count), FREE_VARIATION_RATE)
        for clause, count in zip(clauses, altered, strict=True)
    ]
    first, second = zip(*pairs, strict=True)
    return {"test": {"sentence1": list(first), "sentence2": list(second), "score": list(map(_similarity, altered))}}


def _summaries(rng: random.Random, words: Lexicon) -> Mapping[str, Table]:
    """Make correct summaries of an event, and summaries with an increasing number of wrong slots."""
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
_EMBEDDINGS: tuple[tuple[str, Category, TableMaker, str], ...] = (
    ("SyntheticOpinionClassification", "classification", _opinions, "find the same opinion"),
    ("SyntheticThingClustering", "clustering", _things, "find the same kind of thing"),
    ("SyntheticParaphrasePairs", "pair_classification", _paraphrases, _SAME),
    ("SyntheticAnswerReranking", "reranking", _answers, "given a question , find its answer"),
    ("SyntheticParaphraseRetrieval", "retrieval", _retrieval, _SAME),
    ("SyntheticSentenceSimilarity", "sts", _similar, _SAME),
    ("SyntheticSummaryQuality", "summarization", _summaries, _SAME),
)
_TABLE_MAKERS = {name: maker for name, _, maker, _ in _EMBEDDINGS}

EMBEDDING_TASKS: tuple[EmbeddingTask, ...] = tuple(
    EmbeddingTask(
        name=name,
        category=category,
        suite=SYNTHETIC_SUITE,
        metric=CATEGORY_FACTS[category].metric,
        split="test",
        instruction=instruction,
    )
    for name, category, _, instruction in _EMBEDDINGS
)


def embedding_tables(name: str) -> TaskTables:
    """Return the tables of one of `EMBEDDING_TASKS`, the same bytes everywhere."""
    rng = random.Random(f"synthetic embedding task {name} seed 0")
    (category,) = (task.category for task in EMBEDDING_TASKS if task.name == name)
    return checked_tables(category, _TABLE_MAKERS[name](rng, lexicon().part("validation")), name)
