"""Ladders: the paper's, and those of a user's own, which `--ladder FILE.py` names.

A ladder is a Python file in the form of `ablations/ladder.py`. Its variants are those that stand in it by name, also in
lists and mappings. All else is optional: TITLE of reports, END, SCALES, SCALE, SAMPLE, CORPORA, TASKS, GRIDS,
TRANSFER_TASK and TRANSFERRED_TASKS, PUBLISHED, PUBLISHED_AS and PRINTED_AS. One ladder is in use at a time. Run files
hold whole recipes, so that workers and jobs read no ladder, and an edited file changes nothing of what was planned.
"""

import argparse
import ast
import hashlib
import importlib
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from neobert.errors import MissingData, did_you_mean

if TYPE_CHECKING:
    from ablations.scales import Rules
    from ablations.variant import Modification, Variant
    from neobert.glue.tasks import Task
    from neobert.recipe import Grid
    from neobert.runs.layout import Layout
    from neobert.search.space import Space

PAPERS = "ablations.ladder"
DEFAULT_SCALE = "smoke"
OWN_DEFAULT_SCALE = "as-written"
"""The default with a user's own ladder that has several scales, or none, and names none."""
SCALES = ("smoke", "study", "proxy", "as-written", "paper")
"""The scales that every ladder has."""
REFUSED_NAME = re.compile(r"\.\.|\s|@(steps|rate)|^all$|^$")
"""Names with another meaning in commands: ranges, shares of the steps, rates."""
SOURCE_NAME = re.compile(r"\w[^`$\\\n]*")
SCALE_NAME = re.compile(r"[a-z][a-z0-9_-]*")
HASH_DIGITS = 12
RETIRED_SETTINGS = {"FACTORS": "factors of designs", "READOUTS": "readouts that a ladder declares"}
"""Settings of a ladder that are refused, and what they were."""
KEPT = re.compile(rf"ladders/[^/]+-[0-9a-f]{{{HASH_DIGITS}}}\.py")
"""The end of the path of a ladder that was kept beside the runs that were planned from it."""
FolderOfTexts = str | Path | tuple[str | Path, str]
"""A corpus as a ladder declares it: a folder, or a folder and its text column."""


@dataclass(frozen=True, eq=False)
class Ladder:
    """Variants by name in the order of declaration, and their settings.

    `given` is the value of --ladder, empty for the paper's ladder; `title` is the heading of its reports. `last_kept`
    is the variant that designs refer to: `root` and `full_variant` follow from its lineage, so that a variant beside
    that lineage changes no design. `scales` are added to the common ones, and `scale` is the default. External models
    are measured with the recipe of `root`. Sweeps pre-train `sample` if nothing is trained yet. `corpora` are its own:
    (folder, text column) by name. `tasks` are what it fine-tunes on, by name. `spaces` are what
    searches of GLUE may try, by name. `published` is a folder of CSV files with
    numbers to compare with, `published_as` the name of their source in sentences, `printed_as` the names of variants in
    that source. `code` is the content of the file of a user's own ladder.
    """

    given: str
    title: str
    variants: "dict[str, Variant]"
    last_kept: "Variant"
    scales: "Mapping[str, Rules]"
    scale: str
    sample: "Variant"
    corpora: Mapping[str, tuple[str, str]]
    tasks: "Mapping[str, Task]"
    spaces: "Mapping[str, Space]"
    transfer_task: str
    transferred_tasks: tuple[str, ...]
    published: Path | None
    published_as: str
    printed_as: Mapping[str, str]
    code: bytes = b""

    @property
    def name(self) -> str:
        """The name of its file or module; empty for the paper's."""
        return Path(self.given).name

    @property
    def flag(self) -> str:
        """The flag that selects this ladder, after a space and as a shell reads it; empty for the paper's."""
        return f" --ladder {shlex.quote(self.given)}" if self.given else ""

    @property
    def published_source(self) -> str:
        """The source of the published numbers, without an article."""
        return self.published_as.removeprefix("the ")

    @property
    def not_kept(self) -> str:
        """The word for variants that are not kept."""
        return "not kept" if self.given else "discarded"

    @cached_property
    def steps(self) -> "dict[str, Variant]":
        """The variants without alternatives, which have an @ in their names."""
        return {name: variant for name, variant in self.variants.items() if "@" not in name}

    @cached_property
    def trunk(self) -> "tuple[Variant, ...]":
        """The lineage of `last_kept`, from the baseline."""
        return tuple(self.variants[name] for name in self.last_kept.lineage())

    @property
    def root(self) -> "Variant":
        """The baseline: the first variant of the trunk."""
        return self.trunk[0]

    @cached_property
    def full_variant(self) -> "Variant":
        """The last variant of the trunk that changes pre-training; designs leave out its modifications."""
        pairs = zip(self.trunk, self.trunk[1:], strict=False)
        changed = [child for parent, child in pairs if parent.recipe.pretraining != child.recipe.pretraining]
        return changed[-1] if changed else self.root

    @property
    def grids(self) -> "dict[str, Grid]":
        """The baseline's GLUE grid, and the largest on the trunk."""
        grids = [variant.recipe.grid for variant in self.trunk]
        return {"limited": self.root.recipe.grid, "extended": max(grids, key=lambda grid: len(grid.points()))}

    @cached_property
    def modifications(self) -> "dict[str, Modification]":
        """The modifications of its steps by their names in those of variants: RoPE is rope in M7-rope."""
        found: dict[str, Modification] = {}
        for modification in (each for variant in self.steps.values() for each in variant.modifications):
            words = "-".join(modification.title.split())
            name = re.sub(r"[^a-z0-9]+", "-", modification.title.lower()).strip("-") or words
            found.setdefault(name, modification)
        return found

    @property
    def own_tasks(self) -> "dict[str, Task]":
        """The tasks that are not GLUE's."""
        return {name: task for name, task in self.tasks.items() if task.is_own}

    @property
    def fine_tunes_on_glue(self) -> bool:
        """Whether one of GLUE's tasks is among its tasks."""
        return len(self.own_tasks) < len(self.tasks)

    def start_of(self, task: str) -> str | None:
        """Return the task whose best weights a task starts from; None if it starts from pre-training."""
        return self.tasks[task].starts_from or (self.transfer_task if task in self.transferred_tasks else None)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of this ladder in run files; empty for the paper's."""
        return {"ladder": self.name, "ladder_sha256": hashlib.sha256(self.code).hexdigest()} if self.given else {}

    def is_named(self, label: str | None, layout: "Layout") -> bool:
        """Return whether a run's label names this ladder's file, or the file that it is a stored copy of."""
        if not self.given or label is None:
            return self.name == (label or "")
        return self.name in (label, layout.ladder(label, self.labels["ladder_sha256"][:HASH_DIGITS]).name)

    def keep(self, layout: "Layout") -> None:
        """Store a copy of a user's own ladder beside the runs that are planned from it. A copy that was changed is set
        aside."""
        from neobert.files import replace_file, set_aside

        if self.given:
            path = layout.ladder(self.name, self.labels["ladder_sha256"][:HASH_DIGITS])
            if path.exists() and not is_as_kept(path, path.read_bytes()):
                set_aside(path, f"{path} was changed")
            if not path.exists():
                replace_file(path, self.code)


