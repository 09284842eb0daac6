"""Tasks that a ladder declares: what can be declared, how it is scored, and that words are learned one by one."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn import metrics as sk

from neobert.data.tokenizers import train_wordpiece
from neobert.glue.batching import PackedLayout, PaddedLayout
from neobert.glue.encoding import UNREAD, EncodedTask, TaggedSplit, encode_task, load_encoded, save_encoded, true_labels
from neobert.glue.finetuning import FineTuner
from neobert.glue.metrics import evaluate, refuse_impossible_metrics, span_f1, spans
from neobert.glue.selection import halves, halves_of
from neobert.glue.tasks import Task
from neobert.model.build import build_token_classifier, initialize
from neobert.recipe import Initialization
from tests.glue.glue_worlds import CONTEXT, CPU, VOCABULARY, encoder_weights, point, protocol, study_of
from tests.support.tiny_runs import tiny_model

NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TAGS = Task(
    name="tags",
    kind="token_classification",
    columns=("words",),
    label_column="tags",
    classes=NAMES,
    metrics=("accuracy", "f1_macro", "span_f1"),
    folder="/somewhere",
)
REVIEWS = Task(
    name="reviews", kind="classification", columns=("text",), classes=("bad", "good"), metrics=("accuracy", "roc_auc")
)
STARS = Task(name="stars", kind="regression", columns=("text",), metrics=("r2", "pearson"))


# Declarations


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (TAGS, {"name": "My Tags"}, "'My Tags' cannot be the name of a task"),
        (TAGS, {"columns": ("words", "more")}, "has 2 columns, and token_classification reads one column of words"),
        (TAGS, {"columns": ()}, "has 0 columns"),
        (TAGS, {"classes": None}, "classes are for classification"),
        (TAGS, {"classes": ("O",)}, "needs two classes or more"),
        (TAGS, {"classes": (*NAMES, "O")}, "needs two classes or more, each once"),
        (TAGS, {"classes": ("O", "PER")}, "span_f1 is of tags like O, B-PER and I-PER of words, and the class 'PER'"),
        (TAGS, {"classes": 5}, "span_f1 is of tags"),
        (TAGS, {"metrics": ()}, "has no metric"),
        (TAGS, {"metrics": ("accuracy", "accuracy")}, "would have two scores of one name"),
        (TAGS, {"metrics": ("pearson",)}, "pearson is a metric of regression"),
        (TAGS, {"validation_splits": ("train",)}, "name one or more, and not 'train'"),
        (REVIEWS, {"classes": ("a", "b", "c"), "metrics": ("f1",)}, "f1 is that of class 1 of two: take f1_macro"),
        (STARS, {"classes": ("a", "b")}, "classes are for classification, and regression has none"),
        (STARS, {"colums": ("text",)}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_a_task_is_refused_in_a_sentence(task, changes, message):
    with pytest.raises(ValidationError, match=message):
        Task(**(dict(task) | changes))


@pytest.mark.parametrize(
    ("task", "metric", "message"),
    [
        (REVIEWS, "acuracy", "there is no metric 'acuracy': did you mean 'accuracy'"),
        (TAGS, "roc_auc", "roc_auc is no metric of 5 classes"),
        (TAGS, "precision", "precision is no metric of 5 classes"),
        (STARS, "accuracy_score", "there is no metric"),
        (STARS, "roc_auc", "roc_auc is no metric of values"),
    ],
)
def test_metrics_that_cannot_be_computed_are_refused(task, metric, message):
    with pytest.raises(ValueError, match=message):
        refuse_impossible_metrics(task.model_copy(update={"metrics": (metric,)}))


def test_what_decides_a_score_is_in_ids_and_the_place_of_the_files_is_not():
    """Of GLUE's tasks nothing is, so that their ids hold (tests/runs/test_identities.py)."""
    study = study_of(task="tags", own_task=TAGS)
    ids = {study.id} | {
        study_of(task="tags", own_task=TAGS.model_copy(update=changes)).id
        for changes in ({"metrics": ("accuracy",)}, {"label_column": "ner"}, {"classes": NAMES[::-1]})
    }
    assert len(ids) == 4
    moved = TAGS.model_copy(update={"folder": "/elsewhere", "starts_from": "mnli"})
    assert study_of(task="tags", own_task=moved).id == study.id
    read = type(study).read(json.loads(study.model_dump_json()))
    assert read.id == study.id and read.about.columns == ("words",) and read.about.folder == ""


