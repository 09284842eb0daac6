"""The comparison with the paper, for people and for machines."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from reports.comparison import TOLERANCE_REASON, ComparedNumber, published_numbers
from reports.deltas_table import signed
from reports.formats import Table, csv_text, number, raw
from reports.rank_agreement import RankAgreement
from reports.scores import Group


def comparison_table(numbers: Sequence[ComparedNumber], agreements: Sequence[RankAgreement], group: Group) -> Table:
    """One line a published number that has a counterpart."""
    rules = {index for index in range(1, len(numbers)) if numbers[index].where != numbers[index - 1].where}
    return Table(
        title=f"Beside the paper (scale {group.scale}, data {group.data})",
        header=("Published in", "Number", "Unit", "Ours", "Paper", "Difference", "Tolerance", "Verdict", "Why"),
        alignment="lllrrrrll",
        rows=tuple(
            (
                each.where,
                each.name,
                each.unit,
                number(each.ours),
                number(each.paper),
                signed(each.difference, 1),
                number(each.tolerance),
                each.verdict,
                each.why,
            )
            for each in numbers
        ),
        notes=tuple(_notes(numbers, agreements)),
        rules=frozenset(rules),
    )


def _notes(numbers: Sequence[ComparedNumber], agreements: Sequence[RankAgreement]) -> list[str]:
    counts = Counter(each.verdict for each in numbers)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "none"
    return [
        f"{len(numbers)} of {published_numbers()} published numbers have a counterpart: {listed}. Only paper scale on "
        "the paper's data is comparable; nothing in this study is tuned to these numbers.",
        *agreement_sentences(agreements),
        TOLERANCE_REASON,
        "Not compared: rows of Table 3 that the paper copied from others (other protocols), and Tables 4, 5 and 9.",
    ]


def agreement_sentences(agreements: Sequence[RankAgreement]) -> list[str]:
    """The agreement of the orders in words, a sentence for each readout."""
    none = "Rank agreement: fewer than three variants have numbers that can be compared with each other."
    return [_agreement_sentence(each) for each in agreements] or [none]


def _agreement_sentence(agreement: RankAgreement) -> str:
    low, high = (number(end, 2) for end in agreement.interval)
    alike, steps = agreement.decisions
    right, pairs = agreement.pairs
    return (
        f"Rank agreement in {agreement.readout} over {', '.join(agreement.variants)}: Kendall's τ "
        f"{number(agreement.tau, 2)} (95 %: {low} to {high}, {agreement.method}); {right:g} of {pairs} pairs ordered "
        f"as in the paper (decision accuracy {100 * agreement.pairwise_accuracy:.0f} %), {alike} of {steps} steps "
        "help or hurt as there."
    )


def comparison_csv(numbers: Sequence[ComparedNumber]) -> str:
    """Every number unrounded, with the ids of the records behind it."""
    header = ["published_in", "number", "unit", "ours", "paper", "difference", "tolerance", "verdict", "why", "records"]
    rows = []
    for each in numbers:
        values = each.ours, each.paper, each.difference, each.tolerance
        rows.append([each.where, each.name, each.unit, *map(raw, values), each.verdict, each.why, " ".join(each.ids)])
    return csv_text(header, rows)


def comparison_json(numbers: Sequence[ComparedNumber], agreements: Sequence[RankAgreement], group: Group) -> str:
    """The same as JSON, with the rank agreements."""
    content: dict[str, Any] = {
        "scale": group.scale,
        "data": group.data,
        "published_numbers": published_numbers(),
        "off": [each.name for each in numbers if each.is_off],
        "numbers": [_entry(each) for each in numbers],
        "rank_agreements": [vars(each) for each in agreements],
        "tolerances": TOLERANCE_REASON,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _entry(each: ComparedNumber) -> dict[str, Any]:
    values = {"ours": each.ours, "paper": each.paper, "difference": each.difference, "tolerance": each.tolerance}
    rounded = {key: round(value, 6) for key, value in values.items()}
    words = {"published_in": each.where, "number": each.name, "unit": each.unit, "verdict": each.verdict}
    return words | rounded | {"why": each.why, "records": list(each.ids)}
