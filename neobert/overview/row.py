"""One run as an overview shows it. Torch-free."""

from dataclasses import dataclass
from typing import Any, Literal

RowState = Literal["unreadable", "failed", "running", "submitted", "waiting", "missing", "done"]
ROW_STATES: tuple[RowState, ...] = ("unreadable", "failed", "running", "submitted", "waiting", "missing", "done")


@dataclass(frozen=True)
class Worker:
    """Who holds a unit of a run, or held it last and never released it. `heartbeat_seconds` is the heartbeat's age."""

    unit: str
    host: str
    pid: int
    job: str | None
    heartbeat_seconds: float
    is_live: bool


@dataclass(frozen=True)
class Failure:
    """The last failure of a unit of a run."""

    unit: str
    name: str
    error: str
    traceback: str


@dataclass(frozen=True)
class Row:
    """A stage of pre-training, a GLUE study, contrastive fine-tuning, an evaluation on tasks of embeddings, or a corpus
    that a job was submitted for.

    None: no file says. `stage` counts from 1; that of a study is the stage of its weights. `task` of an evaluation is
    its protocol. `state` is the records' word: "submitted" is a waiting run that a SLURM job was submitted for and
    nobody has begun since, "unreadable" one whose files are torn or of another version. `done` of `total` count
    `counted`. `loss` is the newest training loss of unfinished training, `heldout_loss` that of the record, both in
    nats; `score` is that of a study's selected point. `seconds` is computing time so far. `gpu_hours` of unfinished
    runs is known where their job says how many GPUs it has; of studies never, since their records do not tell.
    `workers` are those at work and those that went silent; `heartbeat_at` (Unix seconds) is the last sign of anybody.
    `job` and `submitted_at` (Unix seconds) are those of the newest submission. `logs` are relative to the folder of
    runs, as is `folder`.
    """

    kind: Literal["corpus", "pretraining", "glue", "contrastive", "mteb"]
    id: str
    folder: str
    state: RowState
    note: str = ""
    task: str | None = None
    stage: int | None = None
    variants: tuple[str, ...] = ()
    seed: int | None = None
    scale: str | None = None
    data: str | None = None
    weights: str | None = None
    done: int | None = None
    total: int | None = None
    counted: Literal["steps", "points", "shards", "tasks"] = "steps"
    tokens_per_second: float | None = None
    loss: float | None = None
    heldout_loss: float | None = None
    score: float | None = None
    seconds: float | None = None
    gpu_hours: float | None = None
    workers: tuple[Worker, ...] = ()
    heartbeat_at: float | None = None
    job: str | None = None
    submitted_at: float | None = None
    errors: tuple[Failure, ...] = ()
    logs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The run as `--dry-run` calls it, with its id."""
        if self.kind in ("glue", "mteb"):
            return " ".join(filter(None, (self.kind, self.task, self.id)))
        return f"{self.kind} {self.id}" if self.stage is None else f"{self.kind} stage {self.stage} {self.id}"

    def as_json(self) -> dict[str, Any]:
        """The fields by name, workers and errors as mappings of theirs."""
        workers = [dict(vars(worker)) for worker in self.workers]
        return {**vars(self), "workers": workers, "errors": [dict(vars(failure)) for failure in self.errors]}


def age(seconds: float) -> str:
    """How long ago, in the largest unit that fits: 12 s, 5 min, 3 h, 2 d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
