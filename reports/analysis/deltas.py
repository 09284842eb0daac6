"""Deltas over paired seeds: of the ladder and of leave-one-out and add-one designs, with their statistics and table.

A pair shares the seed of pre-training. GLUE means are always comparable, held-out losses only where both sides read
the same text in the same tokens and lengths; nothing missing is filled in.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ablations.designs import claims
from ablations.ladders import current, ladder
from ablations.rates import MARK
from neobert.errors import MissingData
from neobert.glue.tasks import TASKS
from neobert.runs.records import ReadoutScore
from reports.analysis.inference import (
    LOOKS,
    SEEDS_FOR_A_CLAIM,
    Comparison,
    Interval,
    adjust,
    collapsed_seeds,
    compare,
    family_p_values,
    last_look,
    verdict,
    with_examples,
)
from reports.analysis.readouts import READOUTS, paired_variance
from reports.analysis.resampling import StoredPredictions
from reports.basis import why_not_paired, why_scores_not_paired
from reports.notes import warnings, why_no_average
from reports.scores import POINTS_OF_SCORE, Estimate, Group, Row, Seeds
from reports.tables import DASH, Table, frame_of, number, p_value, printed_range, signed

Array = np.ndarray[Any, np.dtype[Any]]

NORMAL_QUANTILE = 1.959964
"""Of the 95 % interval over hundreds of items."""
LADDER, OWN_RATES = "ladder", "own rates"
BITS = "bits per byte"
MARGINS: Mapping[str, tuple[float, str]] = {
    "GLUE": (0.5, "points: the smallest change between neighbours in the paper's Figure 1 (M2 → M4)"),
    "loss": (0.05, "nats: the noise of some hundred held-out documents, up to 0.048 in a paired difference"),
    BITS: (0.016, "bits: the 0.05 nats of a token of 4.5 bytes"),
    READOUTS["loss"].quantity: (
        0.05,
        "nats: as other losses; a MiB of text has a noise of 0.006 in a paired difference",
    ),
    READOUTS["loss_80_10_10"].quantity: (0.05, "nats: the same"),
    READOUTS["words"].quantity: (0.016, "bits: as bits per byte; the words of a MiB of text have a noise of 0.0025"),
    READOUTS["cloze"].quantity: (3.0, "points: three times the noise of 1,000 items, 1.0"),
    READOUTS["pairs"].quantity: (5.0, "points: three times the noise of 360 pairs, 1.6"),
}
DIGITS = {"GLUE": 2, "loss": 4, BITS: 4} | {each.quantity: each.digits for each in READOUTS.values()}


def name_measurement(quantity: str, corpus: str, context: int | None = None) -> str:
    """GLUE, or loss with the corpus that it was measured on, and with the context if that is none of their own."""
    return quantity + (f" on {corpus}" if corpus else "") + (f", {context} tokens" if context else "")


@dataclass(frozen=True)
class Delta:
    """A variant less its base in one `quantity` (a key of `MARGINS`), by seed of pre-training.

    `corpus` is what a loss was measured on; empty for GLUE, and where no corpus was measured on both sides. `context`
    is the common one, in tokens, of bits per byte. Where `reason` says why there is nothing to compare, `differences`
    are empty and `comparison` is None. `notes` name seeds that only one side has, `seeds` are those that both have,
    `ids` are the records.

    `p_family` (joint sign flips) and `p_equivalence_holm` are corrected over all deltas of the same design and
    quantity, a loss on each corpus by itself, at the last look. `arms` are the values of both sides by seed, with those
    that have no partner; `collapsed` says which of the paired ones lie far from their arm's others. With such seeds
    `p_family` is the larger of two, with and without them: an effect is claimed only where it does not rest on them.
    `examples` is the 95 % interval over development examples, texts or items at these seeds, `variance` theirs in the
    mean difference; None where `no_examples` says why, or where records hold no number for each. `both` is the interval
    over seeds and examples, `p_both` the p that goes with it. `answers` are those of both sides to a readout, by seed.
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
    collapsed: tuple[str, ...] = ()
    p_family: float | None = None
    p_equivalence_holm: float | None = None
    examples: Interval | None = None
    variance: float | None = None
    both: Interval | None = None
    p_both: float | None = None
    no_examples: str = ""
    answers: tuple[tuple[ReadoutScore, ReadoutScore], ...] = ()

    @property
    def measured(self) -> str:
        """The quantity, with the corpus and the common context of a loss."""
        return name_measurement(self.quantity, self.corpus, self.context)

    @property
    def family(self) -> tuple[str, str]:
        """The tests that are corrected together."""
        return self.design, self.measured

    @property
    def facets(self) -> dict[str, str]:
        """What the page filters by."""
        rate = "own" if self.design == OWN_RATES else "shared"
        return {"readout": self.quantity, "corpus": self.corpus, "rate": rate}

    @property
    def verdict(self) -> str:
        """What may be claimed, with the seeds that collapsed; empty where nothing is compared."""
        if self.comparison is None:
            return ""
        difference, equivalence = self.p_family, self.p_equivalence_holm
        if difference is not None and self.p_both is not None:
            difference = max(difference, self.p_both)
        if self.both is not None and max(map(abs, self.both)) > self.comparison.margin:
            equivalence = None
        words = verdict(self.comparison, difference, equivalence)
        return f"{words}; collapsed: {', '.join(self.collapsed)}" if self.collapsed else words


