"""What may go from a folder of runs, because no run needs it, and its removal. Torch-free.

May go: checkpoints of finished stages and of finished contrastive fine-tuning between the milestones (step 0, quarters
and the end stay: they are results) and those of folders without run.json that nothing starts from; tokenised corpora,
encoded pairs and encoded tasks that no run.json refers to; weights of trials that are no closed study's best and belong
to no open study; code snapshots that no submission of an unfinished run refers to and that no record needs to say which
code made it; what killed writers left a day ago.

Never: run.json, records, selections, metrics, predictions, claims, tokenizers, checkpoints of unfinished stages, what
was set aside as damaged (*.damaged-1), and whatever somebody works on. Where some run.json cannot be read, all that it
might refer to stays.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ablations.garbage import DAY_SECONDS, Garbage, age_seconds, garbage_at
from ablations.leftovers import corpus_units, left_by_killed_writers, pairs_unit
from neobert.errors import DamagedFile, MissingData
from neobert.files import TEMPORARY_MARK, read_json, temporary_sibling
from neobert.grid.claims import acquire, is_claimed, last_owner
from neobert.identity import IDENTITY_DIGITS
from neobert.launching.submissions import SUBMISSION_UNIT
from neobert.layout import MANIFEST, PARTIAL, Layout
from neobert.overview.tree import Submitted, Tree
from neobert.progress import state_of
from neobert.records import SNAPSHOT_FILE, read_records
from neobert.references import References, fingerprint, read_references
from neobert.specifications import read_run_file

MILESTONES = 4
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


def milestones(steps: int) -> frozenset[int]:
    """The steps whose checkpoints a stage keeps: the start, the end and equal parts between."""
    return frozenset(steps * part // MILESTONES for part in range(MILESTONES + 1))


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
