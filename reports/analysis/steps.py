"""The answer of a study as one table: the steps of the ladder with their parts, in all readouts, beside the paper.

Every word follows from verdicts (`reports.analysis.verdicts`) and recipes.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from ablations.declarations import Measure, Protocol
from ablations.ladders import current
from ablations.rates import MARK, rate_text, without_rate
from neobert.errors import name_first
from reports import published
from reports.analysis.inference import Interval, seed_interval
from reports.analysis.pairing import LADDER, NOT_MEASURABLE, OWN_RATES, Delta, is_of
from reports.analysis.parts import PARTS, Share, find_parts, list_changes, share_of
from reports.analysis.plateau import WAITING
from reports.analysis.quantities import BITS, QUANTITIES
from reports.analysis.transitions import Wait
from reports.analysis.verdicts import TOO_FEW, WITHIN_NOISE
from reports.notes import describe_change, warnings
from reports.scores import Group, Row
from reports.tables import DASH, Column, Table, capitalized, make_table, printed_range, signed

SHARE, WAITED = "Share of the step", "Waiting, steps"
CLAIMED, EQUIVALENT = "*", "="
REPEATED = ("loss", "loss, all [MASK]")
"""Quantities that say the same as bits per byte of the same texts, but between fewer arms."""


@dataclass(frozen=True)
class Step:
    """A step of the ladder, or a part of the step `part_of`. `deltas` are its differences in all quantities, `primary`
    the one that its verdict is about. `corpora` are those that base and variant were trained on. `share` is what a part
    carries of its step in the primary measure. `published` is the change of the GLUE average in the paper, in
    points."""

    variant: str
    base: str
    design: str
    changes: str
    corpora: tuple[str, str]
    deltas: tuple[Delta, ...]
    primary: Delta | None
    waiting: Mapping[int, float]
    wait_ids: tuple[str, ...] = ()
    part_of: tuple[str, str] | None = None
    share: Share | None = None
    published: float | None = None
    shares_tokens: bool = True

    @property
    def name(self) -> str:
        """The step without rates; of a part the part alone."""
        variant, base = _without_rates((self.variant, self.base))
        return variant if self.part_of else f"{variant} − {base}"

    @property
    def has_own_rates(self) -> bool:
        return self.design == OWN_RATES

    @property
    def word(self) -> str:
        """The answer in one word; a dash for what is not tested."""
        return (self.primary.word if self.primary else "") or DASH

    @property
    def corpus(self) -> str:
        """The corpus of the variant, and that of its base where it changes."""
        before, after = self.corpora
        return after if before == after else f"{before} → {after}"

    def found(self, measure: Measure) -> list[Delta]:
        """The compared differences in a measure, one for each corpus."""
        return [each for each in self.deltas if each.comparison and is_of(each, measure)]

    @property
    def on_the_paper(self) -> str:
        """What the step says of the paper's change; empty without one."""
        if self.published is None:
            return ""
        reason = self._why_untouched
        if reason:
            return f"cannot touch: {reason}"
        assert self.primary is not None
        is_better, margin = self.primary.is_better, self.primary.judged.margin
        if is_better is None:
            unit = QUANTITIES[self.primary.quantity].unit
            return f"contradicts, in this measure: a change of {margin:g} {unit} or more is excluded"
        verb = "supports" if is_better == (self.published > 0) else "contradicts"
        if self.primary.timing == WAITING:
            return f"{verb} the sign, by the start of learning alone; cannot touch the level"
        return f"{verb} the sign" + ("" if self.shares_tokens else ", with other tokens: no strict comparison")

    @property
    def _why_untouched(self) -> str:
        if self.primary is None:
            return "the primary measure is not compared"
        if self.primary.no_verdict:
            return NOT_MEASURABLE
        if self.corpora[0] != self.corpora[1]:
            return "the step changes the text that the measure is taken on"
        return {
            "": "exploratory",
            TOO_FEW: TOO_FEW,
            WITHIN_NOISE: f"{WITHIN_NOISE}, and no equivalence",
        }.get(self.primary.word, "")


