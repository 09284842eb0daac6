"""Ladders: the paper's, and those of a user's own, which `--ladder FILE.py` names (`ablations.loading`).

Functions take the ladder that they are about. Run files hold whole recipes, so that workers and jobs read no ladder,
and an edited file changes nothing of what was planned.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from neobert.errors import did_you_mean

if TYPE_CHECKING:
    from ablations.scales import Rules
    from ablations.variant import Modification, Variant
    from neobert.glue.tasks import Task
    from neobert.recipe import Grid
    from neobert.runs.layout import Layout
    from neobert.search.space import Space

SCALES = ("smoke", "study", "proxy", "as-written", "paper")
"""The scales that every ladder has."""
HASH_DIGITS = 12


@dataclass(frozen=True, eq=False)
class Ladder:
    """Variants by name in the order of declaration, and their settings.

    `given` is the value of --ladder, empty for the paper's ladder; `title` is the heading of its reports. `last_kept`
    is the variant that designs refer to: `root` and `full_variant` follow from its lineage, so that a variant beside
    that lineage changes no design. `scales` are added to the common ones, and `scale` is the default. External models
    are measured with the recipe of `root`, and sweeps pre-train it if nothing is trained yet. `corpora` are its own:
    (folder, text column) by name. `tasks` are what it fine-tunes on, by name. `spaces` are what searches of GLUE may
    try, by name. `published` is the folder of CSV files with the paper's numbers, `printed_as` the names of variants in
    them; a user's own ladder has neither. `code` is the content of its file.
    """

    given: str
    title: str
    variants: "dict[str, Variant]"
    last_kept: "Variant"
    scales: "Mapping[str, Rules]"
    scale: str
    corpora: Mapping[str, tuple[str, str]]
    tasks: "Mapping[str, Task]"
    spaces: "Mapping[str, Space]"
    code: bytes = b""
    published: Path | None = None
    printed_as: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its file; empty for the paper's."""
        return Path(self.given).name

    @property
    def flag(self) -> str:
        """The flag that selects this ladder, after a space and as a shell reads it; empty for the paper's."""
        return f" --ladder {shlex.quote(self.given)}" if self.given else ""

    @property
    def not_kept(self) -> str:
        """The word for variants that are not kept."""
        return "not kept" if self.given else "discarded"

    @cached_property
    def steps(self) -> "dict[str, Variant]":
        """The variants without alternatives, which have an @ in their names."""
        return {name: variant for name, variant in self.variants.items() if "@" not in name}

    @cached_property
    def trunk(self) -> "tuple[Variant, ...]":
        """The lineage of `last_kept`, from the baseline."""
        return tuple(self.variants[name] for name in self.last_kept.lineage())

    @property
    def root(self) -> "Variant":
        """The baseline: the first variant of the trunk."""
        return self.trunk[0]

    @cached_property
    def full_variant(self) -> "Variant":
        """The last variant of the trunk that changes pre-training; designs leave out its modifications."""
        pairs = zip(self.trunk, self.trunk[1:], strict=False)
        changed = [child for parent, child in pairs if parent.recipe.pretraining != child.recipe.pretraining]
        return changed[-1] if changed else self.root

    @property
    def grids(self) -> "dict[str, Grid]":
        """The baseline's GLUE grid, and the largest on the trunk."""
        grids = [variant.recipe.grid for variant in self.trunk]
        return {"limited": self.root.recipe.grid, "extended": max(grids, key=lambda grid: len(grid.points()))}

    @cached_property
    def modifications(self) -> "dict[str, Modification]":
        """The modifications of its steps by their names in those of variants: RoPE is rope in M7-rope."""
        found: dict[str, Modification] = {}
        for modification in (each for variant in self.steps.values() for each in variant.modifications):
            words = "-".join(modification.title.split())
            name = re.sub(r"[^a-z0-9]+", "-", modification.title.lower()).strip("-") or words
            found.setdefault(name, modification)
        return found

    @property
    def own_tasks(self) -> "dict[str, Task]":
        """The tasks that are not GLUE's."""
        return {name: task for name, task in self.tasks.items() if task.is_own}

    @property
    def glue_tasks(self) -> tuple[str, ...]:
        """GLUE's tasks among its tasks, over which reports average."""
        return tuple(name for name, task in self.tasks.items() if not task.is_own)

    @property
    def known_scales(self) -> tuple[str, ...]:
        """The scales that every ladder has, followed by its own."""
        return (*SCALES, *self.scales)

    def scale_named(self, name: str | None) -> str:
        """Return the scale of a name; None means the default. Raises ValueError if there is none."""
        if name is not None and name not in self.known_scales:
            raise ValueError(f"there is no scale {name!r}: {did_you_mean(name, self.known_scales)}")
        return self.scale if name is None else name

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
        """Store a copy of a user's own ladder beside the runs that are planned from it. A copy that was changed is set
        aside."""
        from neobert.files import replace_file, set_aside

        if self.given:
            path = layout.ladder(self.name, self.labels["ladder_sha256"][:HASH_DIGITS])
            if path.exists() and path.read_bytes() != self.code:
                set_aside(path, f"{path} was changed")
            if not path.exists():
                replace_file(path, self.code)


def modifications_of(variant: "Variant") -> "list[Modification]":
    """Return all modifications from the root to a variant, in order."""
    return [*(modifications_of(variant.parent) if variant.parent else []), *variant.modifications]
