"""The trials of a pruned study against each other: curves on disk, who is beaten, and what it saved. Torch-free."""

from dataclasses import dataclass
from typing import Any

from neobert.files import append_line, mend_lines, read_lines
from neobert.glue.pruning import Curve, is_beaten, rung_reached
from neobert.grid.points import Report
from neobert.layout import Layout
from neobert.progress import TrialFiles, trial_files
from neobert.records import is_published, read_record
from neobert.specifications import GlueStudy

CURVE_KEYS = ("claim", "share", "score")


class TrialPruned(Exception):
    """A trial is beaten at a rung and ends; its pruned record is its result."""

    def __init__(self, rung: float) -> None:
        super().__init__(f"beaten at {rung:.0%} of its course")
        self.rung = rung


class Competition:
    """The report of a trial of a pruned study: notes each evaluation where the others see it, and ends it if beaten."""

    def __init__(self, files: TrialFiles, claim: int, course_steps: int, report: Report) -> None:
        assert files.study.pruning is not None
        self.files = files
        self.pruning = files.study.pruning
        self.claim = claim
        self.course_steps = course_steps
        self.report = report
        self.curve: list[tuple[int, float | None]] = []
        mend_lines(files.curve, *CURVE_KEYS)

    def __call__(self, step: int, score: float | None) -> None:
        """Note an evaluation.

        Raises:
            TrialPruned: the trial stands at a rung and is beaten there.
        """
        self.report(step, score)
        before = self.curve[-1][0] if self.curve else 0
        self.curve.append((step, score))
        line = {"claim": self.claim, "share": step / self.course_steps, "score": score}
        append_line(self.files.curve, line)
        rung = rung_reached(self.pruning, before / self.course_steps, step / self.course_steps)
        if rung is None:
            return
        own = Curve([(step / self.course_steps, score) for step, score in self.curve], has_ended=False)
        others = [files for files in trial_files(self.files.layout, self.files.study) if files.id != self.files.id]
        curves = [curve for files in others if (curve := curve_of(files)) is not None]
        if is_beaten(self.pruning, rung, own, curves):
            raise TrialPruned(rung)

    @property
    def outcome(self) -> dict[str, Any]:
        """What a pruned record says: the steps spent, the best score so far, and the curve."""
        defined = [score for _, score in self.curve if score is not None]
        curve = [list(pair) for pair in self.curve]
        scores: dict[str, Any] = {"score": max(defined, default=None), "metrics": {}, "curve": curve}
        return {"state": "pruned", "scores": scores, "steps": self.curve[-1][0]}


def curve_of(files: TrialFiles) -> Curve | None:
    """The curve of a trial: from its record, or as far as its last owner has come; None where nothing is known."""
    if files.published is not None:
        record = read_record(files.published)
        if "course_steps" not in record:
            return None  # of a version that did not note how long a course is
        shares = [(step / record["course_steps"], score) for step, score in record["scores"]["curve"]]
        return Curve(shares, has_ended=record["state"] == "done")
    lines = list(read_lines(files.curve, *CURVE_KEYS))
    newest = max((line["claim"] for line in lines), default=None)
    shares = [(line["share"], line["score"]) for line in lines if line["claim"] == newest]
    return Curve(shares, has_ended=False) if shares else None


@dataclass(frozen=True)
class Savings:
    """What pruning a study cost and saved, in optimizer steps.

    `full_steps` and `full_best` are those of the whole grid where every point is recorded without pruning too, else
    None; `course_steps` is what all courses would take without patience, an upper bound of `full_steps`.
    """

    points: int
    recorded: int
    pruned: int
    steps: int
    course_steps: int
    best: float | None
    full_steps: int | None
    full_best: float | None

    def __str__(self) -> str:
        share = f"{self.steps / self.course_steps:.1%} of all courses" if self.course_steps else "nothing yet"
        told = f"{self.recorded} of {self.points} points run, {self.pruned} of them pruned; {self.steps} steps, {share}"
        if self.full_steps:
            told += f", {self.steps / self.full_steps:.1%} of the full grid's steps"
        told += f"; best score {_shown(self.best)}"
        return told + (f", of the full grid {_shown(self.full_best)}" if self.full_steps else "")


def savings(layout: Layout, study: GlueStudy) -> Savings:
    """What pruning saved in a study so far."""
    everything = trial_files(layout, study)
    own = [read_record(files.published) for files in everything if files.published is not None]
    full = [read_record(files.record) for files in everything if is_published(files.record)]
    is_full = len(full) == len(everything)
    return Savings(
        points=len(everything),
        recorded=len(own),
        pruned=sum(record["state"] == "pruned" for record in own),
        steps=sum(record["steps"] for record in own),
        course_steps=sum(record.get("course_steps", record["steps"]) for record in own),
        best=_best([record for record in own if record["state"] == "done"]),
        full_steps=sum(record["steps"] for record in full) if is_full else None,
        full_best=_best(full) if is_full else None,
    )


def _best(records: list[dict[str, Any]]) -> float | None:
    scores = [record["scores"]["score"] for record in records]
    return max((score for score in scores if score is not None), default=None)


def _shown(score: float | None) -> str:
    return "—" if score is None else f"{score:.4f}"
