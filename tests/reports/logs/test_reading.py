"""Logs as people write them: each quirk is read where it is clear, or refused in a sentence that names the line."""

from pathlib import Path

import pytest

from neobert.errors import MissingData
from reports.logs.reading import Columns, Log, read_log

HEAD = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
BODY = (
    "a1b2c3d\t1.000\t4.0\tkeep\tbaseline\n"
    "b1b2c3d\t0.990\t4.0\tkeep\tdepth 8\n"
    "c1b2c3d\t1.010\t4.0\tdiscard\twarm-up\n"
    "d1b2c3d\t0.980\t4.0\tkeep\trate 0.1\n"
)


def log_of(folder: Path, text: str, name: str = "log.tsv", **wanted: object) -> Log:
    path = folder / name
    path.write_bytes(text.encode())
    return read_log(path, Columns(**wanted))  # type: ignore[arg-type]


def values(log: Log) -> list[float | None]:
    return [run.value for run in log.runs]


def test_a_plain_log_needs_no_flags(tmp_path: Path) -> None:
    log = log_of(tmp_path, HEAD + BODY)
    assert (log.metric, log.lower_is_better, log.notes) == ("val_bpb", True, ())
    assert values(log) == [1.0, 0.99, 1.01, 0.98] and [run.line for run in log.runs] == [2, 3, 4, 5]
    assert [run.status for run in log.runs] == ["keep", "keep", "discard", "keep"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.tsv", (HEAD + BODY).replace("\n", "\r\n")),
        ("log.tsv", "\ufeff" + HEAD + BODY),
        ("log.csv", (HEAD + BODY).replace("\t", ",")),
        ("log.csv", (HEAD + BODY).replace("\t", ";")),
        ("log.tsv", HEAD + "# a comment\n\n" + BODY),
        ("log.tsv", HEAD + BODY.replace("depth 8", 'say "depth" 8')),
        (
            "log.jsonl",
            '{"commit": "a1b2c3d", "metrics": {"val_bpb": 1.0}, "status": "keep", "description": "baseline"}\n'
            '{"commit": "b1b2c3d", "metrics": {"val_bpb": 0.99}, "status": "keep", "description": "depth 8"}\n'
            '{"commit": "c1b2c3d", "metrics": {"val_bpb": 1.01}, "status": "discard", "description": "warm-up"}\n'
            '{"commit": "d1b2c3d", "metrics": {"val_bpb": 0.98}, "status": "keep", "description": "rate 0.1"}\n',
        ),
    ],
)
def test_files_of_other_forms_hold_the_same_runs(name: str, text: str, tmp_path: Path) -> None:
    log = log_of(tmp_path, text, name)
    assert values(log) == [1.0, 0.99, 1.01, 0.98] and log.runs[3].description == "rate 0.1"


def test_a_file_without_header_is_read_by_what_its_columns_hold(tmp_path: Path) -> None:
    log = log_of(tmp_path, BODY, lower_is_better=True)
    assert log.metric == "metric" and values(log) == [1.0, 0.99, 1.01, 0.98] and "no header" in log.notes[0]
    assert [run.description for run in log.runs][1:3] == ["depth 8", "warm-up"]
    named = log_of(tmp_path, BODY, names=("commit", "val_bpb", "memory_gb", "status", "description"))
    assert named.metric == "val_bpb" and values(named) == values(log)


def test_crashes_have_no_value_however_they_are_written(tmp_path: Path) -> None:
    crashes = (
        "e\t0.000000\t0.0\tcrash\tout of memory\nf\tN/A\t0.0\tcrash\tbug\ng\t\t\terror\tbug\n"
        "h\t0.000000\t0.0\tdiscard\tstopped early\ni\tnan\t1.0\tdiscard\tdiverged\n"
    )
    log = log_of(tmp_path, HEAD + BODY + crashes)
    assert values(log)[4:] == [None] * 5 and "line 9 first" in log.notes[0]


def test_lines_of_another_width_are_read_by_their_status_word_or_named(tmp_path: Path) -> None:
    odd = "e1b2c3d\t0.970\tkeep\twithout memory\nf1b2c3d\t0.960\t4.0\tkeep\ta tab\tin the words\nnonsense\n"
    log = log_of(tmp_path, HEAD + BODY + odd)
    assert values(log)[4:] == [0.97, 0.96] and log.runs[5].description == "a tab in the words"
    assert any("lines 6, 7" in note for note in log.notes) and any("lines 8 fit no" in note for note in log.notes)


def test_a_header_in_the_middle_begins_other_columns(tmp_path: Path) -> None:
    log = log_of(tmp_path, HEAD + BODY + "commit\tval_bpb\tstatus\tsteps\nf1b2c3d\t0.960\tkeep\t100\n")
    assert values(log)[-1] == 0.96 and log.runs[-1].steps == 100 and "line 6 is a new header" in log.notes[0]


def test_a_run_entered_twice_counts_once(tmp_path: Path) -> None:
    log = log_of(tmp_path, HEAD + BODY + "c1b2c3d\t1.010\t4.0\tkeep\twarm-up\n")
    assert len(log.runs) == 4 and log.runs[2].status == "keep" and "line 6 enters the run of line 4" in log.notes[0]


