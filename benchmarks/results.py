"""Result files: one JSON a measurement, {name, ratio, goal, met, figures, machine, versions, date}."""

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from neobert.files import json_bytes, read_json, replace_file
from neobert.records import PACKAGES, code_state

FOLDER = Path(__file__).parent / "results"
KEYS = ("name", "ratio", "goal", "met", "figures", "machine", "versions", "date")


@dataclass(frozen=True)
class Goal:
    """What a ratio should be, and in words what the ratio is."""

    bound: float
    side: Literal["at least", "at most"]
    of: str

    def is_met(self, ratio: float | None) -> bool | None:
        """Whether a ratio reaches the goal; None where it was not measured."""
        if ratio is None:
            return None
        return ratio >= self.bound if self.side == "at least" else ratio <= self.bound


def write_result(name: str, ratio: float | None, goal: Goal, figures: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write results/<name>.json whole; a `ratio` of None says that it was not measured here."""
    content = {
        "name": name,
        "ratio": None if ratio is None else round(ratio, 3),
        "goal": asdict(goal),
        "met": goal.is_met(ratio),
        "figures": figures,
        "machine": machine(),
        "versions": versions(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    path = folder / f"{name}.json"
    replace_file(path, json_bytes(content))
    return path


def write_unmeasured(name: str, goal: Goal, folder: Path = FOLDER) -> None:
    """Note that something was not measured; a measurement that is there already stays."""
    if not (folder / f"{name}.json").exists():
        write_result(name, None, goal, {}, folder)


def read_results(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """All result files, by name."""
    return [read_json(path) for path in sorted(folder.glob("*.json"))]


def machine() -> dict[str, Any]:
    """What decides speed, and nothing that tells one machine from an equal one."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"processor": _processor(), "cores": os.cpu_count(), "gpu": gpu, "system": platform.system()}


def _processor() -> str:
    """The processor's model as Linux names it, else the architecture."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def versions() -> dict[str, str | None]:
    """Python, the packages that decide speed, and the commit ("+" where the tree differed from it)."""
    state = code_state()
    commit = state["commit"] and state["commit"][:12] + ("+" if state["dirty"] else "")
    installed = {package: metadata.version(package) for package in PACKAGES}
    return {"python": platform.python_version(), "commit": commit, **installed}
