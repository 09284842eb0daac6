"""The instructions of README and docs work to the letter, in a copy of the tree whose smoke scale takes seconds."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from ablations import run
from neobert.errors import EXIT_DONE
from tests.support.tree_copy import REPOSITORY, edit, fresh_clone, needs_make, shell, shrink_smoke_scale

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "docs").glob("*.md"))}


def blocks(page: str, mark: str) -> list[str]:
    """The blocks of code of a page of docs behind a comment."""
    return re.findall(rf"^<!-- {mark} -->\n```\w*\n(.*?)^```$", PAGES[page], flags=re.MULTILINE | re.DOTALL)


ACTIVATION, *BLOCKS = blocks("guide.md", "runnable")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After `make demo` with few steps and one task, and pre-training of M7; the environment is there already."""
    tree = fresh_clone(tmp_path_factory.mktemp("fresh") / "clone", without_studies=True)
    shrink_smoke_scale(tree)
    ladder = tree / "examples" / "demo.py"
    edit(ladder, "steps={1_000_000: 1500, 50_000: 75}", "steps={1_000_000: 6, 50_000: 3}")
    edit(ladder, "documents=4000", "documents=600")
    edit(ladder, '("mnli", "rte", "cola")', '("cola",)')
    answer = shell(tree, "make --old-file=.venv/demo demo")
    assert answer.returncode == 0, answer.stderr
    # make, called by make, adds lines of its own
    studies, figure = re.findall(r"^(?:studies of Optuna|Figure 1): (.*)$", answer.stdout, re.MULTILINE)
    assert (tree / studies).exists() and (tree / figure).read_bytes().startswith(b"\x89PNG")
    answer = shell(tree, f"{ACTIVATION}\npython ablations/run.py --variant M7 --stages pretrain --cluster here")
    assert answer.returncode == 0, answer.stderr
    return tree


@needs_make
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0].partition("#")[0].strip())
def test_a_block_that_is_marked_runnable_runs(block: str, clone: Path) -> None:
    answer = shell(clone, f"{ACTIVATION}\n{block}")
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr


@needs_make
def test_m11_is_one_declaration(clone: Path) -> None:
    """Where docs/adding.md puts it."""
    (declaration,) = blocks("adding.md", "the declaration")
    line = 'M10 = M9.derive("M10", LARGER_GRID)\n'
    edit(clone / "ablations" / "ladder.py", line, line + declaration)
    (commands,) = blocks("adding.md", "runnable with M11")
    answer = shell(clone, f"{ACTIVATION}\n{commands.splitlines()[0]}")
    assert answer.returncode == 0 and "feedforward: swiglu → geglu" in answer.stdout, answer.stderr


def test_the_first_block_activates_the_environment_that_make_makes() -> None:
    assert len(BLOCKS) >= 3 and ACTIVATION == "source .venv/bin/activate\n"


def test_the_ladder_of_the_readme_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file and the command of "A ladder of your own", without training."""
    monkeypatch.chdir(tmp_path)
    (ladder,) = re.findall(r'^```python\n(""".*?)^```$', README, flags=re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"`python ablations/run\.py (--ladder my_study\.py [^`]*)`", README)
    (tmp_path / "my_study.py").write_text(ladder, encoding="utf-8")
    assert run.main([*command.split(), "--dry-run", "--cluster", "here", "--json"]) == EXIT_DONE
    planned = json.loads(capsys.readouterr().out)
    assert {row["variant"] for row in planned} == {"base", "tied", "masks"} and len(planned) == 9
    assert {row["scale"] for row in planned} == {"small"}


def test_the_torch_that_the_guide_names_is_the_pinned_one() -> None:
    pinned = re.findall(r"^torch==(\S+)$", (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"install torch==([\d.]+\d)", PAGES["guide.md"]) == pinned


def test_every_extra_that_is_named_exists() -> None:
    """In the README, in docs and in messages; and none is asked for by a name that no package index has."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folders = [REPOSITORY / name for name in ("neobert", "ablations", "sweeps", "reports", "docs")]
    places = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md")]
    texts = [README, *(path.read_text(encoding="utf-8") for path in places)]
    named = {extra for text in texts for extra in re.findall(r"-e '\.\[([\w,]+)\]'", text)}
    assert {"eval", "export", "deepspeed"} <= named <= project["optional-dependencies"].keys()
    assert not [text for text in texts if "neobert-ablations[" in text]


def test_links_between_pages_and_files_lead_somewhere() -> None:
    pages = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
    pages += sorted((REPOSITORY / "docs").glob("*.md"))
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))]
    assert len(links) > 50
    assert not [(page.name, link) for page, link in links if "://" not in link and not (page.parent / link).exists()]
