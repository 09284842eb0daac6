"""Trackers: TensorBoard and Weights & Biases show runs while they work.

A worker whose environment names a tracker sends it what it writes to metrics.jsonl, and the scores of trials, tasks and
readouts. Nothing is read back: records and ids do not depend on a tracker, and a run goes on without one that fails.
After a kill a run goes on from its last checkpoint. TensorBoard hides what the killed process sent after it; in W&B
these steps may be there twice.

Both write below RUNS/tracking and ask no network, unless WANDB_MODE says so. Later:
`wandb sync RUNS/tracking/wandb/offline-run-*`, `tensorboard --logdir RUNS/tracking/tensorboard`.
"""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from neobert.errors import MissingData
from neobert.identity import plain
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile
from neobert.runs.work import Part

logger = logging.getLogger(__name__)

TrackerName = Literal["tensorboard", "wandb"]
TRACKERS: tuple[TrackerName, ...] = get_args(TrackerName)
VARIABLE = "NEOBERT_TRACK"
"""Environment variable of workers: the tracker of their runs."""
PROJECT = "neobert-ablations"

Values = dict[str, float]


def require_tracker(name: str) -> None:
    """Raise MissingData unless the package of a tracker is installed."""
    if find_spec(name) is None:
        raise MissingData(f"--track {name} needs {name}, which is not installed: pip install {name}")


class Session(Protocol):
    """A run that is open in a tracker, as wandb's runs are."""

    def log(self, values: Values, step: int) -> object: ...
    def finish(self) -> object: ...


class _TensorBoard:
    """A run in TensorBoard. What was logged there for `first_step` and later is hidden."""

    def __init__(self, tracker: "TrackedPart", folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / tracker.part.id), purge_step=first_step)

    def log(self, values: Values, step: int) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()  # steps before a checkpoint are not repeated after a kill

    def finish(self) -> None:
        self._writer.close()


def _open_wandb(tracker: "TrackedPart", folder: Path, first_step: int) -> Session:
    """Open a run of Weights & Biases, which goes on under its id if it is there."""
    import wandb

    run_file = tracker.run_file
    owner = run_file.owner or run_file.id
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True)
    return wandb.init(
        name=f"{owner} {tracker.part.title.removesuffix(tracker.part.id).strip()} {tracker.part.id}",
        group=f"{owner} {run_file.run.title}",
        config={"run": plain(run_file.run), **{key: run_file.labels.get(key) for key in ("scale", "data")}},
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=tracker.part.id,
        dir=str(folder.parent),
        mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
        resume="allow",
        reinit="create_new",
        settings=settings,
    )


OPENERS: Mapping[str, Callable[..., Session]] = {"tensorboard": _TensorBoard, "wandb": _open_wandb}


@dataclass
class TrackedPart:
    """A part of a run in the tracker that the environment names, under the part's id after every restart.

    It is opened at the first values. Without a name it takes everything and does nothing.
    """

    layout: Layout
    run_file: RunFile
    part: Part
    name: str | None = field(default_factory=lambda: os.environ.get(VARIABLE))
    _session: Session | None = None

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Send the numbers of a step. Nested ones are named by their paths, such as phase_seconds/forward."""
        numbers = _numbers(values)
        if self.name is not None and numbers:
            self._attempt(lambda: self._opened(step).log(numbers, step=step))

    def close(self) -> None:
        """Send what is pending and end the session."""
        if self._session is not None:
            self._attempt(self._session.finish)
        self._session = None

    def _attempt(self, action: Callable[[], object]) -> None:
        """Act, with what trackers print in a log file, because a command's stdout may be JSON."""
        try:
            self.layout.tracking.mkdir(parents=True, exist_ok=True)
            with (self.layout.tracking / f"{self.name}.log").open("a") as log, redirect_stdout(log):
                action()
        except Exception as error:  # whatever a tracker raises, the run goes on
            logger.warning(f"{self.name} takes no more of {self.part.title}: {error}")
            self.name = self._session = None

    def _opened(self, first_step: int) -> Session:
        if self._session is None:
            assert self.name is not None
            self._session = OPENERS[self.name](self, self.layout.tracking / self.name, first_step)
        return self._session


def track_scores(layout: Layout, run_file: RunFile, part: Part) -> None:
    """Send the scores of a published part: a trial's at each evaluated step, others as step 0."""
    tracker = TrackedPart(layout, run_file, part)
    if tracker.name is None or run_file.run.job == "pretrain":
        return  # training has sent its steps
    scores = part.read(part.record).get("scores") or {}
    curve = scores.get("curve")
    for step, values in [(step, {"score": score}) for step, score in curve] if curve else [(0, scores)]:
        tracker.log(step, values)
    tracker.close()


def _numbers(values: Mapping[str, Any], before: str = "") -> Values:
    """Flatten the numbers of nested mappings."""
    found: Values = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _numbers(value, f"{before}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{before}{name}"] = value
    return found
