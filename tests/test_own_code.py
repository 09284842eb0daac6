"""Own code is named by its source: the statements that it uses decide its name, and nothing else does."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from neobert import own_code
from neobert.errors import DamagedFile
from neobert.own_code import load, name_of, own_name, register, source_named, sources_in

FILE = '''\
"""A file with more than it needs."""
import math
import json
from dataclasses import dataclass as made

RATE = 2
OTHER = RATE + 1
unused = json.dumps([])


def helper(value: float) -> float:
    return math.sqrt(value) * RATE


def score(value: float, *, power: int = 1) -> float:
    RATE_OF_IT = helper(value)
    return RATE_OF_IT**power


@made
class Pair:
    left: float = OTHER

    def total(self) -> float:
        return score(self.left) + self.scale


Pair.scale = 3
if OTHER:
    unused = 5
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
    monkeypatch.setattr(own_code, "_loaded", {})


def test_a_source_is_what_it_uses_in_the_order_of_the_file(file: Path) -> None:
    name = own_name(module(file, FILE).score)
    statements = source_named(name).split("\n\n")
    assert [each.strip().splitlines()[0] for each in statements] == [
        "import math",
        "RATE = 2",
        "def helper(value: float) -> float:",
        "def score(value: float, *, power: int = 1) -> float:",
    ]
    assert name == name_of("score", source_named(name)) and load(name)(9.0, power=2) == 36


def test_a_byte_order_mark_changes_no_source(file: Path) -> None:
    name = own_name(module(file, FILE).score)
    assert own_name(module(file, "\ufeff" + FILE).score) == name


def test_a_class_brings_its_decorators_and_what_is_assigned_to_it(file: Path) -> None:
    pair = load(own_name(module(file, FILE).Pair))
    assert pair(left=4).total() == 7 and pair().left == 3, "not the class of the file, which has other helpers"


@pytest.mark.parametrize(
    ("old", "new", "is_another"),
    [
        ("import json", "import json, re", False),
        ("unused = 5", "unused = 6", False),
        ('"""A file with', '"""Or a file with', False),
        ("Pair.scale = 3", "Pair.scale = 4", False),
        ("RATE = 2", "RATE = 3", True),
        ("math.sqrt(value)", "math.cbrt(value)", True),
        ("power: int = 1", "power: int = 2", True),
    ],
)
def test_an_edit_makes_another_name_if_it_is_in_what_is_used(file: Path, old: str, new: str, is_another: bool) -> None:
    before = own_name(module(file, FILE).score)
    assert (own_name(module(file, FILE.replace(old, new)).score) != before) == is_another
    assert FILE.count(old) == 1


@pytest.mark.parametrize(
    "filled",
    [
        "for number in range(3):\n    TABLE[number] = 2 * number",
        "TABLE.update({2: 4})",
        "if TABLE is not None:\n    TABLE[2], TABLE[3] = 4, 6",
        "for _ in range(4):\n    TABLE.setdefault(2, 4)",
        "LISTS = {}\nLISTS.setdefault(2, []).append(4)\nTABLE |= {key: sum(values) for key, values in LISTS.items()}",
    ],
)
def test_a_constant_that_statements_fill_is_full_in_the_source_too(file: Path, filled: str) -> None:
    defined = module(file, f"TABLE = {{}}\n{filled}\n\ndef read(key):\n    return TABLE.get(key, 0)\n")
    assert load(own_name(defined.read))(2) == defined.read(2) == 4


def test_calls_that_fill_nothing_of_a_source_are_no_part_of_it(file: Path) -> None:
    text = "import math\n\ndef area(radius):\n    return math.pi * radius**2\n"
    before = own_name(module(file, text).area)
    calls = "math.sqrt(4)\nif math:\n    math.unused = 1\narea(2)\nprint(area(3))\nOTHERS = []\nOTHERS.append(area)\n"
    assert own_name(module(file, text + calls).area) == before


@pytest.mark.parametrize("other", ["\f", "# a\u2028comment", "NAME = 'a\x85b'", "NAME = 'a\x1cb'"])
def test_lines_are_counted_as_python_counts_them(file: Path, other: str) -> None:
    defined = module(file, f"SCALE = 2\n{other}\n\ndef double(value):\n    return value * SCALE\n\nLAST = 1\n")
    source = source_named(own_name(defined.double))
    assert source == "SCALE = 2\n\ndef double(value):\n    return value * SCALE\n"


def test_another_process_needs_the_source_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = own_name(module(file, FILE).score)
    sources = sources_in({"metric": [name, "f1"], "settings": {"power": 2}})
    file.unlink()
    monkeypatch.setattr(own_code, "_sources", {})
    monkeypatch.setattr(own_code, "_loaded", {})
    with pytest.raises(ValueError, match=f"the source of {name} is not known here: pass the --ladder file"):
        load(name)
    with pytest.raises(DamagedFile, match=f"the source of {name} was changed since it was named"):
        register({name: sources[name].replace("RATE = 2", "RATE = 3")})
    register(sources)
    assert sources.keys() == {name} and load(name)(4.0) == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("thing = 3", "3 is no class or function: define one with class or def"),
        ("thing = lambda value: value", "<lambda> is not defined at the top of a file"),
        (
            "def maker():\n    def inner(): ...\n    return inner\nthing = maker()",
            "is not defined at the top of a file",
        ),
        ("from math import hypot\nimport json\nthing = json.dumps", "dumps is from the package json: only code of a"),
        ("from neobert.files import sha256_of as thing", "sha256_of is from the package neobert: only code of a file"),
        ("from os.path import *\ndef thing(): return join('a', 'b')", "thing uses join, which no statement at the top"),
        (
            "import beside\ndef thing(): return beside.x",
            r"thing imports beside \(line 1 of of_a_user.py\), and jobs find",
        ),
        (
            "import sys\nif sys.modules.pop('once', 1) != 1: X = 1\ndef thing(y=X): ...",
            "does not run by itself: NameErr",
        ),
    ],
)
def test_what_cannot_be_named_by_its_source_is_refused(file: Path, text: str, sentence: str) -> None:
    (file.parent / "beside.py").write_text("x = 1\n")
    sys.path.insert(0, str(file.parent))
    sys.modules["once"] = ModuleType("once")
    try:
        thing = module(file, text + "\n").thing
        with pytest.raises(ValueError, match=sentence):
            own_name(thing)
    finally:
        sys.path.remove(str(file.parent))
        sys.modules.pop("beside", None)
        sys.modules.pop("once", None)
