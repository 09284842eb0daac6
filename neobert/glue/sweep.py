"""GLUE studies as Optuna studies: every trial is asked for, reported and told, and can be watched as it runs.

Records are the truth about results, and claims say who works. Before a trial is taken, its worker makes the study agree
with both, under one lock for the folder of runs. A study that is lost, damaged or contradicts the records is made again
from them. Trouble with the storage never ends a trial. Optuna is only imported here.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from neobert.errors import did_you_mean
from neobert.files import is_there, read_json, set_aside, stamp_of
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy, Trial
from neobert.recipe import Point
from neobert.runs.claims import LEASE_SECONDS, Claim, is_claimed
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.run_file import RunFile, read_checked_run_file

logger = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.ERROR)

STORAGE_VARIABLE = "NEOBERT_GRID_STORAGE"
"""Environment variable with the storage of a launcher's workers, or one whose address has a password."""
FILES = {"journal": "optuna.journal", "sqlite": "optuna.db"}
LOCK_SUFFIX = ".lock"
LOCK_SECONDS = 10
JOURNAL_LOCK_SECONDS = 3
"""The journal's own lock must be broken long before ours, or ours would be broken while its owner waits."""
SQLITE_TIMEOUT_SECONDS = 30
POLL_SECONDS = 0.5
TENTHS = 10
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
UNDEFINED = "the score is undefined"

Report = Callable[[int, float | None], None]
"""Called with the number of updates and the value of each evaluation."""


class Contradiction(Exception):
    """The study shows something else than the records."""


class OtherFolder(ValueError):
    """The study in a server is of another folder of runs."""


# Storages


def storage_address(name: str, root: Path) -> str:
    """Return the full address of a storage: `journal`, `sqlite`, either with a file, or a URL of Optuna's.

    Raises ValueError for other words, and for a URL with a password, which would be visible to every user.
    """
    kind, separator, rest = name.partition(":")
    if kind in FILES:
        if rest.startswith("//"):
            return name
        path = Path(rest).resolve() if rest else root.resolve() / FILES[kind]
        return f"{kind}:///{path}" if kind == "sqlite" else f"{kind}:{path}"
    if not separator or "://" not in name:
        raise ValueError(
            f"unknown storage {name!r} ({did_you_mean(kind, FILES)}): give journal, sqlite or a URL of Optuna"
        )
    if ":" in name.partition("://")[2].rpartition("@")[0]:
        raise ValueError(f"--storage would show the password in its URL to everybody: set {STORAGE_VARIABLE} instead")
    return name


def address_of_environment(root: Path) -> str:
    """Return the address of the storage that the environment names; the default is the journal beside the runs."""
    named = os.environ.get(STORAGE_VARIABLE)
    return named if named and ":" in named else storage_address(named or "journal", root)


