"""Tasks as token ids: encoded once per tokenizer and length, and stored in one file shared by all grid points."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save

from neobert.data.reading import as_number
from neobert.data.streams import random_order
from neobert.data.tokenizers import Array, FramedTexts, Framing
from neobert.errors import DamagedFile, MissingData, did_you_mean
from neobert.files import is_there, publish_once
from neobert.glue.tasks import TRAIN, Task, declared_task
from neobert.identity import plain
from neobert.tensors import open_tensors

Examples = Mapping[str, Sequence[Any]]

CAP_KEY = (0, 2**64 - 1)
"""Key of the permutation whose first `train_examples` are used: the same in every study, and not that of an epoch."""

ENCODED_AT_ONCE = 8192


def permutation(count: int, key: tuple[int, int]) -> Array:
    """Return a permutation of the numbers below `count` that only depends on `key`."""
    return random_order(count, np.random.Philox(key=np.array(key, np.uint64)))


@dataclass(frozen=True, eq=False)
class EncodedSplit(FramedTexts):
    """The examples of a split; `labels`: (examples) int64 class ids or float32 values."""

    labels: Array

    def take(self, examples: Array) -> "EncodedSplit":
        """Return a split of the given examples, in this order."""
        slots = np.concatenate([np.arange(*self.offsets[example : example + 2]) for example in examples])
        offsets = np.concatenate([[0], np.cumsum(self.lengths[examples])])
        return EncodedSplit(self.token_ids[slots], offsets, self.token_types[slots], labels=self.labels[examples])


@dataclass(frozen=True, eq=False)
class EncodedTask:
    """A task with all its splits."""

    task: Task
    splits: dict[str, EncodedSplit]

    @property
    def validation(self) -> dict[str, EncodedSplit]:
        """The splits on which the task is scored, in the task's order."""
        return {name: self.splits[name] for name in self.task.validation_splits}

    @property
    def labels(self) -> dict[str, Array]:
        """The true labels of the validation splits."""
        return {name: split.labels for name, split in self.validation.items()}

    def train(self, examples: int | None) -> EncodedSplit:
        """Return the train split, or the first `examples` of its fixed permutation, so that smaller caps are nested."""
        split = self.splits[TRAIN]
        if examples is None or examples >= len(split):
            return split
        return split.take(permutation(len(split), CAP_KEY)[:examples])


def encode_task(task: Task, splits: Mapping[str, Examples], tokenizer: Framing, max_tokens: int) -> EncodedTask:
    """Tokenise the columns of every split of a task; examples longer than `max_tokens` are cut. Raises ValueError if a
    split or column is missing, empty or of another length, a value is not a text, or a label is out of range."""
    missing = [split for split in task.splits if split not in splits]
    if missing:
        raise ValueError(f"{task.title} has no split {missing[0]!r} (there: {', '.join(splits) or 'none'})")
    return EncodedTask(
        task, {name: _encode_split(task, name, splits[name], tokenizer, max_tokens) for name in task.splits}
    )


def _encode_split(task: Task, name: str, examples: Examples, tokenizer: Framing, max_tokens: int) -> EncodedSplit:
    labels = check_examples(task, f"{task.title} {name}", examples)
    parts: list[FramedTexts] = []
    for start in range(0, len(labels), ENCODED_AT_ONCE):
        columns = [list(examples[column][start : start + ENCODED_AT_ONCE]) for column in task.columns]
        parts.append(FramedTexts.of(tokenizer.frame_all(columns, max_tokens=max_tokens)))
    return EncodedSplit(**vars(FramedTexts.concatenate(parts)), labels=labels)


def check_examples(task: Task, where: str, examples: Examples) -> Array:
    """Check that a split can be learned and scored; return its `true_labels`. Raises ValueError as `check_columns` and
    `true_labels`, and if it has no labels, or the same one in all rows."""
    check_columns(task, where, examples)
    labels, column = true_labels(task, where, examples), task.label_column
    if (labels == labels[0]).all():
        raise ValueError(
            f"{where}: {column!r} is {examples[column][0]!r} in every row, which can be neither learned nor scored: "
            "put examples with other labels there"
        )
    return labels


