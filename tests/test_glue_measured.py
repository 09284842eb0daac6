"""A trial waits for the weights that it starts from, and for no others."""

from pathlib import Path

from status_worlds import checkpoint, finish_pretraining, study_of, write
from tiny_runs import tiny_run

from neobert.external import external_id
from neobert.glue.study import is_there
from neobert.runs.layout import Layout


def test_a_checkpoint_of_ours_is_there_once_its_run_is_done(tmp_path: Path) -> None:
    layout, run = Layout(tmp_path), tiny_run()
    study = study_of(run)
    checkpoint(layout, run, 24)
    finish_pretraining(layout, tiny_run(seed=1))
    assert not is_there(layout, study)
    finish_pretraining(layout, run)
    assert is_there(layout, study)


def test_a_model_from_elsewhere_is_there_once_it_was_found(tmp_path: Path) -> None:
    layout, name = Layout(tmp_path), external_id({"config.json": "a" * 64})
    study = study_of(tiny_run()).model_copy(update={"weights": name})
    write(layout.pretraining(name) / "done.json", {})
    assert not is_there(layout, study)
    write(layout.model(name), {})
    assert is_there(layout, study)
