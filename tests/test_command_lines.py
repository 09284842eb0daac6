"""No command line makes a traceback: random ones over every command, half of them made of the command's own flags."""

import argparse
import random
import shlex
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import neobert.export.__main__ as export
from ablations import prefetch, run, status
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_OFF, EXIT_REFUSED, EXIT_REQUEUE, EXIT_RUN_FAILED
from neobert.runs import worker
from reports import collect, make_figures
from sweeps import glue_grid, learning_rates, mteb_suite
from tests.support.tiny_runs import tiny_run, write_tiny_run

DOCUMENTED = {EXIT_DONE, EXIT_RUN_FAILED, EXIT_REFUSED, EXIT_MISSING, EXIT_OFF, EXIT_REQUEUE}
COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], tuple[str, ...]]] = {
    "run.py": (run.main, ("--dry-run", "--cluster", "here")),
    "run.py list": (lambda given: run.main(["list", *given]), ("--cluster", "here")),
    "run.py gc": (lambda given: run.main(["gc", *given]), ()),
    "run.py model": (lambda given: run.main(["model", *given]), ("--dry-run", "--cluster", "here")),
    "glue_grid.py": (glue_grid.main, ("--dry-run", "--cluster", "here")),
    "learning_rates.py": (learning_rates.main, ("--dry-run", "--cluster", "here")),
    "mteb_suite.py": (mteb_suite.main, ("--dry-run", "--cluster", "here")),
    "status.py": (status.main, ()),
    "prefetch.py": (prefetch.main, ("--check", "sizes")),
    "make_figures.py": (lambda given: make_figures.main(list(given)), ()),
    "collect.py": (lambda given: collect.main(list(given)), ()),
    "neobert.export": (export.main, ()),
    "neobert.runs.worker": (worker.main, ()),
}
"""Each command with the flags that keep it from training, from a network and from SLURM."""

KEPT_OUT = {"--watch", "--push", "--help", "-h", "--delete", "--cancel", "--cluster", "--check"}
"""Flags that would wait, send, print help or act; --cluster and --check have their values above."""

VALUES = (
    *("", " ", "0", "1", "-1", "3.5", "1e308", "1e999", "nan", "inf", "-inf", "99999999999999999999", "٣", "0x10"),
    *("M0", "M7", "M10", "M5..M2", "M0..M99", "..", "M0..", "all", "M9-rope", "M0+rope", "M0@", "M0-", "-"),
    *("M4@rate2.8e-3", "M4@rate", "M4@rate1e999", "1000"),
    *("cola", "mnli", "smoke", "study", "proxy", "paper", "synthetic", "hub", "hf", "own", "auto", "slurm"),
    *("runs", "file", ".", "..", "/", "/dev/null", "/proc/nowhere", "/proc/self/mem", "a" * 300, "b/" * 200),
    *("é", "💥", "a b", "'", '"', "$(id)", "`id`", "\t", "\n", "\x1b[31m", "\udcff", "%s", "{0}", "--", "=", "@file"),
    *("pretraining/0123456789ab", "glue/cola/studies/x", "corpus/a/b", "mteb/evaluations/..", "contrastive/", "x/y/z"),
    *("500MB", "1e30TB", "20", "MB", "sqlite", "journal", "contrastive", "mteb", "glue"),
)


BASES: dict[str, tuple[str, ...]] = {
    "run.py": ("--variant", "M0"),
    "glue_grid.py": ("--task", "cola", "--variant", "M0"),
    "learning_rates.py": ("--variant", "M0"),
    "mteb_suite.py": ("--variant", "M0"),
    "prefetch.py": ("--variant", "M0", "--data-dir", "data"),
    "collect.py": ("--out", "collected"),
    "neobert.export": ("runs/pretraining/0123456789ab", "--to", "hf", "--out", "exported"),
    "neobert.runs.worker": ("pretraining/0123456789ab",),
}
"""What makes most commands pass their parser, so that hostile values reach what lies behind it."""


def actions_of(main: Callable[[Sequence[str]], int]) -> list[argparse.Action]:
    """The flags of a command, from its parser."""
    seen: list[argparse.ArgumentParser] = []
    parse = argparse.ArgumentParser.parse_args

    def remember(parser: argparse.ArgumentParser, *_: object) -> None:
        seen.append(parser)
        raise SystemExit(0)

    argparse.ArgumentParser.parse_args = remember  # type: ignore[assignment, method-assign]
    try:
        main([])
    except SystemExit:
        pass
    finally:
        argparse.ArgumentParser.parse_args = parse  # type: ignore[method-assign]
    return [action for action in seen[0]._actions if not KEPT_OUT.intersection(action.option_strings)]


def value_for(action: argparse.Action, draw: random.Random) -> str:
    """One that the parser takes, as often as not."""
    if action.choices and draw.random() < 0.7:
        return str(draw.choice(sorted(action.choices)))
    if action.type is not None and draw.random() < 0.4:
        return draw.choice(("1", "2", "7", "512", "0.5", "20GB", "runs"))
    return draw.choice(VALUES)


