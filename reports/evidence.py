"""Read a folder of runs into tidy frames: a row per record, a column per fact, a sentence per record left out.

Missing facts are None, or NaN in numeric columns. Every record becomes a row or a sentence, whatever its content.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from ablations.ladders import Ladder
from ablations.rates import PILOT_SEEDS
from ablations.scales import Scale, Vocabulary
from neobert.errors import DamagedFile, MissingData, name_first
from neobert.files import read_json
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.recipe import Value
from neobert.runs.collected import RunFiles
from neobert.runs.kinds import RECORD_PLACES, RECORDS
from neobert.runs.layout import Layout
from neobert.runs.records import read_record, read_sealed
from neobert.runs.run_file import EXECUTION, RunFile, read_run_file
from reports.facts import BY_LABEL, READERS, Facts, Measurement, share_weights, weights_up_to
from reports.labels import Labels, OthersRecords
from reports.searches import Tried, read_searches

HELDOUT = ("run", "seed", "corpus", "context", "loss", "bits_per_byte", "frequency_loss", "texts")
READ_READOUTS = ("blimp", "perplexity")
OF_READOUT = (*("id", "run", "seed", "scale", "data", "stage", "readout", "items", "code", "torch", "processor"),)
READOUTS = (*OF_READOUT, "corpus", "answer")
FAILED_PILOTS = ("id", "seed", "scale", "data", "weights", "recipe", "error")
NUMBERS = ("score", "decisive", "loss", "bits_per_byte", "frequency_loss")


@dataclass(frozen=True)
class Evidence:
    """All readable records below a folder of runs, read with a ladder.

    `runs` are finished stages of pre-training: `weights` is the recipe up to the stage without the seed, `recipe` the
    same as JSON, `origins` identifies the bytes of corpus and tokenizer, `previous` is the preceding stage,
    `curve_sha256` identifies the bytes of metrics.jsonl (None in older records). `heldout` has one row per run, corpus
    and context of a held-out loss; `context` is None for the run's own context.

    `trials` are fine-tuning runs at one grid point. `score` is 0..1. `state` is the record's state, "undefined" for a
    done trial whose metric has no value, or "failed" for one with an error and no record. `decisive` is the score that
    selects the best point. `start` is the study whose best trial it started from, None for pre-training; `fallback`
    is the reason why it started from pre-training although its task starts from another task. `model` is the name of
    an external model.

    `readouts` has one row per record and corpus, which is empty for BLiMP: `answer` is the `ReadoutScore`, `items`
    identifies the items. `perplexities` are those of the readout `perplexity`, which compares lengths and not models.

    `others` are the records that `Measurement` reads, by kind: `values` are their scores.

    `studies` are the grids that were begun, by id, and `nested` the nested scores (0..1) of those that have one.
    `searches` are those that were begun, by id.

    Runs with pilot seeds appear only in `pilots` and `heldout`; `failed_pilots` are those with an error and no record.
    """

    ladder: Ladder
    runs: pd.DataFrame
    pilots: pd.DataFrame
    failed_pilots: pd.DataFrame
    heldout: pd.DataFrame
    trials: pd.DataFrame
    embeddings: pd.DataFrame
    perplexities: pd.DataFrame
    readouts: pd.DataFrame
    throughputs: pd.DataFrame
    others: Mapping[str, pd.DataFrame]
    studies: Mapping[str, GlueStudy]
    searches: Mapping[str, Tried]
    nested: Mapping[str, float]
    problems: tuple[str, ...]

    def groups(self) -> list[tuple[Scale, str]]:
        """Return every (scale, data) with records; throughput records have neither."""
        frames = (self.runs, self.pilots, self.trials, self.embeddings, self.perplexities)
        return sorted({group for frame in frames for group in zip(frame.scale, frame.data, strict=True)})

    @property
    def seeds(self) -> dict[str, int]:
        return dict(zip(self.runs.id, self.runs.seed, strict=True))

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


def split_repeats(frame: pd.DataFrame, keys: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split rows into the first of each key and the repeats; `kept` is the id of the row kept in a repeat's place."""
    kept = frame.groupby(list(keys), sort=False).id.transform("first")
    return frame[frame.id == kept], frame.assign(kept=kept)[frame.id != kept]


def make_frame(rows: Iterable[Facts], columns: Iterable[str]) -> pd.DataFrame:
    """Build a frame from facts; columns of `NUMBERS` are floats, all others keep their values."""
    names = list(columns)
    frame = pd.DataFrame([[row.get(name) for name in names] for row in rows], columns=names, dtype=object)
    return frame.astype({name: float for name in names if name in NUMBERS})


