"""Names of storages for Optuna's study, as they are written and shown. Optuna is not imported here."""

import re
from pathlib import Path

from neobert.errors import did_you_mean

STORAGES = ("sqlite", "journal", "postgresql")
STORAGE_VARIABLE = "NEOBERT_GRID_STORAGE"  # an environment variable, since a URL may hold a password


def storage_address(name: str, root: Path) -> str:
    """The full address of a storage: a URL, or `journal:` and a file.

    Raises:
        ValueError: no such kind of storage.
    """
    kind, separator, rest = name.partition(":")
    if kind == "sqlite":
        return f"sqlite:{rest}" if separator else f"sqlite:///{root / 'optuna.db'}"
    if kind == "journal":
        return f"journal:{Path(rest).resolve() if rest else root / 'optuna.journal'}"
    if kind in ("postgresql", "postgres") and separator:
        return f"postgresql+psycopg:{rest}"
    if kind == "postgresql+psycopg" and separator:
        return name
    hint = "postgresql needs an address" if kind == "postgresql" else did_you_mean(kind, STORAGES)
    raise ValueError(
        f"{without_password(name)!r} is no storage ({hint}): give sqlite, journal, or postgresql://USER@HOST/DATABASE"
    )


def without_password(text: str) -> str:
    """An address, or a sentence with addresses in it, as it may be shown: `user:…@host`, `?password=…`."""
    text = re.sub(r"(://[^\s/:@]*):\S*@", r"\1:…@", text)
    return re.sub(r"(?i)\b(\w*(?:password|passwd|pwd|token|secret)=)('[^']*'|[^&#\s'\")]*)", r"\1…", text)


def cause_of(error: BaseException) -> str:
    """One line with the first cause of a storage's error, which drivers and Optuna wrap several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return without_password(lines[0]) if lines else type(error).__name__
