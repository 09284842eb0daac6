"""The data of a task: of GLUE's from the source of a run, of a ladder's own from the folder that it declares."""

from pathlib import Path
from typing import Any

from neobert.data.manifest import LOCAL_ORIGIN, files_origin, read_manifest
from neobert.data.sources import Source
from neobert.data.task_files import SplitFiles
from neobert.glue.tasks import Task


def own_files(task: Task) -> SplitFiles:
    """Return the files of a ladder's own task."""
    folder = Path(task.folder)
    return SplitFiles(task.name, folder.parent, folder.name, task.splits)


def missing_data(tasks: list[Task], source: Source) -> dict[str, str]:
    """Return the tasks that cannot be fine-tuned, and why."""
    of_source = source.tasks()
    reasons = {task.name: own_files(task).why_missing() if task.is_own else of_source[task.name] for task in tasks}
    return {name: reason for name, reason in reasons.items() if reason}


def data_origin(task: Task, source: Source) -> str:
    """Return a string that identifies the bytes of the data, wherever they are."""
    if not task.is_own:
        return source.task_origin(task.name)
    files = own_files(task)
    return files_origin(files.folder, read_manifest(files.folder), files.present())


def require_scorable(task: Task, source: Source) -> None:
    """Check every split before anything is trained for a task. Synthetic and published data need no check.

    Raises:
        MissingData, DamagedFile, ValueError: as `read_examples`, or a split cannot be learned or scored.
    """
    from neobert.glue.encoding import check_examples  # imports numpy

    if not data_origin(task, source).startswith(LOCAL_ORIGIN):
        return
    for split in task.splits:
        check_examples(task, f"{task.title} {split}", read_examples(task, split, source))


def read_examples(task: Task, split: str, source: Source) -> dict[str, list[Any]]:
    """Return the columns of one split.

    Raises:
        MissingData, DamagedFile, ValueError: as `SplitFiles.read`.
    """
    if not task.is_own:
        return source.task_examples(task.name, split)
    return own_files(task).read(split, (task.label_column, *task.columns))
