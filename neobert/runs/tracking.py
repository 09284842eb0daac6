"""Follow runs into a tracker: TensorBoard, Weights & Biases or trackio.

python -m neobert.runs.tracking --runs runs --track wandb                             send what is left of every run
python -m neobert.runs.tracking --runs runs --track wandb --follow pretraining/<id>   as it grows, until stopped

Commands that train start the second form beside their workers, as a process of its own: no tracker slows or fails a
run. It reads what runs write anyway, and sends a step once the next one is written or the run is done. What was sent
stands in RUNS/tracking/<id>.<tracker>.json when a session is closed. What an interrupted session left is dropped from
the tracker's local files and sent again, so that each step is there once.

All three write below RUNS/tracking and ask no network, unless WANDB_MODE, TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say
so. Later: `wandb sync RUNS/tracking/wandb/offline-run-*`, `tensorboard --logdir RUNS/tracking/tensorboard`, and with
TRACKIO_DIR=RUNS/tracking/trackio `trackio show` or `trackio sync`.
"""

import json
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from neobert.command_line import guarded, parser_from, refuse_no_folder
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED, DamagedFile, MissingData
from neobert.files import json_bytes, read_json, read_lines, replace_file
from neobert.identity import plain
from neobert.processes import StopRequest, end_with_parent, start_child
from neobert.runs.claims import Claim, acquire
from neobert.runs.index import Index
from neobert.runs.layout import Layout
from neobert.runs.records import read_sealed
from neobert.runs.run_file import read_run_file
from neobert.runs.work import Part

TrackerName = Literal["tensorboard", "trackio", "wandb"]
TRACKERS: tuple[TrackerName, ...] = get_args(TrackerName)
VARIABLE = "NEOBERT_TRACK"
"""Environment variable of jobs: the tracker to which the runs of their workers are sent."""
PROJECT = "neobert-ablations"
POLL_SECONDS = 5.0
GRACE_SECONDS = 30.0
"""How long a command waits for its follower to send the rest."""

NOTHING: Mapping[str, Any] = {"sent": -1, "sessions": (), "closed": True}
"""State of a run of which nothing was sent yet."""

Values = dict[str, float]


def require_tracker(name: str) -> None:
    """Raise MissingData unless the package of a tracker is installed."""
    if find_spec(name) is None:
        raise MissingData(f"--track {name} needs {name}, which is not installed: pip install {name}")


# Data to send


@dataclass(frozen=True)
class Tracked:
    """Part of a run as shown in a tracker: a training run, a trial, a task or a readout."""

    layout: Layout
    part: Part
    name: str
    group: str
    config: Mapping[str, Any]
    is_training: bool

    @property
    def id(self) -> str:
        """Id of the run in the tracker: that of the part, the same after every restart."""
        return self.part.id

    def steps(self) -> Iterator[tuple[int, Values]]:
        """Yield each step that will not change any more and its values, in order."""
        if not self.is_training:
            yield from _scores(self.part)
            return
        folder, is_done = self.part.record.parent, self.part.is_done
        paths = [folder / "metrics.jsonl"] if is_done else sorted((folder / "attempts").glob("*/metrics.jsonl"))
        merged: dict[int, Values] = {}
        for path in paths:  # if several attempts did a step, the last one counts
            for line in read_lines(path, "step"):
                step = int(line["step"])  # may be fractional in a collected run
                merged.setdefault(step, {}).update(_numbers(line))
        for step in sorted(merged)[: None if is_done else -1]:
            merged[step].pop("step")
            yield step, merged[step]

    def stamp(self) -> object:
        """Return a value that stays equal until something new is written."""
        folder = self.part.record.parent
        attempts = (folder / "attempts").glob("*/metrics.jsonl") if self.is_training else ()
        return [(str(path), path.stat().st_size) for path in attempts], self.part.record.exists()


def tracked(layout: Layout, reference: str) -> list[Tracked]:
    """Return the parts of the run in a folder. Raises the same errors as `read_run_file`."""
    run_file = read_run_file(layout.root / reference)
    run, labels = run_file.run, run_file.labels
    of = run_file.owner or run.id
    config = {"run": plain(run), "scale": labels.get("scale"), "data": labels.get("data")}
    is_training, group = run.counted == "steps", f"{of} {run.title}"
    return [
        Tracked(layout, part, f"{of} {part.title.removesuffix(part.id).strip()} {part.id}", group, config, is_training)
        for part in run.parts(layout)
    ]


def _numbers(values: Mapping[str, Any], before: str = "") -> Values:
    """Flatten the numbers of nested mappings by their paths, such as loss or phase_seconds/forward."""
    found: Values = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _numbers(value, f"{before}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{before}{name}"] = value
    return found


def _scores(part: Part) -> Iterator[tuple[int, Values]]:
    """Yield a trial's score at each evaluated step; for other parts, their scores as step 0."""
    scores = read_sealed(part.record).get("scores") if part.is_done else None
    if not scores:
        return
    if curve := scores.get("curve"):
        yield from ((step, {"score": score}) for step, score in curve if score is not None)
    else:
        yield 0, _numbers(scores)


