"""Deltas over paired seeds: the ladder, leave-one-out and add-one designs, with their statistics and verdicts."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from ablations.declarations import PROTOCOL, Measure, Protocol
from ablations.ladders import current, ladder
from ablations.rates import MARK, without_rate
from neobert.errors import MissingData
from reports.analysis.inference import collapsed_at_looks, collapsed_seeds, compare, with_examples
from reports.analysis.pairing import LADDER, OWN_RATES, Delta, Noise, is_of, pair_all
from reports.analysis.parts import PARTS, Pair, find_parts, wholes_of_parts
from reports.analysis.pilots import scale_by_pilots, why_unlike_pilots
from reports.analysis.plateau import ALL_SEEDS, UNKNOWN, Regime
from reports.analysis.quantities import BITS
from reports.analysis.readouts import SignalToNoise, paired_variance, tells_apart
from reports.analysis.resampling import StoredPredictions, resampled_differences
from reports.analysis.verdicts import Candidate, Verdict, judge
from reports.evidence import Evidence
from reports.scores import Group, Row

NORMAL_QUANTILE = 1.959964
"""For the 95 % interval over hundreds of items."""
LEAST_FOR_A_CORRELATION = 3


def find_deltas(
    group: Group,
    tasks: Sequence[str],
    stored: StoredPredictions,
    evidence: Evidence,
    signals: Sequence[SignalToNoise],
    protocol: Protocol = PROTOCOL,
    regime: Regime = UNKNOWN,
    declared: Collection[int] | None = None,
) -> tuple[Delta, ...]:
    """Return all deltas in the order of the ladder: GLUE means over `tasks`, then held-out losses, then the designs.
    `signals` tell which readouts can tell arms apart, and `regime` which arms get no verdict. Looks count the
    `declared` seeds alone, or all if it is None."""
    families: dict[tuple[str, str], list[Delta]] = defaultdict(list)
    rows: dict[str, Row] = {}
    for design, variant, base in _compared_pairs(group):
        rows |= {variant.name: variant, base.name: base}
        for delta in pair_all(variant, base, tasks, group):
            undeclared = () if declared is None else delta.differences.keys() - set(declared)
            own = replace(delta, design=design, undeclared=undeclared)
            looks = _looks_of(own, protocol)
            reasons = {look: regime.why_no_verdict(variant.name, base.name, look) for look in looks or [ALL_SEEDS]}
            compared = _compare(_bar(own, reasons), variant, base, tasks, stored, protocol)
            if compared.comparison is not None and compared.is_own and compared.quantity in ("loss", BITS):
                timing = regime.reading(*compared.pair, compared.found.mean)
                compared = replace(compared, timing=timing)
            families[compared.family].append(compared)
    deltas = [delta for family in families.values() for delta in _with_collapses(family, protocol)]
    return tuple(_judged(deltas, rows, evidence, signals, protocol, wholes_of_parts(group)))


def _looks_of(delta: Delta, protocol: Protocol) -> list[int]:
    """Return the looks that a difference has reached."""
    return [look for look in sorted(protocol.looks) if look <= len(delta.counted)]


def _bar(delta: Delta, reasons: Mapping[int, str]) -> Delta:
    """Return a difference without a verdict at the looks that have a reason, or with none at all if every look has."""
    barred = dict(sorted({**delta.barred, **{look: reason for look, reason in reasons.items() if reason}}.items()))
    is_barred = barred.keys() >= reasons.keys() and not delta.no_verdict
    return replace(delta, barred=barred, no_verdict=barred[max(barred)] if is_barred else delta.no_verdict)


def _compared_pairs(group: Group) -> Iterator[tuple[str, Row, Row]]:
    """Yield (design, variant, base) for every pair that designs compare; then the parts of steps. Pairs of a design or
    parts that have the runs of an earlier pair are left out."""
    seen = set()
    for design, variant, base in chain(_pairs_of_designs(group), _pairs_of_parts(group)):
        runs = variant.run_ids, base.run_ids
        if design in (LADDER, OWN_RATES) or not all(runs) or runs not in seen:
            seen.add(runs)
            yield design, variant, base


def _pairs_of_parts(group: Group) -> Iterator[tuple[str, Row, Row]]:
    rows = group.compared_rows
    for (whole, base), parts in find_parts(group).items():
        yield from ((PARTS, row, rows[base]) for row in (rows[whole], *parts) if row.has_records)


def _pairs_of_designs(group: Group) -> Iterator[tuple[str, Row, Row]]:
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
        comparison=compare(by_seed.values(), protocol.margin_of(delta.quantity)),
        correlation=_correlation(delta),
    )
    noises: dict[int, Noise] = {}
    looks = [delta.first(look) for look in _looks_of(delta, protocol)]
    for looked in looks or [list(by_seed)]:  # before the first look, all seeds, as in the difference
        try:
            noise = _noise(delta, looked, variant, base, tasks, stored)
        except MissingData as error:
            return replace(delta, no_examples=str(error))
        if noise is not None:
            noises[len(looked)] = noise
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
        by_seed = dict(zip(delta.differences, delta.units, strict=True)) if delta.units else {}
        found = paired_variance([by_seed[seed] for seed in seeds]) if by_seed else None
        if found is None:
            return None
        mean, half, variance = np.mean([delta.differences[seed] for seed in seeds]), NORMAL_QUANTILE * found**0.5, found
        low, high = float(mean - half), float(mean + half)
    both, p_both = with_examples([delta.differences[seed] for seed in seeds], variance) or (None, None)
    return Noise((low, high), variance, both, p_both)


def _with_collapses(family: Sequence[Delta], protocol: Protocol) -> list[Delta]:
    """Add the collapsed seeds to the deltas of one design in one measure: among all seeds, and among the first ones of
    each look."""
    arms = {name: arm for delta in family for name, arm in delta.arms.items()}
    undeclared = set[int]().union(*(delta.undeclared for delta in family))
    counted = {name: {seed: arm[seed] for seed in arm.keys() - undeclared} for name, arm in arms.items()}
    collapsed, at_looks = collapsed_seeds(arms), collapsed_at_looks(counted, protocol.looks)

    def paired(delta: Delta, found: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        own = {name: [seed for seed in found.get(name, ()) if seed in delta.differences] for name in delta.arms}
        return {name: seeds for name, seeds in own.items() if seeds}

    return [
        replace(
            delta,
            collapsed=paired(delta, collapsed),
            collapsed_at={look: {*chain(*paired(delta, found).values())} for look, found in at_looks.items()},
        )
        for delta in family
    ]


def _judged(
    deltas: Sequence[Delta],
    rows: Mapping[str, Row],
    evidence: Evidence,
    signals: Sequence[SignalToNoise],
    protocol: Protocol,
    wholes_of: Mapping[Pair, Pair],
) -> list[Delta]:
    """Return the deltas with their verdicts: one family of all steps, each in its primary measure and the sequence,
    and of the parts of steps. A step that is in two designs with the same arms is judged once."""
    told, sequences, first = list(deltas), [], _first_places(deltas)
    for places in _steps(deltas):
        sequence = _sequence(deltas, places, protocol)
        if not sequence or first[places[0]] != places[0]:
            continue
        primary = deltas[sequence[0][1]]
        looks = {look: primary.first(look) for look in _looks_of(primary, protocol)}
        unlike = {look: why_unlike_pilots(primary, rows, evidence, seeds) for look, seeds in looks.items()}
        for place in places if any(unlike.values()) else ():
            told[place] = _bar(deltas[place], unlike)
        if not told[sequence[0][1]].no_verdict:
            sequences.append(sequence)
    sequences = _without_parts_of_barred(sequences, deltas, wholes_of)
    wholes = places_of_wholes([deltas[sequence[0][1]].pair for sequence in sequences], wholes_of)
    told = _scaled(told, sequences, wholes, rows, evidence)
    tested = [[_tested(told[place], level, signals) for level, place in sequence] for sequence in sequences]
    for (_, place), verdict in zip(
        chain.from_iterable(sequences), chain.from_iterable(judge(tested, protocol.looks, wholes)), strict=True
    ):
        told[place] = _with_verdict(told[place], verdict, _looks_of(deltas[place], protocol))
    return [replace(told[place], design=delta.design) for place, delta in zip(first, deltas, strict=True)]


def _with_verdict(delta: Delta, verdict: Verdict, looks: Sequence[int]) -> Delta:
    """Add the verdict; there is none if nothing is claimed, and the last look is barred."""
    if looks and looks[-1] in delta.barred and not any(verdict.claimed):
        return replace(delta, no_verdict=delta.barred[looks[-1]])
    return replace(delta, judged=verdict)


def _without_parts_of_barred(
    sequences: Sequence[list[tuple[int, int]]], deltas: Sequence[Delta], wholes_of: Mapping[Pair, Pair]
) -> list[list[tuple[int, int]]]:
    """Return the sequences without those of parts whose step is compared and gets no verdict: they are not tested, so
    that arms beside the ladder change no verdict of its steps."""
    tested = [deltas[sequence[0][1]].pair for sequence in sequences]
    compared = {delta.pair for delta in deltas if delta.comparison is not None}
    wholes = places_of_wholes([*tested, *sorted(compared.difference(tested))], wholes_of)
    places = zip(sequences, wholes, strict=False)
    return [sequence for sequence, whole in places if whole is None or whole < len(tested)]


def places_of_wholes(pairs: Sequence[Pair], wholes_of: Mapping[Pair, Pair]) -> list[int | None]:
    """Return for each pair the place of the step that it is a part of, or None. At own rates that is the step at own
    rates, or else the one at the shared rate."""
    numbers = {pair: number for number, pair in reversed([*enumerate(pairs)])}
    at_own = {(without_rate(variant), base): number for (variant, base), number in numbers.items() if MARK in variant}

    def whole_of(variant: str, base: str) -> int | None:
        whole = wholes_of.get((without_rate(variant), without_rate(base)))
        if whole is None:
            return None
        same_base = whole[0], base
        own = at_own.get(same_base) if MARK in variant + base else None
        return own if own is not None else numbers.get(same_base, numbers.get(whole))

    return [whole_of(*pair) for pair in pairs]


def _scaled(
    deltas: Sequence[Delta],
    sequences: Sequence[Sequence[tuple[int, int]]],
    wholes: Sequence[int | None],
    rows: Mapping[str, Row],
    evidence: Evidence,
) -> list[Delta]:
    """Return all deltas, the tested ones with what pilot seeds tell of each measure. Steps are scaled without their
    parts, so that these do not change them; a part with too few pilot seeds is scaled as the steps are on average."""
    told = list(deltas)
    by_level: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for sequence, whole in zip(sequences, wholes, strict=True):
        for level, place in sequence:
            by_level[level][whole is not None].append(place)
    for steps, parts in by_level.values():
        for places in (own for own in ([*steps, *parts], steps) if own):
            scaled = scale_by_pilots([told[each] for each in places], rows, evidence)
            for place, delta in zip(places, scaled, strict=True):
                told[place] = delta
        scales = [scale for place in steps if (scale := told[place].scale) is not None]
        for place in parts if scales else ():
            if told[place].scale is None:
                told[place] = replace(told[place], scale=statistics.geometric_mean(scales))
    return told


def _first_places(deltas: Sequence[Delta]) -> list[int]:
    """Return for each delta the place of the first one of the same arms in the same measure: arms whose best rate is
    the shared one are compared at own rates again."""
    places: dict[tuple[str, str, str], int] = {}
    return [places.setdefault((*delta.pair, delta.measured), place) for place, delta in enumerate(deltas)]


def _steps(deltas: Sequence[Delta]) -> Iterable[list[int]]:
    """Return the places of the deltas that may get a verdict, by step."""
    steps: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for place, delta in enumerate(deltas):
        if delta.comparison is not None and not delta.no_verdict:
            steps[delta.design, delta.variant, delta.base].append(place)
    return steps.values()


def _sequence(deltas: Sequence[Delta], places: Sequence[int], protocol: Protocol) -> list[tuple[int, int]]:
    """Return the (number of the measure, place of the delta) of a step's primary measure, and of those that are tested
    after it, up to the first that it lacks. Steps without a primary measure have none."""

    def found(measure: Measure) -> list[int]:
        return [each for each in places if is_of(deltas[each], measure)]

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
        delta.counted,
        delta.comparison.margin,
        level=level,
        scale=delta.scale,
        collapsed=delta.collapsed_at,
        barred=delta.barred.keys(),
        both={seeds: (own, p) for seeds, (own, p) in both.items() if own is not None and p is not None},
        tells_apart=tells_apart(signals, delta.quantity, delta.corpus, delta.arms.values()),
    )
