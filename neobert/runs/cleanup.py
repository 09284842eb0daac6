"""Cleanup of a folder of runs: find files that no run uses, and remove them.

Removable: checkpoints of finished training between the milestones (step 0, quarters and the end are results and stay)
and those of folders without run.json that nothing starts from; tokenised corpora, encoded pairs and encoded tasks that
no run.json refers to; weights and progress of trials that are neither the best of a closed study nor part of an open
one; code snapshots of more than a day ago, unless a job at work or a submission of an unfinished run needs them, or a
record came from their uncommitted code; temporaries that killed writers left more than a day ago.

Never removed: run.json, records, selections, metrics, predictions, claims, tokenizers, checkpoints of unfinished runs,
files set aside as damaged (*.damaged-1), and anything with a live claim. If a run.json cannot be read, everything that
it might refer to stays.
"""

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from neobert.console import logs, output, quantity, table
from neobert.data.manifest import MANIFEST, PARTIAL
from neobert.errors import DamagedFile, MissingData
from neobert.files import TEMPORARY_MARK, children, is_folder, is_there, matching, read_json, temporary_sibling
from neobert.identity import IDENTITY_DIGITS
from neobert.kinds.glue import GlueStudy
from neobert.runs.claims import acquire, is_claimed, last_owner
from neobert.runs.index import Index, read_index
from neobert.runs.kinds import CLOSING_FILES, RUN_FOLDERS, closing_record, kind_of, read_records
from neobert.runs.layout import SUBMISSION_CLAIM, Layout
from neobert.runs.records import SNAPSHOT_FILE, read_record
from neobert.runs.run_file import read_run_file
from neobert.runs.submissions import Submission
from neobert.runs.work import Work
from neobert.training.schedule import milestones

DAY_SECONDS = 86_400.0
REMOVED_AT_ONCE = 100
"""How many files are removed per check of what runs refer to, which takes as long as listing every run."""
IDENTIFIER = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Garbage:
    """Removable file or folder. `claims` are the names of the claims that guard it."""

    path: Path
    bytes: int
    reason: str
    claims: tuple[str, ...] = ()


def clean(layout: Layout, *, delete: bool, as_json: bool) -> None:
    """Print what can be removed or, with `delete`, remove it and print what was removed.

    Raises MissingData if the folder does not exist.
    """
    garbage, obstacles = collectable(layout)
    removed = set(collect(layout, garbage)) if delete else set()
    for obstacle in obstacles:
        logs().print(f"what this may refer to stays: {obstacle}", markup=False)
    named = [(one, str(one.path.relative_to(layout.root))) for one in garbage]
    if as_json:
        entries = [
            {"path": path, "bytes": one.bytes, "reason": one.reason, "removed": one in removed} for one, path in named
        ]
        print(json.dumps(entries, indent=1))
        return
    if garbage:
        cells = [(path, _size([one]), one.reason) for one, path in named]
        output().print(table(f"Garbage in {layout.root}", ("path", "size", "reason"), cells))
    output().print(_summary(garbage, removed, delete=delete), markup=False)


def _summary(garbage: Sequence[Garbage], removed: set[Garbage], *, delete: bool) -> str:
    if not delete:
        return f"{len(garbage)} could go, {_size(garbage)}" + ("; --gc --delete removes them" if garbage else "")
    kept = len(garbage) - len(removed)
    stayed = f"; {kept} stay: somebody took them up meanwhile" if kept else ""
    return f"{len(removed)} removed, {_size(removed)}{stayed}"


def _size(garbage: Iterable[Garbage]) -> str:
    return f"{quantity(sum(one.bytes for one in garbage))}B"


def collectable(layout: Layout) -> tuple[list[Garbage], list[str]]:
    """Return what can be removed now, sorted by path, and a sentence for each file that could not be read.

    Whatever an unreadable file may refer to stays. Writes nothing.
    """
    garbage, obstacles = _candidates(layout)
    return [each for each in garbage if not any(is_claimed(layout.claims(name)) for name in each.claims)], obstacles