# Trackers


@dataclass
class Tracker(ABC):
    """One run in a tracker, open between `open` and `close`. `place` is the folder of the tracker's local files."""

    place: Path
    run: Tracked

    @abstractmethod
    def open(self) -> int | None:
        """Start or resume a session. Returns the last step that the tracker reports, None if it reports none."""

    @abstractmethod
    def log(self, step: int, values: Values) -> None:
        """Send the values of one step."""

    @abstractmethod
    def close(self) -> None:
        """Send all pending values and end the session."""

    def flush(self) -> None:  # noqa: B027 (most have nothing to do)
        """Make the values sent so far visible."""

    @abstractmethod
    def drop(self, closed: Sequence[str]) -> bool:
        """Remove the data of sessions that were never closed. Returns whether the `closed` ones are kept."""

    @abstractmethod
    def sessions(self) -> list[str]:
        """Return the names of the existing sessions."""


class _OneSessionAFile(Tracker):
    """Tracker that writes a new file or folder in each session."""

    @abstractmethod
    def paths(self) -> Iterator[Path]:
        """Yield the files or folders of the run's sessions."""

    def sessions(self) -> list[str]:
        return sorted(path.name for path in self.paths())

    def drop(self, closed: Sequence[str]) -> bool:
        for path in [path for path in self.paths() if path.name not in closed]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return True


class TensorBoard(_OneSessionAFile):
    """One folder of event files per run. Written by TensorBoard itself, without torch."""

    def paths(self) -> Iterator[Path]:
        return (self.place / self.run.id).glob("events.out.*")

    def open(self) -> int | None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = EventFileWriter(str(self.place / self.run.id))
        return None

    def log(self, step: int, values: Values) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self.writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases(_OneSessionAFile):
    """One folder per session; offline unless WANDB_MODE is set."""

    def paths(self) -> Iterator[Path]:
        return self.place.glob(f"*run-*-{self.run.id}")

    def open(self) -> int | None:
        import wandb

        self.place.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE", "offline")
        self.session = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.run.id,
            name=self.run.name,
            group=self.run.group,
            config=dict(self.run.config),
            dir=str(self.place.parent),
            mode=mode,  # type: ignore[arg-type]
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True
            ),
        )
        return self.session.step - 1 if mode == "online" and self.session.resumed else None

    def log(self, step: int, values: Values) -> None:
        self.session.log(values, step=step)

    def close(self) -> None:
        self.session.finish()


