"""The table of deltas, for people and for machines."""

from collections.abc import Sequence

from ablations.designs import CLAIMS
from reports.deltas import Delta
from reports.formats import DASH, Table, csv_text, number, p_value, raw
from reports.inference import SEEDS_FOR_A_CLAIM
from reports.pairs import BITS, MARGINS, measured_name
from reports.remarks import warnings
from reports.scores import Group

DIGITS = {"GLUE": 2, "loss": 4, BITS: 4}
HEADER = (
    "Design",
    "Variant",
    "Against",
    "Quantity",
    "Seeds",
    "Difference",
    "95 % over seeds",
    "95 % over examples",
    "p (t)",
    "p (Holm)",
    "p (sign flips)",
    "p (TOST, Holm)",
    "Detectable",
    "Verdict",
)


def deltas_table(deltas: Sequence[Delta], group: Group, quantity: str) -> Table:
    """One line a delta; `quantity` says over which tasks GLUE is averaged."""
    rules = {index for index in range(1, len(deltas)) if _family(deltas[index]) != _family(deltas[index - 1])}
    return Table(
        title=f"Deltas with paired seeds (scale {group.scale}, data {group.data})",
        header=HEADER,
        alignment="llllr" + "r" * (len(HEADER) - 6) + "l",
        rows=tuple(_cells(delta) for delta in deltas),
        notes=(*warnings(group), *_notes(deltas, quantity)),
        rules=frozenset(rules),
    )


def _family(delta: Delta) -> tuple[str, str]:
    return delta.design, delta.pair.measured


def _cells(delta: Delta) -> tuple[str, ...]:
    names = delta.design, delta.variant, delta.base, delta.pair.measured
    found, digits = delta.comparison, DIGITS[delta.pair.quantity]
    if found is None:
        return (*names, "0", *[DASH] * (len(HEADER) - 6), f"left out: {delta.pair.reason}")
    return (
        *names,
        str(found.seeds),
        signed(found.mean, digits),
        printed_range(found.interval, digits),
        printed_range(delta.examples, digits),
        *map(p_value, (found.p_t, delta.p_holm, found.p_sign_flip, delta.p_equivalence_holm)),
        number(found.detectable, digits),
        delta.verdict,
    )


def signed(value: float, digits: int) -> str:
    """A difference for people."""
    text = number(value, digits)
    return text if text.startswith("−") or float(text) == 0 else f"+{text}"


def printed_range(interval: tuple[float, float] | None, digits: int) -> str:
    """An interval for people."""
    return DASH if interval is None else f"{signed(interval[0], digits)} to {signed(interval[1], digits)}"


def _notes(deltas: Sequence[Delta], quantity: str) -> list[str]:
    told = {delta.pair.quantity for delta in deltas} | {"GLUE", "loss"}
    margins = ", ".join(f"{margin:g} {reason} ({name})" for name, (margin, reason) in MARGINS.items() if name in told)
    lines = [
        f"GLUE: {quantity}, in points; loss: held-out MLM loss in nats a token on a corpus that both were measured on, "
        "lower is better. Pairs share the seed of pre-training, which is the unit; nothing missing is filled in.",
        "Over seeds: t interval of the mean difference, df = seeds − 1. Over examples: percentile bootstrap of "
        "development examples at these seeds; it tells nothing about other seeds.",
        "p (t): paired t test; Holm: corrected over all deltas of the same design and quantity; sign flips: exact, "
        "uncorrected; TOST: that the difference is smaller than the margin, corrected likewise. "
        f"Margins: {margins}.",
        "Detectable: the smallest true difference that the t test would find with power 0.8 at these seeds and their "
        "observed spread, uncorrected.",
        *_few_seeds(deltas),
    ]
    if BITS in told:
        lines.append(
            "Bits per byte: held-out MLM loss of runs with other tokenizers or contexts, on the same documents cut to "
            "a common context; the loss a token times the tokens of the text over its bytes. Masks hide tokens, so a "
            "tokenizer of shorter ones shows more beside each mask: between tokenizers it is no strict comparison."
        )
    designs = list(dict.fromkeys(delta.design for delta in deltas))
    lines += [CLAIMS[design] for design in designs if design in CLAIMS]
    lines += [f"{d.variant} against {d.base} ({d.pair.measured}): {note}." for d in deltas for note in d.pair.notes]
    without = {d.no_examples for d in deltas if d.no_examples}
    return [*lines, *(f"No interval over examples: {reason}." for reason in sorted(without))]


def _few_seeds(deltas: Sequence[Delta]) -> list[str]:
    counts = {delta.comparison.seeds for delta in deltas if delta.comparison}
    lines = []
    if 1 in counts:
        lines.append("One seed: no interval and no test; the difference may be noise.")
    few = sorted(count for count in counts if 1 < count < SEEDS_FOR_A_CLAIM)
    if few:
        least = ", ".join(f"{2 / 2**count:g} with {count}" for count in few)
        lines.append(
            f"Below {SEEDS_FOR_A_CLAIM} seeds no difference and no equivalence is claimed: the smallest p that an "
            f"exact sign-flip test can reach is {least}, above 0.05, and a t test of so few rests on a normal "
            "distribution that nobody can check."
        )
    return lines


def deltas_csv(deltas: Sequence[Delta], quantity: str) -> str:
    """Every number of the table unrounded, seed by seed, with the ids of the records behind it."""
    header = ["design", "variant", "against", "quantity", "measured", "seeds", "difference", "sd", "t_low", "t_high"]
    header += ["examples_low", "examples_high", "p_t", "p_holm", "p_sign_flip", "p_tost", "p_tost_holm", "margin"]
    header += ["detectable", "verdict", "differences_by_seed", "left_out", "records"]
    return csv_text(header, [_csv_row(delta, quantity) for delta in deltas])


def _csv_row(delta: Delta, quantity: str) -> list[str]:
    pair, found = delta.pair, delta.comparison
    words = "held-out loss" if pair.quantity == "loss" else f"held-out {pair.quantity}"
    measured = quantity if pair.quantity == "GLUE" else measured_name(words, pair.corpus, pair.context)
    cells = [delta.design, delta.variant, delta.base, pair.quantity, measured, str(len(pair.differences))]
    if found is None:
        return [*cells, *[""] * 15, pair.reason, ""]
    low, high = found.interval or (None, None)
    examples_low, examples_high = delta.examples or (None, None)
    numbers = [found.mean, found.deviation, low, high, examples_low, examples_high, found.p_t, delta.p_holm]
    numbers += [found.p_sign_flip, found.p_equivalence, delta.p_equivalence_holm, found.margin, found.detectable]
    by_seed = " ".join(f"{seed}:{value:.6f}" for seed, value in pair.differences.items())
    reasons = "; ".join([*pair.notes, *([delta.no_examples] if delta.no_examples else [])])
    return [*cells, *map(raw, numbers), delta.verdict, by_seed, reasons, " ".join(pair.ids)]
