"""Status tells the truth about a folder of runs, whatever state its files are in, and reads little."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablations import loading, status
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.index import Row, read_index, state_of
from neobert.runs.layout import Layout
from tests.ablations.status_worlds import (
    checkpoint,
    claim,
    declare,
    fail,
    finish_pretraining,
    finish_study,
    metrics_line,
    progress,
    record_trial,
    study_of,
    submit,
    tokenize,
    write,
)
from tests.support.tiny_runs import tiny_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def run(layout: Layout) -> PretrainingRun:
    """A run with a run.json and nothing else."""
    planned = tiny_run()
    declare(layout, planned)
    return planned


def only_row(layout: Layout) -> dict[str, Any]:
    (row,) = read_index(layout).rows()
    return row.as_json()


def row_of(layout: Layout, kind: str) -> Row:
    return next(row for row in read_index(layout).rows() if row.kind == kind)


def shown(layout: Layout, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    code = status.main(["--runs", str(layout.root), *flags])
    return code, *capsys.readouterr()


def test_a_running_run_shows_progress_owner_and_costs_so_far(layout: Layout, run: PretrainingRun) -> None:
    """Costs are what the newest checkpoint counted and the steps since, on the GPUs of the owner's job."""
    submit(layout, "12", run, ago_seconds=100)
    progress(layout, run, 14, torn='{"step": 15, "lo')
    checkpoint(layout, run, 10, seconds=3600.0)
    claim(layout, run.id, job="12", silent_seconds=5)
    row = only_row(layout)
    told = {"state": "running", "done": 14, "tokens_per_second": 1000.0, "loss": 3.0, "seconds": 3602.0, "job": "12"}
    assert row.items() >= told.items()
    assert row["gpu_hours"] == pytest.approx(8 * 3602 / 3600)
    (worker,) = row["workers"]
    assert (worker["host"], worker["job"], worker["is_live"]) == ("node2", "12", True)
    assert 5 <= worker["heartbeat_seconds"] < 30


def test_a_new_attempt_without_metrics_shows_the_last_one_and_a_silent_owner_is_named(
    layout: Layout, run: PretrainingRun
) -> None:
    progress(layout, run, 7)
    progress(layout, run, 0, attempt="000002", torn=metrics_line(8)[:-5])
    claim(layout, run.id, job="12", silent_seconds=300)
    row = only_row(layout)
    assert (row["done"], row["state"], row["note"]) == (7, "waiting", "owner on node2 (job 12) silent for 5 min")


def test_submitted_means_that_nobody_began_it_since(layout: Layout, run: PretrainingRun) -> None:
    """What was begun before the submission and stopped is submitted; what was begun after it is not any more."""
    claim(layout, run.id, silent_seconds=500, released=True)
    submit(layout, "12", run, ago_seconds=180)
    row = only_row(layout)
    assert row["state"] == "submitted" and row["note"].startswith("job 12 submitted 3 min ago")
    claim(layout, run.id, silent_seconds=90, released=True)
    assert (only_row(layout)["state"], only_row(layout)["job"]) == ("waiting", "12")


def test_a_submitted_job_hides_neither_a_failure_nor_a_record(layout: Layout) -> None:
    run = tiny_run()
    folder = declare(layout, run)
    fail(folder / "error.json", run.id, "ValueError: no")
    submit(layout, "12", run)
    assert only_row(layout)["state"] == "failed" and "job 12 submitted" in only_row(layout)["note"]
    finish_pretraining(layout, run)
    assert (only_row(layout)["state"], only_row(layout)["note"], only_row(layout)["errors"]) == ("done", "", [])


def test_log_files_are_those_of_the_owners_element(layout: Layout, run: PretrainingRun) -> None:
    submit(layout, "12", run, elements=3)
    logs = layout.root / "jobs" / "12"
    logs.mkdir(parents=True)
    for name in ("12_1_0_log.out", "12_2_0_log.out", "12_2_0_result.pkl"):
        (logs / name).touch()
    claim(layout, run.id, job="12_2")
    assert only_row(layout)["logs"] == ("jobs/12/12_2_0_log.out",)


def test_a_corpus_that_a_job_makes_is_a_row(layout: Layout, run: PretrainingRun) -> None:
    """Whichever run the job names it by; shards count while it grows."""
    submit(layout, "12", run, references=[f"corpus/{run.data_id}/{run.id}"])
    row = row_of(layout, "corpus")
    assert (row.id, row.state, row.done) == (run.data_id, "submitted", 0)
    write(layout.root / "data" / f"{run.data_id}.partial" / "shard-00000.json", {})
    claim(layout, f"corpus-{run.data_id}", job="12")
    assert (row_of(layout, "corpus").state, row_of(layout, "corpus").done) == ("running", 1)
    tokenize(layout, run.data_id)
    assert row_of(layout, "corpus").state == "done"


