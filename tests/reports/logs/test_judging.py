"""Verdicts on logs whose truth is known, and the command from a file to tables and a picture."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ablations.commands import main as commands
from neobert.errors import MissingData
from reports import referee, schemas
from reports.logs.chain import in_logarithms
from reports.logs.judging import Report, judge
from reports.logs.noise import find_repeats, given_yardstick, measure_spread
from reports.logs.reading import Log, Run, read_log
from reports.logs.rendering import comma_separated, markdown, summary_row
from reports.logs.simulation import CASES, RULES, row, simulate
from reports.logs.survival import survival

REPEATS = "".join(f"\t{1 + noise:.4f}\tdiscard\trerun, no change\n" for noise in (0.011, -0.008, 0.004, -0.012, 0.006))
LOG = (
    "commit\tval_loss\tstatus\tdescription\n"
    "\t1.0000\tkeep\tbaseline\n" + REPEATS + "\t0.7000\tkeep\twide\n"
    "\t0.6960\tkeep\trate 0.1\n"
    "\t0.9000\tdiscard\tno norm\n"
    "\t0.6700\tkeep\tdeeper\n"
    "\t0.6990\tkeep\tseed 7\n"
    "\t0.0000\tkeep\tfitted on the validation set\n"
)


def write(folder: Path, text: str = LOG) -> Path:
    path = folder / "log.tsv"
    path.write_text(text)
    return path


def report_of(path: Path, alpha: float = 0.1) -> Report:
    log = read_log(path)
    repeats = find_repeats(log)
    return judge(log, repeats, measure_spread(repeats, in_logarithms(log)), alpha, 20)


def test_each_kept_change_has_a_verdict(tmp_path: Path) -> None:
    report = report_of(write(tmp_path))
    verdicts = {keep.description: keep.verdict for keep in report.keeps}
    assert verdicts == {
        "baseline": "baseline",
        "wide": "real",
        "rate 0.1": "not shown",
        "deeper": "not shown",
        "seed 7": "repeat",
        "fitted on the validation set": "not shown",
    }
    by_name = {keep.description: keep for keep in report.keeps}
    assert by_name["wide"].gain == pytest.approx(1.0002 - 0.7, abs=1e-3) and by_name["wide"].against_line == 2
    assert by_name["seed 7"].suspicions == ("only the seed changed",)
    assert set(by_name["fitted on the validation set"].suspicions) == {
        "fitted on the validation set",
        "the metric is at its bound",
    }
    assert (report.real, report.tried, report.degrees_of_freedom) == (1, 4, 6)
    assert report.total_gain == pytest.approx(0.33) and report.surviving_gain == pytest.approx(0.31, abs=0.025)
    assert "the baseline (line 2) and the final state (line 11)" in report.plan[0]


def test_a_parent_kept_for_its_value_is_compared_by_its_repeats(tmp_path: Path) -> None:
    """Its own value flatters it: here by two spreads."""
    text = LOG + "\t0.6650\tkeep\tlonger\n"
    keep = next(keep for keep in report_of(write(tmp_path, text)).keeps if keep.description == "longer")
    assert keep.against_line == 12 and keep.gain == pytest.approx(0.699 - 0.665)


def test_a_kept_change_that_is_no_better_is_worse(tmp_path: Path) -> None:
    text = "val_acc\tstatus\tdescription\n0.5\tkeep\tbaseline\n0.6\tkeep\ta\n0.55\tkeep\tb\n0.6\tkeep\tc\n"
    report = report_of(write(tmp_path, text))
    assert [keep.verdict for keep in report.keeps] == ["baseline", "not shown", "worse", "not shown"]
    assert report.keeps[1].gain == pytest.approx(0.1) and report.keeps[1].real_below is not None
    assert report.spread is None and report.surviving_gain is None and "5 times each (10 runs)" in report.plan[0]


def test_real_below_is_the_spread_at_which_a_change_is_real() -> None:
    runs = [Run(2, 1.0, "keep", "baseline"), Run(3, 0.9, "keep", "a"), *(Run(n, 1.1, "discard") for n in range(4, 10))]
    log = Log("made-up", "loss", True, "", tuple(runs), True)
    unknown = judge(log, [], measure_spread([], False), 0.1, 20).keeps[1]
    assert unknown.real_below is not None
    for factor, verdict in ((0.98, "real"), (1.02, "seeds needed")):
        known = judge(log, [], given_yardstick(unknown.real_below * factor, 20), 0.1, 20)
        assert known.keeps[1].verdict == verdict


def test_a_new_baseline_begins_anew(tmp_path: Path) -> None:
    text = "val_loss\tstatus\tdescription\n" + "".join(
        f"{value}\t{status}\t{words}\n"
        for value, status, words in (
            *((2.0, "keep", "baseline"), (1.9, "keep", "a"), (1.5, "keep", "15-min baseline, present config")),
            *((1.4, "keep", "b"), (2.5, "baseline", "baseline again under contention"), (1.35, "keep", "c")),
        )
    )
    report = report_of(write(tmp_path, text))
    assert [keep.verdict for keep in report.keeps] == ["baseline", "not shown", "baseline", "not shown", "not shown"]
    assert [keep.against_line for keep in report.keeps] == [None, 2, None, 4, 5]
    assert report.total_gain == pytest.approx(0.1 + 0.15)


def test_values_of_a_wide_range_are_compared_by_their_ratios(tmp_path: Path) -> None:
    text = (
        "tok_s\tstatus\tdescription\n10\tkeep\tbaseline\n10.2\tdiscard\trerun, no change\n40\tkeep\ta\n160\tkeep\tb\n"
    )
    log = read_log(write(tmp_path, text))
    report = judge(log, repeats := find_repeats(log), measure_spread(repeats, True), 0.1, 20)
    assert report.in_logarithms and report.keeps[2].gain == pytest.approx(120)
    assert report.keeps[1].gain_in_spreads == pytest.approx(np.log(40 / 10.1) / (np.log(1.02) / np.sqrt(2)), rel=0.01)


def test_the_surviving_gain_is_the_true_one_on_average() -> None:
    """400 greedy sessions of 40 changes; recorded gains are two spreads too large."""
    draws = np.random.default_rng(0)
    start = draws.normal(size=400) / 2
    best, mean = start.copy(), np.zeros(400)
    values, moves = np.zeros((400, 40)), np.zeros((400, 40), bool)
    for place in range(40):
        effects = np.where(draws.random(400) < 0.1, 3.0, -draws.exponential(1, 400) * (draws.random(400) < 0.5))
        values[:, place] = mean - effects + draws.normal(size=400)
        moves[:, place] = values[:, place] < best
        best, mean = np.minimum(best, values[:, place]), mean - effects * moves[:, place]
    found = survival(start, np.full(400, 4.0), values, np.ones_like(values), moves)
    assert (start - best).mean() - (-mean).mean() > 1
    assert abs((found.total + mean).mean()) < 0.2 and np.sqrt(((found.total + mean) ** 2).mean()) < 1.2


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_false_keeps_are_below_the_declared_level(case: object) -> None:
    """The oracle with few sessions; docs/referee.md has the table of 2,000 each."""
    for rule, sessions in (("referee on that log", 60), ("live session", 15), ("live session, pairs", 15)):
        outcomes = simulate(case, rule, sessions)  # type: ignore[arg-type]
        judged = [each for each in outcomes if not each.refused]
        shares = [each.false / max(1, each.false + each.real) for each in judged]
        assert np.mean(shares) <= 0.1, row(rule, outcomes)
    assert set(RULES) >= {"keep what looks better", "five seeds, t test", "e-value per decision"}


def test_a_live_session_finds_more_with_fewer_runs_than_five_seeds() -> None:
    case = CASES[1]
    live, five = simulate(case, "live session", 20), simulate(case, "five seeds, t test", 20)
    assert sum(each.runs for each in live) < 0.6 * sum(each.runs for each in five)
    assert sum(each.real for each in live) > 0.9 * sum(each.gains for each in live)
    assert sum(each.false for each in live) < sum(each.false for each in five)


CELLS = ("", "N/A", "nan", "keep", "crash", "0", "-1", "1e400", "baseline", "seed 3", "rerun, no change", "a b")


@given(edits=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.sampled_from(CELLS)), max_size=12))
@settings(max_examples=60)
def test_any_edit_of_a_log_ends_in_a_report_or_a_sentence(edits: list[tuple[int, int, str]]) -> None:
    """Cells are replaced, lines repeated and cut; values far beyond the others are among them."""
    lines = [line.split("\t") for line in (LOG + LOG.replace("0.", "40.")).splitlines()]
    for line, place, cell in edits:
        own = lines[line % len(lines)]
        if line % 5 == 4:
            lines.insert(place, own[: place + 1])
        else:
            own[place % len(own)] = cell
    with TemporaryDirectory() as folder:
        path = write(Path(folder), "\n".join("\t".join(line) for line in lines))
        try:
            report = report_of(path)
        except (ValueError, MissingData) as error:
            assert "log.tsv" in str(error)
            return
        assert markdown(report) and comma_separated(report) and summary_row(report)


def test_the_command_writes_tables_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands(["referee", str(write(tmp_path)), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "Shown to be real: 1 of 4 kept changes" in printed and "| 8 | wide |" in printed
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".md", ".csv", ".json", ".png", ".svg"}
    assert (tmp_path / "out" / "log.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "out" / "log.md").read_text() == printed.removesuffix("\n")


def test_several_logs_have_a_line_each_refusals_included(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(tmp_path), tmp_path / "bad.tsv"
    bad.write_text("a\tb\n1\t2\n")
    assert referee.main([str(good), str(bad), "--summary"]) == 0
    _, _, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("| log.tsv | val_loss | 4 | 4 | 1 |") and "refused: no column is named" in second
    assert first.count("|") == second.count("|")
    assert referee.main([str(good), str(bad)]) == 2 and "--summary" in capsys.readouterr().err


def test_json_is_as_its_schema_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert referee.main([str(write(tmp_path)), "--json", "--seed-spread", "0.01", "--runs-behind", "9"]) == 0
    printed = json.loads(capsys.readouterr().out)
    report = TypeAdapter(schemas.SCHEMAS["referee"]).validate_python(printed)
    assert report.degrees_of_freedom == 8 and report.spread == 0.01


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--seed-spread", "0.1"], 2, "--runs-behind N"),
        (["--runs-behind", "5"], 2, "belongs to --seed-spread"),
        (["--alpha", "2"], 2, "a share below 1"),
        (["--metric", "val_los"], 2, "did you mean 'val_loss'"),
        (["--replicates", "none.txt"], 3, "none.txt is not there"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    words: list[str], code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert referee.main([str(write(tmp_path)), *words]) == code and sentence in capsys.readouterr().err


def test_words_of_a_log_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "val_loss\tstatus\tdescription\n2\tkeep\tbaseline\n1.9\tkeep\t=cmd|<b>x</b> [a](b)\n"
    assert referee.main([str(write(tmp_path, text)), "--out", str(tmp_path / "out")]) == 0
    assert r"=cmd\|\<b>x\</b> [a\](b)" in capsys.readouterr().out
    assert "'=cmd" in (tmp_path / "out" / "log.csv").read_text()


def test_no_file_that_is_read_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log results.csv and the table results.csv of its report are two files, and so are the reports of two logs."""
    log = tmp_path / "results.csv"
    log.write_text(LOG.replace("\t", ",").replace("rerun, ", "rerun "))
    before = log.read_bytes()
    assert referee.main([str(log), "--out", str(tmp_path)]) == 2
    assert "would replace" in capsys.readouterr().err and log.read_bytes() == before
    assert referee.main([str(write(tmp_path)), "--replicates", str(tmp_path / "log.csv"), "--out", str(tmp_path)]) == 2
    (tmp_path / "other").mkdir()
    logs = [str(write(tmp_path)), str(write(tmp_path / "other")), "--summary"]
    assert referee.main([*logs, "--out", str(tmp_path / "out")]) == 2
    assert "would write the same files" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert referee.main(logs) == 0
    _, _, first, second = capsys.readouterr().out.splitlines()
    assert first != second and "other" in second, "logs of one name are told apart by their folders"


