"""Table 2: what each variant changes, from the declared modifications, at paper scale and at that of the records."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ablations.scales import Scale, Vocabulary, scaled
from ablations.variant import Recipe, Variant
from neobert.identity import plain
from reports.formats import DASH, Table, csv_text
from reports.scores import Group

LISTS = ("mixture", "batch_sizes", "learning_rates", "weight_decays")


@dataclass(frozen=True)
class Change:
    """One field that a variant changes, with its values before and after at paper scale and at another."""

    variant: Variant
    row: str
    field: str
    paper: tuple[str, str]
    at_scale: tuple[str, str]


def changes(variant: Variant, scale: Scale, vocabulary: Vocabulary) -> Iterator[Change]:
    """Every changed field of a variant, by row of the paper's Table 2; lists are one field."""
    if variant.parent is None:
        return
    before, after = variant.parent.recipe, variant.recipe
    small_before, small_after = (scaled(recipe, scale, vocabulary) for recipe in (before, after))
    for row, delta in variant.delta_by_row().items():
        for path in dict.fromkeys(map(_field, delta)):
            yield Change(
                variant=variant,
                row=row,
                field=path.removeprefix("pretraining."),
                paper=(_value(before, path), _value(after, path)),
                at_scale=(_value(small_before, path), _value(small_after, path)),
            )


def _field(path: str) -> str:
    """The field that a leaf belongs to: a list and what is in it are one."""
    parts = path.split(".")
    for index, part in enumerate(parts):
        if part in LISTS:
            return ".".join(parts[: index + 1])
    return path


def _value(recipe: Recipe, path: str) -> str:
    node: Any = plain(recipe)
    for part in path.split("."):
        index: Any = int(part) if isinstance(node, list) else part
        if isinstance(node, list) and index >= len(node):
            return DASH
        node = node[index]
    return _text(node)


def _text(value: Any) -> str:
    if isinstance(value, dict):  # a subset of a mixture
        minimum = value["minimum_tokens"]
        return f"{value['share']:.0%} of " + (f"documents ≥ {minimum:,} tokens" if minimum else "all documents")
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("_", " ")


def _changes(group: Group) -> list[Change]:
    shown = {row.variant.name: row.variant for row in group.rows}
    return [change for variant in shown.values() for change in changes(variant, group.scale, group.vocabulary)]


def table2(group: Group) -> Table:
    """The printed table: one line a changed field, from the parent's value to the variant's."""
    listed = _changes(group)
    small = group.scale != "paper"
    header = [
        "Variant",
        "Parent",
        "Row of Table 2",
        "Field",
        "Paper scale",
        *([f"Scale {group.scale}"] if small else []),
    ]
    rows, rules, last = [], set(), None
    for index, change in enumerate(listed):
        is_first = change.variant is not last
        names = _names(change.variant) if is_first else ("", "")
        rules |= {index} if is_first and index else set()
        cells = [*names, change.row, change.field, _arrow(change.paper)]
        rows.append(tuple(cells + ([_arrow(change.at_scale)] if small else [])))
        last = change.variant
    return Table(
        title=f"Table 2: the modifications (scale {group.scale}, data {group.data})",
        header=tuple(header),
        alignment="l" * len(header),
        rows=tuple(rows),
        notes=(
            "Variants in parentheses are discarded: nothing continues them. M0 is the baseline.",
            *_readings(listed),
        ),
        rules=frozenset(rules),
    )


def _readings(listed: list[Change]) -> list[str]:
    shown = any("@" in change.variant.name for change in listed)
    return ["Those with an @ are another reading of the paper or its code."] if shown else []


def table2_csv(group: Group) -> str:
    """The same as CSV, with the source of each variant's numbers."""
    header = ["variant", "parent", "kept", "row", "field", "paper_before", "paper_after"]
    header += ["scale", "scale_before", "scale_after", "source"]
    return csv_text(header, [_csv_row(change, group.scale) for change in _changes(group)])


def _csv_row(change: Change, scale: Scale) -> list[str]:
    variant = change.variant
    parent = variant.parent.name if variant.parent else ""
    identity = [variant.name, parent, "yes" if variant.kept else "no", change.row, change.field]
    return [*identity, *change.paper, scale, *change.at_scale, variant.source]


def _names(variant: Variant) -> tuple[str, str]:
    name = variant.name if variant.kept else f"({variant.name})"
    return name, variant.parent.name if variant.parent else DASH


def _arrow(values: tuple[str, str]) -> str:
    before, after = values
    return f"{after} (unchanged)" if before == after else f"{before} → {after}"
