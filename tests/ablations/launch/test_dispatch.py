"""Submission to SLURM: what is asked for, what depends on what, and that nothing is submitted twice."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from ablations.launch.request import Place
from ablations.run import main
from neobert.processes import REPOSITORY
from neobert.runs.claims import acquire
from neobert.runs.layout import SUBMISSION_CLAIM, Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import read_run_file
from neobert.runs.submissions import Submission, read_submissions
from neobert.slurm.job import take_snapshot
from sweeps import glue_grid
from tests.ablations.fake_slurm import FakeSlurm, submit


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def sent(runs: Path, kind: str = "") -> list[Submission]:
    """All jobs that were submitted, or those of a kind."""
    return [each for each in read_submissions(Layout(runs)) if kind in ("", each.kind)]


def test_stages_follow_each_other_and_nothing_is_sent_twice(slurm: FakeSlurm, runs: Path) -> None:
    """The corpus, then pre-training, then MNLI and its equals, then what starts from MNLI: afterany, never afterok.

    M1 waits for the corpus that M0's job brings. Whatever SLURM says a vanished job came to: without its record the
    work is missing. A finished stage neither runs again nor is waited for, though its job may linger in the queue.
    """
    assert submit(runs) == 0
    prepare, pretrain, grid, transfer = sent(runs)
    assert [prepare.kind, pretrain.kind, grid.kind, transfer.kind] == ["prepare", "pretrain", "glue", "glue"]
    assert pretrain.after == (prepare.job,) and grid.after == (pretrain.job,)
    assert transfer.after == (pretrain.job, grid.job)
    assert {reference.split("/")[1] for reference in transfer.references} == {"rte", "stsb", "mrpc", "qnli"}
    files = slurm.submitted()
    assert f"--dependency=afterany:{prepare.job}" in files[pretrain.job]
    assert not any("afterok" in text for text in files.values())
    assert main(["--variant", "M1", "--stages", "pretrain", "--cluster", "slurm", "--runs", str(runs)]) == 0
    (of_m1,) = sent(runs)[4:]
    assert of_m1.kind == "pretrain" and of_m1.after == (prepare.job,)
    slurm.end(pretrain.job)
    submit(runs)
    assert [each.references for each in sent(runs)[5:]] == [pretrain.references]
    finish_pretraining(slurm, runs)
    submit(runs)
    grid, transfer = sent(runs)[6:]
    assert grid.kind == transfer.kind == "glue" and grid.after == ()


def finish_pretraining(slurm: FakeSlurm, runs: Path) -> None:
    """As if every job had run, and only pre-training had left a record."""
    for path in list((slurm.state / "live").iterdir()):
        slurm.end(path.name)
    folder = runs / sent(runs, "pretrain")[0].references[0]
    checkpoint = folder / "checkpoints" / "step-00005000"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").touch()
    publish_record(folder / "done.json", {"kind": "pretraining", "id": folder.name, "state": "done"})


def test_a_sweep_goes_to_the_queue_as_well(slurm: FakeSlurm, runs: Path) -> None:
    """CoLA alone is one array; RTE brings MNLI before it. Failed points wait for --retry-failed there, too. Jobs get
    the tracker without the environment of the command: under `export=NONE` they inherit nothing."""
    submit(runs, "--stages", "pretrain")
    finish_pretraining(slurm, runs)
    sweep = ["--variant", "M0", "--cluster", "slurm", "--runs", str(runs), "--track", "tensorboard"]
    assert glue_grid.main(["--task", "cola", *sweep]) == 0
    assert glue_grid.main(["--task", "cola", "rte", *sweep]) == 0
    cola, mnli, rte = sent(runs)[2:]
    tasks = [reference.split("/")[1] for each in (cola, mnli, rte) for reference in each.references]
    assert tasks == ["cola", "mnli", "rte"] and rte.after == (mnli.job,)
    (pickled,) = (runs / cola.logs).glob("*_submitted.pkl")
    assert b"--leave-failed" in pickled.read_bytes()
    assert "export NEOBERT_TRACK=tensorboard" in slurm.submitted()[cola.job] and "NEOBERT_TRACK" not in os.environ


def test_a_queued_run_executes_as_it_was_submitted(
    slurm: FakeSlurm, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other flags count once its job has ended. A run file that is gone is written in any case."""

    def processes(gpus: int) -> int:
        assert submit(runs, "--stages", "pretrain", "--gpus", str(gpus)) == 0
        return read_run_file(runs / sent(runs, "pretrain")[0].references[0]).execution.processes

    assert (processes(1), processes(8), len(sent(runs))) == (1, 1, 2)
    assert "1 run(s) have a job already and execute as it was submitted" in capsys.readouterr().err
    next(runs.glob("pretraining/*/run.json")).unlink()
    assert (processes(8), len(sent(runs))) == (8, 2)
    for job in slurm.submitted():
        slurm.end(job)
    assert (processes(2), len(sent(runs))) == (2, 4)


