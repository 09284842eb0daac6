"""Variants: a parent plus declared modifications, and a check that they differ in nothing else."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem, or_
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from neobert.data.catalog import is_from_hub
from neobert.data.mteb_tasks import Wording
from neobert.data.pairs import Mix
from neobert.errors import did_you_mean
from neobert.identity import difference, leaves
from neobert.own_code import own_name
from neobert.recipe import Contrastive, EmbeddingPrecision, FineTuning, Grid, Pretraining, Start, Value
from neobert.starts import start_from


class EmbeddingProtocol(Value):
    """Contrastive fine-tuning of an encoder and its evaluation on embedding tasks.

    `pairs` selects the data sets of pairs, `instructions` the instructions for the tasks of MTEB(eng, v1), `precision`
    the precision of the evaluation.
    """

    contrastive: Contrastive
    pairs: Mix
    instructions: Wording
    precision: EmbeddingPrecision


class Recipe(Value):
    """All choices of a variant: pre-training, GLUE (protocol, grid and checkpoints) and the embedding protocol.

    `unscaled` are the dotted paths of fields that scales leave as they are. They are in no dump and in no id.
    """

    pretraining: Pretraining
    finetuning: FineTuning
    grid: Grid
    checkpoints: Literal["last_stage", "every_stage"]
    embedding: EmbeddingProtocol
    unscaled: tuple[str, ...] = Field(default=(), exclude=True)


SECTIONS = {
    "model": "pretraining.model",
    "data": "pretraining.data",
    "masking": "pretraining.masking",
    "optimization": "pretraining.optimization",
    "finetuning": "finetuning",
    "embedding": "embedding",
    "contrastive": "embedding.contrastive",
}
"""The sections of a modification: for each, the part of a recipe that it changes."""
CHOICES = {"pretraining": ("packing", "precision", "start"), "": ("grid", "checkpoints")}
"""The fields of a modification with a single value, by the part of a recipe that has a field of the same name."""


@dataclass(frozen=True)
class Modification:
    """One change. Each section maps fields of the recipe to their new values; other fields keep the parent's values.

    `row` is its row in the paper's Table 2. `stages` has one mapping per stage: entry i changes stage i, and an entry
    past the parent's stages adds a stage that starts as a copy of the previous one (of a stage that does not decay,
    without its plateau). `start` is what pre-training starts from: the folder or id of a run, or the folder of an
    export or a published checkpoint (`neobert.starts`). Values of an `unscaled` modification are used as they are at
    every scale.
    """

    title: str
    source: str
    row: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    masking: Mapping[str, Any] = field(default_factory=dict)
    optimization: Mapping[str, Any] = field(default_factory=dict)
    packing: str | None = None
    precision: str | None = None
    start: Start | str | Path | None = None
    stages: tuple[Mapping[str, Any], ...] = ()
    finetuning: Mapping[str, Any] = field(default_factory=dict)
    embedding: Mapping[str, Any] = field(default_factory=dict)
    contrastive: Mapping[str, Any] = field(default_factory=dict)
    grid: Grid | None = None
    checkpoints: str | None = None
    unscaled: bool = False

    def __post_init__(self) -> None:
        for section in SECTIONS:  # own parts, given as classes and functions, by their names
            changes = {key: own_name(value) if callable(value) else value for key, value in vars(self)[section].items()}
            object.__setattr__(self, section, changes)
        if isinstance(self.start, str | Path):
            object.__setattr__(self, "start", start_from(self.start))

    @property
    def _changes(self) -> dict[str, Mapping[str, Any]]:
        """The changes to each part of a recipe except stages: {dotted path of the part: {field: value}}."""
        found: dict[str, Mapping[str, Any]] = {path: vars(self)[section] for section, path in SECTIONS.items()}
        for path, names in CHOICES.items():
            found[path] = {name: vars(self)[name] for name in names if vars(self)[name] is not None}
        return found

    def apply(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this change. Raises ValueError if a value is impossible."""
        tree = recipe.model_dump()
        for path, changes in self._changes.items():
            reduce(getitem, path.split(".") if path else (), tree).update(changes)
        stages = tree["pretraining"]["stages"] = list(tree["pretraining"]["stages"])
        for index, changes in enumerate(self.stages):
            if index == len(stages):
                plateau = {} if changes.get("decay_steps", 1) else {"stable_steps": 0}
                stages.append({**stages[-1], **plateau})
            stages[index].update(changes)
        changed = validated(tree, f"modification {self.title!r}")
        others = tuple(path for path in recipe.unscaled if path not in self._fields)
        return changed.model_copy(update={"unscaled": others + (self._fields if self.unscaled else ())})

    @property
    def _fields(self) -> tuple[str, ...]:
        """The dotted paths of the fields that this modification sets."""
        stages = ((f"pretraining.stages.{index}", changes) for index, changes in enumerate(self.stages))
        parts = (*self._changes.items(), *stages)
        return tuple(f"{path}.{name}" if path else name for path, changes in parts for name in changes)

    def declared(self, before: Recipe) -> dict[str, Any]:
        """Return the leaves that this modification sets when applied to `before`: {dotted path: value after}."""
        parts: dict[str, Any] = dict(self._changes)
        count = len(before.pretraining.stages)
        for index, changes in enumerate(self.stages):
            added = self.apply(before).pretraining.stages[index] if index >= count else changes
            parts[f"pretraining.stages.{index}"] = added
        return {leaf: value for path, part in parts.items() for leaf, value in leaves(part, path).items()}


