"""The files of a folder of runs that reports read and copy: regular files inside it.

A folder of runs from somebody else may hold links to private files of its reader.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from neobert.runs.collected import open_runs, why_no_file


class RunsFolder:
    """The files of a folder of runs that may be read; `problems` has a sentence for each one that is left out.

    `root`, `link`, `holder` and `publish` are those of `neobert.runs.collected.RunFiles`. The folder may be a link
    itself, and links in it may lead to other places in it. What lies elsewhere is left out, and so is what is no
    regular file.

    Raises:
        MissingData: the list of digests of a collected folder cannot be read, or was changed.
    """

    def __init__(self, folder: Path) -> None:
        self._files = open_runs(folder)
        self.root, self.problems = self._files.root, list(self._files.problems)
        self.link, self.holder, self.publish = self._files.link, self._files.holder, self._files.publish

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