# Scores


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), count=st.integers(20, 60))
def test_scores_of_words_are_scikit_learns_over_all_words(seed, count):
    rng = np.random.default_rng(seed)
    true, logits = rng.permutation(np.arange(count) % 5), rng.normal(size=(count, 5)).astype(np.float32)
    labels = np.stack([true, np.sort(rng.integers(0, 5, count))], axis=1)
    names = ("accuracy", "f1_macro", "f1_micro", "balanced_accuracy", "matthews", "roc_auc_ovr", "neg_log_loss")
    task = TAGS.model_copy(update={"metrics": names})
    found, chosen = evaluate(task, {"validation": logits}, {"validation": labels}), logits.argmax(1)
    probabilities = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(1, keepdims=True)
    expected = (
        sk.accuracy_score(true, chosen),
        sk.f1_score(true, chosen, average="macro"),
        sk.f1_score(true, chosen, average="micro"),
        sk.recall_score(true, chosen, average="macro"),
        sk.matthews_corrcoef(true, chosen),
        sk.roc_auc_score(true, probabilities, multi_class="ovr"),
        -sk.log_loss(true, probabilities),
    )
    assert found.metrics == pytest.approx(dict(zip(names, expected, strict=True)))
    assert found.score == pytest.approx(np.mean(expected))


def test_scores_of_texts_and_values_are_scikit_learns():
    rng = np.random.default_rng(0)
    true, logits = np.arange(30) % 2, rng.normal(size=(30, 2)).astype(np.float32)
    found = evaluate(REVIEWS, {"validation": logits}, {"validation": true})
    assert found.metrics["roc_auc"] == pytest.approx(sk.roc_auc_score(true, logits[:, 1] - logits[:, 0]))
    values, predicted = rng.normal(size=(2, 30))
    assert evaluate(STARS, {"validation": predicted}, {"validation": values}).metrics["r2"] == pytest.approx(
        sk.r2_score(values, predicted)
    )


def test_a_score_of_labels_that_lack_a_class_is_undefined():
    found = evaluate(REVIEWS, {"validation": np.eye(2, dtype=np.float32)}, {"validation": np.array([1, 1])})
    assert found.metrics == {"accuracy": 0.5, "roc_auc": None} and found.score is None


def test_the_example_of_seqevals_documentation():
    """Its README gives these two sentences, and 0.50."""
    true = ["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O", "B-PER", "I-PER", "O"]
    predicted = ["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O", "B-PER", "I-PER", "O"]
    assert span_f1(true, predicted, [0] * 7 + [1] * 3) == 0.5


def test_a_span_ends_with_its_sentence():
    assert list(spans(["B-PER", "I-PER"], [0, 1])) == [("PER", 0, 0), ("PER", 1, 1)]
    assert span_f1(["O"], ["O"], [0]) == 0.0, "as seqeval: nothing to find is not perfect"


IOBES = st.sampled_from(["O", *(f"{place}-{kind}" for place in "BIES" for kind in ("PER", "A-B"))])


@given(st.lists(IOBES, min_size=1, max_size=12), st.lists(IOBES, min_size=12))
def test_span_f1_is_the_harmonic_mean_of_precision_and_recall(true, predicted):
    predicted = predicted[: len(true)]
    assert list(spans(true, [0] * len(true))) == _seqeval_entities(true)
    wanted, found = (set(_seqeval_entities(tags)) for tags in (true, predicted))
    right = len(wanted & found)
    precision, recall = right / len(found) if found else 0, right / len(wanted) if wanted else 0
    expected = 2 * precision * recall / (precision + recall) if right else 0
    assert span_f1(true, predicted, [0] * len(true)) == pytest.approx(expected)