def cause_of(error: BaseException) -> str:
    """Return one line with the root cause of a storage's error, which drivers and Optuna wrap several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def is_transient(error: BaseException | None) -> bool:
    """Return whether waiting may help: the storage is locked, or its server or file system is away."""
    from sqlalchemy.exc import OperationalError

    while error is not None and not isinstance(error, OperationalError | OSError):
        error = error.__cause__
    return error is not None and "no such table" not in str(error)


@dataclass
class Storage:
    """An Optuna storage. Its file is opened anew if it was replaced or became shorter."""

    address: str
    _opened: BaseStorage | None = None
    _stamp: tuple[int, int] = (0, 0)

    @property
    def path(self) -> Path | None:
        """The file of a journal or of SQLite; None for a server."""
        kind, _, rest = self.address.partition(":")
        return Path(rest.removeprefix("///")) if kind in FILES else None

    def __str__(self) -> str:
        scheme, separator, rest = self.address.partition("://")
        return scheme + separator + rest.rpartition("@")[2]  # without a password

    def _stamp_now(self) -> tuple[int, int]:
        try:
            status = self.path.stat() if self.path else None
        except FileNotFoundError:
            status = None
        return (status.st_ino, status.st_size) if status else (0, 0)

    @property
    def is_current(self) -> bool:
        """Whether the file is still the one that was opened."""
        return self._stamp_now()[0] == self._stamp[0]

    def open(self) -> BaseStorage:
        """Return the storage, and create it if it does not exist. Raises whatever its driver raises."""
        now = self._stamp_now()
        if self._opened is None or now[0] != self._stamp[0] or now[1] < self._stamp[1]:
            self._opened = self._connect()
            self._opened.get_all_studies()
        self._stamp = self._stamp_now()
        return self._opened

    def _connect(self) -> BaseStorage:
        from sqlalchemy.pool import NullPool

        kind, _, rest = self.address.partition(":")
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "journal":
            return JournalStorage(JournalFileBackend(rest, JournalFileOpenLock(rest, JOURNAL_LOCK_SECONDS)))
        settings: dict[str, Any] = {"poolclass": NullPool}  # an open connection would have to be closed, also in forks
        if kind == "sqlite":
            settings["connect_args"] = {"timeout": SQLITE_TIMEOUT_SECONDS}
        return RDBStorage(self.address, engine_kwargs=settings)

    def forget(self) -> None:
        """Open the storage anew the next time."""
        self._opened = None

    def set_aside(self, reason: str) -> None:
        """Rename the file, so that the next `open` makes a new one."""
        self.forget()
        assert self.path is not None
        for path in (self.path, self.path.with_name(f"{self.path.name}-journal")):
            if os.path.lexists(path):
                set_aside(path, reason)


@lru_cache(maxsize=4)
def storage_at(address: str) -> Storage:
    """Return the storage at an address, which all studies of a process share."""
    return Storage(address)


# What Optuna shows


@dataclass
class Given(optuna.samplers.BaseSampler):
    """Sampler that suggests the point given: the next of a grid. Optuna's GridSampler repeats points if several workers
    ask."""

    point: Mapping[str, Any]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        return self.point[name]


@dataclass(frozen=True)
class Ending:
    """How a trial ended according to its record. An undefined score is FAIL, never a number."""

    state: TrialState
    value: float | None
    curve: Mapping[int, float] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    ended_at: float = 0.0
    seconds: float = 0.0


def tenth_of_epoch(step: int, course_steps: int, epochs: int) -> int:
    """Return after how many tenths of an epoch a step of a course ends, rounded up. Unlike the number of updates, this
    is comparable between batch sizes."""
    return math.ceil(TENTHS * epochs * step / course_steps)


def ending_of(trial: Trial) -> Ending | None:
    """Return how a trial ended; None without an intact record. A record is read once as long as it does not change."""
    if not trial.is_done:
        return None
    return _read_ending(trial, stamp_of(trial.record.stat()))


@lru_cache(maxsize=1 << 15)
def _read_ending(trial: Trial, stamp: tuple[int, ...]) -> Ending:
    del stamp
    record, study = read_record(trial.record), trial.study
    score = study.about.decisive_score(study.protocol, record["scores"])
    curve: dict[int, float] = {}
    if course := record.get("course_steps"):
        for step, value in record["scores"].get("curve", ()):
            if value is not None:
                curve.setdefault(tenth_of_epoch(step, course, study.protocol.epochs), float(value))
    error = {"error": UNDEFINED} if score is None else {}
    return Ending(
        state=TrialState.FAIL if score is None else TrialState.COMPLETE,
        value=score,
        curve=curve,
        attributes={"trial": trial.id, "claim": record.get("claim"), **error},
        ended_at=trial.record.stat().st_mtime,
        seconds=record.get("seconds", 0.0),
    )


Shown = Sequence[tuple[Trial, FrozenTrial]]
"""Points of the grid with the trials of the study that show them."""
Endings = Mapping[str, Ending | None]
"""By the id of a trial: how it ended according to its record."""


# The studies


@dataclass
class Sweep:
    """The Optuna study of a GLUE study: its grid, with every point once.

    `run_file` names the study in words; a study without one is named by its id alone.
    """

    layout: Layout
    study: GlueStudy
    storage: Storage
    run_file: RunFile | None = None
    lease_seconds: float = LEASE_SECONDS
    _remade_at: float = -math.inf
    _trouble_since: float | None = None

    @cached_property
    def trials(self) -> dict[Point, Trial]:
        """The trials of the grid by their point."""
        return {trial.point: trial for trial in self.study.trials(self.layout)}

    @cached_property
    def space(self) -> dict[str, BaseDistribution]:
        """The axes of the grid."""
        points = [plain(point) for point in self.study.points]
        return {axis: CategoricalDistribution(sorted({point[axis] for point in points})) for axis in points[0]}

    @property
    def name(self) -> str:
        """Name of the Optuna study. Studies are found by the id at its end."""
        owner = f"{self.run_file.owner} " if self.run_file and self.run_file.owner else ""
        return f"{owner}{self.study.task} seed {self.study.seed} ({self.study.id})"

    @property
    def attributes(self) -> dict[str, Any]:
        """User attributes of the Optuna study."""
        labels = self.run_file.labels if self.run_file else {}
        named = {key: labels[key] for key in ("variants", "model", "scale", "ladder") if labels.get(key)}
        study = self.study
        metric = study.about.decisive_metric(study.protocol) or " and ".join(map(str, study.about.metrics))
        own = {"task": study.task, "metric": metric, "seed": study.seed, "weights": study.weights}
        return {**named, **own, "study": study.id, "runs": str(self.layout.root)}

    def opened(self) -> Study:
        """Open the Optuna study, and create it if it does not exist.

        Raises ValueError if it is another folder's. Raises whatever the storage raises.
        """
        storage = self.storage.open()
        end = f"({self.study.id})"
        names = [each.study_name for each in storage.get_all_studies() if each.study_name.endswith(end)]
        if names:
            study = optuna.load_study(study_name=names[0], storage=storage)
            theirs = study.user_attrs.get("runs")
            if self.storage.path is None and theirs not in (None, str(self.layout.root)):
                raise OtherFolder(
                    f"the Optuna study {names[0]!r} is of the runs in {theirs}: use another storage for these runs"
                )
            return study
        study = optuna.create_study(study_name=self.name, storage=storage, direction="maximize", load_if_exists=True)
        for key, value in self.attributes.items():
            study.set_user_attr(key, value)
        return study

    # Making the study agree

    def show(self) -> Study:
        """Make the study agree with records and claims, and return it. Raises whatever the storage raises."""
        with self._lock():
            return self._made_right()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the folder. It keeps studies tidy; claims and records are exact without it."""
        self.layout.root.mkdir(parents=True, exist_ok=True)
        lock = JournalFileOpenLock(str(self.layout.root / "optuna"), LOCK_SECONDS)
        lock.acquire()
        try:
            yield
        finally:
            with suppress(RuntimeError):  # it was broken, because this process was paused
                lock.release()

    def _made_right(self) -> Study:
        """Return the study after mending it; one that cannot be mended is made again, at most once a lease."""
        try:
            return self._mended()
        except OtherFolder:
            raise
        except Exception as error:  # each backend has its own errors
            if is_transient(error) or time.monotonic() - self._remade_at < self.lease_seconds:
                raise
            logger.warning(f"{self.storage} is made again from the records: {cause_of(error)}")
            self._remove()
            return self._mended()

    def _mended(self) -> Study:
        """Return the study after making it show what claims and records say.

        Workers publish, tell, release. So trials are read first, then claims, then records.
        """
        study = self.opened()
        known = [(self._part_of(trial), trial) for trial in study.get_trials(deepcopy=False)]
        shown = [(part, trial) for part, trial in known if part is not None]
        running = [part.id for part, trial in shown if trial.state is TrialState.RUNNING]
        held = {name for name in running if is_claimed(self.layout.claims(name), self.lease_seconds)}
        endings = {part.id: ending_of(part) for part in self.trials.values()}
        told = _require_agreement(shown, endings)
        told |= _tell_dead(study, shown, endings, held, told)
        self._add_missing(study, shown, endings, told | held)
        return study

    def _add_missing(self, study: Study, shown: Shown, endings: Endings, known: Set[str]) -> None:
        """Add a trial for each record and each failure of a point that is not `known` to be shown."""
        failed = {(part.id, trial.user_attrs.get("claim")) for part, trial in shown if trial.state is TrialState.FAIL}
        for part in self.trials.values():
            ending = None if part.id in known else endings[part.id] or _failure_of(part)
            if ending is not None and (ending.value is not None or (part.id, ending.attributes["claim"]) not in failed):
                self._touch_lock()
                study.add_trial(self._made_of(part, ending))

    def _part_of(self, trial: FrozenTrial) -> Trial | None:
        """Return the trial of the grid at the point of Optuna's; None if it is no point of the grid."""
        try:
            return self.trials.get(Point(**trial.params))
        except ValueError:
            return None

    def _made_of(self, part: Trial, ending: Ending) -> FrozenTrial:
        trial = create_trial(
            state=ending.state,
            value=ending.value,
            params=plain(part.point),
            distributions=self.space,
            user_attrs=dict(ending.attributes),
            intermediate_values=dict(ending.curve),
        )
        trial.datetime_complete = datetime.fromtimestamp(ending.ended_at)
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=ending.seconds)
        return trial

    def _remove(self) -> None:
        """Set the damaged file aside, or delete the study in a server until it is gone: a report of another worker can
        undo a deletion without an error."""
        self._remade_at = time.monotonic()
        if self.storage.path is not None:
            self.storage.set_aside("the study does not agree with the records")
            return
        self.storage.forget()
        with suppress(KeyError):
            while True:
                optuna.delete_study(study_name=self.opened().study_name, storage=self.storage.open())

    # One trial

    @contextmanager
    def running(self, part: Trial, claim: Claim, course_steps: Callable[[], int]) -> Iterator[Report]:
        """Ask for a claimed point, and tell at the end what its record says, or that it failed. Yields what reports
        evaluations. `course_steps` returns the updates of the whole course."""
        trial = self._ask(part, claim)
        reported: set[int] = set()

        def report(step: int, value: float | None) -> None:
            tenth = tenth_of_epoch(step, course_steps(), self.study.protocol.epochs)
            if trial is not None and value is not None and tenth not in reported:
                reported.add(tenth)
                self._quietly(lambda: trial.report(value, tenth))

        error = UNDEFINED
        try:
            yield report
        except Exception as reason:
            error = f"{type(reason).__name__}: {reason}"
            raise
        finally:
            if trial is not None:
                self._quietly(lambda: self._end(trial, _if_of(claim.number, ending_of(part)), error))

    def _end(self, trial: optuna.Trial, ending: Ending | None, error: str) -> None:
        if ending is None or ending.state is TrialState.FAIL:
            trial.set_user_attr("error", error)
        _tell(trial.study, trial.number, ending)

    def _ask(self, part: Trial, claim: Claim) -> optuna.Trial | None:
        """Return the asked trial. None if the storage cannot be used for as long as a lease: the point is run unseen,
        and the next worker that can reach the storage adds it."""
        deadline = time.monotonic() + (0 if self._trouble_since else self.lease_seconds)
        while True:
            try:
                with self._lock():
                    study = self._made_right()
                    study.sampler = Given(plain(part.point))
                    trial = study.ask(self.space)
                    for key, value in {"trial": part.id, "claim": claim.number}.items():
                        trial.set_user_attr(key, value)
                self._trouble_since = None
                return trial
            except OtherFolder:
                raise
            except Exception as error:  # each backend has its own errors, and none of them may stop the work
                if not is_transient(error) or time.monotonic() > deadline:
                    if not self._trouble_since:
                        logger.warning(f"{self.storage}: {cause_of(error)}; the work goes on unseen by Optuna")
                    self._trouble_since = self._trouble_since or time.monotonic()
                    return None
                time.sleep(POLL_SECONDS)

    def _quietly(self, call: Callable[[], Any]) -> None:
        """Call the study, if its file is the one that was opened. No trouble with it ends a trial."""
        if self.storage.is_current:
            try:
                call()
            except Exception as error:  # what could not be told is told by the next worker that takes a trial
                logger.info(f"{self.storage}: {cause_of(error)}")

    def _touch_lock(self) -> None:
        """Keep the lock from being broken while many trials are added."""
        with suppress(OSError):
            os.utime(self.layout.root / f"optuna{LOCK_SUFFIX}")


