"""Evaluations through the real worker and the real command: shared, killed, from any encoder, up to Table 4."""

import json
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations import run, scales
from ablations.recipe_runs import evaluation_after
from neobert.data.mteb_tasks import CATEGORIES
from neobert.errors import EXIT_MISSING
from neobert.executors import mteb as mteb_evaluation
from neobert.executors.encoders import load_encoder, load_named_encoder
from neobert.executors.mteb import execute
from neobert.kinds.mteb import EmbeddingConfig, EmbeddingScores
from neobert.processes import Stopped, StopRequest
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.run_file import read_run_file
from neobert.training.distributed import default_device
from reports import make_figures
from reports.tables import DASH
from sweeps import mteb_suite
from tests.embeddings.tiny_contrastive import tiny_contrastive, write_encoder, write_tiny_contrastive
from tests.embeddings.tiny_suite import SMOKE, SOURCE_HERE, write_evaluation, write_zero_shot
from tests.support.tiny_runs import beside, claimed, starts, work, worker
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(find_spec("mteb") is None, reason="mteb is not installed")

PAIRS = ("--pairs", "paraphrases")
STS = "SyntheticSentenceSimilarity"


@pytest.fixture(autouse=True)
def nothing_open() -> None:
    mteb_evaluation._open_evaluation.cache_clear()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs whose tokenizer all tests share: the first one trains it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "data").mkdir()
    return folder


@pytest.fixture
def root(tmp_path: Path, data: Path) -> Path:
    return beside(tmp_path / "runs", data)


def records(root: Path) -> list[Path]:
    return sorted(root.glob("mteb/*/*.json"))


def test_kill_9_loses_nothing_and_repeats_no_finished_task(root: Path) -> None:
    """The real worker is killed after its first record; what it was in is done anew, what it had recorded is not."""
    evaluation = write_zero_shot(root, [STS, "SyntheticSummaryQuality"])
    killed = worker(root, evaluation.reference)
    until(lambda: records(root) or killed.poll() is not None, 240, pause_seconds=0.002)
    killed.kill()
    killed.communicate()
    finished = {path: path.stat().st_mtime_ns for path in records(root)}
    assert 0 < len(finished) < len(evaluation.tasks)
    assert work(root, evaluation.reference) == 0
    assert len(records(root)) == len(evaluation.tasks) == len(set(starts(root)))
    assert all(path.stat().st_mtime_ns == written for path, written in finished.items())
    again = [unit for unit, count in Counter(starts(root)).items() if count > 1]
    assert len(again) <= 1 and not {path.stem for path in finished} & set(again)
    _assert_records_are_whole(root)


def _assert_records_are_whole(root: Path) -> None:
    """Of the documented form, with scores that are numbers and texts that are counted."""
    for record in map(read_record, records(root)):
        config = EmbeddingConfig.model_validate(record["config"])
        assert EmbeddingScores.model_validate(record["scores"]).metrics[config.metric] == record["scores"]["score"]
        assert record["inputs"]["pretraining"] and record["inputs"]["weights"]
        assert record["texts"]["texts"] > 0 and record["texts"].keys() >= {"empty", "cut"}
        assert record["labels"].keys() >= {"scale", "data"} and record["seconds"] >= 0 and record["packages"]["mteb"]


def test_a_request_to_stop_ends_a_task_without_a_record_or_an_error(root: Path) -> None:
    evaluation = write_zero_shot(root, [STS])
    layout, stop = Layout(root), StopRequest()
    (part,) = evaluation.parts(layout)
    stop.request()
    with claimed(layout, part.id) as claim, pytest.raises(Stopped):
        execute(layout, read_run_file(layout.root / evaluation.folder), part, claim, stop)
    assert not records(root) and not part.error.exists()


