"""34 public logs, where the shared folder is there: each ends in a report or in a refusal, and repeats are those that a
reader found by hand."""

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from neobert.errors import MissingData
from reports.logs.chain import in_logarithms
from reports.logs.judging import judge
from reports.logs.noise import find_repeats, measure_spread
from reports.logs.reading import Columns, read_log
from tests.support.small_corpora import REAL_DATA

FOLDER = REAL_DATA / "experiment_logs"
REFUSED = {"Akshatkasera__Autoresearch-STT.tsv", "AlexChen31337__qwen35-moe-offload__phase9.tsv"}
"""Three metrics and nothing kept; a header of 15 names over lines of 13 fields."""
UNSEEN_REPEATS = {"FreakingPotato__AutoResearch_Diffusion_Model.tsv": 8, "NotNANtoN__Roboro__init.tsv": 1}
"""Rows that a reader takes for repeats although labels differ; under other load, and of a buffer's seed."""

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared logs are not there")


def index() -> list[dict[str, str]]:
    with (FOLDER / "INDEX.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_log_ends_in_a_report_or_a_refusal() -> None:
    rows = index()
    assert len(rows) >= 34
    for facts in rows:
        path = FOLDER / facts["file"]
        try:
            log = read_log(path)
        except (ValueError, MissingData) as error:
            assert facts["file"] in REFUSED and str(path) in str(error)
            continue
        assert facts["file"] not in REFUSED
        assert (log.metric, log.lower_is_better) == (facts["metric"], facts["direction"] == "lower")
        assert sum(run.status == "keep" for run in log.runs) == int(facts["keep"])
        repeats = find_repeats(log)
        report = judge(log, repeats, measure_spread(repeats, in_logarithms(log)), 0.1, 20)
        kept = [keep for keep in report.keeps if keep.verdict not in ("baseline", "repeat")]
        assert sum(keep.verdict == "worse" or keep.gain == 0 for keep in kept) <= int(
            float(facts["keeps_without_gain"]) + 2
        )
        assert (report.spread is None) == (report.surviving_gain is None or not report.tried)


def test_repeats_are_those_that_a_reader_found() -> None:
    by_hand: dict[str, set[int]] = defaultdict(set)
    with (FOLDER / "REPLICATES.csv").open() as file:
        for row in csv.DictReader(file):
            if row["how"] != "rerun in another loop":
                by_hand[row["file"]].add(int(row["data_row"]) + 1)
    for facts in index():
        if facts["file"] not in REFUSED:
            found = {line for group in find_repeats(read_log(FOLDER / facts["file"])) for line in group.lines}
            expected = by_hand.get(facts["file"], set())
            assert found <= expected and len(expected - found) == UNSEEN_REPEATS.get(facts["file"], 0), facts["file"]


def test_load_is_told_where_it_moved_the_metric() -> None:
    for name, sentence in (
        ("karpathy__autoresearch__pull-71.tsv", "under another load of the machine"),
        ("FreakingPotato__AutoResearch_Diffusion_Model.tsv", "with 207 and 48 steps"),
    ):
        log = read_log(FOLDER / name)
        assert sentence in measure_spread(find_repeats(log), False).refusal


def test_a_refused_log_is_read_once_its_columns_are_named(tmp_path: Path) -> None:
    path = FOLDER / "AlexChen31337__qwen35-moe-offload__phase9.tsv"
    header, *lines = path.read_text().splitlines()
    names = tuple(name for name in header.split("\t") if name not in ("n_threads", "gen"))
    copy = tmp_path / "log.tsv"
    copy.write_text("\n".join(lines))
    log = read_log(copy, Columns(names=names))
    assert (log.metric, log.lower_is_better, len(log.runs)) == ("tok_s", False, 94)
    stt = read_log(FOLDER / "Akshatkasera__Autoresearch-STT.tsv", Columns(metric="sherpa_int8_wer"))
    assert len(stt.measured) == 19
