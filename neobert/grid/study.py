"""Optuna's view of a grid: a study, trials with parameters, values, intermediate curves and states.

Claims and records on disk are the truth and decide who does what; this module only mirrors them, so that
optuna-dashboard and Optuna's own tools work. Everything here can be made again from the files. Optuna is imported here
and nowhere else.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neobert.files import read_json
from neobert.grid.claims import owner
from neobert.grid.points import GridPoint
from neobert.grid.storages import cause_of, without_password
from neobert.records import read_record

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, TrialState

SQLITE_TIMEOUT_SECONDS = 30
POSTGRESQL_TIMEOUT_SECONDS = 10
JOURNAL_GRACE_SECONDS = 10
UNDEFINED = "the score is undefined"


def open_storage(address: str) -> "BaseStorage":
    """The storage behind `storage_address`, made where it does not exist.

    Raises:
        ValueError: Optuna or the driver is not installed, or the storage cannot be reached or read.
    """
    try:
        import optuna
    except ImportError as error:
        raise ValueError("the Optuna study needs optuna: install it with `pip install optuna`") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    shown = without_password(address)
    try:
        storage = _connect(address)
        storage.get_all_studies()
    except ImportError as error:
        raise ValueError(f"storage {shown} needs a driver: install it with `pip install 'psycopg[binary]'`") from error
    except Exception as error:  # each backend has errors of its own, and all mean that it cannot be used
        raise ValueError(f"storage {shown} cannot be used ({cause_of(error)})") from error
    return storage


def _connect(address: str) -> "BaseStorage":
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
    from sqlalchemy.pool import NullPool

    kind, _, rest = address.partition(":")
    if kind == "journal":
        Path(rest).parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(rest, JournalFileSymlinkLock(rest, JOURNAL_GRACE_SECONDS)))
    seconds = POSTGRESQL_TIMEOUT_SECONDS  # to connect, and until a server that vanished is given up
    timeout: dict[str, float] = {"connect_timeout": seconds, "tcp_user_timeout": 1000 * seconds}
    if kind == "sqlite":
        timeout = {"timeout": SQLITE_TIMEOUT_SECONDS}
        if rest.startswith("///"):
            Path(rest[3:]).parent.mkdir(parents=True, exist_ok=True)
    # No pool: notes are rare, and a connection that is kept would be one more thing to lose and to close.
    return RDBStorage(address, engine_kwargs={"connect_args": timeout, "poolclass": NullPool})


@dataclass(frozen=True)
class Shown:
    """A trial as the storage holds it."""

    number: int  # the storage's key, not the position in the study
    trial: str | None
    claim: int | None
    state: "TrialState"


class StudyView:
    """One study of a storage and the points that belong to it. Its methods raise whatever the storage raises."""

    def __init__(self, storage: "BaseStorage", points: Sequence[GridPoint]) -> None:
        names = {point.study for point in points}
        assert len(names) == 1, names
        (self.name,) = names
        self.storage = storage
        self.points = tuple(points)

    def start(self, point: GridPoint, claim: int) -> int:
        """Show a trial that starts, tell the trials of its former owners FAIL; the storage's key of the trial."""
        from optuna.trial import TrialState, create_trial

        study = self._study()
        if claim > 1:
            for shown in self._shown(study).get(point.trial, []):
                if shown.claim is not None and shown.claim < claim:
                    self.fail(shown.number, f"claim {shown.claim} was taken over by claim {claim}")
        template = create_trial(state=TrialState.RUNNING, **self._described(point, claim))
        return self.storage.create_new_trial(study, template)

    def report(self, number: int, step: int, score: float) -> None:
        """An intermediate value; one of a trial that was told FAIL meanwhile is dropped."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self.storage.set_trial_intermediate_value(number, step, score)
        except UpdateFinishedTrialError:
            return

    def finish(self, number: int, record: Mapping[str, Any]) -> None:
        """Tell a trial what its record says, evaluations that did not reach the storage included."""
        from optuna.trial import TrialState

        state, value, error = _outcome(record)
        told = self.storage.get_trial(number).intermediate_values
        for step, score in _curve(record).items():
            if step not in told:
                self.report(number, step, score)
        if state is TrialState.FAIL:
            self.fail(number, error or UNDEFINED)
        else:
            self._tell(number, state, value)

    def fail(self, number: int, error: str) -> None:
        """Tell a trial FAIL with its cause; one that is told already stays as it is."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            self.storage.set_trial_user_attr(number, "error", error)
        except UpdateFinishedTrialError:
            return
        self._tell(number, TrialState.FAIL, None)

    def _tell(self, number: int, state: "TrialState", value: float | None) -> None:
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self.storage.set_trial_state_values(number, state, None if value is None else [value])
        except UpdateFinishedTrialError:
            return

    def synchronize(self) -> None:
        """Make the study agree with the files: every record and failure is shown once, nothing dead is RUNNING.

        Only one process may do so at a time (see `neobert.grid.mirror`). Points that are being worked on are left to
        their owners.
        """
        study = self._study()
        files = [_files_of(point) for point in self.points]  # read first: what these say, the trials listed next know
        shown = self._shown(study)
        for point, (record, failure) in zip(self.points, files, strict=True):
            trials = shown.get(point.trial, [])
            if record is not None and not any(_settles(trial, record) for trial in trials):
                trials = self._settle(study, point, record, trials)
            elif failure is not None and all(trial.claim != failure["claim"] for trial in trials):
                self.storage.create_new_trial(study, self._failed(point, failure))
            for trial in trials:
                if not trial.state.is_finished() and owner(point.claims) != trial.claim:
                    self.fail(trial.number, "its process ended before a record was written")

    def _settle(self, study: int, point: GridPoint, record: Mapping[str, Any], trials: list[Shown]) -> list[Shown]:
        """Show a record by the trial of its own claim, or by a new one; returns the trials that do not show it."""
        own = [trial for trial in trials if not trial.state.is_finished() and trial.claim == record.get("claim")]
        if own:
            self.finish(own[0].number, record)
        else:
            self.storage.create_new_trial(study, self._recorded(point, record))
        return [trial for trial in trials if trial not in own[:1]]

    def rebuild(self) -> None:
        """Delete the study and make it again from the files."""
        with suppress(KeyError):  # it is not there
            self.storage.delete_study(self.storage.get_study_id_from_name(self.name))
        self.synchronize()

    def _study(self) -> int:
        """The storage's key of the study, which is made where it is not there."""
        from optuna.exceptions import DuplicatedStudyError
        from optuna.study import StudyDirection

        try:
            return self.storage.get_study_id_from_name(self.name)
        except KeyError:
            pass
        try:
            return self.storage.create_new_study([StudyDirection.MAXIMIZE], self.name)
        except DuplicatedStudyError:  # another process was faster
            return self.storage.get_study_id_from_name(self.name)

    def _shown(self, study: int) -> dict[str | None, list[Shown]]:
        by_trial: dict[str | None, list[Shown]] = {}
        for trial in self.storage.get_all_trials(study, deepcopy=False):
            attributes = trial.user_attrs
            shown = Shown(trial._trial_id, attributes.get("trial"), attributes.get("claim"), trial.state)
            by_trial.setdefault(shown.trial, []).append(shown)
        return by_trial

    def _described(self, point: GridPoint, claim: int | None) -> dict[str, Any]:
        return {
            "params": dict(point.parameters),
            "distributions": self._distributions(),
            "user_attrs": {"trial": point.trial, "claim": claim},
        }

    def _distributions(self) -> "dict[str, CategoricalDistribution]":
        from optuna.distributions import CategoricalDistribution

        axes = self.points[0].parameters
        return {axis: CategoricalDistribution(sorted({p.parameters[axis] for p in self.points})) for axis in axes}

    def _recorded(self, point: GridPoint, record: Mapping[str, Any]) -> "FrozenTrial":
        from optuna.trial import create_trial

        state, value, error = _outcome(record)
        described = self._described(point, record.get("claim"))
        if error is not None:
            described["user_attrs"]["error"] = error
        trial = create_trial(state=state, value=value, intermediate_values=_curve(record), **described)
        trial.datetime_complete = datetime.fromtimestamp(point.record.stat().st_mtime)
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=record.get("seconds", 0.0))
        return trial

    def _failed(self, point: GridPoint, failure: Mapping[str, Any]) -> "FrozenTrial":
        from optuna.trial import TrialState, create_trial

        described = self._described(point, failure["claim"])
        described["user_attrs"]["error"] = failure["error"]
        return create_trial(state=TrialState.FAIL, **described)


def _files_of(point: GridPoint) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Record and failure of a point that nobody works on."""
    if owner(point.claims) is not None:
        return None, None
    if point.is_recorded:
        return read_record(point.record), None
    return None, read_json(point.error) if point.error.exists() else None


def _settles(trial: Shown, record: Mapping[str, Any]) -> bool:
    """Whether a trial already shows a record."""
    return trial.state.is_finished() and trial.claim == record.get("claim")


def _curve(record: Mapping[str, Any]) -> dict[int, float]:
    """The evaluations of a record by step; undefined scores are not shown."""
    return {int(step): float(score) for step, score in record["scores"]["curve"] if score is not None}


def _outcome(record: Mapping[str, Any]) -> "tuple[TrialState, float | None, str | None]":
    """State, value and error of a record. An undefined score is FAIL with its reason, never a number."""
    from optuna.trial import TrialState

    if record["state"] == "failed":
        return TrialState.FAIL, None, record.get("error", "failed")
    score = record["scores"]["score"]
    return (TrialState.FAIL, None, UNDEFINED) if score is None else (TrialState.COMPLETE, score, None)
