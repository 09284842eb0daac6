"""Pre-training runs, killed and resumed through the real worker command, equal undisturbed ones bit for bit."""

import json
import random
import shutil
import signal
import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from neobert.data import synthetic
from neobert.errors import DamagedFile, MissingData, RunFailed
from neobert.execution import utc_now
from neobert.executors.corpus import measured_corpora, tokenized_corpus
from neobert.executors.pretraining import execute, open_trainer
from neobert.executors.training import last_checkpoint
from neobert.files import read_json, read_lines
from neobert.identity import NUMERICS
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import acquire
from neobert.runs.index import state_of
from neobert.runs.layout import Layout
from neobert.runs.records import cpu_model
from neobert.runs.run_file import read_run_file
from neobert.training.distributed import ALONE
from tests.support.tiny_runs import (
    SOURCE,
    STEPS,
    Trainable,
    assert_equal_weights,
    beside,
    claimed,
    curve,
    final_weights,
    finish,
    kill_after,
    record,
    tiny_model,
    tiny_run,
    tiny_stage,
    trainer_of,
    wait_for_steps,
    work,
    worker,
    write_tiny_run,
)

GOLDEN = Path(__file__).parents[1] / "golden"
OF_TIME = ("seconds", "per_second")
"""How the keys of a line end that differ from attempt to attempt."""

WITHOUT_TIME = (
    *("seconds", "tokens_per_second", "compile_seconds", "checkpoint_seconds", "gpu_hours"),
    *("model_flops_utilization", "peak_memory_bytes", "commit", "dirty", "checksum", "sha256"),
    *("started_at", "finished_at"),
)


def metrics(root: Path, run: PretrainingRun) -> list[dict[str, Any]]:
    lines = list(read_lines(root / "pretraining" / run.id / "metrics.jsonl"))
    return [{key: value for key, value in line.items() if not key.endswith(OF_TIME)} for line in lines]


def assert_equal_runs(first: Path, second: Path, run: PretrainingRun) -> None:
    """Weights, every logged number and the record, apart from times."""
    assert_equal_weights(first, second, run)
    assert metrics(first, run) == metrics(second, run)
    records = [{k: v for k, v in record(root, run).items() if k not in WITHOUT_TIME} for root in (first, second)]
    assert records[0] == records[1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trainable:
    """A finished run and its folder; its corpus serves the others."""
    root, run = tmp_path_factory.mktemp("undisturbed"), tiny_run()
    write_tiny_run(root, run)
    finish(root, run.reference)
    return root, run


@pytest.fixture
def prepared(tmp_path: Path, undisturbed: Trainable) -> Trainable:
    """An empty folder of runs that has the corpus already."""
    root, run = undisturbed
    write_tiny_run(beside(tmp_path, root), run)
    return tmp_path, run


def test_a_run_leaves_a_record_with_times_and_processor_a_curve_and_its_milestones(undisturbed: Trainable) -> None:
    root, run = undisturbed
    content = record(root, run)
    assert content["state"] == "done" and content["id"] == run.id and content["steps"] == STEPS
    assert content["tokens"] == STEPS * 256 >= content["real_tokens"] > 0
    begun, ended = (datetime.fromisoformat(content[name]) for name in ("started_at", "finished_at"))
    assert begun.utcoffset() == ended.utcoffset() == timedelta(0) and begun <= ended <= datetime.now(UTC)
    assert content["machine"].keys() == {"system", "processor", "cpu", "cpu_capability", "cores", "python"}
    assert content["machine"]["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert content["machine"]["cpu"] == cpu_model()
    lines = metrics(root, run)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))
    heldout = {line["step"]: line["heldout_loss"] for line in lines if "heldout_loss" in line}
    assert list(heldout) == [6, 12, 18, 24] and content["scores"]["heldout_loss"]["web"] == heldout[24]
    kept = sorted(path.name for path in (root / "pretraining" / run.id / "checkpoints").iterdir())
    assert kept == [f"step-{step:08d}" for step in (0, 6, 12, 18, 20, 24)]


