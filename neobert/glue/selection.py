"""Which point of a grid is best, and how good it is on examples on which it was not chosen. Torch-free.

The best of a grid is biased upward: it is the highest of many noisy scores on the examples it is reported on. So the
nested score stands beside it: choose on one half of the validation examples, report the other, both ways round.
"""

import io
import math
import os
import statistics
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neobert.errors import DamagedFile, MissingData
from neobert.files import require_digest, set_aside
from neobert.glue.encoding import permutation
from neobert.glue.tasks import SELECTION_RULES, Task, decisive_score, task_named
from neobert.identity import plain
from neobert.processes import StopRequest
from neobert.recipe import Point
from neobert.runs.claims import Claim, acquire
from neobert.runs.index import TrialFiles, encoded_task_path, is_closed, read_selection, selection_path, trial_files
from neobert.runs.layout import Layout
from neobert.runs.optuna_view import Report
from neobert.runs.records import publish_sealed, read_record
from neobert.runs.specifications import GlueStudy, read_run_file, run_folder

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


@dataclass(frozen=True)
class SelectionUnit:
    """The closing of a study: which point is best, written once when every point is recorded."""

    layout: Layout
    study: GlueStudy

    @property
    def id(self) -> str:
        return f"{self.study.id}-selection"

    @property
    def name(self) -> str:
        return f"selection of {self.study.task} on {self.study.weights}"

    @property
    def error_path(self) -> Path:
        return run_folder(self.layout, self.study) / "error.json"

    @property
    def grid_point(self) -> None:
        """None: the closing is no point of the grid."""

    def is_finished(self) -> bool:
        return is_closed(self.layout, self.study)

    def is_ready(self) -> bool:
        return all(files.is_recorded for files in trial_files(self.layout, self.study))

    def run(self, claim: Claim, stop: StopRequest, report: Report) -> None:
        """Choose by the study's rule and publish the choice, with everything that decided it.

        Where predictions are damaged, their trials are to run again first: nothing is chosen yet.
        """
        if redo_damaged(self.layout, self.study):
            return
        best, score = _best(self.layout, self.study)
        nested = _closing_nested(self.layout, self.study)
        claim.check()
        content = {
            "study": self.study.id,
            "trial": best.id,
            "point": plain(best.point),
            "score": score,
            "rule": SELECTION_RULES[self.study.protocol.decisive_metric],
            "grid": plain(self.study.points),
            "starts_from": plain(self.study.starts_from),
            "scored_on": {"origin": self.study.task_origin, "splits": task_named(self.study.task).validation_splits},
            "nested": nested,
        }
        publish_sealed(selection_path(self.layout, self.study), content)


def _closing_nested(layout: Layout, study: GlueStudy) -> dict[str, Any]:
    """The score without the bias of the best, and how the halves were made; None with a reason where the examples or
    predictions of the trials are not kept."""
    from neobert.glue.encoding import load_encoded

    score, reason = None, None
    try:
        best = best_of_grid(layout, [study], load_encoded(encoded_task_path(layout, study)).labels)
        score = None if best is None else best.nested
    except (MissingData, DamagedFile, FileNotFoundError):
        reason = "the encoded task or the stored predictions are not there"
    return {"score": score, "reason": reason, "rule": NESTED_RULE, "halves": HALVES}


def _best(layout: Layout, study: GlueStudy) -> tuple[TrialFiles, float | None]:
    """The trial that the study's rule chooses among those recorded, and its score. What is undefined is lowest."""
    recorded = [
        (files, read_record(files.record)["scores"]) for files in trial_files(layout, study) if files.is_recorded
    ]
    files, scores = max(recorded, key=lambda pair: _rank(study, pair[1]))
    return files, scores["score"]


def _rank(study: GlueStudy, scores: Mapping[str, Any]) -> float:
    value = decisive_score(study.task, study.protocol, scores)
    return -math.inf if value is None else value


def drop_beaten_weights(layout: Layout, study: GlueStudy) -> None:
    """Keep weights only of trials that are the best so far in some study; grids share trials, so all studies count.

    Where a study cannot be read, the weights of all stay.
    """
    # Listed before the best is looked up: a record that another worker publishes in between must not count as beaten.
    finished = [files for files in trial_files(layout, study) if files.is_recorded]
    try:
        studies = [other for other in _studies(layout, study.task) if other.weights == study.weights]
    except DamagedFile:
        return
    kept = {_best(layout, other)[0].id for other in studies if _has_records(layout, other)}
    for files in finished:
        if files.id not in kept:
            files.weights.unlink(missing_ok=True)


def _studies(layout: Layout, task: str) -> list[GlueStudy]:
    folders = (layout.root / "glue" / task / "studies").glob("*/run.json")
    return [study for path in folders if (study := read_run_file(path.parent).study) is not None]


def _has_records(layout: Layout, study: GlueStudy) -> bool:
    return any(files.is_recorded for files in trial_files(layout, study))


def selection_of(layout: Layout, task: str, study_id: str) -> Path:
    """The file that closes a study of which only the name is known."""
    return layout.study(task, study_id) / "selection.json"


def best_weights(layout: Layout, task: str, study_id: str) -> Path:
    """The weights of the trial that a closed study chose, held against its record.

    Raises:
        DamagedFile: they are damaged or gone; the trial and the choice are set aside, to be made again.
    """
    study = read_run_file(layout.study(task, study_id)).study
    assert study is not None
    trial = read_selection(selection_path(layout, study))["trial"]
    files = next((files for files in trial_files(layout, study) if files.id == trial), None)
    if files is None:
        raise DamagedFile(f"{selection_path(layout, study)} names {trial}, which is no trial of its study: remove it")
    if _redo_if_damaged(files, files.weights, partial(_require_weights, files)):
        raise DamagedFile(f"{files.weights} was damaged: the same command runs its trial again, then goes on")
    return files.weights


def _require_weights(files: TrialFiles) -> None:
    require_digest(files.weights, read_record(files.record).get("sha256", {}).get("weights"))


def redo_damaged(layout: Layout, study: GlueStudy) -> bool:
    """Set finished trials with damaged predictions aside, so that they run again; whether there was any."""
    done = [files for files in trial_files(layout, study) if files.is_recorded]
    redone = [_redo_if_damaged(files, files.predictions, partial(_require_predictions, files)) for files in done]
    return any(redone)


def _require_predictions(files: TrialFiles) -> None:

    try:
        read_predictions(files)
    except FileNotFoundError:  # not kept: then nothing is read of them
        return


def _redo_if_damaged(files: TrialFiles, path: Path, check: Callable[[], None]) -> bool:
    """Whether `check` finds a file of a finished trial damaged. Then that file, the trial's record and its study's
    choice are set aside, unless somebody works on these just now."""
    if _damage(check) is None:
        return False
    layout, study = files.layout, files.study
    with ExitStack() as held:
        units = [files.id, *([f"{study.id}-selection"] if is_closed(layout, study) else [])]
        claims = [acquire(layout.claims(unit)) for unit in units]
        for claim in filter(None, claims):
            held.enter_context(claim)
        reason = _damage(check)
        if None not in claims and reason is not None:
            for each in (selection_path(layout, study), files.record, path):
                if os.path.lexists(each):
                    set_aside(each, reason)
    return True


def _damage(check: Callable[[], None]) -> str | None:
    try:
        check()
    except DamagedFile as error:
        return str(error)
    return None
