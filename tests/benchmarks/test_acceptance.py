"""The acceptance command: a rehearsal of all checks on a CPU, and how claims are judged, told and taken up again."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from torch.autograd import DeviceType

from benchmarks.acceptance import __main__ as acceptance
from benchmarks.acceptance import checks
from benchmarks.acceptance.__main__ import CHECKS, RANK_CHECKS, describe, judge, main
from benchmarks.acceptance.checks import CPU, Check, fitting_tokens
from benchmarks.contenders import neobert_recipe
from benchmarks.measuring import Goal, Result
from benchmarks.pretraining import TOKENS_PER_STEP
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_OFF, EXIT_REFUSED, EXIT_RUN_FAILED, MissingData
from neobert.files import json_bytes, read_json
from neobert.processes import REPOSITORY, worker_environment
from tests.support.tree_copy import fresh_clone, shell

FOUND: dict[str, list[dict[str, Any]]] = {
    "group": [
        Result("sum in a group of one", 0.0, {"back end": "gloo"})._asdict(),
        Result("back end", None, {})._asdict(),
    ],
    "contrastive": [
        Result(name, 0.01, {})._asdict() for name in ("vectors", "contrastive loss", "contrastive gradient")
    ],
}
"""What checks that hold leave in their files."""

Runs = list[str]
Finding = Callable[[str, object], None]


@pytest.fixture
def runs() -> Runs:
    """The checks that ran, in order."""
    return []


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> Finding:
    """Let a check's process write this, or run this program, in place of its measurements; all of them run anew."""
    programs: dict[str, str] = {}

    def command_of(name: str, rehearse: bool, into: Path) -> list[str]:
        runs.append(name)
        return [sys.executable, "-c", f"into = {str(into)!r}\n{programs[name]}"]

    def find(name: str, results: object) -> None:
        content = json_bytes({"results": results, "why": None}).decode()
        programs[name] = results if isinstance(results, str) else f"open(into, 'w').write({content!r})"

    monkeypatch.setattr(acceptance, "command_of", command_of)
    return find


def rehearse(folder: Path, *flags: str) -> int:
    return main(["--rehearse", "--folder", str(folder), *flags])


@pytest.mark.drill  # minutes: each check is a process, and four train
def test_a_rehearsal_runs_every_check_on_a_cpu(tmp_path: Path) -> None:
    """As a command: what can be judged without a GPU holds, what a GPU alone can say stays open."""
    command = [sys.executable, "-m", "benchmarks.acceptance", "--rehearse", "--limit", "900", "--json"]
    ended = subprocess.run([*command, "--folder", str(tmp_path)], cwd=REPOSITORY, capture_output=True, check=False)
    assert ended.returncode == EXIT_DONE, ended.stderr.decode()
    result = json.loads(ended.stdout)
    assert result == read_json(tmp_path / "rehearsal.json")
    assert result["rehearsal"] and {"processor", "gpus"} <= set(result["machine"])
    assert all({"torch", "commit"} <= set(outcome["versions"]) for outcome in result["checks"].values())
    assert set(result["checks"]) == {*CHECKS, *RANK_CHECKS}
    claims = {name: outcome["claims"] for name, outcome in result["checks"].items()}
    for check, names in {
        "step": {"loss, eager", "loss, compiled", "gradient, eager", "gradient, compiled"},
        "contrastive": {"vectors", "contrastive loss", "contrastive gradient"},
        "graphs": {"loss of graphs"},
        "resume": {"losses behind a kill"},
        "group": {"sum in a group of one"},
        "ranks": {"losses of ranks", "gradient norms of ranks"},
        "zero": {f"{what} of {engine}" for what in ("losses", "gradient norms") for engine in ("zero1", "zero2")},
        "compiled": {
            f"{what}, compiled"
            for who in ("one", "all")
            for what in (f"losses of {who}", f"gradient norms of {who}", f"late compiling, {who}")
        },
        "lost": {"end of rank 0", "reason of rank 0"},
    }.items():
        assert {name for name in claims[check] if claims[check][name]["met"]} == names
    assert set(result["checks"]["speed"]["figures"]) == {"eager", "compiled"}
    for check in ("environment", "memory", "syncs", "speed", "profile", "attention", "scaling"):
        assert {claim["met"] for claim in claims[check].values()} == {None}


def test_every_check_has_goals_of_its_own() -> None:
    checks = {name: resolve_name(place) for name, place in {**CHECKS, **RANK_CHECKS}.items()}
    assert all(check.goals and check.measure.__doc__ for check in checks.values())
    claimed = [goal.of for check in checks.values() for goal in check.goals.values()]
    assert len(set(claimed)) == len(claimed)


