"""Remote code: exports with this package's modules, for users of the hub who do not install it.

transformers' loader of remote code only supports flat folders, and only copies files that are imported in the form
`from .name import …`. Therefore module neobert.a.b becomes the file neobert_a_b.py, with relative imports of the
package. The model is not written a second time: the files are the sources that the run was computed with.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from neobert import __version__
from neobert.errors import ParityOff
from neobert.export.checkpoint import PretrainedCheckpoint, flat_states, probes, require_close
from neobert.files import replace_file
from neobert.hub import AUTO_CLASSES, NeoBERTConfig
from neobert.own_code import sources_in
from neobert.tensors import load_tensors, save_tensors

PACKAGE = "neobert"
EXPORTED = "neobert.exported"
"""The module that an export with own parts changes."""
CLASSES = {"AutoConfig": NeoBERTConfig, **AUTO_CLASSES}
TOLERANCE = 1e-5

STATES_WITHOUT_PACKAGE = """
import sys
sys.modules["neobert"] = None  # importing the package now fails: the folder must do without it
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel
folder, inputs, states = sys.argv[1:]
model = AutoModel.from_pretrained(folder, trust_remote_code=True)  # code that this export wrote a moment ago
with torch.no_grad():
    save_file({"states": model(**load_file(inputs)).last_hidden_state}, states)
"""


def write_remote_code(checkpoint: PretrainedCheckpoint, folder: Path) -> dict[str, float]:
    """Add the modules to an exported folder and name them in its config.json; return the deviation of hidden states in
    a new interpreter without this package.

    Raises:
        ParityOff: the folder does not load there, or its hidden states differ from the run's by more than 1e-5.
    """
    for name, content in remote_modules(sources_in(checkpoint.run.recipe.model)).items():
        replace_file(folder / f"{name}.py", content.encode())
    path = folder / "config.json"
    auto_map = {auto: f"{file_name(named.__module__)}.{named.__name__}" for auto, named in CLASSES.items()}
    config = {**json.loads(path.read_text(encoding="utf-8")), "auto_map": auto_map}
    replace_file(path, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
    documents, token_ids, mask = probes(checkpoint.run)
    with tempfile.TemporaryDirectory() as scratch:
        inputs, states = Path(scratch, "inputs.safetensors"), Path(scratch, "states.safetensors")
        save_tensors({"input_ids": token_ids, "attention_mask": mask}, inputs)
        command = [sys.executable, "-c", STATES_WITHOUT_PACKAGE, str(folder), str(inputs), str(states)]
        environment = os.environ | {"HF_MODULES_CACHE": scratch, "HF_HUB_OFFLINE": "1"}
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if process.returncode != 0:
            last = (process.stderr.strip().splitlines() or ["no message"])[-1]
            raise ParityOff(f"the exported remote code does not load without this package: {last}")
        found = load_tensors(states)["states"][mask.bool()]
    return {"remote code": require_close("remote code", found, flat_states(checkpoint, documents), TOLERANCE)}


def remote_modules(own: Mapping[str, str]) -> dict[str, str]:
    """Return the file name (without .py) and content of every module of the package that the classes need, and of the
    sources of `own` parts."""
    waiting, files = sorted({named.__module__ for named in CLASSES.values()}), dict[str, str]()
    for name, source in own.items():
        files[own_file(name)] = f"# {name}\n{relative(source)}"
        waiting += [needed for _, modules in _package_imports(source) for needed in modules]
    while waiting:
        module = waiting.pop()
        if file_name(module) not in files:
            specification = find_spec(module)
            assert specification is not None and specification.origin is not None, f"{module} is no module"
            source = Path(specification.origin).read_text(encoding="utf-8")
            files[file_name(module)] = f"# {module} of neobert-ablations {__version__}, MIT\n{relative(source)}"
            waiting += [needed for _, modules in _package_imports(source) for needed in modules]
    if own:
        files[file_name(EXPORTED)] += _exported(own)
    return files


def own_file(name: str) -> str:
    """Return the name of the file of an own part, without .py."""
    return f"own_{name.replace('@', '_')}"


def _exported(own: Iterable[str]) -> str:
    """Return a function `exported` for these own parts, to replace the one above it."""
    lines = ["", "", "def exported(name: str) -> Any | None:  # noqa: F811"]
    for name in own:
        lines += [
            f"    if name == {name!r}:",
            f"        from .{own_file(name)} import {name.partition('@')[0]} as part",
        ]
        lines += ["", "        return part"]
    return "\n".join([*lines, "    return None", ""])


def file_name(module: str) -> str:
    """Return the name of a module's file, without .py."""
    return module.replace(".", "_")


def relative(source: str) -> str:
    """Make the package imports of a module's source relative, in the form that transformers' loader follows.

    Raises:
        AssertionError: an import has no equivalent in this form.
    """
    lines = source.splitlines()
    for statement, modules in sorted(_package_imports(source), key=lambda found: -found[0].lineno):
        indent = " " * statement.col_offset
        names = ", ".join(ast.unparse(alias) for alias in statement.names)
        new = [f"from .{file_name(modules[0])} import {names}"]
        if statement.module == PACKAGE:  # whole modules: the loader ignores the first line, so add a second
            new = []
            for alias, module in zip(statement.names, modules, strict=True):
                name = file_name(module)
                new += [f"from . import {name} as {alias.asname or alias.name}", f"from .{name} import __name__ as _"]
        assert statement.end_lineno is not None
        lines[statement.lineno - 1 : statement.end_lineno] = [indent + line for line in new]
    return "\n".join(lines) + "\n"


def _package_imports(source: str) -> Iterator[tuple[ast.ImportFrom, list[str]]]:
    """Yield each import of the package in a source, in no particular order, and the modules that it needs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == PACKAGE for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            assert node.module is not None and node.level == 0
            whole = node.module == PACKAGE
            yield node, [f"{PACKAGE}.{alias.name}" for alias in node.names] if whole else [node.module]
