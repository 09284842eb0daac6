"""Made-up records of a whole study for the tests of reports: real specifications and identities, invented scores."""

import csv
import io
import json
import random
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from ablations import loading
from ablations.ladders import Ladder
from ablations.names import one_variant
from ablations.recipe_runs import pretraining_runs, variant_studies
from ablations.scales import Scale, Vocabulary
from ablations.scaling import scaled
from ablations.variant import Recipe
from neobert.data.sources import Source
from neobert.execution import Execution
from neobert.files import json_bytes, publish_once
from neobert.glue.tasks import TASKS
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.recipe import Point
from neobert.runs.layout import Layout
from neobert.runs.records import checksum_of, publish_record, publish_sealed
from neobert.runs.run_file import SourceSpecification, write_run_file
from neobert.search.space import PrunerName, Range, SamplerName, Search, Space, request_file
from reports import collect, make_figures, rows
from reports.differences import ComparedStep, find_steps
from reports.findings import Findings
from reports.frames import read_frames
from reports.tables import Table
from tests.ablations.papers_ladder import PAPERS_LADDER

LEVELS = dict(zip(PAPERS_LADDER, (52.0, 54.1, 57.3, 55.2, 57.0, 56.1, 53.9, 58.4, 59.6, 61.0, 61.0), strict=True))
TASK_SHIFTS = dict(zip(TASKS, (-4, 2, 6, -9, 8, 8, -16, 5), strict=True))  # they add up to 0


def papers_ladder() -> Ladder:
    """The paper's ladder, or what the fixture of this name has in its place."""
    return loading.papers()


@cache
def recipe_at(ladder: Ladder, name: str, scale: Scale, vocabulary: Vocabulary) -> Recipe:
    """The recipe of a variant at a scale, which each of its records asks for. The variant is one of the ladder, an
    alternative or one of a design."""
    return scaled(ladder, one_variant(ladder, name).recipe, scale, vocabulary)


SPACE = Space(
    batch_size=(8, 32),
    learning_rate=Range(low=1e-6, high=1e-2, log=True),
    weight_decay=Range(low=0, high=0.1, log=False),
)
SAMPLED = tuple(
    Point(batch_size=size, learning_rate=rate, weight_decay=decay)
    for size in (8, 32)
    for rate, decay in ((1.5e-6, 0.013), (3.33e-5, 0.0871), (2.71e-4, 0.051), (8.9e-3, 0.002))
)
"""Points of the space that are on no grid."""


def search_by(sampler: SamplerName, pruner: PrunerName = "none", seeds: tuple[int, ...] = (0,)) -> Search:
    """A search of as many points as there are in `SAMPLED`."""
    return Search(sampler=sampler, trials=len(SAMPLED), pruner=pruner, seeds=seeds, space=SPACE)


EXECUTION = Execution(threads=1, processes=1, micro_batch_tokens=512, checkpoint_interval_steps=100)