@dataclass(frozen=True)
class _Finder:
    """Makes the steps of pairs (variant, base): their deltas, waiting, and names of their parts, by pair."""

    group: Group
    protocol: Protocol
    deltas: Mapping[tuple[str, str], tuple[Delta, ...]]
    waiting: Mapping[tuple[str, str], Wait]
    names: Mapping[tuple[str, str], set[str]]

    def step_of(self, pair: tuple[str, str]) -> Step:
        variant, base = (self.group.compared_rows[name] for name in pair)
        deltas, wait = self.deltas[pair], self.waiting.get(pair)
        compared = [each for each in deltas if each.comparison]
        primary = (each for measure in self.protocol.primary for each in compared if is_of(each, measure))
        return Step(
            *pair,
            design=deltas[0].design,
            changes=_changes(variant, base, self.group),
            corpora=(base.recipe.pretraining.data.corpus, variant.recipe.pretraining.data.corpus),
            deltas=deltas,
            primary=next(primary, None),
            waiting=wait.waiting if wait else {},
            wait_ids=wait.ids if wait else (),
            shares_tokens=variant.tokens == base.tokens,
        )

    def parts_of(self, whole: tuple[str, str]) -> list[tuple[str, str]]:
        """Return the parts against the same base as the step, at any rate."""
        own = self.names.get(_without_rates(whole), set())
        return [pair for pair in self.deltas if pair[1] == whole[1] and _without_rates(pair)[0] in own]

    def with_parts(self, pair: tuple[str, str], bars: Mapping[str, Any]) -> Iterator[Step]:
        """Yield a step, with the paper's change if it is one of the ladder, and its parts."""
        whole = self.step_of(pair)
        variant, base = _without_rates(pair)
        change = bars[variant].average - bars[base].average if {variant, base} <= bars.keys() else None
        yield replace(whole, published=None if whole.design == PARTS else change)
        for part in map(self.step_of, self.parts_of(pair)):
            yield replace(part, part_of=pair, share=_share(part, whole))


def find_steps(group: Group, deltas: Sequence[Delta], waits: Sequence[Wait], protocol: Protocol) -> tuple[Step, ...]:
    """Return the compared steps of the ladder, each followed by its parts, then those at the arms' own rates."""
    by_pair = _deltas_by_pair(group, deltas)
    waiting = {(wait.variant, wait.base): wait for wait in waits}
    names = {pair: {row.name for row in rows} for pair, rows in find_parts(group).items()}
    finder, bars = _Finder(group, protocol, by_pair, waiting, names), published.figure1()
    steps = [pair for pair, found in by_pair.items() if found[0].design in (LADDER, OWN_RATES)]
    # what the ladder continues is a step of its own, even if an arm beside it changes more
    told = {part for pair in steps for part in finder.parts_of(pair) if not group.compared_rows[part[0]].kept}
    readings = [pair for pair in names if pair in by_pair and pair not in steps]
    wanted = (pair for pair in (*steps, *readings) if pair not in told)
    found = chain.from_iterable(finder.with_parts(pair, bars) for pair in wanted)
    return tuple(step for step in found if any(delta.comparison for delta in step.deltas))


def _deltas_by_pair(group: Group, deltas: Sequence[Delta]) -> dict[tuple[str, str], tuple[Delta, ...]]:
    """Return the deltas of each pair in the first design that has it, in the order of the ladder, own rates last."""
    order = list(group.last_rows | group.compared_rows)
    own: dict[tuple[str, str], list[Delta]] = defaultdict(list)
    for delta in sorted(deltas, key=lambda delta: (delta.design == OWN_RATES, order.index(delta.variant))):
        own[delta.pair].append(delta)
    return {pair: tuple(each for each in found if each.design == found[0].design) for pair, found in own.items()}


def _without_rates(pair: tuple[str, str]) -> tuple[str, str]:
    return without_rate(pair[0]), without_rate(pair[1])


def _changes(variant: Row, base: Row, group: Group) -> str:
    if MARK in variant.name + base.name:
        rates = (rate_text(row.recipe.pretraining.optimization.peak_learning_rate) for row in (variant, base))
        return f"own rates: {next(rates)}, parent {next(rates)}"
    is_step = variant.parent == base.name and variant.name in group.last_rows
    return describe_change(variant, group) if is_step else list_changes(variant, base)


def _share(part: Step, whole: Step) -> Share | None:
    """Return what a part carries of the primary difference of its step, in the same measure."""
    if whole.primary is None:
        return None
    same = (each for each in part.deltas if each.comparison and each.measured == whole.primary.measured)
    found = next(same, None)
    return share_of(found.differences, whole.primary.differences) if found else None


