"""Plans of variants on synthetic text, and trees of which one leaf is another."""

from collections.abc import Collection, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ablations.ladders import Ladder
from ablations.loading import papers
from ablations.names import chosen_variants
from ablations.plan import STAGES, VariantRow, plan
from ablations.recipe_runs import EVERYTHING, EmbeddingChoice
from ablations.scales import Scale
from neobert.data.sources import Source, open_source
from neobert.execution import Execution
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification

SOURCE = SourceSpecification(name="synthetic", synthetic_documents=100)
SYNTHETIC = open_source("synthetic", synthetic_documents=100)
EXECUTION = Execution(threads=1, processes=1, micro_batch_tokens=512, checkpoint_interval_steps=10)


def rows_of(
    root: Path,
    *names: str,
    seeds: Sequence[int] = (0,),
    scale: Scale = "smoke",
    source: Source = SYNTHETIC,
    stages: Collection[str] = STAGES,
    choice: EmbeddingChoice = EVERYTHING,
    ladder: Ladder | None = None,
) -> list[VariantRow]:
    """The rows of variants in a folder of runs; of the paper's ladder if no other is given."""
    own = ladder or papers()
    return plan(own, chosen_variants(own, names), seeds, scale, source, Layout(root), stages, choice=choice)


def with_leaf(tree: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a tree with another leaf at a dotted path."""
    copy: Any = deepcopy(tree)
    place, (*parents, last) = copy, path.split(".")
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[int(last) if last.isdigit() else last] = value
    return dict(copy)
