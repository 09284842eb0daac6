"""The table of deltas: a line for each, and the notes on tests, looks, pairing and collapsed seeds below it."""

from collections.abc import Iterator, Sequence

import numpy as np

from ablations.declarations import MINIMAL_PAIRS, Measure, Protocol
from ablations.designs import claims
from ablations.rates import without_rate
from reports.analysis.inference import EQUIVALENCE_LEVEL
from reports.analysis.pairing import LADDER, NOT_MEASURABLE, OWN_RATES, Delta
from reports.analysis.pilots import LEAST_PILOTS, ON_PILOTS
from reports.analysis.quantities import BITS, QUANTITIES
from reports.analysis.readouts import LEAST_RATIO
from reports.notes import warnings
from reports.scores import Group
from reports.tables import (
    Column,
    Table,
    count,
    make_table,
    number,
    print_by_seed,
    print_p,
    print_range,
    print_signed,
    signed,
)

LEAST_CORRELATION = 0.1
"""Below it, pairing by seed lowers the variance of a difference by less than a tenth."""
NOT_JUDGED = "exploratory"


def _columns(quantity: str) -> Sequence[Column[Delta]]:
    """Return the columns; `quantity` describes the tasks over which GLUE is averaged. Family-wise p-values are by look
    in the CSV file."""
    return (
        Column("Design", "design", lambda delta: delta.design, always=True),
        Column("Variant", "variant", lambda delta: delta.variant, always=True),
        Column("Against", "against", lambda delta: delta.base, always=True),
        Column("Quantity", "", lambda delta: delta.measured, always=True),
        Column("", "quantity", lambda delta: delta.quantity, always=True),
        Column("", "measured", lambda d: quantity if d.quantity == "GLUE" else _described_in_full(d), always=True),
        Column("Seeds", "seeds", lambda delta: len(delta.differences), side="r", always=True),
        Column("Difference", "difference", lambda delta: delta.found.mean, print_signed, "r"),
        Column("", "sd", lambda delta: delta.found.deviation),
        Column("95 % over seeds", "t_low t_high", lambda delta: delta.found.interval, print_range, "r"),
        Column("95 % over examples", "examples_low examples_high", lambda delta: delta.examples, print_range, "r"),
        Column("95 % over both", "both_low both_high", lambda delta: delta.both, print_range, "r"),
        Column("", "p_both", lambda delta: delta.noise and delta.noise.p_both),
        Column("r", "correlation", lambda delta: delta.correlation, lambda value, _: signed(value, 2), "r"),
        Column("p (t)", "p_t", lambda delta: delta.found.p_t, print_p, "r"),
        Column("", "test", lambda delta: delta.test),
        Column("", "pilot_seeds", lambda d: " ".join(f"{name}:{pilots}" for name, pilots in d.pilots.items())),
        Column("", "pilot_sd", lambda delta: delta.scale),
        Column("p (family)", "", lambda delta: delta.judged.p_difference, print_p, "r"),
        Column("", "p_family", lambda delta: print_by_seed(delta.judged.p_by_look)),
        Column("p (TOST, Holm)", "", lambda delta: delta.judged.p_equivalence, print_p, "r"),
        Column("", "p_tost_holm", lambda delta: print_by_seed(delta.judged.p_equivalence_by_look)),
        Column("", "margin", lambda delta: delta.found.margin),
        Column("Detectable", "detectable", lambda d: d.judged.detectable, lambda size, d: number(size, d.digits), "r"),
        Column("", "verdict", lambda delta: delta.verdict),
        Column("Verdict", "", lambda d: f"left out: {d.reason}" if d.reason else d.verdict or NOT_JUDGED, always=True),
        Column("", "differences_by_seed", lambda delta: print_by_seed(delta.differences)),
        Column("", "collapsed", lambda delta: "; ".join(delta.collapses)),
        Column("", "left_out", lambda d: d.reason or "; ".join(filter(None, (*d.notes, d.no_examples))), always=True),
        Column("", "records", lambda delta: " ".join(delta.ids)),
    )


