"""A task as token ids: framed once, checked once, the same after storing, and never damaged without notice."""

import time
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.data.catalog import TASK_SPLITS
from neobert.data.synthetic import task_examples
from neobert.data.tokenizers import Framed, train_wordpiece
from neobert.errors import DamagedFile, MissingData
from neobert.executors.glue import _encoded_task
from neobert.glue.encoding import EncodedSplit, EncodedTask, encode_task, load_encoded, permutation, save_encoded
from neobert.glue.tasks import TASKS
from neobert.identity import NUMERICS
from neobert.processes import Stopped, StopRequest
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from tests.glue.glue_worlds import study_of
from tests.support.tiny_runs import WORLD, write_tiny_run


@pytest.fixture(scope="module")
def tokenizer():
    texts = [text for task in ("cola", "mnli") for text in task_examples(task, "train")[TASKS[task].columns[0]]]
    return train_wordpiece(texts, 400)


def examples_of(task):
    """The synthetic examples of every split, the first forty of each."""
    return {
        split: {column: values[:40] for column, values in task_examples(task, split).items()}
        for split in TASK_SPLITS[task]
    }


@pytest.mark.parametrize("most", [12, 64])
@pytest.mark.parametrize("name", TASKS)
def test_every_example_is_framed_as_the_tokenizer_frames_it(name, most, tokenizer):
    task, examples = TASKS[name], examples_of(name)
    encoded = encode_task(task, examples, tokenizer, most)
    assert list(encoded.splits) == list(task.splits)
    for split, content in encoded.splits.items():
        texts = zip(*(tokenizer.encode(examples[split][column]) for column in task.columns), strict=True)
        assert [content[i][0].tolist() for i in range(40)] == [tokenizer.frame(*ids, max_tokens=most) for ids in texts]
        assert content.labels.tolist() == pytest.approx(examples[split]["label"])
        assert content.token_ids.dtype == np.int32


def test_an_encoded_task_comes_back_from_equal_bytes_that_are_published_once(tmp_path, tokenizer):
    encoded = encode_task(TASKS["stsb"], examples_of("stsb"), tokenizer, 64)
    path = tmp_path / "data" / "stsb.safetensors"
    save_encoded(path, encoded)
    published = path.stat()
    save_encoded(path, encoded)
    assert path.stat() == published
    again = tmp_path / "again" / "stsb.safetensors"
    save_encoded(again, encode_task(TASKS["stsb"], examples_of("stsb"), tokenizer, 64))
    assert again.read_bytes() == path.read_bytes()
    loaded = load_encoded(path)
    assert loaded.task == encoded.task
    for split, content in encoded.splits.items():
        _assert_equal_arrays(loaded.splits[split], content)


def _assert_equal_arrays(found, expected):
    for part, array in vars(expected).items():
        again = getattr(found, part)
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)


def test_token_types_follow_their_tokens_into_the_file_and_into_subsets(tmp_path, tokenizer):
    class Typed:
        """Says which id is of a second text, as BERT's tokenizer does."""

        def frame_all(self, columns, *, max_tokens):
            framed = tokenizer.frame_all(columns, max_tokens=max_tokens)
            return [
                Framed(ids, [int(place > ids.index(tokenizer.ids.sep)) for place in range(len(ids))])
                for ids, _, _ in framed
            ]

    encoded = encode_task(TASKS["rte"], examples_of("rte"), Typed(), 64)
    save_encoded(tmp_path / "rte", encoded)
    train = load_encoded(tmp_path / "rte").splits["train"]
    _assert_equal_arrays(train, encoded.splits["train"])
    chosen = train.take(np.array([2, 0]))
    for row, example in enumerate((2, 0)):
        tokens = chosen[row][0].tolist()
        assert tokens == train[example][0].tolist()
        assert chosen[row][1].tolist() == [int(place > tokens.index(tokenizer.ids.sep)) for place in range(len(tokens))]


@pytest.mark.parametrize("damage", ["torn", "changed", "foreign"])
def test_a_damaged_file_is_noticed(tmp_path, tokenizer, damage):
    path = tmp_path / "cola"
    save_encoded(path, encode_task(TASKS["cola"], examples_of("cola"), tokenizer, 64))
    content = bytearray(path.read_bytes())
    if damage == "torn":
        content = content[:-20]
    elif damage == "changed":
        content[-5] ^= 1
    else:
        content = bytearray(b"not at all a file of tensors")
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=f"{path}.*remove it"):
        load_encoded(path)


def test_a_file_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(MissingData, match="not encoded yet"):
        load_encoded(tmp_path / "rte")


