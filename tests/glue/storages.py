"""Real storages for the tests of the grid: SQLite, a journal file, and a PostgreSQL server started for the session."""

import os
import pwd
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

DEBIAN = Path("/usr/lib/postgresql")
KINDS = ("sqlite", "journal", "postgresql")


def server_programs() -> Path | None:
    """The folder with initdb and pg_ctl; None where no server is installed."""
    folders = sorted(DEBIAN.glob("*/bin"), reverse=True)
    found = [folder for folder in folders if (folder / "initdb").exists()]
    if found:
        return found[0]
    program = shutil.which("initdb")
    return Path(program).resolve().parent if program else None


def _as_server_user(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root."""
    return (
        ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        if os.geteuid() == 0
        else command
    )


def _control(folder: Path, *arguments: str) -> None:
    programs = server_programs()
    assert programs is not None
    command = [str(programs / "pg_ctl"), "-D", str(folder / "data"), "-w", *arguments]
    subprocess.run(_as_server_user(command), check=True, stdout=subprocess.DEVNULL, cwd=folder)


def start_server(folder: Path) -> None:
    """Start the server of a folder and wait for it."""
    options = f"-k {folder} -c listen_addresses= -c fsync=off"
    _control(folder, "-l", str(folder / "log"), "-o", options, "start")


def stop_server(folder: Path) -> None:
    """Stop it at once, as a power cut would."""
    _control(folder, "-m", "immediate", "stop")


def fresh_database(folder: Path) -> str:
    """An empty database of a server, as the command takes it."""
    import psycopg

    name = f"grid_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(host=str(folder), user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@/{name}?host={folder}"


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server of its own that listens on a socket in a folder of its own; the folder."""
    programs = server_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed here (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    folder = Path("/tmp") / f"postgresql-{uuid.uuid4().hex[:8]}"  # a socket's path must be short, and reachable
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
    initialize = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-N"]
    subprocess.run(_as_server_user(initialize), check=True, stdout=subprocess.DEVNULL, cwd=folder)
    start_server(folder)
    try:
        yield folder
    finally:
        stop_server(folder)
        shutil.rmtree(folder)


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest) -> str:
    """The name of each storage in turn, as the command takes it; PostgreSQL with a fresh database."""
    pytest.importorskip("optuna", reason="optuna is not installed")
    if request.param != "postgresql":
        return str(request.param)
    return fresh_database(request.getfixturevalue("postgresql_server"))
