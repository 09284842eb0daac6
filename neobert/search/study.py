"""GLUE studies as Optuna studies: every trial is asked for, reported and told, and can be watched as it runs.

Records are the truth about results, and claims say who works. Before a trial is taken, its worker makes the study agree
with both, under one lock for the folder of runs. A study that is lost, damaged or contradicts the records is made again
from them. Trouble with the storage never ends a trial.

A search is a grid whose points a sampler adds. Each point that it asks for is numbered and written to a file before a
worker takes it, so that every search has exactly as many as it should, and a killed worker's point is done by another.
"""

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages.journal import JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from neobert.errors import RunFailed
from neobert.files import is_there, read_json, stamp_of
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy, SearchTrial, Trial
from neobert.recipe import Point
from neobert.runs.claims import LEASE_SECONDS, Claim, acquire, is_claimed
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed, read_record
from neobert.runs.run_file import RunFile, read_checked_run_file
from neobert.search.samplers import Given, Rounded, axes_of, import_for, pruner_named, sampler_named
from neobert.search.storages import Storage, cause_of, is_transient, storage_address, storage_at

logger = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.ERROR)

LOCK_SUFFIX = ".lock"
LOCK_SECONDS = 10
POLL_SECONDS = 0.5
FAILURES_OF_ASKING = 2
"""How often a sampler may fail before its worker ends: another worker may have removed the study meanwhile."""
TENTHS = 10
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
UNDEFINED = "the score is undefined"

Report = Callable[[int, float | None], None]
"""Called with the step and value of each evaluation."""
AnyTrial = Trial | SearchTrial


class Contradiction(Exception):
    """The study shows something else than the records."""


class OtherFolder(ValueError):
    """The study in a server is of another folder of runs."""


# What Optuna shows


class Pruned(Exception):
    """The pruner of a search ends a trial."""


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


def ending_of(trial: AnyTrial) -> Ending | None:
    """Return how a trial ended; None without an intact record. A record is read once as long as it does not change."""
    if not trial.is_done:
        return None
    return _read_ending(trial, stamp_of(trial.record.stat()))


@lru_cache(maxsize=1 << 15)
def _read_ending(trial: AnyTrial, stamp: tuple[int, ...]) -> Ending:
    del stamp
    record, study = read_record(trial.record), trial.study
    if isinstance(trial, SearchTrial):
        score, curve = record["scores"]["score"], dict(record["scores"]["curve"])
    else:
        score, curve = study.about.decisive_score(study.protocol, record["scores"]), _curve_of(trial, record)
    if record["state"] == "pruned":  # Optuna takes the last report as its value
        state, score = TrialState.PRUNED, curve[max(curve)] if curve else None
    else:
        state = TrialState.FAIL if score is None else TrialState.COMPLETE
    error = {"error": UNDEFINED} if state is TrialState.FAIL else {}
    return Ending(
        state=state,
        value=score,
        curve=curve,
        attributes={"trial": trial.id, "claim": record.get("claim"), **error},
        ended_at=trial.record.stat().st_mtime,
        seconds=record.get("seconds", 0.0),
    )


def _curve_of(trial: Trial, record: Mapping[str, Any]) -> dict[int, float]:
    """Return the values of the evaluations in a trial's record by tenths of an epoch."""
    curve: dict[int, float] = {}
    if course := record.get("course_steps"):
        for step, value in record["scores"].get("curve", ()):
            if value is not None:
                curve.setdefault(tenth_of_epoch(step, course, trial.study.protocol.epochs), float(value))
    return curve


Shown = Sequence[tuple[AnyTrial, FrozenTrial]]
"""Parts with the trials of the study that show them."""
Endings = Mapping[str, Ending | None]
"""By the id of a part: how it ended according to its record."""


# The studies


