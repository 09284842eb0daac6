"""Own code: classes and functions of a user's file, which recipes name by its hash, as in `ReLU2@3f2a9c01d2e4`.

The digits are the first of the SHA-256 of the file's text. Any edit of the file, also of a comment, makes another name
and so other ids. run.json has the text, so that workers, jobs and resumed runs never read the user's file, and what is
computed is always what was planned. The text is run with all permissions of the user, as a ladder file is.
"""

import hashlib
import inspect
import json
import linecache
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Generic, TypeVar

from neobert.errors import DamagedFile, MissingData
from neobert.identity import IDENTITY_DIGITS, leaves

PACKAGES = ("neobert", "ablations")
"""Packages of this project that a user's file may import."""
OWN_NAME = re.compile(rf"([A-Za-z_]\w*)@([0-9a-f]{{{IDENTITY_DIGITS}}})")
OWN_MODULE = "own_code_"
"""Name of the module that a text is run in, without its digits."""
SOURCES = "own_code.json"
"""File of an exported folder with the texts of its own parts."""
INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages."""

Made = TypeVar("Made")

_sources: dict[str, str] = {}
_modules: dict[str, ModuleType] = {}


def is_own(name: str) -> bool:
    return OWN_NAME.fullmatch(name) is not None


def own_name(thing: Any) -> str:
    """Return the name of a class or function of a user's file, and remember the file's text in this process. Raises
    ValueError if it is not defined at the top of such a file."""
    label = getattr(thing, "__qualname__", repr(thing))
    if not isinstance(thing, type | FunctionType) or not thing.__qualname__.isidentifier():
        raise ValueError(f"{label}: expected a class or function that is defined at the top of a file")
    if thing.__module__.startswith(OWN_MODULE):  # a text that names its own parts while it is run
        return f"{label}@{thing.__module__.removeprefix(OWN_MODULE)}"
    path = Path(getattr(sys.modules.get(thing.__module__), "__file__", None) or "")
    if not path.is_file():
        raise ValueError(f"{label} is in no file, so that its source cannot be kept: define it in a file")
    root = thing.__module__.partition(".")[0]
    if root in (*PACKAGES, *sys.stdlib_module_names) or any(folder in path.parts for folder in INSTALLED):
        raise ValueError(
            f"{label} is from the package {root}: only code of a file of yours is named by its source; name a part of "
            "this package by its word, and wrap all else in a function or class"
        )
    source = path.read_text(encoding="utf-8-sig")
    name = name_of(label, source)
    register({name: source})
    return name


def name_of(word: str, source: str) -> str:
    """Return the name of the class or function `word` of a file with the text `source`."""
    return f"{word}@{hashlib.sha256(source.encode()).hexdigest()[:IDENTITY_DIGITS]}"


def register(sources: Mapping[str, str]) -> None:
    """Remember texts, by the names of their code. Raises DamagedFile if a text is not the one that its name says."""
    for name, source in sources.items():
        if name_of(name.partition("@")[0], source) != name:
            raise DamagedFile(f"the source of {name} was changed since it was named: give the command again")
        _sources[name] = source


def sources_in(value: Any) -> dict[str, str]:
    """Return the texts of all own code that a value names, at any depth, by name."""
    words = {word for word in leaves(value).values() if isinstance(word, str)}
    return {name: source_named(name) for name in sorted(words) if is_own(name)}


def source_named(name: str) -> str:
    """Return the text of own code. Raises ValueError if it is not known in this process."""
    if name not in _sources:
        raise ValueError(
            f"the source of {name} is not known here: pass the --ladder file that defines it; to load an exported "
            "folder, call neobert.own_code.trust_folder(FOLDER) first, which runs its code with your permissions"
        )
    return _sources[name]


def load(name: str) -> Any:
    """Return the class or function of a name, after running its text once in this process. Raises ValueError if the
    text is not known, or does not run by itself."""
    word, _, digits = name.partition("@")
    if digits not in _modules:
        source, file = source_named(name), f"<{name}>"
        module = _modules[digits] = ModuleType(f"{OWN_MODULE}{digits}")
        sys.modules[module.__name__] = module  # dataclasses and inspect look up their module
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
        try:
            exec(compile(source, file, "exec"), vars(module))
        except Exception as error:  # whatever a user's statements raise
            del _modules[digits]
            raise ValueError(f"the source of {name} does not run by itself: {type(error).__name__}: {error}") from error
    return vars(_modules[digits])[word]


def trust_folder(folder: Path | str) -> None:
    """Remember the texts in an exported folder, so that its model can be built. They are run with your permissions.

    Raises:
        MissingData: it has none.
        DamagedFile: they were changed.
    """
    path = Path(folder) / SOURCES
    if not path.is_file():
        raise MissingData(f"{path} is not there: {folder} needs no own code, or is no exported folder")
    register(json.loads(path.read_text(encoding="utf-8")))


class Parts(dict[str, Callable[..., Made]], Generic[Made]):
    """The parts of one kind by name: this package's, and the own parts of users, which are loaded when they are used.

    what: the kind in messages. given: what a part is called with, in words.
    """

    def __init__(self, what: str, given: str, rows: Mapping[str, Callable[..., Made]]) -> None:
        super().__init__(rows)
        self.what = what
        self.given = given

    def __missing__(self, name: str) -> Callable[..., Made]:
        if not is_own(name):
            raise KeyError(name)
        part: Callable[..., Made] = load(name)
        return part

    def require(self, name: str, *given: Any, settings: Mapping[str, Mapping[str, Any]], field: str) -> None:
        """Raise ValueError unless a part can be called with what all parts of its kind are given and its own
        settings."""
        own = settings.get(field, {})
        try:
            inspect.signature(self[name]).bind(*given, **own)
        except TypeError as error:
            raise ValueError(
                f"the {self.what} {name} cannot be made: {error}; it is called with {self.given}, and by name with "
                f"its settings ({', '.join(own) or 'none'})"
            ) from error

    def make(self, name: str, *given: Any, settings: Mapping[str, Mapping[str, Any]], field: str) -> Made:
        """Call a part with what all parts of its kind are given, and with the settings of its `field` of the recipe.
        Raises as `require`."""
        self.require(name, *given, settings=settings, field=field)
        return self[name](*given, **settings.get(field, {}))
