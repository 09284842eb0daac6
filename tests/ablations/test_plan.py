"""The plan: equal recipes share runs, ids hold what decides a result and nothing else, states tell the truth."""

from pathlib import Path
from typing import Any

from ablations.loading import papers
from ablations.names import chosen_variants
from ablations.plan import plan
from neobert.identity import leaves
from neobert.kinds.glue import GlueStudy
from neobert.kinds.mteb import EmbeddingEvaluation, EmbeddingRun
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, write_run_file
from neobert.runs.work import Work
from tests.ablations.plans import EXECUTION, SOURCE, SYNTHETIC, rows_of, with_leaf


def test_grids_share_the_trials_that_start_from_pretraining(tmp_path: Path) -> None:
    m9, m10 = rows_of(tmp_path, "M9", "M10")
    last = m9.stages[1].id
    for task, shared in (("cola", True), ("mnli", True), ("rte", False)):
        limited = next(study for study in GlueStudy.among(m9.runs) if study.task == task)
        extended = next(study for study in GlueStudy.among(m10.runs) if study.task == task and study.weights == last)
        assert set(limited.points) < set(extended.points)
        same = {limited.trial_id(point) for point in limited.points} <= {
            extended.trial_id(point) for point in extended.points
        }
        assert same is shared, task


def test_without_mnli_training_data_transfer_falls_back_with_its_reason(tmp_path: Path) -> None:
    class WithoutMNLI:
        """The synthetic source less one training split."""

        def __getattr__(self, name: str) -> Any:
            return getattr(SYNTHETIC, name)

        def tasks(self) -> dict[str, str | None]:
            return {**SYNTHETIC.tasks(), "mnli": "mnli has no train split here"}

    (row,) = plan(papers(), chosen_variants(papers(), ["M2"]), (0,), "smoke", WithoutMNLI(), Layout(tmp_path))  # type: ignore[arg-type]
    assert row.skipped == {"mnli": "mnli has no train split here"}
    rte = next(study for study in GlueStudy.among(row.runs) if study.task == "rte")
    assert (rte.starts_from.kind, rte.starts_from.reason) == ("pretraining", "mnli has no train split here")
    (usual,) = rows_of(tmp_path, "M2")
    assert rte.id != next(study for study in GlueStudy.among(usual.runs) if study.task == "rte").id


def test_every_leaf_of_a_specification_decides_the_name(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "M2", stages=["glue", "mteb", "readouts"])
    works: dict[str, Work | EmbeddingRun] = {run.kind: run for run in row.runs}
    works["a task of mteb"] = EmbeddingEvaluation.among(row.runs)[0].runs()[0]
    least = {"pretraining": 20, "glue": 20, "contrastive": 20, "readouts": 7, "a task of mteb": 10}
    for kind, count in least.items():
        run, changed = works[kind], 0
        for path, leaf in leaves(run).items():
            if leaf is None or isinstance(leaf, bool):
                continue
            try:
                other = leaf + "x" if isinstance(leaf, str) else leaf * 2 + 1
                changed_run = type(run).model_validate(with_leaf(run.model_dump(mode="json"), path, other))
            except ValueError:
                continue  # no such word, or an impossible number
            assert changed_run.id != run.id, path
            changed += 1
        assert changed >= count, kind


def test_labels_execution_and_source_folder_are_not_in_the_name(tmp_path: Path) -> None:
    """The exclusion list: what a run is called, where its bytes lie and how it is executed."""
    run = rows_of(tmp_path, "M2")[0].stages[0]
    folders = set()
    for number, name in enumerate(("synthetic", "/elsewhere")):
        execution = EXECUTION.model_copy(update={"micro_batch_tokens": 512 + number, "threads": number + 1})
        source = SourceSpecification(name=name, synthetic_documents=100 + number)
        folders.add(write_run_file(Layout(tmp_path), run, source, execution, {"variants": [str(number)]}))
    assert len(folders) == 1


def test_what_is_no_record_does_not_make_a_run_done(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "M2")
    assert row.planned[0].state == "missing"
    write_run_file(Layout(tmp_path), row.stages[0], SOURCE, EXECUTION, {})
    (row.planned[0].folder / "done.json").write_text("{}")
    assert rows_of(tmp_path, "M2")[0].planned[0].state == "waiting"
