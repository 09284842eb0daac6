"""Pair two rows: their differences by pre-training seed, in GLUE, held-out losses and readouts.

GLUE means are always comparable, held-out losses only if both sides read the same text with the same tokens and
lengths. Missing values are not imputed.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from neobert.glue.tasks import TASKS
from neobert.runs.records import ReadoutScore
from reports.analysis.inference import ALPHA, Comparison, Interval, claims, verdict
from reports.analysis.quantities import BITS, READOUTS, estimate_answers, name_measurement
from reports.basis import why_not_paired, why_scores_not_paired
from reports.notes import why_no_average
from reports.scores import Estimate, Group, Row, Seeds
from reports.tables import facets

LADDER, OWN_RATES = "ladder", "own rates"
OTHER_GRID = "no verdict: the grids differ on the same weights, and a choice among more points alone scores higher"


@dataclass(frozen=True)
class Delta:
    """A variant minus its base in one `quantity` (a key of `QUANTITIES`), by pre-training seed.

    `corpus` is the corpus of a loss; empty for GLUE, and if no corpus was measured on both sides. `context` is the
    common context, in tokens, of bits per byte. If there is nothing to compare, `reason` says why, `differences` is
    empty and `comparison` is None. `notes` name the seeds of only one side, `seeds` are the common seeds, `ids` are the
    records.

    `p_family` (joint sign flips) and `p_equivalence_holm` are corrected over all deltas of the same design and
    quantity, separately for each corpus of a loss, at the last look. `arms` are the values of both sides by seed,
    including unpaired ones; `collapsed` are, by arm, the paired seeds that lie far from its other seeds. With such
    seeds, `p_family` is the larger of the values with and without them, so that no claim depends on them. `examples` is
    the 95 % interval over development examples, texts or items at the seeds of the last look, `variance` their variance
    in the mean difference; None if `no_examples` says why, or if records have no numbers per example. `both` is the
    interval over seeds and examples at the last look, `p_both` its p. `answers` are the readout scores of both sides,
    by seed. If `no_verdict` says why, the difference is shown, but belongs to no family.
    """

    variant: str
    base: str
    quantity: str
    corpus: str = ""
    context: int | None = None
    differences: Mapping[int, float] = field(default_factory=dict)
    seeds: tuple[Seeds, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    design: str = ""
    comparison: Comparison | None = None
    arms: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    collapsed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    p_family: float | None = None
    p_equivalence_holm: float | None = None
    examples: Interval | None = None
    variance: float | None = None
    both: Interval | None = None
    p_both: float | None = None
    no_examples: str = ""
    answers: tuple[tuple[ReadoutScore, ReadoutScore], ...] = ()
    no_verdict: str = ""

    @property
    def measured(self) -> str:
        """The quantity, with the corpus and the common context of a loss."""
        return name_measurement(self.quantity, self.corpus, self.context)

    @property
    def place(self) -> tuple[str, str, str, str]:
        """(variant, base, quantity, corpus), by which forecasts refer to it."""
        return self.variant, self.base, self.quantity, self.corpus

    @property
    def family(self) -> tuple[str, str]:
        """Key of the family of tests that are corrected together."""
        return self.design, self.measured

    @property
    def facets(self) -> dict[str, str]:
        """Values that the page filters by."""
        return facets(self.quantity, self.corpus, "own" if self.design == OWN_RATES else "shared")

    @property
    def verdict(self) -> str:
        """What may be claimed in words, with the collapsed seeds; empty if nothing is compared."""
        if self.comparison is None or self.no_verdict:
            return self.no_verdict
        words = verdict(self.comparison, *self._p_values)
        return f"{words}; collapsed: {', '.join(self.collapses)}" if self.collapsed else words

    @property
    def claimed(self) -> tuple[str, bool]:
        """The direction claimed, or an empty text, and whether equivalence is claimed."""
        return ("", False) if self.comparison is None else claims(self.comparison, *self._p_values)

    @property
    def collapses(self) -> tuple[str, ...]:
        """The collapsed seeds in words."""
        return tuple(f"seed {', '.join(map(str, seeds))} of {name}" for name, seeds in self.collapsed.items())

    @property
    def _p_values(self) -> tuple[float | None, float | None]:
        """The p of difference and equivalence; None where the interval over both does not bear the claim."""
        includes_zero = self.p_both is not None and self.p_both > ALPHA
        is_wide = (
            self.both is not None and self.comparison is not None and max(map(abs, self.both)) > self.comparison.margin
        )
        return None if includes_zero else self.p_family, None if is_wide else self.p_equivalence_holm


def pair_all(variant: Row, base: Row, tasks: Sequence[str], group: Group) -> Iterator[Delta]:
    """Yield the deltas of two rows in GLUE means over `tasks`, held-out losses and readouts; none are compared if a
    side is untrained."""
    untrained = "; ".join(filter(None, (variant.untrained, base.untrained)))
    glue = pair_glue(variant, base, tasks, group)
    for delta in (glue, *pair_losses(variant, base), *pair_readouts(variant, base)):
        yield replace(delta, differences={}, seeds=(), ids=(), reason=untrained) if untrained else delta


def pair_glue(variant: Row, base: Row, tasks: Sequence[str], group: Group) -> Delta:
    """Return the delta of mean scores over the tasks, in points. A side that lacks a task has no mean."""
    empty = Delta(variant.name, base.name, "GLUE")
    ours, theirs = variant.mean_over(tasks), base.mean_over(tasks)
    if ours is None or theirs is None:
        lacking = [row for row, mean in ((variant, ours), (base, theirs)) if mean is None]
        return replace(empty, reason="; ".join(_why_no_mean(row, tasks, group) for row in lacking))
    if reason := why_scores_not_paired(variant, base, tasks):
        return replace(empty, reason=reason)
    delta = _subtract(empty, ours, theirs)
    ids = {*variant.trial_ids(tasks, delta.seeds), *base.trial_ids(tasks, delta.seeds)}
    grids = [set(row.recipe.grid.points()) for row in (variant, base)]
    is_choice = variant.recipe.pretraining == base.recipe.pretraining and grids[0] != grids[1]
    return replace(delta, ids=tuple(sorted(ids)), no_verdict=OTHER_GRID if is_choice else "")


def relative_change(variant: Row, base: Row, tasks: Sequence[str]) -> float | None:
    """Return the relative change of the mean score over the common seeds, in percent."""
    ours, theirs = variant.mean_over(tasks), base.mean_over(tasks)
    if ours is None or theirs is None or why_scores_not_paired(variant, base, tasks):
        return None
    common = ours.by_seeds.keys() & theirs.by_seeds.keys()
    before = statistics.fmean(theirs.at(common).by_pretraining.values()) if common else 0.0
    return 100 * (statistics.fmean(ours.at(common).by_pretraining.values()) / before - 1) if before > 0 else None


def _why_no_mean(row: Row, tasks: Sequence[str], group: Group) -> str:
    absent = [TASKS[task].title for task in tasks if row.cells[task].score is None]
    if row.is_started and absent:
        return f"{row.name} has no score on {', '.join(absent)}"
    return f"{row.name}: {why_no_average(row, group) or 'no seed has all tasks'}"


def pair_losses(variant: Row, base: Row) -> tuple[Delta, ...]:
    """Return the deltas of held-out losses, in nats a token, on every common corpus, the variant's own first, for
    models with the same tokens and lengths. If losses cannot be compared, return one delta with the reason, followed by
    deltas in bits per byte if both were measured in a common context."""
    empty, shared = Delta(variant.name, base.name, "loss"), shared_corpora([variant, base])
    if reason := why_not_paired(variant, base):
        return (replace(empty, reason=reason),)
    if reason := why_losses_differ(variant, base) or ("" if shared else _why_no_shared_loss(variant, base)):
        is_same = variant.recipe.pretraining == base.recipe.pretraining
        return replace(empty, reason=reason), *(() if is_same else _pairs_in_bits(variant, base))
    return tuple(
        _subtract_losses(replace(empty, corpus=corpus), variant, base, variant.losses[corpus], base.losses[corpus])
        for corpus in shared
    )


def shared_corpora(rows: Sequence[Row]) -> list[str]:
    """Return the corpora that all rows were measured on: first the training corpus of the first row, then by name."""
    return _own_first(set.intersection(*(set(row.losses) for row in rows)), rows[0]) if rows else []


def _own_first(corpora: Iterable[str], row: Row) -> list[str]:
    own = row.recipe.pretraining.data.corpus
    return sorted(corpora, key=lambda corpus: (corpus != own, corpus))


def why_losses_differ(first: Row, second: Row) -> str:
    """Return why the losses of two rows on one text cannot be compared; empty if they can."""
    ours, theirs = first.recipe.pretraining, second.recipe.pretraining
    if ours == theirs:
        return "both have the same weights"
    if first.tokens != second.tokens:
        return f"losses on other tokens: {ours.data.tokenizer} and {theirs.data.tokenizer}"
    if first.context != second.context:
        return f"losses in other contexts: {first.context} and {second.context} tokens"
    return ""


def _why_no_shared_loss(variant: Row, base: Row) -> str:
    if missing := [row.name for row in (variant, base) if not row.losses]:
        return f"{' and '.join(missing)}: no record"
    corpora = [row.recipe.pretraining.data.corpus for row in (variant, base)]
    return f"losses on other text: {' and '.join(corpora)}"


def _pairs_in_bits(variant: Row, base: Row) -> Iterator[Delta]:
    """Yield deltas in bits per byte on every common corpus, the variant's own first, in the longest common context."""
    first, second = variant.bits_per_byte, base.bits_per_byte
    longest = dict(sorted(first.keys() & second.keys()))
    for corpus in _own_first(longest, variant):
        place = corpus, longest[corpus]
        empty = Delta(variant.name, base.name, BITS, corpus, longest[corpus])
        yield _subtract_losses(empty, variant, base, first[place], second[place])


