"""Pair two rows: the values of both by pre-training seed in GLUE, held-out loss, embeddings, own tasks and BLiMP.

Scores are always comparable, held-out losses only on the same text. Missing values are not imputed.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from neobert.glue.tasks import TASKS
from reports.analysis.quantities import (
    GLUE_AVERAGE,
    LOSS_IN_BITS,
    LOSS_IN_NATS,
    MINIMAL_PAIRS,
    Measure,
    estimate_accuracies,
    mteb_measure,
    task_measure,
)
from reports.basis import why_not_paired, why_scores_not_paired
from reports.figures.embeddings import EmbeddingRow
from reports.notes import why_no_average
from reports.scores import Estimate, Group, Row

OTHER_GRID = "the grids differ on the same weights, and a choice among more points alone scores higher"


@dataclass(frozen=True)
class Pair:
    """A variant and its parent in one measure: the values of both by paired pre-training seed.

    `measured` says on what, such as the corpus. If there is nothing to compare, `reason` says why, and there are no
    values. `notes` name seeds that are left out, `ids` are the records.
    """

    variant: str
    parent: str
    measure: Measure
    measured: str
    ours: Mapping[int, float] = field(default_factory=dict)
    theirs: Mapping[int, float] = field(default_factory=dict)
    reason: str = ""
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def without(self, seeds: set[int], note: str) -> "Pair":
        """Return the pair without some seeds."""
        ours, theirs = ({seed: own[seed] for seed in own if seed not in seeds} for own in (self.ours, self.theirs))
        notes = (*self.notes, f"{note} and is left out")
        return replace(self, ours=ours, theirs=theirs, notes=notes, reason="" if ours else note)


def pair_all(
    variant: Row, parent: Row, tasks: Sequence[str], group: Group, embeddings: Sequence[EmbeddingRow]
) -> Iterator[Pair]:
    """Yield the pairs of two rows in every measure that one of them has; `tasks` are those of GLUE's mean."""
    if group.ladder.fine_tunes_on_glue:
        yield pair_glue(variant, parent, tasks, group)
        scored = [task for task in tasks if any(row.cells[task].score for row in (variant, parent))]
        yield from (pair_task(variant, parent, task) for task in scored)
    if variant.recipe.pretraining != parent.recipe.pretraining:
        yield pair_losses(variant, parent)
    yield from _pairs_of_embeddings(variant, parent, embeddings)
    for task in group.ladder.own_tasks:
        if any(task in row.own_cells and row.own_cells[task].score for row in (variant, parent)):
            yield pair_task(variant, parent, task)
    yield from _pairs_of_minimal_pairs(variant, parent)


def pair_glue(variant: Row, parent: Row, tasks: Sequence[str], group: Group) -> Pair:
    """Return the pair in mean scores over the tasks, in points. A side that lacks a task has no mean."""
    is_average = tuple(tasks) == tuple(TASKS)
    empty = Pair(variant.name, parent.name, GLUE_AVERAGE, "" if is_average else f"mean of {' '.join(tasks)}")
    ours, theirs = variant.mean_over(tasks), parent.mean_over(tasks)
    if ours is None or theirs is None:
        lacking = [row for row, mean in ((variant, ours), (parent, theirs)) if mean is None]
        return replace(empty, reason="; ".join(_why_no_mean(row, tasks, group) for row in lacking))
    return _pair_scores(empty, variant, parent, tasks, ours, theirs)


def pair_task(variant: Row, parent: Row, task: str) -> Pair:
    """Return the pair in one task of GLUE or of the ladder, in points."""
    empty = Pair(variant.name, parent.name, task_measure(task), "")
    cells = [row.cells[task] if task in row.cells else row.own_cells.get(task) for row in (variant, parent)]
    ours, theirs = (None if cell is None else cell.score for cell in cells)
    if ours is None or theirs is None:
        lacking = [row.name for row, score in ((variant, ours), (parent, theirs)) if score is None]
        return replace(empty, reason=f"no score of {' and '.join(lacking)}")
    return _pair_scores(empty, variant, parent, [task], ours, theirs)


def _pair_scores(
    empty: Pair, variant: Row, parent: Row, tasks: Sequence[str], ours: Estimate, theirs: Estimate
) -> Pair:
    grids = [set(row.recipe.grid.points()) for row in (variant, parent)]
    is_choice = variant.recipe.pretraining == parent.recipe.pretraining and grids[0] != grids[1]
    if reason := why_scores_not_paired(variant, parent, tasks) or (OTHER_GRID if is_choice else ""):
        return replace(empty, reason=reason)
    common = ours.by_seeds.keys() & theirs.by_seeds.keys()
    ids = {*variant.trial_ids(tasks, common), *parent.trial_ids(tasks, common)}
    return replace(_subtract(empty, ours, theirs), ids=tuple(sorted(ids)))


def relative_change(variant: Row, parent: Row, tasks: Sequence[str]) -> float | None:
    """Return the relative change of the mean score over the common seeds, in percent."""
    ours, theirs = variant.mean_over(tasks), parent.mean_over(tasks)
    if ours is None or theirs is None or why_scores_not_paired(variant, parent, tasks):
        return None
    common = ours.by_seeds.keys() & theirs.by_seeds.keys()
    before = statistics.fmean(theirs.at(common).by_pretraining.values()) if common else 0.0
    return 100 * (statistics.fmean(ours.at(common).by_pretraining.values()) / before - 1) if before > 0 else None


