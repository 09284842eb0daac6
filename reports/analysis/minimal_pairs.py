"""Minimal pairs of BLiMP by phenomenon, beside what people and GPT-2 reach."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from statistics import fmean

import pandas as pd

from neobert.data.blimp import PARADIGMS, Paradigm
from neobert.kinds.readouts import BLIMP
from reports.notes import warnings
from reports.scores import POINTS_OF_SCORE, Group
from reports.tables import Column, Table, make_table, rounded

NOTES = (
    "Share of pairs in which the acceptable sentence has the higher pseudo-log-likelihood, ties counting half, in "
    "points: mean over the paradigms of a phenomenon and over seeds. Chance is 50.",
    "People: share of single judgements that agree; GPT-2: by the probability of whole sentences, on all 1,000 pairs "
    "of a paradigm (raw_results/summary of github.com/alexwarstadt/blimp).",
)


@dataclass(frozen=True)
class _Line:
    """A phenomenon, or all: its paradigms, the accuracies of arms in points, and the records behind them."""

    name: str
    paradigms: Sequence[Paradigm]
    accuracies: Mapping[str, float]
    ids: tuple[str, ...]

    def accuracy(self, arm: str) -> float:
        return self.accuracies[arm]

    def mean(self, of_paradigm: Callable[[Paradigm], float]) -> float:
        """Return the mean over the paradigms in points."""
        return POINTS_OF_SCORE * fmean(map(of_paradigm, self.paradigms))


def minimal_pairs_table(group: Group) -> Table | None:
    """Return a table with a line per phenomenon and one for all, and a column per arm; None without records. Of arms
    that read other pairs than most, there is none."""
    answers = group.answers_to(BLIMP)
    if answers.empty:
        return None
    arms = list(dict.fromkeys(answers.arm))
    phenomena = dict.fromkeys(each.phenomenon for each in PARADIGMS.values())
    lines = [
        _Line(
            name.replace("_", " "),
            [each for each in PARADIGMS.values() if each.phenomenon == name],
            _accuracies(answers, name),
            tuple(answers.id),
        )
        for name in phenomena
    ]
    lines.append(_Line("all", [*PARADIGMS.values()], _accuracies(answers, None), tuple(answers.id)))
    columns: list[Column[_Line]] = [
        Column("Phenomenon", "phenomenon", lambda line: line.name),
        Column("Paradigms", "paradigms", lambda line: len(line.paradigms), side="r"),
        Column("People", "people", lambda line: line.mean(lambda each: each.human), rounded(1), "r"),
        Column("GPT-2", "gpt2", lambda line: line.mean(lambda each: each.gpt2), rounded(1), "r"),
        *(Column(arm, arm, partial(_Line.accuracy, arm=arm), rounded(1), "r") for arm in arms),
    ]
    return make_table(
        f"Minimal pairs of BLiMP by phenomenon (scale {group.scale}, data {group.data})",
        columns,
        lines,
        (*warnings(group), *NOTES),
        records=lambda line: line.ids,
        rule_key=lambda line: line.name == "all",
    )


def _accuracies(answers: pd.DataFrame, phenomenon: str | None) -> dict[str, float]:
    """Return the mean over seeds of each arm in points, of one phenomenon or of all."""
    values = [each.value if phenomenon is None else each.groups.get(phenomenon, nan) for each in answers.answer]
    by_arm = answers.assign(value=values).groupby("arm", sort=False).value.mean()
    return {str(arm): POINTS_OF_SCORE * float(mean) for arm, mean in by_arm.items()}
