"""docs/recipe.md names every field of a recipe once in its section, with the value that M0 has."""

import re

from ablations.ladder import M0
from neobert.identity import leaves
from tests.support.tree_copy import REPOSITORY

PAGE = (REPOSITORY / "docs" / "recipe.md").read_text(encoding="utf-8")
SECTIONS = {
    "model": "pretraining.model",
    "data, masking and packing": "pretraining",
    "optimization": "pretraining.optimization",
    "stages": "pretraining.stages.0",
    "Other choices": "pretraining",
    "finetuning and grid": "finetuning",
}
"""The part of a recipe that the tables under a heading describe."""
ELSEWHERE = ("grid.", "checkpoints")
"""Fields under these headings that are not of that part."""


def printed() -> dict[str, str]:
    """What the page says of M0, by the path of a field."""
    found = {}
    for heading, prefix in SECTIONS.items():
        section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        for names, values in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", section, re.MULTILINE):
            fields = re.findall(r"`([\w.]+)`", names)
            for field, value in zip(fields, values.split(", "), strict=True):
                path = field if field.startswith(ELSEWHERE) else f"{prefix}.{field}"
                assert path not in found, path
                found[path] = value
    return found


def test_the_page_names_every_field_with_the_value_of_m0() -> None:
    expected: dict[str, list[str]] = {}
    for path, value in leaves(M0.recipe).items():
        name = re.sub(r"mixture\.0", "mixture", path)
        name = re.sub(r"^(grid\.\w+)\.\d$", r"\1", name)
        if not name.startswith("embedding."):
            expected.setdefault(name, []).append(str(value))
    assert printed() == {name: " ".join(values) for name, values in expected.items()}
