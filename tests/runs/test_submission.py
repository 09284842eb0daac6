"""Submitting beside others: no job of another folder is touched, any path is quoted, no secret is written down."""

import os
import re
import shutil
import stat
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablations.run import main
from neobert.processes import Terminated
from neobert.runs.claims import acquire
from neobert.runs.layout import SUBMISSION_CLAIM, Layout
from neobert.runs.submissions import read_submissions
from neobert.slurm.job import _come_back
from neobert.slurm.profile import Resources
from neobert.slurm.submit import Job, refuse_folder, sbatch_text
from neobert.slurm.submit import submit as submit_job
from tests.ablations.fake_slurm import FakeSlurm, submit

TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
NAMES = TEXTS.filter(lambda name: not set(name) & set("/%\\:") and name not in (".", ".."))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def cancel(runs: Path) -> int:
    return main(["--variant", "M0", "--cancel", "--runs", str(runs)])


def jobs(runs: Path) -> set[str]:
    return {each.job for each in read_submissions(Layout(runs))}


def live(slurm: FakeSlurm) -> set[str]:
    return {path.name for path in (slurm.state / "live").iterdir()}


def cancelled(slurm: FakeSlurm) -> set[str]:
    path = slurm.state / "cancelled"
    return set(path.read_text().split()) if path.exists() else set()