def test_what_a_run_measures_stays_unless_flags_change_it(slurm: FakeSlurm, runs: Path) -> None:
    """It has one record, for which a later command that says nothing of this must not take away what was asked for."""
    for flags, expected in (
        (["--heldout", "all"], "all"),
        (["--compile", "off"], "all"),
        (["--heldout", "own"], "own"),
    ):
        assert submit(runs, "--stages", "pretrain", *flags) == 0
        assert read_run_file(runs / sent(runs, "pretrain")[0].references[0]).execution.heldout == expected
        for path in list((slurm.state / "live").iterdir()):
            slurm.end(path.name)


def test_launchers_of_the_same_second_submit_each_stage_once(slurm: FakeSlurm, runs: Path) -> None:
    command = [sys.executable, "ablations/run.py", "--variant", "M0", "M2", "--cluster", "slurm", "--runs", str(runs)]
    launchers = [subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [launcher.wait() for launcher in launchers] == [0, 0, 0]
    references = [reference for each in sent(runs) for reference in each.references]
    assert len(references) == len(set(references)) == 2 * (1 + 1 + 8)


@pytest.mark.parametrize(("largest", "points", "elements"), [(0, 4, [None] * 4), (3, 1, [3, 3, 2, 3, 3, 2])])
def test_grids_become_arrays_that_are_split_or_single_jobs_where_the_cluster_wants_it(
    tmp_path: Path, runs: Path, monkeypatch: Any, largest: int, points: int, elements: list[int | None]
) -> None:
    fake = FakeSlurm.make(tmp_path / "slurm", largest_array=largest).install(monkeypatch)
    profile = tmp_path / "small.toml"
    profile.write_text(f"[glue]\npoints_per_worker = {points}\n")
    assert submit(runs, "--cluster-profile", str(profile), "--max-running", "2") == 0
    grids = sent(runs, "glue")
    assert [each.elements for each in grids] == elements
    for each in grids:
        found = re.findall(r"--array='?([\d%-]+)", fake.submitted()[each.job])
        assert found == ([] if each.elements is None else [f"0-{each.elements - 1}%2"])
    transferred = len(grids) // 2
    assert set(grids[transferred].after) >= {each.job for each in grids[:transferred] if each.elements}


def test_jobs_run_the_code_as_it_was_submitted(slurm: FakeSlurm, runs: Path) -> None:
    """The snapshot comes first, and importing any other copy is refused with exit code 2."""
    submit(runs)
    (pretrain,) = sent(runs, "pretrain")
    snapshot = runs / pretrain.snapshot
    assert f"export PYTHONPATH={snapshot}$" in slurm.submitted()[pretrain.job]
    assert (snapshot / "neobert" / "recipe.py").read_bytes() == (REPOSITORY / "neobert" / "recipe.py").read_bytes()
    assert json.loads((snapshot / "snapshot.json").read_text()).keys() >= {"id", "commit", "dirty"}
    code = f"from neobert.slurm.job import Payload; Payload({str(snapshot)!r}, ('--runs', {str(runs)!r}, 'x'))()"
    foreign = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert foreign.returncode == 2
    assert "imports" in foreign.stderr and "Traceback" not in foreign.stderr
    code = "import neobert; from neobert.runs.records import provenance; print(provenance())"
    own = [sys.executable, "-P", "-c", code]
    assert snapshot.name in subprocess.check_output(own, env={"PYTHONPATH": str(snapshot)}, text=True)


def test_a_snapshot_that_was_changed_runs_no_job_and_is_taken_again(slurm: FakeSlurm, runs: Path) -> None:
    """A file-by-file purge of a scratch file system, or an edit: the id of the snapshot would name other code."""
    submit(runs, "--stages", "pretrain")
    snapshot = runs / sent(runs)[0].snapshot
    job = ["-P", "-c", f"from neobert.slurm.job import Payload; Payload({str(snapshot)!r}, ('--help',))()"]

    def run() -> subprocess.CompletedProcess[str]:
        environment = {"PYTHONPATH": str(snapshot), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, *job], env=environment, capture_output=True, text=True, check=False)

    assert (run().returncode, take_snapshot(snapshot.parent)) == (0, snapshot)
    claims = Path("neobert/runs/claims.py")
    (snapshot / claims).write_text("LEASE_SECONDS = 61.0")
    (snapshot / "ablations/run.py").unlink()
    refused = run()
    assert refused.returncode == 1 and "was changed since this job was submitted" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert take_snapshot(snapshot.parent) == snapshot
    assert snapshot.with_name(f"{snapshot.name}.damaged-1").is_dir()
    assert (snapshot / claims).read_bytes() == (REPOSITORY / claims).read_bytes() and run().returncode == 0


