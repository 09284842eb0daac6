"""Shortening a journal: each trial has many lines in it, all of which every worker reads when it starts."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial

from neobert.files import replace_file

FEW_LINES = 10_000
"""So many are read in a fraction of a second."""
LINES_PER_TRIAL = 4
"""A journal with more of them is shortened to one for each trial. One that was shortened grows by some 20 for each
trial that runs, so it is not shortened again at every start."""


class Lines(BaseJournalBackend):
    """A journal in memory."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        return map(json.loads, self.lines[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.lines += [json.dumps(log, separators=(",", ":")) for log in logs]


def trials_in(storage: BaseStorage) -> list[FrozenTrial]:
    """Return the trials of all studies of a storage."""
    studies = (optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage))
    return [trial for study in studies for trial in study.get_trials(deepcopy=False)]


def is_long(journal: Path, trials: Sequence[FrozenTrial]) -> bool:
    """Return whether a journal with these trials has many more lines."""
    return journal.read_bytes().count(b"\n") > max(FEW_LINES, LINES_PER_TRIAL * len(trials))


def shorten(journal: Path, storage: BaseStorage, touch: Callable[[], None]) -> None:
    """Replace a journal, which `storage` has read, by one with the same studies and trials. What others write to the
    old one meanwhile is lost, so the caller holds a lock, which `touch` keeps from being broken."""
    lines = Lines()
    copy = JournalStorage(lines)
    for name in optuna.get_all_study_names(storage):
        optuna.copy_study(from_study_name=name, from_storage=storage, to_storage=copy)
        touch()
    replace_file(journal, "".join(f"{line}\n" for line in lines.lines).encode())
