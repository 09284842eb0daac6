"""Read a folder of runs into tidy frames: a row per record, a column per fact, a sentence per record left out.

Missing facts are None, or NaN in numeric columns. Every record becomes a row or a sentence, whatever its content.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ablations.ladders import Ladder
from ablations.rates import PILOT_SEEDS
from ablations.scales import Scale, Vocabulary
from neobert.errors import MissingData, RunFailed, name_first
from neobert.files import read_json
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.recipe import Point
from neobert.runs.collected import RunFiles
from neobert.runs.kinds import RECORD_PLACES, RECORDS
from neobert.runs.layout import Layout
from neobert.runs.records import read_record, read_sealed
from neobert.runs.run_file import read_run_file
from neobert.search.space import Search
from reports.curves import Curves
from reports.facts import BY_LABEL, READERS, Facts, Labels, share_weights, weights_up_to

HELDOUT = ("run", "seed", "corpus", "context", "loss", "bits_per_byte", "frequency_loss", "texts")
FAILED_PILOTS = ("id", "seed", "scale", "data", "weights", "recipe", "error")
STUDIES = ("id", "task", "own_task", "weights", "start", "protocol", "points", "grid", "seed", "nested", "tried")
NUMBERS = ("score", "decisive", "loss", "bits_per_byte", "frequency_loss")
UNREADABLE = (RunFailed, MissingData, OSError, ValueError, LookupError, TypeError, AttributeError)
"""Raised by reading a file that is damaged, or that has not what its place requires."""

Read = TypeVar("Read")


@dataclass(frozen=True)
class Tried:
    """What a search has tried.

    `points` are those whose trials ended with all seeds, in the order in which they were asked for, and `ended_early`
    is the number of others, which its pruner ended. `scored` are the ids of the trials at `points`, `trials` those at
    every point. `files` is the folder of its records.
    """

    files: RunFiles
    study: GlueStudy
    labels: Labels
    search: Search
    points: tuple[Point, ...]
    ended_early: int
    scored: frozenset[str]
    trials: frozenset[str]

    @property
    def sentence(self) -> str:
        """How many points were tried by which means: the footer of what uses a score of the search."""
        search, tried = self.search, len(self.points) + self.ended_early
        count = f"{tried}" if tried == search.trials else f"{tried} of {search.trials}"
        chosen = "of the grid" if search.sampler == "grid" else f"chosen by {search.sampler}"
        early = f", {self.ended_early} ended early by {search.pruner}" if search.pruner != "none" else ""
        return f"{self.study.about.title}: {count} points {chosen}{early}; not the whole grid"


@dataclass(frozen=True)
class Frames:
    """All readable records below a folder of runs, read with a ladder.

    `runs` are finished stages of pre-training: `weights` is the recipe up to the stage without the seed, `recipe` the
    same as JSON, `origins` identifies the bytes of corpus and tokenizer, `previous` is the preceding stage,
    `curve_sha256` identifies the bytes of metrics.jsonl (None in older records). `heldout` has one row per run, corpus
    and context of a held-out loss; `context` is None for the run's own context. `curves` reads their metrics.jsonl.

    `trials` are fine-tuning runs at one grid point. `score` is 0..1. `state` is the record's state, "undefined" for a
    done trial whose metric has no value, or "failed" for one with an error and no record. `decisive` is the score that
    selects the best point. `start` is the study whose best trial it started from, None for pre-training; `fallback`
    is the reason why it started from pre-training although its task starts from another task. `model` is the name of
    an external model.

    `readouts` has one row per record: `answers` are its `ReadoutScore` by corpus, `items` identifies the items.
    `by_kind` has the records of every other kind: `values` are the scores of a `Measurement`.

    `studies` are the grids that were begun: `start` is the study that one starts from, `grid` identifies its points in
    any order, `nested` is its nested score (0..1), if it has one. `searches` are those that were begun, each with what
    it has `tried`.

    Runs with pilot seeds appear only in `pilots` and `heldout`; `failed_pilots` are those with an error and no record.
    """

    ladder: Ladder
    runs: pd.DataFrame
    pilots: pd.DataFrame
    failed_pilots: pd.DataFrame
    heldout: pd.DataFrame
    trials: pd.DataFrame
    readouts: pd.DataFrame
    by_kind: Mapping[str, pd.DataFrame]
    studies: pd.DataFrame
    searches: pd.DataFrame
    curves: Curves
    problems: tuple[str, ...]

    def groups(self) -> list[tuple[Scale, str]]:
        """Return every (scale, data) with records; throughput records have neither."""
        frames = (self.runs, self.pilots, self.trials, self.by_kind["mteb"], self.readouts_of("perplexity"))
        return sorted({group for frame in frames for group in zip(frame.scale, frame.data, strict=True)})

    def readouts_of(self, name: str) -> pd.DataFrame:
        return self.readouts[self.readouts.readout == name]

    def runs_of(self, scale: Scale, data: str) -> pd.DataFrame:
        """Return the runs of one scale and data source, and the runs that its trials fine-tune."""
        own, trials = select_group(self.runs, scale, data), select_group(self.trials, scale, data)
        return self.runs[self.runs.id.isin({*own.id, *trials.run})]

    def vocabulary(self, scale: Scale, data: str) -> Vocabulary:
        """Return "trained" if the tokenizers of most runs were trained on their data, else "published"."""
        own = pd.concat([select_group(frame, scale, data).vocabulary for frame in (self.runs, self.pilots)])
        return "trained" if 2 * (own == "trained").sum() > len(own) else "published"


def select_group(frame: pd.DataFrame, scale: Scale, data: str) -> pd.DataFrame:
    """Select the rows of one scale and data source."""
    return frame[(frame.scale == scale) & (frame.data == data)]


def split_by_version(records: pd.DataFrame, keys: Sequence[str], weights: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return which records have the most common version among those with the same `keys` (by sum of weights, then by
    number), and this version for each record."""
    sizes = records.assign(weight=weights, size=1).groupby([*keys, "version"], as_index=False)[["weight", "size"]].sum()
    order = sizes.sort_values(["weight", "size", "version"], ascending=[False, False, True])
    most_common = order.drop_duplicates(list(keys))[[*keys, "version"]]
    version = records[list(keys)].merge(most_common, how="left", on=list(keys)).version.set_axis(records.index)
    return records.version == version, version