def compare_with_golden(losses: list[float], file: str, *, write: bool) -> None:
    """Whoever changes what a mechanism computes raises its numerics version and writes these losses anew."""
    versions = {**NUMERICS, "synthetic": synthetic.VERSION}
    if write:
        (GOLDEN / file).write_text(json.dumps({"versions": versions, "losses": losses}, indent=1) + "\n")
    golden = json.loads((GOLDEN / file).read_text())
    assert golden["versions"] == versions, "versions changed: write the losses anew with --write-golden"
    assert losses == pytest.approx(golden["losses"], rel=1e-4)


def test_losses_are_the_golden_ones(undisturbed: Trainable, write_golden: bool) -> None:
    root, run = undisturbed
    compare_with_golden(curve(root, run), "losses.json", write=write_golden)


def test_the_loss_is_measured_on_all_corpora_where_that_is_wanted(undisturbed: Trainable, tmp_path: Path) -> None:
    """Own training and own loss stay what they are; the other corpus is measured as a run on it measures its own."""
    root, run = undisturbed
    folder = write_tiny_run(tmp_path, run, heldout="all", heldout_context=16)
    assert work(tmp_path, run.reference) == 0
    assert_equal_weights(root, tmp_path, run)
    losses = record(tmp_path, run)["scores"]["heldout_loss"]
    assert losses.keys() == {"web", "wikibook"}
    assert losses["web"] == record(root, run)["scores"]["heldout_loss"]["web"] != losses["wikibook"]
    measured = {(score["corpus"], score["context"]): score for score in record(tmp_path, run)["scores"]["heldout"]}
    assert measured.keys() == {(corpus, context) for corpus in losses for context in (16, 32)}
    assert all(measured[corpus, 32]["loss"] == losses[corpus] != measured[corpus, 16]["loss"] for corpus in losses)
    assert all(measured[corpus, 32]["texts"] == measured[corpus, 16]["texts"] for corpus in losses)
    assert record(root, run)["scores"]["heldout"] == [measured["web", 32]]
    run_file = read_run_file(folder)
    (wikibook,) = (corpus for corpus in measured_corpora(run_file) if corpus.corpus == "wikibook")
    recipe = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"corpus": "wikibook"})})
    other = run.model_copy(update={"recipe": recipe, "corpus_origin": wikibook.origin})
    alone = run_file.model_copy(
        update={"run": other, "execution": read_run_file(root / folder.relative_to(tmp_path)).execution}
    )
    trainer = open_trainer(Layout(tmp_path), alone, ALONE)
    trainer.model.load_state_dict(final_weights(tmp_path, run))
    assert trainer.heldout_scores()["heldout_losses"] == {"wikibook": losses["wikibook"]}


@pytest.fixture
def not_closed(tmp_path: Path, undisturbed: Trainable) -> Trainable:
    """A copy of a run that was killed after its last step."""
    root, run = undisturbed
    shutil.copytree(root, tmp_path, ignore=shutil.ignore_patterns("data"), dirs_exist_ok=True)
    beside(tmp_path, root)
    (tmp_path / "pretraining" / run.id / "done.json").unlink()
    return tmp_path, run


@pytest.mark.parametrize("step", [3, STEPS])
def test_a_run_closes_without_a_damaged_line(undisturbed: Trainable, not_closed: Trainable, step: int) -> None:
    root, run = not_closed
    path = root / "pretraining" / run.id / "attempts" / "000001" / "metrics.jsonl"
    content = path.read_bytes()
    marks = b'"learning_rate"', b'"step": %d' % step
    (line,) = (line for line in content.splitlines(keepends=True) if all(mark in line for mark in marks))
    path.write_bytes(content.replace(line, line.replace(b'"loss": ', b'"loss" ', 1)))
    assert work(root, run.reference) == 0
    whole = [line for line in metrics(undisturbed[0], run) if not (line["step"] == step and "loss" in line)]
    assert metrics(root, run) == whole
    scores, expected = record(root, run)["scores"], record(undisturbed[0], run)["scores"]
    assert scores["heldout_loss"] == expected["heldout_loss"]
    assert scores["training_loss"] == (None if step == STEPS else expected["training_loss"])