def find_deltas(group: Group, tasks: Sequence[str], stored: StoredPredictions) -> tuple[Delta, ...]:
    """All deltas in the order of the ladder: GLUE means over `tasks`, then held-out losses, then the designs."""
    families: dict[tuple[str, str], list[Delta]] = defaultdict(list)
    for design, variant, base in _compared_pairs(group):
        for delta in pair_all(variant, base, tasks, group):
            compared = _compare(replace(delta, design=design), variant, base, tasks, stored)
            families[compared.family].append(compared)
    return tuple(delta for family in families.values() for delta in _corrected(family))


def _compared_pairs(group: Group) -> Iterator[tuple[str, Row, Row]]:
    """(design, variant, base) of everything that designs compare."""
    rows = group.compared_rows
    for row in group.last_rows.values():
        if row.parent:
            yield "alternatives" if "@" in row.name else LADDER, row, rows[row.parent]
    whole, root = current().whole.name, current().root.name
    for name in current().factors:
        less, more = rows.get(f"{whole}-{name}"), rows.get(f"{root}+{name}")
        if less is not None:
            yield "leave-one-out", rows[whole], less
        if more is not None:
            yield "add-one", more, rows[root]
    for row in group.last_rows.values():
        if row.name in ladder() and row.parent:
            ours, theirs = group.row_at_best_rate(row.name), group.row_at_best_rate(row.parent)
            if ours is not None and theirs is not None:
                yield OWN_RATES, ours, theirs


def pair_all(variant: Row, base: Row, tasks: Sequence[str], group: Group) -> Iterator[Delta]:
    """Two rows in GLUE means over `tasks`, held-out losses and readouts; not compared where a side did not train."""
    untrained = "; ".join(filter(None, (variant.untrained, base.untrained)))
    for delta in (
        pair_glue(variant, base, tasks, group),
        *pair_losses(variant, base),
        *pair_readouts(variant, base),
    ):
        yield replace(delta, differences={}, seeds=(), ids=(), reason=untrained) if untrained else delta


def _compare(delta: Delta, variant: Row, base: Row, tasks: Sequence[str], stored: StoredPredictions) -> Delta:
    """A delta with its statistics, apart from what is corrected over its family."""
    if not delta.differences:
        return delta
    delta = replace(delta, comparison=compare(delta.differences.values(), MARGINS[delta.quantity][0]))
    if delta.quantity == "GLUE":
        try:
            draws = resampled_differences(variant, base, tasks, stored, delta.seeds)
        except MissingData as error:
            return replace(delta, no_examples=str(error))
        low, high = np.nanpercentile(draws, (2.5, 97.5))
        delta = replace(delta, examples=(float(low), float(high)), variance=float(np.nanvar(draws, ddof=1)))
    elif delta.answers:
        delta = _with_noise_of_items(delta)
    if delta.variance is None:
        return delta
    found = with_examples(delta.differences.values(), delta.variance)
    return delta if found is None else replace(delta, both=found[0], p_both=found[1])


def _corrected(family: Sequence[Delta]) -> list[Delta]:
    """The deltas of a family with what is corrected over it, and the seeds that collapsed in its arms."""
    collapsed = collapsed_seeds({name: arm for delta in family for name, arm in delta.arms.items()})
    of_pairs = [
        {seed for name in delta.arms for seed in collapsed.get(name, ()) if seed in delta.differences}
        for delta in family
    ]
    of_difference = family_p_values([delta.differences for delta in family], of_pairs)
    of_equivalence = adjust([delta.comparison.p_equivalence if delta.comparison else None for delta in family])
    return [
        replace(
            delta,
            p_family=difference,
            p_equivalence_holm=equivalence,
            collapsed=_name_collapsed(delta, collapsed),
        )
        for delta, difference, equivalence in zip(family, of_difference, of_equivalence, strict=True)
    ]


