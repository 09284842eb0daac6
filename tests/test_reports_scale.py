"""Many records: each is read once, and ten thousand become all reports in less than half a minute."""

import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from reports_study import Study

from neobert import files
from neobert.runs import records
from reports import make_figures

REPOSITORY = Path(__file__).resolve().parent.parent
GOAL_SECONDS = 30.0


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def test_every_record_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(tmp_path / "runs")
    study.write(["M0", "M1"], seeds=(0, 1))
    reads: Counter[Path] = Counter()

    def counted(path: Path) -> Any:
        reads[path] += 1
        return files.read_json(path)

    monkeypatch.setattr(records, "read_json", counted)
    assert make_figures.main(["--runs", str(study.root), "--out", str(tmp_path / "out"), "--compare"]) == 0
    of_records = set(records.record_paths(study.root))
    assert of_records and {reads[path] for path in of_records} == {1}


@pytest.mark.slow
def test_ten_thousand_records_become_all_reports_within_half_a_minute_of_processor_time(tmp_path: Path) -> None:
    study = Study(tmp_path / "runs", scale="proxy", data="corpus")
    study.write(seeds=range(16))
    assert len(list(records.record_paths(study.root))) > 10_000
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "reports/make_figures.py", "--runs", str(study.root), "--out", str(tmp_path / "out")]
    subprocess.run([*command, "--compare"], cwd=REPOSITORY, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    print(f"{seconds:.1f} s of processor time")
    assert seconds <= GOAL_SECONDS