def test_changed_data_are_refused_by_name(root: Path) -> None:
    evaluation = write_zero_shot(root, [STS])
    (task,) = evaluation.tasks
    stale = evaluation.model_copy(update={"tasks": (task.model_copy(update={"origin": "synthetic:v0"}),)})
    write_evaluation(root, stale)
    assert work(root, stale.reference) == 1
    (part,) = stale.parts(Layout(root))
    error = json.loads(part.error.read_text())
    assert f"task {STS} of synthetic changed since this was planned" in error["error"]
    assert error["exit_code"] == EXIT_MISSING and not records(root)


def test_the_weights_that_fine_tuning_ended_with_are_measured(root: Path) -> None:
    layout, texts = Layout(root), ["the cat sleeps .", "", "a dog " * 60]
    tuned = tiny_contrastive(write_encoder(root).id, ("paraphrases",))
    write_tiny_contrastive(root, tuned)
    assert work(root, tuned.reference) == 0
    sts = [task for task in SOURCE_HERE.embedding_tasks() if task.name == STS]
    run_file = read_run_file(write_evaluation(root, evaluation_after(tuned, SMOKE, sts, SOURCE_HERE)))
    measured = load_named_encoder(layout, run_file, default_device()).encoder.encode(texts)
    np.testing.assert_array_equal(measured, load_encoder(layout, tuned.id, default_device()).encode(texts))


@pytest.fixture
def toy_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contrastive fine-tuning of a few steps."""
    toy = {**scales.SMOKE.contrastive, "steps": 4, "texts_per_step": 24, "warmup_steps": 1, "decay_steps": 4}
    monkeypatch.setitem(scales.RULES, "smoke", replace(scales.SMOKE, contrastive=toy))  # type: ignore[arg-type]


@pytest.mark.usefixtures("toy_scale", "toy_tuning", "undrawn")
def test_m8_runs_from_nothing_to_a_row_of_table_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pre-training, fine-tuning and seven tasks by one command; again it does nothing; the row says its suite."""
    runs, out = tmp_path / "runs", tmp_path / "out"
    command = ["--variant", "M8", "--stages", "pretrain", "mteb", "--runs", str(runs), "--cluster", "here"]
    command += ["--workers", "1", *PAIRS]
    assert run.main([*command, "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)
    (tuned,), (measured,) = outcome["contrastive"], outcome["mteb"]
    assert (tuned["state"], measured["state"]) == ("done", "done") and 0 <= tuned["heldout_accuracy"] <= 1
    means = {mean["category"]: mean for mean in measured["means"]}
    assert set(means) == {*CATEGORIES, None} and means[None]["tasks"] == means[None]["expected"] == 7
    _assert_records_are_whole(runs)
    before = sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*.json"))
    assert run.main(command) == 0
    assert sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*.json")) == before
    said = capsys.readouterr().out
    assert "partner found first" in said and "all tasks" in said
    assert (
        mteb_suite.main(["--variant", "M8", "--runs", str(runs), "--tasks", "SyntheticSentenceSimilarity", *PAIRS]) == 0
    )
    said = capsys.readouterr().out
    assert "1 of 7" in said and len(starts(runs)) == len(set(starts(runs))), "what one command measured the other shows"
    assert make_figures.main(["--runs", str(runs), "--out", str(out)]) == 0
    _assert_row_of_table_4(out / "smoke-synthetic" / "table4.md", means)


def _assert_row_of_table_4(path: Path, means: dict[str | None, dict[str, Any]]) -> None:
    header, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in path.read_text().splitlines()
        if line.startswith("|")
    ]
    (own,) = (dict(zip(header, row, strict=True)) for row in rows if row[0] == "this study")
    assert (own["Model"], own["Suite"], own["Tasks"]) == ("M8", "synthetic", "7, none of the 56")
    assert own["Average"] == DASH and own["STS"] == f"{means['sts']['score'] * 100:.1f} (1)"
    assert own["Mean of 7 shared"] == f"{means[None]['score'] * 100:.1f}"
