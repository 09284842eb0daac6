"""Garbage collection: what anything refers to stays, what nothing refers to goes, and nobody at work is disturbed."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablations import run
from neobert.executors.corpus import measured_corpora
from neobert.kinds.glue import Start
from neobert.kinds.pretraining import PretrainingRun
from neobert.recipe import Data
from neobert.runs import cleanup
from neobert.runs.cleanup import DAY_SECONDS, Garbage, collect, collectable, read_uses
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import read_run_file
from neobert.training.schedule import milestones
from tests.ablations.status_worlds import (
    aged,
    checkpoint,
    claim,
    declare,
    encode,
    fail,
    finish_pretraining,
    finish_study,
    progress,
    record_trial,
    study_of,
    submit,
    tokenize,
    write,
)
from tests.embeddings.tiny_contrastive import STEPS as CONTRASTIVE_STEPS
from tests.embeddings.tiny_contrastive import tiny_contrastive, write_tiny_contrastive
from tests.support.tiny_runs import STEPS, tiny_run, write_tiny_run

MILESTONES = (0, 6, 12, 18, 24)
NOBODY = "0123456789ab"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def whole_checkpoint(layout: Layout, run: PretrainingRun, step: int) -> Path:
    """A checkpoint with a manifest that fits its files."""
    folder = checkpoint(layout, run, step)
    write(folder / "manifest.json", {"step": step, "sha256": {"model.safetensors": "…", "state.json": "…"}})
    return folder


def garbage(layout: Layout) -> list[Garbage]:
    return collectable(layout)[0]


def paths(layout: Layout) -> set[str]:
    """What may go, relative to the folder of runs."""
    return {str(found.path.relative_to(layout.root)) for found in garbage(layout)}


def trained(layout: Layout, **changes: Any) -> PretrainingRun:
    """A finished run with checkpoints at all milestones, data, and one checkpoint in between."""
    made = tiny_run(**changes)
    declare(layout, made)
    finish_pretraining(layout, made)
    for step in (*MILESTONES, 20):
        whole_checkpoint(layout, made, step)
    tokenize(layout, made.data_id)
    return made


def test_of_a_finished_stage_the_milestones_stay_of_an_unfinished_one_every_checkpoint(layout: Layout) -> None:
    made = trained(layout)
    assert paths(layout) == {f"pretraining/{made.id}/checkpoints/step-00000020"}
    (layout.pretraining(made.id) / "done.json").unlink()
    assert paths(layout) == set()


@pytest.mark.parametrize("damage", ["no last checkpoint", "no manifest", "torn manifest", "a file is gone"])
def test_the_checkpoint_before_a_damaged_last_one_stays(layout: Layout, damage: str) -> None:
    """It is what the stage can be finished from again."""
    made = trained(layout)
    last = layout.pretraining(made.id) / "checkpoints" / f"step-{STEPS:08d}"
    if damage == "no last checkpoint":
        last.rename(last.with_name("elsewhere"))
    elif damage == "no manifest":
        (last / "manifest.json").unlink()
    elif damage == "torn manifest":
        (last / "manifest.json").write_text("{")
    else:
        (last / "model.safetensors").unlink()
    assert paths(layout) == set()


def test_checkpoints_that_nothing_describes_or_starts_from_go(layout: Layout) -> None:
    """A folder without run.json stays as long as a study or a later stage starts from it."""
    made = tiny_run()
    checkpoint(layout, made, 24)
    assert paths(layout) == {f"pretraining/{made.id}/checkpoints"}
    study = declare(layout, study_of(made))
    assert paths(layout) == set()
    (study / "run.json").unlink()
    following = declare(layout, tiny_run(made))
    assert paths(layout) == set()
    (following / "run.json").unlink()
    finish_pretraining(layout, made)
    assert paths(layout) == set()


def test_of_finished_contrastive_fine_tuning_the_milestones_stay(layout: Layout) -> None:
    """Its pairs stay while any run.json names them; pairs of a name that nobody has any more go."""
    encoder = trained(layout)
    tuned = tiny_contrastive(encoder.id)
    folder = write_tiny_contrastive(layout.root, tuned)
    for step in (*milestones(CONTRASTIVE_STEPS), 4):
        write(folder / "checkpoints" / f"step-{step:08d}" / "manifest.json", {"sha256": {}})
    encoded = [tuned.pairs_id(pairs) for pairs in tuned.sets]
    for name in (*encoded, f"paraphrases-{NOBODY}"):
        write(layout.pairs(name) / "pairs.json", {})
    write(layout.root / "data" / "pairs" / "my own" / "x.json", {})
    lost, between = f"data/pairs/paraphrases-{NOBODY}", f"contrastive/{tuned.id}/checkpoints/step-00000004"
    before = paths(layout) - {f"pretraining/{encoder.id}/checkpoints/step-00000020"}
    assert before == {lost}, "an unfinished run keeps every checkpoint"
    record = {"kind": "contrastive", "id": tuned.id, "state": "done", "inputs": {"pairs": encoded}}
    publish_record(folder / "done.json", record)
    assert {lost, between} < paths(layout)
    collect(layout, garbage(layout))
    assert not layout.pairs(f"paraphrases-{NOBODY}").exists() and all(layout.pairs(name).exists() for name in encoded)
    (folder / "run.json").unlink()
    (folder / "done.json").unlink()
    assert f"contrastive/{tuned.id}/checkpoints" in paths(layout), "nothing describes it any more"


def test_pairs_that_somebody_encodes_stay(layout: Layout) -> None:
    name = f"paraphrases-{NOBODY}"
    write(layout.pairs(name) / "pairs.json", {})
    claim(layout, f"pairs-{name}")
    assert paths(layout) == set()


def test_tokenised_data_stays_while_any_run_refers_to_it(layout: Layout) -> None:
    """Growing corpora count like whole ones; tokenizers, encoded tasks and unknown folders are not corpora."""
    first, second = tiny_run(), tiny_run(data=Data(corpus="wikibook", tokenizer="wordpiece", long_documents="cut"))
    for made in (first, second):
        declare(layout, made)
        tokenize(layout, made.data_id)
    finish_pretraining(layout, first)
    tokenize(layout, NOBODY)
    write(layout.data("aaaaaaaaaaaa.partial") / "header.json", {})
    write(layout.root / "data" / "tokenizers" / "x" / "tokenizer.json", {})
    write(layout.root / "data" / "my own" / "x.json", {})
    assert paths(layout) == {f"data/{NOBODY}", "data/aaaaaaaaaaaa.partial"}
    collect(layout, garbage(layout))
    assert paths(layout) == set() and not layout.data(NOBODY).exists()
    assert (layout.data(first.data_id) / "manifest.json").exists()


def test_all_corpora_stay_while_an_unfinished_run_is_measured_on_all(layout: Layout) -> None:
    made = tiny_run()
    write_tiny_run(layout.root, made, heldout="all")
    for corpus in measured_corpora(read_run_file(layout.pretraining(made.id))):
        tokenize(layout, corpus.id)
    assert paths(layout) == set()
    finish_pretraining(layout, made)
    assert len(paths(layout)) == 1


def test_data_that_only_a_record_names_stays(layout: Layout) -> None:
    """A run of another numerics version: its run.json gives another name than the data had, its record the true one."""
    made = tiny_run()
    declare(layout, made)
    finish_pretraining(layout, made, inputs={"data": NOBODY, "previous": None})
    tokenize(layout, NOBODY)
    assert paths(layout) == set()


def test_a_link_to_data_elsewhere_is_left_alone(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("shared")
    (layout.root / "data").mkdir()
    layout.data(NOBODY).symlink_to(elsewhere, target_is_directory=True)
    assert paths(layout) == set()


def test_encoded_tasks_stay_while_any_study_refers_to_them(layout: Layout) -> None:
    study, gone = study_of(tiny_run()), study_of(tiny_run(), task="mnli")
    declare(layout, study)
    encode(layout, study)
    unneeded = encode(layout, gone)
    assert paths(layout) == {str(unneeded.relative_to(layout.root))}


def test_of_a_closed_study_only_the_best_weights_stay(layout: Layout) -> None:
    study = study_of(tiny_run(), points=3)
    declare(layout, study)
    finish_study(layout, study, best=1)
    files = study.trials(layout)
    assert paths(layout) == {str(files[number].weights.relative_to(layout.root)) for number in (0, 2)}
    collect(layout, garbage(layout))
    assert [one.weights.exists() for one in files] == [False, True, False]
    assert all(one.record.exists() and one.predictions.exists() for one in files)


def test_progress_stays_until_its_trial_is_recorded(layout: Layout) -> None:
    study = study_of(tiny_run(), points=2)
    declare(layout, study)
    record_trial(layout, study, 0)
    for trial in study.trials(layout):
        trial.progress.mkdir()
    unplanned = layout.trial("cola", NOBODY).with_suffix(".progress")
    unplanned.mkdir()
    assert paths(layout) == {
        str(path.relative_to(layout.root)) for path in (study.trials(layout)[0].progress, unplanned)
    }


def test_weights_of_an_open_study_stay_also_when_another_study_shares_and_closed_them(layout: Layout) -> None:
    small, large = study_of(tiny_run(), points=2), study_of(tiny_run(), points=3)
    for study in (small, large):
        declare(layout, study)
    finish_study(layout, small, best=0)
    record_trial(layout, large, 2)
    assert paths(layout) == set()
    finish_study(layout, large, best=2)
    assert paths(layout) == {str(small.trials(layout)[1].weights.relative_to(layout.root))}


def test_the_weights_that_another_task_starts_from_stay_without_their_run_file(layout: Layout) -> None:
    mnli = study_of(tiny_run(), task="mnli")
    declare(layout, mnli)
    start = Start(kind="study", task="mnli", study=mnli.id, rule="best", reason=None)
    declare(layout, study_of(tiny_run(), task="rte", start=start))
    selection = finish_study(layout, mnli, best=1)
    (selection.parent / "run.json").unlink()
    assert paths(layout) == {str(mnli.trials(layout)[0].weights.relative_to(layout.root))}


def snapshot(layout: Layout, *, name: str = NOBODY, dirty: bool | None = False, old: bool = True) -> Path:
    path = write(layout.root / "snapshots" / name / "snapshot.json", {"commit": "c", "dirty": dirty, "id": name})
    return aged(path, 2 * DAY_SECONDS if old else 60).parent


def test_code_stays_while_a_submission_of_an_unfinished_run_refers_to_it(layout: Layout) -> None:
    """It goes when all that the submissions are for is done; a job that still works from it keeps it."""
    made = tiny_run()
    declare(layout, made)
    snapshot(layout)
    submit(layout, "12", made)
    assert paths(layout) == set()
    finish_pretraining(layout, made)
    assert paths(layout) == {f"snapshots/{NOBODY}"}
    claim(layout, "aaaaaaaaaaaa", job="12_3")
    assert paths(layout) == set()


def test_code_for_a_corpus_stays_until_it_is_tokenised(layout: Layout) -> None:
    made = tiny_run()
    declare(layout, made)
    snapshot(layout)
    submit(layout, "12", made, references=[f"corpus/{made.data_id}/{made.id}"])
    assert paths(layout) == set()
    tokenize(layout, made.data_id)
    assert paths(layout) == {f"snapshots/{NOBODY}"}


@pytest.mark.parametrize("dirty", [True, False, None])
def test_code_that_no_commit_holds_stays_while_a_record_came_from_it(layout: Layout, dirty: bool | None) -> None:
    made = tiny_run()
    declare(layout, made)
    finish_pretraining(layout, made, snapshot=NOBODY)
    snapshot(layout, dirty=dirty)
    assert paths(layout) == ({f"snapshots/{NOBODY}"} if dirty is False else set())


def test_fresh_code_and_code_under_torn_submissions_stay(layout: Layout) -> None:
    """Between snapshot and submission nothing refers to it yet."""
    snapshot(layout, old=False)
    assert paths(layout) == set()
    snapshot(layout)
    assert paths(layout) == {f"snapshots/{NOBODY}"}
    (layout.root / "submissions.jsonl").write_text('{"job": "1", "refer')
    assert paths(layout) == set() and "torn" in collectable(layout)[1][0]


LEFT = {
    "a checkpoint": (f"pretraining/{NOBODY}/checkpoints/step-00000001.tmp-0123456789ab/model.safetensors", NOBODY),
    "a run file": (f"pretraining/{NOBODY}/run.json.tmp-0123456789ab", NOBODY),
    "a trial": (f"glue/cola/{NOBODY}.safetensors.tmp-0123456789ab", NOBODY),
    "a selection": (f"glue/cola/studies/{NOBODY}/selection.json.tmp-0123456789ab", f"{NOBODY}-selection"),
    "a shard": (f"data/{NOBODY}.partial/tokens-00000.bin.tmp-0123456789ab", f"data-{NOBODY}"),
    "a tokenizer": ("data/tokenizers/x/tokenizer.json.tmp-0123456789ab", "tokenizer-bpe-512"),
    "code": ("snapshots/0123456789ab.tmp-0123456789ab/snapshot.json", "submission"),
}


@pytest.mark.parametrize("kind", LEFT)
def test_what_a_killed_writer_left_goes_after_a_day_unless_somebody_works_there(layout: Layout, kind: str) -> None:
    name, claimed = LEFT[kind]
    made = tiny_run()
    path = write(layout.root / name, {})
    top = next(part for part in (path, *path.parents) if ".tmp-" in part.name)

    def goes() -> bool:
        return any(found.path in (top, *top.parents) for found in garbage(layout))

    declare(layout, made)  # some other run is fine
    assert not any(found.path == top for found in garbage(layout))
    for part in (path, top):
        aged(part, 2 * DAY_SECONDS)
    assert goes()
    living = claim(layout, claimed)
    assert not goes()
    aged(living, 300)
    assert goes()
    collect(layout, garbage(layout))
    assert not top.exists()


def test_who_holds_a_claim_is_never_disturbed(layout: Layout) -> None:
    """Neither listed, nor removed where the claim came after the listing."""
    made = trained(layout)
    found = garbage(layout)
    assert len(found) == 1
    claim(layout, made.id)
    assert garbage(layout) == [] and collect(layout, found) == []
    assert found[0].path.exists()


def declare_study(layout: Layout) -> Path:
    return declare(layout, study_of(tiny_run()))


@pytest.mark.parametrize(
    ("make", "happens"),
    [
        (lambda layout: tokenize(layout, tiny_run().data_id), lambda layout: declare(layout, tiny_run())),
        (lambda layout: encode(layout, study_of(tiny_run())), declare_study),
        (lambda layout: record_trial(layout, study_of(tiny_run()), 0), declare_study),
        (lambda layout: checkpoint(layout, tiny_run(), 3).parent, declare_study),
        (snapshot, lambda layout: submit(layout, "12", tiny_run())),
    ],
)
def test_what_a_new_run_refers_to_stays_though_it_was_listed(
    layout: Layout, make: Callable[[Layout], Path], happens: Callable[[Layout], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is declared between the listing and the removal, at the last moment possible."""
    path = make(layout)
    listed = [found for found in garbage(layout) if found.path == path]
    assert len(listed) == 1
    take = cleanup._take

    def take_then(*arguments: Any) -> bool:
        happens(layout)
        return take(*arguments)

    monkeypatch.setattr(cleanup, "_take", take_then)
    assert collect(layout, listed) == [] and path.exists()


