"""Ids of results: the id of a run is the hash of everything that determines its result.

Labels, places, speed and references to a run are not hashed. The numerics versions of its mechanisms are: a change of
what a mechanism computes must raise its version, which tests with golden losses enforce.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

NUMERICS = {
    "tokenization": 2,
    "batching": 3,
    "masking": 1,
    "model": 1,
    "initialization": 1,
    "optimization": 1,
    "finetuning": 1,
    "contrastive": 2,
    "metrics": 1,
    "readouts": 1,
}

IDENTITY_DIGITS = 12


@dataclass(frozen=True)
class Neutral:
    """Marks a field that later versions added: `field: Annotated[bool, Neutral(False)]`.

    `value` means "as if the mechanism did not exist". A field with this value is left out of the hash, so that a new
    field changes no id. The field gets this value if an older version wrote no such field (`Value.read`).
    """

    value: Any


@cache
def neutral_values(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the neutral values of a class, by field."""
    return {
        name: mark.value
        for name, field in model.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Neutral)
    }


def plain(value: Any, *, is_decisive: bool = False) -> Any:
    """Convert recipe values, tuples and mappings to JSON types."""
    if value is None or isinstance(value, (str, int, float)):  # most values; isinstance of an abstract class is slow
        return value
    if isinstance(value, BaseModel):
        if not is_decisive:
            return value.model_dump(mode="json")
        neutral, dumped = neutral_values(type(value)), value.model_dump(mode="json")
        deciding = (name for name, item in dumped.items() if item != neutral.get(name, ...))
        return {name: plain(getattr(value, name), is_decisive=True) for name in deciding}
    if isinstance(value, (dict, Mapping)):
        return {str(key): plain(item, is_decisive=is_decisive) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, is_decisive=is_decisive) for item in value]
    return value


def decisive(value: Any) -> Any:
    """Convert like `plain`, without fields that have their neutral value. The result is what is hashed."""
    return plain(value, is_decisive=True)


def canonical(value: Any) -> str:
    """Return the canonical JSON of `decisive(value)`: sorted keys, no spaces, no NaN."""
    return json.dumps(decisive(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def identity(value: Any) -> str:
    """Return the id of a value: the first twelve hexadecimal digits of the SHA-256 of its canonical JSON."""
    return identity_of_canonical(canonical(value))


def identity_of_canonical(text: str) -> str:
    """Return the id of the value with this canonical JSON."""
    return hashlib.sha256(text.encode()).hexdigest()[:IDENTITY_DIGITS]


def canonical_object(items: Mapping[str, str]) -> str:
    """Return the canonical JSON of an object whose values are canonical JSON already."""
    return "{" + ",".join(f"{json.dumps(key)}:{items[key]}" for key in sorted(items)) + "}"


def chosen(numerics: Mapping[str, int], mechanisms: Sequence[str]) -> dict[str, int]:
    """Return the numerics versions of the given mechanisms, without those that an older version did not number."""
    return {mechanism: numerics[mechanism] for mechanism in mechanisms if mechanism in numerics}


def leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten a nested value to {dotted path: leaf}; list items are numbered."""
    return dict(_leaves(plain(value), prefix))


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of JSON types below a path."""
    if not isinstance(tree, dict | list):
        yield path, tree
        return
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def difference(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """Return every leaf in which two values differ, as {path: (before, after)}.

    A leaf that exists on one side only, such as in an added stage, is None on the other; neutral fields of such a stage
    are no difference.
    """
    old, new = leaves(before), leaves(after)
    deciding = leaves(decisive(before)).keys() | leaves(decisive(after)).keys()
    paths = sorted(old.keys() & new.keys() | deciding)
    return {path: (old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)}