def describe_difference(first: str, second: str, *, but_for: Collection[str] = (), in_both: bool = False) -> str:
    """Describe the difference of two versions but for some parts, in those that both have or in all; empty if there is
    none."""
    ours, theirs = json.loads(first), json.loads(second)
    names = ours.keys() & theirs.keys() if in_both else {*ours, *theirs}
    values = [(name, ours.get(name), theirs.get(name)) for name in sorted(names.difference(but_for))]
    return ", ".join(f"{name} {own} and {other}" for name, own, other in values if own != other)


def make_frame(rows: Iterable[Facts], columns: Iterable[str]) -> pd.DataFrame:
    """Build a frame from facts; columns of `NUMBERS` are floats, all others keep their values."""
    names = list(columns)
    frame = pd.DataFrame([[row.get(name) for name in names] for row in rows], columns=names, dtype=object)
    return frame.astype({name: float for name in names if name in NUMBERS})


def grid_key(points: Iterable[Point]) -> str:
    """Identify a grid by its points, in any order."""
    return " ".join(sorted({point.model_dump_json() for point in points}))


def why_of_another(ladder: str) -> str:
    """Describe records that were planned on another ladder than that of the reports."""
    if ladder:
        return f"planned on the ladder {ladder}: pass --ladder and that file to include them"
    return "planned on the paper's ladder: leave out --ladder to include them"


def read_frames(ladder: Ladder, root: Path) -> Frames:
    """Read the records below a folder of runs, each file once. `RunFiles` says which files are left out.

    Raises:
        MissingData: the folder does not exist, has no usable record, or its archive is damaged.
    """
    if not root.is_dir():
        raise MissingData(f"there is no folder of runs at {root}: run python ablations/run.py first or give --runs")
    reader = _Reader(ladder, root)
    facts = reader.records()
    begun = dict(reader.read(reader.study, "glue/*/studies/*/run.json"))
    tried = dict(reader.read(lambda path: reader.tried(path, begun), "glue/*/studies/*/run.json"))
    nested = dict(reader.read(_nested_score, "glue/*/studies/*/selection.json"))
    known = {name: each for name, each in begun.items() if each[0].search is None or name in tried}
    facts["glue"] += reader.failed_trials(known.values(), {row["id"] for row in facts["glue"]})
    failed_pilots = make_frame(reader.read(reader.failed_pilot, "pretraining/*/error.json"), FAILED_PILOTS)
    frames = {
        kind: make_frame(sorted(facts[kind], key=lambda row: row["id"]), columns.columns())
        for kind, columns in READERS.items()
    }
    runs = frames.pop("pretraining").drop(columns=["heldout_loss", "heldout"])
    is_pilot = runs.seed.isin(list(PILOT_SEEDS))
    frames = reader.without_runs(frames, set(runs.id[is_pilot]))
    rows = [_study_row(study, nested.get(name), tried.get(name)) for name, (study, _) in known.items()]
    studies = make_frame(rows, STUDIES)
    return Frames(
        ladder=ladder,
        runs=runs[~is_pilot],
        pilots=runs[is_pilot],
        failed_pilots=failed_pilots,
        heldout=make_frame(_heldout_rows(facts["pretraining"]), HELDOUT),
        trials=frames.pop("glue"),
        readouts=frames.pop("readouts"),
        by_kind=frames,
        studies=studies[studies.tried.isna()],
        searches=studies[studies.tried.notna()],
        curves=Curves(reader.files.root, runs[~is_pilot]),
        problems=reader.problems(),
    )