def collect(layout: Layout, garbage: Sequence[Garbage]) -> list[Garbage]:
    """Remove garbage and return what was removed.

    Each file is removed while its claims are held, and only if it is still garbage: a run that was declared, submitted
    or started in the meantime keeps what it needs.
    """
    removed: list[Garbage] = []
    seen, paths = _fingerprint(layout), {found.path for found in _candidates(layout)[0]}
    for first in range(0, len(garbage), REMOVED_AT_ONCE):
        with ExitStack() as held:
            some = garbage[first : first + REMOVED_AT_ONCE]
            taken = [found for found in some if _take(layout, found.claims, held)]
            while (now := _fingerprint(layout)) != seen:
                seen, paths = now, {found.path for found in _candidates(layout)[0]}
            going = [found for found in taken if found.path in paths]
            renamed = [_unname(found.path) for found in going]
            removed += going
            for path in filter(None, renamed):
                shutil.rmtree(path)
    return removed


def _take(layout: Layout, names: Sequence[str], held: ExitStack) -> bool:
    """Take all these claims until the stack is closed. Returns False if one of them is held by another process."""
    for name in sorted(names):
        claim = acquire(layout.claims(name))
        if claim is None:
            return False
        held.enter_context(claim)
    return True


def _unname(path: Path) -> Path | None:
    """Remove a file, or rename a folder so that readers never see a partial one. Returns the folder's new path."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return None
    return path.rename(temporary_sibling(path))


@dataclass
class Uses:
    """Files that the runs of a folder use.

    `paths` are files and folders that a run.json or record refers to: data, and runs whose weights others start from.
    `all_corpora`: an unfinished run reads every corpus of its source (`--heldout all`), and only the source names them.
    `finished` are training runs with a record, by folder. `weights` are the ids of trials that are the best of a closed
    study or belong to an open one.
    `unreadable` has a sentence for each file that may refer to anything.
    """

    paths: set[Path] = field(default_factory=set)
    all_corpora: bool = False
    finished: dict[Path, Work] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)


def read_uses(layout: Layout) -> Uses:
    """Return what all runs below a folder use, finished or not."""
    uses = Uses()
    for path in _run_files(layout):
        try:
            _add(uses, layout, path.parent)
        except (DamagedFile, MissingData, OSError, KeyError, TypeError) as error:
            uses.unreadable.append(f"{path} is not readable: {type(error).__name__}: {error}")
    for path in matching(layout.root, "glue/*/studies/*/selection.json"):  # also of a study whose run.json is gone
        try:
            uses.weights.add(str(GlueStudy.read_closing(path)["trial"]))
        except (DamagedFile, OSError, KeyError, TypeError) as error:
            uses.unreadable.append(f"{path} is not readable: {error}")
    return uses


def _add(uses: Uses, layout: Layout, folder: Path) -> None:
    run_file = read_run_file(folder)
    work: Work = run_file.run
    uses.paths.update(work.uses(layout), (layout.root / reference for reference in work.after))
    record = closing_record(layout, folder.relative_to(layout.root).as_posix())
    if not is_there(record):
        uses.all_corpora |= work.kind == "pretraining" and run_file.execution.heldout == "all"
        uses.weights.update(work.results(layout))
        if work.id != folder.name:
            uses.unreadable.append(f"{folder} was named by another numerics version: what it uses is not known")
    elif work.counted == "steps":
        uses.finished[folder] = work
        inputs = read_record(record)["inputs"]  # a run of another numerics version: the id of its data then
        if inputs.get("data") is not None:
            uses.paths.add(layout.data(inputs["data"]))
        uses.paths.update(layout.pairs(name) for name in inputs.get("pairs", ()))


def _fingerprint(layout: Layout) -> tuple[list[Path], int]:
    """Return a value that changes when a run is declared or closed, or a job is submitted."""
    files = [*_run_files(layout), *(path for pattern in CLOSING_FILES for path in matching(layout.root, pattern))]
    submissions = layout.submissions
    return sorted(files), submissions.stat().st_size if is_there(submissions) else 0


def _run_files(layout: Layout) -> list[Path]:
    return sorted(path for pattern in RUN_FOLDERS for path in matching(layout.root, f"{pattern}/run.json"))


def _candidates(layout: Layout) -> tuple[list[Garbage], list[str]]:
    """Return all garbage, claimed or not and none inside another, and a sentence for each unreadable file."""
    index = read_index(layout)
    uses = read_uses(layout)
    submissions, problems = index.submissions, tuple(index.problems)
    found = [*_superseded_checkpoints(uses), *_left_by_killed_writers(layout)]
    if not problems:
        found += _snapshots(layout, index, submissions)
    if not uses.unreadable:
        found += [*_abandoned_checkpoints(layout, uses), *_data(layout, uses), *_trial_weights(layout, uses)]
        found += _trial_progress(layout, uses)
    paths = {garbage.path for garbage in found}
    outermost = (garbage for garbage in found if paths.isdisjoint(garbage.path.parents))
    return sorted(outermost, key=lambda garbage: garbage.path), [*uses.unreadable, *problems]


def _garbage_at(path: Path, reason: str, *claims: str) -> Garbage:
    """Return a path as garbage with its size, without files that vanish meanwhile."""
    total = 0
    for file in _files(path):
        try:
            total += file.lstat().st_size
        except FileNotFoundError:
            continue
    return Garbage(path, total, reason, claims)


def _age_seconds(path: Path) -> float:
    """Return the age of a file, or of the newest file in a folder; 0 if it vanishes meanwhile."""
    try:
        return time.time() - max(file.lstat().st_mtime for file in (path, *_files(path)))
    except FileNotFoundError:
        return 0.0


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir() or path.is_symlink():
        yield path
    else:
        yield from (file for file in path.rglob("*") if not file.is_dir())


def _folders(parent: Path) -> list[Path]:
    """Return the folders in a folder whose names are ids, without links."""
    named = (path for path in children(parent) if IDENTIFIER.fullmatch(path.name.removesuffix(PARTIAL)))
    return [path for path in named if is_folder(path) and not path.is_symlink()]


def _superseded_checkpoints(uses: Uses) -> Iterator[Garbage]:
    for run_folder, work in uses.finished.items():
        assert work.total is not None
        folder = run_folder / "checkpoints"
        steps = {path.name.removeprefix("step-"): path for path in children(folder, "step-*") if not path.is_symlink()}
        on_disk = {int(name): path for name, path in steps.items() if name.isascii() and name.isdecimal()}
        if work.total not in on_disk or not _is_whole(on_disk[work.total]):
            continue  # the checkpoint before is the newest that can be read
        for step in on_disk.keys() - milestones(work.total):
            yield _garbage_at(on_disk[step], f"checkpoint between the milestones of {work.title}", run_folder.name)


def _is_whole(checkpoint: Path) -> bool:
    """Return whether every file in the manifest exists. Checksums are verified by whoever reads the files."""
    try:
        return all((checkpoint / name).is_file() for name in read_json(checkpoint / MANIFEST)["sha256"])
    except (DamagedFile, OSError, KeyError, TypeError):
        return False


def _abandoned_checkpoints(layout: Layout, uses: Uses) -> Iterator[Garbage]:
    for folder in (*_folders(layout.root / "pretraining"), *_folders(layout.root / "contrastive")):
        is_described = is_there(folder / "run.json") or is_there(folder / "done.json")
        checkpoints = folder / "checkpoints"
        if not is_described and folder not in uses.paths and is_folder(checkpoints):
            yield _garbage_at(checkpoints, "checkpoints of a run without run.json and record", folder.name)


def _data(layout: Layout, uses: Uses) -> Iterator[Garbage]:
    """Yield unused tokenised corpora (also unfinished ones), encoded pairs and encoded tasks."""
    for folder in _folders(layout.root / "data"):
        data_id = folder.name.removesuffix(PARTIAL)
        if layout.data(data_id) not in uses.paths and not uses.all_corpora:
            yield _garbage_at(folder, "tokenised corpus that no run.json refers to", *_corpus_claims(data_id))
    for folder in sorted((layout.root / "data" / "pairs").glob("*")):
        is_encoded = IDENTIFIER.fullmatch(folder.name[-IDENTITY_DIGITS:]) and TEMPORARY_MARK not in folder.name
        if is_encoded and folder not in uses.paths and folder.is_dir() and not folder.is_symlink():
            yield _garbage_at(folder, "encoded pairs that no run.json refers to", f"pairs-{folder.name}")
    for path in sorted((layout.root / "data" / "glue").glob("*.safetensors")):
        if path not in uses.paths:
            yield _garbage_at(path, "encoded task that no study refers to")


def _trial_weights(layout: Layout, uses: Uses) -> Iterator[Garbage]:
    for path in sorted(layout.root.glob("glue/*/*.safetensors")):
        if IDENTIFIER.fullmatch(path.stem) and path.stem not in uses.weights:
            yield _garbage_at(path, "weights of a trial that is no study's best", path.stem)


def _trial_progress(layout: Layout, uses: Uses) -> Iterator[Garbage]:
    for path in sorted(layout.root.glob("glue/*/*.progress")):
        is_recorded = is_there(path.with_suffix(".json"))
        if IDENTIFIER.fullmatch(path.stem) and (is_recorded or path.stem not in uses.weights):
            yield _garbage_at(path, "progress of a trial that is done or that no study plans", path.stem)


def _left_by_killed_writers(layout: Layout) -> Iterator[Garbage]:
    """Yield temporaries in which nothing was written for a day."""
    for path in sorted(layout.root.rglob(f"*{TEMPORARY_MARK}*")):
        if _age_seconds(path) > DAY_SECONDS:
            yield _garbage_at(path, "left by a killed writer", *_claims_near(layout, path))


def _claims_near(layout: Layout, path: Path) -> tuple[str, ...]:
    """Return the claims whose owners write to the folder of a file."""
    claims: tuple[str, ...] = ()
    match path.relative_to(layout.root).parts:
        case ["pretraining" | "contrastive", run_id, _, *_]:
            claims = (run_id,)
        case ["glue", _, "studies", study_id, _, *_]:
            claims = (f"{study_id}-selection",)
        case ["glue" | "mteb" | "readouts", _, name]:
            claims = (name.split(".")[0],)
        case ["data", "tokenizers", *_]:
            claims = tuple(sorted(claim.name for claim in (layout.root / "claims").glob("tokenizer-*")))
        case ["data", "glue" | "errors", *_]:
            pass
        case ["data", "readouts", name]:
            claims = (f"readouts-{name.split('.')[0]}",)
        case ["data", "pairs", name, *_]:
            claims = (f"pairs-{name.split(TEMPORARY_MARK)[0]}",)
        case ["data", name, *_]:
            claims = _corpus_claims(name.split(".")[0])
        case ["snapshots", *_]:
            claims = (SUBMISSION_CLAIM,)
    return claims


def _corpus_claims(data_id: str) -> tuple[str, ...]:
    """Return the claims whose owners write a tokenised corpus."""
    return f"corpus-{data_id}", f"data-{data_id}"


def _snapshots(layout: Layout, index: Index, submissions: Sequence[Submission]) -> Iterator[Garbage]:
    """Yield code snapshots that neither a job of unfinished work nor the provenance of a record needs."""
    old = [path for path in _folders(layout.root / "snapshots") if _age_seconds(path / SNAPSHOT_FILE) > DAY_SECONDS]
    needed = _needed_snapshots(layout, index, submissions) if old else set()
    unneeded = [path for path in old if f"snapshots/{path.name}" not in needed]
    uncommitted = {path.name for path in unneeded if not _is_clean(path)}
    records, problems = read_records(layout.root) if uncommitted else ([], [])
    evidence = uncommitted if problems else uncommitted & {record.get("snapshot") for record in records}
    for path in unneeded:
        if path.name not in evidence:
            yield _garbage_at(path, "code that no submission of an unfinished run refers to", SUBMISSION_CLAIM)


def _needed_snapshots(layout: Layout, index: Index, submissions: Sequence[Submission]) -> set[str | None]:
    """Return the snapshots of submissions whose jobs are at work or whose work is not done."""

    @cache
    def is_over(folder: str) -> bool:
        if kind_of(folder) is not None and is_there(closing_record(layout, folder)):
            return True
        try:
            return index.progress(read_run_file(layout.root / folder).run).state == "done"
        except (DamagedFile, MissingData):
            return False

    at_work = _jobs_at_work(layout)
    return {
        one.snapshot
        for one in submissions
        if one.job in at_work or not one.references or not all(map(is_over, one.folders))
    }


def _is_clean(snapshot: Path) -> bool:
    """Return whether the snapshot's commit is known and has the same code."""
    try:
        content = read_json(snapshot / SNAPSHOT_FILE)
        return bool(content["commit"]) and content["dirty"] is False
    except (DamagedFile, OSError, KeyError, TypeError):
        return False


def _jobs_at_work(layout: Layout) -> set[str]:
    """Return the jobs of all live claims; for arrays, the id without the element."""
    owners = (last_owner(folder) for folder in children(layout.root / "claims"))
    return {owner.job.partition("_")[0] for owner in owners if owner is not None and owner.is_live and owner.job}
