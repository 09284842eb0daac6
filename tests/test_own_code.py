"""Own code is named by the text of its file, which is all that another process needs."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from neobert import own_code
from neobert.errors import DamagedFile
from neobert.own_code import load, name_of, own_name, register, sources_in

FILE = '''\
"""A file of a user."""
import math
from dataclasses import dataclass

TABLE = {}
for number in range(4):
    TABLE[number] = 2 * number


def score(value: float, *, power: int = 1) -> float:
    return (math.sqrt(value) * TABLE[1])**power


@dataclass
class Pair:
    left: float = 3

    def total(self) -> float:
        return score(self.left) + self.scale


Pair.scale = 3
'''


def module(path: Path, text: str) -> ModuleType:
    """Import a file that has this text."""
    path.write_text(text, encoding="utf-8")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    imported = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = imported
    specification.loader.exec_module(imported)
    return imported


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "of_a_user.py"
    sys.modules.pop("of_a_user", None)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, which knows no source."""
    monkeypatch.setattr(own_code, "_sources", {})
    monkeypatch.setattr(own_code, "_modules", {})


def test_any_edit_of_the_file_makes_another_name_and_a_byte_order_mark_none(file: Path) -> None:
    name = own_name(module(file, FILE).score)
    assert name == name_of("score", FILE) == own_name(module(file, "\ufeff" + FILE).score)
    assert own_name(module(file, FILE + "# a comment\n").score) != name


def test_another_process_needs_the_text_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run once for all that it defines."""
    defined = module(file, FILE)
    score, pair = own_name(defined.score), own_name(defined.Pair)
    sources = sources_in({"metric": [score, "f1"], "settings": {"power": 2}, "model": {"block": pair}})
    assert sources == {score: FILE, pair: FILE}
    file.unlink()
    monkeypatch.setattr(own_code, "_sources", {})
    with pytest.raises(ValueError, match=f"the source of {score} is not known here: pass the --ladder file"):
        load(score)
    with pytest.raises(DamagedFile, match=f"the source of {score} was changed since it was named"):
        register({score: FILE.replace("2 * number", "3 * number")})
    register(sources)
    assert load(score)(9.0, power=2) == 36 and load(pair)(left=4).total() == 7
    assert load(pair) is not defined.Pair and sys.modules[load(pair).__module__].score is load(score)


def test_a_text_that_names_its_own_parts_gives_them_the_name_that_it_has(file: Path) -> None:
    """As a ladder does, which is run again where its parts are used."""
    text = "from neobert.own_code import own_name\ndef half(value): return value / 2\nNAME = own_name(half)\n"
    name = module(file, text).NAME
    assert load(name)(4) == 2 and name == sys.modules[load(name).__module__].NAME


def test_a_source_that_earlier_versions_cut_from_its_file_is_read_by_the_name_that_it_had() -> None:
    source = "SCALE = 2\n\ndef double(value):\n    return value * SCALE\n"
    register({"double@11ec7e90813a": source})
    assert load("double@11ec7e90813a")(2) == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("thing = 3", "3: expected a class or function that is defined at the top of a file"),
        ("thing = lambda value: value", "<lambda>: expected a class or function"),
        (
            "def maker():\n    def inner(): ...\n    return inner\nthing = maker()",
            "inner: expected a class",
        ),
        ("import json\nthing = json.dumps", "dumps is from the package json: only code of a"),
        ("from neobert.files import sha256_of as thing", "sha256_of is from the package neobert: only code of a file"),
    ],
)
def test_what_cannot_be_named_by_its_source_is_refused(file: Path, text: str, sentence: str) -> None:
    thing = module(file, text + "\n").thing
    with pytest.raises(ValueError, match=sentence):
        own_name(thing)


def test_a_text_that_does_not_run_by_itself_is_refused(file: Path) -> None:
    name = name_of("thing", "1 / 0\n")
    register({name: "1 / 0\n"})
    for _ in range(2):
        with pytest.raises(ValueError, match="does not run by itself: ZeroDivisionError"):
            load(name)
