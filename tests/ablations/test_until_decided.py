"""`--until-decided`: seeds until the verdict, through the command itself, across kills, and on SLURM."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ablations import run
from ablations.declarations import Declaration, using
from ablations.launch import until_decided
from ablations.plan import VariantRow
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.index import Index
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from tests.ablations.fake_slurm import FakeSlurm
from tests.ablations.plans import rows_of
from tests.ablations.status_worlds import finish_pretraining
from tests.ablations.test_declarations import CONTENT, write
from tests.support.tiny_runs import starts
from tests.support.waiting import until

PAIR = ["--variant", "M0", "M0@rate3e-2", "--until-decided", "--most-seeds", "5"]
NOISE = (0.01, -0.02, 0.015, -0.01, 0.02, 0.0, -0.015, 0.01, 0.005, -0.005)


@pytest.fixture
def untrained_arms_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is learned in the few steps of the toy scale."""
    monkeypatch.setattr(until_decided, "LEAST_GAIN", -float("inf"))


def verdicts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What the command prints as JSON."""
    capsys.readouterr()
    assert run.main([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def finish(layout: Layout, stage: PretrainingRun, loss: float, transition: int | None = None) -> None:
    """A made-up record."""
    corpora, context = ("wikibook", "web"), stage.recipe.stages[-1].context
    score = {"context": context, "texts": "t", "loss": loss, "bits_per_byte": loss / 4}
    (layout.root / stage.folder).mkdir(parents=True, exist_ok=True)
    heldout = [{**score, "corpus": corpus, "frequency_loss": 9.0} for corpus in corpora]
    scores = {"heldout_loss": dict.fromkeys(corpora, loss), "heldout": heldout, "training_loss": 1.0}
    if transition is not None:
        scores["transition"] = {"step": transition}
    finish_pretraining(layout, stage, scores=scores, gpu_hours=0.0, seconds=36.0, threads=1, processes=1)


MadeUp = Callable[..., list[list[tuple[str, int]]]]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """Runs that take no time, with these losses by variant: a mean and a factor for the noise of the seed. Those in
    `waiting` leave the plateau the later, the higher their loss; those in `failing` fail. Returns the runs of each
    round."""

    def install(
        waiting: Sequence[str] = (), failing: Sequence[tuple[str, int]] = (), **losses: tuple[float, float]
    ) -> list[list[tuple[str, int]]]:
        rounds: list[list[tuple[str, int]]] = []

        def train(workspace: Any, rows: Sequence[VariantRow], show: object) -> int:
            rounds.append([(row.name, row.seed) for row in rows])
            for row in rows:
                mean, factor = losses[row.name]
                noise = factor * NOISE[row.seed]
                transition = round(500 + 1000 * noise) if row.name in waiting else None
                if (row.name, row.seed) not in failing:
                    finish(workspace.layout, row.stages[-1], mean + noise, transition)
            return int(not set(failing).isdisjoint(rounds[-1]))

        monkeypatch.setattr(until_decided, "run_or_submit", train)
        return rounds

    return install


def test_each_comparison_takes_the_seeds_that_it_needs(
    tmp_path: Path, made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    """M1 is clearly better than M0, M3 clearly worse than M2. M2 is noise to M1, and takes further seeds of both."""
    rounds = made_up(M0=(5.0, 1.0), M1=(4.0, -1.0), M2=(3.87, 9.0), M3=(6.0, 8.0))
    arguments = ["--variant", "M0..M3", "--until-decided", "--heldout", "all", "--runs", str(tmp_path)]
    said = verdicts(capsys, *arguments)
    found = {entry["child"]: (entry["verdict"], entry["seeds"]) for entry in said["comparisons"]}
    assert found["M1"] == ("better", 3) and found["M3"] == ("worse", 3)
    assert found["M2"] == ("not shown", 5)
    assert sorted(rounds[0]) == [(name, seed) for name in ("M0", "M1", "M2", "M3") for seed in range(3)]
    assert rounds[1:] == [[("M1", seed), ("M2", seed)] for seed in (3, 4)], "M0 and M3 are decided"
    assert (said["runs"], said["runs_at_most"]) == (16, 40)
    assert said["core_hours_saved"] == pytest.approx(24 * 36 / 3600)
    again = len(rounds)
    assert verdicts(capsys, *arguments) == said and len(rounds) == again, "nothing is trained or decided anew"
    assert run.main(arguments) == 0
    told = capsys.readouterr().out
    failed = {entry["child"]: entry["failing_checks"] for entry in said["comparisons"]}
    assert any("M2: its seeds have 9.0 times the sd of those of M1" in each for each in failed["M2"])
    assert all("beta2 has a half-life" in each for each in failed["M1"]), "no spread, and no transition on record"
    assert "reports do not claim M2 − M1, as its regime fails: M2: its seeds have" in told
    assert "3 of 10" in told and f"{said['runs']} of at most 40 runs are trained" in told and "core-hours" in told


def test_a_failed_seed_leaves_its_comparisons_undecided_and_the_others_go_on(
    tmp_path: Path, made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is trained once in a command, and again by the next one, which also ends with the verdicts."""
    losses = {"M0": (5.0, 1.0), "M1": (4.0, -1.0), "M2": (3.87, 9.0), "M3": (6.0, 8.0)}
    rounds = made_up(failing=[("M3", 1)], **losses)
    arguments = ["--variant", "M0..M3", "--until-decided", "--heldout", "all", "--json", "--runs", str(tmp_path)]
    assert run.main(arguments) == 1
    said = capsys.readouterr()
    found = {each["child"]: (each["verdict"], each["seeds"]) for each in json.loads(said.out)["comparisons"]}
    assert found == {"M1": ("better", 3), "M2": ("not shown", 5), "M3": (None, 1)}
    assert "not trained: M3 seed 1; the same command tries again" in said.err
    assert sum(("M3", 1) in each for each in rounds) == 1
    again = made_up(**losses)
    assert run.main(arguments) == 0 and again == [[("M3", 1)]]
    found = {each["child"]: each["verdict"] for each in json.loads(capsys.readouterr().out)["comparisons"]}
    assert found == {"M1": "better", "M2": "not shown", "M3": "worse"}


