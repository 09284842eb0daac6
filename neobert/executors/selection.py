"""Selection of the best point of a grid or search from the records of its trials, and clean-up of the other weights.

Torch-free.
"""

import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from neobert.errors import DamagedFile, MissingData, RunFailed
from neobert.files import is_there, matching, names_in, require_digest, set_aside
from neobert.glue.encoding import Array, load_encoded
from neobert.glue.selection import (
    HALVES,
    NESTED_RULE,
    Best,
    Labels,
    TrialScore,
    best_point,
    halves,
    nested_score,
    score_on,
)
from neobert.glue.tasks import SELECTION_RULES
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy, Trial
from neobert.runs.claims import Claim, acquire
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed, read_once, read_record
from neobert.runs.run_file import read_run_file


def best_trial(layout: Layout, study: GlueStudy) -> tuple[Trial, float | None]:
    """Return the best finished trial of a study and its score; the first trial if none has a defined score. Of a search
    it is the one with the first seed at the best point, and the score is the mean over seeds.

    Raises RunFailed if a pruner ended all trials of a search.
    """
    finished = [(trial, _recorded_score(trial)) for trial in study.finished_trials(layout)]
    if not finished:
        raise RunFailed(f"the pruner ended every trial of {study.title}: search again without one")
    point = best_point(study.compared_points(layout), ((each.point, each.decisive) for _, each in finished))
    if point is None:
        return finished[0][0], finished[0][1].score
    best = [(trial, reached.score) for trial, reached in finished if trial.point == point]
    scores = [score for _, score in best if score is not None]
    return best[0][0], statistics.fmean(scores) if scores else None


def best_of_grid(layout: Layout, studies: Sequence[GlueStudy], labels: Labels | None = None) -> Best | None:
    """Return the best point of one grid on one model, or None if no trial has a score yet. `studies` are the seeds of
    the grid, or one search. Without `labels` there is no nested score, and no predictions are read."""
    points = [point for study in studies for point in study.compared_points(layout)]
    trials = [trial for study in studies for trial in study.finished_trials(layout)]
    reached = [_recorded_score(trial) for trial in trials]
    point = best_point(points, ((each.point, each.decisive) for each in reached))
    by_seed = {each.seed: each.score for each in reached if each.point == point and each.score is not None}
    if point is None or not by_seed:
        return None
    nested = None if labels is None else nested_score(points, *_scores_by_half(trials, labels))
    return Best(point, by_seed, nested)


def _recorded_score(trial: Trial) -> TrialScore:
    outcome, study = trial.outcome, trial.study
    if outcome is None:
        raise DamagedFile(f"{trial.record} was set aside or damaged meanwhile: the same command runs its trial again")
    scores = outcome.scores
    return TrialScore(trial.point, study.seed, study.about.decisive_score(study.protocol, scores), scores["score"])


def _scores_by_half(trials: Sequence[Trial], labels: Labels) -> tuple[list[TrialScore], list[TrialScore]]:
    """Recompute the scores of all trials on each half from their stored predictions."""
    by_half: tuple[list[TrialScore], list[TrialScore]] = [], []
    for trial in trials:
        predictions = read_predictions(trial)
        for split, part in predictions.items():
            if len(part) != len(labels[split]):
                raise DamagedFile(f"{trial.predictions} has {len(part)} predictions for {len(labels[split])} examples")
        parts = {split: halves(len(labels[split])) for split in predictions}
        for half, reached in enumerate(by_half):
            rows = {split: parts[split][half] for split in parts}
            if all(len(chosen) for chosen in rows.values()):
                about, protocol = trial.study.about, trial.study.protocol
                decisive, score = score_on(about, protocol, predictions, labels, rows)
                reached.append(TrialScore(trial.point, trial.study.seed, decisive, score))
    return by_half


