"""Loading a ladder: the paper's, or the one of the file or module that `--ladder` names.

A ladder is a Python file in the form of `ablations/ladder.py`. Its variants are those that stand in it by name, also in
lists and mappings. All else is optional: TITLE of reports, END, SCALES, SCALE, SAMPLE, CORPORA, TASKS, GRIDS,
TRANSFER_TASK and TRANSFERRED_TASKS, PUBLISHED, PUBLISHED_AS and PRINTED_AS.
"""

import argparse
import ast
import importlib
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ablations.ladders import HASH_DIGITS, SCALES, FolderOfTexts, Ladder, is_as_kept, name_of
from neobert.errors import MissingData

if TYPE_CHECKING:
    from ablations.variant import Variant
    from neobert.glue.tasks import Task
    from neobert.search.space import Space

PAPERS = "ablations.ladder"
DEFAULT_SCALE = "smoke"
OWN_DEFAULT_SCALE = "as-written"
"""The default with a user's own ladder that has several scales, or none, and names none."""
REFUSED_NAME = re.compile(r"\.\.|\s|@(steps|rate)|^all$|^$")
"""Names with another meaning in commands: ranges, shares of the steps, rates."""
RETIRED_SETTINGS = {"FACTORS": "factors of designs", "READOUTS": "readouts that a ladder declares"}
"""Settings of a ladder that are refused, and what they were."""
KEPT = re.compile(rf"ladders/[^/]+-[0-9a-f]{{{HASH_DIGITS}}}\.py")
"""The end of the path of a ladder that was kept beside the runs that were planned from it."""


# The flag


def add_ladder_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ladder", metavar="FILE.py", help="a ladder of your own, or the name of its module (default: the paper's)"
    )


