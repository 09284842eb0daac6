"""A modification: one named change of recipe fields, with the source that states it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from neobert.data.mteb_tasks import Wording
from neobert.data.pairs import Mix
from neobert.errors import did_you_mean
from neobert.identity import leaves, plain
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


class Embedding(Value):
    """How an encoder is made an embedder and measured as one.

    `pairs` says whose data sets of pairs are trained on, `instructions` whose words the tasks of MTEB(eng, v1) are told
    in, `precision` what they are measured in.
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
    embedding: Embedding


SECTIONS: dict[str, type[Value]] = {
    "model": Model,
    "data": Data,
    "masking": Masking,
    "optimization": Optimization,
    "finetuning": FineTuning,
    "embedding": Embedding,
    "contrastive": Contrastive,
}


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
    stages: tuple[Mapping[str, Any], ...] = ()
    finetuning: Mapping[str, Any] = field(default_factory=dict)
    embedding: Mapping[str, Any] = field(default_factory=dict)
    contrastive: Mapping[str, Any] = field(default_factory=dict)
    grid: Grid | None = None
    checkpoints: str | None = None

    def __post_init__(self) -> None:
        others = {"finetuning": self.finetuning, "embedding": self.embedding, "contrastive": self.contrastive}
        for section, changes in {**self._pretraining_sections(), **others}.items():
            _refuse_unknown_keys(self.title, section, SECTIONS[section], changes)
        for index, changes in enumerate(self.stages):
            _refuse_unknown_keys(self.title, f"stages[{index}]", Stage, changes)

    def _pretraining_sections(self) -> dict[str, Mapping[str, Any]]:
        return {"model": self.model, "data": self.data, "masking": self.masking, "optimization": self.optimization}

    def apply(self, recipe: Recipe) -> Recipe:
        """The recipe with this change.

        Raises:
            ValueError: a value is impossible, or it equals what is there already.
        """
        tree = recipe.model_dump()
        pretraining = tree["pretraining"]
        for section, changes in self._pretraining_sections().items():
            pretraining[section].update(changes)
        if self.packing is not None:
            pretraining["packing"] = self.packing
        pretraining["stages"] = self._changed_stages(list(pretraining["stages"]))
        tree["finetuning"].update(self.finetuning)
        tree["embedding"].update(self.embedding)
        tree["embedding"]["contrastive"].update(self.contrastive)
        if self.grid is not None:
            tree["grid"] = self.grid.model_dump()
        if self.checkpoints is not None:
            tree["checkpoints"] = self.checkpoints
        return validated(tree, f"modification {self.title!r}")

    def _changed_stages(self, stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for index, changes in enumerate(self.stages):
            if index == len(stages):
                stages.append(dict(stages[-1]))
            stages[index].update(changes)
        return stages

    def declared(self, before: Recipe) -> dict[str, Any]:
        """The leaves this modification names, {dotted path: value after}, when applied to `before`."""
        named: dict[str, Any] = {}
        for section, changes in self._pretraining_sections().items():
            named.update(leaves(plain(changes), f"pretraining.{section}"))
        if self.packing is not None:
            named["pretraining.packing"] = self.packing
        count = len(before.pretraining.stages)
        for index, changes in enumerate(self.stages):
            added = self.apply(before).pretraining.stages[index] if index >= count else changes
            named.update(leaves(plain(added), f"pretraining.stages.{index}"))
        named.update(leaves(plain(self.finetuning), "finetuning"))
        named.update(leaves(plain(self.embedding), "embedding"))
        named.update(leaves(plain(self.contrastive), "embedding.contrastive"))
        if self.grid is not None:
            named.update(leaves(self.grid, "grid"))
        if self.checkpoints is not None:
            named["checkpoints"] = self.checkpoints
        return {path: value for path, value in named.items() if not isinstance(value, dict)}


def _refuse_unknown_keys(title: str, section: str, fields: type[Value], changes: Mapping[str, Any]) -> None:
    for key in changes:
        if key not in fields.model_fields:
            hint = did_you_mean(key, fields.model_fields)
            raise ValueError(f"modification {title!r}: {section} has no field {key!r}; {hint}")


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
