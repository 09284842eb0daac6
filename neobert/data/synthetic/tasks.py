"""Labelled data of the micro-world: eight tasks in GLUE's format, three sets of pairs, seven embedding tasks.

Train sets and pairs use only the words of `part("train")`, validation sets and embedding tasks only those of
`part("validation")`, so that scores are measured on unseen words. Column names, label ids and splits are those of
nyu-mll/glue and of mteb.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from neobert.data.catalog import TASK_SPLITS, require_split
from neobert.data.mteb_tasks import CATEGORY_FACTS, Category, EmbeddingTask, Table
from neobert.data.pairs import Pair
from neobert.data.synthetic.world import (
    KIND,
    MANY,
    NOUN_KINDS,
    ONE,
    PEOPLE,
    Clause,
    Shape,
    Slot,
    Words,
    alter,
    alter_slot,
    contradict,
    draw_clause,
    nouns,
    part,
    plural,
    questions,
    review,
    say,
    sentence,
    speaker,
    weaken,
)

Violation = Literal["agreement", "determiner", "order"]
Texts = tuple[str, ...]
Example = tuple[Texts, int | float]
Maker = Callable[[random.Random, Words], Example]

FREE = 0.7
"""Rate at which the second sentence uses other names than the first, where it is not the 0.4 of GLUE's tasks."""


def judged_sentence(rng: random.Random, words: Words) -> tuple[str, Violation | None]:
    """Draw a sentence and the rule that it violates, None for an acceptable one (6 of 10)."""
    clause = draw_clause(rng, words)
    said, many, verb = say(clause).split(), clause["determiner"] in MANY, clause["verb"]
    violation: Violation | None = None
    if rng.random() < 0.4:
        violation = rng.choice(("agreement", "agreement", "determiner", "order"))
    if violation == "agreement":
        right, wrong = (verb, plural(verb)) if many else (plural(verb), verb)
        said[said.index(right)] = wrong
    elif violation == "determiner":
        said[0] = rng.choice([word for word in (ONE if many else MANY) if word != "the"])
    elif violation == "order":
        first = rng.randrange(len(said) - 1)
        said[first : first + 2] = reversed(said[first : first + 2])
    return sentence(" ".join(said), speaker(rng)), violation


def _pair(rng: random.Random, first: str, second: str, rate: float = 0.4, ends: str = "..") -> tuple[str, str]:
    """Return both texts as sentences with these end marks, the second one in partly other names."""
    one = speaker(rng)
    return sentence(first, one, ends[0]), sentence(second, speaker(rng, one, rate), ends[1])


def _twice(rng: random.Random, words: Words, counts: tuple[int, ...], rate: float = 0.4) -> tuple[Texts, int]:
    """Say a clause and one that is altered in as many of its four slots as one of `counts` says; return that number."""
    clause, altered = draw_clause(rng, words, place_rate=1.0, adjective_rate=0.0), rng.choice(counts)
    return _pair(rng, say(clause), say(alter(rng, words, clause, altered)), rate), altered


def _similarity(altered: int) -> float:
    return 5.0 - 1.25 * altered


def _cola(rng: random.Random, words: Words) -> Example:
    text, violation = judged_sentence(rng, words)
    return (text,), int(violation is None)


def _sst2(rng: random.Random, words: Words) -> Example:
    favourable = rng.random() < 0.5
    return (review(rng, words, favourable),), int(favourable)


def _mrpc(rng: random.Random, words: Words) -> Example:
    clause, same = draw_clause(rng, words), rng.random() < 0.6
    return _pair(rng, say(clause), say(clause if same else alter(rng, words, clause, 2, 3))), int(same)


def _stsb(rng: random.Random, words: Words) -> Example:
    texts, altered = _twice(rng, words, (0, 1, 2, 3, 4))
    return texts, _similarity(altered)


def _question(rng: random.Random, words: Words, same: bool, shape: Shape | None = None) -> Texts:
    """Ask about a clause; add its statement or, in a shape, the question again, of it or of an altered clause."""
    clause = draw_clause(rng, words, adjective_rate=0.2)
    asked = rng.choice(questions(clause))
    other = clause if same else alter(rng, words, clause, 2, 3)
    return _pair(rng, say(clause, asked), say(other, shape or asked), ends="?." if shape else "??")


def _qqp(rng: random.Random, words: Words) -> Example:
    same = rng.random() < 0.4
    return _question(rng, words, same), int(same)


def _qnli(rng: random.Random, words: Words) -> Example:
    label = rng.randrange(2)
    return _question(rng, words, label == 0, "active"), label


def _inference(rng: random.Random, words: Words, label: int) -> tuple[Clause, Clause]:
    """Draw a premise and a hypothesis: entailed (0), neutral (1) or contradicted (2)."""
    premise = draw_clause(rng, words, adjective_rate=0.6, not_rate=0.2)
    if label == 0:
        return premise, weaken(rng, premise) if rng.random() < 0.5 else premise
    return premise, alter(rng, words, premise, 2, 3) if label == 1 else contradict(rng, premise)


