"""A variant is its parent plus declared modifications; the proof holds that it is nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from typing import Any, Literal, Self

from pydantic import ValidationError

from neobert.data.catalog import is_from_hub
from neobert.data.mteb_tasks import Wording
from neobert.data.pairs import Mix
from neobert.errors import did_you_mean
from neobert.identity import difference, leaves
from neobert.recipe import (
    Contrastive,
    Data,
    EmbeddingPrecision,
    FineTuning,
    Grid,
    Masking,
    Model,
    Optimization,
    Pretraining,
    Stage,
    Value,
)


class EmbeddingProtocol(Value):
    """How an encoder is made an embedder and measured as one.

    `pairs` says whose data sets of pairs are trained on, `instructions` whose instructions the tasks of MTEB(eng, v1)
    get, `precision` what they are measured in.
    """

    contrastive: Contrastive
    pairs: Mix
    instructions: Wording
    precision: EmbeddingPrecision


class Recipe(Value):
    """All choices of a variant: how it is pre-trained, how which of its checkpoints are measured on GLUE, and how the
    last one is made an embedder."""

    pretraining: Pretraining
    finetuning: FineTuning
    grid: Grid
    checkpoints: Literal["last_stage", "every_stage"]
    embedding: EmbeddingProtocol


SECTIONS: dict[str, tuple[str, type[Value]]] = {
    "model": ("pretraining.model", Model),
    "data": ("pretraining.data", Data),
    "masking": ("pretraining.masking", Masking),
    "optimization": ("pretraining.optimization", Optimization),
    "finetuning": ("finetuning", FineTuning),
    "embedding": ("embedding", EmbeddingProtocol),
    "contrastive": ("embedding.contrastive", Contrastive),
}
"""The sections of a modification: the part of a recipe whose fields each names, and the class of that part."""
CHOICES = {"pretraining": ("packing", "precision"), "": ("grid", "checkpoints")}
"""The fields of a modification that are one choice, by the part of a recipe which has a field of that name."""


@dataclass(frozen=True)
class Modification:
    """One change. Each section names fields of the recipe and their new values; the rest stays as the parent has it.

    `row` is the row of the paper's Table 2 it belongs to. `stages` holds one mapping a stage: entry i changes stage i,
    and an entry past the parent's stages adds one that starts as a copy of the stage before it.
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
    stages: tuple[Mapping[str, Any], ...] = ()
    finetuning: Mapping[str, Any] = field(default_factory=dict)
    embedding: Mapping[str, Any] = field(default_factory=dict)
    contrastive: Mapping[str, Any] = field(default_factory=dict)
    grid: Grid | None = None
    checkpoints: str | None = None

    def __post_init__(self) -> None:
        named = [(section, fields, vars(self)[section]) for section, (_, fields) in SECTIONS.items()]
        named += [(f"stages[{index}]", Stage, changes) for index, changes in enumerate(self.stages)]
        for section, fields, changes in named:
            for key in changes:
                if key not in fields.model_fields:
                    hint = did_you_mean(key, fields.model_fields)
                    raise ValueError(f"modification {self.title!r}: {section} has no field {key!r}; {hint}")

    @property
    def _changes(self) -> dict[str, Mapping[str, Any]]:
        """What is named of each part of a recipe, stages aside: {dotted path of the part: {field: value}}."""
        found: dict[str, Mapping[str, Any]] = {path: vars(self)[section] for section, (path, _) in SECTIONS.items()}
        for path, names in CHOICES.items():
            found[path] = {name: vars(self)[name] for name in names if vars(self)[name] is not None}
        return found

    def apply(self, recipe: Recipe) -> Recipe:
        """The recipe with this change.

        Raises:
            ValueError: a value is impossible, or it equals what is there already.
        """
        tree = recipe.model_dump()
        for path, changes in self._changes.items():
            reduce(getitem, path.split(".") if path else (), tree).update(changes)
        stages = tree["pretraining"]["stages"] = list(tree["pretraining"]["stages"])
        for index, changes in enumerate(self.stages):
            if index == len(stages):
                stages.append(dict(stages[-1]))
            stages[index].update(changes)
        return validated(tree, f"modification {self.title!r}")

    def declared(self, before: Recipe) -> dict[str, Any]:
        """The leaves this modification names, {dotted path: value after}, when applied to `before`."""
        parts: dict[str, Any] = dict(self._changes)
        count = len(before.pretraining.stages)
        for index, changes in enumerate(self.stages):
            added = self.apply(before).pretraining.stages[index] if index >= count else changes
            parts[f"pretraining.stages.{index}"] = added
        return {leaf: value for path, part in parts.items() for leaf, value in leaves(part, path).items()}