def _seqeval_entities(tags):
    """The rules of CoNLL's script, case by case: when a chunk ends before a tag, and when one begins at it."""
    found, begin, before, kind = [], 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        now, type_ = tag[0], tag[2:]
        ends = (before in "ES") or (before in "BI" and now in "BSO") or (before != "O" and kind != type_)
        starts = (now in "BS") or (before in "ESO" and now in "EI") or (now != "O" and kind != type_)
        if before != "O" and ends:
            found.append((kind, begin, place - 1))
        if starts:
            begin = place
        before, kind = now, type_
    return found


# Encoding and batches


SENTENCES = {
    "words": [["Ann", "saw", "Oslo"], ["it", "\x00", "rains", "often"], ["Bob"]],
    "tags": [["B-PER", "O", "B-LOC"], ["O", "O", "O", "O"], ["B-PER"]],
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(["ann saw oslo it rains often bob"] * 3, 60)


def encoded(tokenizer, most=32):
    return encode_task(TAGS, {"train": SENTENCES, "validation": SENTENCES}, tokenizer, most)


def test_every_word_has_its_label_and_its_place(tokenizer, tmp_path):
    task = encoded(tokenizer)
    train = task.splits["train"]
    assert train.labels.tolist() == [[1, 0], [0, 0], [3, 0], [0, 1], [0, 1], [0, 1], [0, 1], [1, 2]]
    assert train.places[4] == UNREAD and (np.delete(train.places, 4) > 0).all()
    save_encoded(tmp_path / "tags", task)
    again = load_encoded(tmp_path / "tags")
    assert again.task.tags_words and again.task.classes == NAMES
    for part, array in vars(again.splits["validation"]).items():
        np.testing.assert_array_equal(array, vars(task.splits["validation"])[part])


def test_a_subset_of_sentences_keeps_their_words(tokenizer):
    train = encoded(tokenizer).splits["train"]
    chosen = train.take(np.array([2, 0]))
    assert chosen.labels.tolist() == [[1, 0], [1, 1], [0, 1], [3, 1]]
    assert chosen.places.tolist() == [*train.places[7:], *train.places[:3]]
    assert chosen[0][0].tolist() == train[2][0].tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tags": [["B-PER", "O"], *SENTENCES["tags"][1:]]}, "row 0: 'words' has 3 words, and 'tags' has 2 labels"),
        ({"tags": ["O", *SENTENCES["tags"][1:]]}, "row 0: 'words' has 3 words, and 'tags' has 'O'"),
        ({"words": ["Ann saw Oslo", *SENTENCES["words"][1:]]}, "row 0: 'words' is 'Ann saw Oslo', not a list of words"),
        ({"words": [[], *SENTENCES["words"][1:]]}, r"row 0: 'words' is \[\], not a list of words"),
        (
            {"tags": [["B-PEr", "O", "O"], *SENTENCES["tags"][1:]]},
            "label 'B-PEr' is none of the classes of tags .*B-PER",
        ),
        (
            {"tags": [[1, 0, 0], *SENTENCES["tags"][1:]]},
            "label 1 is none of the classes of tags .write classes as their",
        ),
    ],
)
def test_words_and_labels_that_do_not_fit_are_refused_with_the_place(tokenizer, changes, message):
    with pytest.raises(ValueError, match=f"tags train, row 0.*{message.partition('row 0')[2] or message}"):
        encode_task(TAGS, {"train": SENTENCES | changes, "validation": SENTENCES}, tokenizer, 32)


def tagged_split(count, seed, classes=3):
    """Sentences of words of one or two pieces; the class of a word is that of its first piece, and of a word without a
    piece 0."""
    rng = np.random.default_rng(seed)
    texts, labels, places = [], [], []
    for sentence in range(count):
        text = [1]
        for _ in range(rng.integers(1, 9)):
            if rng.random() < 0.1:
                labels.append((0, sentence))
                places.append(UNREAD)
                continue
            first = int(rng.integers(5, VOCABULARY))
            labels.append((first % classes, sentence))
            places.append(len(text))
            text += [first, *([3] if rng.random() < 0.4 else [])]
        texts.append([*text, 2])
        if labels and labels[-1][1] != sentence:
            labels.append((0, sentence))
            places.append(UNREAD)
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    token_ids = np.concatenate(texts).astype(np.int32)
    return TaggedSplit(token_ids, offsets, np.zeros(len(token_ids), np.int8), np.array(labels), np.array(places))


