"""A live session of changes: keep, discard, or run more seeds, with the false keeps of the whole session controlled."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from neobert.files import checksummed, json_bytes, read_checksummed, replace_file
from neobert.referee.evidence import TAIL_DEGREES, e_value, online_threshold, power

Verdict = Literal["keep", "discard", "more"]
Side = Literal["parent", "child", "both"]
FUTILE = 0.1
"""A change is discarded once the chance that more seeds show it is below this, with a gain of one standard error more
than estimated. Discarding early never adds false keeps."""


@dataclass(frozen=True)
class Settings:
    """What a session was begun with; its file refuses others."""

    alpha: float
    spread: float | None
    runs_behind: int | None
    paired: bool
    changes: int
    most_seeds: int


@dataclass
class Change:
    """One change: all losses of its parent and of itself so far, how many of the parent's are from before the change,
    the evidence for a gain over the others, the last verdict, and which side to run next."""

    parent: list[float]
    child: list[float]
    before: int
    e_value: float
    verdict: Verdict
    next_run: Side


class Session:
    """Judges one change after another. Losses are lower-is-better: negate an accuracy.

    Of the changes that it keeps over its whole life, a share of at most `alpha` is expected to be no gain (e-LOND),
    whatever the loop tries next. Earlier runs of a parent only screen: one run of a change that they show to be futile
    is enough to discard it. A change is kept against runs of its parent that were made since the change began. So
    neither the luck for which a parent was selected nor a drift of the machine makes a change look better.

    Parameters:
        alpha: expected share of false keeps, over the whole session.
        spread: standard deviation of single runs of one configuration, if it is known from `runs_behind` runs. Then one
            run of each side can be judged. Without it, two runs of either side at least are needed.
        paired: the losses at one place of both lists share a seed; only their differences count.
        changes: about how many changes the session will judge. More are judged too, at a stricter level.
        most_seeds: a change that so many runs of both sides do not show is discarded.
        path: file with the state, written before each verdict is returned. A session with the same file goes on where
            the last one was killed. Only one process may use it.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        spread: float | None = None,
        *,
        runs_behind: int | None = None,
        paired: bool = False,
        changes: int = 100,
        most_seeds: int = 10,
        path: Path | str | None = None,
    ) -> None:
        self.settings = Settings(alpha, spread, runs_behind, paired, changes, most_seeds)
        _require_sound(self.settings)
        self.path = None if path is None else Path(path)
        self.changes: list[Change] = []
        if self.path is not None and self.path.exists():
            self._restore(self.path)

    @property
    def kept(self) -> int:
        """Number of changes kept so far."""
        return sum(change.verdict == "keep" for change in self.changes)

    def judge(self, parent_losses: Sequence[float], child_losses: Sequence[float]) -> Verdict:
        """Return whether a change is kept, discarded, or needs another run, of the side that `next_run` names.

        After "more", call it with the same losses and the new ones after them. Losses that do not begin with those of
        the last call are a new change; the last one then counts as judged. After a kill, the last call is answered as
        before.

        Raises:
            ValueError: a list is empty or has a number that is not finite, or paired lists differ in length.
        """
        parent, child = _losses(parent_losses, "parent"), _losses(child_losses, "child")
        if self.settings.paired and len(parent) != len(child):
            raise ValueError(f"paired losses need as many of the parent ({len(parent)}) as of the child ({len(child)})")
        last = self.changes[-1] if self.changes else None
        if last is not None and (last.parent, last.child) == (parent, child):
            return last.verdict
        before = 0 if self.settings.paired else len(parent)
        if (
            last is not None
            and last.verdict == "more"
            and _extends(parent, last.parent)
            and _extends(child, last.child)
        ):
            before = self.changes.pop().before
        self.changes.append(self._decide(parent, child, before))
        self._save()
        return self.changes[-1].verdict

    @property
    def next_run(self) -> Side:
        """Which side to run after "more": the parent, the child, or both with one seed if paired."""
        return self.changes[-1].next_run if self.changes else "both"

    def _decide(self, parent: list[float], child: list[float], before: int) -> Change:
        settings, fresh = self.settings, parent[before:]
        threshold = online_threshold(len(self.changes) + 1, self.kept, settings.alpha, settings.changes)
        evidence = self._evidence(fresh, child)
        is_promising = self._evidence(parent, child) >= threshold
        side: Side = "child" if len(child) <= (len(fresh) if is_promising else len(parent)) else "parent"
        if len(child) >= settings.most_seeds:
            side = "parent"
        is_spent = min(len(fresh), len(child)) >= settings.most_seeds
        verdict: Verdict = "more"
        if evidence >= threshold:
            verdict = "keep"
        elif is_spent or (not is_promising and self._is_futile(parent, child, threshold)):
            verdict = "discard"
        return Change(parent, child, before, evidence, verdict, "both" if settings.paired else side)

    def _evidence(self, parent: list[float], child: list[float]) -> float:
        found = self._estimate(parent, child)
        if found is None:
            return 1.0
        gain, spread, degrees, variance = found
        error = max(spread * math.sqrt(variance), 1e-9 * abs(gain), 1e-300)
        return float(e_value(min(gain / error, 1e6), degrees, variance))

    def _is_futile(self, parent: list[float], child: list[float], threshold: float) -> bool:
        """Return whether more runs would hardly show a gain of one standard error more than estimated."""
        settings, found = self.settings, self._estimate(parent, child)
        if found is None:
            return False
        gain, spread, degrees, variance = found
        error = spread * math.sqrt(variance)
        sides = 1 if settings.paired else 2
        degrees += sides * max(0, settings.most_seeds - min(len(parent), len(child)))
        hopeful = (gain + error) / max(spread, 1e-300)
        return power(hopeful, threshold, degrees, sides / settings.most_seeds) < FUTILE

    def _estimate(self, parent: list[float], child: list[float]) -> tuple[float, float, float, float] | None:
        """Return (gain, spread, degrees of freedom, variance of the gain in units of the spread's square); None if
        nothing tells the spread yet. A spread from elsewhere is pooled with that of the runs."""
        settings = self.settings
        old, new = np.array(parent), np.array(child)
        if not len(old):
            return None
        if settings.paired:
            n, differences = len(old), old - new
            return (float(differences.mean()), float(differences.std(ddof=1)), n - 1.0, 1 / n) if n > 1 else None
        own = len(old) + len(new) - 2.0
        known = 0.0 if settings.runs_behind is None else min(TAIL_DEGREES, settings.runs_behind - 1)
        if own + known == 0:
            return None
        squares = sum(float(((each - each.mean()) ** 2).sum()) for each in (old, new))
        squares += known * (settings.spread or 0.0) ** 2
        variance = 1 / len(old) + 1 / len(new)
        return float(old.mean() - new.mean()), math.sqrt(squares / (own + known)), own + known, variance

    def _save(self) -> None:
        if self.path is not None:
            content = {"settings": asdict(self.settings), "changes": [asdict(change) for change in self.changes]}
            replace_file(self.path, json_bytes(checksummed(content)))

    def _restore(self, path: Path) -> None:
        content: dict[str, Any] = read_checksummed(path)
        was, now = content["settings"], asdict(self.settings)
        differing = [name for name in now if was.get(name) != now[name]]
        if differing:
            name = differing[0]
            raise ValueError(f"{path} was begun with {name} {was.get(name)}, not {now[name]}: name another file")
        self.changes = [Change(**each) for each in content["changes"]]


