"""Arrays of a large corpus that are computed once and mapped from a file, so that processes of a machine share them."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neobert.files import NO_LINKS, children, differing, remember, sha256_of, sync_file, sync_folder, temporary_sibling

Integers = NDArray[np.int64]

LEAST_DOCUMENTS = 2**20
"""Arrays of a smaller corpus take a few megabytes, and each process has its own."""


@dataclass(frozen=True)
class SharedArrays:
    """The arrays beside a corpus in `folder`, of which `content` is a digest: arrays of other content are not its own.
    `verify` is whether their checksums are compared, once for files that do not change."""

    folder: Path
    content: str
    verify: bool

    def read(self, name: str, make: Callable[[], Integers]) -> Integers:
        """Return an int64 array. Where its file is absent or damaged, `make` computes it; in a folder that cannot be
        written, in each process."""
        for path in children(self.folder, f"{name}-{self.content}-*.npy"):
            with suppress(FileNotFoundError):  # removed by another process
                if not self.verify or not differing(self.folder, {path.name: path.stem.rpartition("-")[2]}):
                    return _mapped(path)
                path.unlink()
        made = make()
        try:
            return _mapped(self._keep(name, made))
        except OSError:
            return made

    def _keep(self, name: str, made: Integers) -> Path:
        """Write an array; its checksum is part of the name. Of processes that made it at once, all map the first."""
        temporary = temporary_sibling(self.folder / f"{name}.npy")
        try:
            with temporary.open("xb") as file:
                np.save(file, made, allow_pickle=False)
            sync_file(temporary)
            sha256 = sha256_of(temporary)
            path = self.folder / f"{name}-{self.content}-{sha256}.npy"
            _name(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self.folder)
        remember(self.folder, {path.name: sha256})
        return path


def _name(temporary: Path, path: Path) -> None:
    """Give a file its name, unless another process did. Without hard links it replaces the other's, which is equal."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        temporary.replace(path)


def _mapped(path: Path) -> Integers:
    mapped: Integers = np.load(path, mmap_mode="r", allow_pickle=False)
    return np.asarray(mapped)
