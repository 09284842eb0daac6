"""What the runs of a folder refer to: data, encoded tasks, weights, code. All else is nobody's. Torch-free."""

from dataclasses import dataclass, field
from pathlib import Path

from neobert.embeddings.specification import ContrastiveRun
from neobert.errors import DamagedFile, MissingData
from neobert.launching.submissions import submissions_path
from neobert.layout import Layout
from neobert.progress import encoded_task_path, read_selection, trial_files
from neobert.records import read_record
from neobert.specifications import GlueStudy, PretrainingRun, read_run_file

Fingerprint = tuple[tuple[str, ...], int]


@dataclass
class References:
    """Everything that some run.json, record or selection names.

    `finished` are stages with a record, by id. `needed_runs` are those that a study, a later stage, contrastive
    fine-tuning or an evaluation starts from. `finished_contrastive` are contrastive runs with a record; `pairs` are the
    names of data sets of pairs in token ids. `selected_trials` are the best ones of closed studies, `open_trials` all
    of those that are not closed. `unreadable` holds a sentence for each file that may name anything.
    """

    finished: dict[str, PretrainingRun] = field(default_factory=dict)
    finished_contrastive: dict[str, ContrastiveRun] = field(default_factory=dict)
    needed_runs: set[str] = field(default_factory=set)
    pairs: set[str] = field(default_factory=set)
    data_ids: set[str] = field(default_factory=set)
    encoded_tasks: set[Path] = field(default_factory=set)
    selected_trials: set[str] = field(default_factory=set)
    open_trials: set[str] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)


def read_references(layout: Layout) -> References:
    """What all runs below a folder refer to, finished or not."""
    references = References()
    for path in _run_files(layout):
        try:
            run_file = read_run_file(path.parent)
            if run_file.pretraining is not None:
                _add_stage(references, run_file.pretraining, path.parent)
            if run_file.study is not None:
                _add_study(references, layout, run_file.study, path.parent)
            if run_file.contrastive is not None:
                _add_contrastive(references, run_file.contrastive, path.parent)
            if run_file.mteb is not None:
                references.needed_runs.update((run_file.mteb.weights, run_file.mteb.encoder.pretraining))
        except (DamagedFile, MissingData, OSError, KeyError, TypeError) as error:
            references.unreadable.append(f"{path} is not readable: {type(error).__name__}: {error}")
    _add_selections(references, layout)
    return references


def fingerprint(layout: Layout) -> Fingerprint:
    """A value that changes when a run is declared or closed, or a job submitted."""
    names = sorted(str(path) for path in (*_run_files(layout), *_closing_files(layout)))
    submissions = submissions_path(layout)
    return tuple(names), submissions.stat().st_size if submissions.exists() else 0


def _run_files(layout: Layout) -> list[Path]:
    root = layout.root
    return sorted(
        [
            *root.glob("pretraining/*/run.json"),
            *root.glob("glue/*/studies/*/run.json"),
            *root.glob("contrastive/*/run.json"),
            *root.glob("mteb/evaluations/*/run.json"),
        ]
    )


def _closing_files(layout: Layout) -> list[Path]:
    root = layout.root
    patterns = ("pretraining/*/done.json", "contrastive/*/done.json", "glue/*/studies/*/selection.json")
    return sorted(path for pattern in patterns for path in root.glob(pattern))


def _add_stage(references: References, run: PretrainingRun, folder: Path) -> None:
    if run.previous is not None:
        references.needed_runs.add(run.previous)
    references.data_ids.add(run.data_id)
    if (folder / "done.json").exists():
        references.data_ids.add(read_record(folder / "done.json")["inputs"]["data"])
        references.finished[folder.name] = run
    elif run.id != folder.name:
        references.unreadable.append(f"{folder} was named by another numerics version: which data it has is not known")


def _add_contrastive(references: References, run: ContrastiveRun, folder: Path) -> None:
    references.needed_runs.add(run.weights)
    references.pairs.update(run.pairs_id(pairs) for pairs in run.sets)
    if (folder / "done.json").exists():
        references.pairs.update(read_record(folder / "done.json")["inputs"]["pairs"])
        references.finished_contrastive[folder.name] = run
    elif run.id != folder.name:
        references.unreadable.append(f"{folder} was named by another numerics version: which pairs it has is not known")


def _add_study(references: References, layout: Layout, study: GlueStudy, folder: Path) -> None:
    references.needed_runs.add(study.weights)
    references.encoded_tasks.add(encoded_task_path(layout, study))
    if (folder / "selection.json").exists():
        return
    references.open_trials.update(files.id for files in trial_files(layout, study))
    if study.id != folder.name:
        references.unreadable.append(f"{folder} was named by another numerics version: its trials are not known")


def _add_selections(references: References, layout: Layout) -> None:
    """The best trial of every study that was closed, also of one whose run.json is gone."""
    for path in layout.root.glob("glue/*/studies/*/selection.json"):
        try:
            content = read_selection(path)
            references.selected_trials.add(str(content["trial"]))
        except (DamagedFile, OSError, KeyError, TypeError) as error:
            references.unreadable.append(f"{path} is not readable: {error}")