def test_the_same_command_with_another_folder_touches_no_job_of_the_first(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Two people who share an account, or two studies: names of jobs differ, and each folder has jobs of its own."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert submit(first) == submit(second) == submit(first) == 0
    assert not cancelled(slurm) and len(live(slurm)) == 8
    names = [each.name for folder in (first, second) for each in read_submissions(Layout(folder))]
    assert len(set(names)) == 8
    assert cancel(second) == 0
    assert cancelled(slurm) == jobs(second) and live(slurm) == jobs(first)


def test_a_copy_of_a_folder_has_no_say_over_the_jobs_of_the_original(slurm: FakeSlurm, tmp_path: Path) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    submit(first)
    shutil.copytree(first, copy)
    assert cancel(copy) == 0
    assert not cancelled(slurm)
    assert submit(copy) == 0
    assert len(live(slurm)) == 8 and not cancelled(slurm)


def test_an_id_that_slurm_gave_to_somebody_elses_job_is_not_ours_any_more(slurm: FakeSlurm, runs: Path) -> None:
    submit(runs)
    (job, *_) = sorted(jobs(runs))
    (slurm.state / "live" / job).write_text("#SBATCH --job-name=glue-M0-of-somebody-else\n")
    assert cancel(runs) == 0
    assert cancelled(slurm) == jobs(runs) - {job} and live(slurm) == {job}


def test_a_damaged_announcement_costs_no_job(slurm: FakeSlurm, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit(runs)
    path = max(runs.glob("jobs/*/submission.json"))
    path.write_bytes(path.read_bytes().replace(b'"kind"', b'"kinb"'))
    assert submit(runs) == 0 and f"{path} is torn" in capsys.readouterr().err
    assert not cancelled(slurm) and live(slurm) > jobs(runs)


def test_a_launcher_that_was_paused_leaves_the_rest_to_who_took_over(
    slurm: FakeSlurm, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after Ctrl-Z, or while the file server was away for longer than the lease of the submission."""

    def pause(*given: Any) -> str:
        job = submit_job(*given)
        with acquire(Layout(runs).claims(SUBMISSION_CLAIM), lease_seconds=0) or nullcontext():
            return job

    with monkeypatch.context() as patched:
        patched.setattr("ablations.launch.submit.submit", pause)
        assert submit(runs) == 1
    assert "another one submits to the same folder" in capsys.readouterr().err
    assert len(slurm.submitted()) == 1 and submit(runs) == 0 and len(slurm.submitted()) == 4


@pytest.mark.parametrize("name", ["somebody-elses", "", "..", "named"])
def test_a_job_without_payload_that_a_killed_launcher_left_is_cancelled_and_sent_again(
    slurm: FakeSlurm, runs: Path, name: str
) -> None:
    """No other job is, even one with a folder of its name in jobs/."""
    submit(runs)
    lost = max(jobs(runs))
    logs = runs / next(each.logs for each in read_submissions(Layout(runs)) if each.job == lost)
    for payload in logs.glob("*.pkl"):
        payload.unlink()
    (runs / "jobs" / "named").mkdir()
    output = runs.parent / "theirs" / "log.out"
    (slurm.state / "live" / "99").write_text(f"#SBATCH --job-name={name}\n#SBATCH --output={output}\n")
    assert submit(runs) == 0
    assert cancelled(slurm) == {lost} and live(slurm) == jobs(runs) | {"99"}


def test_a_controller_that_hangs_is_told_in_a_sentence(
    slurm: FakeSlurm, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("neobert.slurm.submit.CLIENT_SECONDS", 0.5)
    (slurm.state / "hangs").touch()
    assert submit(runs) == 1
    assert "squeue did not answer within 0.5 s" in capsys.readouterr().err
    assert not slurm.submitted()


def answer_with(slurm: FakeSlurm, line: str, instead: str) -> None:
    """Let sbatch end in another way."""
    script = slurm.folder / "bin" / "sbatch"
    whole = script.read_text()
    assert line in whole
    script.write_text(whole.replace(line, instead))


USUAL = 'echo "Submitted batch job $job"'


@pytest.mark.parametrize(
    "instead",
    [
        "echo $job",
        f"echo job 7 of yours ended; {USUAL}",
        "echo welcome to the cluster",
        'echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1',
    ],
)
def test_whatever_sbatch_answers_its_job_is_known(slurm: FakeSlurm, runs: Path, instead: str) -> None:
    answer_with(slurm, USUAL, instead)
    assert submit(runs) == 0
    assert live(slurm) == jobs(runs) == {"101", "102", "103", "104"} and not cancelled(slurm)
    assert all(any((runs / each.logs).glob("*submitted.pkl")) for each in read_submissions(Layout(runs)))


def test_a_job_that_has_ended_before_the_queue_is_asked_has_the_number_that_sbatch_said(
    slurm: FakeSlurm, runs: Path
) -> None:
    answer_with(slurm, USUAL, f'rm "$STATE/live/$job"; {USUAL}')
    assert submit(runs) == 0 and jobs(runs) == {"101", "102", "103", "104"}


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ('[ "$1" = --test-only ] && exit 0', "exit 1", "said nothing"),
    ],
)
def test_an_sbatch_that_makes_no_job_is_told_in_a_sentence(
    slurm: FakeSlurm, runs: Path, capsys: pytest.CaptureFixture, line: str, instead: str, said: str
) -> None:
    answer_with(slurm, line, instead)
    assert submit(runs) == 1
    assert said in capsys.readouterr().err
    answer_with(slurm, instead, line)
    assert submit(runs) == 0 and live(slurm) == jobs(runs) and len(jobs(runs)) == 4


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), Terminated("SIGTERM")])
def test_a_job_that_the_command_gives_up_is_cancelled(
    slurm: FakeSlurm, runs: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Here between sbatch and the payload, without which the job would do nothing."""
    answer_with(slurm, USUAL, "echo $job")

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("neobert.slurm.submit._write_payload", fail)
        assert submit(runs) != 0
    assert cancelled(slurm) == {"101"} and not live(slurm)
    assert submit(runs) == 0 and live(slurm) == jobs(runs) and len(jobs(runs)) == 4


SHELL = {
    "SLURM_MEM_PER_CPU": "2048",
    "SLURM_GRES": "gpu:9",
    "SLURM_NTASKS": "7",
    "SLURM_CPUS_PER_TASK": "3",
    "SBATCH_EXCLUSIVE": "1",
    "SRUN_CPUS_PER_TASK": "5",
    "SUBMITIT_EXECUTOR": "local",
    "LOCAL_RANK": "1",
}


def test_what_the_shell_tells_slurms_clients_reaches_no_job(
    slurm: FakeSlurm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch hands its environment to the job. What shows the clients the way stays."""
    for name, value in {**SHELL, "SLURM_CONF": "/etc/slurm/slurm.conf"}.items():
        monkeypatch.setenv(name, value)
    answer_with(slurm, USUAL, f'env > "$STATE/handed-over"; {USUAL}')
    assert submit(runs) == 0
    handed_over = dict(line.split("=", 1) for line in (slurm.state / "handed-over").read_text().splitlines())
    assert not handed_over.keys() & SHELL.keys() and handed_over["SLURM_CONF"] == "/etc/slurm/slurm.conf"
    assert os.environ["SLURM_GRES"] == "gpu:9"


def test_options_in_the_environment_do_not_override_the_profile(
    slurm: FakeSlurm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But an account, partition or QOS there counts where the profile has none."""
    for client in ("sbatch", "scancel", "squeue"):
        monkeypatch.setenv(f"{client.upper()}_ACCOUNT", "theirs")
        script = slurm.folder / "bin" / client
        script.write_text(script.read_text().replace("\n", f'\n[ -z "${client.upper()}_ACCOUNT" ] || exit 1\n', 1))
    assert submit(runs) == cancel(runs) == 0 and cancelled(slurm) == jobs(runs)
    assert os.environ["SBATCH_ACCOUNT"] == "theirs"
    first = len(slurm.submitted())
    assert all("#SBATCH --account=theirs\n" in script for script in slurm.submitted().values())
    assert submit(runs, "--account", "ours") == 0
    assert all("#SBATCH --account=ours\n" in script for script in list(slurm.submitted().values())[first:])


def test_nodes_that_have_not_registered_yet_are_waited_for(
    slurm: FakeSlurm, runs: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that has just started knows no GPU: that is no reason to change the profile."""
    monkeypatch.setattr("neobert.slurm.submit.REGISTRATION_SECONDS", 0.2)
    (slurm.state / "nodes").write_text("idle\nunknown\n")
    (slurm.state / "refuse").write_text("allocation failure: Requested node configuration is not available")
    assert submit(runs) == 1
    said = capsys.readouterr().err
    assert "have not registered" in said and "try again later" in said and "change the profile" not in said
    monkeypatch.setattr("neobert.slurm.submit.REGISTRATION_SECONDS", 60.0)
    (slurm.state / "refuse").rename(slurm.state / "refuse-once")
    assert submit(runs) == 0
    assert capsys.readouterr().err.count("waiting for them") == 1


def executed(script: str, folder: Path) -> tuple[list[str], str, str]:
    """What a batch script calls srun with, PYTHONPATH, and MARK, when bash runs it."""
    stub = folder / "bin"
    stub.mkdir(exist_ok=True)
    (stub / "srun").write_text('#!/bin/sh\nprintf "%s\\0" "$PYTHONPATH" "$MARK" "$@"\n')
    (stub / "srun").chmod(0o755)
    environment = {"PATH": f"{stub}:/usr/bin:/bin"}
    ran = subprocess.run(["bash"], input=script.encode(), capture_output=True, cwd=folder, env=environment, check=True)
    assert not ran.stderr
    python_path, mark, *arguments = ran.stdout.decode().split("\0")[:-1]
    return arguments, python_path, mark


@settings(max_examples=60)
@given(name=NAMES, mark=TEXTS)
def test_whatever_a_path_is_called_bash_takes_it_for_a_path(
    tmp_path_factory: pytest.TempPathFactory, name: str, mark: str
) -> None:
    """The generated script, run by bash: srun gets the folder of logs, Python the snapshot, letter by letter."""
    root = Path("/nowhere") / name
    refuse_folder(root)
    folder = tmp_path_factory.mktemp("bash")
    job = Job("name", "glue", ("glue/rte/studies/x",), (), Resources(), {"MARK": mark})
    script = sbatch_text(job, root / "snapshots" / "x", root / "jobs" / "name", ())
    arguments, python_path, seen = executed(script, folder)
    assert python_path == str(root / "snapshots" / "x") and seen == mark
    assert arguments[-1] == str(root / "jobs" / "name")
    assert arguments[arguments.index("--output") + 1] == str(root / "jobs" / "name" / "%j_%t_log.out")
    assert {path.name for path in folder.iterdir()} == {"bin"}


@pytest.mark.parametrize("elements", [None, 3])
def test_the_shown_script_is_the_submitted_one(slurm: FakeSlurm, tmp_path: Path, elements: int | None) -> None:
    resources = Resources(
        partition="gpu",
        gpus_per_node=2,
        nodes=2,
        cpus_per_task=4,
        memory_gb=16.5,
        sbatch=("mail-type=FAIL", "#SBATCH --exclusive", "comment='a b'"),
        setup=("module load cuda",),
    )
    job = Job("a name", "glue", ("glue/rte/studies/x",), (), resources, {"MARK": "it's"}, elements, most_running=2)
    snapshot, logs = tmp_path / "snapshots" / "x", tmp_path / "jobs" / "a name"
    number = submit_job(job, tmp_path, snapshot, logs, ("7", "8"))
    assert slurm.submitted()[number] == sbatch_text(job, snapshot, logs, ("7", "8"))
    payloads = {path.name for path in logs.glob("*.pkl")}
    assert payloads == {
        f"{each}_submitted.pkl"
        for each in ([number] if elements is None else [f"{number}_{index}" for index in range(3)])
    }


@pytest.mark.parametrize("name", ["a\nb", "100%", "back\\slash", "a:b", "a\x1bb"])
def test_a_path_that_slurm_or_python_would_misread_is_refused(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    assert submit(tmp_path / name) == 2
    assert "choose another folder" in capsys.readouterr().err
    assert not (tmp_path / name).exists() and not slurm.submitted()


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (b'partitoin = "gpu"', "unknown key 'partitoin': did you mean 'partition'"),
        (b"[pretrian]\nnodes = 1", "unknown key 'pretrian': did you mean 'pretrain'"),
        (b"nodes = 0", "nodes = 0"),
        (b"nodes = ", "is no TOML"),
        (b"pretrain = 3", "must be a table"),
        (b'setup = "export WANDB_API_KEY=s3cret"', "[prepare]: setup: Input should be a valid tuple"),
    ],
)
def test_a_wrong_profile_is_refused_in_a_sentence_that_shows_no_secret(
    slurm: FakeSlurm, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture, profile: bytes, said: str
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_bytes(profile)
    assert submit(runs, "--cluster-profile", str(path)) == 2
    shown = capsys.readouterr().err
    assert str(path) in shown and said in shown and shown.count("\n") == 1 and "s3cret" not in shown
    assert not slurm.submitted() and not runs.exists()


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--sbatch", "job-name=mine", "by which it is found"),
        ("--sbatch", "what is this", "sbatch line 'what is this' is not of the form"),
        ("--sbatch", "export ALL,A=s3cret", "sbatch line 'export ALL,A=…' is not of the form"),
        ("--gpus", "100000000", "less than or equal to"),
    ],
)
def test_flags_that_change_the_script_or_that_no_cluster_has_are_refused(
    slurm: FakeSlurm, runs: Path, capsys: pytest.CaptureFixture, flag: str, value: str, said: str
) -> None:
    assert submit(runs, flag, value) == submit(runs, flag, value, "--dry-run") == 2
    shown = capsys.readouterr().err
    assert shown.count(said) == 2 and "Traceback" not in shown and not slurm.submitted()


def test_no_secret_is_written_where_others_read(
    slurm: FakeSlurm,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """A profile's shell lines lie in a file of their own for the user alone, as does the batch script, where the values
    of `export` must stand; tokens of the environment lie nowhere."""
    profile = tmp_path / "mine.toml"
    profile.write_text('setup = ["export WANDB_API_KEY=s3cret"]\nsbatch = ["export=ALL,TOKEN=ex-s3cret,A=ex-s3cret"]\n')
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    flags = ("--cluster-profile", str(profile))
    assert submit(runs, *flags, "--dry-run") == submit(runs, *flags, "--json") == 0
    (slurm.state / "refuse").write_text("invalid account")
    assert submit(runs, *flags, "--seed", "1") == 2
    files = (path for path in runs.rglob("*") if path.is_file() and not path.is_symlink())
    ours = (path for path in files if path.name != "dirty.patch")  # it has this test as long as it is not committed
    written = {path for path in ours if b"s3cret" in path.read_bytes()}
    assert {re.sub(r"\d+", "N", path.name) for path in written} == {"setup.sh", "N_submission.sh"} and len(written) == 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err
    assert "#SBATCH --export='ALL,TOKEN=…'" in said.out and "export=ALL,TOKEN=\\u2026" in said.out
    assert "sbatch = ('export=ALL,TOKEN=…',)" in said.err
    for script in slurm.submitted().values():
        assert "--export=ALL,TOKEN=ex-s3cret,A=ex-s3cret\n" in script and script.count("s3cret") == 2
        sourced = re.findall(r"^source (.*)$", script, re.MULTILINE)
        assert [Path(each.strip("'")) in written for each in sourced] == [True]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 0", "job 7 was warned, saved and is requeued"),
        (None, "job 7 was warned, saved and could not be requeued"),
    ],
)
def test_a_job_that_was_not_requeued_does_not_say_so(
    slurm: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    script: str | None,
    said: str,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(slurm.folder / "bin"))
    client = slurm.folder / "bin" / "scontrol"
    client.unlink()
    if script:
        client.write_text(f"#!/bin/sh\n{script}\n")
        client.chmod(0o755)
    assert _come_back(progressed=True) == 75
    assert said in capsys.readouterr().err
