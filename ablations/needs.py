"""What the units of a plan read, by the words of the variants' recipes."""

from collections.abc import Sequence
from typing import Literal

from ablations.plan import scaled_variant
from ablations.scales import Scale
from ablations.variant import Variant
from neobert.data.corpora import TASK_SPLITS
from neobert.data.hub_items import Needs
from neobert.data.mteb_repositories import MTEB_REPOSITORIES

NeededPart = Literal["pretrain", "glue", "mteb"]
NEEDED_PARTS: tuple[NeededPart, ...] = ("pretrain", "glue", "mteb")


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
    )
