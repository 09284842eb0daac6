"""Fine-tuning on a task: a study is a grid or a search of trials, followed by the selection of the best."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import NonNegativeInt, PositiveInt

from neobert.errors import DamagedFile
from neobert.external import EXTERNAL_PREFIX
from neobert.glue.tasks import Task, task_named
from neobert.identity import (
    NUMERICS,
    Neutral,
    canonical,
    canonical_object,
    chosen,
    decisive,
    identity,
    identity_of_canonical,
)
from neobert.kinds.pretraining import pretraining_of
from neobert.recipe import FineTuning, Point, Value
from neobert.runs.layout import Layout
from neobert.runs.records import read_once, read_record, read_sealed
from neobert.runs.work import Part, Work, error_beside
from neobert.search.space import Range, Search, read_requests, request_part


class TrialStart(Value):
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
    """A grid of fine-tuning trials of one task on one pre-trained model with one seed, or a search.

    `weights` is the id of a pre-training run, or of an external model (`neobert.external`). `own_task` is the
    declaration of a task that a ladder declares, None for GLUE's. `seed` of a search is the first of its seeds.
    """

    kind: Annotated[Literal["glue"], Neutral("glue")] = "glue"
    task: str
    weights: str
    stage: NonNegativeInt
    context: PositiveInt
    protocol: FineTuning
    points: tuple[Point, ...]
    seed: NonNegativeInt
    starts_from: TrialStart
    task_origin: str
    tokenizer_origin: str
    own_task: Annotated[Task | None, Neutral(None)] = None
    search: Annotated[Search | None, Neutral(None)] = None

    job = "glue"
    counted = "grid points"
    folder_pattern = "glue/{task}/studies/{id}"
    closing_file = "selection.json"
    record_place = "glue/{config[task]}/{id}.json"
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
        return len(self.points) if self.search is None else self.search.trials

    @property
    def columns(self) -> Mapping[str, Any]:
        return {"task": self.task, "stage": self.stage + 1, "weights": self.weights, "seed": self.seed}

    @property
    def pretrained(self) -> str:
        return self.weights

    @property
    def largest_batch(self) -> int:
        """The most examples of a batch in any trial."""
        sizes = [point.batch_size for point in self.points]
        if self.search is not None:
            space = self.search.space.batch_size
            sizes += [int(space.high)] if isinstance(space, Range) else space
        return max(sizes)

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
        """Fields that all trials share. Points and search are left out, so that grids and searches can share trials."""
        return {key: value for key, value in decisive(self).items() if key not in ("points", "search")}

    def trial_id(self, point: Point) -> str:
        """Return the id of the trial at one point."""
        return identity_of_canonical(canonical_object({**self._hashed_of_trials, "point": canonical(point)}))

    @cached_property
    def _hashed_of_trials(self) -> dict[str, str]:
        """What is hashed of every trial besides its point, in canonical JSON, since a study may have many points."""
        numerics = chosen(NUMERICS, self.mechanisms)
        hashed = {"kind": "glue", "trial": self.shared_by_trials, "numerics": numerics}
        return {key: canonical(value) for key, value in hashed.items()}

    @cached_property
    def trial_ids(self) -> tuple[str, ...]:
        """Ids of all trials, in the order of the grid."""
        return tuple(map(self.trial_id, self.points))

    def trials(self, layout: Layout) -> "tuple[Trial, ...]":
        """Return the trials, in the order of the grid; of a search, those of all points that it has asked for."""
        if self.search is not None:
            return tuple(trial for each in self.search_trials(layout) for trial in each.trials)
        return tuple(self.trial(layout, point) for point in self.points)

    def trial(self, layout: Layout, point: Point) -> "Trial":
        """Return the trial at one point, which need not be in the grid."""
        trial_id = self.trial_id(point)
        return Trial.of(self, trial_id, self.task, layout.trial(self.task, trial_id), layout, point)

    def grid_of_seed(self, seed: int, points: Sequence[Point]) -> Self:
        """Return the grid of some points with one seed of a search."""
        return self.model_copy(update={"search": None, "seed": seed, "points": tuple(points)})

    @cached_property
    def without_points(self) -> tuple[Self, ...]:
        """A grid without points for each seed of a search, which has the ids of its trials."""
        return tuple(self.grid_of_seed(seed, ()) for seed in (self.search.seeds if self.search else ()))

    def compared_points(self, layout: Layout) -> tuple[Point, ...]:
        """Return the points among which the best is chosen: the grid, or those of a search that are done."""
        if self.search is None:
            return self.points
        return tuple(each.point for each in self.search_trials(layout) if each.state == "done")

    def finished_trials(self, layout: Layout) -> "list[Trial]":
        """Return the trials that are done at these points, with all seeds of a search."""
        if self.search is None:
            return [trial for trial in self.trials(layout) if trial.is_done]
        searched = self.search_trials(layout)
        return [trial for each in searched if each.state == "done" for trial in each.trials]

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return the trials, followed by the selection. Those of a search are the ones that it has asked for."""
        if self.search is None:
            trials: tuple[Part, ...] = self.trials(layout)
            return (*trials, replace(self.closing(layout), after=trials))
        asked = self.asked(layout)
        searched = self._trials_at(layout, asked.values())
        unasked = next((number for number in range(self.total) if number not in asked), None)
        to_ask = () if unasked is None else (request_part(self, layout.root / self.folder, unasked, self.total),)
        return (*searched, replace(self.closing(layout), after=(*searched, *to_ask)))

    def open_parts(self, layout: Layout) -> int:
        if self.search is None:
            return super().open_parts(layout)
        return self.total - self.done(layout, [part for part in self.parts(layout) if not part.is_done])

    def done(self, layout: Layout, pending: Sequence[Part]) -> int:
        if self.search is None:
            return super().done(layout, pending)
        left = {part.id for part in pending}
        return sum(self.search_trial(layout, point).id not in left for point in self.asked(layout).values())

    @property
    def grows(self) -> bool:
        return self.search is not None

    def asked(self, layout: Layout) -> dict[int, Point]:
        """Return the points that a search has asked for, by their numbers. A sampler may ask for a point again."""
        return read_requests(layout.root / self.folder, self.total, read_request)

    def search_trials(self, layout: Layout) -> "tuple[SearchTrial, ...]":
        """Return the trials of a search that it has asked for, in this order, each once."""
        return self._trials_at(layout, self.asked(layout).values())

    def _trials_at(self, layout: Layout, points: Iterable[Point]) -> "tuple[SearchTrial, ...]":
        return tuple(self.search_trial(layout, point) for point in dict.fromkeys(points))

    def search_trial(self, layout: Layout, point: Point) -> "SearchTrial":
        """Return the trial of a search at one point."""
        key = layout, point
        if key not in self._search_trials:
            own_id = f"{self.id}-{self.trial_id(point)}"
            record = layout.root / f"{self.folder}/trials/{own_id}.json"
            trial = SearchTrial.of(self, own_id, f"search of {self.task}", record, layout, point)
            self._search_trials[key] = trial
        return self._search_trials[key]

    @cached_property
    def _search_trials(self) -> "dict[tuple[Layout, Point], SearchTrial]":
        """The trials of a search that were made, because every taken point looks at all of them."""
        return {}

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


