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
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    left_out = {str(ROOT / path) for path in wheel["exclude"]}
    assert all(Path(path).is_dir() for path in left_out)
    left_out.add(str(ROOT / "reports" / "out"))  # what commands made here; git ignores it, and so does the wheel

    def not_packed(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if name == "__pycache__" or f"{folder}/{name}" in left_out}

    for package in wheel["packages"]:
        assert (ROOT / package / "py.typed").is_file(), "without it, type checkers take everything for Any"
        shutil.copytree(ROOT / package, tmp_path / package, ignore=not_packed)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 4e6, "records are not packed"
    code = (
        "import ablations; ablations.build('M1'); from reports.make_figures import main; "
        "assert main(['--runs', 'nowhere']) == 3; print(ablations.__file__)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.strip() == str(tmp_path / "ablations" / "__init__.py"), ended.stderr


def test_torch_of_the_extras_is_that_of_the_package() -> None:
    (torch,) = [each for each in PROJECT["project"]["dependencies"] if each.startswith("torch")]
    assert PROJECT["project"]["optional-dependencies"]["cpu"] == [torch]
    assert PROJECT["project"]["optional-dependencies"]["cuda"] == [torch]