def lines(count: int, seed: int, runs: Path) -> Iterator[tuple[str, list[str]]]:
    """Random command lines with the name of their command."""
    draw, actions = random.Random(seed), {name: actions_of(main) for name, (main, _) in COMMANDS.items()}
    for _ in range(count):
        name = draw.choice(sorted(COMMANDS))
        words: list[str] = list(BASES.get(name, ())) if draw.random() < 0.8 else []
        for _ in range(draw.randint(0, 4)):
            action = draw.choice(actions[name])
            words += [draw.choice(action.option_strings or ["--unknown"])] if draw.random() < 0.95 else ["--unknown"]
            if action.nargs != 0:
                words += [value_for(action, draw) for _ in range(draw.choice((1, 1, 1, 1, 2, 0)))]
        if draw.random() < 0.8:
            words += ["--runs", str(runs)] if name != "neobert.export" else []
        yield name, [*words, *COMMANDS[name][1]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a folder of runs, a file, and a folder of data without texts."""
    monkeypatch.chdir(tmp_path)
    write_tiny_run(tmp_path / "runs", tiny_run())
    (tmp_path / "file").write_text("a file")
    (tmp_path / "empty" / "corpora" / "web").mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def check(name: str, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = COMMANDS[name][0](words)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        pytest.fail(f"{name} {words!r}\n{traceback.format_exc()}")
    said = capfd.readouterr()
    assert code in DOCUMENTED, (name, words, code)
    assert "Traceback" not in said.out + said.err, (name, words)
    assert code == EXIT_DONE or (said.out + said.err).strip(), f"{name} {words!r} ends with {code} and says nothing"


def test_random_command_lines_end_in_a_sentence(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, words in lines(150, seed=0, runs=place / "runs"):
        check(name, words, capfd)


@pytest.mark.drill
@pytest.mark.parametrize("seed", range(1, 11))
def test_drill_ten_thousand_random_command_lines(place: Path, capfd: pytest.CaptureFixture[str], seed: int) -> None:
    for name, words in lines(1000, seed=seed, runs=place / "runs"):
        check(name, words, capfd)


REFUSALS = (
    ("run.py", "--varaint M7", 2, "did you mean '--variant'"),
    ("run.py", "", 2, "name variants with --variant"),
    ("run.py", "--variant M77", 2, "there is no variant 'M77': did you mean 'M7'"),
    ("run.py", "--variant M5..M2", 2, "did you mean M2..M5?"),
    ("run.py", "--variant M7 --data ''", 2, "--data is empty"),
    ("run.py", "--variant M7 --data no-such-folder", 3, "no-such-folder"),
    ("run.py", "--variant M2 --data empty", 3, "corpora"),
    ("run.py", "--variant M7 --scale smok", 2, "smok"),
    ("run.py", "--variant M7 --dry-run --gpu H1000", 2, "gpu 'H1000' is not known: did you mean 'H100'"),
    ("run.py", "--variant M7 --hours 1e999", 2, "expected a number above 0"),
    ("run.py", "--variant M7 --pairs nli", 2, "--pairs goes with --stages"),
    ("run.py", "--variant M7 --runs file --dry-run", 2, "is a file; name a folder"),
    ("run.py", f"--variant M7 --runs {'r' * 300}", 1, "File name too long"),
    ("run.py", "--variant M7 --benchmark 'MTEB(eng, v2)'", 2, "--benchmark goes with --stages"),
    ("run.py", "--variant M0 --runs /proc/nowhere --cluster here", 1, "/proc/nowhere"),
    ("run.py", "--variant M4@rate0e0", 2, "peak_learning_rate"),
    ("run.py", "--variant M4@beta1-1 --list", 2, "beta1"),
    ("run.py", "--variant M0+4-096-token-context", 2, "tokens_per_step 512 is no multiple of the context 96"),
    ("run.py", "model no/such/folder", 3, "there is no folder no/such/folder"),
    ("run.py", "model x --compile on", 2, "--compile on does not reach contrastive"),
    ("learning_rates.py", "--variant M2 --pilot-seed 0", 2, "--pilot-seed 0: pilot seeds are 1000 to 1099"),
    ("learning_rates.py", "--variant M2 --factor 1.1", 2, "--factor 1.1: give one from 1.2 to 10"),
    ("learning_rates.py", "--variant M2 --most 1 --width 2", 2, "--most 1: give one from --width, 2, to 12"),
    ("learning_rates.py", "--variant M4@rate4e-3", 2, "M4@rate4e-3 has its rate in its name"),
    ("learning_rates.py", "--variant M2 --sampler tpe", 2, "--sampler tpe needs --trials N"),
    ("learning_rates.py", "--variant M2 --sampler grid --trials 3", 2, "invalid choice: 'grid'"),
    ("learning_rates.py", "--variant M2 --trials 3", 2, "--trials goes with a sampler of Optuna"),
    ("learning_rates.py", "--variant M2 --field beta2 0.9 0.99", 2, "--field goes with a sampler of Optuna"),
    *(
        ("learning_rates.py", f"--variant {words}", 2, sentence)
        for words, sentence in {
            "M2 --sampler tpe --trials 3 --field beta3 0.9 0.99": "--field 'beta3' is no number of the optimizer",
            "M2 --sampler tpe --trials 3 --field beta2 0.99 0.9": "LOW must be at least 0 and below HIGH",
            "M2 --sampler tpe --trials 3 --field beta2 low 0.9": "give two numbers, LOW and HIGH",
            "M2 --sampler tpe --trials 3 --field beta2 0.9 1.5": "beta2",
            "M2@beta2-0.95 --sampler tpe --trials 3 --field beta2 0.9 0.99": "M2@beta2-0.95 has its beta2 in its name",
        }.items()
    ),
    ("mteb_suite.py", "--zero-shot --pairs nli", 2, "which --zero-shot leaves out"),
    *(
        ("mteb_suite.py", f"{encoder} {flags}", code, said)  # of a model that is not looked at, too
        for encoder in ("--variant M8", "--model .")
        for flags, code, said in (
            ("--tasks SyntheticOpinionClasification", 2, "did you mean 'SyntheticOpinionClassification'"),
            ("--tasks STS112", 2, "there is no task 'STS112': did you mean 'STS12'"),
            ("--tasks STS12", 3, "task STS12 of MTEB(eng, v1) is not in this data"),
        )
    ),
    ("mteb_suite.py", "--variant M8 --pairs paraphrase", 2, "did you mean 'paraphrases'"),
    ("mteb_suite.py", "--variant M8", 3, "M8 is not pre-trained (missing): run `python ablations/run.py --variant M8"),
    ("glue_grid.py", "--task colla", 2, "did you mean 'cola'"),
    ("glue_grid.py", "--task cola --variant M5", 3, "M5 is not pre-trained (missing): run `python"),
    (
        "glue_grid.py",
        "--task cola --variant M5 --pretraining-seed 3",
        3,
        "--seed 3 --scale smoke --data synthetic --st",
    ),
    ("glue_grid.py", "--task cola --variant M0..M3", 2, "M0..M3 names 4 variants, and this is about one"),
    ("glue_grid.py", "--task cola --scale smoke", 2, "--scale goes with --variant or --model"),
    *(
        ("glue_grid.py", f"--task cola --variant M0 --dry-run {flags}", 2, said)
        for flags, said in (
            ("--sampler cmaes --trials 3", "invalid choice: 'cmaes'"),
            ("--sampler tpe", "--sampler tpe needs --trials N"),
            ("--trials 3", "--trials goes with a sampler"),
            ("--scale paper --pruner median", "--pruner cannot end trials of the grid at scale paper: rates"),
            ("--pruner median --seed 0 1", "give one seed, or --pruner wilcoxon"),
            ("--pruner wilcoxon --seed 0", "give at least 5 seeds"),
            ("--grid limitd", "--grid 'limitd': did you mean 'limited'"),
        )
    ),
    ("mteb_suite.py", "--data synthetic", 2, "--data goes with --variant or --model"),
    ("mteb_suite.py", "--pretraining-seed 3", 2, "--pretraining-seed goes with --variant"),
    ("glue_grid.py", "--task cola --storage sqlight", 2, "did you mean 'sqlite'"),
    ("glue_grid.py", "--task cola --storage sqlite:////dev/null/grid.db", 2, "cannot be used"),
    ("glue_grid.py", "--task cola --runs rnus", 3, "rnus does not exist"),
    ("status.py", "--watch --json", 2, "choose one of them"),
    *(
        ("prefetch.py", f"--variant M7 --data-dir d --most-bytes {size}", 2, said)
        for size, said in (
            ("9999999999TB", "expected a size such as"),
            *((size, "--most-bytes") for size in ("0", "many", "20XB")),
        )
    ),
    ("neobert.runs.worker", "--runs runs pretraining/nowhere", 3, "holds no run.json"),
    ("neobert.runs.worker", "--runs runs nothing", 2, "names no run"),
)
"""A command, a line of words, its exit code, and a part of the sentence on stderr."""


@pytest.mark.parametrize(("name", "line", "code", "said"), REFUSALS, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_said_with_what_to_do(
    place: Path, capfd: pytest.CaptureFixture[str], name: str, line: str, code: int, said: str
) -> None:
    """In one sentence at the end, and nothing is written."""
    before = sorted(place.rglob("*"))
    try:
        ended: object = COMMANDS[name][0](shlex.split(line))
    except SystemExit as exited:
        ended = exited.code
    *_, sentence = capfd.readouterr().err.splitlines()
    assert ended == code and said in sentence
    assert sorted(place.rglob("*")) == before


def test_the_papers_scale_needs_the_papers_data(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for main in (run.main, lambda words: glue_grid.main(["--task", "cola", *words])):
        assert main(["--variant", "M7", "--scale", "paper", "--cluster", "here"]) == EXIT_REFUSED
        said = capfd.readouterr().err
        assert "ablations/prefetch.py" in said and "--data DIR" in said
    assert run.main(["--variant", "M7", "--scale", "paper", "--list"]) == EXIT_DONE
    assert not (place / "runs" / "pretraining").exists() or len(list((place / "runs" / "pretraining").iterdir())) == 1