def deltas_table(deltas: Sequence[Delta], group: Group, quantity: str, protocol: Protocol) -> Table:
    """Return a table with one line per delta; `quantity` describes the tasks over which GLUE is averaged."""
    return make_table(
        f"Deltas with paired seeds (scale {group.scale}, data {group.data})",
        _columns(quantity),
        deltas,
        (*warnings(group), *_notes(deltas, quantity, protocol)),
        records=lambda delta: delta.ids,
        rule_key=lambda delta: delta.family,
        is_left_out=lambda delta: delta.comparison is None,
    )


TIMING = (
    "Level, waiting: the reading of a claimed difference in loss by when both arms leave the plateau of token "
    "frequencies; the table of waiting has its numbers."
)
OF_BITS = (
    "Bits per byte: held-out MLM loss on the same documents cut to a common context; the loss a token times the tokens "
    "of the text over its bytes. Masks hide tokens, so a tokenizer of shorter ones shows more beside each mask: "
    "between tokenizers it is no strict comparison."
)


def _notes(deltas: Sequence[Delta], quantity: str, protocol: Protocol) -> Iterator[str]:
    compared = [delta for delta in deltas if delta.comparison is not None]
    told = {delta.quantity for delta in deltas} | {"GLUE", "loss"}
    yield (
        f"GLUE: {quantity}, in points; loss: held-out MLM loss in nats per token on a corpus that both were measured "
        "on, lower is better. Pairs share the seed of pre-training, which is the unit; nothing missing is filled in."
    )
    yield (
        "Over seeds: t interval of the mean difference, df = seeds − 1. Over examples: percentile bootstrap of "
        "development examples at these seeds, normal for documents, texts and items; it tells nothing about "
        "other seeds. Over both: the variances of both added. A difference is claimed only where this holds too."
    )
    primary = " or, where an arm lacks it, ".join(_described(protocol.primary))
    yield (
        f"Verdicts: one family of all steps, each in {primary}; {', '.join(_described(protocol.sequence))} are tested "
        "after it, in this order, for the steps that all before claimed. Everything else is exploratory: numbers and "
        "intervals without a verdict."
    )
    yield (
        "p (t): paired t test, uncorrected. p (family): joint sign flips over the family; the verdict goes by it. "
        "TOST: that the difference is smaller than the margin, with Holm's correction; claimed with "
        f"p ≤ {EQUIVALENCE_LEVEL:g}, and only in readouts whose signal to noise is {LEAST_RATIO:g} or more. "
        f"Margins: {_margins(told, protocol)}."
    )
    yield from _tests(compared)
    yield (
        "Detectable: the smallest true difference that the test of the verdict would claim with power 0.8 at the last "
        "look, at the observed spread of seeds."
    )
    yield from (*_looks(compared, protocol), *_pairing(compared), *_collapses(deltas))
    if any(delta.timing for delta in deltas):
        yield TIMING
    if BITS in told:
        yield OF_BITS
    told_of = claims()
    yield from (told_of[design] for design in dict.fromkeys(delta.design for delta in deltas) if design in told_of)
    yield from find_changed_verdicts(deltas)
    yield from (f"{d.variant} against {d.base} ({d.measured}): {note}." for d in deltas for note in d.notes)
    yield from _without_examples(compared)


def _without_examples(deltas: Sequence[Delta]) -> Iterator[str]:
    without = {delta.no_examples: delta.quantity for delta in deltas if delta.no_examples}
    for reason, quantity in sorted(without.items()):
        yield f"No interval over {'examples' if quantity == 'GLUE' else 'texts'}: {reason}."


def _margins(names: set[str], protocol: Protocol) -> str:
    told = [(name, each, protocol.margin_of(name)) for name, each in QUANTITIES.items() if name in names]
    return ", ".join(f"{margin:g} {each.unit.split()[0]}: {each.reason} ({name})" for name, each, margin in told)


def _described(measures: Sequence[Measure]) -> list[str]:
    corpora = {"own": "the variant's training corpus", "other": "the other corpora"}
    return [each.describe(corpora) for each in measures]


def _described_in_full(delta: Delta) -> str:
    return delta.measured if delta.quantity == MINIMAL_PAIRS else f"held-out {delta.measured}"


