"""What in a log suggests that the metric, not the model, was improved. These are suspicions for a reader to check."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from statistics import median

from reports.logs.noise import JUDGEMENT, SEED, stem_of
from reports.logs.reading import Log, Run

BEST_OF_MANY = re.compile(
    r"\b(\d{2,}|\w+)[- ]?restarts?\b|\bbest[- ]of[- ](\d+|several|many)\b|\bpick(?:ed|s)? (?:the )?best\b", re.I
)
FITTED_ON_VALIDATION = re.compile(
    r"\bval(?:idation)?[- ]?(?:set)?[ -](?:ols|fit|tuned|optimi[sz]ed)|(?:fit|train)(?:ted|ned|ing)? on (?:the )?val",
    re.I,
)
BUDGET = re.compile(
    r"wall.?clock|time budget|\b\d+[- ]?min(?:ute)?s?\b.*\bbudget|\bbudget\b.*\b\d+[- ]?min|\b\d+-min baseline", re.I
)
UNIT_METRICS = ("acc", "accuracy", "f1", "auc", "auroc", "score", "precision", "recall")
MANY_LOOKS = 100
JUMP_IN_MEDIANS, JUMP_SHARE = 10.0, 0.2
FEWEST_TIES = 3


def suspicions_of_keep(log: Log, run: Run) -> list[str]:
    """Return what is suspicious about one kept run."""
    found = []
    text = run.description
    if SEED.search(text) and not JUDGEMENT.sub(" ", stem_of(text)).strip():
        found.append("only the seed changed")
    if BEST_OF_MANY.search(text):
        found.append("the best of many by the metric itself")
    if FITTED_ON_VALIDATION.search(text):
        found.append("fitted on the validation set")
    if BUDGET.search(text):
        found.append("the budget changed")
    if _at_bound(log, run.value):
        found.append("the metric is at its bound")
    return found


def _at_bound(log: Log, value: float | None) -> bool:
    if log.lower_is_better:
        return value == 0
    is_share = any(name in log.metric.lower() for name in UNIT_METRICS)
    values = [run.value for run in log.measured if run.value is not None]
    return is_share and value == (1.0 if max(values, default=0) <= 1 else 100.0)


def suspicions(log: Log, kept_lines: Sequence[int]) -> list[str]:
    """Return what is suspicious about a whole log."""
    found = []
    if len(log.measured) >= MANY_LOOKS:
        found.append(
            f"one development set decided {len(log.measured)} times: no seed cures that the best suits this set; "
            "measure the final state on data that no run saw"
        )
    kept = [run for run in log.measured if run.line in set(kept_lines)]
    values = Counter(run.value for run in kept)
    best = (min if log.lower_is_better else max)((run.value for run in kept if run.value is not None), default=None)
    if values[best] >= FEWEST_TIES:
        found.append(f"{values[best]} kept runs have the best value {best:g}: the metric may be at a ceiling")
    found += _jumps(log, kept)
    return found


def _jumps(log: Log, kept: Sequence[Run]) -> list[str]:
    """Return kept gains that are far larger than those before: the metric, the data or the budget may have changed."""
    gains, found = list[float](), list[int]()
    best = math.inf
    for run in kept:
        value = log.sign * float(run.value or 0.0)
        gain = best - value
        usual = median(gains) if len(gains) >= 3 else None
        if usual and gain > JUMP_IN_MEDIANS * usual and gain > JUMP_SHARE * abs(best):
            found.append(run.line)
        if 0 < gain < math.inf:
            gains.append(gain)
        best = min(best, value)
    if not found:
        return []
    lines = ", ".join(map(str, found[:4]))
    return [f"kept gains far above those before (line {lines}): check that metric, data and budget are still the same"]
