"""The command end to end, on a ladder shrunk once more: from nothing to figures, and every refusal in one sentence."""

import csv
import json
import os
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations import recipe_runs, run, scales, scaling
from ablations.launch import execute
from ablations.loading import papers
from neobert import processes
from neobert.data import synthetic
from neobert.data.sources import open_source
from neobert.files import read_lines
from neobert.glue.metrics import evaluate
from neobert.glue.tasks import task_named
from neobert.runs.kinds import read_records
from reports import collect, make_figures
from tests.ablations.papers_ladder import PAPERS_LADDER
from tests.support.made_up_blimp import write_blimp
from tests.support.small_corpora import write_table
from tests.support.tiny_runs import starts

TASKS = {"mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb"}


def differences(out: Path, group: str = "smoke-synthetic") -> list[dict[str, str]]:
    """The rows of the report's differences.csv."""
    with (out / group / "differences.csv").open() as file:
        return list(csv.DictReader(file))


def records_by_kind(root: Path) -> dict[str, list[dict[str, Any]]]:
    records, problems = read_records(root)
    assert not problems
    return {kind: [record for record in records if record["kind"] == kind] for kind in ("pretraining", "glue")}


@pytest.mark.usefixtures("toy_scale", "undrawn")
def test_readouts_ask_variants_of_other_tokenizers_the_same_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned behind pre-training, two records a run; the same text of both tokenizers and the same minimal pairs;
    nothing is measured twice."""
    monkeypatch.setattr(recipe_runs, "PAIRS_PER_PARADIGM", 2)
    runs, data = tmp_path / "runs", tmp_path / "data"
    write_blimp(data, 2)
    for corpus in ("wikibook", "web"):
        documents = [*synthetic.corpus_documents(corpus, documents=600)]
        write_table(data / "corpora" / corpus / "part.parquet", {"text": documents})
    arguments = ["--variant", "M2", "M3", "--stages", "pretrain", "readouts", "--runs", str(runs), "--json"]
    arguments += ["--data", str(data)]
    assert run.main([*arguments, "--dry-run"]) == 0
    planned = [stage for row in json.loads(capsys.readouterr().out) for stage in row["stages"]]
    assert [stage["kind"] for stage in planned] == ["pretraining stage 1", "readouts loss", "readouts blimp"] * 2
    assert not runs.exists()
    assert run.main([*arguments, "--workers", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    records = [record for record in read_records(runs)[0] if record["kind"] == "readouts"]
    found = {(record["labels"]["variants"][0], record["config"]["readout"]): record for record in records}
    assert len(found) == len(records) == 4 and {record["state"] for record in records} == {"done"}
    assert len({(record["config"]["readout"] == "blimp", record["config"]["items"]) for record in records}) == 2
    for name in ("M2", "M3"):
        score = found[name, "blimp"]["scores"]["blimp"]
        assert (score["units"], len(score["groups"])) == (67, 67 + 12 + 4) and 0 < score["value"] < 1
    ours, theirs = (found[name, "loss"]["scores"] for name in ("M2", "M3"))
    assert ours.keys() == theirs.keys() == {"wikibook", "web"}
    for corpus, score in ours.items():
        assert score["units"] == theirs[corpus]["units"], "the same stretches"
        assert score["numerators"] != theirs[corpus]["numerators"] and score["value"] > 0
    for outcome in said:
        entries = outcome["readouts"]
        own = {name: found[outcome["variant"], name]["scores"] for entry in entries for name in entry["scores"]}
        told = {name: {corpus: score["value"] for corpus, score in scores.items()} for name, scores in own.items()}
        assert entries[0]["scores"] | entries[1]["scores"] == told and len(own) == 2
        assert [entry["state"] for entry in entries] == ["done", "done"]
    before = sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*.json*"))
    assert run.main(arguments) == 0
    assert sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*.json*")) == before
    collected = tmp_path / "collected"
    assert collect.main(["--runs", str(runs), "--out", str(collected)]) == 0
    assert make_figures.main(["--runs", str(collected), "--out", str(tmp_path / "out")]) == 0
    compared = {row["measure"]: row for row in differences(tmp_path / "out", "smoke-data") if row["variant"] == "M3"}
    assert compared["BLiMP"]["parent"] == "M2" and compared["BLiMP"]["n"] == "1"
    damaged, lost = sorted(runs.glob("readouts/*/*.json"))[:2]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-20])
    lost.unlink()
    next(runs.glob("data/readouts/*.json")).unlink()
    assert run.main(arguments) == 0
    scores = {path.stem: json.loads(path.read_text())["scores"] for path in (damaged, lost)}
    assert scores == {record["id"]: record["scores"] for record in records if record["id"] in scores}


@pytest.mark.usefixtures("toy_scale")
def test_m9_and_m10_run_from_nothing_to_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two stages once, MNLI before what starts from it, both checkpoints for M10, and the same command is a no-op. The
    stage perplexity measures both stages, at lengths up to the context of each."""
    one_rate = {**scales.SMOKE.grid, "learning_rates": {2e-5: 1e-3}}
    monkeypatch.setitem(scales.RULES, "smoke", replace(scales.SMOKE, grid=one_rate))  # type: ignore[arg-type]
    runs = tmp_path / "runs"
    arguments = ["--variant", "M9", "M10", "--stages", "pretrain", "glue", "perplexity"]
    arguments += ["--runs", str(runs), "--workers", "2"]
    assert run.main([*arguments, "--json"]) == 0
    outcomes = json.loads(capsys.readouterr().out)
    assert [(row["variant"], row["context"]) for row in outcomes] == list(product(("M9", "M10"), (96, 192)))
    assert all(set(row["glue"]) == TASKS for row in outcomes[1:])
    assert all(score is not None for row in outcomes[1:] for score in row["glue"].values())

    found = records_by_kind(runs)
    assert sorted(record["config"]["stage"] for record in found["pretraining"]) == [0, 1]
    for record in found["pretraining"]:
        assert {"M9", "M10"} <= set(record["labels"]["variants"]) and record["labels"]["parent"] == "M8"
        assert record["labels"]["delta"]["optimization.weight_decay"] == [0.01, 0.1]
    assert len(starts(runs)) == len(set(starts(runs))), "a unit was started twice"

    measured = [record for record in read_records(runs)[0] if record["kind"] == "readouts"]
    assert sorted(record["config"]["stage"] for record in measured) == [0, 1]
    for record in measured:
        lengths = [int(length) for score in record["scores"].values() for length in score["groups"]]
        assert lengths and max(lengths) <= record["config"]["context"]
    by_id = {record["id"]: record for record in found["glue"]}
    for record in found["glue"]:
        transferred = record["config"]["task"] in {"rte", "stsb", "mrpc", "qnli"}
        assert record["config"]["starts_from"] == ("mnli" if transferred else "pretraining")
        if transferred:
            study = record["inputs"]["starts_from"]["study"]
            chosen = json.loads((runs / "glue" / "mnli" / "studies" / study / "selection.json").read_text())
            assert by_id[chosen["trial"]]["inputs"]["pretraining"] == record["inputs"]["pretraining"]

    before = sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*.json"))
    assert run.main(arguments) == 0
    assert sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*.json")) == before
    capsys.readouterr()

    _assert_scores_follow_from_predictions(runs, found["glue"])
    _assert_only_best_weights_are_kept(runs, found["glue"])
    assert make_figures.main(["--runs", str(runs), "--out", str(tmp_path / "out")]) == 0
    table = (tmp_path / "out" / "smoke-synthetic" / "table3.md").read_text()
    assert "smoke" in table and "this study" in table
    rows = {row["measure"]: row for row in differences(tmp_path / "out") if row["variant"] == "M10"}
    assert rows["GLUE average"]["word"].startswith("not compared: the grids differ on the same weights")
    assert not any(measure.startswith("held-out loss") for measure in rows), "both have the same weights"