def add_scale_flag(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --scale. `Ladder.scale_named` checks its value, because a ladder can have scales of its own."""
    parser.add_argument("--scale", metavar=f"{{{','.join(SCALES)}}}", help=text)


# Loading


@cache
def papers() -> Ladder:
    """Return the paper's ladder."""
    return _ladder_of(importlib.import_module(PAPERS), "")


def load(given: str | Path | None) -> Ladder:
    """Load a ladder from a file, or from a module by its name; None means the paper's.

    Raises:
        MissingData: there is no such file or module.
        ValueError: it cannot be run, or does not declare a valid ladder.
    """
    if given in (None, PAPERS):
        return papers()
    given, path = str(given), Path(str(given))
    is_file = path.suffix == ".py" or "/" in given or path.is_file()
    return _run_file(path, given) if is_file else _import_module(given)


def _run_file(path: Path, given: str) -> Ladder:
    try:
        code = path.read_bytes()
    except OSError as error:
        raise MissingData(f"--ladder {given}: {error.strerror}: name a Python file") from error
    is_kept = KEPT.fullmatch("/".join(path.absolute().parts[-2:])) is not None
    if is_kept and not is_as_kept(path, code):
        raise ValueError(
            f"--ladder {given} was changed since runs were planned from it (its SHA-256 is not that in its name): name "
            "the file that it is a copy of, or copy it to another folder to use it as it is"
        )
    module = ModuleType(f"ladder_{path.stem}", None)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    with _told(given, str(path)):
        exec(compile(code, str(path), "exec"), vars(module))
        return _ladder_of(module, given, code)


def _import_module(given: str) -> Ladder:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    found = _find(given)
    if found is None or found.origin is None or not Path(found.origin).is_file():
        raise MissingData(f"--ladder {given}: there is no file and no module of this name")
    with _told(given, found.origin):
        return _ladder_of(importlib.import_module(given), given, Path(found.origin).read_bytes())


def _find(module: str) -> ModuleSpec | None:
    """Return where a module is, None if there is none of this name. The packages above it are imported; errors in them
    are raised as by `_told`."""
    package, dot, _ = module.rpartition(".")
    if dot:
        above = _find(package)
        if above is None:
            return None
        file = above.origin or package
        with _told(file, file):
            importlib.import_module(package)
    try:
        return find_spec(module)
    except (ImportError, ValueError):
        return None


@contextmanager
def _told(given: str, path: str) -> Iterator[None]:
    """Turn exceptions of a ladder file into a ValueError with file and line; MissingData stays what it is."""
    from pydantic import ValidationError

    from ablations.variant import findings_in

    try:
        yield
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.filename == path else ""
        raise ValueError(f"--ladder {given}{where}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f", line {lines[0]}" if lines else ""
        where += f" (in line {lines[-1]})" if lines[1:] else ""
        kind = "" if isinstance(error, ValueError | MissingData) else f"{type(error).__name__}: "
        raised = MissingData if isinstance(error, MissingData) else ValueError
        said = findings_in(error).removeprefix(": ") if isinstance(error, ValidationError) else str(error)
        raise raised(f"--ladder {given}{where}: {kind}{' '.join(said.split())}") from error


def _ladder_of(module: ModuleType, given: str, code: bytes = b"") -> Ladder:
    """Return the ladder that a module declares, after checking it. The tests check the paper's."""
    declared = _variants_of(module)
    settings = _settings_of(module, declared, given)
    if given:
        from ablations.ladder_checks import (
            refuse_impossible_tasks,
            refuse_unknown_names,
            refuse_wrong_kinds,
            verify,
        )

        refuse_wrong_kinds(settings)
        refuse_unknown_names(declared, settings)
        refuse_impossible_tasks(settings["TASKS"])
    scales, scale = settings["SCALES"], settings["SCALE"]
    if scale is None:
        default = OWN_DEFAULT_SCALE if given else DEFAULT_SCALE
        scale = next(iter(scales)) if len(scales) == 1 else default
    own = Ladder(
        given=given,
        title=settings["TITLE"],
        variants=declared,
        last_kept=declared[name_of(settings["END"])],
        scales=scales,
        scale=scale,
        sample=declared[name_of(settings["SAMPLE"])],
        corpora=_corpora_of(settings["CORPORA"], module),
        tasks=_tasks_of(settings["TASKS"], module),
        spaces=_spaces_of(settings["GRIDS"]),
        transfer_task=settings["TRANSFER_TASK"],
        transferred_tasks=tuple(task for task in settings["TRANSFERRED_TASKS"] if task != settings["TRANSFER_TASK"]),
        published=_published_beside(module, settings["PUBLISHED"], given),
        published_as=settings["PUBLISHED_AS"],
        printed_as=settings["PRINTED_AS"],
        code=code,
    )
    if given:
        verify(own)
    return own


def _settings_of(module: ModuleType, declared: "Mapping[str, Variant]", given: str) -> dict[str, Any]:
    """Return the settings that a module declares, or else their defaults; they are not checked yet. Raises ValueError
    if it declares one that left."""
    from ablations import ladder as common
    from neobert.glue.tasks import TASKS

    for name, what in RETIRED_SETTINGS.items():
        if name in vars(module):
            raise ValueError(f"{name}: {what} left, commit d02b01fd was the last to have them: take {name} out")
    # Of the file, as `python -OO` removes __doc__ and a title must not depend on it.
    documentation = ast.get_docstring(ast.parse(Path(str(module.__file__)).read_bytes())) or ""
    defaults: dict[str, Any] = {
        "TITLE": documentation.strip().split("\n")[0].rstrip(".") or f"The ladder {Path(given).name}",
        "END": _last_kept(declared),
        "SCALES": {},
        "SCALE": None,
        "SAMPLE": next(iter(declared.values())),
        "CORPORA": {},
        "TASKS": list(TASKS),
        "GRIDS": {},
        "TRANSFER_TASK": common.TRANSFER_TASK,
        "TRANSFERRED_TASKS": common.TRANSFERRED_TASKS,
        "PUBLISHED": None,
        "PUBLISHED_AS": "the published study" if given else "the paper",
        "PRINTED_AS": {},
    }
    return {name: vars(module).get(name, default) for name, default in defaults.items()}


def _published_beside(module: ModuleType, folder: str | Path | None, given: str) -> Path | None:
    """Return the folder of published numbers, relative to the module's own; None if there is none."""
    if folder is None:
        return None
    path = Path(module.__file__ or "").parent / folder
    return path if given or path.is_dir() else None  # the copy of the code that jobs run has no reports


def _tasks_of(chosen: "Sequence[Task | str]", module: ModuleType) -> "dict[str, Task]":
    """Return the tasks of a ladder by name; folders are relative to the module's own."""
    from neobert.glue.tasks import TASKS

    tasks = [TASKS[task] if isinstance(task, str) else task for task in chosen]
    own = {task.name: _beside(module, task.folder) for task in tasks if task.is_own}
    return {task.name: task.model_copy(update={"folder": own[task.name]}) if task.is_own else task for task in tasks}


def _spaces_of(declared: Mapping[str, Mapping[str, Any]]) -> "dict[str, Space]":
    """Return the spaces of searches that a ladder declares by distributions of Optuna."""
    if not declared:
        return {}
    from neobert.search.samplers import space_of

    if taken := [name for name in ("limited", "extended") if name in declared]:
        raise ValueError(f"GRIDS has {taken[0]!r}, the name of a grid that every ladder has: choose another")
    return {name: space_of(axes) for name, axes in declared.items()}


def _corpora_of(declared: Mapping[str, FolderOfTexts], module: ModuleType) -> dict[str, tuple[str, str]]:
    """Return the folder and text column of a ladder's own corpora; folders are relative to the module's own."""
    from neobert.data.corpora import TEXT_COLUMN

    pairs = {name: given if isinstance(given, tuple) else (given, TEXT_COLUMN) for name, given in declared.items()}
    return {name: (_beside(module, folder), column) for name, (folder, column) in pairs.items()}


def _beside(module: ModuleType, path: str | Path) -> str:
    """Return the absolute form of a path that is relative to the module's folder."""
    return str((Path(module.__file__ or "").resolve().parent / path).resolve())


def _last_kept(variants: "Mapping[str, Variant]") -> "Variant":
    """Return the last kept variant that is no alternative, or else the first variant."""
    kept = [variant for name, variant in variants.items() if variant.kept and "@" not in name]
    return kept[-1] if kept else next(iter(variants.values()))


def _variants_of(module: ModuleType) -> "dict[str, Variant]":
    from ablations.variant import Variant

    values: list[Any] = []
    for value in vars(module).values():
        values += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    found: dict[str, Variant] = {}
    for value in values:
        if not isinstance(value, Variant):
            continue
        if not isinstance(value.name, str) or REFUSED_NAME.search(value.name):
            raise ValueError(f"{value.name!r} cannot be the name of a variant, as commands read it otherwise")
        if found.setdefault(value.name, value) is not value:
            raise ValueError(f"it declares two variants {value.name}: give one of them another name")
    if not found:
        raise ValueError("it declares no variants: see examples/ and docs/own-ladder.md")
    return found