def test_a_metric_of_zeros_alone_has_a_report(tmp_path: Path) -> None:
    path = write(tmp_path, "reward\tstatus\tdescription\n0\tkeep\tbaseline\n0\tdiscard\twide\n")
    assert referee.main([str(path), "--seed-spread", "0.1", "--runs-behind", "9"]) == 0


def test_repeats_that_are_mostly_equal_have_a_spread(tmp_path: Path) -> None:
    """Shares of few examples are often equal; what differs is their noise, and no spread of 0 is divided by."""
    seeds = "".join(f"{share}\tdiscard\tseed {n}\n" for n, share in enumerate([0.9] * 5 + [0.91, 0.9, 0.9]))
    text = f"acc\tstatus\tdescription\n0.9\tkeep\tbaseline\n{seeds}0.99\tkeep\tbigger\n"
    report = report_of(write(tmp_path, text))
    assert report.degrees_of_freedom == 8 and report.spread == pytest.approx(np.std([0.9] * 8 + [0.91], ddof=1))


def test_no_number_of_keeps_is_below_0(tmp_path: Path) -> None:
    path = write(tmp_path, "nll\tstatus\tdescription\n-1\tkeep\tbaseline\n-3\tkeep\twide\n-2.9\tdiscard\tdeep\n")
    log = read_log(path)
    report = judge(log, [], given_yardstick(0.01, 9), 0.1, 20)
    assert "gain: 0.0" in markdown(report)
