"""Eight tasks in GLUE's own form: column names, label ids and split names of nyu-mll/glue.

Train sets name only the concepts of `Lexicon.part("train")`, validation sets only those of `part("validation")`.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from neobert.data.synthetic.acceptability import judged_sentence
from neobert.data.synthetic.grammar import (
    Clause,
    Wording,
    Words,
    active,
    askable,
    draw_clause,
    open_question,
    passive,
    sentence,
)
from neobert.data.synthetic.lexicon import Lexicon, Part, lexicon
from neobert.data.synthetic.meaning import alter_slots, contradict, leave_open, weaken
from neobert.data.synthetic.reviews import review

Example = tuple[tuple[str, ...], int | float]
Maker = Callable[[random.Random, Lexicon], Example]

VARIATION_RATE = 0.4
ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2


def _pair(rng: random.Random, first: Clause, second: Clause) -> tuple[str, str]:
    """Both clauses as sentences, the second partly in other words than the first."""
    wording = Wording(rng)
    said = sentence(active(first, wording))
    return said, sentence(active(second, wording.varied(VARIATION_RATE)))


def _cola(rng: random.Random, words: Lexicon) -> Example:
    judged = judged_sentence(rng, words)
    return (judged.text,), int(judged.violation is None)


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
    """Similarity 5 less a share for each altered slot."""
    clause = draw_clause(rng, words, transitive_rate=1.0, place_rate=1.0, adjective_rate=0.0)
    altered = rng.randint(0, 4)
    other = alter_slots(rng, words, clause, altered)
    return _pair(rng, clause, other), 5.0 - 1.25 * altered


def _inference(rng: random.Random, words: Lexicon, label: int) -> tuple[Clause, Clause]:
    premise = draw_clause(rng, words, transitive_rate=0.85, adjective_rate=0.6)
    premise = replace(premise, negated=rng.random() < 0.2)
    if label == ENTAILMENT:
        return premise, weaken(rng, premise) if rng.random() < 0.5 else premise
    if label == CONTRADICTION:
        return premise, contradict(rng, premise)
    return premise, leave_open(rng, words, premise)


def _mnli(rng: random.Random, words: Lexicon, *, mismatched: bool = False) -> Example:
    """The mismatched genre reports its premise (`anna says that …`) or puts it in the passive."""
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

TASK_SPLITS: dict[str, tuple[str, ...]] = {
    task: ("train", "validation_matched", "validation_mismatched") if task == "mnli" else ("train", "validation")
    for task in _TASKS
}


def example_counts(task: str) -> tuple[int, int]:
    """Examples of the train split and of all validation splits of a task together."""
    return _TASKS[task][2], _VALIDATION_EXAMPLES * (len(TASK_SPLITS[task]) - 1)


def task_examples(task: str, split: str, *, seed: int = 0) -> dict[str, list[Any]]:
    """Columns of one split of one task, by GLUE's names; no example occurs twice.

    Splits are `train` and `validation`, for mnli `train`, `validation_matched` and `validation_mismatched`.
    Raises ValueError for an unknown task or split.
    """
    if task not in TASK_SPLITS:
        raise ValueError(f"task {task!r} is not in the synthetic world; choose one of {', '.join(TASK_SPLITS)}")
    if split not in TASK_SPLITS[task]:
        known = ", ".join(TASK_SPLITS[task])
        raise ValueError(f"split {split!r} of task {task} is not in the synthetic world; choose one of {known}")
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
