"""Commands as other users of this machine, where the tests run as root."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from neobert.processes import REPOSITORY

GROUP = 60_000
UMASK = 0o002
ENTER = """
import json, os, subprocess, sys
user, group, umask, places, command = json.loads(sys.argv[1])
closed = {}  # where the interpreter or the code lies in a private folder, that is replaced by one with them alone
for place in places:
    above = [os.path.join("/", *place.split("/")[1:depth]) for depth in range(2, place.count("/") + 1)]
    private = next((each for each in above if not os.stat(each).st_mode & 1), None)
    if private is not None:
        closed.setdefault(private, []).append(place)
for private, inside in closed.items():
    kept = [os.open(place, os.O_RDONLY) for place in inside]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", private], check=True)
    for place, descriptor in zip(inside, kept):
        os.makedirs(place, exist_ok=True)
        source = f"/proc/{os.getpid()}/fd/{descriptor}"
        subprocess.run(["mount", "--no-canonicalize", "--bind", source, place], check=True)
        os.close(descriptor)
os.umask(umask)
os.setgroups([])
os.setgid(group)
os.setuid(user)
os.execv(command[0], command)
"""
"""Run by root in mounts of its own."""


def run_as(user: int, command: list[str], home: Path, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run Python as a user of the shared group; return its exit code and what it said."""
    places = sorted({sys.base_prefix, sys.prefix, str(REPOSITORY)}, key=len)
    request = json.dumps([user, GROUP, UMASK, places, [sys.executable, *command]])
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "OMP_NUM_THREADS", "LANG")}
    own = {"HOME": str(home), "TMPDIR": str(home), "HF_HOME": str(home / "hf"), "MPLCONFIGDIR": str(home / "mpl")}
    ended = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", ENTER, request],
        cwd=REPOSITORY,
        env={**kept, **own, "CUDA_VISIBLE_DEVICES": "", **dict(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=900,
    )
    return ended.returncode, ended.stdout.decode()


def why_no_users(home: Path) -> str:
    """Return why there are no other users here; empty if there are."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root"
    if missing := [name for name in ("unshare", "mount") if shutil.which(name) is None]:
        return f"needs {missing[0]}"
    code, said = run_as(60_001, ["-c", "import json"], home)
    return "" if code == 0 else f"no command runs as another user: {said[-200:]}"
