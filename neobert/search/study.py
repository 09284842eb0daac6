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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from neobert.errors import RunFailed
from neobert.files import is_there, reason_of
from neobert.runs.claims import LEASE_SECONDS, Claim, Owner, acquire, last_owner
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile, read_checked_run_file
from neobert.runs.work import Part, Work
from neobert.search.samplers import Given, import_for
from neobert.search.storages import FolderLock, Journal, LockLost, journal_of
from neobert.search.subjects import UNDEFINED, Asked, Ending, GlueSubject, Pruned, RateSubject, Subject, failure_of

logger = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.ERROR)

POLL_SECONDS = 0.5
FAILURES_OF_ASKING = 2
"""How often a sampler may fail before its worker ends: another worker may have removed the study meanwhile."""
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


class Contradiction(RunFailed):
    """The study shows something else than the records."""


Shown = Sequence[tuple[Part, FrozenTrial]]
"""Parts with the trials of the study that show them."""
Endings = Mapping[str, Ending | None]
"""By the id of a part: how it ended according to its record."""


# The studies


@dataclass
class OptunaStudy:
    """A study of Optuna, in the journal beside the runs."""

    subject: Subject
    lease_seconds: float = LEASE_SECONDS
    _remade_at: float = -math.inf
    _trouble_since: float | None = None
    _asked: dict[tuple[str, int], optuna.Trial] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The folder of runs."""
        return self.subject.layout

    @property
    def journal(self) -> Journal:
        """The journal of the folder of runs."""
        return journal_of(self.layout.root)

    @cached_property
    def lock(self) -> FolderLock:
        """The lock under which a study is made to agree, and asked for a trial."""
        return FolderLock(self.layout.root)

    def opened(self) -> Study:
        """Open the Optuna study, and create it if it does not exist. Raises as `Journal.open`."""
        storage = self.journal.open()
        end = f"({self.subject.id})"
        names = [each.study_name for each in storage.get_all_studies() if each.study_name.endswith(end)]
        if not names:
            return created(self.subject, storage)
        return optuna.load_study(study_name=names[0], storage=storage, pruner=self.subject.pruner())

    # Making the study agree

    def show(self) -> Study:
        """Make the study agree with records and claims, and return it. Raises as `Journal.open`."""
        while True:
            with suppress(LockLost), self.lock:
                return self._made_right(self.subject.asked())

    def _made_right(self, asked: Asked) -> Study:
        """Return the study after mending it; one that cannot be mended is made again, at most once a lease. A file that
        was deleted or replaced meanwhile is only opened anew."""
        try:
            return self._mended(asked)
        except OSError:
            raise
        except Exception as error:  # a damaged journal has many
            if self.journal.is_current:
                if time.monotonic() - self._remade_at < self.lease_seconds:
                    raise
                logger.warning(f"{self.journal.path} is made again from the records: {error}")
                self._remade_at = time.monotonic()
                self.journal.set_aside("the study does not agree with the records")
            return self._mended(asked)

    def _mended(self, asked: Asked) -> Study:
        """Return the study after making it show what claims and records say.

        Workers publish, tell, release. So trials are read first, then claims, then records.
        """
        study = self.opened()
        trials = study.get_trials(deepcopy=False)
        subject = self.subject
        parts = {subject.key_of_part(part): part for part in subject.trials(asked)}
        shown = [(parts[key], trial) for trial in trials if (key := subject.key_of(trial)) in parts]
        held = self._live_claims(shown)
        endings = {part.id: subject.ending_of(part) for part in parts.values()}
        self.lock.keep()
        told = _require_agreement(shown, endings)
        told |= _tell_dead(study, shown, endings, held, told)
        known = {trial.number for _, trial in shown}
        for trial in trials:  # of workers that died before they wrote down the point that they had asked for
            if trial.state is TrialState.RUNNING and trial.number not in known:
                _tell(study, trial.number, None)
        free = [part for part in parts.values() if part.id not in held]
        self._add_untold(study, free, endings, shown, told)
        return study

    def _live_claims(self, shown: Shown) -> dict[str, int]:
        """Return the claim of each part with a running trial and a live owner."""
        running = [part.id for part, trial in shown if trial.state is TrialState.RUNNING]
        return {name: owner.number for name in running if (owner := self._owner(name)) is not None}

    def _add_untold(
        self, study: Study, parts: Sequence[Part], endings: Endings, shown: Shown, told: Collection[str]
    ) -> None:
        """Add the recorded endings that were not told, and failures that the study does not show."""
        failed = {(part.id, trial.user_attrs.get("claim")) for part, trial in shown if trial.state is TrialState.FAIL}
        for part in parts:
            ending = endings[part.id] or failure_of(part, self.subject.marks_of(part))
            if ending is None:
                continue
            if ending.state is TrialState.FAIL:
                is_told = (part.id, ending.attributes["claim"]) in failed
            else:
                is_told = part.id in told
            if not is_told:
                self.lock.keep()
                study.add_trial(made_of(self.subject, part, ending))

    def _owner(self, name: str) -> Owner | None:
        """Return the live owner of a part; None if it has none."""
        owner = last_owner(self.layout.claims(name), self.lease_seconds)
        return owner if owner is not None and owner.is_live else None

    # One trial

    def take(self) -> tuple[Part, Claim] | None:
        """Ask the sampler of a search for its next point, and claim it; None if it has asked for all of its points.

        Raises RunFailed if the journal cannot be used for as long as a lease.
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
            except Exception as error:  # a damaged journal has many; one that was removed meanwhile is made again
                failures += not isinstance(error, OSError)
                if time.monotonic() > deadline or failures > FAILURES_OF_ASKING:
                    said = reason_of(error)
                    raise RunFailed(f"{self.journal.path} cannot be asked for a point: {said}") from error
                time.sleep(POLL_SECONDS)
        return None

    def _ask_sampler(self) -> tuple[Part, Claim] | None:
        """Ask for a point and write it under the first free number. None if there is none, or if the point is known:
        then it counts too, and its new trial failed."""
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
            self._quietly(lambda: self._end(trial, None, "this point was asked for before"))
        return None

    def _mark(self, trial: optuna.Trial, part: Part, claim: int | None) -> None:
        for key, value in {**self.subject.marks_of(part), "claim": claim}.items():
            trial.set_user_attr(key, value)

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
        """Return the asked trial. None if the journal cannot be used for as long as a lease: the point is run unseen,
        and the next worker that can reach the journal adds it."""
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
            except Exception as error:  # none may stop the work
                if not isinstance(error, OSError) or time.monotonic() > deadline:
                    if not self._trouble_since:
                        logger.warning(f"{self.journal.path}: {reason_of(error)}; the work goes on unseen by Optuna")
                    self._trouble_since = self._trouble_since or time.monotonic()
                    return None
                time.sleep(POLL_SECONDS)

    def _quietly(self, call: Callable[[], Any]) -> Any:
        """Call the study, if its file is the one that was opened. No trouble with it ends a trial."""
        try:
            return call() if self.journal.is_current else None
        except Exception as error:  # what could not be told is told by the next worker that takes a trial
            logger.info(f"{self.journal.path}: {reason_of(error)}")
            return None


