"""Golden files: what was made before is compared with what is made now, or written anew with --write-golden."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from neobert.identity import difference

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ANEW = "if that is meant to be, write the files anew: python -m pytest --write-golden"
DIFFERENCES_SHOWN = 10


@dataclass(frozen=True)
class GoldenFiles:
    """The files below tests/golden: compared with, or with `write` written."""

    write: bool
    folder: Path = GOLDEN

    def names(self, file: str) -> set[str]:
        """The names that a file has entries for."""
        return set(self._read(file))

    def compare_text(self, file: str, text: str) -> None:
        """The whole text."""
        if self.write:
            self._replace(file, text)
        recorded = (self.folder / file).read_text(encoding="utf-8") if (self.folder / file).exists() else ""
        changed = "\n".join(unified_diff(recorded.splitlines(), text.splitlines(), "golden", "now", n=1, lineterm=""))
        assert recorded == text, f"golden/{file} says otherwise; {ANEW}\n{changed}"

    def compare_entries(self, file: str, made: Mapping[str, Any]) -> None:
        """Every entry that is recorded, by its name; those that are not are the business of one test alone, so that
        whoever adds a variant gets one sentence and not one a file."""
        if self.write:
            self._replace(file, json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        recorded = self._read(file)
        gone = sorted(recorded.keys() - made.keys())
        assert not gone, f"golden/{file} records what is no more: {', '.join(gone)}; {ANEW}"
        now = json.loads(json.dumps({name: made[name] for name in recorded}))
        lines = [f"{path}: {before} → {after}" for path, (before, after) in difference(recorded, now).items()]
        shown = "\n".join([*lines[:DIFFERENCES_SHOWN], *(["…"] if len(lines) > DIFFERENCES_SHOWN else [])])
        assert now == recorded, f"{len(lines)} differences from golden/{file}; {ANEW}\n{shown}"

    def _read(self, file: str) -> dict[str, Any]:
        path = self.folder / file
        entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return entries

    def _replace(self, file: str, text: str) -> None:
        (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / file).write_text(text, encoding="utf-8")