def _require_agreement(shown: Shown, endings: Endings) -> set[str]:
    """Return the points that have ended in the study. Raises Contradiction if one is not as recorded or there twice."""
    told: set[str] = set()
    for part, trial in shown:
        if trial.state in ENDED:
            ending = endings[part.id]
            if ending is None or (trial.state, trial.value) != (ending.state, ending.value) or part.id in told:
                raise Contradiction(f"trial {trial.number} is not what was recorded, or is there twice")
            told.add(part.id)
    return told


def _tell_dead(study: Study, shown: Shown, endings: Endings, held: Set[str], told: Set[str]) -> set[str]:
    """Tell running trials whose worker is dead, or whose point has ended, what was recorded. Returns these points."""
    recorded: set[str] = set()
    for part, trial in shown:
        has_ended = part.id in told or part.id in recorded
        if trial.state is TrialState.RUNNING and (has_ended or part.id not in held):
            ending = None if has_ended else _if_of(trial.user_attrs.get("claim"), endings[part.id])
            _tell(study, trial.number, ending)
            if ending is not None:
                recorded.add(part.id)
    return recorded


def _if_of(claim: int | None, ending: Ending | None) -> Ending | None:
    """Return an ending if it is of the attempt with this claim; another one has a trial of its own."""
    return ending if ending is not None and ending.attributes["claim"] == claim else None


