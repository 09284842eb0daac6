"""What the units of a plan read, by the words of the variants' recipes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Literal, NoReturn

from ablations.plan import Row, scaled_variant
from ablations.scales import Scale
from ablations.variant import Variant
from neobert.data.hub_download import Needs, items_of
from neobert.data.mteb_tasks import MTEB_REPOSITORIES
from neobert.data.pairs import sets_of
from neobert.data.sources import TASK_SPLITS, HubSource, Source
from neobert.errors import MissingData
from neobert.runs.specifications import ContrastiveRun, EmbeddingEvaluation, GlueStudy, Run

NeededPart = Literal["pretrain", "glue", "contrastive", "mteb"]
NEEDED_PARTS: tuple[NeededPart, ...] = ("pretrain", "glue", "contrastive", "mteb")


def needs_of(chosen: Sequence[Variant], scale: Scale, parts: Sequence[NeededPart]) -> Needs:
    """Corpora, tokenizers and tasks of the variants at a scale, each once; tokenizers go with every part."""
    corpora: list[str] = []
    tokenizers: dict[str, int] = {}
    pair_sets: list[str] = []
    for variant in chosen:
        recipe, _ = scaled_variant(variant, scale, "published")
        data, rows = recipe.pretraining.data, recipe.pretraining.model.vocabulary_size
        corpora.append(data.corpus)
        pair_sets += sets_of(recipe.embedding.pairs)
        tokenizers[data.tokenizer] = min(rows, tokenizers.get(data.tokenizer, rows))
    return Needs(
        corpora=tuple(dict.fromkeys(corpora)) if "pretrain" in parts else (),
        tokenizers=tokenizers,
        tasks=tuple(TASK_SPLITS) if "glue" in parts else (),
        embedding_tasks=tuple(MTEB_REPOSITORIES) if "mteb" in parts else (),
        pair_sets=tuple(dict.fromkeys(pair_sets)) if "contrastive" in parts else (),
    )


def require_data(rows: Sequence[Row], source: Source) -> None:
    """Check, before anything is written or started, that what a plan reads lies here; runs do not read the hub.

    Raises:
        MissingData: it is on the hub alone (the items are named), or mteb is not installed.
    """
    runs = [unit.run for row in rows for unit in row.units]
    require_mteb(runs)
    if not isinstance(source, HubSource) or not rows:
        return
    parts: list[NeededPart] = ["pretrain"]
    parts += ["glue"] if any(isinstance(run, GlueStudy) for run in runs) else []
    chosen = {row.variant.name: row.variant for row in rows}
    embedding = _embedding_parts(runs)
    needs = needs_of(list(chosen.values()), rows[0].scale, [*parts, *embedding])
    _refuse_hub(replace(needs, embedding_tasks=_members(runs)), chosen, rows[0].scale, [*parts, *embedding])


def require_data_of_model(runs: Sequence[Run], scale: Scale, source: Source) -> None:
    """The same for pairs and tasks of embeddings of a model from elsewhere, which brings its own tokenizer.

    Raises:
        MissingData: as `require_data`.
    """
    require_mteb(runs)
    parts = _embedding_parts(runs)
    if isinstance(source, HubSource) and parts:
        sets = (pairs.name for run in runs if isinstance(run, ContrastiveRun) for pairs in run.sets)
        needs = Needs(embedding_tasks=_members(runs), pair_sets=tuple(dict.fromkeys(sets)))
        _refuse_hub(needs, ["M9"], scale, parts)


def require_mteb(runs: Sequence[Run]) -> None:
    """Check that mteb is installed where a plan measures by it.

    Raises:
        MissingData: it is not.
    """
    if any(isinstance(run, EmbeddingEvaluation) for run in runs) and find_spec("mteb") is None:
        raise MissingData("tasks of embeddings are measured by mteb, which is not installed: pip install -e '.[eval]'")


def _embedding_parts(runs: Sequence[Run]) -> list[NeededPart]:
    parts: list[NeededPart] = ["contrastive"] if any(isinstance(run, ContrastiveRun) for run in runs) else []
    return [*parts, "mteb"] if any(isinstance(run, EmbeddingEvaluation) for run in runs) else parts


def _members(runs: Sequence[Run]) -> tuple[str, ...]:
    """mteb's own tasks behind those of evaluations, each once."""
    tasks = (task for run in runs if isinstance(run, EmbeddingEvaluation) for task in run.tasks)
    return tuple(dict.fromkeys(member for task in tasks for member in task.members or (task.name,)))


def _refuse_hub(needs: Needs, variants: Iterable[str], scale: Scale, parts: Sequence[NeededPart]) -> NoReturn:
    names = ", ".join(f"{item.name} ({item.repositories})" for item in items_of(needs))
    raise MissingData(
        f"runs do not read the hub, and this is not here: {names}; bring it with `python ablations/prefetch.py "
        f"--variant {' '.join(variants)} --scale {scale} --stages {' '.join(parts)} --data-dir DIR` where there "
        f"is a network, and pass --data DIR"
    )