def test_the_direction_is_by_name_or_by_what_was_kept(tmp_path: Path) -> None:
    named = log_of(tmp_path, (HEAD + BODY).replace("val_bpb", "val_acc"))
    assert (named.lower_is_better, named.reason) == (False, "by the name val_acc"), "two keeps are too few to deny it"
    falling = log_of(tmp_path, (HEAD + BODY + "e\t0.970\t4.0\tkeep\tmore\n").replace("val_bpb", "score"))
    assert falling.lower_is_better and "3 of 3 kept runs after the first lower it" in falling.reason
    given = log_of(tmp_path, HEAD + BODY, lower_is_better=False)
    assert (given.lower_is_better, given.reason) == (False, "as given")
    with pytest.raises(ValueError, match="give --lower or --higher"):
        log_of(tmp_path, HEAD.replace("val_bpb", "quux") + BODY, metric="quux")


def test_each_new_best_counts_where_nothing_is_marked_as_kept(tmp_path: Path) -> None:
    log = log_of(tmp_path, (HEAD + BODY).replace("keep", "ok").replace("discard", "ok"))
    assert not log.has_marks and "each new best counts as kept" in log.notes[0]


def test_agents_in_one_file_are_series_of_their_own(tmp_path: Path) -> None:
    text = "agent\tval_loss\tstatus\tdescription\n" + "".join(
        f"{agent}\t{value}\t{status}\tx\n"
        for agent in ("ada", "bob")
        for value, status in (("3.0", "keep"), ("2.9", "keep"), ("3.1", "discard"))
    )
    log = log_of(tmp_path, text)
    assert {run.series for run in log.runs} == {"ada", "bob"} and "judged separately by agent" in log.notes[0]


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("", MissingData, "has no lines"),
        (HEAD, MissingData, "no runs"),
        ("[1, 2]", MissingData, "one JSON list"),
        ('{"a": 1}\nnot json\n', MissingData, "line 2: not a JSON object"),
        (
            HEAD + BODY.replace("keep\t", "\t").replace("discard\t", ""),
            MissingData,
            "line 4: 4 fields where the header",
        ),
        ("1\t2\t3\n4\t5\t6\n", MissingData, "line 1: no header"),
        ("a\tb\tstatus\nx\ty\tkeep\n", ValueError, "no column is named like a metric"),
        ("val_acc\ttest_acc\tword\n0.1\t0.2\tx\n", ValueError, "name one with --metric"),
        (HEAD + "a\tN/A\t1\tcrash\tx\n", MissingData, "has a number in column val_bpb"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(
    text: str, kind: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=sentence):
        log_of(tmp_path, text)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="is not there"):
        read_log(tmp_path / "none.tsv")
    with pytest.raises(MissingData, match="is a folder"):
        read_log(tmp_path)
    (tmp_path / "log.tsv").write_bytes(HEAD.encode() + b"\xff\xfe\n")
    with pytest.raises(MissingData, match="line 2: not UTF-8"):
        read_log(tmp_path / "log.tsv")
    with pytest.raises(ValueError, match="no such column; did you mean 'val_bpb'"):
        log_of(tmp_path, HEAD + BODY, metric="val_bbp")


def test_a_decimal_comma_is_no_thousands_separator(tmp_path: Path) -> None:
    """0,98 is neither 98 nor 980: in a file with semicolons it is read, elsewhere refused."""
    text = "val_bpb;tokens;status;description\n1,095;1;keep;baseline\n0,98;1;keep;rate 0,1\n9,7e-1;1;keep;wide\n"
    assert values(log_of(tmp_path, text, "log.csv")) == [1.095, 0.98, 0.97]
    with pytest.raises(MissingData, match="line 3: 0,98 in column val_bpb has a decimal comma"):
        log_of(tmp_path, text.replace(";", "\t"))
    thousands = "val_ppl\tstatus\tdescription\n1,234.5\tkeep\tbaseline\n1,012\tkeep\twide\n"
    assert values(log_of(tmp_path, thousands)) == [1234.5, 1012.0]


def test_what_is_nested_in_json_replaces_nothing_of_its_run(tmp_path: Path) -> None:
    lines = (
        '{"val_bpb": 1.0, "status": "keep", "best": {"val_bpb": 0.5}, "config": {"status": "x"}}\n'
        '{"val_bpb": 0.9, "status": "keep", "description": "two\u2028lines", "best": {"val_bpb": 0.5}}\n'
    )
    log = log_of(tmp_path, lines, "log.jsonl")
    assert values(log) == [1.0, 0.9] and [run.status for run in log.runs] == ["keep", "keep"]


def test_numbers_of_runs_from_0_are_no_names_of_experiments(tmp_path: Path) -> None:
    head = "exp_id\tlabel\tlr\tdepth\twidth\theads\tval_loss\tstatus\n"
    text = head + "0\tbase\t1\t2\t3\t4\t0.9\tkeep\n1\twide_run1\t1\t2\t6\t4\t0.8\tkeep\n"
    log = log_of(tmp_path, text + "2\twide_run2\t1\t2\t6\t4\t0.7\tdiscard\n")
    assert log.runs[1].configuration == log.runs[2].configuration and log.runs[1].description == "wide_run1"
