"""The answer of a study in a few sentences, derived from the verdicts of the ladder's deltas."""

from collections import defaultdict
from collections.abc import Sequence

from ablations.declarations import Measure
from neobert.errors import name_first
from reports.analysis.inference import SEEDS_FOR_A_CLAIM
from reports.analysis.pairing import LADDER, Delta
from reports.analysis.quantities import QUANTITIES
from reports.tables import count

MOST_NAMED = 4
CORPORA = {"own": "the variant's training corpus", "other": "another corpus"}


def answer(deltas: Sequence[Delta]) -> tuple[str, str, str]:
    """Return three answers: the claims in the primary measure, the claims in the measures that are tested after it, and
    the steps of which the primary measure claims nothing. Exploratory measures are in none of them. If no step gets a
    verdict, the first says so and the others are empty."""
    steps = [delta for delta in deltas if delta.design == LADDER]
    refused = [bool(delta.no_verdict) for delta in steps if delta.comparison is not None]
    if refused and all(refused):
        return "No step of the ladder gets a verdict: the table of differences says why for each.", "", ""
    primary = [delta for delta in steps if delta.judged.place == 0]
    measured = " or ".join(dict.fromkeys(delta.quantity for delta in primary))
    return (
        _claims(f"{measured} on {CORPORA['own']}" if primary else "the primary measure", primary),
        " ".join(_claims(readout, own) for readout, own in _tested_later(steps).items()),
        _untold(steps, primary),
    )


def _tested_later(steps: Sequence[Delta]) -> dict[str, list[Delta]]:
    """Return the deltas that are tested after the primary measure, by measure."""
    later: dict[str, list[Delta]] = defaultdict(list)
    for delta in steps:
        if delta.judged.is_tested and delta.judged.place:
            measure = Measure(quantity=delta.quantity, corpus="own" if delta.is_own else "other")
            later[measure.describe(CORPORA)].append(delta)
    return later


def _claims(readout: str, compared: Sequence[Delta]) -> str:
    """Return a sentence on the steps claimed to make a readout better or worse."""
    if not compared:
        return f"In {readout} no step of the ladder can be compared."
    steps = count(len(compared), "step")
    found: dict[str, list[str]] = {"better": [], "worse": []}
    for delta in compared:
        if direction := delta.claimed[0]:
            word = "better" if direction == QUANTITIES[delta.quantity].better else "worse"
            found[word].append(f"{delta.variant} against {delta.base}")
    told = [f"{word}: {', '.join(names)}" for word, names in found.items() if names]
    if told:
        number_of = sum(map(len, found.values()))
        return f"In {readout} a difference is claimed of {number_of} of {steps} tested; {'; '.join(told)}."
    numbers = sorted(delta.found.seeds for delta in compared)
    fewest, most = numbers[0], numbers[-1]
    seeds = count(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
    if most < SEEDS_FOR_A_CLAIM:
        return (
            f"In {readout} nothing is claimed of {steps} tested: they have {seeds}, and a claim needs "
            f"{SEEDS_FOR_A_CLAIM}."
        )
    return f"In {readout} none of {steps} tested, with {seeds}, changes it beyond the noise of seeds."


def _untold(steps: Sequence[Delta], primary: Sequence[Delta]) -> str:
    """Return a sentence on the steps of which the primary measure claims nothing, and on those claimed to be
    equivalent in a tested measure."""
    pairs = dict.fromkeys((delta.variant, delta.base) for delta in steps)
    told = {(delta.variant, delta.base) for delta in primary if any(delta.claimed)}
    equal = [f"{d.variant} against {d.base} in {d.measured}" for d in steps if d.claimed == ("", True)]
    missing = [f"{variant} against {base}" for variant, base in pairs if (variant, base) not in told]
    if len(missing) == len(pairs):
        return "No step of the ladder can be told from these records."
    parts = [f"Not told: {name_first(missing, MOST_NAMED)}" if missing else "Every step is told"]
    parts += [f"equivalent within the margins: {name_first(equal, MOST_NAMED)}"] if equal else []
    return f"{'; '.join(parts)}."