def test_seeds_that_differ_by_when_they_leave_the_plateau_are_named(
    tmp_path: Path, made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of either arm, from five seeds on: with fewer, r² says little."""
    made_up(waiting=["M0"], M0=(3.87, 9.0), M1=(4.0, -1.0))
    arguments = ["--variant", "M0", "M1", "--until-decided", "--runs", str(tmp_path)]
    (said,) = verdicts(capsys, *arguments)["comparisons"]
    assert said["seeds"] >= 5
    assert any("the seeds of M0 differ by when they leave the plateau" in each for each in said["failing_checks"])


def test_arms_that_learned_nothing_get_no_verdict(
    tmp_path: Path, made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up(M0=(8.95, 1.0), M1=(4.0, 1.0))
    said = verdicts(capsys, "--variant", "M0", "M1", "--until-decided", "--runs", str(tmp_path))
    assert [(each["verdict"], each["seeds"]) for each in said["comparisons"]] == [("not trained", 3)]


@pytest.mark.usefixtures("toy_scale", "untrained_arms_count")
def test_a_kill_in_the_middle_trains_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and its worker are killed with SIGKILL; the same command goes on and comes to the verdict of one that
    was not killed."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    said = verdicts(capsys, *PAIR, "--workers", "2", "--runs", str(whole))
    (one,) = said["comparisons"]
    assert one["verdict"] in ("better", "worse") and one["seeds"] == 3 and said["runs"] == 6
    assert said["runs_saved"] == 4 and said["core_hours_saved"] > 0
    if not (driver := os.fork()):
        try:
            run.main([*PAIR, "--workers", "1", "--runs", str(killed)])
        finally:
            os._exit(0)
    worker = until(lambda: records(killed) and live_worker(killed), seconds=300, what="a record and a run at work")
    assert worker
    os.kill(driver, signal.SIGKILL)
    with suppress(ProcessLookupError):  # a worker ends by itself soon after its driver
        os.kill(worker, signal.SIGKILL)
    os.waitpid(driver, 0)
    finished = set(records(killed))
    assert 1 <= len(finished) < 6
    again = verdicts(capsys, *PAIR, "--workers", "2", "--runs", str(killed))
    assert again["comparisons"] == said["comparisons"], "losses, verdict and seeds"
    begun = Counter(starts(killed))
    assert {begun[run_id] for run_id in finished} == {1} and len(records(killed)) == len(begun) == 6
    assert sum(begun.values()) <= 7, "only what was killed began twice"


def live_worker(root: Path) -> int | None:
    """The process that trains."""
    return next((each.pid for row in Index(Layout(root)).rows() for each in row.workers if each.is_live), None)


def records(root: Path) -> list[str]:
    """The ids of the pre-training runs with a record."""
    return [path.parent.name for path in root.glob("pretraining/*/done.json")]


def test_on_slurm_the_same_command_goes_on(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three seeds of both arms are submitted, and none again while they run. With their records one more seed of each
    follows, and nothing once it is decided."""
    layout, rounds = Layout(tmp_path / "runs"), list[int]()
    arguments = ["--variant", "M0", "M1", "--until-decided", "--most-seeds", "5", "--cluster", "slurm"]
    arguments += ["--runs", str(layout.root)]
    while not rounds or rounds[-1]:
        assert run.main(arguments) == 0
        jobs = len(slurm.submitted())
        capsys.readouterr()
        assert run.main(arguments) == 0 and len(slurm.submitted()) == jobs
        said = capsys.readouterr()
        rounds.append(0)
        for path in layout.root.glob("pretraining/*/run.json"):
            stage = read_run_file(path.parent).specification(PretrainingRun)
            if not (path.parent / "done.json").exists():
                is_child = "M1" in read_run_file(path.parent).labels["variants"]
                finish(layout, stage, 5.0 + (0.03 + 3 * NOISE[stage.seed] if is_child else NOISE[stage.seed]))
                rounds[-1] += 1
        assert (f"{rounds[-1]} run(s) are under way; the same command goes on" in said.err) == (rounds[-1] > 0)
        assert ("undecided" in said.out) == (rounds[-1] > 0)
        for job in list((slurm.state / "live").iterdir()):
            slurm.end(job.name)
    assert rounds == [6, 2, 0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--variant", "M0", "M1", "--seed", "0", "1"], "--until-decided chooses the seeds: leave out --seed"),
        (["--variant", "M0", "M1", "--stages", "pretrain", "glue"], "held-out losses, which glue does not have"),
        (["--variant", "M0"], "M0 has no parent: name two variants"),
        (["--design", "add-one"], "compares variants: name them with --variant"),
        ([], "compares variants: name them with --variant"),
        (["--variant", "M0", "M1", "--most-seeds", "2"], "2 seed(s) cannot decide 1 comparison(s): allow 3 or more"),
        (["--variant", "M1", "M2"], "M2 is trained on web and M1 on wikibook: add --heldout all"),
        (["--variant", "M10"], "no pre-training differs, so there is nothing to decide"),
    ],
)
def test_what_cannot_be_decided_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*arguments, "--until-decided", "--runs", str(tmp_path / "runs")]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("arguments", [["--list"], ["--cancel"], ["--model", "m"]])
def test_flags_that_do_something_else_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(["--variant", "M0", "M1", "--until-decided", *arguments])