@pytest.mark.parametrize("damage", ["{", '{"schema": 99}', '{"schema": 1}'])
def test_where_a_run_file_cannot_be_read_all_that_it_may_refer_to_stays(layout: Layout, damage: str) -> None:
    tokenize(layout, NOBODY)
    encode(layout, study_of(tiny_run()))
    record_trial(layout, study_of(tiny_run()), 0)
    folder = layout.pretraining("aaaaaaaaaaaa")
    folder.mkdir(parents=True)
    assert len(paths(layout)) == 3
    (folder / "run.json").write_text(damage)
    assert paths(layout) == set() and "aaaaaaaaaaaa" in collectable(layout)[1][0]


def test_runs_of_another_numerics_version_may_refer_to_anything(layout: Layout) -> None:
    folder = declare(layout, tiny_run())
    folder.rename(folder.with_name("aaaaaaaaaaaa"))
    tokenize(layout, NOBODY)
    assert paths(layout) == set() and "numerics" in collectable(layout)[1][0]


STATES = ("absent", "declared", "running", "failed", "done")


@settings(max_examples=40)
@given(
    stages=st.lists(st.sampled_from(STATES), min_size=1, max_size=3),
    studies=st.lists(st.sampled_from(STATES), min_size=3, max_size=3),
)
def test_whatever_the_states_nothing_needed_goes_and_a_second_round_finds_nothing(
    stages: list[str], studies: list[str]
) -> None:
    """Records, run files, predictions, metrics, needed data and every weight that something starts from survive."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(Path(folder))
        for number, (state, task_state) in enumerate(zip(stages, studies, strict=False)):
            made = tiny_run(seed=number)
            _bring(layout, made, state)
            _bring_study(layout, made, task_state)
        uses = read_uses(layout)
        before = {path for path in layout.root.rglob("*") if path.is_file()}
        collect(layout, garbage(layout))
        gone = {path for path in before if not path.exists()}
        kept = {path for path in before if not {"checkpoints", "data"} & set(path.relative_to(layout.root).parts)}
        assert {path.suffix for path in gone & kept} <= {".safetensors"}
        assert not gone & uses.paths
        assert not {path.stem for path in gone} & uses.weights
        for path in gone:
            assert not any(used in path.parents for used in uses.paths if used.is_relative_to(layout.root / "data"))
            if "checkpoints" in path.parts:
                _assert_not_needed(layout, path)
        assert garbage(layout) == []


def _bring(layout: Layout, made: PretrainingRun, state: str) -> None:
    for step in (0, 6, 20, 24):
        whole_checkpoint(layout, made, step)
    tokenize(layout, made.data_id)
    progress(layout, made, 3)
    if state != "absent":
        declare(layout, made)
    if state == "running":
        claim(layout, made.id)
    if state == "failed":
        fail(layout.pretraining(made.id) / "error.json", made.id, "no")
    if state == "done":
        finish_pretraining(layout, made)


def _bring_study(layout: Layout, made: PretrainingRun, state: str) -> None:
    study = study_of(made, points=3)
    encode(layout, study)
    record_trial(layout, study, 0)
    if state != "absent":
        declare(layout, study)
    if state == "running":
        claim(layout, study.trials(layout)[1].id)
    if state == "done":
        finish_study(layout, study, best=2)


def _assert_not_needed(layout: Layout, path: Path) -> None:
    run_id = path.relative_to(layout.root).parts[1]
    folder = layout.pretraining(run_id)
    if (folder / "run.json").exists():
        assert (folder / "done.json").exists() and path.parent.name == "step-00000020"
    else:
        assert folder not in read_uses(layout).paths


def test_the_command_is_dry_unless_told_to_delete(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    made = trained(layout)
    path = layout.pretraining(made.id) / "checkpoints" / "step-00000020"
    runs = ["--runs", str(layout.root)]
    assert run.main(["--gc", *runs]) == 0
    told = capsys.readouterr().out
    assert "step-00000020" in told and "1 could go" in told and "--gc --delete" in told and path.exists()
    assert run.main(["--gc", "--json", *runs]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["path"] == str(path.relative_to(layout.root)) and entry["bytes"] > 100 and not entry["removed"]
    assert run.main(["--gc", "--delete", "--json", *runs]) == 0
    assert json.loads(capsys.readouterr().out)[0]["removed"] and not path.exists()
    assert run.main(["--gc", "--delete", *runs]) == 0
    assert "0 removed" in capsys.readouterr().out


def test_the_command_refuses_what_makes_no_sense(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--gc", "--runs", str(layout.root / "nowhere")]) == 3
    with pytest.raises(SystemExit) as refused:
        run.main(["--delete", "--variant", "M7"])
    assert refused.value.code == 2
