"""A point of a grid as those see it who show, list or choose among trials: names, parameters and files. Torch-free."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from neobert.errors import did_you_mean
from neobert.files import read_json
from neobert.runs.claims import Claim, acquire, owner
from neobert.runs.layout import Layout
from neobert.runs.records import is_published, read_record

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, TrialState


@dataclass(frozen=True)
class GridPoint:
    """One trial of a study, by the name under which people find the study.

    `record`, `error` and `claims` are where the trial's files lie, whether they exist or not.
    """

    study: str
    trial: str
    parameters: Mapping[str, float]
    record: Path
    error: Path
    claims: Path

    @property
    def is_recorded(self) -> bool:
        """Whether the record is there and whole."""
        return is_published(self.record)


class Report(Protocol):
    """Told about every evaluation of a trial; `score` is None where the metric is undefined."""

    def __call__(self, step: int, score: float | None) -> None: ...


class Observer(Protocol):
    """Told what happens to units that are points of a grid; None stands for every other unit. Never raises."""

    def started(self, point: GridPoint | None, claim: int) -> None: ...
    def reported(self, step: int, score: float | None) -> None: ...
    def recorded(self) -> None: ...
    def failed(self, reason: str) -> None: ...
    def close(self) -> None: ...


class Nobody:
    """The observer of a worker without one."""

    def started(self, point: GridPoint | None, claim: int) -> None:
        """Not told."""

    def reported(self, step: int, score: float | None) -> None:
        """Not told."""

    def recorded(self) -> None:
        """Not told."""

    def failed(self, reason: str) -> None:
        """Not told."""

    def close(self) -> None:
        """Nothing to close."""


STORAGES = ("sqlite", "journal", "postgresql")
STORAGE_VARIABLE = "NEOBERT_GRID_STORAGE"  # an environment variable, since a URL may hold a password


def storage_address(name: str, root: Path) -> str:
    """The full address of a storage: a URL, or `journal:` and a file.

    Raises:
        ValueError: no such kind of storage.
    """
    kind, separator, rest = name.partition(":")
    if kind == "sqlite":
        return f"sqlite:{rest}" if separator else f"sqlite:///{root / 'optuna.db'}"
    if kind == "journal":
        return f"journal:{Path(rest).resolve() if rest else root / 'optuna.journal'}"
    if kind in ("postgresql", "postgres") and separator:
        return f"postgresql+psycopg:{rest}"
    if kind == "postgresql+psycopg" and separator:
        return name
    hint = "postgresql needs an address" if kind == "postgresql" else did_you_mean(kind, STORAGES)
    raise ValueError(
        f"{without_password(name)!r} is no storage ({hint}): give sqlite, journal, or postgresql://USER@HOST/DATABASE"
    )


def without_password(text: str) -> str:
    """An address, or a sentence with addresses in it, as it may be shown: `user:…@host`, `?password=…`."""
    text = re.sub(r"(://[^\s/:@]*):\S*@", r"\1:…@", text)
    return re.sub(r"(?i)\b(\w*(?:password|passwd|pwd|token|secret)=)('[^']*'|[^&#\s'\")]*)", r"\1…", text)


def cause_of(error: BaseException) -> str:
    """One line with the first cause of a storage's error, which drivers and Optuna wrap several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return without_password(lines[0]) if lines else type(error).__name__


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

        Only one process may do so at a time (see `Mirror`). Points that are being worked on are left to
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


TROUBLES_BEFORE_SILENCE = 3
SYNCHRONIZATION_SECONDS = 60.0


