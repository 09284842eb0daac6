"""Checks of a ladder of one's own: its declarations have the right types, and every variant is what it declares."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import Annotated, Any, TypeVar

from pydantic import InstanceOf, StringConstraints, TypeAdapter, ValidationError

from ablations.ladders import SCALES, FolderOfTexts, Ladder, name_of
from ablations.scales import Rules
from ablations.scaling import scaled
from ablations.variant import Modification, Variant, findings_in, prove
from neobert.data.catalog import CORPORA
from neobert.errors import did_you_mean
from neobert.glue.tasks import TASKS, Task
from neobert.model.size import has_own_parts, parameter_count
from neobert.own_code import is_own
from neobert.recipe import Pretraining
from neobert.training.schedule import SHARES_LEFT

SOURCE_NAME = re.compile(r"\w[^`$\\\n]*")
SCALE_NAME = re.compile(r"[a-z][a-z0-9_-]*")
Declared = TypeVar("Declared", Rules, Modification, Variant)
KINDS: Mapping[str, tuple[Any, str]] = {
    "TITLE": (Annotated[str, StringConstraints(pattern=r"\S")], "text"),
    "END": (InstanceOf[Variant] | str, "a variant or its name"),
    "SCALES": (dict[str, InstanceOf[Rules]], "a mapping of names to ablations.scales.Rules"),
    "SCALE": (str | None, "the name of a scale"),
    "SAMPLE": (InstanceOf[Variant] | str, "a variant or its name"),
    "CORPORA": (dict[str, FolderOfTexts], "a mapping of names to folders, or to pairs of a folder and its text column"),
    "TASKS": (
        list[InstanceOf[Task] | str] | tuple[InstanceOf[Task] | str, ...],
        "a list of neobert.glue.tasks.Task and names of GLUE tasks",
    ),
    "GRIDS": (
        dict[str, dict[str, Any]],
        "a mapping of names to mappings, which give each field of a point a distribution of Optuna",
    ),
    "TRANSFER_TASK": (str, "the name of a GLUE task"),
    "TRANSFERRED_TASKS": (list[str] | tuple[str, ...], "a list of names of GLUE tasks"),
    "PUBLISHED": (str | Path | None, "the path of a folder"),
    "PUBLISHED_AS": (str, "text that says who prints the numbers, as 'the paper'"),
    "PRINTED_AS": (dict[str, str], "a mapping of names of variants to names in the source"),
}
"""The optional declarations of a ladder: the type of each, and the same in words."""


def refuse_wrong_kinds(others: Mapping[str, Any]) -> None:
    """Raise ValueError if an optional declaration has another type."""
    for name, (kind, words) in KINDS.items():
        try:
            TypeAdapter(kind).validate_python(others[name], strict=True)
        except ValidationError as error:
            raise ValueError(f"{name} is {shortened(others[name])}, and must be {words}") from error
    for name, rules in others["SCALES"].items():
        refuse_wrong_types(rules, f"SCALES[{name!r}]")


def refuse_wrong_types(value: Declared, where: str) -> None:
    """Raise ValueError if a field of a dataclass has another type; the message names `where` and the field."""
    try:
        TypeAdapter(type(value)).validate_python(dict(vars(value)))
    except ValidationError as error:
        raise ValueError(f"{where}: {findings_in(error)}") from error


def refuse_unknown_names(declared: Mapping[str, Variant], others: Mapping[str, Any]) -> None:
    """Raise ValueError if the optional declarations contain a name that is unknown or cannot be used."""
    for name in others["SCALES"]:
        if not SCALE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a scale: take small letters")
        if name in SCALES:
            raise ValueError(f"SCALES redefines {name!r}, which every ladder has: give the scale another name")
    for name in others["CORPORA"]:
        if not SCALE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a corpus: take small letters")
        if name in CORPORA:
            raise ValueError(f"CORPORA redefines {name!r}, which every ladder has: give the corpus another name")
    for name, known, values in (
        ("END", declared, [name_of(others["END"])]),
        ("SCALE", (*SCALES, *others["SCALES"]), [] if others["SCALE"] is None else [others["SCALE"]]),
        ("SAMPLE", declared, [name_of(others["SAMPLE"])]),
        ("PRINTED_AS", declared, others["PRINTED_AS"]),
        ("TASKS", TASKS, [task for task in others["TASKS"] if isinstance(task, str)]),
        ("TRANSFER_TASK", TASKS, [others["TRANSFER_TASK"]]),
        ("TRANSFERRED_TASKS", TASKS, others["TRANSFERRED_TASKS"]),
    ):
        if unknown := [value for value in values if value not in known]:
            raise ValueError(f"{name} has {unknown[0]!r}: {did_you_mean(unknown[0], known)}")
    if not SOURCE_NAME.fullmatch(others["PUBLISHED_AS"]):
        raise ValueError(f"PUBLISHED_AS has {others['PUBLISHED_AS']!r}: say who prints the numbers, as in 'the paper'")


def refuse_impossible_tasks(chosen: Sequence[Task | str]) -> None:
    """Raise ValueError if a task of a ladder has no folder, the name of another one, a metric that is none of it, or an
    unknown task to start from."""
    names = [task if isinstance(task, str) else task.name for task in chosen]
    own = [task for task in chosen if isinstance(task, Task)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"TASKS has {repeated[0]!r} twice")
    for task in own:
        _refuse_impossible_task(task, names)
    _refuse_circles({task.name: task.starts_from for task in own})
    if own:
        from neobert.glue.metrics import refuse_impossible_metrics  # imports scikit-learn

        for task in own:
            refuse_impossible_metrics(task)


def _refuse_impossible_task(task: Task, names: Sequence[str]) -> None:
    if not task.is_own:
        raise ValueError(f"TASKS declares {task.name!r}, which is one of GLUE: name it, or give yours another name")
    if not task.folder:
        raise ValueError(f"task {task.name} has no folder: name the one with its files, relative to this file")
    if task.starts_from is not None and task.starts_from not in names:
        hint = did_you_mean(task.starts_from, names)
        raise ValueError(f"task {task.name} starts from {task.starts_from!r}, which is not in TASKS: {hint}")


def _refuse_circles(starts: Mapping[str, str | None]) -> None:
    """Refuse tasks that start from themselves, by way of others or directly."""
    for task in starts:
        line = [task]
        while (before := starts.get(line[-1])) is not None and before not in line:
            line.append(before)
        if before is not None:
            raise ValueError(f"task {task} starts from itself, by way of {', '.join(line[1:]) or 'nothing'}")


def verify(own: Ladder) -> None:
    """Check the variants, their corpora, the scales and the published folder of a ladder."""
    verify_variants(own.variants)
    corpora = (*CORPORA, *own.corpora)
    for variant in own.variants.values():
        corpus = variant.recipe.pretraining.data.corpus
        if corpus not in corpora:
            raise ValueError(f"{variant.name} reads corpus {corpus!r}: {did_you_mean(corpus, corpora)}")
        _refuse_rate_at_floor(variant)
    verify_scales(own)
    if own.published is not None and not own.published.is_dir():
        raise ValueError(f"PUBLISHED names {own.published}, which is no folder of CSV files")


def _refuse_rate_at_floor(variant: Variant) -> None:
    """Refuse a first stage without decay: it reads as a constant peak, but the rate stays at the floor, as is meant
    only for weights that were trained before."""
    recipe = variant.recipe.pretraining
    floor = recipe.optimization.floor_fraction
    if recipe.stages[0].decay_steps == 0 and recipe.start is None and floor < 1:
        raise ValueError(
            f"{variant.name}: with decay_steps 0 the learning rate of its first stage stays at the floor, {floor:g} of "
            "the peak: for the peak, set stable_steps to the steps of the stage, and decay_steps behind them"
        )


def verify_variants(variants: Mapping[str, Variant]) -> None:
    """Check that every variant is its parent plus what it declares, however it was made. Raises ValueError if one is
    not, its parent is not among the variants, it continues itself, or has own parts that cannot be built."""
    for variant in variants.values():
        refuse_wrong_types(variant, f"variant {variant.name}")
        for modification in variant.modifications:
            refuse_wrong_types(modification, f"variant {variant.name}: modification {modification.title!r}")
        parent = variant.parent
        if parent is None:
            if variant.modifications:
                raise ValueError(f"{variant.name} declares modifications of a parent, and it has none: give it one")
            continue
        if variants.get(parent.name) is not parent:
            raise ValueError(
                f"{variant.name} continues {parent.name}, which the file does not hold: import or declare it "
                "there by name"
            )
        _refuse_cycle(variant)
        prove(variant.name, parent.recipe, variant.recipe, variant.modifications)
    for variant in variants.values():
        try:
            _require_parts(variant.recipe.pretraining)
        except Exception as error:  # whatever a user's class raises
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(f"{variant.name} cannot be built: {kind}{error}") from error


def _require_parts(recipe: Pretraining) -> None:
    """Build a model with own parts, without memory for its weights, and call its own decay."""
    if has_own_parts(recipe.model):
        parameter_count(recipe.model, recipe.longest_context)
    optimization = recipe.optimization
    if is_own(optimization.optimizer):
        from neobert.training.optimization import OPTIMIZERS

        given, settings = (None, optimization), optimization.settings
        OPTIMIZERS.require(optimization.optimizer, *given, settings=settings, field="optimizer")
    SHARES_LEFT.make(optimization.decay, 0.5, settings=optimization.settings, field="decay")


def _refuse_cycle(variant: Variant) -> None:
    way = [variant]
    while (parent := way[-1].parent) is not None:
        way.append(parent)
        if any(parent is each for each in way[:-1]):
            names = " → ".join(each.name for each in reversed(way))
            raise ValueError(f"{variant.name} has no baseline, because its parents form a cycle: {names}")


def verify_scales(own: Ladder) -> None:
    """Check that the rules of every scale can be applied to every variant.

    A recipe that is impossible at a scale is refused when it is planned there, and not here.

    Raises:
        ValueError: a table lacks something, or there are no documents.
    """
    for name, rules in own.scales.items():
        if rules.documents < 1:
            raise ValueError(f"SCALES[{name!r}]: documents is {rules.documents}, and must be at least 1")
        for variant in own.variants.values():
            for vocabulary in ("trained", "published"):
                try:
                    scaled(own, variant.recipe, name, vocabulary)
                except ValueError:
                    continue
                except Exception as error:
                    raise ValueError(
                        f"SCALES[{name!r}] cannot be applied to {variant.name} with a {vocabulary} vocabulary: "
                        f"{type(error).__name__}: {error}"
                    ) from error
