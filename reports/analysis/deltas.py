"""Deltas over paired seeds: the ladder, leave-one-out and add-one designs, with their statistics and table."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ablations.declarations import PROTOCOL, Measure, Protocol
from ablations.designs import claims
from ablations.ladders import current, ladder
from ablations.rates import MARK
from neobert.errors import MissingData
from reports.analysis.inference import (
    EQUIVALENCE_LEVEL,
    SEEDS_FOR_A_CLAIM,
    collapsed_seeds,
    compare,
    last_look,
    with_examples,
)
from reports.analysis.pairing import LADDER, OWN_RATES, Delta, Noise, pair_all
from reports.analysis.pilots import LEAST_PILOTS, scale_by_pilots, why_unlike_pilots
from reports.analysis.plateau import UNKNOWN, Regime
from reports.analysis.quantities import BITS, QUANTITIES
from reports.analysis.readouts import LEAST_RATIO, SignalToNoise, paired_variance, tells_apart
from reports.analysis.resampling import StoredPredictions, resampled_differences
from reports.analysis.verdicts import Candidate, judge
from reports.evidence import Evidence
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
LEAST_FOR_A_CORRELATION = 3
LEAST_CORRELATION = 0.1
"""Below it, pairing by seed lowers the variance of a difference by less than a tenth."""
NOT_JUDGED = "exploratory"


def find_deltas(
    group: Group,
    tasks: Sequence[str],
    stored: StoredPredictions,
    evidence: Evidence,
    signals: Sequence[SignalToNoise],
    protocol: Protocol = PROTOCOL,
    regime: Regime = UNKNOWN,
) -> tuple[Delta, ...]:
    """Return all deltas in the order of the ladder: GLUE means over `tasks`, then held-out losses, then the designs.
    `signals` tell which readouts can tell arms apart, and `regime` which arms get no verdict."""
    families: dict[tuple[str, str], list[Delta]] = defaultdict(list)
    rows: dict[str, Row] = {}
    for design, variant, base in _compared_pairs(group):
        rows |= {variant.name: variant, base.name: base}
        for delta in pair_all(variant, base, tasks, group):
            no_verdict = delta.no_verdict or regime.why_no_verdict(variant.name, base.name)
            timing = regime.words.get((variant.name, base.name), "") if delta.quantity in ("loss", BITS) else ""
            own = replace(delta, design=design, timing=timing, no_verdict=no_verdict)
            compared = _compare(own, variant, base, tasks, stored, protocol)
            families[compared.family].append(compared)
    deltas = [delta for family in families.values() for delta in _with_collapses(family)]
    return tuple(_judged(deltas, rows, evidence, signals, protocol))


def _compared_pairs(group: Group) -> Iterator[tuple[str, Row, Row]]:
    """Yield (design, variant, base) for every pair that designs compare."""
    rows = group.compared_rows
    for row in group.last_rows.values():
        if row.parent:
            yield "alternatives" if "@" in row.name else LADDER, row, rows[row.parent]
    whole, root = current().full_variant.name, current().root.name
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


def _compare(
    delta: Delta, variant: Row, base: Row, tasks: Sequence[str], stored: StoredPredictions, protocol: Protocol
) -> Delta:
    """Add the statistics of a delta by itself."""
    if not delta.differences:
        return delta
    by_seed = dict(sorted(delta.differences.items()))
    delta = replace(
        delta,
        differences=by_seed,
        comparison=compare(by_seed.values(), protocol.margins[delta.quantity]),
        correlation=_correlation(delta),
    )
    noises: dict[int, Noise] = {}
    for seeds in [look for look in sorted(protocol.looks) if look <= len(by_seed)] or [len(by_seed)]:
        looked = list(by_seed)[:seeds]
        try:
            noise = _noise(delta, looked, variant, base, tasks, stored)
        except MissingData as error:
            return replace(delta, no_examples=str(error))
        if noise is not None:
            noises[seeds] = noise
    return replace(delta, noises=noises)


def _correlation(delta: Delta) -> float | None:
    """Return the correlation of both arms over their paired seeds; None for fewer than three, or without spread."""
    ours, theirs = (np.array([arm[seed] for seed in delta.differences]) for arm in delta.arms.values())
    if len(ours) < LEAST_FOR_A_CORRELATION or ours.std() == 0 or theirs.std() == 0:
        return None
    return float(np.corrcoef(ours, theirs)[0, 1])


def _noise(
    delta: Delta, seeds: Sequence[int], variant: Row, base: Row, tasks: Sequence[str], stored: StoredPredictions
) -> Noise | None:
    """Return the noise of examples, texts or items at some seeds; None if records have no numbers for each."""
    if delta.quantity == "GLUE":
        own = [each for each in delta.seeds if each.pretraining in seeds]
        draws = resampled_differences(variant, base, tasks, stored, own)
        low, high = map(float, np.nanpercentile(draws, (2.5, 97.5)))
        variance = float(np.nanvar(draws, ddof=1))
    else:
        found = paired_variance(delta.units[: len(seeds)]) if delta.units else None
        if found is None:
            return None
        mean, half, variance = np.mean([delta.differences[seed] for seed in seeds]), NORMAL_QUANTILE * found**0.5, found
        low, high = float(mean - half), float(mean + half)
    both, p_both = with_examples([delta.differences[seed] for seed in seeds], variance) or (None, None)
    return Noise((low, high), variance, both, p_both)


def _with_collapses(family: Sequence[Delta]) -> list[Delta]:
    """Add the collapsed seeds to the deltas of one design in one measure."""
    collapsed = collapsed_seeds({name: arm for delta in family for name, arm in delta.arms.items()})
    by_arm = [
        {name: [seed for seed in collapsed.get(name, ()) if seed in delta.differences] for name in delta.arms}
        for delta in family
    ]
    return [
        replace(delta, collapsed={name: seeds for name, seeds in own.items() if seeds})
        for delta, own in zip(family, by_arm, strict=True)
    ]


def _judged(
    deltas: Sequence[Delta],
    rows: Mapping[str, Row],
    evidence: Evidence,
    signals: Sequence[SignalToNoise],
    protocol: Protocol,
) -> list[Delta]:
    """Return the deltas with their verdicts: one family of all steps, each in its primary measure and the sequence."""
    steps: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for place, delta in enumerate(deltas):
        if delta.comparison is not None and not delta.no_verdict:
            steps[delta.design, delta.variant, delta.base].append(place)
    scaled, sequences = list(deltas), []
    for own in steps.values():
        sequence = _sequence(deltas, own, protocol)
        if sequence and (reason := why_unlike_pilots(deltas[sequence[0][1]], rows, evidence)):
            for place in own:
                scaled[place] = replace(deltas[place], no_verdict=reason)
        elif sequence:
            sequences.append(sequence)
    for level in sorted({level for sequence in sequences for level, _ in sequence}):
        places = [place for sequence in sequences for at, place in sequence if at == level]
        for place, delta in zip(
            places, scale_by_pilots([deltas[each] for each in places], rows, evidence), strict=True
        ):
            scaled[place] = delta
    tested = [[_tested(scaled[place], level, signals) for level, place in sequence] for sequence in sequences]
    for sequence, verdicts in zip(sequences, judge(tested, protocol.looks), strict=True):
        for (_, place), verdict in zip(sequence, verdicts, strict=True):
            scaled[place] = replace(scaled[place], judged=verdict)
    return scaled


def _sequence(deltas: Sequence[Delta], places: Sequence[int], protocol: Protocol) -> list[tuple[int, int]]:
    """Return the (number of the measure, place of the delta) of a step's primary measure, and of those that are tested
    after it, up to the first that it lacks. Steps without a primary measure have none."""

    def found(measure: Measure) -> list[int]:
        is_own = measure.corpus == "own"
        return [each for each in places if deltas[each].quantity == measure.quantity and deltas[each].is_own == is_own]

    primary = [(level, own[0]) for level, measure in enumerate(protocol.primary) if (own := found(measure))]
    if not primary:
        return []
    sequence = primary[:1]
    for level, measure in enumerate(protocol.sequence, len(protocol.primary)):
        if not (own := found(measure)):
            break
        sequence += [(level, place) for place in own]
    return sequence


def _tested(delta: Delta, level: int, signals: Sequence[SignalToNoise]) -> Candidate:
    assert delta.comparison is not None
    both = {seeds: (noise.both, noise.p_both) for seeds, noise in delta.noises.items()}
    return Candidate(
        delta.differences,
        delta.comparison.margin,
        level=level,
        scale=delta.scale,
        collapsed={seed for seeds in delta.collapsed.values() for seed in seeds},
        both={seeds: (own, p) for seeds, (own, p) in both.items() if own is not None and p is not None},
        tells_apart=tells_apart(signals, delta.quantity, delta.corpus, delta.arms.values()),
    )


HEADER = (
    *("Design", "Variant", "Against", "Quantity", "Seeds", "Difference", "95 % over seeds", "95 % over examples"),
    *("95 % over both", "r", "p (t)", "p (family)", "p (TOST, Holm)", "Detectable", "Verdict"),
)
FACTS = (
    *("design", "variant", "against", "quantity", "measured", "seeds", "difference", "sd", "t_low", "t_high"),
    *("examples_low", "examples_high", "both_low", "both_high", "p_both", "correlation", "p_t", "test", "pilot_seeds"),
    *("pilot_sd", "p_family", "p_tost_holm", "margin", "detectable", "verdict"),
    *("differences_by_seed", "collapsed", "left_out", "records"),
)


def deltas_table(deltas: Sequence[Delta], group: Group, quantity: str, protocol: Protocol = PROTOCOL) -> Table:
    """Return a table with one line per delta; `quantity` describes the tasks over which GLUE is averaged."""
    return Table(
        title=f"Deltas with paired seeds (scale {group.scale}, data {group.data})",
        shown=frame_of([_shown(delta) for delta in deltas], HEADER),
        facts=frame_of([_facts(delta, quantity) for delta in deltas], FACTS),
        alignment="llllr" + "r" * (len(HEADER) - 6) + "l",
        notes=(*warnings(group), *_notes(deltas, quantity, protocol)),
        rules=rules_between(delta.family for delta in deltas),
        records=tuple(delta.ids for delta in deltas),
        facets=tuple(delta.facets for delta in deltas),
    )


def _shown(delta: Delta) -> tuple[str, ...]:
    names = delta.design, delta.variant, delta.base, delta.measured
    found, digits = delta.comparison, QUANTITIES[delta.quantity].digits
    if found is None:
        return (*names, "0", *[DASH] * (len(HEADER) - 6), f"left out: {delta.reason}")
    intervals = found.interval, delta.examples, delta.both
    return (
        *(*names, str(found.seeds), signed(found.mean, digits)),
        *(printed_range(interval, digits) for interval in intervals),
        signed(delta.correlation, 2),
        *map(p_value, (found.p_t, delta.judged.p_difference, delta.judged.p_equivalence)),
        number(delta.judged.detectable, digits),
        delta.verdict or NOT_JUDGED,
    )


def _facts(delta: Delta, quantity: str) -> tuple[Any, ...]:
    """Return every number, seed by seed, with the ids of its records; family-wise p-values are by look."""
    found, measured = delta.comparison, quantity if delta.quantity == "GLUE" else f"held-out {delta.measured}"
    names = delta.design, delta.variant, delta.base, delta.quantity, measured, len(delta.differences)
    if found is None:
        return (*names, *[None] * (len(FACTS) - len(names) - 2), delta.reason, "")
    judged = delta.judged
    intervals = found.interval, delta.examples, delta.both
    return (
        *(*names, found.mean, found.deviation),
        *(end for interval in intervals for end in interval or (None, None)),
        *(delta.noise.p_both if delta.noise else None, delta.correlation, found.p_t),
        *(_test(delta), " ".join(f"{name}:{count}" for name, count in delta.pilots.items()), delta.scale),
        *map(print_by_seed, (judged.p_by_look, judged.p_equivalence_by_look)),
        *(found.margin, judged.detectable, delta.verdict, print_by_seed(delta.differences)),
        "; ".join(delta.collapses),
        "; ".join(filter(None, (*delta.notes, delta.no_examples))),
        " ".join(delta.ids),
    )


def _test(delta: Delta) -> str:
    """Return the test that decides: flips of differences divided by what pilot seeds show, or not; empty for none."""
    if not delta.judged.is_tested:
        return ""
    return "joint flips, pooled variances" if delta.scale is None else "joint flips, pilot deviations"


def _notes(deltas: Sequence[Delta], quantity: str, protocol: Protocol) -> list[str]:
    compared = [delta for delta in deltas if delta.comparison is not None]
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
        "development examples at these seeds, normal for documents, texts and items; it tells nothing about "
        "other seeds. Over both: the variances of both added. A difference is claimed only where this holds too.",
        f"Verdicts: one family of all steps, each in {_described(protocol.primary)}; "
        f"{_described(protocol.sequence)} are tested after it, in this order, for the steps that all before "
        "claimed. Everything else is exploratory: numbers and intervals without a verdict.",
        "p (t): paired t test, uncorrected. p (family): joint sign flips over the family; the verdict goes by it. "
        "TOST: that the difference is smaller than the margin, with Holm's correction; claimed with "
        f"p ≤ {EQUIVALENCE_LEVEL:g}, and only in readouts whose signal to noise is {LEAST_RATIO:g} or more. "
        f"Margins: {margins}.",
        *_tests(compared),
        "Detectable: the smallest true difference that the test of the verdict would claim with power 0.8 at the last "
        "look, at the observed spread of seeds.",
        *_looks(compared, protocol),
        *_pairing(compared),
        *_collapses(deltas),
    ]
    if any(delta.timing for delta in deltas):
        lines.append(
            "Level, by waiting: the reading of a claimed difference in loss by when both arms leave the plateau of "
            "token frequencies; the table of waiting has its numbers."
        )
    if BITS in told:
        lines.append(
            "Bits per byte: held-out MLM loss on the same documents cut to a common context; the loss a token times "
            "the tokens of the text over its bytes. Masks hide tokens, so a tokenizer of shorter ones shows more "
            "beside each mask: between tokenizers it is no strict comparison."
        )
    designs = list(dict.fromkeys(delta.design for delta in deltas))
    told_of = claims()
    lines += [told_of[design] for design in designs if design in told_of]
    lines += find_changed_verdicts(deltas)
    lines += [f"{d.variant} against {d.base} ({d.measured}): {note}." for d in deltas for note in d.notes]
    without = {delta.no_examples: delta.quantity for delta in compared if delta.no_examples}
    return [
        *lines,
        *(
            f"No interval over {'examples' if quantity == 'GLUE' else 'texts'}: {reason}."
            for reason, quantity in sorted(without.items())
        ),
    ]


def _described(measures: Sequence[Measure]) -> str:
    corpora = {"own": "the variant's training corpus", "other": "the other corpora"}
    return ", ".join(f"{each.quantity} on {corpora[each.corpus]}" for each in measures)


def _tests(deltas: Sequence[Delta]) -> list[str]:
    """Return sentences on the test of each measure: which differences were divided by what pilot seeds show."""
    tested = [delta for delta in deltas if delta.judged.is_tested]
    scaled = sorted({delta.measured for delta in tested if delta.scale is not None})
    lines = [f"Differences are divided by their deviation known from pilot seeds in: {', '.join(scaled)}."] * bool(
        scaled
    )
    pooled = [delta for delta in tested if delta.scale is None]
    few = {name: count for delta in pooled for name, count in delta.pilots.items() if count < LEAST_PILOTS}
    if pooled:
        arms = ", ".join(f"{name} {count}" for name, count in few.items())
        lines.append(
            f"Variances are pooled over the family in: {', '.join(sorted({delta.measured for delta in pooled}))}. "
            f"Dividing by deviations needs {LEAST_PILOTS} pilot seeds of every arm; these have fewer: {arms}. The test "
            "is valid without them, and finds little in steps that are less noisy than others."
        )
    return lines


def _pairing(deltas: Sequence[Delta]) -> list[str]:
    """Return a sentence on what pairing by seed is worth in the primary measure."""
    known = [delta.correlation for delta in deltas if delta.judged.is_tested and delta.correlation is not None]
    if not known:
        return []
    mean = float(np.mean(known))
    told = f"r: correlation of both arms over paired seeds; its mean over tested differences is {signed(mean, 2)}."
    if mean > LEAST_CORRELATION:
        return [told]
    return [
        f"{told} Pairing buys nothing here: unpaired seeds would spread as little, with twice the degrees of freedom."
    ]


def find_changed_verdicts(deltas: Sequence[Delta]) -> list[str]:
    """Return a sentence for each ladder step whose verdict at the arms' own rates differs from the one at the shared
    rate, or one sentence that there is none."""
    told = [delta for delta in deltas if delta.judged.is_tested]
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


def _looks(deltas: Sequence[Delta], protocol: Protocol) -> list[str]:
    """Return sentences on the looks, and on which one each number of seeds has reached."""
    counts = sorted({delta.comparison.seeds for delta in deltas if delta.comparison})
    lines = ["One seed: no interval and no test; the difference may be noise."] if 1 in counts else []
    declared = ", ".join(f"{look} seeds with p ≤ {level:g}" for look, level in protocol.looks.items())
    reached = [(count, look) for count in counts if (look := last_look(count)) is not None]
    at = "; ".join(f"{count} seeds are at the look of {look}" for count, look in reached)
    lines.append(
        f"Looks, declared before the study: {declared}. Each counts the first seeds; what one claims stays claimed."
    )
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