def read_evidence(ladder: Ladder, root: Path) -> Evidence:
    """Read the records below a folder of runs, each file once. `RunFiles` says which files are left out.

    Raises:
        MissingData: the folder does not exist, has no usable record, or its list of digests was changed.
    """
    if not root.is_dir():
        raise MissingData(f"there is no folder of runs at {root}: run python ablations/run.py first or give --runs")
    problems: list[str] = []
    folder, others = RunFiles(root), OthersRecords(ladder)
    rows = _read_rows(folder, problems, others)
    if not any(rows.values()):
        raise _no_records(root, [*problems, *folder.problems], others)
    run_files = _read_studies(ladder, folder, problems)
    problems += _unfinished_runs(folder)
    searches = {tried.study.id: tried for tried in read_searches(ladder, folder, run_files, problems)}
    studies = {run_file.id: run_file.specification(GlueStudy) for run_file in run_files}
    grids = {name: study for name, study in studies.items() if study.search is None}
    known = [run_file for run_file in run_files if run_file.id in grids or run_file.id in searches]
    rows["glue"] += _failed_trials(ladder, folder, known, {row["id"] for row in rows["glue"]})
    failed_pilots = make_frame(_failed_pilots(ladder, folder, problems), FAILED_PILOTS)
    nested = dict(_nested_scores(folder, problems))
    problems += folder.problems
    frames = {
        kind: make_frame(sorted(rows[kind], key=lambda row: row["id"]), reader.columns())
        for kind, reader in READERS.items()
    }
    runs = frames["pretraining"].drop(columns=["heldout_loss", "heldout"])
    is_pilot = runs.seed.isin(list(PILOT_SEEDS))
    generic = [kind for kind, reader in READERS.items() if reader is Measurement]
    measured = {kind: frames[kind] for kind in ("glue", "mteb", "readouts", *generic)}
    on_pilots = {kind: frame.run.isin(set(runs.id[is_pilot])) for kind, frame in measured.items()}
    if count := sum(int(are.sum()) for are in on_pilots.values()):
        problems.append(f"{count} measurement(s) of runs with pilot seeds are left out: such runs only choose rates")
    measured = {kind: frame[~on_pilots[kind]] for kind, frame in measured.items()}
    readouts = make_frame(_readout_rows(measured["readouts"]), READOUTS)
    is_perplexity = readouts.readout == "perplexity"
    return Evidence(
        ladder=ladder,
        runs=runs[~is_pilot],
        pilots=runs[is_pilot],
        failed_pilots=failed_pilots,
        heldout=make_frame(_heldout_rows(rows["pretraining"]), HELDOUT),
        trials=measured["glue"],
        embeddings=measured["mteb"],
        perplexities=readouts[is_perplexity],
        readouts=readouts[~is_perplexity],
        throughputs=frames["throughput"],
        others={kind: measured[kind] for kind in generic},
        studies=grids,
        searches=searches,
        nested=nested,
        problems=tuple(sorted(problem.replace(f"{folder.root}{os.sep}", "") for problem in problems)),
    )


def _no_records(root: Path, problems: Sequence[str], others: OthersRecords) -> MissingData:
    """Return the error that says what a folder without any usable record has instead."""
    if told := others.sentences():
        return MissingData(f"{root} holds no record of this ladder, but {'; '.join(told)}")
    found = f"only {len(problems)} unusable one(s), the first: {sorted(problems)[0]}" if problems else "none"
    return MissingData(f"{root} holds no finished record ({found}): run python ablations/run.py first")


def _read_rows(folder: RunFiles, problems: list[str], others: OthersRecords) -> dict[str, list[Facts]]:
    """Return the facts of every record by kind."""
    rows: dict[str, list[Facts]] = defaultdict(list)
    retired = 0
    for path in folder.files(*RECORDS):
        try:
            record = read_record(path)
        except (DamagedFile, OSError) as error:
            problems.append(str(error))
            continue
        kind, name = str(record["kind"]), path.relative_to(folder.root).as_posix()
        if kind not in READERS or others.leaves_out(record.get("labels"), named=kind in BY_LABEL):
            continue
        if _is_retired(record):
            retired += 1
            continue
        facts = _read_facts(others.ladder, record, name)
        if isinstance(facts, str):
            problems.append(facts)
        else:
            rows[kind].append(facts)
    problems += others.sentences()
    if retired:
        problems.append(f"{retired} record(s) of retired readouts are left out")
    return rows


def _is_retired(record: Mapping[str, Any]) -> bool:
    """Whether a record is of a readout that is no longer read."""
    config = record.get("config")
    name = config.get("readout") if record["kind"] == "readouts" and isinstance(config, dict) else None
    return isinstance(name, str) and name not in READ_READOUTS


def _read_facts(ladder: Ladder, record: dict[str, Any], name: str) -> Facts | str:
    """Return the facts of the record in a file, or the reason why it is left out.

    Names of other files are made from ids, so a record that is not at its place is left out.
    """
    left_out = f"{record['kind']} record {record['id']} is left out"
    config = record.get("config")
    known = defaultdict(str, config if isinstance(config, dict) else {})
    place = RECORD_PLACES[record["kind"]].format(id=record["id"], config=known)
    if place != name:
        return f"{left_out}: it is at {name} and not at {place}, so it was copied or changed"
    try:
        return READERS[record["kind"]].read(record, ladder).by_column()
    except ValidationError as error:
        return f"{left_out}: {'; '.join(map(_name_error, error.errors()))}"