def _tests(deltas: Sequence[Delta]) -> list[str]:
    """Return sentences on the test of each measure: which differences were divided by what pilot seeds show."""
    tested = [delta for delta in deltas if delta.judged.is_tested]
    scaled = sorted({delta.measured for delta in tested if delta.scale is not None})
    lines = [f"Differences are divided by their deviation known from pilot seeds in: {', '.join(scaled)}."] * bool(
        scaled
    )
    pooled = [delta for delta in tested if delta.scale is None]
    losses = [delta for delta in pooled if delta.quantity in ON_PILOTS]
    few = {name: count for delta in losses for name, count in delta.pilots.items() if count < LEAST_PILOTS}
    if pooled:
        lines.append(
            f"Variances are pooled over the family in: {', '.join(sorted({delta.measured for delta in pooled}))}. "
            "The test is valid so, and finds little in steps that are less noisy than others."
        )
    if few:
        arms = ", ".join(f"{name} {count}" for name, count in few.items())
        lines.append(f"Dividing by deviations needs {LEAST_PILOTS} pilot seeds of every arm; these have fewer: {arms}.")
    if len(losses) < len(pooled):
        lines.append("Only held-out losses are measured on pilot seeds; other measures are always pooled.")
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


def _at_both_rates(deltas: Sequence[Delta]) -> list[tuple[Delta, Delta]]:
    """Return each step of the ladder at the shared rate with the same one at own rates."""
    own = {
        (without_rate(delta.variant), without_rate(delta.base), delta.measured): delta
        for delta in deltas
        if delta.design == OWN_RATES
    }
    return [
        (delta, own[place])
        for delta in deltas
        if delta.design == LADDER and (place := (delta.variant, delta.base, delta.measured)) in own
    ]


def _told(delta: Delta) -> str:
    return NOT_MEASURABLE if delta.no_verdict else delta.verdict


def find_changed_verdicts(deltas: Sequence[Delta]) -> list[str]:
    """Return a sentence for each ladder step whose verdict at the arms' own rates differs from the one at the shared
    rate, or one that there is none; and one on steps between arms whose best rate is the shared one."""
    pairs = _at_both_rates([delta for delta in deltas if delta.comparison is not None])
    shared = [pair for pair in pairs if any(delta.judged.is_tested for delta in pair)]
    trained = [(ours, theirs) for ours, theirs in shared if ours.pair != theirs.pair]
    changed = [
        f"{ours.variant} against {ours.base} ({ours.measured}): {_told(ours)} at the shared rate, {_told(theirs)} at "
        f"own rates ({theirs.variant} against {theirs.base})."
        for ours, theirs in trained
        if (ours.claimed, bool(ours.no_verdict)) != (theirs.claimed, bool(theirs.no_verdict))
    ]
    if trained and not changed:
        changed = [f"None of {count(len(trained), 'verdict')} changes at own rates."]
    best = dict.fromkeys(f"{ours.variant} against {ours.base}" for ours, theirs in shared if ours.pair == theirs.pair)
    if best:
        changed.append(f"The shared rate is the best of both arms: {', '.join(best)}.")
    return changed


def _looks(deltas: Sequence[Delta], protocol: Protocol) -> list[str]:
    """Return sentences on the looks, and on which one each number of seeds has reached."""
    is_single = any(len(delta.differences) == 1 for delta in deltas)
    lines = ["One seed: no interval and no test; the difference may be noise."] if is_single else []
    counts = sorted({len(delta.counted) for delta in deltas})
    declared = ", ".join(f"{look} seeds with p ≤ {level:g}" for look, level in sorted(protocol.looks.items()))
    first = min(protocol.looks)
    reached = [(count, max(look for look in protocol.looks if look <= count)) for count in counts if count >= first]
    at = "; ".join(f"{count} seeds are at the look of {look}" for count, look in reached)
    lines.append(
        f"Looks, declared before the study: {declared}. Each counts the first seeds; what one claims stays claimed."
    )
    lines += [f"{at}."] if at else []
    few = [count for count in counts if 1 < count < first]
    if few:
        least = ", ".join(f"{2 / 2**count:g} with {count}" for count in few)
        lines.append(
            f"Below {first} seeds no difference and no equivalence is claimed: the smallest p that an "
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
