"""The synthetic micro-world: deterministic, GLUE-shaped, split by words, and grammatical where it says so."""

import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from neobert.data.catalog import TASK_SPLITS
from neobert.data.synthetic import CORPORA, corpus_documents, task_examples
from neobert.data.synthetic.tasks import judged_sentence
from neobert.data.synthetic.world import FORMS, KIND, MANY, NOUN_KINDS, ONE, WORDS, part, plural
from tests.embeddings.embedding_worlds import content_words

COLUMNS = {
    "cola": ["sentence", "label", "idx"],
    "sst2": ["sentence", "label", "idx"],
    "mrpc": ["sentence1", "sentence2", "label", "idx"],
    "stsb": ["sentence1", "sentence2", "label", "idx"],
    "qqp": ["question1", "question2", "label", "idx"],
    "mnli": ["premise", "hypothesis", "label", "idx"],
    "qnli": ["question", "sentence", "label", "idx"],
    "rte": ["sentence1", "sentence2", "label", "idx"],
}
CLASSES = {"cola": 2, "sst2": 2, "mrpc": 2, "qqp": 2, "mnli": 3, "qnli": 2, "rte": 2}
SPLITS = [(task, split) for task, splits in TASK_SPLITS.items() for split in splits]

DIGEST_PROGRAM = """
import hashlib, json
from neobert.data.synthetic import CORPORA, EMBEDDING_TASKS, corpus_documents, embedding_tables, task_examples
from neobert.data.catalog import TASK_SPLITS
texts = [list(corpus_documents(corpus, documents=200, seed=3)) for corpus in CORPORA]
tables = [task_examples(task, split, seed=3) for task, splits in TASK_SPLITS.items() for split in splits]
measured = [repr(embedding_tables(task.name)) for task in EMBEDDING_TASKS]
print(hashlib.sha256(json.dumps([texts, tables, measured]).encode()).hexdigest())
"""


@cache
def documents(corpus: str) -> list[str]:
    return list(corpus_documents(corpus, documents=3000))


@cache
def examples(task: str, split: str, seed: int = 0) -> dict[str, list[Any]]:
    return task_examples(task, split, seed=seed)


def texts_of(task: str, split: str, seed: int = 0) -> list[tuple[str, ...]]:
    table = examples(task, split, seed)
    columns = [column for column in table if column not in ("label", "idx")]
    return list(zip(*(table[column] for column in columns), strict=True))


def words_of(task: str, split: str) -> set[str]:
    return {word for texts in texts_of(task, split) for text in texts for word in text.split()}


def test_same_seed_gives_the_same_bytes_in_processes_with_different_hash_seeds() -> None:
    command = [sys.executable, "-c", DIGEST_PROGRAM]
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    processes = [subprocess.Popen(command, env=each, stdout=subprocess.PIPE, text=True) for each in environments]
    one, two = (process.communicate()[0] for process in processes)
    assert one == two != ""


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_longer_corpus_starts_with_the_shorter_one_and_another_seed_gives_another(corpus: str) -> None:
    short, long = list(corpus_documents(corpus, documents=20)), list(corpus_documents(corpus, documents=40))
    assert len(short) == 20 and long[:20] == short
    assert list(corpus_documents(corpus, documents=20, seed=1)) != short


@pytest.mark.parametrize("corpus", CORPORA)
def test_documents_are_spaced_lower_case_sentences(corpus: str) -> None:
    for document in documents(corpus)[:300]:
        assert re.fullmatch(r"[a-z0-9.,?]+( [a-z0-9.,?]+)* [.?]", document)
        assert not re.search(r"\ba [aeiou]", document) and not re.search(r"\ban [^aeiou]", document)


def test_documents_are_short_and_web_has_more_words_and_the_tail_that_a_long_context_stage_needs() -> None:
    corpora = {corpus: documents(corpus)[:2000] for corpus in CORPORA}
    vocabulary = {name: {word for text in texts for word in text.split()} for name, texts in corpora.items()}
    lengths = {name: sorted(len(text.split()) for text in texts) for name, texts in corpora.items()}
    assert all(statistics.median(each) < 48 for each in lengths.values())
    assert len(vocabulary["web"]) > 1.5 * len(vocabulary["wikibook"])
    assert lengths["web"][-40] > 1.5 * lengths["wikibook"][-40]
    assert lengths["web"][-200] > 64 and lengths["web"][-60] > 128 and lengths["web"][-1] > 200


