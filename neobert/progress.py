"""How far units of work are, read from files alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from neobert.embeddings.specification import ContrastiveRun
from neobert.embeddings.suite_specification import EmbeddingEvaluation, EmbeddingRun
from neobert.files import line_value, read_json
from neobert.grid.claims import is_claimed
from neobert.grid.points import GridPoint
from neobert.identity import identity, plain
from neobert.layout import Layout
from neobert.recipe import Point
from neobert.records import is_published, read_sealed
from neobert.specifications import GlueStudy, PretrainingRun, Run, run_folder

State = Literal["missing", "waiting", "running", "failed", "done"]
TAIL_BYTES = 4096


@dataclass(frozen=True)
class TrialFiles:
    """Where one GLUE trial leaves its files."""

    layout: Layout
    study: GlueStudy
    point: Point

    @property
    def id(self) -> str:
        """The trial's name."""
        return self.study.trial_id(self.point)

    @property
    def record(self) -> Path:
        """The record, written last."""
        return self.layout.trial(self.study.task, self.id)

    @property
    def predictions(self) -> Path:
        """Per-example predictions at the best evaluation."""
        return self.record.with_suffix(".npz")

    @property
    def weights(self) -> Path:
        """Weights at the best evaluation; kept for the best trial of a study."""
        return self.record.with_suffix(".safetensors")

    @property
    def error(self) -> Path:
        """The last failure."""
        return self.record.parent / "errors" / f"{self.id}.json"

    @property
    def is_recorded(self) -> bool:
        """Whether the record is there and whole."""
        return is_published(self.record)

    @property
    def grid_point(self) -> GridPoint:
        """The trial as a point of its grid."""
        claims = self.layout.claims(self.id)
        return GridPoint(self.study.shown_name, self.id, plain(self.point), self.record, self.error, claims)


def trial_files(layout: Layout, study: GlueStudy) -> list[TrialFiles]:
    """The files of all trials of a study, in the order of its grid."""
    return [TrialFiles(layout, study, point) for point in study.points]


@dataclass(frozen=True)
class TaskFiles:
    """Where one task of embeddings on one encoder leaves its files."""

    layout: Layout
    run: EmbeddingRun

    @cached_property
    def id(self) -> str:
        """The result's name."""
        return self.run.id

    @property
    def record(self) -> Path:
        """The record, written last."""
        return self.layout.embedding_task(self.run.task.name, self.id)

    @property
    def is_recorded(self) -> bool:
        """Whether the record is there and whole."""
        return is_published(self.record)

    @property
    def error(self) -> Path:
        """The last failure."""
        return self.record.parent / "errors" / f"{self.id}.json"


def task_files(layout: Layout, evaluation: EmbeddingEvaluation) -> list[TaskFiles]:
    """The files of all tasks of an evaluation, in its order."""
    return [TaskFiles(layout, run) for run in evaluation.runs()]


def is_closed(layout: Layout, study: GlueStudy) -> bool:
    """Whether the file that closes a study is there and whole."""
    return is_published(selection_path(layout, study), read_selection)


def read_selection(path: Path) -> dict[str, Any]:
    """What closes a study; one of an early version is not sealed.

    Raises:
        DamagedFile: it is torn, or was changed after it was written.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "trial" not in content or {"schema", "checksum"} & content.keys():
        return read_sealed(path)
    return content


def selection_path(layout: Layout, study: GlueStudy) -> Path:
    """The write-once file that closes a study."""
    return run_folder(layout, study) / "selection.json"


def state_of(layout: Layout, run: Run) -> State:
    """The state of a run, of a whole study, or of all tasks of an evaluation."""
    folder = run_folder(layout, run)
    if isinstance(run, GlueStudy):
        is_done, units = is_closed(layout, run), [(each.id, each.error) for each in trial_files(layout, run)]
    elif isinstance(run, EmbeddingEvaluation):
        open_tasks = [files for files in task_files(layout, run) if not files.is_recorded]
        is_done, units = not open_tasks, [(files.id, files.error) for files in open_tasks]
    else:
        is_done, units = is_published(folder / "done.json"), [(run.id, folder / "error.json")]
    if is_done:
        return "done"
    if any(is_claimed(layout.claims(unit_id)) for unit_id, _ in units):
        return "running"
    if any(error.exists() for _, error in units):
        return "failed"
    return "waiting" if (folder / "run.json").exists() else "missing"


def errors_of(layout: Layout, run: Run) -> Iterator[dict[str, Any]]:
    """The last failure of each unit of a run."""
    if isinstance(run, GlueStudy):
        paths = [files.error for files in trial_files(layout, run)]
    elif isinstance(run, EmbeddingEvaluation):
        paths = [files.error for files in task_files(layout, run) if not files.is_recorded]
    else:
        paths = [run_folder(layout, run) / "error.json"]
    for path in paths:
        if path.exists():
            yield read_json(path)


def set_failures_aside(layout: Layout, study: GlueStudy) -> int:
    """Move the errors of failed trials to errors/<id>.<n>.json, so that they run again; how many there were."""
    failed = [files for files in trial_files(layout, study) if files.error.exists() and not files.is_recorded]
    for files in failed:
        number = 1 + len(list(files.error.parent.glob(f"{files.id}.*.json")))
        files.error.rename(files.error.with_suffix(f".{number}.json"))
    return len(failed)


def last_step(layout: Layout, run: PretrainingRun | ContrastiveRun) -> dict[str, Any] | None:
    """The newest metrics line of a run in progress."""
    return newest_step_line(run_folder(layout, run))


def newest_step_line(folder: Path) -> dict[str, Any] | None:
    """The newest whole metrics line of a step below a run's folder; reads the end of one file, of more where a new
    attempt has none yet."""
    for attempt in sorted((folder / "attempts").glob("*/metrics.jsonl"), reverse=True):
        with attempt.open("rb") as file:
            file.seek(max(0, attempt.stat().st_size - TAIL_BYTES))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"}\n")]
        for line in reversed(lines):
            content: dict[str, Any] | None = line_value(line, ("loss",))
            if content is not None:
                return content
    return None


def encoded_task_path(layout: Layout, study: GlueStudy) -> Path:
    """Where the study's task lies in token ids; studies of equal task, tokenizer and length share it."""
    decisive = {"task": study.task_origin, "tokenizer": study.tokenizer_origin, "max_tokens": study.protocol.max_tokens}
    return layout.root / "data" / "glue" / f"{study.task}-{identity(decisive)}.safetensors"
