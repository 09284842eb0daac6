"""Result files of the benchmarks are complete, name no machine, and are what the table in the README shows."""

import json
import re
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import encoding
from benchmarks.__main__ import BEGIN, BENCHMARKS, END, FOLDER, GOALS, README, main, read_results, table
from benchmarks.data import CONTEXT, group
from benchmarks.encoding import BLOCK_TEXTS, OURS, blocks
from benchmarks.measuring import Result, Timing, operations, time_in_turns, write_result
from tests.support.tree_copy import fresh_clone, shell

RESULTS = read_results()


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: str(result["name"]))
def test_a_result_says_what_was_measured_where_and_with_what(result: dict[str, object]) -> None:
    assert set(result) == {"name", "ratio", "goal", "met", "figures", "machine", "versions", "date"}
    assert (FOLDER / f"{result['name']}.json").exists()
    assert isinstance(result["goal"], dict) and set(result["goal"]) == {"bound", "of"}
    assert isinstance(result["machine"], dict) and set(result["machine"]) == {"processor", "cores", "gpu", "system"}
    assert isinstance(result["versions"], dict) and {"python", "torch", "commit"} <= set(result["versions"])
    assert not re.search(r"(?<![\w.])/(work|root|home|tmp)/", json.dumps(result)), "a path of one machine"
    assert isinstance(result["ratio"], float) and (result["ratio"] >= result["goal"]["bound"]) == result["met"]


def test_results_are_judged_by_the_goals_of_today() -> None:
    assert all(each["goal"] == GOALS[each["name"]] for each in RESULTS)


def test_the_table_in_the_readme_is_that_of_the_result_files() -> None:
    assert RESULTS and f"{BEGIN}\n{table(RESULTS)}\n{END}" in README.read_text()


def test_a_goal_without_a_result_is_neither_met_nor_missed() -> None:
    shown = table([result for result in RESULTS if result["name"] != "data_tokenize"])
    assert "`data_tokenize` (≥ 2)" in shown.partition("Not measured: ")[2]
    assert "data_tokenize" not in shown.partition("Not measured: ")[0]


def test_what_is_not_measured_again_keeps_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for results in ([Result("data_tokenize", 3.0, {"fact": 1})], []):
        monkeypatch.setattr(command, "resolve_name", lambda place, found=results: lambda options: iter(found))
        assert main(["data_tokenize", "--folder", str(tmp_path)]) == 0
        (once,) = read_results(tmp_path)
        assert (once["ratio"], once["met"], once["figures"]) == (3.0, True, {"fact": 1})


@pytest.mark.parametrize(
    ("ratio", "shown"), [(1.78, "| 1.78 | ≥ 2 | **missed** | 1.58 |"), (2.0, "| 2 | ≥ 2 | yes | 1.58 |")]
)
def test_a_missed_goal_is_shown_as_missed_beside_the_ratio_at_equal_operations(
    ratio: float, shown: str, tmp_path: Path
) -> None:
    write_result(
        Result("any", ratio, {"operations, theirs / ours": 1.58}), {"bound": 2.0, "of": "two things"}, tmp_path
    )
    assert shown in table(read_results(tmp_path))


def test_the_peers_batch_size_is_the_best_by_the_clock_of_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(encode: dict[str, object], repetitions: int) -> dict[str, list[Timing[object]]]:
        return {name: [Timing(place + 1, 9 - place, np.ones((1, 2)))] for place, name in enumerate(encode)}

    monkeypatch.setattr(encoding, "time_in_turns", timed)
    sides = dict.fromkeys((OURS, "batch 32", "batch 64"), lambda: np.asarray(torch.ones(1, 2) @ torch.ones(2, 2)))
    assert "batch 64" in encoding.compare(sides, 1)


def test_texts_of_a_sample_are_neighbours_in_length_in_the_whole_data_set() -> None:
    """So that batches have the padding that they have with all texts."""
    lengths = sorted(map(len, blocks(["x" * number for number in range(10 * BLOCK_TEXTS)])))
    assert len(lengths) == 2 * BLOCK_TEXTS
    for block in (lengths[:BLOCK_TEXTS], lengths[BLOCK_TEXTS:]):
        assert block == list(range(block[0], block[0] + BLOCK_TEXTS))


def test_operations_of_products_and_of_attention_are_counted_in_both_passes() -> None:
    """Twice as many in the backward pass as in the forward pass."""
    query, key, value = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    weight = torch.randn(8, 5, requires_grad=True)
    product, attention = 2 * (2 * 3 * 16) * 8 * 5, 2 * (2 * 3) * 16 * 16 * 8
    with operations() as counter:
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        (attended @ weight).sum().backward()
    assert counter.get_total_flops() == 3 * product + (2 + 4) * attention


def test_contenders_take_the_first_place_in_turn() -> None:
    called: list[str] = []
    timings = time_in_turns({name: lambda name=name: called.append(name) or len(called) for name in "abc"}, 3)
    assert called == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]
    assert [timing.returned for timing in timings["a"]] == [1, 6, 7]


def test_the_grouping_that_is_compared_with_joins_all_columns_and_drops_what_is_left_over() -> None:
    lengths = (300, 500, 400)
    ids = [list(range(100 * number, 100 * number + length)) for number, length in enumerate(lengths)]
    rows = group({"input_ids": ids, "attention_mask": [[1] * length for length in lengths]})
    joined = [token for document in ids for token in document]
    assert rows["input_ids"] == [joined[:CONTEXT], joined[CONTEXT : 2 * CONTEXT]]
    assert rows["attention_mask"] == [[1] * CONTEXT] * 2


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_on_the_page(name: str) -> None:
    assert resolve_name(BENCHMARKS[name]).__doc__ and f"`{name}`" in README.read_text()


def test_results_of_benchmarks_are_no_change_of_the_code_and_an_edit_is(tmp_path: Path) -> None:
    tree = fresh_clone(tmp_path / "clone")
    commit = "git init --quiet && git add . && git -c user.name=a -c user.email=a@b commit --quiet --message a"
    asked = ".venv/bin/python -c 'from neobert.runs.records import provenance as p; print(p()[\"dirty\"])'"
    written = "mkdir -p benchmarks/results && touch benchmarks/results/another.json"
    answer = shell(tree, f"{commit}\n{written}\n{asked}\necho >> neobert/hub/__init__.py\n{asked}")
    assert answer.stdout.split() == ["False", "True"], answer.stderr