@pytest.mark.parametrize(("task", "split"), SPLITS)
def test_tables_have_the_columns_labels_and_sizes_of_glue(task: str, split: str) -> None:
    table = examples(task, split)
    size = len(table["label"])
    assert list(table) == COLUMNS[task] and table["idx"] == list(range(size))
    assert {len(column) for column in table.values()} == {size}
    assert 600 <= size <= 1500 if split == "train" else size >= 300
    labels = table["label"]
    if task == "stsb":
        assert all(isinstance(label, float) for label in labels)
        assert min(labels) == 0.0 and max(labels) == 5.0 and 1.5 < statistics.mean(labels) < 3.5
    else:
        shares = [labels.count(label) / size for label in range(CLASSES[task])]
        assert sum(shares) == pytest.approx(1)
        assert min(shares) > 0.6 / CLASSES[task] and max(shares) < 1.4 / CLASSES[task], "no label is rare"


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("task", TASK_SPLITS)
def test_no_example_is_in_two_splits_or_twice_in_one(task: str, seed: int) -> None:
    examples = [texts for split in TASK_SPLITS[task] for texts in texts_of(task, split, seed)]
    assert len(set(examples)) == len(examples)


@pytest.mark.parametrize("task", TASK_SPLITS)
def test_nouns_verbs_places_adjectives_and_opinions_of_validation_never_occur_in_train(task: str) -> None:
    train, *validation = TASK_SPLITS[task]
    held_out, shown = content_words(part("validation")), content_words(part("train"))
    assert not held_out & shown
    assert not words_of(task, train) & held_out
    for split in validation:
        assert not words_of(task, split) & shown
        assert words_of(task, split) & held_out


@pytest.mark.parametrize("corpus", CORPORA)
def test_pre_training_shows_the_held_out_nouns_verbs_places_and_adjectives(corpus: str) -> None:
    shown = {word for text in documents(corpus) for word in text.split()}
    opinions = {*WORDS["praise"], *WORDS["blame"]}
    assert content_words(WORDS) - opinions <= shown


# An independent reading of the acceptable sentences: determiner, adjective, noun, verb, and again.
NAMES = {kind: {form for form, (word, _) in FORMS.items() if KIND[word] == kind} for kind in WORDS}
NOUNS = {name for kind in NOUN_KINDS for name in NAMES[kind]}
NUMBER = {noun: int(plural(noun) not in NOUNS) for noun in NOUNS}
VERBS = {verb: int(plural(verb) in NAMES["verb"]) for verb in NAMES["verb"]}
DETERMINERS = dict.fromkeys((*ONE, "an"), 0) | dict.fromkeys(MANY, 1)


class Broken(Exception):
    """A rule that a sentence breaks."""


def take_noun_phrase(words: list[str]) -> int:
    """Read a noun phrase from the front of `words`; its number, or Broken."""
    allowed = DETERMINERS.get(words.pop(0) if words else "")
    if words and words[0] in NAMES["adjective"]:
        words.pop(0)
    number = NUMBER.get(words.pop(0) if words else "")
    if allowed is None or number is None:
        raise Broken("order")
    if number != allowed:
        raise Broken("determiner")
    return number


def broken_rule(sentence: str) -> str | None:
    """The first rule that a sentence breaks, read from left to right; None for an acceptable one."""
    words = sentence.removesuffix(" .").split()
    try:
        number = take_noun_phrase(words)
        verb_number = VERBS.get(words.pop(0) if words else "")
        if verb_number is None:
            raise Broken("order")
        if verb_number != number:
            raise Broken("agreement")
        take_noun_phrase(words)
        if words and (words[:2] != ["in", "the"] or len(words) != 3 or words[2] not in NAMES["place"]):
            raise Broken("order")
    except Broken as broken:
        return str(broken)
    return None


def test_acceptable_sentences_follow_every_rule_and_unacceptable_ones_break_the_rule_they_are_labelled_with() -> None:
    rng = random.Random(0)
    judged = [judged_sentence(rng, WORDS) for _ in range(1500)]
    for text, violation in judged:
        found = broken_rule(text)
        assert found is not None if violation == "order" else found == violation, (text, violation)
    assert {violation for _, violation in judged} == {None, "agreement", "determiner", "order"}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: corpus_documents("wiki", documents=1), "choose one of wikibook, web"),
        (lambda: corpus_documents("web", documents=-1), "documents must not be negative"),
        (lambda: task_examples("wnli", "train"), "there is no task 'wnli'"),
        (lambda: task_examples("mnli", "validation"), "did you mean 'validation_matched'"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
