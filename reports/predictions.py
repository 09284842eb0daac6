"""Stored predictions and the labels they are scored on, as far as they lie below a folder of runs."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neobert.errors import DamagedFile, MissingData
from neobert.glue.encoding import load_encoded
from neobert.glue.tasks import TASKS
from neobert.layout import Layout
from neobert.progress import encoded_task_path
from neobert.specifications import GlueStudy

Array = np.ndarray[Any, np.dtype[Any]]


class StoredPredictions:
    """Reads each file once. What is not there is `MissingData`, whose sentence says what."""

    def __init__(self, root: Path, studies: Mapping[str, GlueStudy]) -> None:
        self._layout, self._studies = Layout(root), studies
        self._labels: dict[tuple[str, str], Mapping[str, Array]] = {}

    def labels(self, task: str, weights: str) -> Mapping[str, Array]:
        """The true labels of a task's validation splits, from the task as the studies on these weights encoded it.

        Raises:
            MissingData: it is not there or cannot be read.
        """
        own = [study for study in self._studies.values() if (study.task, study.weights) == (task, weights)]
        origins = sorted({study.task_origin for study in own})
        if len(origins) != 1:
            raise MissingData(f"the labels of {TASKS[task].title} are not known")
        return self.labels_of(task, origins[0])

    def labels_of(self, task: str, origin: str) -> Mapping[str, Array]:
        """The same for the bytes of a task.

        Raises:
            MissingData: it is not there or cannot be read.
        """
        if (task, origin) not in self._labels:
            self._labels[task, origin] = self._read_labels(task, origin)
        return self._labels[task, origin]

    def _read_labels(self, task: str, origin: str) -> Mapping[str, Array]:
        """As a collected folder has them, else from any encoding of the same examples: tokenizers change no label."""
        if (collected := self._layout.labels(task, origin)).is_file():
            return _arrays(collected, task)
        same = [study for study in self._studies.values() if (study.task, study.task_origin) == (task, origin)]
        for path in sorted({encoded_task_path(self._layout, study) for study in same}):
            try:
                return load_encoded(path).labels
            except (MissingData, DamagedFile):
                continue
        raise MissingData("labels of the examples are not kept")

    def of(self, task: str, trial_id: str) -> Mapping[str, Array]:
        """What a trial predicted, by validation split.

        Raises:
            MissingData: it is not there or cannot be read.
        """
        return _arrays(self._layout.trial(task, trial_id).with_suffix(".npz"), task)


def _arrays(path: Path, task: str) -> Mapping[str, Array]:
    """An array a validation split.

    Raises:
        MissingData: the file is not there or cannot be read.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {split: stored[split] for split in TASKS[task].validation_splits}
    except FileNotFoundError:
        raise MissingData("predictions are not kept") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise MissingData(f"{path.name} cannot be read: {error}") from error