@dataclass
class Sweep:
    """The Optuna study of a GLUE study: its grid, with every point once, or its search.

    `run_file` names the study in words; a study without one is named by its id alone.
    """

    layout: Layout
    study: GlueStudy
    storage: Storage
    run_file: RunFile | None = None
    lease_seconds: float = LEASE_SECONDS
    _remade_at: float = -math.inf
    _trouble_since: float | None = None
    _asked: dict[tuple[str, int], optuna.Trial] = field(default_factory=dict)

    @cached_property
    def _of_grid(self) -> dict[Point, AnyTrial]:
        return {trial.point: trial for trial in self.study.trials(self.layout)}

    def trials(self) -> dict[Point, AnyTrial]:
        """Return the trials by their point; of a search, those that it has asked for."""
        if self.study.search is None:
            return self._of_grid
        return {trial.point: trial for trial in self.study.search_trials(self.layout)}

    def _times(self) -> Counter[Point]:
        """Return how often each point was asked for: in a grid once, in a search perhaps again."""
        return Counter(list(self._of_grid) if self.study.search is None else self.study.asked(self.layout).values())

    @cached_property
    def space(self) -> dict[str, BaseDistribution]:
        """The axes of the grid or of the search."""
        if self.study.search is not None and self.study.search.sampler != "grid":
            return axes_of(self.study.search.space)
        points = [plain(point) for point in self.study.points]
        return {axis: CategoricalDistribution(sorted({point[axis] for point in points})) for axis in points[0]}

    @property
    def name(self) -> str:
        """Name of the Optuna study. Studies are found by the id at its end."""
        owner = f"{self.run_file.owner} " if self.run_file and self.run_file.owner else ""
        sampler = f" {self.study.search.sampler}" if self.study.search else ""
        return f"{owner}{self.study.task}{sampler} seed {self.study.seed} ({self.study.id})"

    @property
    def attributes(self) -> dict[str, Any]:
        """User attributes of the Optuna study."""
        labels = self.run_file.labels if self.run_file else {}
        named = {key: labels[key] for key in ("variants", "model", "scale", "ladder") if labels.get(key)}
        study = self.study
        metric = study.about.decisive_metric(study.protocol) or " and ".join(map(str, study.about.metrics))
        own = {"task": study.task, "metric": metric, "seed": study.seed, "weights": study.weights}
        search = {"search": plain(study.search)} if study.search else {}
        return {**named, **own, **search, "study": study.id, "runs": str(self.layout.root)}

    def opened(self) -> Study:
        """Open the Optuna study, and create it if it does not exist.

        Raises ValueError if it is another folder's. Raises whatever the storage raises.
        """
        storage = self.storage.open()
        end = f"({self.study.id})"
        names = [each.study_name for each in storage.get_all_studies() if each.study_name.endswith(end)]
        if names:
            study = optuna.load_study(study_name=names[0], storage=storage, pruner=self._pruner())
            theirs = study.user_attrs.get("runs")
            if self.storage.path is None and theirs not in (None, str(self.layout.root)):
                raise OtherFolder(
                    f"the Optuna study {names[0]!r} is of the runs in {theirs}: use another storage for these runs"
                )
            return study
        study = optuna.create_study(
            study_name=self.name,
            storage=storage,
            direction="maximize",
            pruner=self._pruner(),
            load_if_exists=True,
        )
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
        trials = study.get_trials(deepcopy=False)
        parts, times = self.trials(), self._times()
        shown = [(parts[point], trial) for trial in trials if (point := _point_of(trial)) in parts]
        running = [part.id for part, trial in shown if trial.state is TrialState.RUNNING]
        held = {name for name in running if is_claimed(self.layout.claims(name), self.lease_seconds)}
        endings = {part.id: ending_of(part) for part in parts.values()}
        told = _require_agreement(shown, endings, times)
        told += _tell_dead(study, shown, endings, held, told)
        if self.study.search is not None:
            _tell_unwritten(study, trials, {trial.number for _, trial in shown})
        failed = {(part.id, trial.user_attrs.get("claim")) for part, trial in shown if trial.state is TrialState.FAIL}
        for part in parts.values():
            ending = endings[part.id] or failure_of(part)
            if ending is not None and part.id not in held:
                untold = times[part.point] - told[part.id]
                if ending.state is TrialState.FAIL:  # each failure is shown once
                    untold = int((part.id, ending.attributes["claim"]) not in failed)
                self._add(study, part, ending, untold)
        return study

    def _add(self, study: Study, part: AnyTrial, ending: Ending, times: int) -> None:
        """Add trials with an ending that the study does not show."""
        for _ in range(times):
            self._touch_lock()
            study.add_trial(self.made_of(part, ending))

    def made_of(self, part: AnyTrial, ending: Ending) -> FrozenTrial:
        """Return a trial of Optuna that shows an ending."""
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

    def take(self) -> tuple[SearchTrial, Claim] | None:
        """Ask the sampler of a search for its next point, and claim it; None if it has asked for all of its points.

        Raises RunFailed if the storage cannot be used for as long as a lease.
        """
        assert self.study.search is not None
        import_for(self.study.search.sampler)
        deadline, failures = time.monotonic() + self.lease_seconds, 0
        while len(self.study.asked(self.layout)) < self.study.total:
            try:
                with self._lock():
                    taken = self._ask_sampler()
                if taken is not None:
                    return taken
            except OtherFolder:
                raise
            except Exception as error:  # each backend has its own errors; one that was removed meanwhile is made again
                failures += not is_transient(error)
                if time.monotonic() > deadline or failures > FAILURES_OF_ASKING:
                    raise RunFailed(f"{self.storage} cannot be asked for a point: {cause_of(error)}") from error
                time.sleep(POLL_SECONDS)
        return None

    def _ask_sampler(self) -> tuple[SearchTrial, Claim] | None:
        """Ask for a point and write it under the first free number. None if there is none, or if the point is known:
        then it counts once more."""
        study, asked = self._made_right(), self.study.asked(self.layout)
        number = next((number for number in range(self.study.total) if number not in asked), None)
        if number is None:
            return None
        self._touch_lock()
        study.sampler = self._sampler(number, set(asked.values()))
        trial = study.ask(self.space)
        point = Point(**trial.params)
        if not publish_sealed(self.study.request_file(self.layout, number), {"point": plain(point)}):
            _tell(study, trial.number, None)  # the lock was broken, and another worker was faster
            return None
        part = self.study.search_trial(self.layout, point)
        claim = acquire(self.layout.claims(part.id), self.lease_seconds)
        if claim is not None and not part.is_done and not part.error.exists():
            self._asked[part.id, claim.number] = trial
            self._quietly(lambda: self._mark(trial, part, claim.number))
            return part, claim
        with claim or nullcontext():
            self._quietly(lambda: self._tell_again(trial, part))
        return None

    def _mark(self, trial: optuna.Trial, part: AnyTrial, claim: int) -> None:
        for key, value in {"trial": part.id, "claim": claim}.items():
            trial.set_user_attr(key, value)

    def _tell_again(self, trial: optuna.Trial, part: SearchTrial) -> None:
        """Tell a trial at a point that was asked for before how it ended; if it has not ended yet, the trial failed."""
        trial.set_user_attr("trial", part.id)
        ending = ending_of(part)
        for step, value in ending.curve.items() if ending else ():
            trial.report(value, step)
        self._end(trial, ending, "this point was asked for before")

    def _sampler(self, number: int, had: set[Point]) -> BaseSampler:
        """Return the sampler of a search for its point of a number."""
        search = self.study.search
        assert search is not None
        if search.sampler == "grid":
            return Given(self.space, self.study.points[number])
        return Rounded(self.space, sampler_named(search.sampler, number), had)

    def _pruner(self) -> BasePruner:
        name = "none" if self.study.search is None else self.study.search.pruner
        return pruner_named(name, TENTHS * self.study.protocol.epochs)

    @contextmanager
    def running(self, part: AnyTrial, claim: Claim) -> "Iterator[Reports]":
        """Ask for a claimed point, and tell at the end what its record says, or that it failed. Yields what reports
        values by steps of Optuna."""
        trial = self._asked.pop((part.id, claim.number), None) or self._ask(part, claim)
        error = UNDEFINED
        try:
            yield Reports(self, trial)
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

    def _ask(self, part: AnyTrial, claim: Claim) -> optuna.Trial | None:
        """Return the asked trial. None if the storage cannot be used for as long as a lease: the point is run unseen,
        and the next worker that can reach the storage adds it."""
        deadline = time.monotonic() + (0 if self._trouble_since else self.lease_seconds)
        while True:
            try:
                with self._lock():
                    study = self._made_right()
                    study.sampler = Given(self.space, part.point)
                    trial = study.ask(self.space)
                    self._mark(trial, part, claim.number)
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

    def _quietly(self, call: Callable[[], Any]) -> Any:
        """Call the study, if its file is the one that was opened. No trouble with it ends a trial."""
        if self.storage.is_current:
            try:
                return call()
            except Exception as error:  # what could not be told is told by the next worker that takes a trial
                logger.info(f"{self.storage}: {cause_of(error)}")
        return None

    def _touch_lock(self) -> None:
        """Keep the lock from being broken while many trials are added."""
        with suppress(OSError):
            os.utime(self.layout.root / f"optuna{LOCK_SUFFIX}")


