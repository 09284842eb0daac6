"""A stand-in of the hub in the place of the real one, and what the tests of prefetch ask of a folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants as hub_constants
import pytest

from ablations import prefetch
from neobert.files import sha256_of
from tests.ablations.hub_stand_in import StandIn, published_repositories, serving

WEB = "datasets/tiiuae/falcon-refinedweb"
LLAMA = "models/meta-llama/Llama-2-7b-hf"
OWN = ("manifest.json", "verified.json")
FILES = 24
"""Files of the stand-in that the ladder reads."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, with nobody logged in."""
    monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with serving(published_repositories()) as stand_in:
        monkeypatch.setattr(hub_constants, "ENDPOINT", stand_in.address)
        template = stand_in.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield stand_in


def run(folder: Path, *flags: str) -> int:
    """The command for the whole ladder."""
    return prefetch.main(["--variant", "all", "--data-dir", str(folder), *flags])


def contents(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file but those of prefetch's own."""
    files = [path for path in folder.rglob("*") if path.is_file() and not {".prefetch", ".cache"} & set(path.parts)]
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files if path.name not in OWN}


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """The manifest's files."""
    found: dict[str, dict[str, Any]] = json.loads((folder / "manifest.json").read_text())["files"]
    return found