def _heldout_rows(runs: Iterable[Facts]) -> Iterator[Facts]:
    for run in runs:
        own = {"run": run["id"], "seed": run["seed"]}
        yield from (own | {"corpus": corpus, "loss": loss} for corpus, loss in run["heldout_loss"].items())
        yield from (own | dict(score) for score in run["heldout"])


def _study_row(study: GlueStudy, nested: float | None, tried: Tried | None) -> Facts:
    protocol, start = study.protocol.model_dump_json(), study.starts_from.study
    derived = {"protocol": protocol, "start": start, "grid": grid_key(study.points), "nested": nested, "tried": tried}
    return {"id": study.id, **dict(study), **derived}


def _nested_score(path: Path) -> tuple[str, float] | None:
    """Return the study of a selection and its nested score, if it has one."""
    nested = read_sealed(path).get("nested")
    score = nested.get("score") if isinstance(nested, dict) else None
    return (path.parent.name, score) if isinstance(score, float) and abs(score) <= 1 else None


class _Reader:
    """Reads a folder of runs; what cannot be read or is of another ladder becomes a sentence."""

    def __init__(self, ladder: Ladder, root: Path) -> None:
        self.ladder, self.files = ladder, RunFiles(root)
        self._root, self._layout = root, Layout(self.files.root)
        self._problems: list[str] = []
        self._of_others = Counter[str]()
        """Number of records that are left out because of their ladder, by its name."""

    def problems(self) -> tuple[str, ...]:
        """Return the sentences, with paths below the folder."""
        begun = self.files.files("pretraining/*/run.json")
        names = [path.parent.name for path in begun if not (path.parent / "done.json").exists()]
        unfinished = f"{len(names)} stage(s) of pre-training are not finished and not counted: {name_first(names)}"
        found = (*self._problems, *([unfinished] if names else []), *self._told_of_others(), *self.files.problems)
        return tuple(sorted(problem.replace(f"{self.files.root}{os.sep}", "") for problem in found))

    def _told_of_others(self) -> list[str]:
        return [f"{count} record(s) {why_of_another(name)}" for name, count in sorted(self._of_others.items())]

    def read(self, read: Callable[[Path], Read | None], *patterns: str) -> Iterator[Read]:
        """Yield what `read` returns for each file, but None; a file that it cannot read becomes a sentence."""
        for path in self.files.files(*patterns):
            try:
                found = read(path)
            except UNREADABLE as error:
                errors = error.errors() if isinstance(error, ValidationError) else ()
                reason = "; ".join(map(_name_error, errors)) or str(error)
                self._problems.append(reason if str(path) in reason else f"{path} is left out: {reason}")
            else:
                if found is not None:
                    yield found

    def _is_of_another(self, labels: Mapping[str, Any], *, named: bool = False) -> bool:
        """Whether a record is left out because of its labels. Records matched by recipe may belong to another
        ladder if their scale is known; records matched by label (`named`) may not."""
        if str(labels.get("ladder", "")) == self.ladder.name:
            return False
        return named or bool(labels.get("model")) or labels.get("scale") not in self.ladder.known_scales

    def records(self) -> dict[str, list[Facts]]:
        """Return the facts of every record by kind. Raises MissingData if there are none."""
        facts: dict[str, list[Facts]] = defaultdict(list)
        for kind, found in self.read(self._record, *RECORDS):
            facts[kind].append(found)
        if facts:
            return facts
        if told := self._told_of_others():
            raise MissingData(f"{self._root} holds no record of this ladder, but {'; '.join(told)}")
        problems = sorted([*self._problems, *self.files.problems])
        told_of = f"only {len(problems)} unusable one(s), the first: {problems[0]}" if problems else "none"
        raise MissingData(f"{self._root} holds no finished record ({told_of}): run python ablations/run.py first")

    def _record(self, path: Path) -> tuple[str, Facts] | None:
        """Return kind and facts of a record; None if reports read none of its kind, or not of its ladder.

        Names of other files are made from ids, so a record that is not at its place is refused.
        """
        record = read_record(path)
        kind, labels, config = str(record["kind"]), record.get("labels"), record.get("config")
        if kind not in READERS:
            return None
        if isinstance(labels, dict) and self._is_of_another(labels, named=kind in BY_LABEL):
            self._of_others[str(labels.get("ladder", ""))] += 1
            return None
        known = defaultdict(str, config if isinstance(config, dict) else {})
        place = RECORD_PLACES[kind].format(id=record["id"], config=known)
        if path != self.files.root / place:
            raise ValueError(f"it is not at {place}, so it was copied or changed")
        return kind, READERS[kind].read(record, self.ladder).by_column()

    def without_runs(self, frames: Mapping[str, pd.DataFrame], runs: set[str]) -> dict[str, pd.DataFrame]:
        """Return frames without the measurements of some runs, those with pilot seeds."""
        on_runs = {kind: frame.run.isin(runs) for kind, frame in frames.items() if "run" in frame}
        if count := sum(int(are.sum()) for are in on_runs.values()):
            told = "measurement(s) of runs with pilot seeds are left out: such runs only choose rates"
            self._problems.append(f"{count} {told}")
        return {kind: frame[~on_runs[kind]] if kind in on_runs else frame for kind, frame in frames.items()}

    def study(self, path: Path) -> tuple[str, tuple[GlueStudy, Labels]] | None:
        """Return id, specification and labels of a grid or search that was begun."""
        run_file = read_run_file(path.parent)
        if self._is_of_another(run_file.labels):
            return None
        return run_file.id, (run_file.specification(GlueStudy), Labels.read(run_file.labels, self.ladder))

    def tried(self, path: Path, begun: Mapping[str, tuple[GlueStudy, Labels]]) -> tuple[str, Tried] | None:
        """Return the id of a search and what it has tried."""
        study, labels = begun.get(path.parent.name, (None, None))
        if study is None or labels is None or study.search is None:
            return None
        searched = study.search_trials(self._layout)
        done = [each for each in searched if each.state == "done"]
        return study.id, Tried(
            files=self.files,
            study=study,
            labels=labels,
            search=study.search,
            points=tuple(each.point for each in done),
            ended_early=sum(each.state == "pruned" for each in searched),
            scored=frozenset(trial.id for each in done for trial in each.trials),
            trials=frozenset(trial.id for each in searched for trial in each.trials),
        )

    def failed_pilot(self, path: Path) -> Facts | None:
        """Return a pre-training stage with a pilot seed that has an error and no record."""
        if (path.parent / "done.json").exists():
            return None
        run_file, error = read_run_file(path.parent), read_json(path)["error"]
        run = run_file.specification(PretrainingRun)
        if run.seed not in PILOT_SEEDS or self._is_of_another(run_file.labels):
            return None
        weights, recipe = share_weights(weights_up_to(run.recipe, run.stage))
        own = {"id": run.id, "seed": run.seed, "weights": weights, "recipe": recipe, "error": error}
        return own | dict(Labels.read(run_file.labels, self.ladder))

    def failed_trials(self, studies: Iterable[tuple[GlueStudy, Labels]], recorded: set[str]) -> Iterator[Facts]:
        """Yield trials that have an error and no record, from the studies that planned them."""
        paths = self.files.files("glue/*/errors/*.json")
        lost = {path.stem: path.parent.parent.name for path in paths if path.stem not in recorded}
        for study, labels in studies:
            if study.task not in lost.values():
                continue
            for trial in study.trials(self._layout):
                if lost.pop(trial.id, None):
                    yield {
                        "id": trial.id,
                        "task": study.task,
                        "state": "failed",
                        "run": study.weights,
                        "point": trial.point,
                        "seed": trial.study.seed,
                        "protocol": study.protocol.model_dump_json(),
                        "start": study.starts_from.study,
                        "fallback": study.starts_from.reason,
                        "own_task": study.own_task,
                        **dict(labels),
                    }


def _name_error(error: ErrorDetails) -> str:
    value = error["input"]
    seen = f", not {value!r}" if isinstance(value, str | float | int) else ""
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}{seen}"