def _require_agreement(shown: Shown, endings: Endings, times: Mapping[Point, int]) -> Counter[str]:
    """Return how often the parts have ended in the study. Raises Contradiction if one is not as recorded, or is there
    more often than it was asked for."""
    told: Counter[str] = Counter()
    for part, trial in shown:
        if trial.state in ENDED:
            told[part.id] += 1
            if not _agrees(trial, endings[part.id]) or told[part.id] > times[part.point]:
                raise Contradiction(f"trial {trial.number} is not what was recorded, or is there too often")
    return told


def _tell_dead(study: Study, shown: Shown, endings: Endings, held: Set[str], told: Counter[str]) -> Counter[str]:
    """Tell running trials whose worker is dead, or whose part has ended, what was recorded. Returns what was told."""
    recorded: Counter[str] = Counter()
    for part, trial in shown:
        has_ended = part.id in told or part.id in recorded
        if trial.state is TrialState.RUNNING and (has_ended or part.id not in held):
            ending = None if has_ended else _if_of(trial.user_attrs.get("claim"), endings[part.id])
            _tell(study, trial.number, ending)
            if ending is not None:
                recorded[part.id] += 1
    return recorded


def _tell_unwritten(study: Study, trials: Sequence[FrozenTrial], known: Set[int]) -> None:
    """End running trials whose worker died before it wrote down the point that it had asked for."""
    for trial in trials:
        if trial.state is TrialState.RUNNING and trial.number not in known:
            _tell(study, trial.number, None)


