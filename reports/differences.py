"""Differences: every step of the ladder and of designs in every measure, at paired seeds, judged by `statistics`.

Scores are always comparable, held-out losses only on the same text. Missing values are not imputed.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

import pandas as pd

from neobert.glue.tasks import task_title
from neobert.identity import canonical
from neobert.kinds import readouts
from reports.frames import describe_difference
from reports.remarks import why_no_average
from reports.rows import Study
from reports.scores import POINTS_OF_SCORE, Estimate, ScoreRow, estimate_by_seed
from reports.statistics import Difference, Judged, judge

LADDER, ALTERNATIVES, LEAVE_ONE_OUT, ADD_ONE, OWN_RATES = (
    "ladder",
    "alternatives",
    "leave-one-out",
    "add-one",
    "own rates",
)
POINTS, NATS, BITS = "points", "nats per token", "bits per byte"
BLIMP = "BLiMP"
LOSS = "held-out loss"
GLUE = "GLUE average"
MARGINS: Mapping[str, float] = {
    GLUE: 0.5,  # the smallest change between neighbours in Figure 1 of arXiv 2502.19587
    "a task": 1.0,  # one standard error of a score of 90 on 1,000 examples
    "an MTEB average": 0.5,  # as GLUE's average
    BLIMP: 4.0,  # three times the noise of 67 paradigms, 1.3
    NATS: 0.05,  # the noise of some hundred held-out documents, up to 0.048 in a paired difference
    BITS: 0.016,  # 0.05 nats of a token of 4.5 bytes
}
"""Margins of equivalence in the unit of the measure."""
OTHER_GRID = "the grids differ on the same weights, and a choice among more points alone scores higher"


@dataclass(frozen=True)
class Measure:
    """A measured quantity. Differences within ±`margin` are equivalent. Higher is better for points, not for losses."""

    name: str
    unit: str
    margin: float

    @property
    def higher_is_better(self) -> bool:
        return self.unit == POINTS

    @property
    def digits(self) -> int:
        """Number of printed decimals."""
        return 2 if self.unit == POINTS else 4


@dataclass(frozen=True)
class ComparedStep:
    """A variant and its parent in one measure.

    `text` says on what it is measured, such as the corpus. `difference` has the values of both by paired seed of
    pre-training. If there is nothing to compare, `reason` says why and `judged` is None. `notes` name seeds that are
    left out, `ids` are the records.
    """

    design: str
    variant: str
    parent: str
    measure: Measure
    text: str
    difference: Difference
    judged: Judged | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.variant} − {self.parent}"

    @property
    def measured(self) -> str:
        """The measure, with the corpus or tasks."""
        return self.measure.name + (f" on {self.text}" if self.text else "")

    @property
    def word(self) -> str:
        return f"not compared: {self.reason}" if self.judged is None else self.judged.word


def find_steps(study: Study) -> tuple[ComparedStep, ...]:
    """Return all steps by design and measure, in the order of the ladder. The steps of one design in one measure are
    one family of tests. Pairs with the runs of an earlier one are left out of leave-one-out and add-one."""
    families: dict[tuple[str, str], list[ComparedStep]] = defaultdict(list)
    seen = set()
    for design, variant, parent in _pairs_of_designs(study):
        runs = variant.run_ids, parent.run_ids
        if design in (LADDER, OWN_RATES) or not all(runs) or runs not in seen:
            seen.add(runs)
            for step in _Pair(design, variant, parent).steps(study):
                families[design, step.measure.name].append(step)
    return tuple(chain.from_iterable(map(_judged, families.values())))


def _judged(family: Sequence[ComparedStep]) -> Iterator[ComparedStep]:
    judged = iter(judge([step.difference for step in family if not step.reason]))
    yield from (step if step.reason else replace(step, judged=next(judged)) for step in family)


def _pairs_of_designs(study: Study) -> Iterator[tuple[str, ScoreRow, ScoreRow]]:
    """Yield (design, variant, parent) for every pair that designs compare."""
    rows = study.compared_rows
    for row in study.last_rows.values():
        if row.parent:
            yield ALTERNATIVES if "@" in row.name else LADDER, row, rows[row.parent]
    ladder = study.ladder
    for name, modification in product(ladder.steps, ladder.modifications):
        less, more = rows.get(f"{name}-{modification}"), rows.get(f"{name}+{modification}")
        if less is not None:
            yield LEAVE_ONE_OUT, rows[name], less
        if more is not None:
            yield ADD_ONE, more, rows[name]
    yield from ((OWN_RATES, *pair) for pair in pairs_at_own_rates(study))


def pairs_at_own_rates(study: Study) -> Iterator[tuple[ScoreRow, ScoreRow]]:
    """Yield the steps of the ladder with both arms at the best rates of their sweeps."""
    for row in study.last_rows.values():
        if row.name in study.ladder.steps and row.parent:
            ours, theirs = study.row_at_best_rate(row.name), study.row_at_best_rate(row.parent)
            if ours is not None and theirs is not None:
                yield ours, theirs


@dataclass(frozen=True)
class _Pair:
    """Two rows that a design compares."""

    design: str
    variant: ScoreRow
    parent: ScoreRow

    @property
    def _rows(self) -> tuple[ScoreRow, ScoreRow]:
        return self.variant, self.parent

    def steps(self, study: Study) -> Iterator[ComparedStep]:
        """Yield a step for every measure that one of the two has."""
        if len(study.averaged_tasks) > 1:
            yield self._in_glue(study)
        yield from map(self._in_task, filter(self._has_score, study.averaged_tasks))
        if self.variant.recipe.pretraining != self.parent.recipe.pretraining:
            yield self._in_loss()
        yield from self._in_embeddings(study)
        yield from map(self._in_task, filter(self._has_score, study.ladder.own_tasks))
        yield from self._in_minimal_pairs()

    def _has_score(self, task: str) -> bool:
        return any(task in row.cells and row.cells[task].score for row in self._rows)

    def _without_values(self, measure: Measure, text: str = "", reason: str = "") -> ComparedStep:
        trained = not any(row.untrained for row in self._rows)
        difference = Difference({}, {}, measure.margin, measure.higher_is_better, trained)
        return ComparedStep(self.design, self.variant.name, self.parent.name, measure, text, difference, reason=reason)

    def _subtract(self, measure: Measure, text: str, estimates: Sequence[Estimate]) -> ComparedStep:
        """Return the step with the values at the common seeds; notes name the seeds of only one side."""
        step, (ours, theirs) = self._without_values(measure, text), estimates
        common = sorted(ours.by_seeds.keys() & theirs.by_seeds.keys())
        notes = []
        for row, own in zip(self._rows, estimates, strict=True):
            if alone := sorted(own.by_seeds.keys() - set(common)):
                notes.append(f"seed {', '.join(map(str, alone))} of {row.name} has no partner and is left out")
        values = [own.at(common).by_pretraining for own in estimates]
        if len(common) > len(values[0]):
            notes.append("fine-tuning seeds of one pre-training seed are averaged and count as one seed")
        reason = "" if common else f"{self.variant.name} and {self.parent.name} have no seed in common"
        difference = replace(step.difference, ours=values[0], theirs=values[1])
        return replace(step, difference=difference, reason=reason, notes=tuple(notes))

    def _in_glue(self, study: Study) -> ComparedStep:
        """Return the step in mean scores over the tasks, in points. A side that lacks a task has no mean."""
        tasks = study.averaged_tasks
        lacking = [row for row in self._rows if row.mean_over(tasks) is None]
        reason = "; ".join(f"{row.name}: {why_no_average(row, study) or 'no seed has all tasks'}" for row in lacking)
        return self._in_scores(Measure(study.quantity, POINTS, MARGINS[GLUE]), tasks, reason)

    def _in_task(self, task: str) -> ComparedStep:
        """Return the step in one task of GLUE or of the ladder, in points."""
        lacking = [row.name for row in self._rows if row.mean_over([task]) is None]
        reason = f"no score of {' and '.join(lacking)}" if lacking else ""
        return self._in_scores(Measure(task_title(task), POINTS, MARGINS["a task"]), [task], reason)

    def _in_scores(self, measure: Measure, tasks: Sequence[str], reason: str) -> ComparedStep:
        means = [mean for row in self._rows if (mean := row.mean_over(tasks)) is not None]
        reason = reason or why_scores_not_paired(*self._rows, tasks)
        grids = [set(row.recipe.grid.points()) for row in self._rows]
        if self.variant.recipe.pretraining == self.parent.recipe.pretraining and grids[0] != grids[1]:
            reason = reason or OTHER_GRID
        if reason:
            return self._without_values(measure, reason=reason)
        common = means[0].by_seeds.keys() & means[1].by_seeds.keys()
        ids = {trial for row in self._rows for trial in row.trial_ids(tasks, common)}
        return replace(self._subtract(measure, "", means), ids=tuple(sorted(ids)))

    def _in_loss(self) -> ComparedStep:
        """Return the step in held-out loss on the corpus that the variant was trained on: in nats per token for models
        with the same tokens and lengths, else in bits per byte, in the longest common context."""
        variant, parent = self._rows
        corpus = variant.recipe.pretraining.data.corpus
        is_alike = variant.tokens == parent.tokens and variant.context == parent.context
        unit, text = NATS if is_alike else BITS, corpus
        contexts = [{context for own, context in row.bits_per_byte if own == corpus} for row in self._rows]
        reason, losses = why_not_paired(variant, parent) or self._why_no_losses(corpus), []
        if reason:
            pass
        elif is_alike:
            losses = [row.losses[corpus] for row in self._rows]
        elif common := contexts[0] & contexts[1]:
            text = f"{corpus}, {max(common)} tokens"
            losses = [row.bits_per_byte[corpus, max(common)] for row in self._rows]
        else:
            reason = "losses on other tokens or in other contexts, and none in bits per byte"
        measure = Measure(LOSS, unit, MARGINS[unit])
        if reason:
            return self._without_values(measure, text, reason)
        step, runs = self._subtract(measure, text, losses), pd.concat([row.runs for row in self._rows])
        return replace(step, ids=tuple(sorted(runs.id[runs.seed.isin(step.difference.ours)])))

    def _why_no_losses(self, corpus: str) -> str:
        """Return why the arms have no losses on the same held-out texts of a corpus; empty if they have."""
        if missing := [row.name for row in self._rows if not row.losses]:
            return f"{' and '.join(missing)}: no record"
        if missing := [row.name for row in self._rows if corpus not in row.losses]:
            return f"{' and '.join(missing)} was not measured on {corpus}"
        texts = {text for row in self._rows for text in row.heldout.texts[row.heldout.corpus == corpus].dropna()}
        return f"losses on different held-out texts of {corpus}" if len(texts) > 1 else ""

    def _in_embeddings(self, study: Study) -> Iterator[ComparedStep]:
        """Yield the steps in averages of a suite under a protocol, or in means of the tasks that both have."""
        ours, theirs = ([each for each in study.embeddings if each.runs & set(row.run_ids)] for row in self._rows)
        for first, second in product(ours, theirs):
            shared = [task for task in first.scores if task in second.scores]
            if first is second or (first.suite, first.protocol) != (second.suite, second.protocol) or not shared:
                continue
            means = [mean for each in (first, second) if (mean := each.mean_over(shared)) is not None]
            if len(means) == 2 and not why_not_paired(*self._rows):
                name = f"{first.suite} average, {first.protocol.replace('_', '-')}"
                text = "" if first.is_whole and second.is_whole else f"mean of {len(shared)} shared tasks"
                step = self._subtract(Measure(name, POINTS, MARGINS["an MTEB average"]), text, means)
                yield replace(step, ids=tuple(sorted({*first.records(shared), *second.records(shared)})))

    def _in_minimal_pairs(self) -> Iterator[ComparedStep]:
        """Yield the step in BLiMP, if both were asked the same items."""
        variant, parent = self._rows
        if variant.recipe.pretraining == parent.recipe.pretraining or why_not_paired(variant, parent):
            return
        if variant.answers.empty or parent.answers.empty:
            return
        measure = Measure(BLIMP, POINTS, MARGINS[BLIMP])
        common = sorted(set(variant.answers["items"]) & set(parent.answers["items"]))
        if not common:
            yield self._without_values(measure, reason="other items on each side")
            return
        asked = [row.answers[row.answers["items"] == common[0]] for row in self._rows]
        points = [[POINTS_OF_SCORE * each[readouts.BLIMP].value for each in own.answers] for own in asked]
        step = self._subtract(measure, "", [estimate_by_seed(asked[side].seed, points[side]) for side in (0, 1)])
        counted = pd.concat(asked)
        yield replace(step, ids=tuple(sorted(counted.id[counted.seed.isin(step.difference.ours)])))


def relative_change(variant: ScoreRow, parent: ScoreRow, tasks: Sequence[str]) -> float | None:
    """Return the relative change of the mean score over the common seeds, in percent."""
    ours, theirs = variant.mean_over(tasks), parent.mean_over(tasks)
    if ours is None or theirs is None or why_scores_not_paired(variant, parent, tasks):
        return None
    common = ours.by_seeds.keys() & theirs.by_seeds.keys()
    before = statistics.fmean(theirs.at(common).by_pretraining.values()) if common else 0.0
    return 100 * (statistics.fmean(ours.at(common).by_pretraining.values()) / before - 1) if before > 0 else None


def why_not_paired(first: ScoreRow, second: ScoreRow) -> str:
    """Return why two variants cannot be compared: corpora, tokenizers or mechanisms with the same name differ. Empty if
    they can; a different corpus or tokenizer in the recipe is an effect, not a reason."""
    if first.runs.empty or second.runs.empty:
        return ""
    effects = []
    if first.recipe.pretraining.data.corpus != second.recipe.pretraining.data.corpus:
        effects.append("corpus")
    if first.tokens != second.tokens:
        effects.append("tokenizer")
    versions = [row.runs.version.iloc[0] for row in (first, second)]
    difference = describe_difference(*versions, but_for=effects, in_both=True)
    return f"{first.name} and {second.name} rest on other data or numerics: {difference}" if difference else ""


def why_scores_not_paired(first: ScoreRow, second: ScoreRow, tasks: Sequence[str]) -> str:
    """Return why two variants cannot be compared in tasks, whose data must be the same too."""
    if reason := why_not_paired(first, second):
        return reason
    for task in tasks:
        cells = [row.cells[task] for row in (first, second)]
        searches = {canonical(cell.tried.search) if cell.tried else "" for cell in cells if cell.score}
        if len(searches) > 1:
            return f"{task_title(task)} of {first.name} and {second.name} is not of the same grid or kind of search"
        versions = sorted({own for cell in cells for own in cell.recorded.version.dropna()})
        if len(versions) > 1:
            return (
                f"{first.name} and {second.name} rest on other data or numerics of {task_title(task)}: "
                f"{describe_difference(versions[0], versions[1])}"
            )
    return ""
