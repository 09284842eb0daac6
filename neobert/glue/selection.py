"""Which point of a grid is best, and how good it is on examples on which it was not chosen. Torch-free.

The best of a grid is biased upward: it is the highest of many noisy scores on the examples it is reported on. So the
nested score stands beside it: choose on one half of the validation examples, report the other, both ways round.
"""

import io
import statistics
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neobert.errors import DamagedFile
from neobert.files import require_digest
from neobert.glue.encoding import permutation
from neobert.glue.tasks import Task, decisive_score, task_named
from neobert.layout import Layout
from neobert.progress import TrialFiles
from neobert.recipe import Point
from neobert.records import read_record
from neobert.specifications import GlueStudy

if TYPE_CHECKING:
    from neobert.glue import metrics

Array = np.ndarray[Any, np.dtype[Any]]
Labels = Mapping[str, Array]
Scores = Mapping[Point, Mapping[int, float]]  # by point, in the order of the grid, and by seed; undefined ones left out

NO_ARCHIVE = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, MemoryError, OSError, RuntimeError, ValueError)
"""What numpy and zipfile raise where an archive in memory is damaged."""

HALVES_SEED = 0
HALVES = (
    f"first half of the order of Philox4x64's raw output with key ({HALVES_SEED}, number of examples), and the rest"
)
NESTED_RULE = "chosen on one half of the validation examples, reported on the other; mean of both ways round"


@dataclass(frozen=True)
class Best:
    """The best point of a grid: its scores by seed, and the nested score (None where a half has none)."""

    point: Point
    by_seed: Mapping[int, float]
    nested: float | None

    @property
    def mean(self) -> float:
        """The mean over seeds: the number that the paper prints (with one seed)."""
        return statistics.fmean(self.by_seed.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for a single one."""
        return statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


def best_point(scores: Scores) -> Point | None:
    """The point with most seeds, then the highest mean over them, then first in the grid; None where none has a score.

    A point that lacks a seed never beats one that has them all, so that luck with few seeds does not win.
    """
    scored = [point for point, by_seed in scores.items() if by_seed]
    return max(scored, key=lambda point: (len(scores[point]), statistics.fmean(scores[point].values())), default=None)


def halves(examples: int) -> tuple[Array, Array]:
    """Two disjoint halves of the numbers of examples, always the same for the same count."""
    order = permutation(examples, (HALVES_SEED, examples))
    return np.sort(order[: examples // 2]), np.sort(order[examples // 2 :])


def best_of_grid(layout: Layout, studies: Sequence[GlueStudy], labels: Labels) -> Best | None:
    """The best point of one grid on one model; `studies` are its seeds. None where no trial has a score yet.

    Only points that are recorded as done count.
    """
    recorded = Reached(studies)
    for study, files in _done(layout, studies):
        scores = read_record(files.record)["scores"]
        recorded.note(files.point, study.seed, decisive_score(study.task, study.protocol, scores), scores["score"])
    point = best_point(recorded.decisive)
    if point is None:
        return None
    return Best(point, recorded.score[point], _nested(layout, studies, labels))


class Reached:
    """What the points of a grid reached, seed by seed: by what they are chosen, and the score that is reported."""

    def __init__(self, studies: Sequence[GlueStudy]) -> None:
        points = [point for study in studies for point in study.points]
        self.decisive: dict[Point, dict[int, float]] = {point: {} for point in points}
        self.score: dict[Point, dict[int, float]] = {point: {} for point in points}

    def note(self, point: Point, seed: int, decisive: float | None, score: float | None) -> None:
        """Count a trial, unless it is undefined."""
        if decisive is not None and score is not None:
            self.decisive[point][seed], self.score[point][seed] = decisive, score


def _done(layout: Layout, studies: Sequence[GlueStudy]) -> list[tuple[GlueStudy, TrialFiles]]:
    everything = [(study, TrialFiles(layout, study, point)) for study in studies for point in study.points]
    return [
        (study, files)
        for study, files in everything
        if files.is_recorded and read_record(files.record)["state"] == "done"
    ]


def _nested(layout: Layout, studies: Sequence[GlueStudy], labels: Labels) -> float | None:
    """The mean of two scores: on the second half at the point chosen on the first, and the other way round."""
    task = task_named(studies[0].task)
    first, second = _reached_by_half(layout, studies, task, labels)
    reported = []
    for chosen_on, reported_on in ((first, second), (second, first)):
        point = best_point(chosen_on.decisive)
        if point is None or not reported_on.score[point]:
            return None
        reported.append(statistics.fmean(reported_on.score[point].values()))
    return statistics.fmean(reported)


def _reached_by_half(
    layout: Layout, studies: Sequence[GlueStudy], task: Task, labels: Labels
) -> tuple[Reached, Reached]:
    """What all points reached on each half, recomputed from the stored predictions."""
    both = Reached(studies), Reached(studies)
    parts = {split: halves(len(labels[split])) for split in task.validation_splits}
    for study, files in _done(layout, studies):
        predictions = read_predictions(files)
        for split, part in predictions.items():
            if len(part) != len(labels[split]):
                raise DamagedFile(f"{files.predictions} has {len(part)} predictions for {len(labels[split])} examples")
        for half, reached in enumerate(both):
            rows = {split: parts[split][half] for split in parts}
            scores = _scores_on(task, predictions, labels, rows)
            if scores is not None:
                metric = task.decisive_metric(study.protocol)
                reached.note(files.point, study.seed, scores.value(metric), scores.score)
    return both


def read_predictions(files: TrialFiles) -> dict[str, Array]:
    """What a finished trial predicted on each validation split.

    Raises:
        FileNotFoundError: that was not kept.
        DamagedFile: the file or the record is damaged, or they do not belong together.
    """
    digests = read_record(files.record).get("sha256", {})
    if files.predictions.exists():
        require_digest(files.predictions, digests.get("predictions"))
    return read_arrays(files.predictions, task_named(files.study.task).validation_splits)


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """The named arrays of an .npz file.

    Raises:
        FileNotFoundError: there is none.
        DamagedFile: it cannot be read, or has no such arrays.
    """
    content = io.BytesIO(path.read_bytes())
    try:
        with np.load(content, allow_pickle=False) as stored:
            return {name: stored[name] for name in names}
    except (*NO_ARCHIVE, AttributeError, TypeError) as error:
        raise DamagedFile(f"{path} cannot be read ({error})") from error


def _scores_on(
    task: Task, predictions: Mapping[str, Array], labels: Labels, rows: Mapping[str, Array]
) -> "metrics.Scores | None":
    if not all(len(chosen) for chosen in rows.values()):
        return None
    chosen_predictions = {split: predictions[split][rows[split]] for split in rows}
    from neobert.glue.metrics import evaluate  # scikit-learn, which reports do without

    return evaluate(task, chosen_predictions, {split: labels[split][rows[split]] for split in rows})
