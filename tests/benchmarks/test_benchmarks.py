"""Result files of the benchmarks are complete, name no machine, and are what the table in the README shows."""

import json
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

from ablations.api import TrainedVariant, plan_variant
from ablations.launch.execute import open_workspace
from ablations.launch.request import Place, Selection
from ablations.loading import load
from benchmarks import __main__ as command
from benchmarks import glue
from benchmarks.__main__ import BEGIN, BENCHMARKS, END, FOLDER, GOALS, README, main, read_results, table
from benchmarks.data import CONTEXT, group
from benchmarks.glue import few_studies
from benchmarks.measuring import Result, count_operations, time_in_turns, write_result
from tests.support.tree_copy import fresh_clone, shell

RESULTS = read_results()
ALWAYS_3 = {"median": 3.0, "lowest": 3.0, "highest": 3.0}


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: str(result["name"]))
def test_a_result_says_what_was_measured_where_and_with_what(result: dict[str, object]) -> None:
    assert set(result) - {"range", "open"} == {"name", "ratio", "goal", "met", "figures", "machine", "versions", "date"}
    assert (FOLDER / f"{result['name']}.json").exists()
    assert isinstance(result["goal"], dict) and set(result["goal"]) == {"bound", "of"}
    assert isinstance(result["machine"], dict) and set(result["machine"]) == {"processor", "cores", "gpu", "system"}
    assert isinstance(result["versions"], dict) and {"python", "torch", "commit"} <= set(result["versions"])
    assert not re.search(r"(?<![\w.])/(work|root|home|tmp)/", json.dumps(result)), "a path of one machine"
    assert isinstance(result["ratio"], float)
    assert result["met"] == (None if result.get("open") else result["ratio"] >= result["goal"]["bound"])


def test_results_are_judged_by_the_goals_of_today() -> None:
    assert all(each["goal"] == GOALS[each["name"]] for each in RESULTS)


def test_the_table_in_the_readme_is_that_of_the_result_files() -> None:
    assert RESULTS and f"{BEGIN}\n{table(RESULTS)}\n{END}" in README.read_text()
    shown = table([result for result in RESULTS if result["name"] != "data_tokenize"])
    assert "`data_tokenize` (≥ 2)" in shown.partition("Not measured: ")[2], "neither met nor missed"


def test_what_is_not_measured_again_keeps_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for results in ([Result("data_tokenize", ALWAYS_3, {"fact": 1})], []):
        monkeypatch.setattr(command, "resolve_name", lambda place, found=results: lambda options: iter(found))
        assert main(["data_tokenize", "--folder", str(tmp_path)]) == 0
        (once,) = read_results(tmp_path)
        assert (once["ratio"], once["met"], once["figures"]) == (3.0, True, {"fact": 1})


@pytest.mark.parametrize(
    ("median", "reason", "shown"),
    [
        (1.78, None, "| 1.78 (1 to 3) | ≥ 2 | **missed** | 1.58 |"),
        (1.999, None, "| 1.99 (1 to 3) | ≥ 2 | **missed** | 1.58 |"),
        (2.0, None, "| 2 (1 to 3) | ≥ 2 | yes | 1.58 |"),
        (2.0, "a kernel missing", "| 2 (1 to 3) | ≥ 2 | open: a kernel missing | 1.58 |"),
    ],
)
def test_a_missed_goal_is_shown_as_missed_beside_the_ratio_at_equal_operations(
    median: float, reason: str | None, shown: str, tmp_path: Path
) -> None:
    """Three digits, rounded down, are below the goal if the ratio is."""
    ratio = {"median": median, "lowest": 1.0, "highest": 3.0}
    goal = {"bound": 2.0, "of": "two things"}
    write_result(Result("any", ratio, {"operations, theirs / ours": 1.58}, reason), goal, tmp_path)
    assert shown in table(read_results(tmp_path))


def test_operations_of_products_and_of_attention_are_counted_in_both_passes() -> None:
    """Twice as many in the backward pass as in the forward pass."""
    query, key, value = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    weight = torch.randn(8, 5, requires_grad=True)
    product, attention = 2 * (2 * 3 * 16) * 8 * 5, 2 * (2 * 3) * 16 * 16 * 8

    def step() -> int:
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        (attended @ weight).sum().backward()
        return 2

    assert count_operations({"any": step}, 1) == {"any": (3 * product + (2 + 4) * attention) // 2}


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


def test_the_grid_of_a_gpu_is_whole_tasks_on_the_published_shape(tmp_path: Path) -> None:
    setting = glue.GPU_SETTING
    workspace = open_workspace(Selection(load(glue.SPEED_LADDER), setting.scale, None, tmp_path), Place("here"))
    row = plan_variant(workspace, setting.variant, 0, ["pretraining"])
    assert [run.recipe.stages[-1].steps for run in row.stages] == [1]
    model = row.stages[-1].recipe.model
    assert (model.layers, model.width) == (28, 768)
    studies = few_studies(TrainedVariant(setting.variant, workspace, 0, row.stages), setting)
    assert [study.task for study in studies] == ["rte", "mrpc", "cola"]
    assert {(study.protocol.epochs, study.protocol.train_examples) for study in studies} == {(1, None)}
    assert all(study.starts_from.study is None and study.points == setting.points for study in studies)


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