def answer(steps: Sequence[Step]) -> str:
    """Return the answers on the steps of the ladder in a sentence, at own rates too."""
    told: dict[str, list[str]] = defaultdict(list)
    for step in steps:
        if step.part_of is None and step.design != PARTS:
            is_better = step.primary and step.primary.is_better
            direction = "" if is_better is None else " (better)" if is_better else " (worse)"
            told[step.word].append(f"{step.name}{' at own rates' if step.has_own_rates else ''}{direction}")
    untested = told.pop(DASH, [])
    if told.keys() == {NOT_MEASURABLE}:
        return "No step of the ladder is measurable: an arm of each fails a check of its regime."
    parts = [f"{word}: {', '.join(names)}" for word, names in told.items()]
    parts += [f"not tested: {', '.join(untested)}"] if untested else []
    return f"{capitalized('; '.join(parts))}." if parts else "No step of the ladder is compared in these records."


# The table


def steps_table(steps: Sequence[Step], deltas: Sequence[Delta], group: Group, protocol: Protocol) -> Table:
    """Return a table with one line per step and part. Columns without any value are left out."""
    measures = _measures(steps, protocol)
    possible = _columns(steps, measures)
    empty = [
        each.head
        for each in possible
        if each.head and {each.cell(step, is_left_out=False) for step in steps} <= {"", DASH}
    ]
    return make_table(
        f"The answer (scale {group.scale}, data {group.data})",
        [each for each in possible if each.head not in empty],
        steps,
        (*_notes(steps, protocol), *_notes_on_gaps(steps, deltas), *warnings(group)),
        records=lambda step: _records(step, steps, measures),
        rule_key=lambda step: (_block(step, steps), step.has_own_rates),
    )


def _block(step: Step, steps: Sequence[Step]) -> tuple[str, str] | None:
    """Return the step that a line belongs to, if it has parts."""
    whole = step.part_of or (step.variant, step.base)
    return whole if any(each.part_of == whole for each in steps) else None


def _columns(steps: Sequence[Step], measures: Sequence[Measure]) -> list[Column[Step]]:
    source = capitalized(current().published_source)
    return [
        Column("Step", "", lambda step: f"· {step.name}" if step.part_of else step.name),
        Column("", "variant", lambda step: step.variant),
        Column("", "against", lambda step: step.base),
        Column("", "design", lambda step: step.design),
        Column("", "part_of", lambda step: " − ".join(step.part_of or ())),
        Column("Changes", "changes", lambda step: step.changes),
        Column("Answer", "answer", lambda step: step.word),
        Column("", "measured", lambda step: step.primary and step.primary.measured),
        Column(_head_of_primary(steps), "difference low high", _primary, _print_primary, "r"),
        Column(SHARE, "", lambda step: step.share, side="r"),
        Column("", "share share_low share_high", _share_facts),
        Column(WAITED, "", lambda step: step.waiting, _print_waiting, "r"),
        Column("", "waiting", lambda step: statistics.fmean(step.waiting.values()) if step.waiting else None),
        Column("Trained on", "trained_on", lambda step: step.corpus),
        *(Column(_head_of(measure), "", partial(_print_all, measure), side="r") for measure in measures),
        Column(source, "published", lambda step: step.published, lambda change, _: signed(change, 1), "r"),
        Column(f"On {current().published_as}", "on_published", lambda step: step.on_the_paper or None),
        Column("", "records", lambda step: " ".join(step.primary.ids if step.primary else ())),
    ]


def _head_of_primary(steps: Sequence[Step]) -> str:
    quantities = {step.primary.quantity for step in steps if step.primary}
    return capitalized(quantities.pop()) if len(quantities) == 1 else "Primary measure"


def _primary(step: Step) -> tuple[float | None, ...] | None:
    """Return the primary difference and the ends of its interval; None without one."""
    found = step.primary
    return None if found is None else (found.found.mean, *(found.interval or (None, None)))


def _print_primary(_: object, step: Step) -> str:
    delta = step.primary
    if delta is None:
        return DASH
    digits = delta.digits - 1
    return f"{signed(delta.found.mean, digits)}{_marks(delta)}{_behind(delta.interval, digits)}"


def _behind(interval: Interval | None, digits: int) -> str:
    """Format an interval in brackets behind its mean, which pages do not break; nothing for None."""
    if interval is None:
        return ""
    told = printed_range(interval, digits).replace(" ", "\u00a0")
    return f" ({told})"


def _marks(delta: Delta) -> str:
    direction, is_equivalent = delta.claimed
    return f"{CLAIMED if direction else ''}{EQUIVALENT if is_equivalent else ''}"