def is_as_kept(path: Path, content: bytes) -> bool:
    """Return whether the content of a kept ladder has the hash that its name ends in. It is the only copy of what was
    run."""
    return path.stem.rpartition("-")[2] == hashlib.sha256(content).hexdigest()[:HASH_DIGITS]


_used: ContextVar[Ladder | None] = ContextVar("ladder", default=None)


def current() -> Ladder:
    """Return the ladder in use: the paper's, unless inside `using`."""
    return _used.get() or papers()


@cache
def papers() -> Ladder:
    return _ladder_of(importlib.import_module(PAPERS), "")


def variants() -> "dict[str, Variant]":
    """Return all variants of the ladder in use by name, in the order of declaration."""
    return current().variants


def ladder() -> "dict[str, Variant]":
    """Return the variants of the ladder in use without alternatives (with an @ in their names)."""
    return current().steps


def known_scales() -> tuple[str, ...]:
    """Return the scales that every ladder has, followed by those of the ladder in use."""
    return (*SCALES, *current().scales)


def refuse_scale(scale: str) -> None:
    """Raise ValueError if there is no scale of this name."""
    if scale not in known_scales():
        raise ValueError(f"--scale {scale!r} is no scale: {did_you_mean(scale, known_scales())}")


@contextmanager
def using(own: Ladder | None) -> Iterator[None]:
    """Use this ladder within the context; None keeps the current one."""
    token = _used.set(own or _used.get())
    try:
        yield
    finally:
        _used.reset(token)


# The flag


def add_ladder_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ladder", metavar="FILE.py", help="a ladder of your own, or the name of its module (default: the paper's)"
    )


def add_scale_flag(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --scale. `on_ladder` checks its value, because a ladder can have scales of its own, and fills in the default.

    `given_scale` is None if the flag is not given.
    """
    parser.add_argument("--scale", metavar=f"{{{','.join(SCALES)}}}", help=text)
    parser.set_defaults(given_scale=None)


def on_ladder(options: argparse.Namespace, action: Callable[[argparse.Namespace], int]) -> Callable[[], int]:
    """Return a function that runs the action with the ladder that the flags name.

    The function raises:
        MissingData: there is no such file or module.
        ValueError: it declares no ladder, or there is no such scale.
    """

    def act() -> int:
        own = None if options.ladder is None else load(options.ladder)
        with using(own):
            if "given_scale" in options:
                options.given_scale = options.scale
                options.scale = current().scale if options.scale is None else options.scale
                refuse_scale(options.scale)
            return action(options)

    return act


# Loading


def load(given: str) -> Ladder:
    """Load a ladder from a file, or from a module by its name.

    Raises:
        MissingData: there is no such file or module.
        ValueError: it cannot be run, or does not declare a valid ladder.
    """
    if given == PAPERS:
        return papers()
    path = Path(given)
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


def name_of(variant: Any) -> str:
    return getattr(variant, "name", variant)


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


def modifications_of(variant: "Variant") -> "list[Modification]":
    """Return all modifications from the root to a variant, in order."""
    return [*(modifications_of(variant.parent) if variant.parent else []), *variant.modifications]
