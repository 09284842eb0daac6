"""The Python interface: variants, models and runs for notebooks and programs. `import ablations` forwards to it.

All functions use the plan, the run files and the workers of `ablations/run.py`. Specifications, ids and folders are
the same, so each finds the runs that the other has started or finished. pandas and torch are imported only by the
functions that need them.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ablations.launch.execute import Workspace, open_workspace, run_or_submit
from ablations.launch.outcomes import part_entry
from ablations.launch.request import Place, Selection
from ablations.loading import load
from ablations.names import one_variant
from ablations.plan import PlanRow, VariantRow, plan, with_tasks
from ablations.scales import Scale
from ablations.variant import Variant
from neobert.command_line import count
from neobert.command_line import seed as seed_flag
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_REFUSED, DamagedFile, MissingData, RunFailed, did_you_mean
from neobert.export.publishing import Target, export
from neobert.files import read_lines
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.collected import RunFiles
from neobert.runs.index import Index
from neobert.runs.kinds import read_records
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.run_file import RunFile, read_run_file
from neobert.runs.tracking import TRACKERS, TrackerName
from neobert.search.space import SamplerName

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from neobert.search.memory import Study

LISTED_FIRST = ("kind", "id", "state", "variants", "scale", "data", "seed")


def variants(ladder: str | Path | None = None) -> dict[str, Variant]:
    """Return the ladder and its alternatives by name: a `Variant` has `recipe`, `parent`, `modifications`, `delta()`.

    Other variants are made from their names: `train("M9-rope")`, `train("M4@rate4e-3")` (`ablations.names`). Here
    and in all functions `ladder` is the Python file of your own ladder, as for `--ladder`; None means the paper's.

    Raises:
        MissingData, ValueError: there is no such file, or it declares no ladder.
    """
    return dict(load(ladder).variants)


def build(
    variant: str,
    scale: Scale | None = None,
    *,
    seed: int = 0,
    data: str | Path | None = None,
    ladder: str | Path | None = None,
) -> "nn.Module":
    """Build the masked language model of a variant at a scale, with the initial weights of a seed.

    No scale means smoke, or the default of your own ladder. Returns a plain `nn.Module` in training mode, of the class
    that is trained (`neobert.model.heads.MaskedLanguageModel`). `data` only determines the size of the vocabulary, if
    the source trains its tokenizers.

    Raises:
        ValueError: there is no such variant or scale.
        MissingData: the data are not there.
    """
    from neobert.model.build import build_masked_language_model, initialize

    workspace = open_workspace(_selection(ladder, scale, data), Place("here"), dry_run=True)
    recipe = plan_variant(workspace, variant, seed, ["pretraining"]).recipe.pretraining
    model = build_masked_language_model(recipe.model, recipe.longest_context, recipe.precision)
    initialize(model, recipe.model.initialization, seed)
    return model


def train(
    variant: str,
    scale: Scale | None = None,
    *,
    seed: int = 0,
    data: str | Path | None = None,
    runs: str | Path = "runs",
    workers: int | None = None,
    ladder: str | Path | None = None,
    track: TrackerName | None = None,
) -> "TrainedVariant":
    """Pre-train all stages of a variant on this machine, as `ablations/run.py --stages pretrain` does.

    Finished runs are not repeated, and interrupted ones are resumed. `M9@steps0.01` is a hundredth of M9.

    Args:
        scale: None means smoke, or the default of your own ladder.
        data: synthetic (the default below the paper's scale), hub, or a folder, as `--data`.
        runs: the folder of runs.
        track: tensorboard or wandb; logs metrics there, offline, below `runs`/tracking.
        workers: number of parallel processes; None means as many as the machine has room for.

    Raises:
        ValueError: there is no such variant or scale.
        MissingData: the data are not there.
        RunFailed: training failed or was stopped; the same call resumes.
    """
    if track is not None and track not in TRACKERS:
        raise ValueError(f"there is no tracker {track!r}: {did_you_mean(track, TRACKERS)}")
    processes = None if workers is None else _whole("workers", workers, count)
    workspace = open_workspace(_selection(ladder, scale, data, runs), Place("here", workers=processes, track=track))
    row = plan_variant(workspace, variant, seed, ["pretraining"])
    _run(workspace, row)
    return TrainedVariant(row.name, workspace, row.seed, row.stages)


def load_records(runs: str | Path = "runs") -> "pd.DataFrame":
    """Load every record of a folder of runs, collected or not, as a frame with one row per record.

    The first columns are kind, id, state, variants, scale, data and seed, then one column per fact, such as
    `scores.score` or `config.recipe.model.width`; lists stay lists. Files that cannot be read are left out with a
    warning. The reports read the same files, but check them (`reports.frames.read_frames`).

    Raises:
        MissingData: the folder is not there.
    """
    import pandas as pd

    root = Path(runs)
    if not root.is_dir():
        raise MissingData(f"there is no folder of runs at {root}: train something, or name another folder")
    files = RunFiles(root)
    records, problems = read_records(files.root)
    for problem in (*problems, *files.problems):
        warnings.warn(problem, stacklevel=2)
    frame = pd.json_normalize([{**record.pop("labels", {}), **record} for record in records])
    first = [name for name in LISTED_FIRST if name in frame]
    return frame[[*first, *(name for name in sorted(frame.columns) if name not in first)]]


def study(
    variant: str,
    task: str,
    scale: Scale | None = None,
    *,
    seed: int | None = None,
    sampler: SamplerName | None = None,
    study_id: str | None = None,
    runs: str | Path = "runs",
) -> "Study":
    """Return the study of a task on a variant or external model as a study of Optuna in memory.

    It is made from the records in a folder of runs, collected or not, and changing it changes no file. Scale, seed,
    sampler ("grid" for a grid) and id only choose among several studies; None means any.

    Raises:
        MissingData: the folder or such a study is not there.
        ValueError: there are several.
        DamagedFile: a file of the study is damaged.
    """
    from neobert.search.memory import study_in_memory

    root = Path(runs)
    if not root.is_dir():
        raise MissingData(f"there is no folder of runs at {root}: train something, or name another folder")
    files = RunFiles(root)
    wanted = {"scale": scale, "seed": seed, "sampler": sampler, "id": study_id}
    found = []
    for run_file in _run_files_of(files, task):
        own = run_file.specification(GlueStudy)
        sampled = "grid" if own.search is None else own.search.sampler
        facts = {"scale": run_file.labels.get("scale"), "seed": own.seed, "sampler": sampled, "id": own.id}
        is_named = variant == run_file.labels.get("model") or variant in run_file.labels.get("variants", ())
        if is_named and all(value in (None, facts[name]) for name, value in wanted.items()):
            found.append((run_file, facts))
    given = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
    what = f"{task} on {variant}" + (f" with {given}" if given else "")
    if not found:
        raise MissingData(f"there is no study of {what} in {root}: run sweeps/glue_grid.py, or name another folder")
    if len(found) > 1:
        listed = "; ".join(" ".join(f"{name} {value}" for name, value in facts.items()) for _, facts in found)
        raise ValueError(
            f"there are {len(found)} studies of {what}: choose one by its scale, seed, sampler or id ({listed})"
        )
    ((run_file, _),) = found
    return study_in_memory(Layout(files.root), run_file.specification(GlueStudy), run_file)


def _run_files_of(files: RunFiles, task: str) -> Iterator[RunFile]:
    """Yield the run files of a task's studies; of unreadable ones there is a warning."""
    for path in files.files("glue/*/studies/*/run.json"):
        if path.parent.parent.parent.name == task:
            try:
                yield read_run_file(path.parent)
            except (DamagedFile, MissingData) as error:
                warnings.warn(str(error), stacklevel=3)


@dataclass(frozen=True)
class TrainedVariant:
    """A variant that was pre-trained with one seed.

    `stages` are the specifications of its runs; `evaluate` and `export` use the weights of the last one.
    """

    name: str
    workspace: Workspace
    seed: int
    stages: tuple[PretrainingRun, ...]

    def __repr__(self) -> str:
        return f"<{self.name}, seed {self.seed}, held-out loss {self.loss:.3f}, {self.folder}>"

    @property
    def id(self) -> str:
        """The id of the last stage."""
        return self.stages[-1].id

    @property
    def folder(self) -> Path:
        """The folder of the last stage, with run.json, checkpoints, metrics.jsonl and done.json."""
        return self.workspace.layout.root / self.stages[-1].folder

    @cached_property
    def record(self) -> dict[str, Any]:
        """The record of the last stage."""
        return read_record(self.folder / "done.json")

    @property
    def loss(self) -> float:
        """The loss on the held-out documents of its own corpus, in nats per predicted token."""
        return float(self.record["scores"]["heldout_loss"][self.stages[-1].recipe.data.corpus])

    @property
    def metrics(self) -> "pd.DataFrame":
        """One row per logged step: stage (from 1), step, loss, learning_rate, gradient_norm, tokens_per_second,
        seconds, …, and heldout_loss at the milestones. Losses are in nats per predicted token."""
        import pandas as pd

        rows: dict[tuple[int, int], dict[str, Any]] = {}
        for stage in self.stages:
            for line in read_lines(self.workspace.layout.root / stage.folder / "metrics.jsonl", "step"):
                row = rows.setdefault((stage.stage + 1, line["step"]), {"stage": stage.stage + 1})
                row |= {name: value for name, value in line.items() if not isinstance(value, list | dict)}
        return pd.DataFrame(list(rows.values()))

    def evaluate(self, *names: str) -> "pd.DataFrame":
        """Fine-tune on the named tasks, GLUE's or the ladder's, every point of the grid once, and return the scores.

        Tasks that start from MNLI run it first. No name means all tasks.

        One row per point of the grid: task, batch_size, learning_rate, weight_decay, trial, state, score (0..1, on the
        validation set).

        Raises:
            ValueError: there is no such task.
            MissingData: the source has no data of it.
            RunFailed: a point failed.
        """
        import pandas as pd

        known, workspace, layout = list(self.workspace.ladder.tasks), self.workspace, self.workspace.layout
        for name in names:
            if name not in known:
                raise ValueError(f"there is no task {name!r}: {did_you_mean(name, known)}")
        tasks = names or known
        row = plan_variant(workspace, self.name, self.seed, ["glue"])
        for task in names:
            if task in row.skipped:
                raise MissingData(f"cannot fine-tune on {workspace.source.label} data: {task}: {row.skipped[task]}")
        _run(workspace, with_tasks(row, tasks))
        trials = [
            {"task": study.task, **plain(trial.point), "trial": trial.id, **part_entry(layout, trial)}
            for study in GlueStudy.among(row.runs)
            if study.task in tasks
            for trial in study.trials(layout)
        ]
        return pd.DataFrame(trials)

    def export(self, target: Target, out: str | Path) -> Path:
        """Export the last checkpoint to a new folder for transformers ("hf") or sentence-transformers.

        The export is compared with the run, as by `python -m neobert.export`. Returns the folder.

        Raises:
            ValueError: there is no such target, the folder exists, or a package is missing.
            ParityOff: the outputs of the export differ from those of the run.
        """
        if target not in get_args(Target):
            raise ValueError(f"there is no target {target!r}: {did_you_mean(target, get_args(Target))}")
        export(self.folder, target, Path(out), None)
        return Path(out)


def _selection(
    ladder: str | Path | None, scale: Scale | None, data: str | Path | None, runs: str | Path = "runs"
) -> Selection:
    own = load(ladder)
    return Selection(own, own.scale_named(scale), None if data is None else str(data), Path(runs))


def _whole(name: str, value: int, read: Callable[[str], int]) -> int:
    """Convert a value as the flag of the same name does."""
    try:
        return read(str(value))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{name}: {error}") from None


def plan_variant(workspace: Workspace, name: str, seed: int, stages: Sequence[str]) -> VariantRow:
    """Plan the stages of a variant; raises ValueError if there is none of this name."""
    seed = _whole("seed", seed, seed_flag)
    ladder, scale = workspace.ladder, workspace.scale
    (row,) = plan(ladder, [one_variant(ladder, name)], [seed], scale, workspace.source, workspace.layout, stages)
    return row


def _run(workspace: Workspace, row: PlanRow) -> None:
    """Run what is missing of the row."""
    code = run_or_submit(workspace, [row], lambda: None)
    if code == EXIT_DONE:
        return
    index = Index(workspace.layout)
    failures = [failure for run in row.runs for failure in index.progress(run).failures]
    reasons = dict.fromkeys(f"{failure.name}: {failure.error}" for failure in failures)
    said = "; ".join(reasons) or f"{row.name} was stopped: the same call goes on with what is missing"
    raise {EXIT_REFUSED: ValueError, EXIT_MISSING: MissingData}.get(code, RunFailed)(said)
