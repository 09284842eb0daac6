"""The answer of a study in a few sentences, derived from the verdicts of the ladder's deltas."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

from neobert.errors import name_first
from reports.analysis.inference import SEEDS_FOR_A_CLAIM
from reports.analysis.pairing import LADDER, Delta
from reports.analysis.quantities import BITS, QUANTITIES
from reports.tables import count

MOST_NAMED = 4


def answer(deltas: Sequence[Delta]) -> tuple[str, str, str]:
    """Return three answers: the claims in held-out losses (in nats or bits), a sentence for each corpus with claims, or
    one for the corpus with most comparisons; the claims in GLUE; the steps of which neither claims anything."""
    steps = [delta for delta in deltas if delta.design == LADDER]
    by_loss: dict[str, list[Delta]] = defaultdict(list)
    for delta in steps:
        if delta.quantity in ("loss", BITS) and delta.comparison is not None:
            by_loss[delta.measured].append(delta)
    losses = [each for each in by_loss.values() if any(delta.claimed[0] for delta in each)]
    losses = losses or [max(by_loss.values(), key=len, default=[])]
    of_glue = [delta for delta in steps if delta.quantity == "GLUE" and delta.comparison and not delta.no_verdict]
    return (
        " ".join(_claims(f"held-out {each[0].measured}" if each else "held-out loss", each) for each in losses),
        _claims("GLUE", of_glue),
        _untold(steps, [*chain.from_iterable(by_loss.values()), *of_glue]),
    )


def _claims(readout: str, compared: Sequence[Delta]) -> str:
    """Return a sentence on the steps claimed to make a readout better or worse."""
    if not compared:
        return f"In {readout} no step of the ladder can be compared."
    steps = count(len(compared), "step")
    found: Mapping[bool, list[str]] = {True: [], False: []}
    for delta in compared:
        if direction := delta.claimed[0]:
            found[direction == QUANTITIES[delta.quantity].better].append(f"{delta.variant} against {delta.base}")
    told = [
        f"{word}: {', '.join(names)}" for word, names in (("better", found[True]), ("worse", found[False])) if names
    ]
    if told:
        number_of = sum(map(len, found.values()))
        return f"In {readout} a difference is claimed of {number_of} of {steps} compared; {'; '.join(told)}."
    fewest = min(delta.comparison.seeds for delta in compared if delta.comparison is not None)
    most = max(delta.comparison.seeds for delta in compared if delta.comparison is not None)
    seeds = count(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
    if most < SEEDS_FOR_A_CLAIM:
        return (
            f"In {readout} nothing is claimed of {steps} compared: they have {seeds}, and a claim needs "
            f"{SEEDS_FOR_A_CLAIM}."
        )
    return f"In {readout} none of {steps} compared, with {seeds}, changes it beyond the noise of seeds."


def _untold(steps: Sequence[Delta], compared: Sequence[Delta]) -> str:
    """Return a sentence on the steps of which nothing is claimed, and on those claimed to be equivalent."""
    pairs = dict.fromkeys((delta.variant, delta.base) for delta in steps)
    told = {(delta.variant, delta.base) for delta in compared if any(delta.claimed)}
    equal = [f"{d.variant} against {d.base} in {d.measured}" for d in compared if d.claimed == ("", True)]
    missing = [f"{variant} against {base}" for variant, base in pairs if (variant, base) not in told]
    if len(missing) == len(pairs):
        return "No step of the ladder can be told from these records."
    parts = [f"Not told: {name_first(missing, MOST_NAMED)}" if missing else "Every step is told"]
    parts += [f"equivalent within the margins: {name_first(equal, MOST_NAMED)}"] if equal else []
    return f"{'; '.join(parts)}."
