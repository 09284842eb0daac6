"""A file or folder that may go, its size and its age. Torch-free."""

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from neobert.console import logs, output, quantity, table
from neobert.errors import DamagedFile, MissingData
from neobert.files import TEMPORARY_MARK, read_json, temporary_sibling
from neobert.identity import IDENTITY_DIGITS
from neobert.runs.claims import acquire, is_claimed, last_owner
from neobert.runs.index import Submitted, Tree, encoded_task_path, read_selection, state_of, trial_files
from neobert.runs.layout import MANIFEST, PARTIAL, Layout
from neobert.runs.records import SNAPSHOT_FILE, read_record, read_records
from neobert.runs.specifications import ContrastiveRun, GlueStudy, PretrainingRun, read_run_file
from neobert.slurm.profile import SUBMISSION_UNIT, submissions_path
from neobert.training.schedule import milestones

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Garbage:
    """A file or folder that may go. `units` are those whose claims guard it."""

    path: Path
    bytes: int
    reason: str
    units: tuple[str, ...] = ()


def garbage_at(path: Path, reason: str, *units: str) -> Garbage:
    """A path as garbage, with its size."""
    return Garbage(path, size_bytes(path), reason, units)


def size_bytes(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; what vanishes meanwhile does not count."""
    total = 0
    for file in _files(path):
        try:
            total += file.lstat().st_size
        except FileNotFoundError:
            continue
    return total


def age_seconds(path: Path) -> float:
    """The age of the newest file in a folder, or of the file; none at all where it vanishes meanwhile."""
    try:
        return time.time() - max(file.lstat().st_mtime for file in (path, *_files(path)))
    except FileNotFoundError:
        return 0.0


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir() or path.is_symlink():
        yield path
    else:
        yield from (file for file in path.rglob("*") if not file.is_dir())


def left_by_killed_writers(layout: Layout) -> Iterator[Garbage]:
    """Temporaries in which nothing was written for a day."""
    for path in sorted(layout.root.rglob(f"*{TEMPORARY_MARK}*")):
        if age_seconds(path) > DAY_SECONDS:
            yield garbage_at(path, "left by a killed writer", *_units_near(layout, path))


def corpus_units(data_id: str) -> tuple[str, ...]:
    """The units of work that write a tokenised corpus."""
    return f"corpus-{data_id}", f"data-{data_id}"


def pairs_unit(pairs_id: str) -> str:
    """The unit of work that writes a data set of pairs in token ids."""
    return f"pairs-{pairs_id}"


def _units_near(layout: Layout, path: Path) -> tuple[str, ...]:
    """The units whose owners write where a file lies."""
    units: tuple[str, ...] = ()
    match path.relative_to(layout.root).parts:
        case ["pretraining" | "contrastive", run_id, _, *_]:
            units = (run_id,)
        case ["glue", _, "studies", study_id, _, *_]:
            units = (f"{study_id}-selection",)
        case ["glue" | "mteb", _, name]:
            units = (name.split(".")[0],)
        case ["data", "tokenizers", *_]:
            units = tuple(sorted(unit.name for unit in (layout.root / "claims").glob("tokenizer-*")))
        case ["data", "glue" | "errors", *_]:
            pass
        case ["data", "pairs", name, *_]:
            units = (pairs_unit(name.split(TEMPORARY_MARK)[0]),)
        case ["data", name, *_]:
            units = corpus_units(name.split(".")[0])
        case ["snapshots", *_]:
            units = (SUBMISSION_UNIT,)
    return units


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


IDENTIFIER = re.compile(r"[0-9a-f]{12}")


def collectable(layout: Layout) -> list[Garbage]:
    """All that may go now, in the order of paths; reads only.

    Raises:
        MissingData: there is no such folder.
    """
    if not layout.root.is_dir():
        raise MissingData(f"there is no folder {layout.root}: name the folder of runs with --runs")
    return [found for found in _candidates(layout) if not any(is_claimed(layout.claims(u)) for u in found.units)]


def obstacles(layout: Layout) -> list[str]:
    """A sentence for each file that could not be read, so that what it may refer to stays."""
    tree = Tree(layout)
    return [*read_references(layout).unreadable, *(tree.problems if tree.submissions is not None else ())]


def collect(layout: Layout, garbage: Iterable[Garbage]) -> list[Garbage]:
    """Remove garbage and return what was removed.

    Each piece is removed while holding the claims that guard it, and only if it still is garbage: a run that was
    declared, submitted or started in the meantime keeps what it needs.
    """
    removed = []
    seen, paths = fingerprint(layout), {found.path for found in _candidates(layout)}
    for found in garbage:
        with ExitStack() as held:
            if not _take(layout, found.units, held):
                continue
            now = fingerprint(layout)
            if now != seen:
                seen, paths = now, {candidate.path for candidate in _candidates(layout)}
            if found.path in paths:
                _remove(found.path)
                removed.append(found)
    return removed


def _take(layout: Layout, units: Sequence[str], held: ExitStack) -> bool:
    """Claim all units until the stack is left; False where somebody works on one of them."""
    for unit in sorted(units):
        claim = acquire(layout.claims(unit))
        if claim is None:
            return False
        held.enter_context(claim)
    return True


def _remove(path: Path) -> None:
    """Folders lose their name first, so that nobody ever finds half of one."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    nameless = temporary_sibling(path)
    path.rename(nameless)
    shutil.rmtree(nameless)


def _candidates(layout: Layout) -> list[Garbage]:
    """All garbage, whoever works; without what lies inside other garbage."""
    references = read_references(layout)
    found = [*_superseded_checkpoints(layout, references), *left_by_killed_writers(layout)]
    if not references.unreadable:
        found += [
            *_abandoned_checkpoints(layout, references),
            *_data(layout, references),
            *_pairs(layout, references),
            *_encoded_tasks(layout, references),
            *_trial_weights(layout, references),
        ]
    found += _snapshots(layout)
    paths = {garbage.path for garbage in found}
    outermost = (garbage for garbage in found if paths.isdisjoint(garbage.path.parents))
    return sorted(outermost, key=lambda garbage: garbage.path)


def _folders(parent: Path) -> list[Path]:
    """The folders in a folder that are named by an id; links are left alone."""
    paths = sorted(parent.iterdir()) if parent.is_dir() else []
    named = (path for path in paths if IDENTIFIER.fullmatch(path.name.removesuffix(PARTIAL)))
    return [path for path in named if path.is_dir() and not path.is_symlink()]


def _superseded_checkpoints(layout: Layout, references: References) -> Iterator[Garbage]:
    for run_folder, last, what in _finished(layout, references):
        folder = run_folder / "checkpoints"
        on_disk = {int(p.name[5:]): p for p in folder.glob("step-*") if p.name[5:].isdigit() and not p.is_symlink()}
        if last not in on_disk or not _is_whole(on_disk[last]):
            continue  # the one before is what there is
        for step in on_disk.keys() - milestones(last):
            yield garbage_at(on_disk[step], f"checkpoint between the milestones of {what}", run_folder.name)


def _finished(layout: Layout, references: References) -> Iterator[tuple[Path, int, str]]:
    """The folder of every run of training with a record, its last step, and what it is."""
    for run_id, stage in references.finished.items():
        yield layout.pretraining(run_id), stage.recipe.stages[-1].steps, "a finished stage"
    for run_id, run in references.finished_contrastive.items():
        yield layout.contrastive(run_id), run.protocol.steps, "finished contrastive fine-tuning"


def _is_whole(checkpoint: Path) -> bool:
    """Whether every file that the manifest names is there; their checksums are the reader's matter."""
    try:
        return all((checkpoint / name).is_file() for name in read_json(checkpoint / MANIFEST)["sha256"])
    except (DamagedFile, OSError, KeyError, TypeError):
        return False


def _abandoned_checkpoints(layout: Layout, references: References) -> Iterator[Garbage]:
    for folder in (*_folders(layout.root / "pretraining"), *_folders(layout.root / "contrastive")):
        is_described = (folder / "run.json").exists() or (folder / "done.json").exists()
        checkpoints = folder / "checkpoints"
        if not is_described and folder.name not in references.needed_runs and checkpoints.is_dir():
            yield garbage_at(checkpoints, "checkpoints of a run without run.json and record", folder.name)


def _data(layout: Layout, references: References) -> Iterator[Garbage]:
    for folder in _folders(layout.root / "data"):
        data_id = folder.name.removesuffix(PARTIAL)
        if data_id not in references.data_ids:
            yield garbage_at(folder, "tokenised corpus that no run.json refers to", *corpus_units(data_id))


def _pairs(layout: Layout, references: References) -> Iterator[Garbage]:
    for folder in sorted((layout.root / "data" / "pairs").glob("*")):
        is_encoded = IDENTIFIER.fullmatch(folder.name[-IDENTITY_DIGITS:]) and TEMPORARY_MARK not in folder.name
        if is_encoded and folder.name not in references.pairs and folder.is_dir() and not folder.is_symlink():
            yield garbage_at(folder, "encoded pairs that no run.json refers to", pairs_unit(folder.name))


def _encoded_tasks(layout: Layout, references: References) -> Iterator[Garbage]:
    for path in sorted((layout.root / "data" / "glue").glob("*.safetensors")):
        if path not in references.encoded_tasks:
            yield garbage_at(path, "encoded task that no study refers to")


def _trial_weights(layout: Layout, references: References) -> Iterator[Garbage]:
    needed = references.selected_trials | references.open_trials
    for path in sorted(layout.root.glob("glue/*/*.safetensors")):
        if IDENTIFIER.fullmatch(path.stem) and path.stem not in needed:
            yield garbage_at(path, "weights of a trial that is no study's best", path.stem)


def _snapshots(layout: Layout) -> Iterator[Garbage]:
    old = [path for path in _folders(layout.root / "snapshots") if age_seconds(path / SNAPSHOT_FILE) > DAY_SECONDS]
    tree = Tree(layout)
    submissions = tree.submissions
    if not old or tree.problems:
        return
    at_work = _jobs_at_work(layout)
    needed = {one.snapshot for one in submissions if one.job in at_work or not _is_over(layout, one)}
    named = {record.get("snapshot") for record in read_records(layout.root)[0]}
    for path in old:
        is_evidence = path.name in named and not _is_clean(path)
        if f"snapshots/{path.name}" not in needed and not is_evidence:
            yield garbage_at(path, "code that no submission of an unfinished run refers to", SUBMISSION_UNIT)


def _is_over(layout: Layout, submission: Submitted) -> bool:
    closings = ("done.json", "selection.json", MANIFEST)
    runs = [layout.root / folder for folder in submission.folders]
    return bool(runs) and all(
        any((run / name).exists() for name in closings) or _is_evaluated(layout, run) for run in runs
    )


def _is_evaluated(layout: Layout, folder: Path) -> bool:
    """Whether a folder is that of an evaluation whose tasks all have records."""
    try:
        evaluation = read_run_file(folder).mteb
    except (DamagedFile, MissingData):
        return False
    return evaluation is not None and state_of(layout, evaluation) == "done"


def _is_clean(snapshot: Path) -> bool:
    """Whether the snapshot's commit is known and holds the same code."""
    try:
        content = read_json(snapshot / SNAPSHOT_FILE)
        return bool(content["commit"]) and content["dirty"] is False
    except (DamagedFile, OSError, KeyError, TypeError):
        return False


def _jobs_at_work(layout: Layout) -> set[str]:
    """The jobs, arrays without their elements, of all that hold a claim now."""
    owners = (last_owner(folder) for folder in (layout.root / "claims").glob("*"))
    return {owner.job.partition("_")[0] for owner in owners if owner is not None and owner.is_live and owner.job}


def clean(layout: Layout, *, delete: bool, as_json: bool) -> None:
    """Print what may go; `delete` removes it first and prints what went.

    Raises:
        MissingData: there is no such folder.
    """
    garbage = collectable(layout)
    removed = set(collect(layout, garbage)) if delete else set()
    for obstacle in obstacles(layout):
        logs().print(f"what this may refer to stays: {obstacle}", markup=False)
    if as_json:
        print(json.dumps([_entry(layout, one, one in removed) for one in garbage], indent=1))
        return
    cells = [(one.path.relative_to(layout.root), _size([one]), one.reason) for one in garbage]
    if cells:
        output().print(table(f"Garbage in {layout.root}", ("path", "size", "reason"), cells))
    output().print(_summary(garbage, removed, delete=delete), markup=False)


def _entry(layout: Layout, garbage: Garbage, is_removed: bool) -> dict[str, object]:
    path = str(garbage.path.relative_to(layout.root))
    return {"path": path, "bytes": garbage.bytes, "reason": garbage.reason, "removed": is_removed}


def _summary(garbage: Sequence[Garbage], removed: set[Garbage], *, delete: bool) -> str:
    if not delete:
        return f"{len(garbage)} could go, {_size(garbage)}" + ("; --gc --delete removes them" if garbage else "")
    kept = len(garbage) - len(removed)
    told = f"; {kept} stay: somebody took them up meanwhile" if kept else ""
    return f"{len(removed)} removed, {_size(list(removed))}{told}"


def _size(garbage: Sequence[Garbage]) -> str:
    return f"{quantity(sum(one.bytes for one in garbage))}B"
