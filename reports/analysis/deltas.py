"""Deltas over paired seeds: the ladder, leave-one-out and add-one designs, with their statistics and table."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from ablations.designs import claims
from ablations.ladders import current, ladder
from ablations.rates import MARK
from neobert.errors import MissingData
from reports.analysis.inference import (
    LOOKS,
    SEEDS_FOR_A_CLAIM,
    adjust,
    collapsed_seeds,
    compare,
    family_p_values,
    last_look,
    with_examples,
)
from reports.analysis.pairing import LADDER, OWN_RATES, Delta, pair_all
from reports.analysis.quantities import BITS, QUANTITIES
from reports.analysis.readouts import paired_variance
from reports.analysis.resampling import StoredPredictions, resampled_differences
from reports.notes import warnings
from reports.scores import Group, Row
from reports.tables import (
    DASH,
    Table,
    count,
    frame_of,
    number,
    p_value,
    print_by_seed,
    printed_range,
    rules_between,
    signed,
)

NORMAL_QUANTILE = 1.959964
"""For the 95 % interval over hundreds of items."""


def find_deltas(group: Group, tasks: Sequence[str], stored: StoredPredictions) -> tuple[Delta, ...]:
    """Return all deltas in the order of the ladder: GLUE means over `tasks`, then held-out losses, then the designs."""
    families: dict[tuple[str, str], list[Delta]] = defaultdict(list)
    for design, variant, base in _compared_pairs(group):
        for delta in pair_all(variant, base, tasks, group):
            compared = _compare(replace(delta, design=design), variant, base, tasks, stored)
            families[compared.family].append(compared)
    return tuple(delta for family in families.values() for delta in _corrected(family))


def _compared_pairs(group: Group) -> Iterator[tuple[str, Row, Row]]:
    """Yield (design, variant, base) for every pair that designs compare."""
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


def _compare(delta: Delta, variant: Row, base: Row, tasks: Sequence[str], stored: StoredPredictions) -> Delta:
    """Add the statistics of a delta, except those corrected over its family."""
    if not delta.differences:
        return delta
    delta = replace(delta, comparison=compare(delta.differences.values(), QUANTITIES[delta.quantity].margin))
    looked = dict(islice(delta.differences.items(), last_look(len(delta.differences))))
    if delta.quantity == "GLUE":
        seeds = [each for each in delta.seeds if each.pretraining in looked]
        try:
            draws = resampled_differences(variant, base, tasks, stored, seeds)
        except MissingData as error:
            return replace(delta, no_examples=str(error))
        low, high = np.nanpercentile(draws, (2.5, 97.5))
        delta = replace(delta, examples=(float(low), float(high)), variance=float(np.nanvar(draws, ddof=1)))
    elif delta.answers:
        delta = _with_noise_of_items(delta, list(looked.values()))
    if delta.variance is None:
        return delta
    found = with_examples(looked.values(), delta.variance)
    return delta if found is None else replace(delta, both=found[0], p_both=found[1])


def _corrected(family: Sequence[Delta]) -> list[Delta]:
    """Add the family-corrected statistics and the collapsed seeds to the deltas of a family."""
    collapsed = collapsed_seeds({name: arm for delta in family for name, arm in delta.arms.items()})
    by_arm = [
        {name: [seed for seed in collapsed.get(name, ()) if seed in delta.differences] for name in delta.arms}
        for delta in family
    ]
    of_pairs = [set[int]().union(*own.values()) for own in by_arm]
    of_difference = family_p_values([{} if delta.no_verdict else delta.differences for delta in family], of_pairs)
    of_equivalence = adjust(
        [delta.comparison.p_equivalence if delta.comparison and not delta.no_verdict else None for delta in family]
    )
    return [
        replace(
            delta,
            p_family=difference,
            p_equivalence_holm=equivalence,
            collapsed={name: seeds for name, seeds in own.items() if seeds},
        )
        for delta, own, difference, equivalence in zip(family, by_arm, of_difference, of_equivalence, strict=True)
    ]


def _with_noise_of_items(delta: Delta, looked: Sequence[float]) -> Delta:
    """Add to a readout's delta the variance over texts or items at the seeds looked at, and the interval over them."""
    variance = paired_variance(delta.answers[: len(looked)])
    if variance is None:
        return delta
    factor = QUANTITIES[delta.quantity].factor
    mean, half = np.mean(looked), NORMAL_QUANTILE * factor * math.sqrt(variance)
    return replace(delta, variance=factor**2 * variance, examples=(float(mean - half), float(mean + half)))


