"""Any two variants seed by seed, in everything that both were measured in, as data that the page draws."""

from itertools import combinations
from typing import Any

from reports import published
from reports.analysis.deltas import DIGITS, pair_all
from reports.analysis.inference import seed_interval
from reports.findings import Findings
from reports.page.register import Register
from reports.tables import signed

MOST_SEEDS = 20


def pair_variants(findings: Findings, register: Register) -> dict[str, Any]:
    """`arms` are [name, the paper's GLUE average]; `measured` are [words, readout, corpus, digits]. `pairs` are, in the
    order of the ladder, [variant and base as places of arms, place of what is measured, reason why nothing is compared,
    verdict, key and text of the mean difference, 95 % t interval or null, [[seed, variant's value, base's], …]].
    """
    rows = list(findings.group.rated_rows.values())
    printed = published.figure1()
    verdicts = {(delta.variant, delta.base, delta.measured): delta.verdict for delta in findings.deltas}
    measured: dict[tuple[str, str, str, int], int] = {}
    pairs = []
    for (there, base), (here, variant) in combinations(enumerate(rows), 2):
        for delta in pair_all(variant, base, findings.bars.tasks, findings.group):
            digits = DIGITS[delta.quantity]
            place = measured.setdefault((delta.measured, delta.quantity, delta.corpus, digits), len(measured))
            pair: list[Any] = [here, there, place, delta.reason]
            if delta.differences:
                ours, theirs = delta.arms[delta.variant], delta.arms[delta.base]
                mean = signed(sum(delta.differences.values()) / len(delta.differences), digits)
                title = f"{delta.variant} against {delta.base}: {delta.measured}"
                opened = register.number(mean, title, "mean over paired seeds", delta.ids)
                interval = seed_interval(delta.differences.values())
                pair += [
                    verdicts.get((delta.variant, delta.base, delta.measured), ""),
                    *(opened.key, mean, interval and [round(end, digits) for end in interval]),
                    [
                        [seed, round(ours[seed], digits), round(theirs[seed], digits)]
                        for seed in list(delta.differences)[:MOST_SEEDS]
                    ],
                ]
            pairs.append(pair)
    arms = [[row.name, printed[row.name].average if row.name in printed else None] for row in rows]
    return {"arms": arms, "measured": list(measured), "pairs": pairs}
