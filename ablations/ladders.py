"""Ladders: the paper's, and those of a user's own, which `--ladder FILE.py` names.

A ladder is a Python file in the form of `ablations/ladder.py`. Its variants are those that stand in it by name, also in
lists and mappings. All else is optional: TITLE of reports, FACTORS for designs, SCALES, SCALE, SAMPLE, TRANSFER_TASK,
TRANSFERRED_TASKS, PUBLISHED, PUBLISHED_AS and PRINTED_AS. One ladder is in use at a time. Run files hold whole recipes,
so that workers and jobs read no ladder, and an edited file changes nothing of what was planned.
"""

import argparse
import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from neobert.errors import MissingData, did_you_mean

if TYPE_CHECKING:
    from ablations.scales import Rules
    from ablations.variant import Factor, Modification, Variant
    from neobert.recipe import Grid
    from neobert.runs.layout import Layout

PAPERS = "ablations.ladder"
DEFAULT_SCALE = "smoke"
OWN_DEFAULT_SCALE = "as-written"
"""The default with a user's own ladder that has several scales, or none, and names none."""
OFFERED_SCALES = ("smoke", "laptop", "study", "proxy", "as-written", "paper")
"""The scales that commands offer with every ladder."""
REFUSED_NAME = re.compile(r"\.\.|\s|@(steps|rate)|^F:|^all$|^$")
"""Names with another meaning in commands: ranges, shares of the steps, rates, cells of factorials."""
SOURCE_NAME = re.compile(r"\w[^`$\\\n]*")
SCALE_NAME = re.compile(r"[a-z][a-z0-9_-]*")
HASH_DIGITS = 12


@dataclass(frozen=True, eq=False)
class Ladder:
    """Variants by name in the order of declaration, and their settings.

    `given` is the value of --ladder, empty for the paper's ladder; `title` is the heading of its reports. `scales` are
    added to the common ones, and `scale` is the default. External models are measured with the recipe of `root`. Sweeps
    pre-train `sample` if nothing is trained yet. `published` is a folder of CSV files with numbers to compare with,
    `published_as` the name of their source in sentences, `printed_as` the names of variants in that source. `code` is
    the content of the file of a user's own ladder.
    """

    given: str
    title: str
    variants: "dict[str, Variant]"
    declared_factors: "Mapping[str, Factor] | None"
    scales: "Mapping[str, Rules]"
    scale: str
    sample: "Variant"
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
        """The flag that selects this ladder, after a space; empty for the paper's."""
        return f" --ladder {self.given}" if self.given else ""

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
    def end(self) -> "Variant":
        """The last kept variant."""
        return next((each for each in reversed(self.steps.values()) if each.kept), next(iter(self.variants.values())))

    @cached_property
    def root(self) -> "Variant":
        """The baseline: the first variant in the lineage of the last kept one."""
        return self.variants[self.end.lineage()[0]]

    @cached_property
    def whole(self) -> "Variant":
        """The last variant in that lineage that changes pre-training; designs leave out its modifications."""
        way = [self.variants[name] for name in reversed(self.end.lineage())]
        changed = (each for each in way if each.parent and each.parent.recipe.pretraining != each.recipe.pretraining)
        return next(changed, self.root)

    @property
    def grids(self) -> "dict[str, Grid]":
        """The baseline's GLUE grid, and the largest of any variant."""
        grids = [variant.recipe.grid for variant in self.variants.values()]
        return {"limited": self.root.recipe.grid, "extended": max(grids, key=lambda grid: len(grid.points()))}

    @cached_property
    def factors(self) -> "Mapping[str, Factor]":
        """The factors of designs: the declared ones, or else one per modification."""
        return _factors_of(self) if self.declared_factors is None else self.declared_factors

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
        """Store a copy of a user's own ladder beside the runs that are planned from it."""
        from neobert.files import replace_file

        if self.given:
            path = layout.ladder(self.name, self.labels["ladder_sha256"][:HASH_DIGITS])
            if not path.exists():
                replace_file(path, self.code)


_used: ContextVar[Ladder | None] = ContextVar("ladder", default=None)
_papers: list[Ladder] = []


def current() -> Ladder:
    """Return the ladder in use: the paper's, unless inside `using`."""
    return _used.get() or papers()


def papers() -> Ladder:
    """Return the ladder of the paper."""
    if not _papers:
        _papers.append(_ladder_of(importlib.import_module(PAPERS), ""))
    return _papers[0]


