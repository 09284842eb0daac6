"""Loading a ladder: the paper's, or the one of the file that `--ladder` names.

A ladder is a Python file in the form of `ablations/ladder.py`. It is run, its variants and its settings (`Settings`)
are collected, and every variant is proved to be its parent plus what it declares.
"""

import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from reprlib import repr as shortened
from types import ModuleType
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, InstanceOf, StringConstraints, TypeAdapter, ValidationError

from ablations import ladder as papers_ladder
from ablations.ladders import SCALES, Ladder
from ablations.scales import Rules
from ablations.variant import Variant, findings_in, prove
from neobert.data.catalog import CORPORA
from neobert.data.corpora import TEXT_COLUMN
from neobert.errors import MissingData, did_you_mean
from neobert.glue.tasks import TASKS, Task
from neobert.model.size import has_own_parts, parameter_count
from neobert.own_code import is_own
from neobert.recipe import Pretraining
from neobert.search.space import Space
from neobert.training.schedule import SHARES_LEFT

DEFAULT_SCALE = "smoke"
OWN_DEFAULT_SCALE = "as-written"
"""The default with a user's own ladder that declares no scales."""
REFUSED_NAME = re.compile(r"\.\.|\s|@(steps|rate)|^all$|^$")
"""Names of variants with another meaning in commands: ranges, shares of the steps, rates."""
SMALL_NAME = re.compile(r"[a-z][a-z0-9_-]*")
FolderOfTexts = str | Path | tuple[str | Path, str]
"""A corpus as a ladder declares it: a folder, or a folder and its text column."""


class Settings(BaseModel):
    """The names besides variants that a ladder file may declare."""

    model_config = ConfigDict(strict=True, frozen=True)

    TITLE: Annotated[str, StringConstraints(pattern=r"\S")]
    SCALES: dict[str, InstanceOf[Rules]] = {}
    TASKS: Sequence[InstanceOf[Task] | str] = tuple(TASKS)
    CORPORA: dict[str, FolderOfTexts] = {}
    GRIDS: dict[str, dict[str, Any]] = {}

    @classmethod
    def of(cls, module: ModuleType, given: str) -> Self:
        """Return the settings of a module. Raises ValueError if one has another type, or left."""
        if left := [name for name in RETIRED_SETTINGS if name in vars(module)]:
            raise ValueError(f"{left[0]} is no setting any more: take it out; CHANGELOG.md says what is in its place")
        title = (module.__doc__ or "").strip().split("\n")[0].rstrip(".") or f"The ladder {Path(given).name}"
        declared = {name: vars(module)[name] for name in cls.model_fields if name in vars(module)}
        try:
            return cls.model_validate({"TITLE": title} | declared)
        except ValidationError as error:
            finding = error.errors()[0]
            name = str(finding["loc"][0])
            raise ValueError(f"{name}: {finding['msg']}, got {shortened(declared[name])}") from error


RETIRED_SETTINGS = (
    *("FACTORS", "READOUTS", "SCALE", "SAMPLE", "TRANSFER_TASK", "TRANSFERRED_TASKS"),
    *("END", "PUBLISHED", "PUBLISHED_AS", "PRINTED_AS"),
)


# Loading


@cache
def papers() -> Ladder:
    """Return the paper's ladder. The tests prove it."""
    own = _collected(papers_ladder, "")
    published, printed_as = papers_ladder.PUBLISHED_NUMBERS, papers_ladder.PRINTED_NAMES
    return replace(own, last_kept=papers_ladder.LAST_KEPT, published=published, printed_as=printed_as)


def load(given: str | Path | None) -> Ladder:
    """Load a ladder from a file; None means the paper's.

    Raises:
        MissingData: there is no such file.
        ValueError: it cannot be run, or does not declare a valid ladder.
    """
    if given is None:
        return papers()
    given, path = str(given), Path(str(given))
    try:
        code = path.read_bytes()
    except (OSError, ValueError) as error:
        raise MissingData(f"--ladder {given}: {error}: name a Python file") from error
    module = ModuleType(f"ladder_{path.stem}", None)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    with _told(given, str(path)):
        exec(compile(code, str(path), "exec"), vars(module))
        return proved(_collected(module, given, code))


@contextmanager
def _told(given: str, path: str) -> Iterator[None]:
    """Turn exceptions of a ladder file into a ValueError with file and line; MissingData stays what it is."""
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


# Collecting


def _collected(module: ModuleType, given: str, code: bytes = b"") -> Ladder:
    """Return the ladder that a module declares. Raises ValueError if a name in it is unknown or cannot be used."""
    variants, settings = _variants_of(module), Settings.of(module, given)
    for kind, taken, names in (("scale", SCALES, settings.SCALES), ("corpus", CORPORA, settings.CORPORA)):
        for name in names:
            if not SMALL_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a {kind}: take small letters")
            if name in taken:
                raise ValueError(f"every ladder has the {kind} {name!r}: give yours another name")
    folder, corpora = Path(module.__file__ or "").parent, {}
    for name, declared in settings.CORPORA.items():
        texts, column = declared if isinstance(declared, tuple) else (declared, TEXT_COLUMN)
        corpora[name] = str((folder / texts).resolve()), column
    kept = [variant for name, variant in variants.items() if variant.kept and "@" not in name]
    return Ladder(
        given=given,
        title=settings.TITLE,
        variants=variants,
        last_kept=kept[-1] if kept else next(iter(variants.values())),
        scales=settings.SCALES,
        scale=next(iter(settings.SCALES), OWN_DEFAULT_SCALE if given else DEFAULT_SCALE),
        corpora=corpora,
        tasks=_tasks_of(settings.TASKS, folder),
        spaces=_spaces_of(settings.GRIDS),
        code=code,
    )


