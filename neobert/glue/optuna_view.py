"""Optuna view of GLUE studies, for optuna-dashboard and Optuna's own tools: finished and failed trials with curves.

The view is built from the records, is never read for the work, and can be rebuilt. It is synchronised at the start of a
grid, when a trial ends and at the end, and its errors never stop the work. Optuna is only imported here.
"""

import logging
import os
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from neobert.errors import did_you_mean
from neobert.files import read_json
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy, Trial
from neobert.runs.claims import acquire
from neobert.runs.layout import Layout
from neobert.runs.records import read_record

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

STORAGES = ("sqlite", "journal")
STORAGE_VARIABLE = "NEOBERT_GRID_STORAGE"
SQLITE_TIMEOUT_SECONDS = 30
JOURNAL_GRACE_SECONDS = 10
SYNCHRONIZATION_SECONDS = 60.0
"""How long a worker waits at its end for another process that synchronises the same study."""
TROUBLES_BEFORE_SILENCE = 3
UNDEFINED = "the score is undefined"


def storage_address(name: str, root: Path) -> str:
    """Return the full address of a storage: `sqlite:` or `journal:` and a file. Raises ValueError for other kinds."""
    kind, separator, rest = name.partition(":")
    if kind == "sqlite":
        return f"sqlite:{rest}" if separator else f"sqlite:///{root / 'optuna.db'}"
    if kind == "journal":
        return f"journal:{Path(rest).resolve() if rest else root / 'optuna.journal'}"
    raise ValueError(f"{kind!r} is no storage ({did_you_mean(kind, STORAGES)}): give sqlite or journal")