class Mirror:
    """The observer of a worker: tells the storage what happens. After three troubles in a row it stays silent until
    `close`, which makes everything good from the files."""

    def __init__(self, layout: Layout, address: str, views: Sequence[StudyView]) -> None:
        self.layout = layout
        self.address = address
        self.views = {view.name: view for view in views}
        self.troubles = 0
        self._in_a_row = 0
        self._point: GridPoint | None = None
        self._view: StudyView | None = None
        self._number: int | None = None

    @classmethod
    def open(cls, layout: Layout, address: str, points: Sequence[GridPoint]) -> Self:
        """A mirror of all studies that points belong to.

        Raises:
            ValueError: the storage cannot be reached.
        """
        storage = open_storage(address)
        names = dict.fromkeys(point.study for point in points)
        views = [StudyView(storage, [point for point in points if point.study == name]) for name in names]
        return cls(layout, address, views)

    def started(self, point: GridPoint | None, claim: int) -> None:
        """A unit was taken; trials of former owners are told FAIL."""
        self._point, self._number = point, None
        self._view = None if point is None else self.views[point.study]
        self._guarded(lambda point, view, _: self._start(view, point, claim), needs_number=False)

    def _start(self, view: StudyView, point: GridPoint, claim: int) -> None:
        self._number = view.start(point, claim)

    def reported(self, step: int, score: float | None) -> None:
        """An evaluation; an undefined score is not shown."""
        if score is not None:
            self._guarded(lambda _, view, number: view.report(number, step, score))

    def recorded(self) -> None:
        """The unit's record is published."""
        self._guarded(self._finish)

    @staticmethod
    def _finish(point: GridPoint, view: StudyView, number: int) -> None:
        view.finish(number, read_record(point.record))

    def failed(self, reason: str) -> None:
        """The unit ended without a record."""
        self._guarded(lambda _, view, number: view.fail(number, reason))

    def close(self) -> None:
        """Make every study agree with the files, and say how much did not reach the storage."""
        self.refresh()
        if self.troubles:
            said = "one note did" if self.troubles == 1 else f"{self.troubles} notes did"
            _say(f"{said} not reach the Optuna study; the records hold everything, and the next start shows it")

    def refresh(self) -> None:
        """Make every study agree with the files."""
        self._in_a_row = 0
        for view in self.views.values():
            self._try(partial(self.synchronize, view))

    def synchronize(self, view: StudyView) -> None:
        """Make one study agree with the files, while no other process does so."""
        with self._alone(view.name):
            view.synchronize()

    def _alone(self, study: str) -> Claim:
        deadline = time.monotonic() + SYNCHRONIZATION_SECONDS
        while True:
            claim = acquire(self.layout.claims(f"{study}-view"))
            if claim is not None:
                return claim
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has synchronized study {study} for a minute")
            time.sleep(0.05)

    def _guarded(self, told: Callable[[GridPoint, StudyView, int], None], *, needs_number: bool = True) -> None:
        point, view, number = self._point, self._view, self._number
        if point is None or view is None or (needs_number and number is None):
            return
        self._try(lambda: told(point, view, -1 if number is None else number))

    def _try(self, told: Callable[[], None]) -> None:
        if self._in_a_row >= TROUBLES_BEFORE_SILENCE:
            self.troubles += 1
            return
        try:
            told()
            self._in_a_row = 0
        except Exception as error:  # whatever a database, a driver or a damaged file raises: the work goes on
            if self.troubles == 0:
                _say(f"{without_password(self.address)}: {cause_of(error)}; the work goes on without it")
            self.troubles += 1
            self._in_a_row += 1


def mirror_for_command(name: str | None, layout: Layout, points: Sequence[GridPoint]) -> Mirror | None:
    """The mirror of a command that starts workers. Without a name it is SQLite beside the runs, or, where Optuna is not
    installed, none.

    Raises:
        ValueError: the storage cannot be reached.
    """
    if name is None and find_spec("optuna") is None:
        _say("is not installed, so there is no study to look at; the grid needs none (`pip install optuna` adds it)")
        return None
    mirror = Mirror.open(layout, storage_address(name or "sqlite", layout.root), points)
    mirror.refresh()
    return mirror


def mirror_of_environment(layout: Layout, points: Sequence[GridPoint]) -> Observer | None:
    """The mirror that a launcher asked its workers for; None where it asked for none or the storage went away."""
    address = os.environ.get(STORAGE_VARIABLE)
    if not address or not points:
        return None
    try:
        return Mirror.open(layout, address, points)
    except ValueError as error:
        _say(f"{error}; the work goes on without it")
        return None


def _say(sentence: str) -> None:
    print(f"optuna: {sentence}", file=sys.stderr, flush=True)
