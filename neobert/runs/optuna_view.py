"""Optuna's view of GLUE studies, for optuna-dashboard and Optuna's own tools: finished and failed trials with curves.

Records on disk are the truth and claims decide who does what; the view is added to from them and can be made again. It
is synchronised at the start of a grid, when a trial ends and at the end, and its troubles never stop the work. Optuna
is imported here and nowhere else.
"""

import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from neobert.errors import did_you_mean
from neobert.files import read_json
from neobert.glue.tasks import decisive_score
from neobert.identity import plain
from neobert.runs.claims import acquire
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.specifications import GlueStudy, Trial

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

STORAGES = ("sqlite", "journal", "postgresql")
STORAGE_VARIABLE = "NEOBERT_GRID_STORAGE"  # an environment variable, since a URL may hold a password
SQLITE_TIMEOUT_SECONDS = 30
POSTGRESQL_TIMEOUT_SECONDS = 10
JOURNAL_GRACE_SECONDS = 10
SYNCHRONIZATION_SECONDS = 60.0
"""How long the end of a worker waits for another process that synchronises the same study."""
TROUBLES_BEFORE_SILENCE = 3
UNDEFINED = "the score is undefined"


def storage_address(name: str, root: Path) -> str:
    """The full address of a storage: a URL, or `journal:` and a file. ValueError where there is no such kind."""
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


def open_storage(address: str) -> "BaseStorage":
    """The storage behind `storage_address`, made where it does not exist. ValueError where Optuna or the driver is not
    installed, or the storage cannot be reached or read."""
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
    # No pool: updates are rare, and a connection that is kept would be one more thing to lose and to close.
    return RDBStorage(address, engine_kwargs={"connect_args": timeout, "poolclass": NullPool})


def study_name(study: GlueStudy) -> str:
    """How people find a study among many: task, weights, seed, and the name that decides."""
    return f"{study.task} on {study.weights}, seed {study.seed} ({study.id})"


def synchronize(storage: "BaseStorage", layout: Layout, study: GlueStudy) -> None:
    """Add a trial for each record, and for the last failure of each trial without one, that the storage lacks.

    Only one process may do so at a time. Trials are told apart by the user attributes `trial` and `claim`. Raises
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
        else:  # of a version that showed trials at work
            view.tell(trial.number, state=TrialState.FAIL)
    for part in study.trials(layout):
        frozen = None if part.id in complete else _frozen(study, part)
        if frozen is None:
            continue
        if frozen.state is TrialState.COMPLETE or (part.id, frozen.user_attrs["claim"]) not in failed:
            view.add_trial(frozen)


def _frozen(study: GlueStudy, part: Trial) -> "FrozenTrial | None":
    """The trial as Optuna keeps it, from its record or else its last failure; None where there is neither.

    An undefined score is FAIL with its reason, never a number.
    """
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial

    if part.is_done:
        record = read_record(part.record)
        claim = record.get("claim")
        score = None if record["state"] == "failed" else decisive_score(study.task, study.protocol, record["scores"])
        error = record.get("error", "failed") if record["state"] == "failed" else UNDEFINED if score is None else None
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
    """The observer of a worker: synchronises its studies when a trial ends and at the end.

    Troubles are counted, not raised. After three in a row it waits for `close` to make up for them.
    """

    def __init__(self, layout: Layout, address: str, studies: Sequence[GlueStudy]) -> None:
        """Open the storage; ValueError where it cannot be reached."""
        self.layout = layout
        self.address = address
        self.studies = tuple(studies)
        self.troubles = 0
        self._in_a_row = 0
        self._storage = open_storage(address)

    def update(self) -> None:
        """Show what is new; studies that another process synchronises just now are left to it."""
        self._synchronize(patience_seconds=0)

    def close(self) -> None:
        """Show everything, and say how much did not reach the storage before."""
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
            except Exception as error:  # whatever a database, a driver or a damaged file raises: the work goes on
                if self.troubles == 0:
                    _say(f"{without_password(self.address)}: {cause_of(error)}; the work goes on without it")
                self.troubles += 1
                self._in_a_row += 1

    def _alone(self, study: GlueStudy, patience_seconds: float) -> None:
        """Synchronise a study while no other process does, or leave it to that one."""
        deadline = time.monotonic() + patience_seconds
        while (claim := acquire(self.layout.claims(f"{study_name(study)}-view"))) is None:
            if not patience_seconds:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has synchronized study {study_name(study)} for a minute")
            time.sleep(0.05)
        with claim:
            synchronize(self._storage, self.layout, study)


def view_for_command(name: str | None, layout: Layout, studies: Sequence[GlueStudy]) -> OptunaView | None:
    """The view of a command that starts workers, synchronised. Without a name it is SQLite beside the runs, or, where
    Optuna is not installed, none. ValueError where the storage cannot be reached."""
    if name is None and find_spec("optuna") is None:
        _say("is not installed, so there is no study to look at; the grid needs none (`pip install optuna` adds it)")
        return None
    view = OptunaView(layout, storage_address(name or "sqlite", layout.root), studies)
    view._synchronize(SYNCHRONIZATION_SECONDS)
    return view


def view_of_environment(layout: Layout, studies: Sequence[GlueStudy]) -> OptunaView | None:
    """The view that a launcher asked its workers for; None where it asked for none or the storage went away."""
    address = os.environ.get(STORAGE_VARIABLE)
    if not address or not studies:
        return None
    try:
        return OptunaView(layout, address, studies)
    except ValueError as error:
        _say(f"{error}; the work goes on without it")
        return None


def _say(sentence: str) -> None:
    print(f"optuna: {sentence}", file=sys.stderr, flush=True)