def validated(tree: dict[str, Any], where: str) -> Recipe:
    """Create a recipe from its plain form. Raises ValueError, with `where` and every wrong field in one sentence."""
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise ValueError(f"{where}: {findings_in(error, tree)}") from error


def findings_in(error: ValidationError, given: dict[str, Any] | None = None) -> str:
    """Return pydantic's errors as one phrase: each field with its problem. With the values that were `given`, an
    unknown field has the nearest ones beside it."""
    found = []
    for finding in error.errors():
        problem, place = finding["msg"].removeprefix("Value error, "), finding["loc"]
        if finding["type"] == "extra_forbidden" and given is not None:
            *path, name = place
            beside: Any = given
            for key in path:
                beside = beside[key]
            problem = f"there is no such field; {did_you_mean(str(name), (key for key in beside if key != name))}"
        found.append(f"{'.'.join(map(str, place))}: {problem}")
    return "; ".join(found)


@dataclass(frozen=True)
class Variant:
    """A node of the tree of variants.

    `kept` is False if the paper (grey in its Figure 1) or the author of another ladder discarded the variant.
    """

    name: str
    title: str
    source: str
    recipe: Recipe
    parent: Self | None = None
    modifications: tuple[Modification, ...] = ()
    kept: bool = True

    def derive(
        self,
        name: str,
        *modifications: Modification,
        title: str | None = None,
        kept: bool = True,
    ) -> "Variant":
        """Return a child of this variant. Raises ValueError if a modification is impossible here or changes nothing."""
        recipe = self.recipe
        for modification in modifications:
            recipe = modification.apply(recipe)
        prove(name, self.recipe, recipe, modifications)
        return Variant(
            name=name,
            title=title or ", ".join(modification.title for modification in modifications),
            source="; ".join(dict.fromkeys(modification.source for modification in modifications)),
            recipe=recipe,
            parent=self,
            modifications=modifications,
            kept=kept,
        )

    def delta(self) -> dict[str, tuple[Any, Any]]:
        """Return every leaf that differs from the parent: {dotted path: (before, after)}."""
        return {} if self.parent is None else difference(self.parent.recipe, self.recipe)

    def delta_by_row(self) -> dict[str, dict[str, tuple[Any, Any]]]:
        """Return the delta grouped by rows of the paper's Table 2."""
        grouped: dict[str, dict[str, tuple[Any, Any]]] = {}
        before = self.parent.recipe if self.parent else self.recipe
        for modification in self.modifications:
            after = modification.apply(before)
            grouped.setdefault(modification.row or modification.title, {}).update(difference(before, after))
            before = after
        return grouped

    def lineage(self) -> list[str]:
        """Return the names from the root to this variant."""
        return [*(self.parent.lineage() if self.parent else []), self.name]


def _declared(parent: Recipe, modifications: tuple[Modification, ...]) -> tuple[list[dict[str, Any]], Recipe]:
    """Return what each modification declares, applied one after the other, and the recipe after all of them."""
    each, recipe = [], parent
    for modification in modifications:
        each.append(modification.declared(recipe))
        recipe = modification.apply(recipe)
    return each, recipe