def pair_readouts(variant: Row, base: Row) -> Iterator[Delta]:
    """Yield the deltas of every readout on every common corpus, the variant's own first; only between answers to the
    same items. Losses per token require the same tokens."""
    if variant.recipe.pretraining == base.recipe.pretraining or why_not_paired(variant, base):
        return
    corpora = _own_first(set(variant.answers.corpus) & set(base.answers.corpus), variant)
    for readout, quantity in READOUTS.items():
        for corpus in corpora if variant.tokens == base.tokens or not quantity.shares_tokens else ():
            ours, theirs = variant.answers_to(readout, corpus), base.answers_to(readout, corpus)
            if not (ours.empty or theirs.empty):
                yield _subtract_answers(Delta(variant.name, base.name, quantity.name, corpus), ours, theirs)


def _subtract_answers(empty: Delta, ours: pd.DataFrame, theirs: pd.DataFrame) -> Delta:
    """Subtract the answers at the seeds at which both models were asked the same items."""
    first, second = ({(each.items, each.seed): each for each in frame.itertuples()} for frame in (ours, theirs))
    asked = Counter(items for items, _ in first.keys() & second.keys())
    if not asked:
        return replace(empty, reason=f"{empty.variant} and {empty.base} were not asked the same at any seed")
    usual = max(sorted(asked), key=asked.__getitem__)
    seeds = sorted(seed for items, seed in first.keys() & second.keys() if items == usual)
    pairs = [(first[usual, seed], second[usual, seed]) for seed in seeds]
    estimates = (estimate_answers(each[each["items"] == usual], empty.quantity) for each in (ours, theirs))
    return replace(
        _subtract(empty, *estimates),
        ids=tuple(sorted({each.id for pair in pairs for each in pair})),
        answers=tuple((mine.answer, other.answer) for mine, other in pairs),
    )