@pytest.mark.usefixtures("toy_scale", "undrawn")
def test_every_variant_really_computes_something_else_than_its_parent(tmp_path: Path) -> None:
    """The whole ladder pre-trains, and each modification moves the losses; M10, no new model, shares M9's run. Every
    change has a difference in held-out loss, where nats per token cannot be compared in bits per byte."""
    arguments = ["--variant", "all", "M6@isolated", "--stages", "pretrain", "--runs", str(tmp_path), "--workers", "2"]
    arguments += ["--heldout", "all"]
    assert run.main(arguments) == 0
    losses: dict[str, list[float]] = {}
    for path in sorted(tmp_path.glob("pretraining/*/done.json")):
        record = json.loads(path.read_text())
        curve = [line["loss"] for line in read_lines(path.with_name("metrics.jsonl")) if "loss" in line]
        losses |= {name: curve for name in record["labels"]["variants"] if record["config"]["stage"] == 0}
    children = [variant for name, variant in papers().variants.items() if name in losses and variant.parent]
    assert len(children) >= 11
    for variant in children:
        shared = losses[variant.name] == losses[variant.parent.name]
        assert shared == (variant.recipe.pretraining == variant.parent.recipe.pretraining), variant.name
    assert make_figures.main(["--runs", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    compared = [
        row
        for row in differences(tmp_path / "out")
        if row["design"] == "ladder" and row["mean"] and row["variant"] in PAPERS_LADDER
    ]
    assert len({(row["variant"], row["parent"]) for row in compared}) == len(compared) == 9
    assert {"M3", "M9"} <= {row["variant"] for row in compared if row["unit"] == "bits per byte"}
    texts = [json.loads(path.read_text())["shards"] for path in sorted(tmp_path.glob("data/*/manifest.json"))]
    assert len({json.dumps(shards) for shards in texts}) == len(texts) == 4


def _assert_scores_follow_from_predictions(runs: Path, records: list[dict[str, Any]]) -> None:
    """Metrics recomputed from the stored predictions agree exactly."""
    source = open_source("synthetic", synthetic_documents=600)
    for record in records:
        task = task_named(record["config"]["task"])
        stored = np.load(runs / "glue" / task.name / f"{record['id']}.npz", allow_pickle=False)
        labels = {
            split: np.asarray(source.task_examples(task.name, split)["label"]) for split in task.validation_splits
        }
        again = evaluate(task, {split: stored[split] for split in task.validation_splits}, labels)
        assert again.score == record["scores"]["score"]


def _assert_only_best_weights_are_kept(runs: Path, records: list[dict[str, Any]]) -> None:
    for task in TASKS:
        kept = {path.stem for path in (runs / "glue" / task).glob("*.safetensors")}
        chosen = {
            json.loads(path.read_text())["trial"] for path in (runs / "glue" / task).glob("studies/*/selection.json")
        }
        assert chosen == kept
        assert len(kept) < sum(record["config"]["task"] == task for record in records)


def test_workers_of_a_large_scale_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers are started with, and what the run file says of it."""
    for module in (scaling, execute):
        monkeypatch.setattr(module, "available_cores", lambda: 8)
    started: list[dict[str, str]] = []
    monkeypatch.setattr(processes, "work_here", lambda *_, environments, **__: started.extend(environments) or 0)
    command = ["--variant", "M2", "--scale", "proxy", "--stages", "pretrain", "--cluster", "here", "--workers", "3"]
    assert run.main([*command, "--runs", str(tmp_path)]) == 0
    assert [each["OMP_NUM_THREADS"] for each in started] == ["2"] * 3
    (run_file,) = tmp_path.glob("pretraining/*/run.json")
    assert json.loads(run_file.read_text())["execution"]["threads"] == 2


def test_a_killed_worker_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object, **__: object) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sh", "-c", "kill -9 $$"])

    monkeypatch.setattr(processes, "start_child", killed)
    command = ["--variant", "M0", "--stages", "pretrain", "--cluster", "here", "--workers", "2"]
    assert run.main([*command, "--runs", str(tmp_path)]) == 1
    assert "2 of 2 processes killed by signal 9 (out of memory?)" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="needs root to mount a small disk")
@pytest.mark.usefixtures("toy_scale")
def test_a_full_disk_stops_with_a_sentence_and_the_same_command_finishes_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        arguments = ["--variant", "M2", "--stages", "pretrain", "--runs", str(disk / "runs"), "--workers", "1"]
        assert run.main(arguments) == 1
        assert "No space left on device" in capfd.readouterr().err
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        assert run.main(arguments) == 0
    finally:
        subprocess.run(["umount", str(disk)], check=False)