def _failure_of(part: Trial) -> Ending | None:
    """Return the last failure of a trial without a record; None if it has not failed."""
    try:
        failure = read_json(part.error)
    except FileNotFoundError:
        return None
    attributes = {"trial": part.id, "claim": failure["claim"], "error": failure["error"]}
    return Ending(TrialState.FAIL, None, attributes=attributes, ended_at=part.error.stat().st_mtime)


def _tell(study: Study, number: int, ending: Ending | None) -> None:
    """Tell a running trial how it ended; without a record it failed."""
    state, value = (TrialState.FAIL, None) if ending is None else (ending.state, ending.value)
    with suppress(UpdateFinishedTrialError):  # another worker told it at the same time
        study.tell(number, value, state=state, skip_if_finished=True)


@lru_cache(maxsize=64)
def sweep_of(layout: Layout, study_folder: Path, address: str) -> Sweep:
    """Return the sweep of the study in a folder. A worker keeps it for all trials."""
    run_file = read_checked_run_file(study_folder)
    return Sweep(layout, run_file.specification(GlueStudy), storage_at(address), run_file)


def open_studies(layout: Layout, studies: Sequence[GlueStudy], address: str) -> None:
    """Open a storage, and make those studies agree with their records that have a run file.

    Raises ValueError if the storage cannot be used, or has the study of another folder.
    """
    try:
        _open_or_replace(storage_at(address), is_own=address == storage_address("journal", layout.root))
        for study in studies:
            folder = layout.study(study.task, study.id)
            if is_there(folder / "run.json"):
                sweep_of(layout, folder, address).show()
    except OtherFolder:
        raise
    except Exception as error:  # each backend has its own errors, and all mean that it cannot be used
        raise ValueError(f"storage {storage_at(address)} cannot be used ({cause_of(error)})") from error


def _open_or_replace(storage: Storage, *, is_own: bool) -> None:
    """Open a storage. A damaged file is set aside if it is the folder's own journal: a file that a user named may be
    anything."""
    try:
        storage.open()
    except Exception as error:
        if not is_own or is_transient(error):
            raise
        storage.set_aside(cause_of(error))
        storage.open()