def _require_agreement(shown: Shown, endings: Endings) -> set[str]:
    """Return which parts have ended in the study. Raises Contradiction if one is not as recorded, or is there twice."""
    told: set[str] = set()
    for part, trial in shown:
        if trial.state in ENDED:
            if part.id in told or not _agrees(trial, endings[part.id]):
                raise Contradiction(f"trial {trial.number} is not what was recorded, or is there twice")
            told.add(part.id)
    return told


def _tell_dead(
    study: Study, shown: Shown, endings: Endings, held: Mapping[str, int], told: Collection[str]
) -> set[str]:
    """Tell running trials whose worker is dead, or whose part has ended, what was recorded. Returns what was told.

    `held` has the claim of each part with a live owner; an attempt with a lower one is dead.
    """
    recorded: set[str] = set()
    for part, trial in reversed(shown):  # of two trials of one attempt the last is the one that its worker tells
        has_ended, claim = part.id in told or part.id in recorded, trial.user_attrs.get("claim")
        is_dead = part.id not in held or (claim is not None and claim < held[part.id])
        if trial.state is TrialState.RUNNING and (has_ended or is_dead):
            ending = None if has_ended else _if_of(claim, endings[part.id])
            if ending is not None and trial.intermediate_values != dict(ending.curve):
                ending = None  # reports were lost: a trial with all of them is added
            _tell(study, trial.number, ending)
            if ending is not None:
                recorded.add(part.id)
    return recorded


@dataclass
class Reports:
    """Reports values of a running trial to Optuna, once a step, and keeps them in `curve`. Without a trial it only
    keeps them. What the journal did not take is reported again, with the next value or at the end."""

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
        """Report the values that Optuna does not have yet. Raises what Optuna raises."""
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


def created(subject: Subject, storage: BaseStorage) -> Study:
    """Create the study of a subject in a storage, unless another process was faster."""
    study = optuna.create_study(
        study_name=subject.name,
        storage=storage,
        direction=subject.direction,
        pruner=subject.pruner(),
        load_if_exists=True,
    )
    own = {"study": subject.id, "runs": str(subject.layout.root)}
    for key, value in {**subject.attributes, **own}.items():
        study.set_user_attr(key, value)
    return study


def made_of(subject: Subject, part: Part, ending: Ending) -> FrozenTrial:
    """Return a trial of Optuna that shows an ending."""
    trial = create_trial(
        state=ending.state,
        value=ending.value,
        params=dict(subject.params_of(part)),
        distributions=subject.space,
        user_attrs=dict(ending.attributes),
        intermediate_values=dict(ending.curve),
    )
    trial.datetime_complete = datetime.fromtimestamp(ending.ended_at)
    trial.datetime_start = trial.datetime_complete - timedelta(seconds=ending.seconds)
    return trial


SUBJECTS: Mapping[str, Callable[[Layout, Any, RunFile], Subject]] = {"glue": GlueSubject, "rates": RateSubject}
"""What studies are about, by the kind of work."""


@lru_cache(maxsize=64)
def optuna_study_of(layout: Layout, work: Work) -> OptunaStudy:
    """Return the study of work that has a run file. A worker keeps it for all trials."""
    run_file = read_checked_run_file(layout.root / work.folder)
    return OptunaStudy(SUBJECTS[work.kind](layout, work, run_file))


def open_studies(layout: Layout, works: Sequence[Work]) -> None:
    """Make those studies agree with their records whose work has a run file. Raises as `Journal.open`."""
    for work in works:
        if is_there(layout.root / work.folder / "run.json"):
            optuna_study_of(layout, work).show()
