"""The verdict on one of several paired comparisons, while seeds are added: better, worse, equivalent or not shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from neobert.referee.evidence import e_value, online_threshold
from neobert.referee.session import Session
from neobert.referee.session import Verdict as Answer

Verdict = Literal["better", "worse", "equivalent", "not shown"]
FEWEST_PAIRS = 3
"""Two differences tell too little of their spread to call a comparison futile."""
LARGE_T = 1e6


@dataclass(frozen=True)
class Decision:
    """What a comparison came to, and the number of pairs that it took."""

    verdict: Verdict
    pairs: int


def least_pairs(level: float) -> int:
    """Return the number of pairs at which a comparison is looked at first: with fewer, no difference is large enough
    for a verdict at this level."""
    threshold, pairs = online_threshold(1, 0, level, changes=1), FEWEST_PAIRS
    while e_value(LARGE_T, pairs - 1, 1 / pairs) < threshold:
        pairs += 1
    return pairs


def decide(
    parent: Sequence[float], child: Sequence[float], *, level: float, margin: float, most: int
) -> Decision | None:
    """Return the verdict at the first number of pairs that allows one; None if the losses so far allow none.

    The losses at one place of both lists share a seed. The answer to more losses is the same if fewer had one, so a
    command that was killed gets it again from its records.

    Four sessions of one change ask whether the child is better, is worse, and is within the margin on either side.
    Each spends half of its alpha, `level`, on its first change. Whatever the true difference is, at most two of the
    four may answer falsely, so a false verdict has at most the probability `level`, at whatever number of pairs the
    comparison ends. Without a difference these are better and worse; with one of the margin or more, its other sign
    and one side of the margin. Levels of several comparisons add up.

    Args:
        level: largest probability of a false better, worse or equivalent.
        margin: differences below it count as equivalent.
        most: number of pairs after which a comparison is not shown.
    """
    old, new = np.asarray(parent, float), np.asarray(child, float)
    questions = {
        "better": (old, new),
        "worse": (new, old),
        "hardly worse": (old + margin, new),
        "hardly better": (new + margin, old),
    }
    sessions = {name: Session(level, paired=True, changes=1, most_seeds=most) for name in questions}
    answers: dict[str, Answer] = dict.fromkeys(questions, "more")
    for pairs in range(least_pairs(level), min(len(old), len(new), most) + 1):
        for name, (above, below) in questions.items():
            if answers[name] == "more":
                answers[name] = sessions[name].judge(above[:pairs].tolist(), below[:pairs].tolist())
        if (verdict := _verdict(answers)) is not None:
            return Decision(verdict, pairs)
    return None


def _verdict(answers: dict[str, Answer]) -> Verdict | None:
    if answers["better"] == "keep":
        return "better"
    if answers["worse"] == "keep":
        return "worse"
    within = {answers["hardly worse"], answers["hardly better"]}
    if within == {"keep"}:
        return "equivalent"
    is_open = "more" in (answers["better"], answers["worse"]) or "discard" not in within
    return None if is_open else "not shown"
