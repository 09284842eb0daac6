"""The files of a folder of runs that reports read and copy: regular files inside it.

A folder of runs from somebody else may hold links to private files of its reader.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neobert.runs.collected import Collected, table_of, unpacked, why_no_file
from neobert.runs.records import publish_sealed, sealed


class RunsFolder:
    """The files of a folder of runs that may be read; `problems` has a sentence for each one that is left out.

    `root` is the folder, or where the files of a collected folder are unpacked. The folder may be a link itself, and
    links in it may lead to other places in it. What lies elsewhere is left out, and so is what is no regular file.

    Raises:
        MissingData: the list of digests of a collected folder cannot be read, or was changed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._unpacked = folder, unpacked(folder)
        self.root = folder if self._unpacked is None else self._unpacked.root
        self.problems: list[str] = [] if self._unpacked is None else list(self._unpacked.problems)

    def files(self, *patterns: str) -> Iterator[Path]:
        """Yield the files that match a pattern and may be read, sorted within each pattern."""
        for pattern in patterns:
            for path in sorted(self.root.glob(pattern)):
                reason = self.why_not(path)
                if not reason:
                    yield path
                    continue
                problem = f"{reason}: left out"
                if problem not in self.problems[-1:]:  # once for all files of a linked folder
                    self.problems.append(problem)

    def why_not(self, path: Path) -> str:
        """Return the reason why a file below the folder may not be read; empty if it may, or is not there."""
        return why_no_file(self.root, path) if os.path.lexists(path) else ""

    def where(self, path: Path) -> Path:
        """Return a file of the folder itself, or the table of a collected folder that holds it."""
        return path if self._unpacked is None else self._folder / str(table_of(path.relative_to(self.root).as_posix()))

    def link(self, path: Path) -> str:
        """Return where a file lies: its path relative to the folder, or its table and line, `records.jsonl#L12`."""
        name = path.relative_to(self.root).as_posix()
        return name if self._unpacked is None else self._unpacked.links[name]

    def publish(self, path: Path, content: Mapping[str, Any]) -> bool:
        """Write a sealed file once, into the table of a collected folder. Returns False if an intact one exists."""
        is_new = publish_sealed(path, content)
        if is_new and self._unpacked is not None:
            Collected(self._folder).write({path.relative_to(self.root).as_posix(): sealed(content)})
        return is_new