def variants() -> "dict[str, Variant]":
    """Return all variants of the ladder in use by name, in the order of declaration."""
    return current().variants


def ladder() -> "dict[str, Variant]":
    """Return the variants of the ladder in use without alternatives (with an @ in their names)."""
    return current().steps


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
    """Add --ladder."""
    parser.add_argument(
        "--ladder", metavar="FILE.py", help="a ladder of your own, or the name of its module (default: the paper's)"
    )


def add_scale_flag(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --scale. `on_ladder` checks its value, because a ladder can have scales of its own, and fills in the default.

    `given_scale` is None if the flag is not given.
    """
    parser.add_argument("--scale", metavar=f"{{{','.join(OFFERED_SCALES)}}}", help=text)
    parser.set_defaults(offered_scales=OFFERED_SCALES)


def on_ladder(options: argparse.Namespace, action: Callable[[argparse.Namespace], int]) -> Callable[[], int]:
    """Return a function that runs the action with the ladder that the flags name.

    The function raises:
        MissingData: there is no such file or module.
        ValueError: it declares no ladder, or there is no such scale.
    """

    def act() -> int:
        own = None if options.ladder is None else load(options.ladder)
        with using(own):
            if "offered_scales" in options:
                options.given_scale = options.scale
                options.scale = current().scale if options.scale is None else options.scale
                refuse_scale(options.scale, (*options.offered_scales, *current().scales))
            return action(options)

    return act


def refuse_scale(scale: str, known: Collection[str]) -> None:
    """Check the name of a scale.

    Raises:
        ValueError: there is none of this name.
    """
    if scale not in known:
        raise ValueError(f"--scale {scale!r} is no scale: {did_you_mean(scale, known)}")


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
    module = ModuleType(f"ladder_{path.stem}", None)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    with _told(given, str(path)):
        exec(compile(code, str(path), "exec"), vars(module))
        return _ladder_of(module, given, code)


def _import_module(given: str) -> Ladder:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = find_spec(given)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        raise MissingData(f"--ladder {given}: there is no file and no module of this name")
    with _told(given, found.origin):
        return _ladder_of(importlib.import_module(given), given, Path(found.origin).read_bytes())


@contextmanager
def _told(given: str, path: str) -> Iterator[None]:
    """Turn exceptions of a ladder file into a ValueError with file and line."""
    try:
        yield
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.filename == path else ""
        raise ValueError(f"--ladder {given}{where}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f", line {lines[-1]}" if lines else ""
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"--ladder {given}{where}: {kind}{' '.join(str(error).split())}") from error


def _ladder_of(module: ModuleType, given: str, code: bytes = b"") -> Ladder:
    """Return the ladder that a module declares, after checking it."""
    from ablations import ladder as common

    declared, default = _variants_of(module), OWN_DEFAULT_SCALE if given else DEFAULT_SCALE
    others: dict[str, Any] = {
        "TITLE": (module.__doc__ or f"The ladder {Path(given).name}").strip().splitlines()[0].rstrip("."),
        "FACTORS": None,
        "SCALES": {},
        "SCALE": None,
        "SAMPLE": next(iter(declared.values())),
        "TRANSFER_TASK": common.TRANSFER_TASK,
        "TRANSFERRED_TASKS": common.TRANSFERRED_TASKS,
        "PUBLISHED": None,
        "PUBLISHED_AS": "the published study" if given else "the paper",
        "PRINTED_AS": {},
    }
    others |= {name: value for name, value in vars(module).items() if name in others}
    if others["SCALE"] is None and isinstance(others["SCALES"], dict):
        others["SCALE"] = next(iter(others["SCALES"])) if len(others["SCALES"]) == 1 else default
    if others["PUBLISHED"] is not None:
        others["PUBLISHED"] = Path(module.__file__ or "").parent / str(others["PUBLISHED"])
        if not given and not others["PUBLISHED"].is_dir():  # a wheel does not contain reports
            others["PUBLISHED"] = None
    _refuse_other_kinds(declared, others)
    return Ladder(
        given=given,
        title=others["TITLE"],
        variants=declared,
        declared_factors=others["FACTORS"],
        scales=others["SCALES"],
        scale=others["SCALE"],
        sample=declared[_name_of(others["SAMPLE"])],
        transfer_task=others["TRANSFER_TASK"],
        transferred_tasks=tuple(task for task in others["TRANSFERRED_TASKS"] if task != others["TRANSFER_TASK"]),
        published=others["PUBLISHED"],
        published_as=others["PUBLISHED_AS"],
        printed_as=others["PRINTED_AS"],
        code=code,
    )


def _name_of(sample: Any) -> str:
    return getattr(sample, "name", sample)


def _variants_of(module: ModuleType) -> "dict[str, Variant]":
    from ablations.variant import Variant

    values: list[Any] = []
    for value in vars(module).values():
        values += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    found: dict[str, Variant] = {}
    for value in values:
        if not isinstance(value, Variant):
            continue
        if found.setdefault(value.name, value) is not value:
            raise ValueError(f"it declares two variants {value.name}: give one of them another name")
        if REFUSED_NAME.search(value.name):
            raise ValueError(f"{value.name!r} cannot be the name of a variant, as commands read it otherwise")
    if not found:
        raise ValueError("it declares no variants: see examples/ and docs/own-ladder.md")
    for variant in found.values():
        parent = variant.parent
        if parent is not None and found.get(parent.name) is not parent:
            raise ValueError(
                f"{variant.name} continues {parent.name}, which the file does not hold: import or declare it "
                "there by name"
            )
    return found


def _refuse_other_kinds(declared: "Mapping[str, Variant]", others: Mapping[str, Any]) -> None:
    """Check the declarations of a ladder other than its variants."""
    from ablations.scales import SCALES, Rules
    from ablations.variant import Factor
    from neobert.glue.tasks import TASKS

    for name, kind in (("SCALES", Rules), ("FACTORS", Factor)):
        values = others[name] or {}
        if not isinstance(values, dict) or not all(isinstance(value, kind) for value in values.values()):
            raise ValueError(f"{name} maps names to {kind.__module__}.{kind.__name__}, and holds another thing")
    for name in others["SCALES"]:
        if not SCALE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a scale: take small letters")
        if name in SCALES:
            raise ValueError(f"SCALES redefines {name!r}, which every ladder has: give the scale another name")
    for name, known, values in (
        ("SCALE", (*OFFERED_SCALES, *others["SCALES"]), [others["SCALE"]]),
        ("SAMPLE", declared, [_name_of(others["SAMPLE"])]),
        ("PRINTED_AS", declared, others["PRINTED_AS"]),
        ("TRANSFER_TASK", TASKS, [others["TRANSFER_TASK"]]),
        ("TRANSFERRED_TASKS", TASKS, others["TRANSFERRED_TASKS"]),
    ):
        if unknown := [value for value in values if value not in known]:
            raise ValueError(f"{name} has {unknown[0]!r}: {did_you_mean(str(unknown[0]), known)}")
    if not isinstance(others["PUBLISHED_AS"], str) or not SOURCE_NAME.fullmatch(others["PUBLISHED_AS"]):
        raise ValueError(f"PUBLISHED_AS has {others['PUBLISHED_AS']!r}: say who prints the numbers, as in 'the paper'")
    if others["PUBLISHED"] is not None and not others["PUBLISHED"].is_dir():
        raise ValueError(f"PUBLISHED names {others['PUBLISHED']}, which is no folder of CSV files")


# Designs over a ladder that declares no factors


def _factors_of(own: Ladder) -> "dict[str, Factor]":
    """Return one factor per modification, which can be added to the root or left out of the whole where possible."""
    from ablations.variant import Factor

    way = modifications_of(own.whole)
    found: dict[str, Factor] = {}
    for modification in (each for variant in own.steps.values() for each in variant.modifications):
        name = re.sub(r"[^a-z0-9]+", "-", modification.title.lower()).strip("-")
        if name in found:
            continue
        others = [each for each in way if each != modification]
        why_not_added = _why_impossible(own.root, [modification])
        why_not_left_out = _why_impossible(own.root, others) if modification in way else f"{own.whole.name} has it not"
        found[name] = Factor(
            name,
            added=() if why_not_added else (modification,),
            removed=() if why_not_left_out else (modification,),
            reason="; ".join(filter(None, (why_not_added, why_not_left_out))),
        )
    return found


def _why_impossible(root: "Variant", modifications: "Sequence[Modification]") -> str:
    try:
        root.derive("tried", *modifications)
    except ValueError as error:
        return str(error)
    return ""


def modifications_of(variant: "Variant") -> "list[Modification]":
    """Return all modifications from the root to a variant, in order."""
    return [*(modifications_of(variant.parent) if variant.parent else []), *variant.modifications]