def _share_facts(step: Step) -> tuple[float | None, ...] | None:
    return None if step.share is None else (step.share.value, *step.share.interval)


def _print_waiting(_: object, step: Step) -> str:
    values = step.waiting.values()
    return f"{signed(statistics.fmean(values), 0)}{_behind(seed_interval(values), 0)}" if values else DASH


def _head_of(measure: Measure) -> str:
    return capitalized(measure.quantity) + (", other corpus" if measure.corpus == "other" else "")


def _print_all(measure: Measure, step: Step) -> str:
    """Format the mean differences of a step in a measure, with the corpus where there are several."""
    found = step.found(measure)
    told = [f"{signed(each.found.mean, each.digits - 1)}{_marks(each)}" for each in found]
    if len(found) > 1:
        told = [f"{text} ({each.corpus})" for text, each in zip(told, found, strict=True)]
    return "; ".join(told) or DASH


def _measures(steps: Sequence[Step], protocol: Protocol) -> list[Measure]:
    """Return the measures beside the primary one: those of the protocol in their order, then all others on the
    variant's corpus, without those that repeat another or are the primary measure of every step that has them."""
    has_bits = any(delta.quantity == BITS and delta.comparison for step in steps for delta in step.deltas)
    others = [Measure(quantity=name) for name in QUANTITIES if not (has_bits and name in REPEATED)]
    declared = [*protocol.primary, *protocol.sequence]
    measures = list(dict.fromkeys([*declared, *others]))
    return [each for each in measures if any(step.found(each) not in ([], [step.primary]) for step in steps)]


def _records(step: Step, steps: Sequence[Step], measures: Sequence[Measure]) -> Mapping[str, Sequence[str] | str]:
    """Return the records behind each column."""
    primary = step.primary.ids if step.primary else ()
    of_measures = {
        _head_of(measure): tuple(dict.fromkeys(name for each in step.found(measure) for name in each.ids))
        for measure in measures
    }
    return {
        **of_measures,
        _head_of_primary(steps): primary,
        SHARE: primary,
        WAITED: step.wait_ids,
        capitalized(current().published_source): "Figure 1",
    }


def _notes(steps: Sequence[Step], protocol: Protocol) -> Iterator[str]:
    measured = ", or ".join(map(str, protocol.primary))
    yield (
        f"Answer: the verdict in the primary measure ({measured}). Level: the difference is still there at equal time "
        "since the transition; waiting: it is not, and one arm leaves the plateau later; differs: claimed, and neither "
        "can be told; not measurable: an arm fails a check of its regime; within noise: nothing "
        "is claimed."
    )
    yield (
        f"Differences are variant minus parent at paired seeds, with the 95 % interval that decides; {CLAIMED} a "
        f"difference is claimed, {EQUIVALENT} an equivalence is. The table of differences has all intervals and tests."
    )
    compared = {delta.quantity for step in steps for delta in step.deltas if delta.comparison}
    units = (f"{name} in {each.unit}" for name, each in QUANTITIES.items() if name in compared)
    yield f"Units: {'; '.join(units)}."
    if any(step.part_of for step in steps):
        yield (
            "Lines with a dot are parts of the step above, each against its parent. A part is tested once its step is "
            "claimed, and not at all if its step gets no verdict."
        )
    if any(step.share for step in steps):
        yield (
            "Share of the step: the part's difference over that of the step at paired seeds, with Fieller's 95 % "
            "interval; no share where the step's own difference is not clear of 0. Shares of parts need not add up."
        )
    if any(step.published is not None for step in steps):
        yield (
            f"On {current().published_as}: its change is in points of a GLUE average, from one seed at its own scale. "
            "A sign here is one in the primary measure at this scale."
        )


def _notes_on_gaps(steps: Sequence[Step], deltas: Sequence[Delta]) -> Iterator[str]:
    """Yield why steps have no verdict, and which ones are not compared."""
    barred: dict[str, list[str]] = defaultdict(list)
    for step in steps:
        barred[step.primary.no_verdict if step.primary else ""].append(step.name)
    yield from (f"{capitalized(reason)} ({', '.join(names)})." for reason, names in barred.items() if reason)
    told = {(step.variant, step.base) for step in steps}
    missing = {delta.step: delta.reason for delta in reversed(deltas) if delta.design == LADDER}
    names = [f"{name} ({why})" for name, why in reversed(missing.items()) if tuple(name.split(" − ")) not in told]
    if names:
        yield f"Nothing is compared, and nothing of {current().published_as} touched, in {name_first(names, 8)}."