def read_predictions(trial: Trial) -> dict[str, Array]:
    """Return the predictions of a finished trial on each validation split.

    Raises:
        FileNotFoundError: they were not kept.
        DamagedFile: the file or the record is damaged, or they do not match.
    """
    digests = read_record(trial.record).get("sha256", {})
    if is_there(trial.predictions):
        require_digest(trial.predictions, digests.get("predictions"))
    return read_arrays(trial.predictions, trial.study.about.validation_splits)


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Read the named arrays of an .npz file.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedFile: it cannot be read, or lacks an array.
    """
    content = io.BytesIO(path.read_bytes())
    try:
        with np.load(content, allow_pickle=False) as stored:
            return {name: stored[name] for name in names}
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged archive
        raise DamagedFile(f"{path} cannot be read ({error})") from error


def select(layout: Layout, study: GlueStudy, claim: Claim) -> None:
    """Publish the trial chosen by the study's rule, with everything that the choice depends on.

    If predictions are damaged, nothing is published, because their trials have to run again first.
    """
    if redo_damaged(layout, study):
        return
    best, score = best_trial(layout, study)
    pruned = [plain(each.point) for each in study.search_trials(layout) if each.state == "pruned"]
    content = {
        "study": study.id,
        "trial": best.id,
        "point": plain(best.point),
        "score": score,
        "rule": SELECTION_RULES[study.protocol.decisive_metric],
        "grid": plain(study.compared_points(layout)),
        **({} if study.search is None else {"search": plain(study.search), "pruned": pruned}),
        "starts_from": plain(study.starts_from),
        "scored_on": {"origin": study.task_origin, "splits": study.about.validation_splits},
        "nested": _nested_of_study(layout, study),
    }
    claim.check()
    publish_sealed(study.closing(layout).record, content, study.read_closing)


def _nested_of_study(layout: Layout, study: GlueStudy) -> dict[str, Any]:
    """Return the nested score and how the halves were made; None with a reason if data for it were not kept."""
    score, reason = None, None
    try:
        best = best_of_grid(layout, [study], load_encoded(study.encoded_task(layout)).labels)
        score = None if best is None else best.nested
    except (MissingData, DamagedFile, FileNotFoundError):
        reason = "the encoded task or the stored predictions are not there"
    return {"score": score, "reason": reason, "rule": NESTED_RULE, "halves": HALVES}


def _studies_of_same_weights(layout: Layout, study: GlueStudy) -> list[GlueStudy] | None:
    """Return all studies of the task on the same model, `study` among them; None if one cannot be read. Each is read
    once, and so are its ids computed once."""
    try:
        paths = matching(layout.root / "glue" / study.task / "studies", "*/run.json")
        studies = [read_once(path, _read_study) for path in paths]
    except (RunFailed, OSError):
        return None
    if None in studies:
        return None
    same = [other for other in studies if other is not None and other.weights == study.weights]
    return [study if other.id == study.id else other for other in same]


def _read_study(run_file: Path) -> GlueStudy:
    return read_run_file(run_file.parent).specification(GlueStudy)


def may_become_best(layout: Layout, trial: Trial, scores: Mapping[str, Any]) -> bool:
    """Return whether a trial with these scores, whose record is not published yet, would be the best so far in any
    study that has it: only then are its weights ever read. If a study cannot be read, it may be."""
    studies = _studies_of_same_weights(layout, trial.study)
    if studies is None:
        return True
    value = trial.study.about.decisive_score(trial.study.protocol, scores)
    if any(_is_needed_for_mean(layout, other, trial) for other in studies if other.search is not None):
        return True
    for study in (other for other in studies if other.search is None and trial.id in other.trial_ids):
        finished = [_recorded_score(each) for each in study.finished_trials(layout)]
        values = [(each.point, each.decisive) for each in finished]
        if not finished or best_point(study.points, [*values, (trial.point, value)]) in (trial.point, None):
            return True
    return False


def _is_needed_for_mean(layout: Layout, search: GlueStudy, trial: Trial) -> bool:
    """Return whether a trial has the first seed of a search, at a point whose mean over the seeds is not known yet."""
    searched = search.search_trial(layout, trial.point)
    is_asked = trial.point in search.asked(layout).values()
    return is_asked and searched.trials[0].id == trial.id and not searched.is_done


def drop_beaten_weights(layout: Layout, study: GlueStudy) -> None:
    """Delete the weights of trials that are not the best so far in any study; grids share trials. The means of a search
    that are not known yet may become the best.

    If a study cannot be read, nothing is deleted.
    """
    # Listed before looking up the best: a result that another worker publishes in between must not count as beaten.
    names = frozenset(names_in(layout.root / "glue" / study.task))
    finished = [trial for trial in study.trials(layout) if trial.weights.name in names and trial.is_done]
    studies = _studies_of_same_weights(layout, study) if finished else []
    if studies is None:
        return
    searches = [other for other in studies if other.search is not None]
    known = [each for each in finished if not any(_is_needed_for_mean(layout, other, each) for other in searches)]
    best = set()
    for other in studies:
        with suppress(RunFailed):  # nothing of it is finished
            best.add(best_trial(layout, other)[0].id)
    for trial in known:
        if trial.id not in best:
            trial.weights.unlink(missing_ok=True)


def best_weights(layout: Layout, task: str, study_id: str) -> Path:
    """Return the path of the chosen trial's weights of a closed study, after checking their checksum.

    Raises:
        DamagedFile: they are damaged or missing; the trial and the selection are set aside, to be redone.
    """
    study = read_run_file(layout.study(task, study_id)).specification(GlueStudy)
    selection = study.closing(layout).record
    chosen = study.read_closing(selection)["trial"]
    trial = next((trial for trial in study.trials(layout) if trial.id == chosen), None)
    if trial is None:
        raise DamagedFile(f"{selection} names {chosen}, which is no trial of its study: remove it")

    def require_weights() -> None:
        require_digest(trial.weights, read_record(trial.record).get("sha256", {}).get("weights"))

    if _set_aside_if_damaged(study, trial, trial.weights, require_weights):
        raise DamagedFile(f"{trial.weights} was damaged: the same command runs its trial again")
    return trial.weights


def redo_damaged(layout: Layout, study: GlueStudy) -> bool:
    """Set finished trials with damaged predictions aside, so that they run again; return whether there were any."""
    finished = [trial for trial in study.trials(layout) if trial.is_done]
    damaged = [
        _set_aside_if_damaged(study, each, each.predictions, partial(_require_predictions, each)) for each in finished
    ]
    return any(damaged)


def _require_predictions(trial: Trial) -> None:
    with suppress(FileNotFoundError):  # not kept, so not needed
        read_predictions(trial)


def _set_aside_if_damaged(study: GlueStudy, trial: Trial, path: Path, check: Callable[[], None]) -> bool:
    """Return whether `check` finds a file of a finished trial damaged. If so, set aside that file, the trial's record
    and its study's selection, unless another worker holds their claims."""
    if _damage(check) is None:
        return False
    layout, selection = trial.layout, study.closing(trial.layout)
    with ExitStack() as held:
        names = [trial.id, *([selection.id] if selection.is_done else [])]
        claims = [acquire(layout.claims(name)) for name in names]
        for claim in filter(None, claims):
            held.enter_context(claim)
        reason = _damage(check)
        if None not in claims and reason is not None:
            for each in (selection.record, trial.record, path):
                if is_there(each, follow=False):
                    set_aside(each, reason)
    return True


def _damage(check: Callable[[], None]) -> str | None:
    try:
        check()
    except DamagedFile as error:
        return str(error)
    return None
