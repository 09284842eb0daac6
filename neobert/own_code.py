"""Own code: classes and functions of a user's file, which recipes name by their source, as in `ReLU2@3f2a9c01d2e4`.

The digits are the first of the SHA-256 of the source: the class or function, and of its file the statements that it
uses (imports, constants, other functions). An edit of these makes another name and so other ids; an edit of anything
else in the file changes nothing. run.json has the sources, so that workers, jobs and resumed runs never read the
user's file, and what is computed is always what was planned. Sources are run with all permissions of the user, as a
ladder file is.
"""

import ast
import builtins
import hashlib
import importlib.util
import inspect
import json
import linecache
import re
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Generic, TypeGuard, TypeVar

from neobert.errors import DamagedFile, MissingData
from neobert.exported import exported
from neobert.identity import IDENTITY_DIGITS, leaves

PACKAGE = __name__.partition(".")[0]
OWN_NAME = re.compile(rf"([A-Za-z_]\w*)@[0-9a-f]{{{IDENTITY_DIGITS}}}")
SOURCES = "own_code.json"
"""File of an exported folder with the sources of its own parts."""
INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages."""
MODULE_NAMES = ("__name__", "__doc__", "__builtins__")
"""Names that every module has without a statement."""

Made = TypeVar("Made")

_sources: dict[str, str] = {}
_loaded: dict[str, Any] = {}


def is_own(name: str) -> bool:
    return OWN_NAME.fullmatch(name) is not None


def own_name(thing: Any) -> str:
    """Return the name of a class or function of a user's file, and remember its source in this process. Raises
    ValueError if it cannot be named by its source, or the source does not run by itself."""
    label = getattr(thing, "__qualname__", repr(thing))
    if not isinstance(thing, type | FunctionType):
        raise ValueError(f"{label} is no class or function: define one with class or def at the top of a file")
    if not thing.__qualname__.isidentifier():
        raise ValueError(f"{label} is not defined at the top of a file, so that its source is not known: move it there")
    path = getattr(sys.modules.get(thing.__module__), "__file__", None)
    if path is None or not Path(path).is_file():
        raise ValueError(f"{label} is in no file, so that its source cannot be kept: define it in a file")
    if _is_of_a_package(thing.__module__, path):
        raise ValueError(
            f"{label} is from the package {thing.__module__.partition('.')[0]}: only code of a file of yours is named "
            "by its source; name a part of this package by its word, and wrap all else in a function or class"
        )
    source = source_of(thing.__qualname__, Path(path))
    name = name_of(thing.__qualname__, source)
    register({name: source})
    load(name)
    return name


def name_of(word: str, source: str) -> str:
    """Return the name of own code with a source."""
    return f"{word}@{hashlib.sha256(source.encode()).hexdigest()[:IDENTITY_DIGITS]}"


def register(sources: Mapping[str, str]) -> None:
    """Remember sources, by the names of their code. Raises DamagedFile if a source is not the one that its name
    says."""
    for name, source in sources.items():
        if name_of(name.partition("@")[0], source) != name:
            raise DamagedFile(f"the source of {name} was changed since it was named: give the command again")
        _sources[name] = source


def sources_in(value: Any) -> dict[str, str]:
    """Return the sources of all own code that a value names, at any depth."""
    words = {word for word in leaves(value).values() if isinstance(word, str)}
    return {name: source_named(name) for name in sorted(words) if is_own(name)}


def source_named(name: str) -> str:
    """Return the source of own code. Raises ValueError if it is not known in this process."""
    if name not in _sources:
        raise ValueError(
            f"the source of {name} is not known here: pass the --ladder file that defines it; to load an exported "
            "folder, call neobert.own_code.trust_folder(FOLDER) first, which runs its code with your permissions"
        )
    return _sources[name]


def load(name: str) -> Any:
    """Return the class or function of a name, from its source. Raises ValueError if the source is not known, or does
    not run by itself."""
    if name not in _loaded and (part := exported(name)) is not None:
        _loaded[name] = part
    if name not in _loaded:
        source, word = source_named(name), name.partition("@")[0]
        file = f"<{name}>"
        module = ModuleType(name.replace("@", "_"))
        sys.modules[module.__name__] = module  # dataclasses and inspect look up their module
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
        try:
            exec(compile(source, file, "exec"), vars(module))
        except Exception as error:  # whatever a user's statements raise
            raise ValueError(f"the source of {name} does not run by itself: {type(error).__name__}: {error}") from error
        _loaded[name] = vars(module)[word]
    return _loaded[name]


def trust_folder(folder: Path | str) -> None:
    """Remember the sources in an exported folder, so that its model can be built. They are run with your permissions.

    Raises:
        MissingData: it has none.
        DamagedFile: they were changed.
    """
    path = Path(folder) / SOURCES
    if not path.is_file():
        raise MissingData(f"{path} is not there: {folder} needs no own code, or is no exported folder")
    register(json.loads(path.read_text(encoding="utf-8")))


# The source of a class or function


@dataclass(frozen=True)
class _Statement:
    """A statement at the top of a file: its text, the names that it binds, and those that it reads from the file."""

    node: ast.stmt
    text: str
    bound: frozenset[str]
    used: frozenset[str]

    @property
    def changes(self) -> frozenset[str]:
        """Names whose objects an assignment changes, as in `Part.scale = 2`."""
        targets = self.node.targets if isinstance(self.node, ast.Assign) else [getattr(self.node, "target", None)]
        return frozenset(_root(each) for each in targets if isinstance(each, ast.Attribute | ast.Subscript))

    @property
    def fills(self) -> frozenset[str]:
        """Names whose objects it changes within a loop or condition, or by a method, as in `TABLE.update(base=2)`."""
        return frozenset(_root(each) for each in _without_functions(self.node) if _changes_an_object(each))

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, ast.Import | ast.ImportFrom)


def _without_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those within it that run with it, which the bodies of functions and classes do not."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for each in ast.iter_child_nodes(node):
            yield from _without_functions(each)


def _changes_an_object(node: ast.AST) -> bool:
    """Return whether it is assigned to in place, or is a call whose result nobody takes."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        return not isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Expr) and _calls_a_method(node.value)


