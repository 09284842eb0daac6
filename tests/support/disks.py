"""SQLite that does not wait for disks: what a process wrote survives its end without that."""

import sqlite3
from typing import Any

_connect = sqlite3.dbapi2.connect


def connect(*arguments: Any, **settings: Any) -> sqlite3.Connection:
    """`sqlite3.connect` in the place of that which SQLAlchemy calls."""
    connection = _connect(*arguments, **settings)
    connection.execute("PRAGMA synchronous=OFF")
    return connection