@dataclass(frozen=True)
class Factor:
    """A part of the recipe that a design switches on and off. `added` is what switching it on applies to the baseline,
    `removed` what leaving it out of the last variant omits; empty where that is impossible, for which `reason` is the
    sentence. `caution` is what a reader of its effect must know."""

    name: str
    added: tuple[Modification, ...]
    removed: tuple[Modification, ...]
    reason: str = ""
    caution: str = ""


def validated(tree: dict[str, Any], where: str) -> Recipe:
    """A recipe from its plain form, with pydantic's findings as one clear sentence.

    Raises:
        ValueError: what is wrong, at which field of what.
    """
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        findings = "; ".join(
            f"{'.'.join(str(part) for part in finding['loc'])}: {finding['msg'].removeprefix('Value error, ')}"
            for finding in error.errors()
        )
        raise ValueError(f"{where}: {findings}") from error


@dataclass(frozen=True)
class Variant:
    """A node of the tree of variants. `kept` is False where the paper discarded it (grey in its Figure 1), or the
    author of another ladder did; `left_out` are the modifications that a leave-one-out variant lacks."""

    name: str
    title: str
    source: str
    recipe: Recipe
    parent: Self | None = None
    modifications: tuple[Modification, ...] = ()
    kept: bool = True
    left_out: tuple[Modification, ...] = ()

    def derive(
        self,
        name: str,
        *modifications: Modification,
        title: str | None = None,
        kept: bool = True,
        left_out: tuple[Modification, ...] = (),
    ) -> "Variant":
        """A child of this variant.

        Raises:
            ValueError: a modification is impossible here or changes nothing.
        """
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
            left_out=left_out,
        )

    def delta(self) -> dict[str, tuple[Any, Any]]:
        """Every leaf that differs from the parent: {dotted path: (before, after)}."""
        return {} if self.parent is None else difference(self.parent.recipe, self.recipe)

    def delta_by_row(self) -> dict[str, dict[str, tuple[Any, Any]]]:
        """The delta grouped by rows of the paper's Table 2."""
        grouped: dict[str, dict[str, tuple[Any, Any]]] = {}
        before = self.parent.recipe if self.parent else self.recipe
        for modification in self.modifications:
            after = modification.apply(before)
            grouped.setdefault(modification.row or modification.title, {}).update(difference(before, after))
            before = after
        return grouped

    def lineage(self) -> list[str]:
        """Names from the root to this variant."""
        return [*(self.parent.lineage() if self.parent else []), self.name]