def test_a_dry_run_shows_what_could_be_trained_at_most(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--variant", "M0", "M1", "--until-decided", "--most-seeds", "4", "--runs", str(tmp_path / "runs")]
    assert run.main([*arguments, "--dry-run", "--json"]) == 0
    said = capsys.readouterr()
    assert Counter(row["variant"] for row in json.loads(said.out)) == {"M0": 4, "M1": 4}
    assert "M1 − M0 in bits per byte; 3 paired seeds at first, then one more at a time, 4 at most" in said.err
    assert not (tmp_path / "runs").exists()


def test_a_declaration_names_seeds_measure_and_margin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seeds in the declared order, and equivalence within the declared margin."""
    content = CONTENT | {"scale": "study", "data": "real_text", "seeds": [7, 3, 5, 0, 1, 2, 4, 6, 8, 9]}
    content |= {"protocol": CONTENT["protocol"] | {"margins": {"loss": 0.25}}, "commands": []}
    path = write(tmp_path, **content)
    options = ["--variant", "M0", "M1", "--until-decided", "--scale", "study", "--data", "real_text"]
    assert run.main([*options, "--declaration", str(path), "--most-seeds", "11"]) == 2
    assert "--most-seeds 11: small declares 10 seeds" in capsys.readouterr().err
    with using(Declaration.read(content)):
        parsed = run.build_parser().parse_args([*options, "--stages", "pretrain"])
        seeds = until_decided.seeds_of(parsed)
        assert seeds == content["seeds"]
        ((child, parent),) = until_decided.pairs_of(parsed)
        rows = pretraining_rows(tmp_path, seeds)
        (compared,) = until_decided.comparisons_of(parsed, [(child, parent)], rows, seeds)
        assert (compared.child, compared.parent, compared.quantity, compared.margin) == ("M1", "M0", "loss", 0.25)
        for (name, seed), row in rows.items():
            finish(Layout(tmp_path), row.stages[-1], 5.0 + NOISE[seed] * (1 if name == "M0" else -1))
        found = until_decided.judge(Layout(tmp_path), compared, pretraining_rows(tmp_path, seeds), seeds, 0.05)
        assert (found.verdict, found.seeds) == ("equivalent", 3)
        assert found.differences == pytest.approx([-2 * NOISE[seed] for seed in seeds])


def pretraining_rows(root: Path, seeds: Sequence[int]) -> until_decided.Rows:
    """M0 and M1 at study scale, with the states of their runs."""
    rows = rows_of(root, "M0", "M1", seeds=seeds, scale="study", stages=["pretraining"])
    return {(row.name, row.seed): row for row in rows}