def _subtract(empty: Delta, ours: Estimate, theirs: Estimate) -> Delta:
    """Subtract at the common seeds; notes name the seeds of only one side."""
    common = sorted(ours.by_seeds.keys() & theirs.by_seeds.keys())
    alone = {name: each.by_seeds.keys() - set(common) for name, each in ((empty.variant, ours), (empty.base, theirs))}
    notes = [
        f"seed {', '.join(map(str, sorted(seeds)))} of {name} has no partner and is left out"
        for name, seeds in alone.items()
        if seeds
    ]
    differences = Estimate({seeds: ours.by_seeds[seeds] - theirs.by_seeds[seeds] for seeds in common}).by_pretraining
    if len(common) > len(differences):
        notes.append("fine-tuning seeds of one pre-training seed are averaged and count as one seed")
    reason = "" if differences else f"{empty.variant} and {empty.base} have no seed in common"
    arms = {empty.variant: ours.by_pretraining, empty.base: theirs.by_pretraining}
    return replace(empty, differences=differences, seeds=tuple(common), reason=reason, notes=tuple(notes), arms=arms)


def _subtract_losses(empty: Delta, variant: Row, base: Row, ours: Estimate, theirs: Estimate) -> Delta:
    """Subtract losses and add the run ids; seeds measured on different held-out documents are left out."""
    delta = _subtract(empty, ours, theirs)
    runs = pd.concat([variant.runs, base.runs])
    heldout = pd.concat([variant.heldout, base.heldout])
    known = heldout[(heldout.corpus == delta.corpus) & heldout.texts.notna()]
    named = dict(zip(known.run, known.texts, strict=True))
    # runs recorded before texts had names all used the same rule
    texts = runs.id.map(lambda run: named.get(run, "")).groupby(runs.seed).nunique()
    odd = [seed for seed in delta.differences if texts[seed] > 1]
    kept = {seed: difference for seed, difference in delta.differences.items() if seed not in odd}
    delta = replace(delta, ids=tuple(sorted(runs.id[runs.seed.isin(kept)])))
    if not odd:
        return delta
    why = f"seed {', '.join(map(str, odd))} was measured on other held-out texts of {delta.corpus} on each side"
    return replace(
        delta,
        differences=kept,
        seeds=tuple(each for each in delta.seeds if each.pretraining in kept),
        reason="" if kept else why,
        notes=(*delta.notes, f"{why} and is left out"),
    )