def _why_no_mean(row: Row, tasks: Sequence[str], group: Group) -> str:
    absent = [TASKS[task].title for task in tasks if row.cells[task].score is None]
    if row.is_started and absent:
        return f"{row.name} has no score on {', '.join(absent)}"
    return f"{row.name}: {why_no_average(row, group) or 'no seed has all tasks'}"


def pair_losses(variant: Row, parent: Row) -> Pair:
    """Return the pair in held-out loss on the corpus that the variant was trained on: in nats per token for models with
    the same tokens and lengths, else in bits per byte, in the longest common context."""
    corpus = variant.recipe.pretraining.data.corpus
    is_alike = variant.tokens == parent.tokens and variant.context == parent.context
    empty = Pair(variant.name, parent.name, LOSS_IN_NATS if is_alike else LOSS_IN_BITS, corpus)
    if reason := why_not_paired(variant, parent):
        return replace(empty, reason=reason)
    if missing := [row.name for row in (variant, parent) if not row.losses]:
        return replace(empty, reason=f"{' and '.join(missing)}: no record")
    if missing := [row.name for row in (variant, parent) if corpus not in row.losses]:
        return replace(empty, reason=f"{' and '.join(missing)} was not measured on {corpus}")
    if is_alike:
        return _pair_on_text(empty, variant, parent, corpus, variant.losses[corpus], parent.losses[corpus])
    contexts = [{context for own, context in row.bits_per_byte if own == corpus} for row in (variant, parent)]
    if not (common := contexts[0] & contexts[1]):
        return replace(empty, reason="losses on other tokens or in other contexts, and none in bits per byte")
    place = corpus, max(common)
    empty = replace(empty, measured=f"{corpus}, {place[1]} tokens")
    return _pair_on_text(empty, variant, parent, corpus, variant.bits_per_byte[place], parent.bits_per_byte[place])


def _pair_on_text(empty: Pair, variant: Row, parent: Row, corpus: str, ours: Estimate, theirs: Estimate) -> Pair:
    """Pair losses and add the run ids; seeds measured on different held-out documents are left out."""
    pair = _subtract(empty, ours, theirs)
    runs = pd.concat([variant.runs, parent.runs])
    heldout = pd.concat([variant.heldout, parent.heldout])
    known = heldout[(heldout.corpus == corpus) & heldout.texts.notna()]
    named = dict(zip(known.run, known.texts, strict=True))
    # runs recorded before texts had names all used the same rule
    texts = runs.id.map(lambda run: named.get(run, "")).groupby(runs.seed).nunique()
    if odd := {seed for seed in pair.ours if texts[seed] > 1}:
        told = ", ".join(map(str, sorted(odd)))
        pair = pair.without(odd, f"seed {told} was measured on other held-out texts of {corpus} on each side")
    return replace(pair, ids=tuple(sorted(runs.id[runs.seed.isin(pair.ours)])))


def _pairs_of_embeddings(variant: Row, parent: Row, embeddings: Sequence[EmbeddingRow]) -> Iterator[Pair]:
    """Yield the pairs in averages of a suite under a protocol, or in means of the tasks that both have."""
    for first in (each for each in embeddings if each.runs & set(variant.run_ids)):
        for second in (each for each in embeddings if each.runs & set(parent.run_ids)):
            shared = [task for task in first.scores if task in second.scores]
            if first is second or (first.suite, first.protocol) != (second.suite, second.protocol) or not shared:
                continue
            ours, theirs = first.mean_over(shared), second.mean_over(shared)
            if ours is not None and theirs is not None and not why_not_paired(variant, parent):
                whole = first.is_whole and second.is_whole
                measure = mteb_measure(first.suite, first.protocol)
                measured = "" if whole else f"mean of {len(shared)} shared tasks"
                pair = _subtract(Pair(variant.name, parent.name, measure, measured), ours, theirs)
                yield replace(pair, ids=tuple(sorted({*first.records(shared), *second.records(shared)})))


def _pairs_of_minimal_pairs(variant: Row, parent: Row) -> Iterator[Pair]:
    """Yield the pair in BLiMP, if both were asked the same items."""
    if variant.recipe.pretraining == parent.recipe.pretraining or why_not_paired(variant, parent):
        return
    ours, theirs = variant.answers, parent.answers
    common = sorted(set(ours["items"]) & set(theirs["items"]))
    if not ours.empty and not theirs.empty:
        empty = Pair(variant.name, parent.name, MINIMAL_PAIRS, "")
        if not common:
            yield replace(empty, reason="other items on each side")
            return
        asked = [own[own["items"] == common[0]] for own in (ours, theirs)]
        pair = _subtract(empty, *map(estimate_accuracies, asked))
        yield replace(pair, ids=tuple(sorted(pd.concat([own.id[own.seed.isin(pair.ours)] for own in asked]))))


def _subtract(empty: Pair, ours: Estimate, theirs: Estimate) -> Pair:
    """Add the values at the common seeds; notes name the seeds of only one side."""
    common = sorted(ours.by_seeds.keys() & theirs.by_seeds.keys())
    alone = {name: each.by_seeds.keys() - set(common) for name, each in ((empty.variant, ours), (empty.parent, theirs))}
    notes = [
        f"seed {', '.join(map(str, sorted(seeds)))} of {name} has no partner and is left out"
        for name, seeds in alone.items()
        if seeds
    ]
    values = [each.at(common).by_pretraining for each in (ours, theirs)]
    if len(common) > len(values[0]):
        notes.append("fine-tuning seeds of one pre-training seed are averaged and count as one seed")
    reason = "" if common else f"{empty.variant} and {empty.parent} have no seed in common"
    return replace(empty, ours=values[0], theirs=values[1], reason=reason, notes=tuple(notes))