def _name_error(error: ErrorDetails) -> str:
    value = error["input"]
    seen = f", not {value!r}" if isinstance(value, str | float | int) else ""
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}{seen}"


def _heldout_rows(runs: Iterable[Facts]) -> Iterator[Facts]:
    for run in runs:
        own = {"run": run["id"], "seed": run["seed"]}
        yield from (own | {"corpus": corpus, "loss": loss} for corpus, loss in run["heldout_loss"].items())
        yield from (own | dict(score) for score in run["heldout"])


def _readout_rows(readouts: pd.DataFrame) -> Iterator[Facts]:
    for facts in readouts[[*OF_READOUT, "answers"]].to_dict("records"):
        answers = facts.pop("answers")
        for corpus, answer in answers.items():
            yield facts | {"corpus": "" if facts["readout"] == corpus else corpus, "answer": answer}


def _read_studies(ladder: Ladder, folder: RunFiles, problems: list[str]) -> list[RunFile]:
    """Read every study's run.json; unreadable ones are added to `problems`."""
    run_files = []
    for path in folder.files("glue/*/studies/*/run.json"):
        try:
            run_file = _read_run_file(folder, path.parent)
            if not OthersRecords(ladder).leaves_out(run_file.labels, named=False):
                Labels.read(run_file.labels, ladder)
                run_file.specification(GlueStudy)
                run_files.append(run_file)
        except (DamagedFile, MissingData, OSError, ValidationError) as error:
            problems.append(f"the study of {path} is left out: {error}")
    return run_files


def _nested_scores(folder: RunFiles, problems: list[str]) -> Iterator[tuple[str, float]]:
    """Yield id and nested score of every study that has one."""
    for path in folder.files("glue/*/studies/*/selection.json"):
        try:
            nested = read_sealed(path).get("nested")
        except (DamagedFile, OSError) as error:
            problems.append(str(error))
            continue
        score = nested.get("score") if isinstance(nested, dict) else None
        if isinstance(score, float) and abs(score) <= 1:
            yield path.parent.name, score


def _read_run_file(folder: RunFiles, of_run: Path) -> RunFile:
    """Read a run file and the newest execution beside it. Raises DamagedFile if one of them may not be read."""
    for path in (of_run / "run.json", of_run / EXECUTION):
        if reason := folder.why_not(path):
            raise DamagedFile(reason)
    return read_run_file(of_run)


class _Failure(Value):
    """What is read of an error.json."""

    model_config = ConfigDict(extra="ignore")

    error: str


def _failed_pilots(ladder: Ladder, folder: RunFiles, problems: list[str]) -> Iterator[Facts]:
    """Yield the pre-training stages with a pilot seed that have an error and no record."""
    for path in folder.files("pretraining/*/error.json"):
        if (path.parent / "done.json").exists():
            continue
        try:
            run_file, error = _read_run_file(folder, path.parent), _Failure.read(read_json(path)).error
            run = run_file.specification(PretrainingRun)
            is_other = OthersRecords(ladder).leaves_out(run_file.labels, named=False)
            if run.seed in PILOT_SEEDS and not is_other:
                labels = Labels.read(run_file.labels, ladder)
                weights, recipe = share_weights(weights_up_to(run.recipe, run.stage))
                own = {"id": run.id, "seed": run.seed, "weights": weights, "recipe": recipe, "error": error}
                yield own | {"scale": labels.scale, "data": labels.data}
        except (DamagedFile, MissingData, OSError, ValidationError) as reason:
            problems.append(f"the failure of {path} is left out: {reason}")


def _unfinished_runs(folder: RunFiles) -> list[str]:
    """Return one sentence if any pre-training stages were begun but have no record."""
    begun = folder.files("pretraining/*/run.json")
    names = [path.parent.name for path in begun if not (path.parent / "done.json").exists()]
    if not names:
        return []
    return [f"{len(names)} stage(s) of pre-training are not finished and not counted: {name_first(names)}"]


def _failed_trials(
    ladder: Ladder, folder: RunFiles, run_files: Iterable[RunFile], recorded: set[str]
) -> Iterator[Facts]:
    """Yield trials that have an error and no record, from the studies that planned them."""
    errors = {(path.parent.parent.name, path.stem) for path in folder.files("glue/*/errors/*.json")}
    lost = {(task, trial) for task, trial in errors if trial not in recorded}
    for run_file in run_files:
        study = run_file.specification(GlueStudy)
        if study.task not in {task for task, _ in lost}:
            continue
        for trial in study.trials(Layout(folder.root)):
            if (study.task, trial.id) in lost:
                lost.remove((study.task, trial.id))
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
                    **dict(Labels.read(run_file.labels, ladder)),
                }
