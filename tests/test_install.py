"""What is installed: the lock file is that of pyproject.toml, and names public hosts alone."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HOSTS = {"pypi.org", "files.pythonhosted.org", "download.pytorch.org"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=;]", each)[0].lower() for each in requirements}


def test_the_lock_holds_every_requirement_at_an_allowed_version() -> None:
    """After a change of pyproject.toml: uv lock (docs/guide.md)."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    packages: list[dict[str, Any]] = lock["package"]
    (own,) = [package for package in packages if package["name"] == "neobert-ablations"]
    assert {each["name"] for each in own["dependencies"]} == names(PROJECT["project"]["dependencies"])
    extras = {extra: names(wanted) for extra, wanted in PROJECT["project"]["optional-dependencies"].items()}
    assert {extra: {each["name"] for each in of} for extra, of in own["optional-dependencies"].items()} == extras
    torch = [package["version"] for package in packages if package["name"] == "torch"]
    pinned = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert {version.partition("+")[0] for version in torch} == set(pinned)


def test_the_lock_names_public_hosts_alone() -> None:
    found = set(re.findall(r"https?://([^/\"]+)", (ROOT / "uv.lock").read_text(encoding="utf-8")))
    assert found and found <= HOSTS
    assert "file:" not in (ROOT / "uv.lock").read_text(encoding="utf-8")


def test_what_a_wheel_holds_builds_a_model_of_the_ladder(tmp_path: Path) -> None:
    """Without the rest of the repository."""
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for package in packages:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import neobert, ablations; print(neobert.build('M1').state_dict().keys() and ablations.__file__)"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.strip() == str(tmp_path / "ablations" / "__init__.py"), ended.stderr


def test_torch_of_the_extras_is_that_of_the_package() -> None:
    (torch,) = [each for each in PROJECT["project"]["dependencies"] if each.startswith("torch")]
    assert PROJECT["project"]["optional-dependencies"]["cpu"] == [torch]
    assert PROJECT["project"]["optional-dependencies"]["cuda"] == [torch]
