"""The closing of a GLUE study: which point is best, written once; weights that nobody needs any more go. Torch-free."""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from neobert.errors import DamagedFile, MissingData
from neobert.files import require_digest, set_aside
from neobert.glue.tasks import SELECTION_RULES, decisive_score, task_named
from neobert.grid.claims import Claim, acquire
from neobert.grid.points import Report
from neobert.identity import plain
from neobert.layout import Layout
from neobert.progress import TrialFiles, encoded_task_path, is_closed, read_selection, selection_path, trial_files
from neobert.records import publish_sealed, read_record
from neobert.specifications import GlueStudy, read_run_file, run_folder
from neobert.stopping import StopRequest


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
        nested = _nested(self.layout, self.study)
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


def _nested(layout: Layout, study: GlueStudy) -> dict[str, Any]:
    """The score without the bias of the best, and how the halves were made; None with a reason where the examples or
    predictions of the trials are not kept."""
    from neobert.glue.encoding import load_encoded
    from neobert.glue.selection import HALVES, NESTED_RULE, best_of_grid

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
    from neobert.glue.selection import read_predictions

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
