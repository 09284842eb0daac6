"""What trials predicted on development examples, scored on resamples of them, as far as a folder of runs has it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neobert.errors import DamagedFile, MissingData
from neobert.glue.encoding import load_encoded
from neobert.glue.selection import read_arrays
from neobert.glue.tasks import TASKS
from neobert.runs.index import encoded_task_path
from neobert.runs.layout import Layout
from neobert.runs.specifications import GlueStudy
from reports.resampling import resampled_scores

Array = np.ndarray[Any, np.dtype[Any]]
RESAMPLED = "score"
"""The array of a collected trial: its score on each resample."""


class StoredPredictions:
    """Reads each file once. What is not there is `MissingData`, whose sentence says what."""

    def __init__(self, root: Path, studies: Mapping[str, GlueStudy]) -> None:
        self._layout, self._studies = Layout(root), studies
        self._labels: dict[tuple[str, str], Mapping[str, Array]] = {}
        self._resampled: dict[str, Array] = {}

    def labels(self, task: str, weights: str) -> Mapping[str, Array]:
        """The true labels of a task's validation splits, from the task as the studies on these weights encoded it.

        Raises:
            MissingData: it is not there or cannot be read.
        """
        own = [study for study in self._studies.values() if (study.task, study.weights) == (task, weights)]
        origins = sorted({study.task_origin for study in own})
        if len(origins) != 1:
            raise MissingData(f"the labels of {TASKS[task].title} are not known")
        if (task, origins[0]) not in self._labels:
            self._labels[task, origins[0]] = self._read_labels(task, origins[0])
        return self._labels[task, origins[0]]

    def _read_labels(self, task: str, origin: str) -> Mapping[str, Array]:
        """From any encoding of the same examples: tokenizer and length change no label."""
        same = [study for study in self._studies.values() if (study.task, study.task_origin) == (task, origin)]
        for path in sorted({encoded_task_path(self._layout, study) for study in same}):
            try:
                return load_encoded(path).labels
            except (MissingData, DamagedFile):
                continue
        raise MissingData("labels of the examples are not kept")

    def resampled(self, task: str, trial_id: str, weights: str) -> Array:
        """The score of a trial on each resample of the development examples, 0..1: (DRAWS). From a collected folder,
        else from its predictions.

        Raises:
            MissingData: these are not there or cannot be read.
        """
        if trial_id not in self._resampled:
            self._resampled[trial_id] = self._resample(task, trial_id, weights)
        return self._resampled[trial_id]

    def _resample(self, task: str, trial_id: str, weights: str) -> Array:
        collected = self._layout.resampled(task, trial_id)
        if collected.is_file():
            return _arrays(collected, [RESAMPLED])[RESAMPLED]
        predictions = _arrays(self._layout.trial(task, trial_id).with_suffix(".npz"), TASKS[task].validation_splits)
        try:
            return resampled_scores(TASKS[task], predictions, self.labels(task, weights))
        except ValueError as error:
            raise MissingData(str(error)) from error


def _arrays(path: Path, names: Sequence[str]) -> Mapping[str, Array]:
    """The named arrays of a file.

    Raises:
        MissingData: the file is not there or cannot be read.
    """
    try:
        return read_arrays(path, names)
    except FileNotFoundError:
        raise MissingData("predictions are not kept") from None
    except (DamagedFile, OSError) as error:
        raise MissingData(str(error).replace(f"{path.parent}/", "")) from error
