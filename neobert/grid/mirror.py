"""Keeps Optuna's view up to date while workers work, and never in their way: its troubles are counted, not raised."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Self

from neobert.grid.claims import Claim, acquire
from neobert.grid.points import GridPoint, Observer
from neobert.grid.storages import STORAGE_VARIABLE, cause_of, storage_address, without_password
from neobert.grid.study import StudyView, open_storage
from neobert.layout import Layout
from neobert.records import read_record

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
