"""What the units of a plan read, by the words of the variants' recipes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ablations.plan import Row, scaled_variant
from ablations.scales import Scale
from ablations.variant import Variant
from neobert.data.corpora import TASK_SPLITS, Source
from neobert.data.hub import HubSource
from neobert.data.hub_items import Needs, items_of
from neobert.data.mteb_repositories import MTEB_REPOSITORIES
from neobert.data.pair_repositories import DECLARED_SETS
from neobert.embeddings.specification import ContrastiveRun
from neobert.embeddings.suite_specification import EmbeddingEvaluation
from neobert.errors import MissingData
from neobert.specifications import GlueStudy

NeededPart = Literal["pretrain", "glue", "contrastive", "mteb"]
NEEDED_PARTS: tuple[NeededPart, ...] = ("pretrain", "glue", "contrastive", "mteb")


def needs_of(chosen: Sequence[Variant], scale: Scale, parts: Sequence[NeededPart]) -> Needs:
    """Corpora, tokenizers and tasks of the variants at a scale, each once; tokenizers go with every part."""
    corpora: list[str] = []
    tokenizers: dict[str, int] = {}
    for variant in chosen:
        recipe, _ = scaled_variant(variant, scale, "published")
        data, rows = recipe.pretraining.data, recipe.pretraining.model.vocabulary_size
        corpora.append(data.corpus)
        tokenizers[data.tokenizer] = min(rows, tokenizers.get(data.tokenizer, rows))
    return Needs(
        corpora=tuple(dict.fromkeys(corpora)) if "pretrain" in parts else (),
        tokenizers=tokenizers,
        tasks=tuple(TASK_SPLITS) if "glue" in parts else (),
        embedding_tasks=tuple(MTEB_REPOSITORIES) if "mteb" in parts else (),
        pair_sets=tuple(DECLARED_SETS) if "contrastive" in parts else (),
    )


def _members(evaluations: Sequence[EmbeddingEvaluation]) -> tuple[str, ...]:
    """mteb's own tasks behind those of evaluations, each once."""
    tasks = (task for evaluation in evaluations for task in evaluation.tasks)
    return tuple(dict.fromkeys(member for task in tasks for member in task.members or (task.name,)))


def require_data(rows: Sequence[Row], source: Source) -> None:
    """Check, before anything is written or started, that the data of a plan lies here; runs do not read the hub.

    Raises:
        MissingData: it is on the hub alone; the items are named.
    """
    if not isinstance(source, HubSource) or not rows:
        return
    runs = [unit.run for row in rows for unit in row.units]
    parts: list[NeededPart] = ["pretrain"]
    parts += ["glue"] if any(isinstance(run, GlueStudy) for run in runs) else []
    parts += ["contrastive"] if any(isinstance(run, ContrastiveRun) for run in runs) else []
    evaluations = [run for run in runs if isinstance(run, EmbeddingEvaluation)]
    parts += ["mteb"] if evaluations else []
    chosen = {row.variant.name: row.variant for row in rows}
    needs = needs_of(list(chosen.values()), rows[0].scale, parts)
    items = items_of(replace(needs, embedding_tasks=_members(evaluations)))
    names = ", ".join(f"{item.name} ({item.repositories})" for item in items)
    raise MissingData(
        f"runs do not read the hub, and this is not here: {names}; bring it with `python ablations/prefetch.py "
        f"--variant {' '.join(chosen)} --scale {rows[0].scale} --stages {' '.join(parts)} --data-dir DIR` where there "
        f"is a network, and pass --data DIR"
    )
