"""Weights that pre-training starts from: those of a finished run, an exported folder or a published checkpoint.

A recipe names them by their content (`neobert.recipe.Start`), so that moving them changes no id. run.json has their
folder, and the worker that reads them refuses other content.
"""

from pathlib import Path
from typing import Literal

from neobert.errors import DamagedFile, MissingData
from neobert.files import children, is_file, is_folder, sha256_of
from neobert.identity import IDENTITY_DIGITS
from neobert.recipe import Start

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
TOKENIZER = "tokenizer.json"
RUN = "run.json"
RUNS = Path("runs", "pretraining")
"""Where a run that is given by its id alone is looked for."""

_folders: dict[Start, str] = {}


def start_from(place: str | Path, optimizer: Literal["fresh", "restored"] = "fresh") -> Start:
    """Return what pre-training starts from, and remember its folder in this process.

    Args:
        place: the folder of a finished pre-training run, or its id if it is below runs/; or a folder with
            model.safetensors and tokenizer.json, such as an export or a published checkpoint.
        optimizer: whether the state of the optimizer starts anew, or continues that of the run.

    Raises:
        MissingData: there is nothing to start from.
        ValueError: the optimizer's state is asked of a folder that has none.
    """
    folder = Path(place)
    if not is_folder(folder) and is_folder(RUNS / folder):
        folder = RUNS / folder
    if not is_folder(folder):
        raise MissingData(f"start {str(place)!r} is no folder, and {RUNS} holds no run of this id")
    weights = _weights_in(folder)
    state = weights.with_name(OPTIMIZER)
    if optimizer == "restored" and not (is_file(folder / RUN) and is_file(state)):
        raise ValueError(f"start {folder} has no state of an optimizer: start from a run, or with a fresh optimizer")
    restored = _digits(state) if optimizer == "restored" else None
    start = Start(weights=_digits(weights), optimizer_state=restored)
    remember(start, str(folder.resolve()))
    return start


def remember(start: Start, folder: str) -> None:
    _folders[start] = folder


def folder_of(start: Start | None) -> str | None:
    """Return the folder of a start; None without a start. Raises MissingData if this process does not know it."""
    if start is not None and start not in _folders:
        raise MissingData(f"the folder of the start {start.weights} is not known: pass the --ladder file that names it")
    return None if start is None else _folders[start]


def start_files(start: Start) -> tuple[Path, Path | None]:
    """Return the files with the weights and, if it is restored, with the state of the optimizer, after checking both.

    Raises:
        MissingData: they are no longer there.
        DamagedFile: they have another content.
    """
    weights = _weights_in(Path(str(folder_of(start))))
    state = None if start.optimizer_state is None else weights.with_name(OPTIMIZER)
    for path, digits in ((weights, start.weights), (state, start.optimizer_state)):
        if path is None:
            continue
        if not is_file(path):
            raise MissingData(f"{path} is no longer there, and pre-training starts from it: restore it")
        if _digits(path) != digits:
            raise DamagedFile(f"{path} is not what this run was planned to start from: plan it again")
    return weights, state


def _weights_in(folder: Path) -> Path:
    """Return the file with the weights of a folder, of a run those of its last step."""
    if is_file(folder / RUN):
        done = folder / "done.json"
        steps = children(folder / "checkpoints", "step-*")  # some may be set aside as damaged
        checkpoints = [path for path in steps if path.name.removeprefix("step-").isdecimal()]
        if not is_file(done) or not checkpoints:
            raise MissingData(f"start {folder} is a run that is not finished: finish it first")
        return checkpoints[-1] / WEIGHTS
    for name in (WEIGHTS, TOKENIZER):
        if not is_file(folder / name):
            raise MissingData(f"start {folder} has no {name}: give a run, an export, or a folder with both")
    return folder / WEIGHTS


def _digits(path: Path) -> str:
    return sha256_of(path)[:IDENTITY_DIGITS]