def _require_sound(settings: Settings) -> None:
    if not 0 < settings.alpha < 1:
        raise ValueError(f"alpha {settings.alpha}: a share between 0 and 1")
    if (settings.spread is None) != (settings.runs_behind is None):
        raise ValueError("spread and runs_behind belong together: a deviation, and from how many runs it is known")
    if settings.spread is not None and not (settings.spread > 0 and math.isfinite(settings.spread)):
        raise ValueError(f"spread {settings.spread}: a number above 0")
    if settings.runs_behind is not None and settings.runs_behind < 2:
        raise ValueError(f"runs_behind {settings.runs_behind}: two runs at least have a spread")
    if settings.paired and settings.spread is not None:
        raise ValueError("paired differences have their own spread: leave spread out")
    if settings.changes < 1 or settings.most_seeds < 2:
        raise ValueError("changes is 1 or more, most_seeds 2 or more")


def _losses(values: Sequence[float], whose: str) -> list[float]:
    losses = [float(value) for value in values]
    if not losses or not all(map(math.isfinite, losses)):
        raise ValueError(f"the losses of the {whose} are {losses}: one finite number per run, for a crash none")
    return losses


def _extends(longer: Sequence[float], shorter: Sequence[float]) -> bool:
    return list(longer[: len(shorter)]) == list(shorter)