class Trackio(Tracker):
    """trackio's database. It stores a run as a whole: after a session that was not closed, the run is sent again."""

    def _runs(self) -> list[Any]:
        os.environ.setdefault("TRACKIO_DIR", str(self.place))
        import trackio

        try:
            return [run for run in trackio.Api().runs(PROJECT) if run.name == self.run.name]  # found by name
        except ValueError:  # there is no such project yet
            return []

    def sessions(self) -> list[str]:
        return [run.name for run in self._runs()]

    def drop(self, closed: Sequence[str]) -> bool:
        for run in self._runs():
            run.delete()
        return False

    def open(self) -> int | None:
        os.environ.setdefault("TRACKIO_DIR", str(self.place))
        import trackio

        self.session = trackio.init(
            PROJECT,
            name=self.run.name,
            group=self.run.group,
            config=dict(self.run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return None

    def log(self, step: int, values: Values) -> None:
        self.session.log(values, step=step)

    def close(self) -> None:
        self.session.finish()


CLASSES: Mapping[TrackerName, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}


# Following


@dataclass
class _Session:
    """Open session of a run, the claim on it, and the last step that was sent."""

    tracker: Tracker
    claim: ExitStack
    sent: int


@dataclass
class Follower:
    """Sends the steps of parts to a tracker as they are written. A claim keeps other processes from doing the same."""

    layout: Layout
    tracker: TrackerName
    _seen: dict[str, object] = field(default_factory=dict)
    _open: dict[str, _Session] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def send(self, run: Tracked) -> int:
        """Send the new steps of a part and return how many there were.

        If the tracker raises an error, it is printed once and the part is skipped from then on.
        """
        stamp = run.stamp()
        if run.id in self.failed or self._seen.get(run.id) == stamp:
            return 0
        try:
            count = self._send(run)
        except Exception as error:  # no error of a tracker may stop the run
            self.failed.add(run.id)
            if run.id in self._open:
                self._open.pop(run.id).claim.close()
            print(f"{self.tracker} took no more of {run.name}: {error}", file=sys.stderr, flush=True)
            return 0
        if count is None:
            return 0
        self._seen[run.id] = stamp
        return count

    def _send(self, run: Tracked) -> int | None:
        """Send the new steps of a part and return how many there were; None if another process follows it."""
        is_done = run.part.is_done  # asked first: steps that are written after it are not missed
        steps = list(run.steps())
        session = self._open.get(run.id)
        if session is None:
            state = self._state(run)
            if not steps or (state["closed"] and steps[-1][0] <= state["sent"]):
                return 0
            claim = acquire(self.layout.claims(f"tracking-{self.tracker}-{run.id}"))
            if claim is None:
                return None
            self._open[run.id] = session = self._begin(run, claim)
        left = [(step, values) for step, values in steps if step > session.sent]
        for step, values in left:
            session.tracker.log(step, values)
            session.sent = step
        session.tracker.flush()
        if is_done:
            self.close(run)
        return len(left)

    def _begin(self, run: Tracked, claim: Claim) -> _Session:
        with ExitStack() as stack:
            stack.enter_context(claim)
            tracker, state = CLASSES[self.tracker](self.place, run), self._state(run)
            if not state["closed"] or set(tracker.sessions()) - set(state["sessions"]):
                state = state if tracker.drop(state["sessions"]) else NOTHING
            self._write(run, {**state, "closed": False})
            held = tracker.open()
            return _Session(tracker, stack.pop_all(), max(state["sent"], -1 if held is None else held))

    def close(self, run: Tracked) -> None:
        """End the session of a part, if it is open, and record what was sent."""
        if run.id in self._open:
            session = self._open.pop(run.id)
            with session.claim:
                session.tracker.close()
                self._write(run, {"sent": session.sent, "sessions": session.tracker.sessions(), "closed": True})

    @property
    def place(self) -> Path:
        """Folder of the tracker's files."""
        return self.layout.tracking / self.tracker

    def _path(self, run: Tracked) -> Path:
        return self.layout.tracking / f"{run.id}.{self.tracker}.json"

    def _state(self, run: Tracked) -> Mapping[str, Any]:
        """Return the state recorded when the last session was opened or closed. A torn file counts as none."""
        try:
            return {**NOTHING, **read_json(self._path(run))}
        except (FileNotFoundError, DamagedFile):
            return NOTHING

    def _write(self, run: Tracked, state: Mapping[str, Any]) -> None:
        replace_file(self._path(run), json_bytes(dict(state)))


def follow(layout: Layout, tracker: TrackerName, references: Sequence[str], stop: StopRequest, *, once: bool) -> int:
    """Send runs to a tracker until `stop` is requested, or a single time with `once`. Returns the exit code."""
    follower = Follower(layout, tracker)
    known: dict[str, list[Tracked]] = {}
    while True:
        is_last = once or stop.requested
        for reference in references:
            if reference not in known:
                try:
                    known[reference] = tracked(layout, reference)
                except (MissingData, DamagedFile) as error:
                    print(error, file=sys.stderr, flush=True)
                    known[reference] = []
            for run in known[reference]:
                follower.send(run)
                if is_last:
                    follower.close(run)
        if is_last:
            return EXIT_RUN_FAILED if follower.failed else EXIT_DONE
        deadline = time.monotonic() + POLL_SECONDS
        while time.monotonic() < deadline and not stop.requested:
            time.sleep(0.1)


@contextmanager
def followed(tracker: str | None, layout: Layout, references: Sequence[str]) -> Iterator[None]:
    """Context in which a separate process sends runs to `tracker`, if any. It gets `GRACE_SECONDS` to finish."""
    if tracker is None or not references:
        yield
        return
    layout.tracking.mkdir(parents=True, exist_ok=True)
    module = "neobert.runs.tracking"
    command = [sys.executable, "-m", module, "--runs", str(layout.root), "--track", tracker, "--follow", *references]
    child = start_child(command, os.environ)
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(GRACE_SECONDS)
        except Exception:
            child.kill()
            child.wait()
            rest = f"python -m {module} --runs {layout.root} --track {tracker}"
            print(f"{tracker} is slow: `{rest}` sends what is left", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code (0 done, 1 a tracker failed, 2 refused, 3 no such run or package)."""
    parser = parser_from("python -m neobert.runs.tracking", __doc__)
    add = parser.add_argument
    add("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add("--track", choices=TRACKERS, required=True, help="which tracker")
    add("--follow", action="store_true", help="go on until stopped")
    add("--json", action="store_true", help="print JSON on stdout")
    add("references", nargs="*", metavar="RUN", help="folders below it, as pretraining/<id> (default: all)")
    options = parser.parse_args(arguments)
    return guarded("neobert.runs.tracking", partial(_run, options), options.runs)


def _run(options: Any) -> int:
    refuse_no_folder("--runs", options.runs)
    layout, stop = Layout(options.runs.resolve()), StopRequest()
    require_tracker(options.track)
    references = options.references or [row.folder for row in Index(layout).rows() if row.kind != "corpus"]
    layout.tracking.mkdir(parents=True, exist_ok=True)
    if options.follow:
        stop.listen()
        end_with_parent()
    log = os.open(layout.tracking / f"{options.track}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    out = os.dup(1)
    os.dup2(log, 1)  # redirects what trackers print
    code = follow(layout, options.track, references, stop, once=not options.follow)
    if options.json:
        os.write(out, json.dumps({"tracker": options.track, "runs": references}).encode() + b"\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
