"""What the units of a plan read, by the words of the variants' recipes."""

from collections.abc import Iterable, Sequence
from typing import Literal

from ablations.plan import Row, scaled_variant
from ablations.scales import Scale
from ablations.variant import Variant
from neobert.data.corpora import TASK_SPLITS, Source
from neobert.data.hub import HubSource
from neobert.data.hub_items import Item, Needs, items_of
from neobert.data.mteb_repositories import MTEB_REPOSITORIES
from neobert.data.pair_repositories import DECLARED_SETS
from neobert.embeddings.specification import ContrastiveRun
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
    chosen = {row.variant.name: row.variant for row in rows}
    items = items_of(needs_of(list(chosen.values()), rows[0].scale, parts))
    raise _not_here(items, f"--variant {' '.join(chosen)} --scale {rows[0].scale} --stages {' '.join(parts)}")


def require_pairs(names: Sequence[str], source: Source) -> None:
    """The same for data sets of pairs alone.

    Raises:
        MissingData: they are on the hub alone; all are named.
    """
    if isinstance(source, HubSource):
        raise _not_here(items_of(Needs(pair_sets=tuple(names))), "--variant M9 --stages contrastive")


def _not_here(items: Iterable[Item], flags: str) -> MissingData:
    names = ", ".join(f"{item.name} ({item.repositories})" for item in items)
    return MissingData(
        f"runs do not read the hub, and this is not here: {names}; bring it with `python ablations/prefetch.py {flags} "
        f"--data-dir DIR` where there is a network, and pass --data DIR"
    )