def check_columns(task: Task, where: str, examples: Examples) -> None:
    """Raise ValueError if a column of a split is missing, empty or of another length, or a value is not a text."""
    of_labels = task.label_column
    for column in (of_labels, *task.columns):
        if column not in examples:
            raise ValueError(f"{where} has no column {column!r} (there: {', '.join(examples) or 'none'})")
    count = len(examples[of_labels])
    if count == 0:
        raise ValueError(f"{where} is empty: it needs at least one example")
    for column in task.columns:
        if len(examples[column]) != count:
            raise ValueError(
                f"{where}: column {column!r} has {len(examples[column])} rows, but {of_labels!r} has {count}"
            )
        for row, value in enumerate(examples[column]):
            if not isinstance(value, str):
                raise ValueError(f"{where}, row {row}: {column!r} is {value!r}, not a text")
        if not any(value.strip() for value in examples[column]):
            raise ValueError(f"{where}: {column!r} is empty in every row: name the column with the texts")


def true_labels(task: Task, where: str, examples: Examples) -> Array:
    """Return the labels of a split as in `EncodedSplit.labels`. Raises ValueError if one is not among the task's
    classes, or no finite number in regression."""
    column = "" if task.label_column == "label" else f", {task.label_column}"
    rows = enumerate(examples[task.label_column])
    labels = [_label(task, f"{where}, row {row}{column}", label) for row, label in rows]
    return np.asarray(labels, dtype=np.float32 if task.is_regression else np.int64)


def _label(task: Task, where: str, label: Any) -> Any:
    """Return a value, or the id of a class."""
    if isinstance(task.classes, tuple):
        if not isinstance(label, str) or label not in task.classes:
            is_number = isinstance(label, Real | np.bool_)
            hint = "write classes as their number" if is_number else did_you_mean(str(label), task.classes)
            raise ValueError(f"{where}: label {label!r} is none of the classes of {task.name} ({hint})")
        return task.classes.index(label)
    number = as_number(label)
    allowed = "a finite number" if task.is_regression else f"one of {', '.join(map(str, range(task.labels)))}"
    is_number = isinstance(number, Real | np.bool_)
    if not is_number or not (math.isfinite(number) if task.is_regression else number in range(task.labels)):
        raise ValueError(f"{where}: label {label!r} is not {allowed}")
    return number


def save_encoded(path: Path, encoded: EncodedTask) -> None:
    """Publish an encoded task as one safetensors file, unless another process was faster.

    The file's name identifies task, tokenizer and length (`GlueStudy.encoded_task`), and is stored in the file too.
    """
    arrays = {
        f"{split}/{part}": np.ascontiguousarray(array)
        for split, content in encoded.splits.items()
        for part, array in vars(content).items()
    }
    task = plain(encoded.task) if encoded.task.is_own else encoded.task.name
    header = {"task": task, "name": path.stem, "sha256": _digest(arrays)}
    publish_once(path, save(arrays, metadata={"encoded_task": json.dumps(header)}))


def load_encoded(path: Path) -> EncodedTask:
    """Load a task written by `save_encoded`.

    Raises:
        MissingData: there is no such file.
        DamagedFile: it is incomplete or does not match its checksum.
    """
    if not is_there(path):
        raise MissingData(f"{path} is not there: the task is not encoded yet")
    try:
        with open_tensors(path) as file:
            header = json.loads(file.metadata()["encoded_task"])
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
        task, sha256 = declared_task(header["task"]), header["sha256"]
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is no encoded task ({error}): remove it to encode the task again") from error
    if _digest(arrays) != sha256:
        raise DamagedFile(f"{path} does not match its checksum: remove it to encode the task again")
    parts = [field.name for field in fields(EncodedSplit)]
    splits = {split: EncodedSplit(*(arrays[f"{split}/{part}"] for part in parts)) for split in task.splits}
    return EncodedTask(task, splits)


def _digest(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(f"{key} {arrays[key].dtype} {arrays[key].shape} ".encode())
        digest.update(arrays[key].tobytes())
    return digest.hexdigest()