@dataclass(frozen=True)
class Outcome:
    """What the record of a trial says, as far as its study needs it. `state` is done or pruned, `ended_at` in Unix
    seconds."""

    state: str
    scores: Mapping[str, Any]
    course_steps: int | None
    claim: int | None
    ended_at: float
    seconds: float


def read_outcome(record: Path) -> Outcome:
    """Read the record of a trial. Raises as `read_record`."""
    content = read_record(record)
    return Outcome(
        state=content["state"],
        scores=content["scores"],
        course_steps=content.get("course_steps"),
        claim=content.get("claim"),
        ended_at=record.stat().st_mtime,
        seconds=content.get("seconds", 0.0),
    )


@dataclass(frozen=True, kw_only=True)
class PointPart(Part):
    """What a study tries at one point."""

    work: GlueStudy = field(compare=False, repr=False)
    layout: Layout
    point: Point

    @classmethod
    def of(cls, study: GlueStudy, own_id: str, title: str, record: Path, layout: Layout, point: Point) -> Self:
        """Build the part with a record."""
        return cls(
            work=study,
            id=own_id,
            title=f"{title} on {study.weights} ({point.name})",
            record=record,
            error=error_beside(record),
            layout=layout,
            point=point,
        )

    @property
    def study(self) -> GlueStudy:
        return self.work

    @property
    def outcome(self) -> Outcome | None:
        """What its record says; None without an intact one."""
        return read_once(self.record, read_outcome)

    @property
    def is_recorded(self) -> bool:
        return self.outcome is not None


class Trial(PointPart):
    """Fine-tuning at one point of a study's grid, and the files beside its record."""

    @property
    def predictions(self) -> Path:
        """Per-example predictions at the best evaluation."""
        return self.record.with_suffix(".npz")

    @property
    def progress(self) -> Path:
        """Folder with what a trial that takes long has saved, until its record is published."""
        return self.record.with_suffix(".progress")

    @property
    def weights(self) -> Path:
        """Weights at the best evaluation; kept for the best trial of a study."""
        return self.record.with_suffix(".safetensors")


class SearchTrial(PointPart):
    """What a search tries at one point: the trials of all seeds, which grids and other searches share.

    It has a record, an error file and a claim of its own. `work` is the search.
    """

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The trials of the point, in the order of the seeds."""
        return tuple(grid.trial(self.layout, self.point) for grid in self.study.without_points)

    @property
    def is_done(self) -> bool:
        """Whether its record is intact, and the records of all seeds too, unless a pruner ended the trial."""
        return self.state is not None

    @property
    def state(self) -> str | None:
        """The state in its record, done or pruned; None if it is not done."""
        outcome = self.outcome
        if outcome is None or (outcome.state != "pruned" and not all(trial.is_done for trial in self.trials)):
            return None
        return outcome.state


def read_request(path: Path) -> Point:
    """Read a point that a search asked for. Raises as `read_sealed`."""
    return Point.read(read_sealed(path)["point"])