def tagger(classes=3):
    start = Initialization(distribution="normal", weight_scale=0.2, embedding_scale=1.0, position_scale=1.0)
    model = tiny_model(
        dropout=0, initialization=start, vocabulary_size=VOCABULARY, width=32, feedforward_width=64, positions="rotary"
    )
    built = build_token_classifier(model, CONTEXT, classes, 0.1)
    initialize(built, start, 0)
    return built.eval()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 30))
def test_every_word_of_a_packed_batch_is_read_where_it_is_alone(seed, count):
    split, model = tagged_split(count, seed), tagger()
    examples = np.random.default_rng(seed).permutation(count)
    with torch.no_grad():
        batch = PackedLayout().collate(split, examples, CPU)
        together = PackedLayout().logits(model, batch, "cls")
        alone = []
        for example in examples:
            one = PackedLayout().collate(split, np.array([example]), CPU)
            hidden = model.model(one.token_ids, one.plan)[0]
            of_words = split.labels[:, 1] == example
            alone.append(model.head(hidden[split.places[of_words]]))
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)
    indices = split.targets(examples).indices
    assert batch.labels.tolist() == split.labels[indices, 0].tolist()
    assert sorted(indices) == list(range(len(split.labels)))


def test_a_padded_batch_reads_the_same_words():
    split = tagged_split(12, 3)
    states = torch.nn.Embedding(VOCABULARY, 4)
    model = SimpleNamespace(model=lambda ids, mask, types: states(ids), head=lambda hidden: hidden)
    examples, layout = np.array([3, 0, 7]), PaddedLayout(pad_id=0, most_tokens=CONTEXT)
    with torch.no_grad():
        logits = layout.logits(model, layout.collate(split, examples, CPU), "cls")
    ids = [
        int(split[example][0][place])
        for example in examples
        for place in split.places[split.labels[:, 1] == example].tolist()
    ]
    assert torch.equal(logits, states(torch.tensor(ids)))


def test_labels_of_words_are_learned_and_equal_runs_give_equal_bits():
    task = TAGS.model_copy(update={"classes": 3, "metrics": ("accuracy", "f1_macro")})
    content = EncodedTask(task, {"train": tagged_split(160, 1), "validation": tagged_split(40, 2)})
    study, model = protocol(dropout=0.1, epochs=5, classifier_scale=0.02), tagger()
    tuner = FineTuner(model, encoder_weights(model), content, study, CPU)
    first, again = (tuner.run(point(learning_rate=5e-3), 0) for _ in range(2))
    validation = content.splits["validation"]
    assert first.predictions["validation"].shape == (len(validation.labels), 3)
    guess = np.bincount(validation.true).max() / len(validation.true)
    assert first.metrics["accuracy"] > 0.95 > guess + 0.3
    assert first.score == again.score
    np.testing.assert_array_equal(first.predictions["validation"], again.predictions["validation"])


def test_halves_are_of_whole_sentences():
    labels = tagged_split(21, 4).labels
    first, second = halves_of(labels)
    assert sorted([*first, *second]) == list(range(len(labels)))
    assert not set(labels[first, 1]) & set(labels[second, 1])
    assert sorted(set(labels[first, 1])) == halves(21)[0].tolist()
    np.testing.assert_array_equal(halves_of(np.zeros(9))[0], halves(9)[0])


def test_names_of_classes_are_numbered_in_their_order():
    assert true_labels(REVIEWS, "here", {"label": ["good", "bad"]}).tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"here, row 0: label 'goood' is none of the classes of reviews .*'good'"):
        true_labels(REVIEWS, "here", {"label": ["goood"]})