def _mnli(rng: random.Random, words: Words, reported: str = "") -> Example:
    label = rng.randrange(3)
    premise, hypothesis = _inference(rng, words, label)
    return _pair(rng, reported + say(premise), say(hypothesis)), label


def _mismatched(rng: random.Random, words: Words) -> Example:
    """Draw an example of the mismatched genre, in which the premise is reported."""
    return _mnli(rng, words, f"{rng.choice(PEOPLE)} says that ")


def _rte(rng: random.Random, words: Words) -> Example:
    label = rng.randrange(2)
    premise, hypothesis = _inference(rng, words, rng.choice((1, 2)) if label else 0)
    return _pair(rng, say(premise), say(hypothesis)), label


_SENTENCES = ("sentence1", "sentence2")
_TASKS: dict[str, tuple[tuple[str, ...], Maker, int]] = {
    "cola": (("sentence",), _cola, 1000),
    "sst2": (("sentence",), _sst2, 600),
    "mrpc": (_SENTENCES, _mrpc, 1000),
    "stsb": (_SENTENCES, _stsb, 1000),
    "qqp": (("question1", "question2"), _qqp, 1000),
    "mnli": (("premise", "hypothesis"), _mnli, 1000),
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
    columns, maker, count = _TASKS[task]
    words = part("train")
    if split != "train":
        words, count = part("validation"), _VALIDATION_EXAMPLES
    rng = random.Random(f"synthetic task {task} {split} seed {seed}")
    labels: dict[Texts, int | float] = {}
    while len(labels) < count:
        texts, label = (_mismatched if split == "validation_mismatched" else maker)(rng, words)
        labels.setdefault(texts, label)
    table = {column: [texts[i] for texts in labels] for i, column in enumerate(columns)}
    return table | {"label": list(labels.values()), "idx": list(range(count))}


def _paraphrase(rng: random.Random, words: Words) -> tuple[str, ...]:
    clause = draw_clause(rng, words)
    return say(clause), say(clause), say(alter(rng, words, clause, 1))


def _entailment(rng: random.Random, words: Words) -> tuple[str, ...]:
    clause = draw_clause(rng, words, adjective_rate=0.6)
    return say(clause), say(weaken(rng, clause)), say(contradict(rng, clause))


def _answer(rng: random.Random, words: Words) -> tuple[str, ...]:
    clause = draw_clause(rng, words, adjective_rate=0.2)
    return say(clause, rng.choice(questions(clause))), say(clause)


_SAME, _ANSWER = "find the same in other words", "given a question , find its answer"
_SETS: dict[str, tuple[Callable[[random.Random, Words], tuple[str, ...]], int, str, str]] = {
    "paraphrases": (_paraphrase, 2000, ".", _SAME),
    "answers": (_answer, 1500, "?", _ANSWER),
    "entailments": (_entailment, 1000, ".", "given a sentence , find what follows from it"),
}

PAIR_SETS = tuple(_SETS)


def pair_instruction(name: str) -> str:
    """Return the instruction put before the queries of a set."""
    return _SETS[name][3]


def pairs(name: str) -> Iterator[Pair]:
    """Yield the pairs of one set of `PAIR_SETS`; no query occurs twice."""
    maker, count, end, _ = _SETS[name]
    rng, seen = random.Random(f"synthetic pairs {name} seed 0"), set[str]()
    while len(seen) < count:
        asked, *found = maker(rng, part("train"))
        one = speaker(rng)
        query, other = sentence(asked, one, end), speaker(rng, one, FREE)
        if query not in seen:
            seen.add(query)
            document, *negatives = (sentence(text, other) for text in found)
            yield Pair(query, document, tuple(negatives))


_ROWS = 300
_QUERIES = 80
TableMaker = Callable[[random.Random, Words], Mapping[str, Table]]


def _opinions(rng: random.Random, words: Words) -> Mapping[str, Table]:
    def reviews(of: Words, count: int) -> Table:
        labels = [number % 2 for number in range(count)]
        return {"text": [review(rng, of, bool(label)) for label in labels], "label": labels}

    return {"train": reviews(part("train"), 200), "test": reviews(words, _ROWS)}


def _things(rng: random.Random, words: Words) -> Mapping[str, Table]:
    """Make sentences about a thing, labelled with its kind."""
    things = [rng.choice(nouns(words)) for _ in range(_ROWS)]
    told = (f"{rng.choice(PEOPLE)} {plural(rng.choice(words['verb']))} {rng.choice(ONE)} {thing}" for thing in things)
    said = [sentence(text, speaker(rng)) for text in told]
    return {"test": {"sentences": said, "labels": [NOUN_KINDS.index(KIND[thing]) for thing in things]}}


def _compared(rng: random.Random, words: Words, counts: tuple[int, ...]) -> tuple[Table, list[int]]:
    pairs, altered = zip(*(_twice(rng, words, counts, FREE) for _ in range(_ROWS)), strict=True)
    return {f"sentence{i + 1}": [texts[i] for texts in pairs] for i in range(2)}, list(altered)


def _paraphrases(rng: random.Random, words: Words) -> Mapping[str, Table]:
    """Make pairs of sentences with the same meaning, or with one or two slots altered."""
    table, altered = _compared(rng, words, (0, 0, 1, 2))
    return {"test": {**table, "labels": [int(count == 0) for count in altered]}}


def _similar(rng: random.Random, words: Words) -> Mapping[str, Table]:
    """Make pairs of sentences that differ in none to all of their slots."""
    table, altered = _compared(rng, words, (0, 1, 2, 3, 4))
    return {"test": {**table, "score": list(map(_similarity, altered))}}


def _answers(rng: random.Random, words: Words) -> Mapping[str, Table]:
    """Make questions, their answers, and negatives that differ in a slot stated in the question."""
    told: dict[Shape, tuple[Slot, ...]] = {"who": ("verb", "object"), "what": ("subject", "verb")}
    table: dict[str, list[str | list[str]]] = {"query": [], "positive": [], "negative": []}
    for _ in range(_QUERIES):
        clause, one = draw_clause(rng, words, place_rate=1.0, adjective_rate=0.0), speaker(rng)
        asked = rng.choice(questions(clause))
        slots = told.get(asked, ("subject", "verb", "object"))
        others = [alter_slot(rng, words, clause, rng.choice(slots)) for _ in range(6)]
        answer, *negatives = (sentence(say(each), speaker(rng, one, FREE)) for each in (clause, *others))
        table["query"].append(sentence(say(clause, asked), one, "?"))
        table["positive"].append([answer])
        table["negative"].append(list(dict.fromkeys(negatives)))
    return {"test": table}


def _retrieval(rng: random.Random, words: Words) -> Mapping[str, Table]:
    """Make query sentences, and a corpus with a paraphrase of each and near misses, none with the same four words."""
    slots: tuple[Slot, ...] = ("subject", "verb", "object", "place")
    told: dict[tuple[str, ...], tuple[str, str]] = {}
    wanted: list[tuple[str, ...]] = []
    while len(wanted) < _QUERIES:
        clause = draw_clause(rng, words, place_rate=1.0, adjective_rate=0.0)
        meaning = tuple(clause[slot] for slot in slots)
        if meaning not in told:
            wanted.append(meaning)
            for each in (clause, *(alter(rng, words, clause, 1) for _ in range(3))):
                told.setdefault(tuple(each[slot] for slot in slots), _pair(rng, say(each), say(each), FREE))
    numbers = {meaning: f"d{number}" for number, meaning in enumerate(told)}
    queries = [f"q{number}" for number in range(_QUERIES)]
    relevant = [numbers[meaning] for meaning in wanted]
    return {
        "corpus": {"_id": list(numbers.values()), "text": [document for _, document in told.values()]},
        "queries_test": {"_id": queries, "text": [told[meaning][0] for meaning in wanted]},
        "qrels_test": {"query-id": queries, "corpus-id": relevant, "score": [1] * _QUERIES},
    }


def _summaries(rng: random.Random, words: Words) -> Mapping[str, Table]:
    """Make correct summaries of an event, and summaries with an increasing number of wrong slots."""
    table: dict[str, list[Any]] = {"text": [], "human_summaries": [], "machine_summaries": [], "relevance": []}
    for _ in range(40):
        clause = draw_clause(rng, words, place_rate=1.0, adjective_rate=0.0)
        right = [sentence(say(clause), speaker(rng)) for _ in range(3)]
        table["text"].append(" ".join(right))
        table["human_summaries"].append(right)
        wrong = [alter(rng, words, clause, count) for count in range(5)]
        table["machine_summaries"].append([sentence(say(each), speaker(rng)) for each in wrong])
        table["relevance"].append(list(map(_similarity, range(5))))
    return {"test": table}


_EMBEDDINGS: dict[str, tuple[Category, TableMaker, str]] = {
    "SyntheticOpinionClassification": ("classification", _opinions, "find the same opinion"),
    "SyntheticThingClustering": ("clustering", _things, "find the same kind of thing"),
    "SyntheticParaphrasePairs": ("pair_classification", _paraphrases, _SAME),
    "SyntheticAnswerReranking": ("reranking", _answers, _ANSWER),
    "SyntheticParaphraseRetrieval": ("retrieval", _retrieval, _SAME),
    "SyntheticSentenceSimilarity": ("sts", _similar, _SAME),
    "SyntheticSummaryQuality": ("summarization", _summaries, _SAME),
}

EMBEDDING_TASKS: tuple[EmbeddingTask, ...] = tuple(
    EmbeddingTask(
        name=name,
        category=category,
        suite="synthetic",
        metric=CATEGORY_FACTS[category].metric,
        split="test",
        instruction=instruction,
    )
    for name, (category, _, instruction) in _EMBEDDINGS.items()
)


def embedding_tables(name: str) -> Mapping[str, Table]:
    """Return the tables of one of `EMBEDDING_TASKS`, the same bytes everywhere."""
    _, maker, _ = _EMBEDDINGS[name]
    return maker(random.Random(f"synthetic embedding task {name} seed 0"), part("validation"))
