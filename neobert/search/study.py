"""Studies of Optuna: every trial is asked for, reported and told, and can be watched as it runs.

Records are the truth about results, and claims say who works. Before a trial is taken, its worker makes the study agree
with both, under one lock for the folder of runs. A study that is lost, damaged or contradicts the records is made again
from them. Trouble with the storage never ends a trial.

In a search a sampler adds the points. Each point that it asks for is numbered and written to a file before a worker
takes it, so that every search has exactly as many as it should, and a killed worker's point is done by another.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from neobert.errors import RunFailed
from neobert.files import is_there
from neobert.runs.claims import LEASE_SECONDS, Claim, acquire, is_claimed, last_owner
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile, read_checked_run_file
from neobert.runs.work import Part, Work
from neobert.search.samplers import Given, import_for
from neobert.search.storages import (
    FolderLock,
    LockLost,
    Storage,
    cause_of,
    is_long,
    is_transient,
    shorten,
    storage_address,
    storage_at,
    trials_in,
)
from neobert.search.subjects import UNDEFINED, Asked, Ending, GlueSubject, Pruned, RateSubject, Subject, failure_of

logger = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.ERROR)

POLL_SECONDS = 0.5
FAILURES_OF_ASKING = 2
"""How often a sampler may fail before its worker ends: another worker may have removed the study meanwhile."""
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


class Contradiction(Exception):
    """The study shows something else than the records."""


Shown = Sequence[tuple[Part, FrozenTrial]]
"""Parts with the trials of the study that show them."""
Endings = Mapping[str, Ending | None]
"""By the id of a part: how it ended according to its record."""


# The studies


@dataclass
class OptunaStudy:
    """A study of Optuna, in a storage."""

    subject: Subject
    storage: Storage
    lease_seconds: float = LEASE_SECONDS
    _remade_at: float = -math.inf
    _trouble_since: float | None = None
    _asked: dict[tuple[str, int], optuna.Trial] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The folder of runs."""
        return self.subject.layout

    @cached_property
    def lock(self) -> FolderLock:
        """The lock under which a study is made to agree, and asked for a trial."""
        return FolderLock(self.layout.root)

    def opened(self) -> Study:
        """Open the Optuna study, and create it if it does not exist.

        Raises whatever the storage raises.
        """
        if (study := self._found()) is not None:
            return study
        study = optuna.create_study(
            study_name=self.subject.name,
            storage=self.storage.open(),
            direction=self.subject.direction,
            pruner=self.subject.pruner(),
            load_if_exists=True,
        )
        own = {"study": self.subject.id, "runs": str(self.layout.root)}
        for key, value in {**self.subject.attributes, **own}.items():
            study.set_user_attr(key, value)
        return study

    def _found(self) -> Study | None:
        """Open the Optuna study; None if it does not exist. Raises as `opened`."""
        storage = self.storage.open()
        end = f"({self.subject.id})"
        names = [each.study_name for each in storage.get_all_studies() if each.study_name.endswith(end)]
        if not names:
            return None
        return optuna.load_study(study_name=names[0], storage=storage, pruner=self.subject.pruner())

    # Making the study agree

    def show(self) -> Study:
        """Make the study agree with records and claims, and return it. Raises whatever the storage raises."""
        while True:
            with suppress(LockLost), self.lock:
                return self._made_right(self.subject.asked())

    def _made_right(self, asked: Asked) -> Study:
        """Return the study after mending it; one that cannot be mended is made again, at most once a lease. A file that
        was deleted or replaced meanwhile is only opened anew."""
        try:
            return self._mended(asked)
        except Exception as error:  # each backend has its own errors
            if is_transient(error):
                raise
            if self.storage.is_current:
                if time.monotonic() - self._remade_at < self.lease_seconds:
                    raise
                logger.warning(f"{self.storage} is made again from the records: {cause_of(error)}")
                self._remove()
            return self._mended(asked)

    def _mended(self, asked: Asked) -> Study:
        """Return the study after making it show what claims and records say.

        Workers publish, tell, release. So trials are read first, then claims, then records.
        """
        study = self.opened()
        trials = study.get_trials(deepcopy=False)
        subject, wanted = self.subject, self.subject.trials(asked)
        parts = {subject.key_of_part(part): part for part in wanted}
        times = Counter(part.id for part in wanted)
        shown = [(parts[key], trial) for trial in trials if (key := subject.key_of(trial)) in parts]
        held = self._live_claims(shown)
        endings = {part.id: subject.ending_of(part) for part in parts.values()}
        self.lock.keep()
        told = _require_agreement(shown, endings, times)
        told += _tell_dead(study, shown, endings, held, told)
        known = {trial.number for _, trial in shown}
        for trial in trials:  # of workers that died before they wrote down the point that they had asked for
            if trial.state is TrialState.RUNNING and trial.number not in known:
                _tell(study, trial.number, None)
        free = [part for part in parts.values() if part.id not in held]
        self._add_untold(study, free, endings, shown, times - told)
        return study

    def _live_claims(self, shown: Shown) -> dict[str, int]:
        """Return the claim of each part with a running trial and a live owner."""
        running = [part.id for part, trial in shown if trial.state is TrialState.RUNNING]
        owners = {name: last_owner(self.layout.claims(name), self.lease_seconds) for name in running}
        return {name: owner.number for name, owner in owners.items() if owner is not None and owner.is_live}

    def _add_untold(
        self, study: Study, parts: Sequence[Part], endings: Endings, shown: Shown, untold: Counter[str]
    ) -> None:
        """Add the recorded endings that were not told, `untold` times each, and failures that the study does not show;
        each failure is shown once."""
        failed = {(part.id, trial.user_attrs.get("claim")) for part, trial in shown if trial.state is TrialState.FAIL}
        for part in parts:
            ending = endings[part.id] or failure_of(part, self.subject.marks_of(part))
            if ending is None:
                continue
            if ending.state is TrialState.FAIL:
                times = int((part.id, ending.attributes["claim"]) not in failed)
            else:
                times = untold[part.id]
            for _ in range(times):
                self.lock.keep()
                study.add_trial(self.made_of(part, ending))

    def made_of(self, part: Part, ending: Ending) -> FrozenTrial:
        """Return a trial of Optuna that shows an ending."""
        trial = create_trial(
            state=ending.state,
            value=ending.value,
            params=dict(self.subject.params_of(part)),
            distributions=self.subject.space,
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
        with suppress(KeyError):  # another worker was faster
            while (study := self._found()) is not None:
                optuna.delete_study(study_name=study.study_name, storage=self.storage.open())

    # One trial

    def take(self) -> tuple[Part, Claim] | None:
        """Ask the sampler of a search for its next point, and claim it; None if it has asked for all of its points.

        Raises RunFailed if the storage cannot be used for as long as a lease.
        """
        import_for(self.subject.sampler_name)
        deadline, failures = time.monotonic() + self.lease_seconds, 0
        while not self.subject.has_asked_all():
            try:
                with self.lock:
                    taken = self._ask_sampler()
                if taken is not None:
                    return taken
            except LockLost:  # after a wait for a dead worker's lock, which may take longer than a lease
                deadline = time.monotonic() + self.lease_seconds
            except Exception as error:  # each backend has its own errors; one that was removed meanwhile is made again
                failures += not is_transient(error)
                if time.monotonic() > deadline or failures > FAILURES_OF_ASKING:
                    raise RunFailed(f"{self.storage} cannot be asked for a point: {cause_of(error)}") from error
                time.sleep(POLL_SECONDS)
        return None

    def _ask_sampler(self) -> tuple[Part, Claim] | None:
        """Ask for a point and write it under the first free number. None if there is none, or if the point is known:
        then it counts once more."""
        subject, asked = self.subject, self.subject.asked()
        study = self._made_right(asked)
        number = next((number for number in range(subject.total) if number not in asked), None)
        if number is None:
            return None
        self.lock.keep()
        study.sampler = subject.sampler(number, asked)
        trial = study.ask(subject.space)
        if not subject.publish(number, trial.params):
            _tell(study, trial.number, None)  # the lock was broken, and another worker was faster
            return None
        part = subject.part_at(trial.params)
        claim = acquire(self.layout.claims(part.id), self.lease_seconds)
        if claim is not None and not part.is_done and not part.error.exists():
            self._asked[part.id, claim.number] = trial
            self._quietly(lambda: self._mark(trial, part, claim.number))
            return part, claim
        with claim or nullcontext():
            self._quietly(lambda: self._tell_again(trial, part))
        return None

    def _mark(self, trial: optuna.Trial, part: Part, claim: int | None) -> None:
        for key, value in {**self.subject.marks_of(part), "claim": claim}.items():
            trial.set_user_attr(key, value)

    def _tell_again(self, trial: optuna.Trial, part: Part) -> None:
        """Tell a trial at a point that was asked for before how it ended; if it has not ended yet, the trial failed."""
        self._mark(trial, part, None)
        ending = self.subject.ending_of(part)
        for step, value in ending.curve.items() if ending else ():
            trial.report(value, step)
        self._end(trial, ending, "this point was asked for before")

    @contextmanager
    def running(self, part: Part, claim: Claim) -> "Iterator[Reports]":
        """Ask for a claimed point, and tell at the end what its record says, or that it failed. Yields what reports
        values by steps of Optuna."""
        trial = self._asked.pop((part.id, claim.number), None) or self._ask(part, claim)
        error, reports = UNDEFINED, Reports(self, trial)
        try:
            yield reports
        except Exception as reason:
            error = f"{type(reason).__name__}: {reason}"
            raise
        finally:
            if trial is not None:
                self._quietly(lambda: self._finish(trial, reports, self._ending_by(claim, part, error), error))

    def _finish(self, trial: optuna.Trial, reports: "Reports", ending: Ending | None, error: str) -> None:
        reports.report_untold()
        self._end(trial, ending, error)

    def _ending_by(self, claim: Claim, part: Part, error: str) -> Ending | None:
        """Return how the attempt with a claim ended; None if it has no record. A record that names no claim is of
        another attempt if this one raised an error."""
        ending = _if_of(claim.number, self.subject.ending_of(part))
        is_unclear = ending is not None and ending.attributes["claim"] is None and error != UNDEFINED
        return None if is_unclear else ending

    def _end(self, trial: optuna.Trial, ending: Ending | None, error: str) -> None:
        if ending is None or ending.state is TrialState.FAIL:
            trial.set_user_attr("error", error)
        _tell(trial.study, trial.number, ending)

    def _ask(self, part: Part, claim: Claim) -> optuna.Trial | None:
        """Return the asked trial. None if the storage cannot be used for as long as a lease: the point is run unseen,
        and the next worker that can reach the storage adds it."""
        deadline = time.monotonic() + (0 if self._trouble_since else self.lease_seconds)
        while True:
            try:
                with self.lock:
                    study = self._made_right(self.subject.asked())
                    study.sampler = Given(self.subject.space, self.subject.params_of(part))
                    trial = study.ask(self.subject.space)
                    self._mark(trial, part, claim.number)
                self._trouble_since = None
                return trial
            except Exception as error:  # each backend has its own errors, and none of them may stop the work
                if not is_transient(error) or time.monotonic() > deadline:
                    if not self._trouble_since:
                        logger.warning(f"{self.storage}: {cause_of(error)}; the work goes on unseen by Optuna")
                    self._trouble_since = self._trouble_since or time.monotonic()
                    return None
                time.sleep(POLL_SECONDS)

    def _quietly(self, call: Callable[[], Any]) -> Any:
        """Call the study, if its file is the one that was opened. No trouble with it ends a trial."""
        try:
            return call() if self.storage.is_current else None
        except Exception as error:  # what could not be told is told by the next worker that takes a trial
            logger.info(f"{self.storage}: {cause_of(error)}")
            return None


def _require_agreement(shown: Shown, endings: Endings, times: Mapping[str, int]) -> Counter[str]:
    """Return how often the parts have ended in the study. Raises Contradiction if one is not as recorded, or is there
    more often than it was asked for."""
    told: Counter[str] = Counter()
    for part, trial in shown:
        if trial.state in ENDED:
            told[part.id] += 1
            if not _agrees(trial, endings[part.id]) or told[part.id] > times[part.id]:
                raise Contradiction(f"trial {trial.number} is not what was recorded, or is there too often")
    return told


def _tell_dead(
    study: Study, shown: Shown, endings: Endings, held: Mapping[str, int], told: Counter[str]
) -> Counter[str]:
    """Tell running trials whose worker is dead, or whose part has ended, what was recorded. Returns what was told.

    `held` has the claim of each part with a live owner; an attempt with a lower one is dead.
    """
    recorded: Counter[str] = Counter()
    for part, trial in reversed(shown):  # of two trials of one attempt the last is the one that its worker tells
        has_ended, claim = part.id in told or part.id in recorded, trial.user_attrs.get("claim")
        is_dead = part.id not in held or (claim is not None and claim < held[part.id])
        if trial.state is TrialState.RUNNING and (has_ended or is_dead):
            ending = None if has_ended else _if_of(claim, endings[part.id])
            if ending is not None and trial.intermediate_values != dict(ending.curve):
                ending = None  # reports were lost: a trial with all of them is added
            _tell(study, trial.number, ending)
            if ending is not None:
                recorded[part.id] += 1
    return recorded


@dataclass
class Reports:
    """Reports values of a running trial to Optuna, once a step, and keeps them in `curve`. Without a trial it only
    keeps them. What the storage did not take is reported again, with the next value or at the end."""

    optuna_study: OptunaStudy | None = None
    trial: optuna.Trial | None = None
    curve: dict[int, float] = field(default_factory=dict)
    untold: dict[int, float] = field(default_factory=dict)

    def __call__(self, step: int, value: float | None, *, may_prune: bool = True) -> None:
        """Report a value. Raises Pruned if the pruner of the study ends the trial."""
        optuna_study, trial = self.optuna_study, self.trial
        if value is None or step in self.curve:
            return
        self.curve[step] = self.untold[step] = value
        if optuna_study is not None and trial is not None:
            optuna_study._quietly(self.report_untold)
            if may_prune and optuna_study.subject.prunes and optuna_study._quietly(trial.should_prune):
                raise Pruned(f"pruned at step {step}")

    def report_untold(self) -> None:
        """Report the values that Optuna does not have yet. Raises what the storage raises."""
        for step, value in tuple(self.untold.items()):
            if self.trial is not None:
                self.trial.report(value, step)
            del self.untold[step]

    def complete(self, curve: Mapping[int, float]) -> None:
        """Report what was not reported yet of a trial that is finished."""
        for step, value in curve.items():
            self(step, value, may_prune=False)


def _agrees(trial: FrozenTrial, ending: Ending | None) -> bool:
    """Return whether an Optuna trial ended as recorded. The value of a pruned one is its last report that arrived."""
    if ending is None or trial.state is not ending.state:
        return False
    return trial.state is TrialState.PRUNED or trial.value == ending.value


def _if_of(claim: int | None, ending: Ending | None) -> Ending | None:
    """Return an ending if it may be of the attempt with this claim; another one has a trial of its own."""
    return ending if ending is not None and ending.attributes["claim"] in (claim, None) else None


def _tell(study: Study, number: int, ending: Ending | None) -> None:
    """Tell a running trial how it ended; without a record it failed."""
    state = TrialState.FAIL if ending is None else ending.state
    value = ending.value if ending is not None and state is TrialState.COMPLETE else None
    with suppress(UpdateFinishedTrialError):  # another worker told it at the same time
        study.tell(number, value, state=state, skip_if_finished=True)


SUBJECTS: Mapping[str, Callable[[Layout, Any, RunFile], Subject]] = {"glue": GlueSubject, "rates": RateSubject}
"""What studies are about, by the kind of work."""


@lru_cache(maxsize=64)
def optuna_study_of(layout: Layout, work: Work, address: str) -> OptunaStudy:
    """Return the study of work that has a run file. A worker keeps it for all trials."""
    run_file = read_checked_run_file(layout.root / work.folder)
    return OptunaStudy(SUBJECTS[work.kind](layout, work, run_file), storage_at(address))


def open_studies(layout: Layout, works: Sequence[Work], address: str) -> None:
    """Open a storage, and make those studies agree with their records whose work has a run file. A long journal of the
    folder's own is shortened first, unless somebody is at work.

    Raises ValueError if the storage cannot be used.
    """
    try:
        is_own = address == storage_address("journal", layout.root)
        _open_or_replace(storage_at(address), is_own=is_own)
        if is_own:
            _shorten(layout, storage_at(address))
        for work in works:
            if is_there(layout.root / work.folder / "run.json"):
                optuna_study_of(layout, work, address).show()
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


def _shorten(layout: Layout, storage: Storage) -> None:
    """Shorten an opened journal that is long, unless one of its running trials has a live owner."""
    with FolderLock(layout.root) as lock:
        opened, path = storage.open(), storage.path
        assert path is not None
        trials = trials_in(opened)
        running = (each.user_attrs.get("trial") for each in trials if each.state is TrialState.RUNNING)
        if is_long(path, trials) and not any(name and is_claimed(layout.claims(name)) for name in running):
            shorten(path, opened, lock)