@dataclass
class Reports:
    """Reports values of a running trial to Optuna, once a step, and keeps them in `curve`. Without a trial it only
    keeps them."""

    sweep: Sweep | None = None
    trial: optuna.Trial | None = None
    curve: dict[int, float] = field(default_factory=dict)

    def __call__(self, step: int, value: float | None, *, may_prune: bool = True) -> None:
        """Report a value. Raises Pruned if the pruner of the study ends the trial."""
        sweep, trial = self.sweep, self.trial
        if value is None or step in self.curve:
            return
        self.curve[step] = value
        if sweep is not None and trial is not None:
            sweep._quietly(lambda: trial.report(value, step))
            if may_prune and sweep.study.search is not None and sweep._quietly(trial.should_prune):
                raise Pruned(f"pruned at step {step}")

    def complete(self, curve: Mapping[int, float]) -> None:
        """Report what was not reported yet of a trial that is finished."""
        for step, value in curve.items():
            self(step, value, may_prune=False)


def by_tenths(report: Report, course_steps: int, epochs: int) -> Report:
    """Return a report by the number of updates for one by tenths of an epoch."""
    return lambda step, value: report(tenth_of_epoch(step, course_steps, epochs), value)


def _point_of(trial: FrozenTrial) -> Point | None:
    """Return the point of an Optuna trial; None if it has none."""
    try:
        return Point(**trial.params)
    except ValueError:
        return None


def _agrees(trial: FrozenTrial, ending: Ending | None) -> bool:
    """Return whether an Optuna trial ended as recorded. The value of a pruned one is its last report that arrived."""
    if ending is None or trial.state is not ending.state:
        return False
    return trial.state is TrialState.PRUNED or trial.value == ending.value


def _if_of(claim: int | None, ending: Ending | None) -> Ending | None:
    """Return an ending if it is of the attempt with this claim; another one has a trial of its own."""
    return ending if ending is not None and ending.attributes["claim"] == claim else None


def failure_of(part: AnyTrial) -> Ending | None:
    """Return the last failure of a trial without a record; None if it has not failed."""
    try:
        failure = read_json(part.error)
    except FileNotFoundError:
        return None
    attributes = {"trial": part.id, "claim": failure["claim"], "error": failure["error"]}
    return Ending(TrialState.FAIL, None, attributes=attributes, ended_at=part.error.stat().st_mtime)


def _tell(study: Study, number: int, ending: Ending | None) -> None:
    """Tell a running trial how it ended; without a record it failed."""
    state = TrialState.FAIL if ending is None else ending.state
    value = ending.value if ending is not None and state is TrialState.COMPLETE else None
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
