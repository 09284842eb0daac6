"""SLURM's clients as small scripts: they accept what they are told and remember it, so that submission is testable
anywhere. What a real cluster does with it is tested in tests/slurm."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from ablations.run import main

SCRIPTS = {
    "srun": "exit 0",
    "sinfo": '[ -e "$STATE/down" ] && exit 1; cat "$STATE/nodes" 2>/dev/null || echo idle',
    "squeue": """[ -e "$STATE/down" ] && { echo "squeue: error: Unable to contact slurm controller" >&2; exit 1; }
[ -e "$STATE/hangs" ] && exec sleep 60
for file in "$STATE"/live/*; do
  [ -e "$file" ] || continue
  case "$*" in *PENDING*) continue;; esac
  echo "$(basename "$file") $(sed -n 's/^#SBATCH --job-name=//p' "$file")"
done; exit 0""",
    "scontrol": 'echo "MaxArraySize            = $(cat "$STATE/largest")"',
    "scancel": 'for job in "$@"; do rm -f "$STATE/live/$job"; echo "$job" >> "$STATE/cancelled"; done',
    "sbatch": """[ -e "$STATE/down" ] && { echo "sbatch: error: Unable to contact slurm controller" >&2; exit 1; }
[ "$1" = --test-only ] && script=$(cat)
[ -e "$STATE/refuse-once" ] && once=1 && mv "$STATE/refuse-once" "$STATE/refuse"
[ -e "$STATE/refuse" ] && { echo "sbatch: error: $(cat "$STATE/refuse")" >&2; [ $once ] && rm "$STATE/refuse"; exit 1; }
[ "$1" = --test-only ] && exit 0
until mkdir "$STATE/lock" 2>/dev/null; do sleep 0.01; done
job=$(( $(cat "$STATE/last") + 1 )); echo $job > "$STATE/last"; rmdir "$STATE/lock"
mkdir -p "$STATE/live" "$STATE/all"; cp "$1" "$STATE/live/$job"; cp "$1" "$STATE/all/$job"
echo "Submitted batch job $job\"""",
}


@dataclass(frozen=True)
class FakeSlurm:
    """A folder with the scripts (`bin`) and what they remember (`state`)."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, largest_array: int = 1001) -> "FakeSlurm":
        """Write the scripts."""
        fake = cls(folder)
        (folder / "bin").mkdir(parents=True)
        for kind in ("live", "all"):
            (fake.state / kind).mkdir(parents=True)
        (fake.state / "last").write_text("100")
        (fake.state / "largest").write_text(str(largest_array))
        for name, body in SCRIPTS.items():
            path = folder / "bin" / name
            path.write_text(f'#!/bin/sh\nSTATE="{fake.state}"\n{body}\n')
            path.chmod(path.stat().st_mode | stat.S_IEXEC)
        return fake

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "FakeSlurm":
        """Put the scripts first on PATH, outside of any job."""
        monkeypatch.setenv("PATH", f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        for name in ("SLURM_JOB_ID", "SLURM_CONF"):
            monkeypatch.delenv(name, raising=False)
        return self

    def submitted(self) -> dict[str, str]:
        """{job: sbatch file} of everything that was ever accepted."""
        return {path.name: path.read_text() for path in sorted((self.state / "all").iterdir())}

    def end(self, job: str) -> None:
        """A job is over, for whatever reason."""
        (self.state / "live" / job).unlink()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """The only SLURM that commands find; what fails is tried again at once."""
    monkeypatch.setattr("neobert.slurm.submit.RETRY_SECONDS", 0.01)
    return FakeSlurm.make(tmp_path / "slurm").install(monkeypatch)


def submit(runs: Path, *flags: str) -> int:
    """What `run.py` ends with when it sends M0."""
    return main(["--variant", "M0", "--cluster", "slurm", "--runs", str(runs), *flags])
