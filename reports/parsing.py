"""Plain records → typed values, with one sentence for each that is left out."""

import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Identified)


def text_of(value: Any) -> str:
    """A text that a record holds.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!r} stands where a text belongs")
    return value


def text_or_none(value: Any) -> str | None:
    """A text that a record may leave out.

    Raises:
        ValueError: it is something else.
    """
    return None if value is None else text_of(value)


def without_duplicates(records: Iterable[dict[str, Any]], problems: list[str]) -> list[dict[str, Any]]:
    """One record an id; of several the first in sorted order, so that the order of files decides nothing."""
    kept: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
    for record in records:
        name, text = (str(record["kind"]), str(record["id"])), json.dumps(record, sort_keys=True)
        if name not in kept:
            kept[name] = (text, record)
            continue
        same = text == kept[name][0]
        what = "the same" if same else "another content"
        problems.append(f"a second file holds {name[0]} record {name[1]} with {what}: it is counted once")
        kept[name] = min(kept[name], (text, record), key=lambda pair: pair[0])
    return [record for _, record in kept.values()]


def parsed(
    records: Iterable[dict[str, Any]], parse: Callable[[dict[str, Any]], Item], problems: list[str]
) -> tuple[Item, ...]:
    """Records of one kind as values, by id; one that cannot be read is a problem."""
    values = []
    for record in records:
        try:
            values.append(parse(record))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problems.append(f"{record['kind']} record {record['id']} is left out: {_finding(error)}")
    return tuple(sorted(values, key=lambda value: value.id))


def _finding(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)
