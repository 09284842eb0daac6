"""The progress of a fine-tuning trial on disk: a trial that takes hours goes on after a kill or a job's time limit."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neobert.glue.finetuning import Course, Evaluation, Progress
from neobert.glue.metrics import Scores
from neobert.runs.claims import Claim
from neobert.training import checkpoints

SAVE_SECONDS = 600
"""Progress is saved at the first evaluation after so long. Shorter trials, which are most, save nothing."""
BEST, PREDICTIONS = "best/", "predictions/"


class SavedProgress:
    """Keeps the progress of a claimed trial in a folder, in the form of a checkpoint of pre-training."""

    def __init__(self, folder: Path, claim: Claim) -> None:
        self.folder = folder
        self.claim = claim
        self.saved_step = 0
        self._last = time.monotonic()

    def load(self) -> Progress | None:
        """Return the newest progress that is intact, None without any."""
        checkpoint = checkpoints.newest(self.folder)
        if checkpoint is None:
            return None
        tensors, state = checkpoint.weights(), checkpoint.state()
        course = Course(
            evaluations=[Evaluation(**each) for each in state["evaluations"]],
            best=Scores(**state["best"]),
            best_step=state["best_step"],
            predictions={name: tensor.numpy() for name, tensor in _below(PREDICTIONS, tensors).items()},
            weights=_below(BEST, tensors),
        )
        now = {name: tensor for name, tensor in tensors.items() if not name.startswith((BEST, PREDICTIONS))}
        return Progress(course, now, checkpoint.optimizer())

    def keep(self, progress: Callable[[], Progress]) -> None:
        """Save what `progress` returns if the last time was long ago. Raises ClaimLost if the trial has another owner
        now."""
        if time.monotonic() - self._last >= SAVE_SECONDS:
            self._save(progress())
            self._last = time.monotonic()

    def _save(self, progress: Progress) -> None:
        course = progress.course
        assert course.best is not None
        predictions = {name: torch.from_numpy(values) for name, values in course.predictions.items()}
        tensors = {**progress.weights, **_above(BEST, course.weights), **_above(PREDICTIONS, predictions)}
        state: dict[str, Any] = {
            "evaluations": [asdict(each) for each in course.evaluations],
            "best": asdict(course.best),
            "best_step": course.best_step,
        }
        checkpoints.save(self.folder, course.step, _on_host(tensors), _on_host(progress.optimizer), state, self.claim)
        checkpoints.prune(self.folder, frozenset(), course.step)
        self.saved_step = course.step


def _below(place: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(place): tensor for name, tensor in tensors.items() if name.startswith(place)}


def _above(place: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{place}{name}": tensor for name, tensor in tensors.items()}


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
