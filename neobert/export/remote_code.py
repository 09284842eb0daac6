"""The model's code in an exported folder, for users of the hub who do not install this package.

The files are copies of this package's modules. transformers loads flat folders, and copies only files that are imported
in the form `from .name import …`: module neobert.a.b becomes the file neobert_a_b.py, and imports become relative.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path

from neobert import __version__
from neobert.files import replace_file
from neobert.hub import AUTO_CLASSES, NeoBERTConfig

MODULES = (
    *("neobert.errors", "neobert.identity", "neobert.own_code", "neobert.recipe"),
    *("neobert.model.attention", "neobert.model.positions", "neobert.model.layers", "neobert.model.encoder"),
    *("neobert.model.heads", "neobert.model.build"),
    *("neobert.hub.attention", "neobert.hub.configuration", "neobert.hub.modeling"),
)
"""All modules of this package that the classes of `neobert.hub` need."""
CLASSES = {"AutoConfig": NeoBERTConfig, **AUTO_CLASSES}
WHOLE_MODULE = re.compile(r"^( *)from neobert import (\w+)$", re.MULTILINE)
NAMES = re.compile(r"^( *)from (neobert\.[\w.]+) import ", re.MULTILINE)


def write_remote_code(folder: Path) -> None:
    """Add the modules to an exported folder, and name their classes in its config.json."""
    for name, content in remote_modules().items():
        replace_file(folder / f"{name}.py", content.encode())
    path = folder / "config.json"
    auto_map = {auto: f"{file_name(named.__module__)}.{named.__name__}" for auto, named in CLASSES.items()}
    config = {**json.loads(path.read_text(encoding="utf-8")), "auto_map": auto_map}
    replace_file(path, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())


def remote_modules() -> dict[str, str]:
    """Return the content of each module by the name of its file, without .py."""
    files = {}
    for module in MODULES:
        found = find_spec(module)
        assert found is not None and found.origin is not None, f"{module} does not exist"
        source = Path(found.origin).read_text(encoding="utf-8")
        files[file_name(module)] = f"# {module} of neobert-ablations {__version__}, MIT\n{relative(source)}"
    return files


def file_name(module: str) -> str:
    """Return the name of a module's file, without .py."""
    return module.replace(".", "_")


def relative(source: str) -> str:
    """Return a source with its imports of this package relative."""
    # The loader does not follow `from . import`, so a second line names the file in the form that it does.
    source = WHOLE_MODULE.sub(r"\1from . import neobert_\2 as \2\n\1from .neobert_\2 import __name__ as _", source)
    return NAMES.sub(lambda found: f"{found[1]}from .{file_name(found[2])} import ", source)
