"""Checkpoints: folders with a manifest of checksums, renamed into place; runs resume from the newest valid one."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from neobert.errors import DamagedFile, MissingData
from neobert.files import (
    NO_FILE,
    children,
    is_there,
    json_bytes,
    publish_folder,
    read_json,
    replace_file,
    sha256_of,
    temporary_sibling,
)
from neobert.tensors import load_tensors, save_tensors
from neobert.training.schedule import NEWEST_KEPT

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk."""

    folder: Path
    step: int

    def weights(self) -> dict[str, Tensor]:
        """Load the model's tensors by state-dict key."""
        return load_tensors(self.folder / WEIGHTS)

    def optimizer(self) -> dict[str, Tensor]:
        """Load the optimizer's tensors, named as in `optimizer_tensors`."""
        return load_tensors(self.folder / OPTIMIZER)

    def state(self) -> dict[str, Any]:
        """Read everything else that a resumed run needs, as plain values."""
        state: dict[str, Any] = read_json(self.folder / STATE)
        return state


def folder_of(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def save(
    checkpoints: Path,
    step: int,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write a checkpoint of `step`; an existing one is kept if it is valid and has its optimizer state.

    The tensors are contiguous and share no memory, as safetensors wants them. `check` is called before the
    checkpoint is published; what it raises is raised, and nothing is left.
    """
    final = folder_of(checkpoints, step)
    if is_valid(final, with_optimizer=True):
        return
    temporary = temporary_sibling(final)
    temporary.mkdir(parents=True)
    try:
        save_tensors(weights, temporary / WEIGHTS)
        save_tensors(optimizer, temporary / OPTIMIZER)
        (temporary / STATE).write_bytes(json_bytes(state))
        digests = {name: sha256_of(temporary / name) for name in (WEIGHTS, OPTIMIZER, STATE)}
        (temporary / MANIFEST).write_bytes(json_bytes({"step": step, "sha256": digests}))
        check()
        if is_there(final):
            shutil.rmtree(final)
        publish_folder(temporary, final)
    except BaseException:  # interrupts included, so that no unfinished folder remains
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def is_valid(folder: Path, *, with_optimizer: bool = False) -> bool:
    """Return whether every file in the manifest exists and matches its checksum.

    With `with_optimizer` the manifest must have the optimizer state: a file that it lacks is checked by nothing. Raises
    OSError if a file is there and cannot be read.
    """
    needed = {WEIGHTS, STATE, OPTIMIZER} if with_optimizer else {WEIGHTS, STATE}
    digests = _digests(folder)
    try:
        is_complete = needed <= digests.keys() <= {WEIGHTS, OPTIMIZER, STATE}
        return is_complete and all(sha256_of(folder / name) == digest for name, digest in digests.items())
    except NO_FILE:
        return False


def _digests(folder: Path) -> dict[str, str]:
    """Return the checksums in the manifest by file; empty if it is damaged or gone."""
    try:
        return dict(read_json(folder / MANIFEST)["sha256"])
    except (DamagedFile, *NO_FILE, KeyError, TypeError, ValueError):
        return {}


def steps_on_disk(checkpoints: Path) -> list[int]:
    """Return the steps of all checkpoint folders, valid or not, in ascending order."""
    names = (path.name.removeprefix("step-") for path in children(checkpoints, "step-*"))
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def newest(checkpoints: Path) -> Checkpoint | None:
    """Return the newest valid checkpoint that has its optimizer state; damaged ones are skipped."""
    for step in reversed(steps_on_disk(checkpoints)):
        folder = folder_of(checkpoints, step)
        if is_valid(folder, with_optimizer=True):
            return Checkpoint(folder, step)
    return None


def load(checkpoints: Path, step: int) -> Checkpoint:
    """Return the checkpoint of one step, verified.

    Raises:
        MissingData: there is none.
        DamagedFile: it does not match its checksums.
    """
    folder = folder_of(checkpoints, step)
    known = ", ".join(map(str, steps_on_disk(checkpoints))) or "none"
    if not is_there(folder):
        raise MissingData(f"{checkpoints} has no checkpoint of step {step} (there: {known})")
    if not is_valid(folder):
        raise DamagedFile(f"{folder} does not match its checksums: choose another step (there: {known})")
    return Checkpoint(folder, step)


def prune(checkpoints: Path, milestones: frozenset[int], saved: int) -> None:
    """Delete all checkpoints before the step `saved` but milestones and the newest; older milestones lose their
    optimizer state. A run that fell back leaves later ones, which cannot be resumed from."""
    steps = [step for step in steps_on_disk(checkpoints) if step <= saved]
    for step in steps[:-NEWEST_KEPT]:
        folder = folder_of(checkpoints, step)
        if step not in milestones:
            shutil.rmtree(folder)
        elif is_there(folder / OPTIMIZER) and (digests := _digests(folder)):  # a damaged one stays as it is
            digests.pop(OPTIMIZER, None)
            replace_file(folder / MANIFEST, json_bytes({"step": step, "sha256": digests}))
            (folder / OPTIMIZER).unlink()