def test_a_damaged_last_checkpoint_is_trained_again_and_no_earlier_one_stands_for_it(
    undisturbed: Trainable, not_closed: Trainable
) -> None:
    root, run = not_closed
    layout, folder = Layout(root), root / "pretraining" / run.id
    shutil.copy(undisturbed[0] / "pretraining" / run.id / "done.json", folder)
    assert last_checkpoint(layout, run.id).step == STEPS
    path = folder / "checkpoints" / f"step-{STEPS:08d}" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    second = tiny_run(previous=run, stages=(tiny_stage(steps=2, warmup_steps=0, decay_steps=0),))
    for start in (lambda: last_checkpoint(layout, run.id), trainer_of(root, second).restore):
        with pytest.raises((DamagedFile, MissingData), match="last checkpoint"):
            start()
        assert state_of(layout, run) == "waiting" and (folder / "done.json.damaged-1").exists()
    assert path.parent.with_name(f"{path.parent.name}.damaged-1").is_dir()
    assert work(root, run.reference) == 0
    assert_equal_runs(undisturbed[0], root, run)
    newest = max(folder.glob("attempts/*/metrics.jsonl"))
    assert [line["step"] for line in read_lines(newest) if "loss" in line] == [21, 22, 23, 24]


def test_a_changed_record_is_no_record_and_its_run_is_closed_again(
    undisturbed: Trainable, not_closed: Trainable
) -> None:
    root, run = not_closed
    layout, path = Layout(root), root / "pretraining" / run.id / "done.json"
    whole = (undisturbed[0] / "pretraining" / run.id / "done.json").read_text()
    path.write_text(whole.replace('"training_loss": ', '"training_loss": 1'))
    assert state_of(layout, run) == "waiting"
    assert work(root, run.reference) == 0
    assert_equal_runs(undisturbed[0], root, run)
    assert path.with_name("done.json.damaged-1").exists() and state_of(layout, run) == "done"


@pytest.mark.parametrize("steps", [1, 7, 19])
def test_kill_9_at_any_step_changes_nothing(undisturbed: Trainable, prepared: Trainable, steps: int) -> None:
    root, run = prepared
    kill_after(root, run, steps)
    killed_at = utc_now()
    assert work(root, run.reference) == 0
    assert record(root, run)["started_at"] <= killed_at <= record(root, run)["finished_at"], "of the first attempt"
    assert_equal_runs(undisturbed[0], root, run)
    resumed = list(read_lines(root / run.reference / "attempts" / "000002" / "metrics.jsonl"))
    assert resumed[0]["step"] > (0 if steps < 5 else 5), "it started from the beginning"


def test_kill_9_during_a_save_changes_nothing(undisturbed: Trainable, prepared: Trainable) -> None:
    """Killed whenever a half-written checkpoint folder is seen, several times over."""
    root, run = prepared
    folder = root / "pretraining" / run.id / "checkpoints"
    seen = 0
    for _ in range(4):
        process = worker(root, run.reference)
        while process.poll() is None and not list(folder.glob("*.tmp-*")):
            time.sleep(0.0005)
        seen += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert seen >= 1
    assert work(root, run.reference) == 0
    assert_equal_runs(undisturbed[0], root, run)


