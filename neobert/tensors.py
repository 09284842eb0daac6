"""The door to safetensors files: they follow the umask, and one that may not be read is not taken for absent."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from neobert.files import sync_file

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(tensors: "Mapping[str, Tensor]", path: Path) -> None:
    """Write tensors, which are contiguous and share no memory, and flush them to disk."""
    from safetensors.torch import save_file

    save_file(dict(tensors), path)
    sync_file(path)


def load_tensors(path: Path) -> "dict[str, Tensor]":
    """Read all tensors of a file. Raises OSError with the system's reason if it cannot be read."""
    from safetensors.torch import load_file

    _require_readable(path)
    return load_file(path)


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a file to read names, shapes and single tensors as arrays. Raises OSError as `load_tensors`."""
    _require_readable(path)
    with safe_open(path, framework="numpy") as file:
        yield file


def _require_readable(path: Path) -> None:
    """Raise the system's error if a file cannot be opened: safetensors calls every such file absent."""
    path.open("rb").close()