def test_checks_have_the_environment_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator of another setting would reserve ten times as much memory for steps of different sizes."""
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    own, workers = acceptance.environment_of(rehearse=False), worker_environment(1)
    assert own["PYTORCH_ALLOC_CONF"] == workers["PYTORCH_ALLOC_CONF"]
    assert own["CUBLAS_WORKSPACE_CONFIG"] == workers["CUBLAS_WORKSPACE_CONFIG"]
    assert own["PYTHONPATH"] == workers["PYTHONPATH"]


def test_without_a_gpu_nothing_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "", "tests take no GPU where there is one"
    assert main(["--folder", str(tmp_path)]) == EXIT_MISSING
    (said,) = capsys.readouterr().err.splitlines()
    assert "there is no GPU here" in said and "--rehearse" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speeed"], "did you mean 'speed'"),
        (["--limit", "0"], "whole number from 1"),
        (["--folder", "setup.cfg"], "is a file"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("setup.cfg").touch()
    try:
        code = main(["--rehearse", *arguments])
    except SystemExit as exit:
        code = exit.code
    assert code == EXIT_REFUSED
    assert said in capsys.readouterr().err


def test_checks_of_several_gpus_need_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = {"machine": {"gpus": 1}, "checks": {}}
    monkeypatch.setattr(acceptance, "open_result", lambda folder, rehearse: (tmp_path / "gpu.json", new))
    assert main(["scaling", "--folder", str(tmp_path)]) == EXIT_REFUSED


@pytest.mark.parametrize(
    ("value", "state", "met"), [(0.01, "held", True), (0.02, "falsified", False), (None, "held", None)]
)
def test_a_claim_is_judged_by_its_goal(value: float | None, state: str, met: bool | None) -> None:
    check = Check(lambda setting: iter(()), {"difference": Goal(0.01, "at most", "the difference of two things")})
    outcome = judge(check, [Result("difference", value, {"fact": 1})])
    assert judge(check, [])["claims"]["difference"]["met"] is None, "what was not measured stays open"
    assert (outcome["state"], outcome["claims"]["difference"]["met"]) == (state, met)
    assert outcome["figures"] == {"fact": 1}
    word = {True: "holds", False: "FALSIFIED", None: "not measured"}[met]
    assert word in describe("step", outcome | {"seconds": 1.0})[1]


def test_a_falsified_claim_ends_with_its_own_exit_code(
    tmp_path: Path, found: Finding, capsys: pytest.CaptureFixture[str]
) -> None:
    found("group", FOUND["group"])
    found("contrastive", [Result("vectors", 0.2, {})._asdict(), Result("contrastive loss", 0.01, {})._asdict()])
    assert rehearse(tmp_path, "group", "contrastive") == EXIT_OFF
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "FALSIFIED" in line] == [
        "  FALSIFIED  0.2, claimed ≤ 0.05: distance of vectors in bf16 to those in fp32 on the CPU / their norm"
    ]
    states = {name: outcome["state"] for name, outcome in read_json(tmp_path / "rehearsal.json")["checks"].items()}
    assert states == {"contrastive": "falsified", "group": "held"}


@pytest.mark.parametrize(
    ("program", "state", "why"),
    [
        ("import time; time.sleep(60)", "too long", "not done within 1 s"),
        ("import os; os.kill(os.getpid(), 9)", "died", "ended by SIGKILL"),
        ("raise SystemExit(7)", "died", "ended with exit code 7"),
    ],
)
def test_a_check_that_does_not_come_to_an_end_is_said_so_and_runs_again(
    program: str, state: str, why: str, tmp_path: Path, found: Finding, runs: Runs
) -> None:
    found("group", program)
    assert rehearse(tmp_path, "group", "--limit", "1") == EXIT_RUN_FAILED
    outcome = read_json(tmp_path / "rehearsal.json")["checks"]["group"]
    assert outcome["state"] == state and outcome["why"].startswith(why)
    found("group", FOUND["group"])
    assert rehearse(tmp_path, "group") == EXIT_DONE and runs == ["group", "group"]


def test_a_check_that_fails_on_the_way_keeps_what_it_found(tmp_path: Path, found: Finding) -> None:
    left = {"results": FOUND["contrastive"][:1], "why": "OutOfMemoryError: CUDA out of memory"}
    found("contrastive", f"open(into, 'w').write({json_bytes(left).decode()!r}); raise SystemExit(1)")
    assert rehearse(tmp_path, "contrastive") == EXIT_RUN_FAILED
    outcome = read_json(tmp_path / "rehearsal.json")["checks"]["contrastive"]
    assert (outcome["state"], outcome["why"]) == ("died", left["why"])
    assert {name: claim["met"] for name, claim in outcome["claims"].items()} == {
        "vectors": True,
        "contrastive loss": None,
        "contrastive gradient": None,
    }


def test_the_same_command_goes_on_and_repeats_nothing(tmp_path: Path, found: Finding, runs: Runs) -> None:
    for name, results in FOUND.items():
        found(name, results)
    assert rehearse(tmp_path, "group") == EXIT_DONE
    assert rehearse(tmp_path, "group", "contrastive") == EXIT_DONE
    assert runs == ["group", "contrastive"]
    assert rehearse(tmp_path, "group", "--again") == EXIT_DONE
    assert runs == ["group", "contrastive", "group"]
    assert set(read_json(tmp_path / "rehearsal.json")["checks"]) == {"group", "contrastive"}


def test_a_falsified_claim_is_told_again_without_measuring_it_again(tmp_path: Path, found: Finding, runs: Runs) -> None:
    found("group", [Result("sum in a group of one", 1.0, {})._asdict()])
    assert [rehearse(tmp_path, "group") for _ in range(2)] == [EXIT_OFF, EXIT_OFF] and runs == ["group"]


def test_results_of_benchmarks_are_no_change_of_the_code_and_an_edit_is(tmp_path: Path) -> None:
    """In a git clone: the second call of the command sees the result file of the first."""
    tree = fresh_clone(tmp_path / "clone")
    commit = "git init --quiet && git add . && git -c user.name=a -c user.email=a@b commit --quiet --message a"
    asked = ".venv/bin/python -c 'from benchmarks.measuring import describe_versions as v; print(v()[\"commit\"][-1])'"
    written = "mkdir -p benchmarks/results/acceptance && touch benchmarks/results/acceptance/a-gpu.json"
    answer = shell(tree, f"{commit}\n{written}\n{asked}\necho >> neobert/hub/__init__.py\n{asked}")
    before, after = answer.stdout.split()
    assert before != "+" == after, answer.stderr


def test_a_check_is_judged_anew_by_another_commit_and_the_others_keep_theirs(
    tmp_path: Path, found: Finding, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, results in FOUND.items():
        found(name, results)
    monkeypatch.setattr(acceptance, "describe_versions", lambda: {"commit": "one"})
    assert rehearse(tmp_path, "group", "contrastive") == EXIT_DONE
    monkeypatch.setattr(acceptance, "describe_versions", lambda: {"commit": "another"})
    assert rehearse(tmp_path, "group") == EXIT_DONE and runs == ["contrastive", "group", "group"]
    checks = read_json(tmp_path / "rehearsal.json")["checks"]
    commits = {name: outcome["versions"]["commit"] for name, outcome in checks.items()}
    assert commits == {"group": "another", "contrastive": "one"} and all(each["date"] for each in checks.values())


def test_results_of_another_machine_are_not_mixed(
    tmp_path: Path, found: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, results in FOUND.items():
        found(name, results)
    assert rehearse(tmp_path, "group") == EXIT_DONE
    monkeypatch.setattr(acceptance, "describe_machine", lambda: {"processor": "another"})
    assert rehearse(tmp_path, "contrastive") == EXIT_DONE
    assert set(read_json(tmp_path / "rehearsal.json")["checks"]) == {"contrastive"}


@pytest.mark.parametrize(("gigabytes", "part"), [(84, 1), (48, 2), (42, 4), (24, 8)])
def test_a_step_has_as_many_rows_as_fit_into_the_gpu(gigabytes: int, part: int) -> None:
    recipe = neobert_recipe("bf16")
    assert fitting_tokens(recipe, gigabytes * 10**9) == TOKENS_PER_STEP // part
    with pytest.raises(MissingData, match="take a GPU with more memory"):
        fitting_tokens(recipe, 6 * 10**9)


def test_the_time_of_a_kernel_counts_once_and_not_again_in_the_region_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [
        SimpleNamespace(key=key, device_type=DeviceType.CPU, is_user_annotation=region, self_cpu_time_total=3)
        for key, region in (("mm", False), ("cos", False), ("forward", True))
    ]
    seen = MagicMock()
    seen.return_value.__enter__.return_value.key_averages.return_value = events
    monkeypatch.setattr(checks, "profile", seen)
    found = next(checks.profile_step(MagicMock(device=CPU)))
    assert found.figures == {"share of the time": {"mm": 0.5, "cos": 0.5}}


@pytest.mark.parametrize(
    ("kernel", "computes_angles"),
    [
        ("triton_poi_fused_cos_mul_sin_3", True),
        ("triton_per_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0", False),
        ("triton_red_fused__fused_rms_norm_backward_1", False),
    ],
)
def test_a_norm_that_is_named_after_its_square_computes_no_angles(kernel: str, computes_angles: bool) -> None:
    assert bool(checks.TRIGONOMETRY.search(kernel)) == computes_angles