def test_a_study_counts_points_and_names_its_workers(layout: Layout, run: PretrainingRun) -> None:
    finish_pretraining(layout, run)
    study = study_of(run, points=4)
    declare(layout, study)
    record_trial(layout, study, 0)
    claim(layout, study.trials(layout)[0].id, silent_seconds=400)
    for number in (1, 2):
        claim(layout, study.trials(layout)[number].id, job=f"12_{number}")
    row = row_of(layout, "glue")
    assert (row.state, row.done, row.total, row.counted, row.note) == ("running", 1, 4, "grid points", "")
    assert {worker.job for worker in row.workers} == {"12_1", "12_2"}


RUN = tiny_run()
WORLDS: dict[str, tuple[str, Callable[[Layout], object]]] = {
    "nothing": ("waiting", lambda layout: None),
    "failed": ("failed", lambda layout: fail(layout.pretraining(RUN.id) / "error.json", RUN.id, "no")),
    "claimed": ("running", lambda layout: claim(layout, RUN.id)),
    "released": ("waiting", lambda layout: claim(layout, RUN.id, silent_seconds=300, released=True)),
    "lost": ("waiting", lambda layout: claim(layout, RUN.id, silent_seconds=600)),
    "retried": ("running", lambda layout: (WORLDS["failed"][1](layout), claim(layout, RUN.id))),
    "done": ("done", lambda layout: finish_pretraining(layout, RUN)),
    "done under a claim": ("done", lambda layout: (WORLDS["done"][1](layout), WORLDS["retried"][1](layout))),
}


@pytest.mark.parametrize("world", WORLDS)
def test_states_are_those_that_the_commands_act_on(layout: Layout, world: str) -> None:
    declare(layout, RUN)
    state, make = WORLDS[world]
    make(layout)
    row = only_row(layout)
    assert row["state"] == state_of(layout, RUN) == state
    assert world != "released" or (row["note"], row["workers"]) == ("", []), "nobody lost it"


@pytest.mark.parametrize("recorded", [0, 2])
def test_states_of_studies_are_those_that_the_commands_act_on(layout: Layout, recorded: int) -> None:
    run = tiny_run()
    finish_pretraining(layout, run)
    study = study_of(run, points=3)
    declare(layout, study)
    for number in range(recorded):
        record_trial(layout, study, number)
    last = study.trials(layout)[2]
    for state, change in (("waiting", None), ("failed", fail), ("running", claim)):
        if change is fail:
            fail(last.error, "trial", "no")
        elif change is claim:
            claim(layout, last.id)
        row = row_of(layout, "glue")
        assert row.state == state_of(layout, study) == state and row.done == recorded