@pytest.mark.drill
def test_drill_kill_9_at_random_moments(undisturbed: Trainable, prepared: Trainable) -> None:
    """Twenty kills at random moments of start, training, evaluation and saving."""
    root, run = prepared
    draw = random.Random(0)
    for _ in range(20):
        process = worker(root, run.reference)
        time.sleep(draw.uniform(0.5, 4.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(root, run.reference)
    assert_equal_runs(undisturbed[0], root, run)


def test_a_stop_signal_saves_and_the_next_start_goes_on(undisturbed: Trainable, prepared: Trainable) -> None:
    root, run = prepared
    process = worker(root, run.reference)
    wait_for_steps(root, run, 2)
    process.terminate()
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 75 and "saved after step" in said
    assert work(root, run.reference) == 0
    assert_equal_runs(undisturbed[0], root, run)


def test_a_stop_ends_tokenising_before_there_is_anything_to_train_on(tmp_path: Path) -> None:
    run, layout, stop = tiny_run(), Layout(tmp_path), StopRequest()
    run_file = read_run_file(write_tiny_run(tmp_path, run))
    stop.request()
    with claimed(layout, run.id) as claim, pytest.raises(Stopped):
        execute(layout, run_file, *run.parts(layout), claim, stop)
    assert not (tmp_path / run.reference / "checkpoints").exists()


def test_two_workers_train_a_run_once(prepared: Trainable) -> None:
    root, run = prepared
    processes = [worker(root, run.reference) for _ in range(2)]
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(list(read_lines(root / "starts.jsonl"))) == 1


def test_micro_batches_do_not_change_the_loss(undisturbed: Trainable, tmp_path: Path) -> None:
    """One accumulation of eight against eight of one."""
    run = tiny_run(model=tiny_model(dropout=0.0))
    losses = []
    for rows in (1, 8):
        trainer = trainer_of(beside(tmp_path / str(rows), undisturbed[0]), run, micro_batch_tokens=32 * rows)
        losses.append([step.measured().loss for step in islice(trainer.steps(trainer.restore()), 6)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_second_stage_continues_weights_and_optimizer(undisturbed: Trainable, tmp_path: Path) -> None:
    root, first = undisturbed
    second = tiny_run(previous=first, stages=(tiny_stage(context=64, warmup_steps=0, decay_steps=0, steps=4),))
    assert second.stage == 1 and second.previous == first.id
    trainer = trainer_of(root, second)
    assert trainer.restore() == 0
    assert all(
        torch.equal(value, final_weights(root, first)[name]) for name, value in trainer.model.state_dict().items()
    )
    assert len(trainer.engine.optimizer.state) > 0
    steps = list(trainer.steps(0))
    assert [step.learning_rate for step in steps] == [pytest.approx(2e-4)] * 4


def test_a_stage_waits_for_the_one_before_it(prepared: Trainable) -> None:
    root, first = prepared
    second = tiny_run(previous=first, stages=(tiny_stage(steps=2, warmup_steps=0, decay_steps=0),))
    write_tiny_run(root, second)
    assert work(root, second.reference) == 1
    assert work(root, second.reference, first.reference) == 0
    assert record(root, second)["inputs"]["previous"] == first.id


def test_a_loss_that_is_not_finite_stops_before_the_update_and_names_the_step(prepared: Trainable) -> None:
    root, run = prepared
    trainer = trainer_of(root, run)
    trainer.restore()
    steps = trainer.steps(0)
    next(steps)
    with torch.no_grad():
        trainer.model.model.transformer_encoder[1].ffn.w3.weight[0, 0] = float("inf")
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(RunFailed, match=r"step 2: the loss is (nan|inf)"):
        list(steps)
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_a_failed_unit_leaves_its_traceback_and_is_tried_again(
    prepared: Trainable, capsys: pytest.CaptureFixture[str]
) -> None:
    root, run = prepared
    folder = root / "pretraining" / run.id
    broken = folder / "checkpoints"
    broken.write_text("a file where a folder belongs")
    code = work(root, run.reference)
    error = json.loads((folder / "error.json").read_text())
    assert code == 1 and "FileExistsError" in error["error"] and "Traceback" in error["traceback"]
    assert run.id in capsys.readouterr().err
    broken.unlink()
    assert work(root, run.reference) == 0
    assert not (folder / "error.json").exists()


def test_a_damaged_shard_is_made_again(
    undisturbed: Trainable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, run = undisturbed
    data = tmp_path / "data" / run.data_id
    data.mkdir(parents=True)
    for path in (root / "data" / run.data_id).iterdir():
        (data / path.name).write_bytes(path.read_bytes())
    shard = next(data.glob("tokens-*.bin"))
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    write_tiny_run(tmp_path, run)
    corpus = tokenized_corpus(Layout(tmp_path), run, run.corpus, SOURCE)
    said = capsys.readouterr().err
    assert f"{shard} does not match its checksum" in said and "Traceback" not in said
    content[100] ^= 1
    assert shard.read_bytes() == content and corpus.tokens == len(content) // 2
    assert read_json(data / "manifest.json") == read_json(root / "data" / run.data_id / "manifest.json")


def test_a_run_that_lost_its_claim_publishes_nothing(prepared: Trainable) -> None:
    """A zombie: another worker takes the unit over while this one is paused; nothing of the first is published."""
    root, run = prepared
    process = worker(root, run.reference)
    wait_for_steps(root, run, 2)
    process.send_signal(signal.SIGSTOP)
    claims = Layout(root).claims(run.id)
    (claims / "1.released").touch()  # stands for a lease that ran out
    taken = acquire(claims)
    assert taken is not None
    with taken:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1].decode()
        assert "taken over" in said
        assert not (root / "pretraining" / run.id / "done.json").exists()