def change_record(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a published record as if it had been written so; values that JSON lacks (NaN) included."""
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record | {"checksum": checksum_of(record)}))


def facts_of(table: Table) -> list[dict[str, str]]:
    """The lines of a table's CSV file."""
    return list(csv.DictReader(io.StringIO(table.csv)))


def by_place(study: rows.Study) -> dict[tuple[str, str, str], ComparedStep]:
    """Steps by (design, name, measure)."""
    return {(step.design, step.name, step.measured): step for step in find_steps(study)}


@contextmanager
def undrawn_figures() -> Iterator[None]:
    """Within, figures are laid out but not drawn: their files are empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
        yield


def copy(root: Path, out: Path, *flags: str) -> int:
    """Collect a folder of runs; the exit code."""
    return collect.main(["--runs", str(root), "--out", str(out), *flags])


def figures(root: Path, out: Path, *flags: str) -> int:
    """Write the reports of a folder of runs with empty figures; the exit code."""
    with undrawn_figures():
        return make_figures.main(["--runs", str(root), "--out", str(out), *flags])


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class MadeUpSource:
    """Names of bytes without the bytes."""

    label: str
    version: str
    without: dict[str, str]
    trains_tokenizers: bool
    ladder: Ladder

    def corpus_origin(self, corpus: str) -> str:
        return f"{self.task_origin(corpus)}:{self.version}"

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        return f"{self.task_origin(tokenizer)}:{vocabulary_size}"

    def task_origin(self, task: str) -> str:
        return f"hub:{task}" if self.label == "hub" else task

    def tasks(self) -> dict[str, str | None]:
        return {task: self.without.get(task) for task in self.ladder.tasks}


@dataclass
class MadeUpStudy:
    """Writes records of variants below a folder of runs. `without` names tasks that the source cannot fine-tune,
    `trained` says that tokenizers are trained on the data, `measured` on which corpora losses are, if not a run's own;
    `common_context` that they are in that one too, in bits per byte; beside them `frequency_loss`.
    """

    root: Path
    scale: Scale = "smoke"
    data: str = "synthetic"
    without: dict[str, str] = field(default_factory=dict)
    levels: dict[str, float] = field(default_factory=lambda: dict(LEVELS))
    version: str = "1"
    trained: bool | None = None
    measured: tuple[str, ...] = ()
    common_context: int | None = None
    frequency_loss: float | None = None
    ladder: Ladder = field(default_factory=papers_ladder)

    @property
    def trains_tokenizers(self) -> bool:
        return self.data == "synthetic" if self.trained is None else self.trained

    def on(self, ladder: Ladder) -> "MadeUpStudy":
        """The same folder and levels, of variants of another ladder."""
        return replace(self, ladder=ladder)

    @property
    def source(self) -> Source:
        return cast(Source, MadeUpSource(self.data, self.version, self.without, self.trains_tokenizers, self.ladder))

    def recipe(self, name: str) -> Recipe:
        """The recipe of a variant at the study's scale."""
        return recipe_at(self.ladder, name, self.scale, "trained" if self.trains_tokenizers else "published")

    def runs(self, name: str, seed: int = 0) -> list[PretrainingRun]:
        """The stages of a variant."""
        return pretraining_runs(self.recipe(name).pretraining, seed, self.source)

    def studies(self, name: str, seed: int = 0) -> Iterator[GlueStudy]:
        """All studies of a variant, on every checkpoint that it measures."""
        yield from variant_studies(self.ladder, self.recipe(name), self.runs(name, seed), seed, self.source)

    def study(self, name: str, task: str, seed: int = 0) -> GlueStudy:
        """The study of a task on the variant's last checkpoint."""
        return [study for study in self.studies(name, seed) if study.task == task][-1]

    def write(self, names: Iterable[str] | None = None, seeds: Sequence[int] = (0,)) -> None:
        """Pre-train the variants (default: the ladder) and run their whole grids on all tasks with every seed."""
        for name in names if names is not None else PAPERS_LADDER:
            for seed in seeds:
                self.pretrain(name, seed)
                for study in self.studies(name, seed):
                    self.search(name, study)

    def labels(self, name: str) -> dict[str, Any]:
        """Labels as runs carry them: every variant with equal pre-training, whatever its grid."""
        own = self.recipe(name).pretraining
        names = [other for other in self.ladder.variants if self.recipe(other).pretraining == own]
        names += [] if name in names else [name]
        return {"variants": names, "scale": self.scale, "data": self.data, "unavailable_tasks": self.without}

    def pretrain(self, name: str, seed: int = 0, **changes: Any) -> None:
        """Publish the records of all stages; `changes` replaces top-level entries."""
        for run in self.runs(name, seed):
            origins = {"corpus": run.corpus_origin, "tokenizer": run.tokenizer_origin}
            loss = round(6 - self.level(name) / 20 + seed / 100, 4)
            corpora = self.measured or (run.recipe.data.corpus,)
            losses = {corpus: round(loss + (corpus == "web") / 2, 4) for corpus in corpora}
            record = {
                "kind": "pretraining",
                "id": run.id,
                "state": "done",
                "inputs": {"data": run.data_id, "previous": run.previous},
                "config": {"recipe": plain(run.recipe), "stage": run.stage, "origins": origins},
                "labels": self.labels(name),
                "scores": {
                    "heldout_loss": losses,
                    "training_loss": loss,
                    **self.heldout(run, losses),
                },
                "seed": run.recipe.seed,
            }
            publish_record(Layout(self.root).pretraining(run.id) / "done.json", record | changes)

    def heldout(self, run: PretrainingRun, losses: dict[str, float]) -> dict[str, Any]:
        """What was measured in which context, where there is a common one; a token has four bytes."""
        if self.common_context is None:
            return {}
        fields = {"texts": "0123456789ab", "documents": 9, "tokens": 300, "text_bytes": 1200, "predicted_tokens": 45}
        contexts = {run.recipe.stages[-1].context: 0.0, self.common_context: 0.25}
        return {
            "heldout": [
                {
                    "corpus": corpus,
                    "context": context,
                    "loss": loss + more,
                    "bits_per_byte": (loss + more) / 4,
                    "frequency_loss": self.frequency_loss,
                    **fields,
                }
                for corpus, loss in losses.items()
                for context, more in contexts.items()
            ]
        }

    def metrics(self, name: str, seed: int = 0, lines: int = 200) -> None:
        """Write the metrics.jsonl of all stages: a loss that falls."""
        noise = random.Random(f"{name}{seed}")
        for run in self.runs(name, seed):
            steps = run.recipe.stages[-1].steps
            rows: list[dict[str, float]] = [
                {"step": step, "loss": 6 - self.level(name) / 20 + 4 / (1 + 20 * step / steps) + noise.gauss(0, 0.05)}
                for step in range(steps // lines, steps + 1, steps // lines)
            ]
            path = Layout(self.root).pretraining(run.id) / "metrics.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"step": steps, "heldout_loss": 2.0}]))

    def search(self, name: str, study: GlueStudy) -> None:
        """Run a study's whole grid."""
        self.begin(name, study)
        for point in study.points:
            self.trial(name, study, point)

    def sampled(
        self, name: str, task: str, search: Search, points: Sequence[Point], pruned: Collection[Point] = ()
    ) -> GlueStudy:
        """Run a search of a task, which asks for those points; a pruner ended the trials at some of them."""
        grid = self.study(name, task)
        own = () if search.sampler != "grid" else grid.points
        study = grid.model_copy(update={"search": search, "points": own})
        self.sample(name, study, points, pruned)
        return study

    def sample(self, name: str, study: GlueStudy, points: Sequence[Point], pruned: Collection[Point] = ()) -> None:
        """Run a search."""
        assert study.search is not None
        layout = Layout(self.root)
        self.begin(name, study)
        for number, point in enumerate(points):
            publish_sealed(request_file(layout.root / study.folder, number), {"point": plain(point)})
            part = study.search_trial(layout, point)
            seeds = () if point in pruned else study.search.seeds
            grids = [study.grid_of_seed(seed, [point]) for seed in seeds]
            for of_seed in grids:
                self.trial(name, of_seed, point)
            scores = [self.score(name, of_seed, point) for of_seed in grids]
            record = {
                "kind": "search",
                "id": part.id,
                "study": study.id,
                "point": plain(point),
                "state": "done" if grids else "pruned",
                "claim": 1,
                "scores": {"score": statistics.fmean(scores) if scores else None, "curve": [[1, 0.1], [2, 0.2]]},
            }
            publish_sealed(part.record, record)

    def begin(self, name: str, study: GlueStudy) -> None:
        """Write the run.json of a study."""
        source = SourceSpecification(name=self.data, synthetic_documents=1)
        write_run_file(Layout(self.root), study, source, EXECUTION, self.labels(name))

    def level(self, name: str) -> float:
        return self.levels[name.partition("@")[0]]

    def score(self, name: str, study: GlueStudy, point: Point) -> float:
        """A repeatable made-up score in 0..1 that depends on the point and a little on the seed."""
        noise = random.Random(f"{name}{study.task}{study.seed}{study.stage}").gauss(0, 1.0)
        point_noise = random.Random(f"{name}{study.task}{study.stage}{point.model_dump_json()}").gauss(0, 0.6)
        return min(1.0, (self.level(name) + TASK_SHIFTS.get(study.task, 0) + noise + point_noise) / 100)

    def trial(self, name: str, study: GlueStudy, point: Point, *, score: float | None = None, **changes: Any) -> Path:
        """Publish a trial (with `score`, in 0..1, where given); `changes` replaces top-level entries."""
        files = study.trial(Layout(self.root), point)
        value = self.score(name, study, point) if score is None else score
        metrics = [
            study.about.metric_on(each, split)
            for split in study.about.validation_splits
            for each in study.about.metrics
        ]
        record = {
            "kind": "glue",
            "id": files.id,
            "state": "done",
            "inputs": {
                "pretraining": study.weights,
                "stage": study.stage,
                "study": study.id,
                "task": study.task_origin,
                "starts_from": plain(study.starts_from),
            },
            "config": {
                **plain(study.protocol),
                **plain(point),
                "task": study.task,
                **({"own_task": plain(study.own_task)} if study.own_task else {}),
                "seed": study.seed,
                "context": study.context,
                "starts_from": study.starts_from.name,
            },
            "labels": self.labels(name),
            "scores": {"score": value, "metrics": dict.fromkeys(metrics, value), "curve": []},
            "seed": study.seed,
        }
        publish_record(files.record, record | changes)
        return files.record

    def read(self) -> rows.Study:
        """What reports read of the study."""
        return rows.read_study(read_frames(self.ladder, self.root), self.scale, self.data)

    def tables(self) -> dict[str, Table]:
        """The tables of the reports, by name."""
        return Findings(self.read(), "out").tables

    def select(self, study: GlueStudy, nested: float | None) -> None:
        """Publish the selection of a study, with its nested score."""
        publish_sealed(study.closing(Layout(self.root)).record, {"study": study.id, "nested": {"score": nested}})

    def fail(self, study: GlueStudy, point: Point) -> None:
        """Leave what a failed trial leaves: an error and no record."""
        publish_once(study.trial(Layout(self.root), point).error, json_bytes({"error": "diverged"}))