def cause_of(error: BaseException) -> str:
    """Return one line with the root cause of a storage's error, which drivers and Optuna wrap several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def open_storage(address: str) -> "BaseStorage":
    """Open the storage at an address from `storage_address`, and create it if it does not exist.

    Raises ValueError if Optuna is not installed, or if the storage cannot be read.
    """
    try:
        import optuna
    except ImportError as error:
        raise ValueError("the Optuna study needs optuna: install it with `pip install optuna`") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = _connect(address)
        storage.get_all_studies()
    except Exception as error:  # each backend has its own errors, and all mean that it cannot be used
        raise ValueError(f"storage {address} cannot be used ({cause_of(error)})") from error
    return storage


def _connect(address: str) -> "BaseStorage":
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
    from sqlalchemy.pool import NullPool

    kind, _, rest = address.partition(":")
    Path(rest.removeprefix("///")).parent.mkdir(parents=True, exist_ok=True)
    if kind == "journal":
        return JournalStorage(JournalFileBackend(rest, JournalFileSymlinkLock(rest, JOURNAL_GRACE_SECONDS)))
    # No pool: updates are rare, and an open connection would have to be closed.
    settings = {"connect_args": {"timeout": SQLITE_TIMEOUT_SECONDS}, "poolclass": NullPool}
    return RDBStorage(address, engine_kwargs=settings)


def study_name(study: GlueStudy) -> str:
    """Return the readable name of a study: task, weights, seed, and its id."""
    return f"{study.task} on {study.weights}, seed {study.seed} ({study.id})"


def synchronize(storage: "BaseStorage", layout: Layout, study: GlueStudy) -> None:
    """Add to the storage all missing trials: one per record, and one per last failure of a trial without a record.

    Only one process may do so at a time. Trials are identified by the user attributes `trial` and `claim`. Raises
    whatever the storage raises.
    """
    import optuna
    from optuna.trial import TrialState

    view = optuna.create_study(storage=storage, study_name=study_name(study), direction="maximize", load_if_exists=True)
    complete, failed = set(), set()
    for trial in view.get_trials(deepcopy=False):
        name = trial.user_attrs.get("trial")
        if trial.state is TrialState.COMPLETE:
            complete.add(name)
        elif trial.state.is_finished():
            failed.add((name, trial.user_attrs.get("claim")))
    for part in study.trials(layout):
        frozen = None if part.id in complete else _frozen(study, part)
        if frozen is None:
            continue
        if frozen.state is TrialState.COMPLETE or (part.id, frozen.user_attrs["claim"]) not in failed:
            view.add_trial(frozen)


def _frozen(study: GlueStudy, part: Trial) -> "FrozenTrial | None":
    """Return the trial for Optuna, from its record or else its last failure; None if there is neither.

    A trial with an undefined score is FAIL with its reason, never a number.
    """
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial

    if part.is_done:
        record = read_record(part.record)
        claim = record.get("claim")
        score = study.about.decisive_score(study.protocol, record["scores"])
        error = UNDEFINED if score is None else None
        curve = {int(step): float(value) for step, value in record["scores"].get("curve", ()) if value is not None}
    elif part.error.exists():
        failure = read_json(part.error)
        score, claim, error, curve = None, failure["claim"], failure["error"], {}
    else:
        return None
    axes = {axis: {plain(point)[axis] for point in study.points} for axis in plain(part.point)}
    attributes = {"trial": part.id, "claim": claim}
    trial = create_trial(
        state=TrialState.COMPLETE if error is None else TrialState.FAIL,
        value=score if error is None else None,
        params=plain(part.point),
        distributions={axis: CategoricalDistribution(sorted(values)) for axis, values in axes.items()},
        user_attrs=attributes if error is None else attributes | {"error": error},
        intermediate_values=curve,
    )
    if part.is_done:
        trial.datetime_complete = datetime.fromtimestamp(part.record.stat().st_mtime)
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=record.get("seconds", 0.0))
    return trial


class OptunaView:
    """Observer of a worker: synchronises its studies when a trial ends and at the end.

    Errors are counted, not raised. After three in a row, it waits until `close` to synchronise again.
    """

    def __init__(self, layout: Layout, address: str, studies: Sequence[GlueStudy]) -> None:
        """Open the storage. Raises ValueError if it cannot be used."""
        self.layout = layout
        self.address = address
        self.studies = tuple(studies)
        self.troubles = 0
        self._in_a_row = 0
        self._storage = open_storage(address)

    def update(self) -> None:
        """Synchronise all studies, except those that another process is synchronising."""
        self._synchronize(patience_seconds=0)

    def close(self) -> None:
        """Synchronise all studies, and report how many updates failed."""
        self._in_a_row = 0
        self._synchronize(patience_seconds=SYNCHRONIZATION_SECONDS)
        if self.troubles:
            said = "one update did" if self.troubles == 1 else f"{self.troubles} updates did"
            _say(f"{said} not reach the Optuna study; the records hold everything, and the next start shows it")

    def _synchronize(self, patience_seconds: float) -> None:
        for study in self.studies:
            if self._in_a_row >= TROUBLES_BEFORE_SILENCE:
                self.troubles += 1
                continue
            try:
                self._alone(study, patience_seconds)
                self._in_a_row = 0
            except Exception as error:  # no error of a database, a driver or a damaged file may stop the work
                if self.troubles == 0:
                    _say(f"{self.address}: {cause_of(error)}; the work goes on without it")
                self.troubles += 1
                self._in_a_row += 1

    def _alone(self, study: GlueStudy, patience_seconds: float) -> None:
        """Synchronise a study unless another process does; without patience, leave it to that process."""
        deadline = time.monotonic() + patience_seconds
        while (claim := acquire(self.layout.claims(f"{study_name(study)}-view"))) is None:
            if not patience_seconds:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has synchronized study {study_name(study)} for a minute")
            time.sleep(0.05)
        with claim:
            synchronize(self._storage, self.layout, study)


def view_for_command(
    name: str | None, layout: Layout, studies: Sequence[GlueStudy], default: str = "sqlite"
) -> OptunaView | None:
    """Return the synchronised view of a command that starts workers.

    Without a name it is the default beside the runs, or None if it cannot be used. Raises ValueError if the named
    storage cannot be used.
    """
    if name is None and find_spec("optuna") is None:
        _say("is not installed, so there is no study to look at; the grid needs none (`pip install optuna` adds it)")
        return None
    address = storage_address(name or default, layout.root)
    view = _view_if_usable(layout, address, studies) if name is None else OptunaView(layout, address, studies)
    if view is not None:
        view._synchronize(SYNCHRONIZATION_SECONDS)
    return view


def view_of_environment(layout: Layout, studies: Sequence[GlueStudy]) -> OptunaView | None:
    """Return the view that the launcher set for its workers; None if it set none or the storage cannot be used."""
    address = os.environ.get(STORAGE_VARIABLE)
    return _view_if_usable(layout, address, studies) if address and studies else None


def _view_if_usable(layout: Layout, address: str, studies: Sequence[GlueStudy]) -> OptunaView | None:
    try:
        return OptunaView(layout, address, studies)
    except ValueError as error:
        _say(f"{error}; the work goes on without it")
        return None


def _say(sentence: str) -> None:
    logger.warning(f"optuna: {sentence}")