def prove(name: str, parent: Recipe, child: Recipe, modifications: tuple[Modification, ...]) -> None:
    """Check that the difference between child and parent is exactly what the modifications declare.

    Raises:
        ValueError: an undeclared leaf differs, a modification changes nothing (which one that is unscaled may, as it
            can differ at scales), or a value is not the declared one.
    """
    actual = difference(parent, child)
    by_modification, applied = _declared(parent, modifications)
    declared: dict[str, Any] = reduce(or_, by_modification, {})
    undeclared = sorted(path for path, (_, after) in actual.items() if path not in declared and after is not None)
    if undeclared:
        changes = ", ".join(f"{path}: {actual[path][0]} → {actual[path][1]}" for path in undeclared)
        raise ValueError(f"{name} differs from its parent by more than it declares: {changes}")
    wrong = sorted(path for path, value in declared.items() if path in actual and actual[path][1] != value)
    if wrong:
        raise ValueError(f"{name} does not have the declared value at {', '.join(wrong)}")
    for modification, own in zip(modifications, by_modification, strict=True):
        if not modification.unscaled and not any(path in actual for path in own):
            raise ValueError(f"{name}: modification {modification.title!r} declares a change but changes nothing")
    if other := difference(applied, child):  # a missing stage or subset, which has no value in the child
        raise ValueError(f"{name} does not have what it declares and its parent has: {', '.join(other)}")


WAYS_OUT = "declare the modification unscaled (Modification(…, unscaled=True)), or take --scale as-written"


def prove_scaled(
    name: str, parent: Recipe, child: Recipe, variant: Variant, consequences: Collection[str] = ()
) -> None:
    """Check a pair at a scale like `prove`: no undeclared leaf differs, and every modification still has an effect.

    `consequences` are leaves that may differ as well, because the scale computes them from declared ones.

    Raises:
        ValueError: an undeclared leaf differs at the scale, or the scale erases a modification.
    """
    assert variant.parent is not None
    actual = difference(parent, child)
    # Two modifications that cancel out (a width there and back) still declare the leaf: at a scale they may differ.
    by_modification, _ = _declared(variant.parent.recipe, variant.modifications)
    declared = variant.delta().keys() | reduce(or_, by_modification, {}).keys()
    undeclared = sorted(path for path in actual if path not in declared and path not in consequences)
    if undeclared:
        raise ValueError(
            f"{name}, scaled, differs from its parent by more than it declares: {', '.join(undeclared)}: add rows for "
            f"the numbers of both to the tables of a scale of your own, {WAYS_OUT}"
        )
    for modification, own in zip(variant.modifications, by_modification, strict=True):
        if not any(path in actual for path in own):
            raise ValueError(
                f"{name}: the scale erases modification {modification.title!r}: add a row for its numbers to the "
                f"tables of a scale of your own, {WAYS_OUT}"
            )


TOKENIZERS = {"wordpiece": "WordPiece", "bpe": "BPE"}


def change_label(variant: Variant, recipe: Recipe, parent: Recipe | None, origins: Mapping[str, str]) -> str:
    """Return the title of a variant at its scale.

    Sizes, lengths and names of data that only apply to the paper are replaced by those of the scaled `recipe` and its
    parent's. `origins` identify the content of the corpus and of the tokenizer.
    """
    own = ", ".join(modification.title for modification in variant.modifications)
    if parent is None or variant.title != own:
        return variant.title
    recipes = (parent.pretraining, recipe.pretraining, variant.recipe.pretraining)
    return ", ".join(dict.fromkeys(_label(each, *recipes, origins) for each in variant.modifications))


def _label(
    change: Modification, before: Pretraining, ours: Pretraining, paper: Pretraining, origins: Mapping[str, str]
) -> str:
    """Describe a modification at a scale, where it leads from `before` to `ours`; `paper` is the recipe as written."""
    of_stages = {field for stage in change.stages for field in stage}
    if {"layers", "width"} & change.model.keys() and _shape(ours) != _shape(paper):
        return f"{_shape(before)} → {_shape(ours)} (paper: {_shape(paper)})"
    if "corpus" in change.data and not is_from_hub(origins.get("corpus", "")):
        return f"{change.data['corpus']} text"
    if "tokenizer" in change.data and not is_from_hub(origins.get("tokenizer", "")):
        return f"own {TOKENIZERS[ours.data.tokenizer]}, {ours.model.vocabulary_size:,} tokens"
    if "context" in of_stages and _contexts(ours) != _contexts(paper):
        return f"context {before.stages[0].context:,} → {_contexts(ours)}"
    was, now, written = (each.stages[0].tokens_per_step for each in (before, ours, paper))
    if "tokens_per_step" in of_stages and now != written:
        return f"{was:,} → {now:,} tokens per step"
    return change.title


def _shape(pretraining: Pretraining) -> str:
    return f"{pretraining.model.layers} × {pretraining.model.width}"


def _contexts(pretraining: Pretraining) -> str:
    return " → ".join(f"{stage.context:,}" for stage in pretraining.stages)
