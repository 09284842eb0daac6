"""Result files of the benchmarks are complete, name no machine, and are what the table in the README shows."""

import argparse
import json
import os
import re
import time
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import encoding, glue
from benchmarks.__main__ import BENCHMARKS, FOLDER, README, main, read_results, table, with_table
from benchmarks.data import CONTEXT, group
from benchmarks.encoding import BLOCK_TEXTS, OURS, blocks
from benchmarks.measuring import Benchmark, Goal, Result, Timing, operation_counter, take_turns, write_result
from tests.support.tree_copy import fresh_clone, shell

RESULTS = read_results()


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: str(result["name"]))
def test_a_result_says_what_was_measured_where_and_with_what(result: dict[str, object]) -> None:
    assert set(result) == {"name", "ratio", "goal", "met", "figures", "machine", "versions", "date"}
    assert (FOLDER / f"{result['name']}.json").exists()
    assert isinstance(result["goal"], dict) and set(result["goal"]) == {"bound", "side", "of"}
    assert isinstance(result["machine"], dict) and set(result["machine"]) == {"processor", "cores", "gpu", "system"}
    assert isinstance(result["versions"], dict) and {"python", "torch", "commit"} <= set(result["versions"])
    assert not re.search(r"(?<![\w.])/(work|root|home|tmp)/", json.dumps(result)), "a path of one machine"
    ratio = result["ratio"]
    assert ratio is None or isinstance(ratio, float)
    assert Goal(**result["goal"]).is_met(ratio) == result["met"]


def test_results_are_judged_by_the_goals_of_today() -> None:
    goals = {
        name: goal for benchmark in map(resolve_name, BENCHMARKS.values()) for name, goal in benchmark.goals.items()
    }
    assert {each["name"]: Goal(**each["goal"]) for each in RESULTS} == goals


def test_the_table_in_the_readme_is_that_of_the_result_files() -> None:
    assert RESULTS and with_table(README.read_text(), RESULTS) == README.read_text()


