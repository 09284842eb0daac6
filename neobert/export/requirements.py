"""Packages that only some exports need."""

from importlib.util import find_spec


def require_packages(*names: str) -> None:
    """Check that packages are installed.

    Raises:
        ValueError: one is not.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ValueError(f"this export needs {', '.join(missing)}: install the extra with pip install -e '.[export]'")
