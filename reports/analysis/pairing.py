"""Pair two rows: their differences by pre-training seed, in GLUE, held-out losses and readouts.

GLUE means are always comparable, held-out losses only if both sides read the same text with the same tokens and
lengths. Missing values are not imputed.
"""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from ablations.declarations import Measure
from ablations.ladders import current
from neobert.glue.tasks import TASKS
from reports.analysis.inference import Comparison, Interval
from reports.analysis.quantities import BITS, QUANTITIES, READOUTS, Units, estimate_answers, name_measurement
from reports.analysis.verdicts import EXPLORATORY, Verdict
from reports.basis import why_not_paired, why_scores_not_paired
from reports.notes import why_no_average
from reports.scores import Estimate, Group, Row, Seeds

LADDER, OWN_RATES = "ladder", "own rates"
NOT_MEASURABLE, DIFFERS = "not measurable", "differs"
"""Answers on a step: an arm fails a check of its regime; a difference is claimed, and neither level nor waiting can be
told of it."""
NO_UNITS = "the records have no numbers per document"
PLACES = {name: place for place, name in enumerate(QUANTITIES)}
OTHER_GRID = "not measurable: the grids differ on the same weights, and a choice among more points alone scores higher"


@dataclass(frozen=True)
class Noise:
    """Examples, texts or items of the first seeds of a difference: the 95 % interval over them, their `variance` in the
    mean difference, the interval over them and over seeds, and the p of the latter; None for one seed."""

    examples: Interval
    variance: float
    both: Interval | None
    p_both: float | None


@dataclass(frozen=True)
class Delta:
    """A variant minus its base in one `quantity` (a key of `QUANTITIES`), by pre-training seed.

    `corpus` is the corpus of a loss; empty for GLUE, and if no corpus was measured on both sides. `is_own`: whether the
    variant was trained on it. `context` is the common context, in tokens, of bits per byte. If there is nothing to
    compare, `reason` says why, `differences` is empty and `comparison` is None. `notes` name the seeds of one side
    alone, `seeds` are the common seeds, `ids` are the records.

    `arms` are the values of both sides by seed, including unpaired ones; `collapsed` are, by arm, the paired seeds that
    lie far from its other seeds, and `collapsed_at` those at each look, of either arm. `correlation` is that of the
    paired values. `units` are the numbers of both sides by seed and unit, and `noises` what follows from them for each
    number of first seeds that was looked at; empty if `no_examples` says why, or if records have no such numbers. No
    look counts the `undeclared` seeds.

    `judged` is the verdict; `scale` is the standard deviation known from pilot seeds, by which its test divides, and
    `pilots` are their numbers by arm. `barred` says of looks why the difference gets no verdict there. If `no_verdict`
    says why, it gets none at all: the difference is shown, but belongs to no family.
    `timing` is the reading of a loss, if one is known: whether its difference is one of level or of waiting.
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
    is_own: bool = True
    comparison: Comparison | None = None
    arms: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    collapsed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    collapsed_at: Mapping[int, Collection[int]] = field(default_factory=dict)
    correlation: float | None = None
    noises: Mapping[int, Noise] = field(default_factory=dict)
    no_examples: str = ""
    units: tuple[tuple[Units, Units], ...] = ()
    undeclared: Collection[int] = ()
    judged: Verdict = EXPLORATORY
    scale: float | None = None
    pilots: Mapping[str, int] = field(default_factory=dict)
    barred: Mapping[int, str] = field(default_factory=dict)
    no_verdict: str = ""
    timing: str = ""

    @property
    def found(self) -> Comparison:
        """The comparison of a delta that has one."""
        assert self.comparison is not None, self.reason
        return self.comparison

    @property
    def counted(self) -> dict[int, float]:
        """The differences that looks count, by seed in their order."""
        return {seed: own for seed, own in sorted(self.differences.items()) if seed not in self.undeclared}

    def first(self, seeds: int) -> list[int]:
        """Return the first seeds that looks count, at most so many."""
        return list(self.counted)[:seeds]

    @property
    def digits(self) -> int:
        """Number of printed decimals."""
        return QUANTITIES[self.quantity].digits

    @property
    def test(self) -> str:
        """The test that decides: joint flips of differences that are divided by what pilot seeds show, or of pooled
        ones; empty if it is not tested."""
        if not self.judged.is_tested:
            return ""
        return "joint flips, pooled variances" if self.scale is None else "joint flips, pilot deviations"

    @property
    def measured(self) -> str:
        """The quantity, with the corpus and the common context of a loss."""
        return name_measurement(self.quantity, self.corpus, self.context)

    @property
    def pair(self) -> tuple[str, str]:
        return self.variant, self.base

    @property
    def step(self) -> str:
        return f"{self.variant} − {self.base}"

    @property
    def place(self) -> tuple[str, str, str, str]:
        """(variant, base, quantity, corpus), by which forecasts refer to it."""
        return self.variant, self.base, self.quantity, self.corpus

    @property
    def family(self) -> tuple[str, str]:
        """Key of the family of tests that are corrected together."""
        return self.design, self.measured

    @property
    def verdict(self) -> str:
        """What may be claimed in words, with the collapsed seeds; empty for exploratory measures without any."""
        if self.comparison is None or self.no_verdict:
            return self.no_verdict
        collapses = f"collapsed: {', '.join(self.collapses)}" if self.collapsed else ""
        timing = self.timing if self.claimed[0] else ""
        barred = (f"at {look} seeds {reason}" for look, reason in self.barred.items() if self.judged.is_tested)
        return "; ".join(filter(None, (self.judged.words, timing, collapses, *barred)))

    @property
    def claimed(self) -> tuple[str, bool]:
        """The direction claimed, or an empty text, and whether equivalence is claimed."""
        return self.judged.claimed

    @property
    def word(self) -> str:
        """The answer in one word, or what it is equivalent within; empty for exploratory measures."""
        if self.no_verdict:
            return NOT_MEASURABLE
        direction, is_equivalent = self.claimed
        if not (direction or is_equivalent):
            return self.judged.words
        timing = (self.timing or DIFFERS) if direction else ""
        within = f"equivalent within {self.judged.margin:g}" if is_equivalent else ""
        return ", ".join(filter(None, (timing, within)))

    @property
    def is_better(self) -> bool | None:
        """Whether it is claimed to be better; None where no difference is claimed."""
        direction = self.claimed[0]
        return direction == QUANTITIES[self.quantity].better if direction else None

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval that decides: over seeds and examples where records have numbers for each."""
        return self.both or self.found.interval

    @property
    def collapses(self) -> tuple[str, ...]:
        """The collapsed seeds in words."""
        return tuple(f"seed {', '.join(map(str, seeds))} of {name}" for name, seeds in self.collapsed.items())

    @property
    def noise(self) -> Noise | None:
        """The noise of examples at the last look, or at all seeds before the first."""
        return self.noises[max(self.noises)] if self.noises else None

    @property
    def examples(self) -> Interval | None:
        """The 95 % interval over examples, texts or items."""
        return self.noise.examples if self.noise else None

    @property
    def both(self) -> Interval | None:
        """The 95 % interval over seeds and examples."""
        return self.noise.both if self.noise else None