GOOD = {"sentence1": ["one", "two"], "sentence2": ["three", "four"], "label": [0, 1]}


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("mrpc", {"label": [0, 2]}, "MRPC train, row 1: label 2 is not one of 0, 1"),
        ("mrpc", {"label": [0, -1]}, "row 1: label -1 is not one of 0, 1"),
        ("mrpc", {"label": [0, None]}, "row 1: label None"),
        ("mrpc", {"label": [0.5, 1]}, "row 0: label 0.5"),
        ("mrpc", {"label": ["one", "1"]}, "row 0: label 'one'"),
        ("stsb", {"label": [0.5, Decimal("1.5")]}, r"row 1: label Decimal\('1.5'\) is not a finite number"),
        ("stsb", {"label": [0.5, float("nan")]}, "STS-B train, row 1: label nan is not a finite number"),
        ("mrpc", {"sentence2": ["three", None]}, "row 1: 'sentence2' is None, not a text"),
        ("mrpc", {"sentence2": ["three"]}, "column 'sentence2' has 1 rows, but 'label' has 2"),
        ("mrpc", {"sentence1": [], "sentence2": [], "label": []}, "MRPC train is empty"),
        *(("rte", {name: None}, f"RTE train has no column '{name}'") for name in GOOD),
    ],
)
def test_bad_columns_are_refused_with_the_place(tokenizer, task, change, message):
    """None stands for a column that is not there."""
    columns = {name: values for name, values in (GOOD | change).items() if values is not None}
    with pytest.raises(ValueError, match=message):
        encode_task(TASKS[task], {"train": columns, "validation": GOOD}, tokenizer, 32)


def test_a_stop_ends_the_encoding_and_leaves_no_file(tmp_path, tokenizer, monkeypatch):
    layout, stop = Layout(tmp_path), StopRequest()
    study = study_of(task_origin=WORLD.task_origin("cola"))
    run_file = read_run_file(write_tiny_run(tmp_path, study))
    monkeypatch.setattr("neobert.executors.glue.encode_task", lambda *_: stop.request() or time.sleep(60))
    with pytest.raises(Stopped, match="asked to stop while waiting for the tokens of CoLA"):
        _encoded_task(layout, run_file, SimpleNamespace(tokenizer=lambda source: tokenizer), stop)
    assert not study.encoded_task(layout).exists()


def test_tokens_of_a_later_tokenization_have_another_file(tmp_path, monkeypatch):
    layout = Layout(tmp_path)
    assert study_of().encoded_task(layout).name == "cola-ea6de8000f66.safetensors", "files that are there stay in use"
    monkeypatch.setitem(NUMERICS, "tokenization", 3)
    assert study_of().encoded_task(layout).name != "cola-ea6de8000f66.safetensors"


def test_a_missing_split_is_named(tokenizer):
    with pytest.raises(ValueError, match="MNLI has no split 'validation_mismatched'"):
        encode_task(TASKS["mnli"], {"train": {}, "validation_matched": {}}, tokenizer, 32)


def numbered(count):
    """A train split in which example i is i + 1 tokens of value i and has label i."""
    token_ids = np.concatenate([np.full(i + 1, i, np.int32) for i in range(count)])
    offsets = np.concatenate([[0], np.cumsum(np.arange(1, count + 1))])
    return EncodedTask(
        TASKS["cola"], {"train": EncodedSplit(token_ids, offsets, np.zeros_like(token_ids), np.arange(count))}
    )


@settings(max_examples=30)
@given(count=st.integers(2, 40), cap=st.integers(1, 39))
def test_a_cap_takes_the_first_of_one_permutation(count, cap):
    """Whole examples, none twice, a smaller cap inside a larger one, and not simply the first rows."""
    encoded = numbered(count)
    capped = encoded.train(cap)
    assert encoded.train(None) is encoded.train(count) is encoded.splits["train"]
    assert len(capped) == min(cap, count)
    assert len(set(capped.labels.tolist())) == len(capped)
    assert capped.labels.tolist() == encoded.train(min(cap + 1, count - 1)).labels.tolist()[:cap] or cap >= count - 1
    for example, label in enumerate(capped.labels):
        assert capped[example][0].tolist() == [label] * (label + 1)


def test_orders_are_golden():
    """Another order would be another experiment: see `identity.NUMERICS`."""
    assert numbered(10).train(4).labels.tolist() == [7, 9, 8, 5]
    assert permutation(8, (0, 0)).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert permutation(8, (0, 1)).tolist() == [5, 3, 7, 2, 4, 1, 0, 6]
    assert permutation(8, (1, 0)).tolist() == [3, 5, 2, 7, 0, 6, 1, 4]


@pytest.mark.parametrize(("name", "texts"), [("stsb", [*["3"] * 20, "2.5", "0", " 5 "]), ("sst2", ["0", "1", "1.0"])])
def test_labels_of_a_table_are_numbers_where_the_task_has_numbers(name, texts, tokenizer):
    task, numbers = TASKS[name], list(map(float, texts))
    examples = {column: ["a"] * len(texts) for column in task.columns}
    splits = {split: {**examples, "label": texts} for split in task.splits}
    encoded = encode_task(task, splits, tokenizer, 16)
    assert encoded.splits["train"].labels.tolist() == numbers
    for wrong in ("", "nan", "2,5", "three"):
        with pytest.raises(ValueError, match=f"row 1: label {wrong!r} is not"):
            encode_task(task, {**splits, "train": {**examples, "label": [texts[0], wrong, *texts[2:]]}}, tokenizer, 16)