def _root(node: ast.AST) -> str:
    """Return the name at the beginning of `name.attribute[item].method()`; "" if it begins with something else."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Expr) or _calls_a_method(node):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _calls_a_method(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def source_of(word: str, path: Path) -> str:
    """Return the source of a class or function: the statements at the top of its file that it needs, in their order.
    Raises ValueError if it needs something that is in no statement of the file and in no installed package."""
    statements = list(_statements(path.read_text(encoding="utf-8-sig")))
    chosen = _needed_by(word, statements, path.name)
    for each in chosen:
        _refuse_files_beside(word, each.node, path)
    future = [each for each in statements if isinstance(each.node, ast.ImportFrom) and each.node.module == "__future__"]
    return "\n\n".join(dict.fromkeys(each.text for each in (*future, *chosen))) + "\n"


def _needed_by(word: str, statements: Sequence[_Statement], file: str) -> list[_Statement]:
    """Return the statements that a class or function needs, itself included, in the order of the file."""
    known = {name for each in statements for name in each.bound}
    imported = {name for each in statements if each.is_import for name in each.bound}
    names, chosen, wanted = set[str](), list[_Statement](), {word}
    while not wanted <= names:
        names |= wanted
        chosen = [each for each in statements if (each.bound | each.changes | each.fills - imported) & names]
        used = {name for each in chosen for name in each.used}
        if lost := sorted(used - known - set(dir(builtins)) - set(MODULE_NAMES)):
            raise ValueError(f"{word} uses {lost[0]}, which no statement at the top of {file} defines")
        wanted = used & known
    return chosen


def _statements(text: str) -> Iterator[_Statement]:
    lines = text.split("\n")  # as Python counts them: `splitlines` also splits at form feeds, which end no line
    for node in ast.parse(text).body:
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        own = "\n".join(lines[first - 1 : node.end_lineno])
        table = symtable.symtable(own, "own", "exec")
        bound = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
        yield _Statement(node, own, frozenset(bound), frozenset(_used(table)))


def _used(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that a scope and those within it read from the file."""
    is_top = table.get_type() == "module"
    yield from (
        each.get_name() for each in table.get_symbols() if (is_top and each.is_referenced()) or each.is_global()
    )
    for inner in table.get_children():
        yield from _used(inner)


def _refuse_files_beside(word: str, node: ast.stmt, path: Path) -> None:
    """Refuse imports of other files of the user, which do not travel with a source."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            modules = [alias.name for alias in each.names]
        elif isinstance(each, ast.ImportFrom):
            modules = ["" if each.level else each.module or ""]
        else:
            continue
        if isinstance(each, ast.Import) and PACKAGE in {module.partition(".")[0] for module in modules}:
            raise ValueError(
                f"{word} has {ast.unparse(each)!r} (line {node.lineno} of {path.name}), which an export cannot carry: "
                f"write from {modules[0]} import …"
            )
        for module in modules:
            if not _is_importable_everywhere(module.partition(".")[0]):
                raise ValueError(
                    f"{word} imports {module or 'a module beside its file'} (line {node.lineno} of {path.name}), and "
                    f"jobs find only installed packages and {PACKAGE}: define what it needs in {path.name}"
                )


def _is_importable_everywhere(root: str) -> bool:
    if root == PACKAGE or root in sys.stdlib_module_names:
        return True
    found = importlib.util.find_spec(root) if root else None
    return found is not None and any(folder in str(found.origin) for folder in INSTALLED)


def _is_of_a_package(module: str, path: str) -> bool:
    root = module.partition(".")[0]
    return root in (PACKAGE, *sys.stdlib_module_names) or any(folder in Path(path).parts for folder in INSTALLED)


# Parts


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
