"""The command neobert-ablations, also as `python -m neobert`; `ablations.commands` has what it can do."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent


def import_beside(*names: str) -> None:
    """Import packages from the folder of neobert. Other people have packages of these names too, and a working folder
    comes before installed packages."""
    for name in names:
        file = FOLDER / name / "__init__.py"
        if name not in sys.modules:
            specification = spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
            if specification is None or specification.loader is None:
                raise ImportError(f"{file} cannot be imported: install neobert-ablations again")
            sys.modules[name] = module_from_spec(specification)
            specification.loader.exec_module(sys.modules[name])


def main() -> int:
    """Run the command that the first argument names; return its exit code."""
    import_beside("ablations", "sweeps", "reports")
    from ablations import commands

    return commands.main()


if __name__ == "__main__":
    sys.exit(main())