HEADER = (
    *("Design", "Variant", "Against", "Quantity", "Seeds", "Difference", "95 % over seeds", "95 % over examples"),
    *("95 % over both", "p (t)", "p (family)", "p (TOST, Holm)", "Detectable", "Verdict"),
)
FACTS = (
    *("design", "variant", "against", "quantity", "measured", "seeds", "difference", "sd", "t_low", "t_high"),
    *("examples_low", "examples_high", "both_low", "both_high", "p_both", "p_t", "p_family", "look", "level", "p_tost"),
    *("p_tost_holm", "margin", "detectable", "verdict", "differences_by_seed", "collapsed", "left_out", "records"),
)


def deltas_table(deltas: Sequence[Delta], group: Group, quantity: str) -> Table:
    """Return a table with one line per delta; `quantity` describes the tasks over which GLUE is averaged."""
    return Table(
        title=f"Deltas with paired seeds (scale {group.scale}, data {group.data})",
        shown=frame_of([_shown(delta) for delta in deltas], HEADER),
        facts=frame_of([_facts(delta, quantity) for delta in deltas], FACTS),
        alignment="llllr" + "r" * (len(HEADER) - 6) + "l",
        notes=(*warnings(group), *_notes(deltas, quantity)),
        rules=rules_between(delta.family for delta in deltas),
        records=tuple(delta.ids for delta in deltas),
        facets=tuple(delta.facets for delta in deltas),
    )


def _shown(delta: Delta) -> tuple[str, ...]:
    names = delta.design, delta.variant, delta.base, delta.measured
    found, digits = delta.comparison, QUANTITIES[delta.quantity].digits
    if found is None:
        return (*names, "0", *[DASH] * (len(HEADER) - 6), f"left out: {delta.reason}")
    return (
        *(*names, str(found.seeds), signed(found.mean, digits)),
        *(printed_range(interval, digits) for interval in (found.interval, delta.examples, delta.both)),
        *map(p_value, (found.p_t, delta.p_family, delta.p_equivalence_holm)),
        number(found.detectable, digits),
        delta.verdict,
    )


def _facts(delta: Delta, quantity: str) -> tuple[Any, ...]:
    """Return every number, seed by seed, with the ids of its records."""
    found, measured = delta.comparison, quantity if delta.quantity == "GLUE" else f"held-out {delta.measured}"
    names = delta.design, delta.variant, delta.base, delta.quantity, measured, len(delta.differences)
    if found is None:
        return (*names, *[None] * 20, delta.reason, "")
    look = last_look(found.seeds)
    return (
        *(*names, found.mean, found.deviation),
        *(end for interval in (found.interval, delta.examples, delta.both) for end in interval or (None, None)),
        *(delta.p_both, found.p_t, delta.p_family, look, look and LOOKS[look], found.p_equivalence),
        *(delta.p_equivalence_holm, found.margin, found.detectable, delta.verdict, print_by_seed(delta.differences)),
        "; ".join(delta.collapses),
        "; ".join(filter(None, (*delta.notes, delta.no_examples))),
        " ".join(delta.ids),
    )


def _notes(deltas: Sequence[Delta], quantity: str) -> list[str]:
    told = {delta.quantity for delta in deltas} | {"GLUE", "loss"}
    margins = ", ".join(
        f"{each.margin:g} {each.unit.split()[0]}: {each.reason} ({name})"
        for name, each in QUANTITIES.items()
        if name in told
    )
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
    """Return a sentence for each ladder step whose verdict at the arms' own rates differs from the one at the shared
    rate, or one sentence that there is none."""
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
        if ours.claimed != theirs.claimed
    ]
    return changed or ([f"None of {count(len(shared), 'verdict')} changes at own rates."] if shared else [])


def _looks(deltas: Sequence[Delta]) -> list[str]:
    """Return sentences on the looks, and on which one each number of seeds has reached."""
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
    """Return sentences on the seeds that lie far from their arm's other seeds, with all values of the arm."""
    lines: dict[str, None] = {}
    for delta in deltas:
        for name, words in zip(delta.collapsed, delta.collapses, strict=True):
            digits = QUANTITIES[delta.quantity].digits
            values = ", ".join(f"{seed}: {value:.{digits}f}" for seed, value in delta.arms[name].items())
            lines[f"Collapsed in {delta.measured}: {words}, far from the arm's other seeds ({values})."] = None
    if not lines:
        return []
    return [*lines, "Collapsed seeds stay in differences and intervals; what is claimed holds with and without them."]