def _name_collapsed(delta: Delta, collapsed: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """The paired seeds of a delta that lie far from the others of their arm."""
    by_arm = {name: [seed for seed in collapsed.get(name, ()) if seed in delta.differences] for name in delta.arms}
    return tuple(f"seed {', '.join(map(str, seeds))} of {name}" for name, seeds in by_arm.items() if seeds)


def pair_glue(variant: Row, base: Row, tasks: Sequence[str], group: Group) -> Delta:
    """Mean scores over the tasks, in points. A side that lacks a task has no mean."""
    ours, theirs = variant.mean_over(tasks), base.mean_over(tasks)
    if ours is None or theirs is None:
        lacking = [row for row, mean in ((variant, ours), (base, theirs)) if mean is None]
        reasons = [_why_no_mean(row, tasks, group) for row in lacking]
        return Delta(variant.name, base.name, "GLUE", reason="; ".join(reasons))
    if reason := why_scores_not_paired(variant, base, tasks):
        return Delta(variant.name, base.name, "GLUE", reason=reason)
    delta = _subtract(Delta(variant.name, base.name, "GLUE"), ours, theirs)
    ids = {*variant.trial_ids(tasks, delta.seeds), *base.trial_ids(tasks, delta.seeds)}
    return replace(delta, ids=tuple(sorted(ids)))


def _why_no_mean(row: Row, tasks: Sequence[str], group: Group) -> str:
    absent = [TASKS[task].title for task in tasks if row.cells[task].score is None]
    if row.is_started and absent:
        return f"{row.name} has no score on {', '.join(absent)}"
    return f"{row.name}: {why_no_average(row, group) or 'no seed has all tasks'}"


def pair_losses(variant: Row, base: Row) -> tuple[Delta, ...]:
    """Held-out losses in nats a token on every corpus that both were measured on, the variant's own first; only of
    models that read it in the same tokens and lengths. Where nothing can be compared, one pair that says why, and
    behind it the losses in bits per byte where both were measured in a common context."""
    shared = shared_corpora([variant, base])
    reason = why_losses_differ(variant, base) or ("" if shared else _why_no_shared_loss(variant, base))
    if other := why_not_paired(variant, base):
        return (Delta(variant.name, base.name, "loss", reason=other),)
    delta = Delta(variant.name, base.name, "loss", reason=reason)
    if reason:
        is_same = variant.recipe.pretraining == base.recipe.pretraining
        return delta, *(() if is_same else _pairs_in_bits(variant, base))
    return tuple(
        _subtract_losses(replace(delta, corpus=corpus), variant, base, variant.losses[corpus], base.losses[corpus])
        for corpus in shared
    )


def shared_corpora(rows: Sequence[Row]) -> list[str]:
    """The corpora that all rows were measured on: the one that the first was trained on, then the others by name."""
    shared = set.intersection(*(set(row.losses) for row in rows)) if rows else set()
    return sorted(shared, key=lambda corpus: (corpus != rows[0].recipe.pretraining.data.corpus, corpus))


def why_losses_differ(first: Row, second: Row) -> str:
    """Why the losses of two rows on one text are of different things; empty where they are of the same."""
    ours, theirs = first.recipe.pretraining, second.recipe.pretraining
    if ours == theirs:
        return "both have the same weights"
    if (ours.data.tokenizer, ours.model.vocabulary_size) != (theirs.data.tokenizer, theirs.model.vocabulary_size):
        return f"losses on other tokens: {ours.data.tokenizer} and {theirs.data.tokenizer}"
    contexts = [pretraining.stages[-1].context for pretraining in (ours, theirs)]
    return "" if contexts[0] == contexts[1] else f"losses in other contexts: {contexts[0]} and {contexts[1]} tokens"


def _why_no_shared_loss(variant: Row, base: Row) -> str:
    if missing := [row.name for row in (variant, base) if not row.losses]:
        return f"{' and '.join(missing)}: no record"
    corpora = [row.recipe.pretraining.data.corpus for row in (variant, base)]
    return f"losses on other text: {' and '.join(corpora)}"


def _pairs_in_bits(variant: Row, base: Row) -> Iterator[Delta]:
    """Bits per byte on every corpus in the longest context that both were measured in, the variant's own first."""
    first, second = variant.bits_per_byte, base.bits_per_byte
    longest = dict(sorted(first.keys() & second.keys()))
    own = variant.recipe.pretraining.data.corpus
    for corpus in sorted(longest, key=lambda corpus: (corpus != own, corpus)):
        place = corpus, longest[corpus]
        empty = Delta(variant.name, base.name, BITS, corpus, longest[corpus])
        yield _subtract_losses(empty, variant, base, first[place], second[place])


def pair_readouts(variant: Row, base: Row) -> Iterator[Delta]:
    """Every readout on every corpus that both answered, the variant's own first; only of models that were asked the
    same, and losses a token only of models with the same tokens."""
    ours, theirs = variant.recipe.pretraining, base.recipe.pretraining
    if ours == theirs or why_not_paired(variant, base):
        return
    has_same_tokens = (ours.data.tokenizer, ours.model.vocabulary_size) == (
        theirs.data.tokenizer,
        theirs.model.vocabulary_size,
    )
    corpora = sorted(
        set(variant.answers.corpus) & set(base.answers.corpus), key=lambda each: (each != ours.data.corpus, each)
    )
    for readout, facts in READOUTS.items():
        for corpus in corpora:
            first, second = variant.answers_to(readout, corpus), base.answers_to(readout, corpus)
            if (facts.shares_tokens and not has_same_tokens) or first.empty or second.empty:
                continue
            empty = Delta(variant.name, base.name, facts.quantity, corpus)
            yield _subtract_answers(empty, first, second, facts.factor)


def _subtract_answers(empty: Delta, ours: pd.DataFrame, theirs: pd.DataFrame, factor: float) -> Delta:
    """The differences at the seeds at which both were asked the same."""
    first, second = (
        {
            (items, seed): (answer, id_)
            for items, seed, answer, id_ in zip(each["items"], each.seed, each.answer, each.id, strict=True)
        }
        for each in (ours, theirs)
    )
    asked = Counter(items for items, _ in first.keys() & second.keys())
    if not asked:
        return replace(empty, reason=f"{empty.variant} and {empty.base} were not asked the same at any seed")
    usual = max(sorted(asked), key=lambda items: asked[items])
    seeds = sorted(seed for items, seed in first.keys() & second.keys() if items == usual)
    pairs = [(first[usual, seed], second[usual, seed]) for seed in seeds]
    delta = _subtract(
        empty,
        Row.estimate(ours[ours["items"] == usual], factor),
        Row.estimate(theirs[theirs["items"] == usual], factor),
    )
    return replace(
        delta,
        ids=tuple(sorted({id_ for pair in pairs for _, id_ in pair})),
        answers=tuple((mine[0], others[0]) for mine, others in pairs),
    )


def _with_noise_of_items(delta: Delta) -> Delta:
    """A delta of a readout with the variance that texts or items give it, and their interval."""
    variance = paired_variance(delta.answers)
    if variance is None:
        return delta
    factor = next(each.factor for each in READOUTS.values() if each.quantity == delta.quantity)
    mean, half = np.mean(list(delta.differences.values())), NORMAL_QUANTILE * factor * math.sqrt(variance)
    return replace(delta, variance=factor**2 * variance, examples=(float(mean - half), float(mean + half)))


def _subtract(empty: Delta, ours: Estimate, theirs: Estimate) -> Delta:
    """The differences at the seeds that both sides have; what only one side has is named."""
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
    """The same with the ids of the runs, and without seeds that were measured on other held-out documents."""
    delta = _subtract(empty, ours, theirs)
    runs = pd.concat([variant.runs, base.runs])
    heldout = pd.concat([variant.heldout, base.heldout])
    known = heldout[(heldout.corpus == delta.corpus) & heldout.texts.notna()]
    named = dict(zip(known.run, known.texts, strict=True))
    # runs from before there were names of texts had all the same rule
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


def resampled_differences(
    variant: Row, base: Row, tasks: Sequence[str], stored: StoredPredictions, seeds: Sequence[Seeds]
) -> Array:
    """A GLUE delta on each resample of the development examples, in points, (DRAWS): the seeds stay as they are.

    The same examples are drawn for both sides and all seeds.

    Raises:
        MissingData: predictions or labels of some trial are not there.
    """
    differences = [resample(variant, task, stored, seeds) - resample(base, task, stored, seeds) for task in tasks]
    return np.asarray(POINTS_OF_SCORE * np.mean(differences, axis=0))


def resample(row: Row, task: str, stored: StoredPredictions, seeds: Sequence[Seeds]) -> Array:
    """A row's score on each resample of the development examples, 0..1: (DRAWS). It is the mean over pre-training seeds
    of the means over their fine-tuning seeds.

    Raises:
        MissingData: predictions or labels of some trial are not there.
    """
    ids, weights = row.cells[task].ids, row.runs.id.iloc[0]
    scores = np.stack([stored.resampled(task, ids[each], weights) for each in seeds], axis=1)
    counts: dict[int, int] = defaultdict(int)
    for each in seeds:
        counts[each.pretraining] += 1
    return np.asarray(scores @ np.array([1 / (len(counts) * counts[each.pretraining]) for each in seeds]))


HEADER = (
    *(
        "Design",
        "Variant",
        "Against",
        "Quantity",
        "Seeds",
        "Difference",
        "95 % over seeds",
        "95 % over examples",
        "95 % over both",
    ),
    *("p (t)", "p (family)", "p (TOST, Holm)", "Detectable", "Verdict"),
)
FACTS = (
    *("design", "variant", "against", "quantity", "measured", "seeds", "difference", "sd", "t_low", "t_high"),
    *(
        "examples_low",
        "examples_high",
        "both_low",
        "both_high",
        "p_both",
        "p_t",
        "p_family",
        "look",
        "level",
        "p_tost",
        "p_tost_holm",
        "margin",
    ),
    *("detectable", "verdict", "differences_by_seed", "collapsed", "left_out", "records"),
)


def deltas_table(deltas: Sequence[Delta], group: Group, quantity: str) -> Table:
    """One line a delta; `quantity` says over which tasks GLUE is averaged."""
    rules = {index for index in range(1, len(deltas)) if deltas[index].family != deltas[index - 1].family}
    return Table(
        title=f"Deltas with paired seeds (scale {group.scale}, data {group.data})",
        shown=frame_of([_shown(delta) for delta in deltas], HEADER),
        facts=frame_of([_facts(delta, quantity) for delta in deltas], FACTS),
        alignment="llllr" + "r" * (len(HEADER) - 6) + "l",
        notes=(*warnings(group), *_notes(deltas, quantity)),
        rules=frozenset(rules),
        records=tuple(delta.ids for delta in deltas),
        facets=tuple(delta.facets for delta in deltas),
    )


def _shown(delta: Delta) -> tuple[str, ...]:
    names = delta.design, delta.variant, delta.base, delta.measured
    found, digits = delta.comparison, DIGITS[delta.quantity]
    if found is None:
        return (*names, "0", *[DASH] * (len(HEADER) - 6), f"left out: {delta.reason}")
    return (
        *names,
        str(found.seeds),
        signed(found.mean, digits),
        printed_range(found.interval, digits),
        printed_range(delta.examples, digits),
        printed_range(delta.both, digits),
        *map(p_value, (found.p_t, delta.p_family, delta.p_equivalence_holm)),
        number(found.detectable, digits),
        delta.verdict,
    )


def _facts(delta: Delta, quantity: str) -> tuple[Any, ...]:
    """Every number, seed by seed, with the ids of the records behind it."""
    found, measured = delta.comparison, quantity if delta.quantity == "GLUE" else f"held-out {delta.measured}"
    names = delta.design, delta.variant, delta.base, delta.quantity, measured, len(delta.differences)
    if found is None:
        return (*names, *[None] * 20, delta.reason, "")
    look = last_look(found.seeds)
    return (
        *names,
        found.mean,
        found.deviation,
        *(found.interval or (None, None)),
        *(delta.examples or (None, None)),
        *(delta.both or (None, None)),
        delta.p_both,
        *(found.p_t, delta.p_family, look, look and LOOKS[look], found.p_equivalence, delta.p_equivalence_holm),
        found.margin,
        found.detectable,
        delta.verdict,
        " ".join(f"{seed}:{value:.6f}" for seed, value in delta.differences.items()),
        "; ".join(delta.collapsed),
        "; ".join([*delta.notes, *([delta.no_examples] if delta.no_examples else [])]),
        " ".join(delta.ids),
    )


def _notes(deltas: Sequence[Delta], quantity: str) -> list[str]:
    told = {delta.quantity for delta in deltas} | {"GLUE", "loss"}
    margins = ", ".join(f"{margin:g} {reason} ({name})" for name, (margin, reason) in MARGINS.items() if name in told)
    lines = [
        f"GLUE: {quantity}, in points; loss: held-out MLM loss in nats a token on a corpus that both were measured on, "
        "lower is better. Pairs share the seed of pre-training, which is the unit; nothing missing is filled in.",
        "Over seeds: t interval of the mean difference, df = seeds − 1. Over examples: percentile bootstrap of "
        "development examples at these seeds, normal for texts and items of readouts; it tells nothing about "
        "other seeds. Over both: the variances of both added. A difference is claimed only where this holds too.",
        "p (t): paired t test, uncorrected. p (family): joint sign flips over all deltas of the same design and "
        "quantity, exact for symmetric noise; the verdict goes by it. TOST: that the difference is smaller than the "
        "margin, with Holm's correction over the same deltas. "
        f"Margins: {margins}.",
        "Detectable: the smallest true difference that the t test would find with power 0.8 at these seeds and their "
        "observed spread, uncorrected.",
        *_looks(deltas),
        *_collapses(deltas),
    ]
    if BITS in told:
        lines.append(
            "Bits per byte: held-out MLM loss of runs with other tokenizers or contexts, on the same documents cut to "
            "a common context; the loss a token times the tokens of the text over its bytes. Masks hide tokens, so a "
            "tokenizer of shorter ones shows more beside each mask: between tokenizers it is no strict comparison."
        )
    designs = list(dict.fromkeys(delta.design for delta in deltas))
    told_of = claims()
    lines += [told_of[design] for design in designs if design in told_of]
    lines += find_changed_verdicts(deltas)
    lines += [f"{d.variant} against {d.base} ({d.measured}): {note}." for d in deltas for note in d.notes]
    without = {delta.no_examples for delta in deltas if delta.no_examples}
    return [*lines, *(f"No interval over examples: {reason}." for reason in sorted(without))]


def find_changed_verdicts(deltas: Sequence[Delta]) -> list[str]:
    """A sentence for each step of the ladder that is told otherwise at the arms' own rates than at the shared one, or
    one that there is none."""
    told = [delta for delta in deltas if delta.comparison is not None]
    own = {
        (delta.variant.partition(MARK)[0], delta.base.partition(MARK)[0], delta.measured): delta
        for delta in told
        if delta.design == OWN_RATES
    }
    shared = [
        (delta, own[place])
        for delta in told
        if delta.design == LADDER and (place := (delta.variant, delta.base, delta.measured)) in own
    ]
    changed = [
        f"{ours.variant} against {ours.base} ({ours.measured}): {ours.verdict} at the shared rate, {theirs.verdict} at "
        f"own rates ({theirs.variant} against {theirs.base})."
        for ours, theirs in shared
        if ours.verdict != theirs.verdict
    ]
    return changed or ([f"No verdict of {len(shared)} is another at own rates."] if shared else [])


def _looks(deltas: Sequence[Delta]) -> list[str]:
    """Which look each number of seeds is at."""
    counts = sorted({delta.comparison.seeds for delta in deltas if delta.comparison})
    lines = ["One seed: no interval and no test; the difference may be noise."] if 1 in counts else []
    declared = ", ".join(f"{look} seeds with p ≤ {level:g}" for look, level in LOOKS.items())
    reached = [(count, look) for count in counts if (look := last_look(count)) is not None]
    at = "; ".join(f"{count} seeds are at the look of {look}" for count, look in reached)
    lines.append(f"Looks, declared before the study: {declared}; between looks the first seeds of the last one count.")
    lines += [f"{at}."] if at else []
    few = [count for count in counts if 1 < count < SEEDS_FOR_A_CLAIM]
    if few:
        least = ", ".join(f"{2 / 2**count:g} with {count}" for count in few)
        lines.append(
            f"Below {SEEDS_FOR_A_CLAIM} seeds no difference and no equivalence is claimed: the smallest p that an "
            f"exact sign-flip test can reach is {least}, and a t test of so few rests on a normal distribution that "
            "nobody can check."
        )
    return lines


def _collapses(deltas: Sequence[Delta]) -> list[str]:
    """The seeds that lie far from their arm's others, with what they measured."""
    lines: dict[str, None] = {}
    for delta in deltas:
        for name, arm in delta.arms.items():
            for words in delta.collapsed:
                if words.endswith(f" of {name}"):
                    values = ", ".join(f"{seed}: {value:.{DIGITS[delta.quantity]}f}" for seed, value in arm.items())
                    lines[f"Collapsed in {delta.measured}: {words}, far from the arm's other seeds ({values})."] = None
    if not lines:
        return []
    return [*lines, "Collapsed seeds stay in differences and intervals; what is claimed holds with and without them."]