def test_a_cluster_is_taken_where_there_is_one(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """auto: SLURM where it answers; inside a job, and where no controller answers, this machine."""
    assert Place().decided().cluster == "slurm"
    assert Place("here").decided().cluster == "here"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert Place().decided().cluster == "here"
    with pytest.raises(ValueError, match="inside a job"):
        Place("slurm").decided()
    monkeypatch.delenv("SLURM_JOB_ID")
    (slurm.state / "down").touch()
    assert Place().decided().cluster == "here"
    assert capsys.readouterr().err == "SLURM does not answer (sinfo): this runs here\n"


def test_cancel_finds_jobs_whatever_their_scale_and_seed_and_keeps_to_those_named(
    slurm: FakeSlurm, runs: Path, capsys: pytest.CaptureFixture
) -> None:
    submit(runs, "--scale", "study", "--seed", "3", "4", "--stages", "pretrain")
    corpus, third, fourth = (each.job for each in sent(runs))
    common = ["--variant", "M0", "--cancel", "--json", "--runs", str(runs)]
    capsys.readouterr()
    for flags in (["--scale", "smoke"], ["--seed", "0"], ["--data", str(runs)]):
        assert main([*common, *flags]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out) == [] and "no matching job is running" in said.err
    assert main([*common, "--seed", "4"]) == 0
    assert json.loads(capsys.readouterr().out) == [fourth], "the corpus is waited for by the other seed"
    assert main(common) == 0
    assert json.loads(capsys.readouterr().out) == [corpus, third]


def test_cancel_takes_no_job_of_a_launcher_that_is_about_to_write_its_payload(slurm: FakeSlurm, runs: Path) -> None:
    """Between sbatch and its payload a job looks like one that a killed launcher lost."""
    submit(runs)
    payloads = {path: path.read_bytes() for path in sorted((runs / "jobs").iterdir())[-1].glob("*.pkl")}
    for path in payloads:
        path.unlink()
    claim = acquire(Layout(runs).claims(SUBMISSION_CLAIM))
    assert claim is not None
    with ThreadPoolExecutor() as pool:
        with claim:
            cancelling = pool.submit(main, ["--variant", "M5", "--cancel", "--runs", str(runs)])
            assert wait([cancelling], timeout=2).not_done
            for path, content in payloads.items():
                path.write_bytes(content)
        assert cancelling.result() == 0
    assert not (slurm.state / "cancelled").exists()


def test_each_job_has_as_many_threads_as_it_asks_for_cores(slurm: FakeSlurm, runs: Path, tmp_path: Path) -> None:
    """Not as many as the login node has. Readouts are one job."""
    profile = tmp_path / "cores.toml"
    profile.write_text("[glue]\ncpus_per_task = 2\n[prepare]\ncpus_per_task = 3\n")
    submit(runs, "--scale", "proxy", "--stages", "glue", "readouts", "--cluster-profile", str(profile))
    assert [each.elements for each in sent(runs)].count(None) == 3
    jobs = [sent(runs, kind)[0] for kind in ("prepare", "pretrain", "glue")]
    files = [slurm.submitted()[each.job] for each in jobs]
    assert [int(re.findall(r"OMP_NUM_THREADS=(\d+)", text)[0]) for text in files] == [3, 1, 2]
    assert read_run_file(runs / jobs[1].references[0]).execution.threads == 1


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--workers", "2"], 2, ["use --max-running N on SLURM"]),
        (["--cluster-profile", "h10"], 3, ["did you mean 'h100'"]),
        (["--partition", "gpu", "--gpus", "9"], 2, ["invalid partition specified: gpu", "partition = gpu"]),
        (["--runs", "FILE/runs"], 2, ["FILE"]),
    ],
)
def test_what_cannot_be_submitted_is_refused_in_a_sentence(
    slurm: FakeSlurm, runs: Path, capsys: pytest.CaptureFixture, flags: list[str], code: int, said: list[str]
) -> None:
    """What SLURM refuses in its words."""
    file = runs.with_name("file")
    file.touch()
    (slurm.state / "refuse").write_text("invalid partition specified: gpu")
    assert submit(runs, *(flag.replace("FILE", str(file)) for flag in flags)) == code
    error = capsys.readouterr().err
    assert all(words.replace("FILE", str(file)) in error for words in said)
    assert "Traceback" not in error and not slurm.submitted() and not sent(runs)


def test_a_controller_that_dies_between_is_no_refusal(
    slurm: FakeSlurm, runs: Path, capsys: pytest.CaptureFixture
) -> None:
    """Exit code 1, nothing noted, and the same command later submits everything."""
    (slurm.state / "refuse").write_text("Batch job submission failed: Unable to contact slurm controller")
    assert submit(runs) == 1
    assert "try again later" in capsys.readouterr().err
    (slurm.state / "refuse").unlink()
    assert submit(runs) == 0
    assert len(sent(runs)) == 4