def test_equal_causes_are_one_group(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts that differ in ids alone are one cause; the tracebacks are there when asked for."""
    for seed in range(5):
        run = tiny_run(seed=seed)
        fail(declare(layout, run) / "error.json", run.id, f"OSError: run {run.id} is full", name=f"stage {seed}")
    other = tiny_run(seed=9)
    fail(declare(layout, other) / "error.json", other.id, "KeyError: 'x'")
    code, out, _ = shown(layout, capsys)
    assert code == 0
    assert out.count("× OSError: run") == 1 and "5 × OSError: run" in out and "and 2 more" in out
    assert "1 × KeyError: 'x'" in out and "Traceback" not in out
    assert shown(layout, capsys, "--errors")[1].count("Traceback of") == 6


def torn(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("run.json", '{"schema": 1, "la', "not readable"),
        ("run.json", '{"schema": 99}', "schema 99"),
        ("done.json", "{", "not readable"),
    ],
)
def test_what_cannot_be_read_is_a_row_that_says_why(
    layout: Layout, run: PretrainingRun, capsys: pytest.CaptureFixture[str], file: str, content: str, reason: str
) -> None:
    """The other runs are shown all the same, and the exit code is 0."""
    fine, broken = run, tiny_run(seed=1)
    torn(declare(layout, broken) / file, content)
    code, out, _ = shown(layout, capsys, "--json")
    states = {row["id"]: (row["state"], row["note"]) for row in json.loads(out)}
    assert code == 0 and states[fine.id] == ("waiting", "")
    assert states[broken.id][0] == "unreadable" and reason in states[broken.id][1]


def test_half_written_folders_and_torn_lines_are_named(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny_run()
    torn(declare(layout, run) / "error.json", "{")
    (layout.pretraining("0123456789ab") / "attempts").mkdir(parents=True)
    submit(layout, "12", tiny_run(seed=5), references=["pretraining/bbbbbbbbbbbb"])
    torn(submit(layout, "13"), '{"job": "1"{"job"')
    code, out, err = shown(layout, capsys, "--json")
    rows = {row["id"]: row for row in json.loads(out)}
    assert code == 0 and err.count("torn or of another version: left out") == 1
    assert rows[run.id]["errors"][0]["error"] == "error.json is torn or of another version"
    assert rows["0123456789ab"]["state"] == "missing" and "no run.json" in rows["0123456789ab"]["note"]
    assert rows["bbbbbbbbbbbb"]["state"] == "submitted" and "no folder" in rows["bbbbbbbbbbbb"]["note"]


def test_an_empty_folder_shows_nothing_and_a_missing_one_is_exit_3(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = shown(layout, capsys)
    assert code == 0 and "no runs to show" in out
    assert shown(layout, capsys, "--json")[:2] == (0, "[]\n")
    code, _, err = shown(Layout(layout.root / "nowhere"), capsys)
    assert code == 3 and err.count("\n") == 1 and "nowhere" in err


def test_filters_choose_rows(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    """Two ladders in one folder may both have an M1."""
    for seed, name in enumerate(("M1", "M2", "my own")):
        declare(layout, tiny_run(seed=seed), (name,))
    finish_pretraining(layout, tiny_run(seed=0))
    file = layout.root / "other.py"
    file.write_text("from ablations.ladder import M0, ROTARY\nM1 = M0.derive('M1', ROTARY)\n")
    declare(layout, tiny_run(seed=3), ("M1",), ladder="other.py")
    kept = layout.ladder("other.py", loading.load(str(file)).labels["ladder_sha256"][:12])
    write(kept, {}).write_bytes(file.read_bytes())

    def seeds(*flags: str) -> list[int]:
        return sorted(row["seed"] for row in json.loads(shown(layout, capsys, "--json", *flags)[1]))

    assert seeds("--variant", "M0..M2") == [0, 1, 3] and seeds("--variant", "my own", "M1") == [0, 2, 3]
    assert seeds("--state", "done", "running") == [0]
    assert seeds("--ladder", str(file)) == seeds("--ladder", str(kept)) == [3]
    assert "  M1 (other.py)  " in shown(layout, capsys)[1], "without the flag the file is named"
    code, _, err = shown(layout, capsys, "--variant", "M77")
    assert code == 2 and "did you mean" in err


def test_watch_ends_when_all_is_done(
    layout: Layout, run: PretrainingRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again after each interval, also while no run is of the states shown; Ctrl-C ends it, without a word."""
    slept: list[float] = []

    def finish_meanwhile(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            finish_pretraining(layout, run)

    monkeypatch.setattr(status.time, "sleep", finish_meanwhile)
    code, out, _ = shown(layout, capsys, "--watch", "3", "--state", "waiting", "done")
    assert code == 0 and slept == [3.0, 3.0] and out.count("1 waiting") == 2 and "1 done" in out

    slept.clear()
    (layout.root / run.folder / "done.json").unlink()
    assert shown(layout, capsys, "--watch", "3", "--state", "failed")[0] == 0 and len(slept) == 2

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", interrupt)
    declare(layout, tiny_run(seed=1))
    assert shown(layout, capsys, "--watch")[0] == 0


def test_it_reads_little_and_imports_nothing_heavy(layout: Layout) -> None:
    """About one file a run and two at most, and one a job: this keeps thousands of runs under a second."""
    for seed in range(12):
        run = tiny_run(seed=seed)
        declare(layout, run)
        claim(layout, run.id, released=seed % 3 == 0)
        if seed % 3 == 0:
            finish_pretraining(layout, run)
        elif seed % 3 == 1:
            progress(layout, run, 12)
            checkpoint(layout, run, 10, seconds=5.0)
        for task in ("cola", "mnli", "rte", "sst2"):
            study = study_of(run, task, points=6)
            declare(layout, study)
            if seed % 6 == 0:
                finish_study(layout, study)
            elif seed % 6 == 3:
                record_trial(layout, study, 3)
        submit(layout, str(seed), run, ago_seconds=3600)
    runs, jobs = 12 * 5, 12
    code = f"""
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
from ablations.status import main
assert main(["--runs", {str(layout.root)!r}, "--json"]) == 0
heavy = {{"torch", "transformers", "numpy", "pandas", "pyarrow", "ablations.ladder"}} & set(sys.modules)
print(len([path for path in opened if str(path).startswith({str(layout.root)!r})]), sorted(heavy), file=sys.stderr)
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    opens, heavy = answer.stderr.strip().split(" ", 1)
    assert heavy == "[]"
    assert runs <= int(opens) <= 2 * runs + jobs


def test_a_run_is_seen_while_it_finishes(layout: Layout, run: PretrainingRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is published and the claim released between two looks: the run is done, never waiting."""
    path = claim(layout, run.id)

    def finishes_meanwhile(*arguments: Any) -> None:
        finish_pretraining(layout, run)
        path.unlink()

    monkeypatch.setattr("neobert.runs.index.last_owner", finishes_meanwhile)
    assert only_row(layout)["state"] == "done"
