"""The command neobert-ablations, also as `python -m neobert`; `ablations.commands` has what it can do."""

import sys

from neobert.beside import import_beside


def main() -> int:
    """Run the command that the first argument names; return its exit code."""
    import_beside("ablations", "sweeps", "reports")
    from ablations import commands

    return commands.main()


if __name__ == "__main__":
    sys.exit(main())