def is_of(delta: Delta, measure: Measure) -> bool:
    """Whether a difference is one in a measure of a protocol."""
    return delta.quantity == measure.quantity and delta.is_own == (measure.corpus == "own")


def pair_all(variant: Row, base: Row, tasks: Sequence[str], group: Group) -> Iterator[Delta]:
    """Yield the deltas of two rows in held-out losses, readouts and, if the ladder fine-tunes on GLUE, its means over
    `tasks`, in the order of `QUANTITIES`; none are compared if a side is untrained."""
    untrained = "; ".join(filter(None, (variant.untrained, base.untrained)))
    glue = [pair_glue(variant, base, tasks, group)] if current().fine_tunes_on_glue else []
    deltas = [*glue, *pair_losses(variant, base), *pair_readouts(variant, base)]
    for delta in sorted(deltas, key=lambda delta: PLACES[delta.quantity]):
        own = replace(delta, is_own=delta.corpus in ("", variant.recipe.pretraining.data.corpus))
        yield replace(own, differences={}, seeds=(), ids=(), reason=untrained) if untrained else own


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


def pair_losses(variant: Row, base: Row) -> Iterator[Delta]:
    """Yield the deltas of held-out losses on every common corpus, the variant's own first: in nats per token for models
    with the same tokens and lengths, or one delta with the reason against it; then in bits per byte, in the longest
    common context."""
    empty, shared = Delta(variant.name, base.name, "loss"), shared_corpora([variant, base])
    if reason := why_not_paired(variant, base) or why_losses_differ(variant, base):
        yield replace(empty, reason=reason)
    elif not shared:
        yield replace(empty, reason=_why_no_shared_loss(variant, base))
    else:
        for corpus in shared:
            ours, theirs = variant.losses[corpus], base.losses[corpus]
            yield _subtract_losses(replace(empty, corpus=corpus), variant, base, ours, theirs)
    if variant.recipe.pretraining != base.recipe.pretraining and not why_not_paired(variant, base):
        yield from _pairs_in_bits(variant, base)


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
    if causal := [row.name for row in (first, second) if row.recipe.pretraining.ends_causal]:
        return f"no held-out loss after a last stage that is causal: {' and '.join(causal)}"
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
    factor = QUANTITIES[empty.quantity].factor
    units = [[Units(a.numerators, a.denominators, a.units, factor) for a in (o.answer, t.answer)] for o, t in pairs]
    return replace(
        _subtract(empty, *estimates),
        ids=tuple(sorted({each.id for pair in pairs for each in pair})),
        units=tuple((mine, other) for mine, other in units),
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
    ids = tuple(sorted(runs.id[runs.seed.isin(kept)]))
    ours_by_seed, theirs_by_seed = _units_of(variant, delta), _units_of(base, delta)
    is_complete = set(kept) <= ours_by_seed.keys() & theirs_by_seed.keys()
    units = tuple((ours_by_seed[seed], theirs_by_seed[seed]) for seed in kept) if is_complete else ()
    delta = replace(delta, ids=ids, units=units, no_examples="" if units else NO_UNITS)
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


def _units_of(row: Row, delta: Delta) -> dict[int, Units]:
    """Return the numbers by unit of a row's held-out losses, by seed, in the unit of the delta."""
    own = row.heldout[row.heldout.units.notna()]
    if own.empty:
        return {}
    own = own[own.corpus == delta.corpus]
    own = own[own.context == (delta.context or row.context)]
    factors = own.bits_per_byte / own.loss if delta.quantity == BITS else [1.0] * len(own)
    return {
        each.seed: Units(each.numerators, each.denominators, int(each.units), factor)
        for each, factor in zip(own.itertuples(), factors, strict=True)
    }
