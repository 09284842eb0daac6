"""A variant is its parent plus declared modifications; the proof holds that it is nothing else."""

from dataclasses import dataclass
from typing import Any, Self

from ablations.modification import Modification, Recipe
from neobert.identity import difference


@dataclass(frozen=True)
class Variant:
    """A node of the tree of variants. `kept` is False where the paper discarded it (grey in its Figure 1)."""

    name: str
    title: str
    source: str
    recipe: Recipe
    parent: Self | None = None
    modifications: tuple[Modification, ...] = ()
    kept: bool = True

    def derive(self, name: str, *modifications: Modification, title: str | None = None, kept: bool = True) -> "Variant":
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
    # Two steps that end where they began (a width there and back) declare it all the same: a scale may tell them apart.
    declared = variant.delta().keys() | _declared(variant.parent.recipe, variant.modifications).keys()
    undeclared = sorted(path for path in actual if path not in declared)
    if undeclared:
        raise ValueError(f"{name}, scaled, differs from its parent by more than it declares: {', '.join(undeclared)}")
    for modification in variant.modifications:
        if not any(path in actual for path in modification.declared(variant.parent.recipe)):
            raise ValueError(f"{name}: the scale erases modification {modification.title!r}")