def test_a_measurement_stays_where_it_cannot_be_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was never measured is neither met nor missed."""
    goals = dict.fromkeys(("never", "once"), Goal(2.0, "nothing"))
    for results in ([Result("once", 3.0, {"fact": 1})], []):
        benchmark = Benchmark(lambda options, found=results: iter(found), goals)
        monkeypatch.setattr(command, "resolve_name", lambda place, benchmark=benchmark: benchmark)
        assert main(["glue", "--folder", str(tmp_path)]) == 0
        never, once = read_results(tmp_path)
        assert (never["ratio"], never["met"], once["ratio"], once["met"]) == (None, None, 3.0, True)
        assert set(once["figures"]) == {"fact", "load_before", "load_after"}
    assert "Not measured: `never` (≥ 2)." in table([never])


@pytest.mark.parametrize(
    ("ratio", "shown"), [(1.78, "| 1.78 | ≥ 2 | **missed** | 1.58 |"), (2.0, "| 2 | ≥ 2 | yes | 1.58 |")]
)
def test_a_missed_goal_is_shown_as_missed_beside_the_ratio_at_equal_operations(
    ratio: float, shown: str, tmp_path: Path
) -> None:
    write_result(Result("any", ratio, {"operations, theirs / ours": 1.58}), Goal(2.0, "two things"), tmp_path)
    assert shown in table(read_results(tmp_path))


def test_a_run_of_all_names_the_results_that_it_did_not_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, age in (("glue_over_trainer", 60), ("data_loader", -60)):
        (tmp_path / f"{name}.json").touch()
        os.utime(tmp_path / f"{name}.json", times=(time.time() - age,) * 2)
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "write_table", lambda: 0)
    monkeypatch.setattr(command.subprocess, "run", lambda *arguments, **flags: SimpleNamespace(returncode=0))
    assert command.main([]) == 0
    assert "the results on record stay: glue_over_trainer\n" in capsys.readouterr().err


@pytest.mark.parametrize(("clock", "best"), [("processor", 64), ("wall", 32)])
def test_the_peers_batch_size_is_the_best_by_the_clock_of_the_ratio(
    clock: str, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(encode: dict[str, object], repetitions: int) -> dict[str, list[Timing[object]]]:
        return {name: [Timing(place + 1, 9 - place, np.ones((1, 2)))] for place, name in enumerate(encode)}

    monkeypatch.setattr(encoding, "time_in_turns", timed)
    sides = dict.fromkeys((OURS, "batch 32", "batch 64"), lambda: np.ones((1, 2)))
    assert f"batch {best}" in encoding.compare(sides, "fp32", clock, 1)


def test_on_several_gpus_worker_and_trainer_see_one(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = MagicMock()
    contest.measure.return_value = {"points an hour, ratio": {"wall": 1.0, "processor": 1.0}}
    monkeypatch.setattr(glue.Contest, "prepare", lambda *arguments: contest)
    monkeypatch.setattr(glue, "devices_with", lambda package: ["cpu", "cuda"])
    monkeypatch.setattr(glue, "visible_gpus", lambda: ("3", "5"))
    assert len(list(glue.measure(argparse.Namespace(data=None, repetitions=1)))) == 2
    assert [call.args[1]["CUDA_VISIBLE_DEVICES"] for call in contest.measure.call_args_list] == ["", "3"]


def test_texts_of_a_sample_are_neighbours_in_length_in_the_whole_data_set() -> None:
    """So that batches have the padding that they have with all texts."""
    lengths = sorted(map(len, blocks(["x" * number for number in range(10 * BLOCK_TEXTS)], 2)))
    assert len(lengths) == 2 * BLOCK_TEXTS
    for block in (lengths[:BLOCK_TEXTS], lengths[BLOCK_TEXTS:]):
        assert block == list(range(block[0], block[0] + BLOCK_TEXTS))


def test_operations_of_products_and_of_attention_are_counted_in_both_passes() -> None:
    """Twice as many in the backward pass of a product, and five products for two in that of attention."""
    query, key, value = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    weight = torch.randn(8, 5, requires_grad=True)
    product, attention = 2 * (2 * 3 * 16) * 8 * 5, 2 * (2 * 3) * 16 * 16 * 8
    with operation_counter() as counter:
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        (attended @ weight).sum().backward()
    assert counter.get_total_flops() == 3 * product + (2 + 5) * attention


def test_contenders_take_the_first_place_in_turn() -> None:
    called: list[str] = []
    returned = take_turns({name: lambda name=name: called.append(name) or len(called) for name in "abc"}, 3)
    assert called == ["a", "b", "c", "c", "b", "a", "a", "b", "c"] and returned["a"] == [1, 6, 7]


def test_the_grouping_that_is_compared_with_joins_all_columns_and_drops_what_is_left_over() -> None:
    lengths = (300, 500, 400)
    ids = [list(range(100 * number, 100 * number + length)) for number, length in enumerate(lengths)]
    rows = group({"input_ids": ids, "attention_mask": [[1] * length for length in lengths]})
    joined = [token for document in ids for token in document]
    assert rows["input_ids"] == [joined[:CONTEXT], joined[CONTEXT : 2 * CONTEXT]]
    assert rows["attention_mask"] == [[1] * CONTEXT] * 2


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_on_the_page(name: str) -> None:
    assert resolve_name(BENCHMARKS[name]).measure.__doc__ and f"`{name}`" in README.read_text()


def test_results_of_benchmarks_are_no_change_of_the_code_and_an_edit_is(tmp_path: Path) -> None:
    tree = fresh_clone(tmp_path / "clone")
    commit = "git init --quiet && git add . && git -c user.name=a -c user.email=a@b commit --quiet --message a"
    asked = ".venv/bin/python -c 'from neobert.runs.records import provenance as p; print(p()[\"dirty\"])'"
    written = "mkdir -p benchmarks/results && touch benchmarks/results/another.json"
    answer = shell(tree, f"{commit}\n{written}\n{asked}\necho >> neobert/hub/__init__.py\n{asked}")
    assert answer.stdout.split() == ["False", "True"], answer.stderr
