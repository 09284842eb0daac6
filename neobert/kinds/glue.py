"""Fine-tuning on a task: a study is a grid of trials, followed by the selection of the best."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt

from neobert.errors import DamagedFile
from neobert.glue.tasks import Task, task_named
from neobert.identity import NUMERICS, Neutral, chosen, decisive, identity
from neobert.kinds.pretraining import EXTERNAL_PREFIX, pretraining_of
from neobert.recipe import FineTuning, Point, Value
from neobert.runs.layout import Layout
from neobert.runs.records import Open, read_sealed
from neobert.runs.work import Part, Work, error_beside

if TYPE_CHECKING:
    from neobert.processes import StopRequest
    from neobert.runs.claims import Claim
    from neobert.runs.run_file import RunFile


class TrialConfig(Open):
    """One point of a grid on one task, with its protocol."""

    task: str
    batch_size: int
    learning_rate: float
    weight_decay: float
    seed: int


class TrialScores(Open):
    """The score on the validation set, 0 to 1 (correlations −1 to 1), None where it is undefined; `curve` is (step,
    score) at each evaluation."""

    score: float | None
    metrics: dict[str, float | None] = Field({})
    curve: tuple[tuple[int, float | None], ...] = ()


class Start(Value):
    """The weights a fine-tuning trial starts from: the pre-trained ones, or the best trial of another task's study."""

    kind: Literal["pretraining", "study"]
    task: str | None
    study: str | None
    rule: str | None
    reason: str | None

    @property
    def name(self) -> str:
        """Name in records: "pretraining" or the task."""
        return self.task or "pretraining"


class GlueStudy(Work):
    """A grid of fine-tuning trials of one task on one pre-trained model with one seed.

    `weights` is the id of a pre-training run, or of an external model (`neobert.external`). `own_task` is the
    declaration of a task that a ladder declares, None for GLUE's.
    """

    kind: Annotated[Literal["glue"], Neutral("glue")] = "glue"
    task: str
    weights: str
    stage: NonNegativeInt
    context: PositiveInt
    protocol: FineTuning
    points: tuple[Point, ...]
    seed: NonNegativeInt
    starts_from: Start
    task_origin: str
    tokenizer_origin: str
    own_task: Annotated[Task | None, Neutral(None)] = None

    job = "glue"
    counted = "grid points"
    folder_pattern = "glue/{task}/studies/{id}"
    closing_file = "selection.json"
    record_place = "glue/{config[task]}/{id}.json"
    config = TrialConfig
    scores = TrialScores
    named_by = "task"
    hashed_as = ("glue_study", "study")
    mechanisms = ("tokenization", "model", "finetuning", "metrics")

    @property
    def about(self) -> Task:
        return self.own_task or task_named(self.task)

    @property
    def title(self) -> str:
        return f"glue {self.task}"

    @property
    def total(self) -> int:
        return len(self.points)

    @property
    def columns(self) -> Mapping[str, Any]:
        return {"task": self.task, "stage": self.stage + 1, "weights": self.weights, "seed": self.seed}

    @property
    def pretrained(self) -> str:
        return self.weights

    @property
    def is_external(self) -> bool:
        """Whether the model is an external one."""
        return self.weights.startswith(EXTERNAL_PREFIX)

    @property
    def after(self) -> tuple[str, ...]:
        """References of the encoder and, if the trials start from another task, of that task's study."""
        start = self.starts_from
        study = () if start.study is None else (f"glue/{start.task}/studies/{start.study}",)
        return (*pretraining_of(self.weights), *study)

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        return (self.encoded_task(layout),)

    def encoded_task(self, layout: Layout) -> Path:
        """Return the path of the task in token ids. Studies with the same task, tokenizer and length share it."""
        decides: dict[str, Any] = {
            "task": self.task_origin,
            "tokenizer": self.tokenizer_origin,
            "max_tokens": self.protocol.max_tokens,
        }
        if self.own_task is not None:
            decides["declared"] = self.own_task
        if NUMERICS["tokenization"] > 2:  # files of version 2 are named without it
            decides["tokenization"] = NUMERICS["tokenization"]
        return layout.root / "data" / "glue" / f"{self.task}-{identity(decides)}.safetensors"

    @cached_property
    def shared_by_trials(self) -> dict[str, Any]:
        """Fields that all trials share. The points of the grid are left out, so that grids can share trials."""
        return {key: value for key, value in decisive(self).items() if key != "points"}

    def trial_id(self, point: Point) -> str:
        """Return the id of the trial at one point."""
        numerics = chosen(NUMERICS, self.mechanisms)
        return identity({"kind": "glue", "trial": self.shared_by_trials, "point": point, "numerics": numerics})

    @cached_property
    def trial_ids(self) -> tuple[str, ...]:
        """Ids of all trials, in the order of the grid."""
        return tuple(map(self.trial_id, self.points))

    def trials(self, layout: Layout) -> "tuple[Trial, ...]":
        """Return the trials, in the order of the grid."""
        named = zip(self.trial_ids, self.points, strict=True)
        return tuple(Trial.of(layout, self, trial_id, point) for trial_id, point in named)

    def trial(self, layout: Layout, point: Point) -> "Trial":
        """Return the trial at one point, which need not be in the grid."""
        return Trial.of(layout, self, self.trial_id(point), point)

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return the trials, followed by the selection."""
        trials = self.trials(layout)
        return (*trials, replace(self.closing(layout), after=trials))

    def closing(self, layout: Layout) -> Part:
        """Return the part that selects the best point."""
        folder = layout.root / self.folder
        return Part(
            work=self,
            id=f"{self.id}-selection",
            title=f"selection of {self.task} on {self.weights}",
            record=folder / self.closing_file,
            read=self.read_closing,
            error=folder / "error.json",
        )

    @staticmethod
    def read_closing(path: Path) -> dict[str, Any]:
        selection = read_sealed(path)
        if selection.get("study") != path.parent.name:
            raise DamagedFile(f"{path} is the selection of {selection.get('study')}: it was copied or changed")
        return selection

    def result(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"score": record["score"]}

    def execute(self, layout: Layout, run_file: "RunFile", part: Part, claim: "Claim", stop: "StopRequest") -> None:
        from neobert.glue.study import execute

        execute(layout, run_file, part, claim, stop)


@dataclass(frozen=True, kw_only=True)
class Trial(Part):
    """Fine-tuning at one point of a study's grid, and the files beside its record."""

    work: GlueStudy = field(compare=False, repr=False)
    layout: Layout
    point: Point

    @classmethod
    def of(cls, layout: Layout, study: GlueStudy, trial_id: str, point: Point) -> Self:
        """Build the trial of a study at one point from its id."""
        record = layout.trial(study.task, trial_id)
        cell = f"batch {point.batch_size}, rate {point.learning_rate:g}, decay {point.weight_decay:g}"
        return cls(
            id=trial_id,
            title=f"{study.task} on {study.weights} ({cell})",
            record=record,
            error=error_beside(record),
            layout=layout,
            work=study,
            point=point,
        )

    @property
    def study(self) -> GlueStudy:
        return self.work

    @property
    def predictions(self) -> Path:
        """Per-example predictions at the best evaluation."""
        return self.record.with_suffix(".npz")

    @property
    def weights(self) -> Path:
        """Weights at the best evaluation; kept for the best trial of a study."""
        return self.record.with_suffix(".safetensors")