def _declared(parent: Recipe, modifications: tuple[Modification, ...]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    recipe = parent
    for modification in modifications:
        named.update(modification.declared(recipe))
        recipe = modification.apply(recipe)
    return named


def prove(name: str, parent: Recipe, child: Recipe, modifications: tuple[Modification, ...]) -> None:
    """Show that `child − parent` is exactly what the modifications declare.

    Raises:
        ValueError: an undeclared leaf differs, a declared one does not, or a value is another than declared.
    """
    actual = difference(parent, child)
    declared = _declared(parent, modifications)
    undeclared = sorted(path for path, (_, after) in actual.items() if path not in declared and after is not None)
    if undeclared:
        changes = ", ".join(f"{path}: {actual[path][0]} → {actual[path][1]}" for path in undeclared)
        raise ValueError(f"{name} differs from its parent by more than it declares: {changes}")
    wrong = sorted(path for path, value in declared.items() if path in actual and actual[path][1] != value)
    if wrong:
        raise ValueError(f"{name} does not have the declared value at {', '.join(wrong)}")
    for modification in modifications:
        if not any(path in actual for path in modification.declared(parent)):
            raise ValueError(f"{name}: modification {modification.title!r} declares a change but changes nothing")


def prove_scaled(name: str, parent: Recipe, child: Recipe, variant: Variant) -> None:
    """Show the same for a shrunk pair: no undeclared leaf differs and every modification is still there.

    Raises:
        ValueError: the scale leaks a difference into an undeclared leaf or has erased a modification.
    """
    assert variant.parent is not None
    actual = difference(parent, child)
    # Two steps that end where they began (a width there and back) declare it all the same: a scale may separate them.
    declared = variant.delta().keys() | _declared(variant.parent.recipe, variant.modifications).keys()
    undeclared = sorted(path for path in actual if path not in declared)
    if undeclared:
        raise ValueError(f"{name}, scaled, differs from its parent by more than it declares: {', '.join(undeclared)}")
    for modification in variant.modifications:
        if not any(path in actual for path in modification.declared(variant.parent.recipe)):
            raise ValueError(f"{name}: the scale erases modification {modification.title!r}")


TOKENIZERS = {"wordpiece": "WordPiece", "bpe": "BPE"}


def change_label(variant: Variant, recipe: Recipe, parent: Recipe | None, origins: Mapping[str, str]) -> str:
    """The title of a variant at its scale: sizes, lengths and names of data that are the paper's alone are replaced by
    those of its recipe and its parent's. `origins` identify the bytes of the corpus and of the tokenizer."""
    ours, paper = recipe.pretraining, variant.recipe.pretraining
    if variant.left_out:
        left_out = [_label(each, None, ours, paper, origins) or f"without {each.title}" for each in variant.left_out]
        return f"{variant.title.partition(' ')[0]} {', '.join(dict.fromkeys(left_out))}"
    own = ", ".join(modification.title for modification in variant.modifications)
    if parent is None or variant.title != own:
        return variant.title
    labels = [_label(each, parent.pretraining, ours, paper, origins) or each.title for each in variant.modifications]
    return ", ".join(dict.fromkeys(labels))


def _label(
    modification: Modification,
    before: Pretraining | None,
    ours: Pretraining,
    paper: Pretraining,
    origins: Mapping[str, str],
) -> str:
    """What a modification changes of the recipe `before`, or where it is left out (None), what is there in its place;
    empty where that is what its title says."""
    of_stages = {name for stage in modification.stages for name in stage}
    is_published = {name: is_from_hub(origins.get(name, "")) for name in ("corpus", "tokenizer")}
    if {"layers", "width"} & modification.model.keys() and _shape(ours) != _shape(paper):
        was = f"{_shape(before)} →" if before else "at"
        return f"{was} {_shape(ours)} (paper: {_shape(paper)})"
    if "corpus" in modification.data and not is_published["corpus"]:
        text = f"{modification.data['corpus']} text"
        return text if before else f"without {text}"
    if "tokenizer" in modification.data and not is_published["tokenizer"] and before:
        return f"own {TOKENIZERS[ours.data.tokenizer]}, {ours.model.vocabulary_size:,} tokens"
    if "context" in of_stages and _contexts(ours) != _contexts(paper):
        was = f"context {before.stages[0].context:,} →" if before else "at context"
        return f"{was} {_contexts(ours)}"
    if "tokens_per_step" in of_stages and ours.stages[0].tokens_per_step != paper.stages[0].tokens_per_step:
        was = f"{before.stages[0].tokens_per_step:,} →" if before else "at"
        return f"{was} {ours.stages[0].tokens_per_step:,} tokens per step"
    return ""


def _shape(pretraining: Pretraining) -> str:
    return f"{pretraining.model.layers} × {pretraining.model.width}"


def _contexts(pretraining: Pretraining) -> str:
    return " → ".join(f"{stage.context:,}" for stage in pretraining.stages)