def _variants_of(module: ModuleType) -> dict[str, Variant]:
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


def _tasks_of(chosen: Sequence[Task | str], folder: Path) -> dict[str, Task]:
    """Return the tasks of a ladder by name; folders are relative to the ladder's. GLUE's start as in the paper, unless
    they are declared otherwise.

    Raises:
        ValueError: two tasks have the same name, a task changes one of GLUE, has no folder, or starts from itself or
            from a task that is not there.
    """
    tasks: dict[str, Task] = {}
    for each in chosen:
        if isinstance(each, str) and each not in TASKS:
            raise ValueError(f"TASKS has {each!r}: {did_you_mean(each, TASKS)}")
        task = glue_task(each) if isinstance(each, str) else each
        if task.name in tasks:
            raise ValueError(f"TASKS has {task.name!r} twice")
        if not task.is_own and task != glue_task(task.name).model_copy(update={"starts_from": task.starts_from}):
            raise ValueError(f"TASKS declares {task.name!r}, which is one of GLUE: name it, or give yours another name")
        if task.is_own:
            if not task.folder:
                raise ValueError(f"task {task.name} has no folder: name the one with its files, relative to this file")
            task = task.model_copy(update={"folder": str((folder / task.folder).resolve())})
        tasks[task.name] = task
    _refuse_wrong_starts(tasks)
    return tasks


def _refuse_wrong_starts(tasks: Mapping[str, Task]) -> None:
    for task in tasks.values():
        if task.is_own and task.starts_from not in (None, *tasks):
            hint = did_you_mean(str(task.starts_from), tasks)
            raise ValueError(f"task {task.name} starts from {task.starts_from!r}, which is not in TASKS: {hint}")
        line = [task.name]
        while (before := tasks[line[-1]].starts_from) in tasks:
            if before in line:
                raise ValueError(f"task {task.name} starts from itself, by way of {', '.join(line[1:]) or 'nothing'}")
            line.append(str(before))


def glue_task(name: str) -> Task:
    """Return a task of GLUE, which starts as in the paper."""
    return TASKS[name].model_copy(update={"starts_from": papers_ladder.STARTS_FROM.get(name)})


def _spaces_of(declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Space]:
    """Return the spaces of searches that a ladder declares by distributions of Optuna."""
    if not declared:
        return {}
    from neobert.search.samplers import space_of  # imports optuna

    if taken := [name for name in ("limited", "extended") if name in declared]:
        raise ValueError(f"GRIDS has {taken[0]!r}, the name of a grid that every ladder has: choose another")
    return {name: space_of(axes) for name, axes in declared.items()}


# Proving


def proved(own: Ladder) -> Ladder:
    """Return a ladder after checking that every variant is its parent plus what it declares, however it was made, and
    that its parts can be built.

    Raises:
        ValueError: a check fails.
    """
    corpora = (*CORPORA, *own.corpora)
    for name, rules in own.scales.items():
        try:
            TypeAdapter(Rules).validate_python(dict(vars(rules)))
        except ValidationError as error:
            raise ValueError(f"SCALES[{name!r}]: {findings_in(error)}") from error
    for variant in own.variants.values():
        parent = variant.parent
        if parent is None and variant.modifications:
            raise ValueError(f"{variant.name} declares modifications of a parent, and it has none: give it one")
        if parent is not None and own.variants.get(parent.name) is not parent:
            where = "which the file does not hold: import or declare it there by name"
            raise ValueError(f"{variant.name} continues {parent.name}, {where}")
        if parent is not None:
            prove(variant.name, parent.recipe, variant.recipe, variant.modifications)
    for variant in own.variants.values():
        recipe = variant.recipe.pretraining
        try:
            _require_parts(recipe)
        except Exception as error:  # whatever a user's class raises
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(f"{variant.name} cannot be built: {kind}{error}") from error
        if (corpus := recipe.data.corpus) not in corpora:
            raise ValueError(f"{variant.name} reads corpus {corpus!r}: {did_you_mean(corpus, corpora)}")
    return own


def _require_parts(recipe: Pretraining) -> None:
    """Build a model with own parts, without memory for its weights, and call its own decay."""
    if has_own_parts(recipe.model):
        parameter_count(recipe.model, recipe.longest_context)
    optimization = recipe.optimization
    if is_own(optimization.optimizer):
        from neobert.training.optimization import OPTIMIZERS  # imports torch

        given, settings = (None, optimization), optimization.settings
        OPTIMIZERS.require(optimization.optimizer, *given, settings=settings, field="optimizer")
    SHARES_LEFT.make(optimization.decay, 0.5, settings=optimization.settings, field="decay")
