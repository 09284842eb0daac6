"""Tasks of embeddings in plans: what the stage mteb brings, what names a result, and what commands refuse."""

import json
import re
import shutil
from pathlib import Path

import pytest

from ablations.launch.outcomes import means_of
from ablations.plan import VariantRow
from ablations.recipe_runs import EVERYTHING, EmbeddingChoice, EncoderWeights, embedding_runs
from ablations.run import main
from neobert.data.mteb_tasks import BENCHMARKS, CATEGORIES
from neobert.data.sources import DirectorySource
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_REFUSED, MissingData
from neobert.identity import canonical
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.mteb import EmbeddingEvaluation
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.index import read_index
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from neobert.runs.submissions import read_submissions
from sweeps import mteb_suite
from tests.ablations.fake_slurm import FakeSlurm
from tests.ablations.plans import EXECUTION, SOURCE, SYNTHETIC, rows_of
from tests.embeddings.embedding_worlds import card_of, write_published
from tests.embeddings.tiny_suite import SMOKE
from tests.runs.test_identities import small_folder
from tests.support.external_models import bert, save, seeded
from tests.support.tiny_runs import tiny_run

STAGES = ["--stages", "pretrain", "glue", "mteb"]


def planned(root: Path, name: str = "M8", choice: EmbeddingChoice = EVERYTHING) -> VariantRow:
    (row,) = rows_of(root, name, stages=["pretrain", "mteb"], choice=choice)
    return row


def evaluation_of(row: VariantRow) -> EmbeddingEvaluation:
    (evaluation,) = EmbeddingEvaluation.among(row.runs)
    return evaluation


def test_mteb_brings_contrastive_fine_tuning_of_the_last_stage(tmp_path: Path) -> None:
    row = planned(tmp_path, "M10")
    (tuned,), evaluation = ContrastiveRun.among(row.runs), evaluation_of(row)
    assert tuned.weights == row.stages[-1].id
    assert (evaluation.encoder.weights, evaluation.encoder.pretraining) == (tuned.id, tuned.weights)
    assert evaluation.encoder.context == tuned.max_tokens
    assert {task.category for task in evaluation.tasks} == set(CATEGORIES)
    assert all(set(task.prompts) == {"query"} for task in evaluation.tasks), "as its queries were in fine-tuning"


def test_zero_shot_measures_pretraining_alone_and_tells_it_nothing(tmp_path: Path) -> None:
    row = planned(tmp_path, choice=EmbeddingChoice(zero_shot=True))
    evaluation = evaluation_of(row)
    assert [type(unit.run) for unit in row.planned] == [PretrainingRun, EmbeddingEvaluation]
    assert evaluation.encoder.weights == evaluation.encoder.pretraining == row.planned[0].run.id
    assert evaluation.encoder.context == evaluation_of(planned(tmp_path)).encoder.context
    assert not any(task.prompts for task in evaluation.tasks)


def test_a_result_has_one_name_whatever_else_is_measured(tmp_path: Path) -> None:
    whole = evaluation_of(planned(tmp_path))
    alone = evaluation_of(planned(tmp_path, choice=EmbeddingChoice(tasks=[whole.tasks[2].name])))
    assert [run.id for run in alone.runs()] == [whole.runs()[2].id] and alone.id != whole.id


def test_precision_is_the_protocols_and_a_part_of_the_name(tmp_path: Path) -> None:
    """fp16 at the paper's scale, fp32 below, on every device; what was recorded before said nothing and was fp32."""
    small = evaluation_of(planned(tmp_path))
    assert small.encoder.precision == "fp32" and "precision" not in canonical(small)
    half = small.encoder.model_copy(update={"precision": "fp16"})
    other = small.model_copy(update={"encoder": half})
    assert not {run.id for run in small.runs()} & {run.id for run in other.runs()} and other.id != small.id
    assert half.revision != small.encoder.revision, "mteb's cache tells them apart"
    (row,) = rows_of(tmp_path, "M8", scale="paper", stages=["pretrain", "mteb"])
    assert evaluation_of(row).encoder.precision == "fp16"


def test_protocols_of_evaluation_are_variants_that_share_all_before_it(tmp_path: Path) -> None:
    names = ["M9", "M9@mteb-prompts", "M9@code-prompts"]
    folder = small_folder(tmp_path / "data")
    shutil.rmtree(folder / "mteb")
    (folder / "manifest.json").unlink()
    write_published(folder, "BIOSSES", {}, card_of(default__test="test.parquet"))
    rows = rows_of(tmp_path, *names, source=DirectorySource(folder), stages=["pretrain", "mteb"])
    paper, mteb, code = (evaluation_of(row) for row in rows)
    assert paper.weights == mteb.weights and len({each.encoder.pretraining for each in (paper, mteb, code)}) == 1
    told = [each.tasks[0].prompts for each in (paper, mteb, code)]
    text = "Retrieve semantically similar text"
    biomedical = f"{text} from the biomedical field."
    assert told == [{"query": biomedical}, {"query": f"{text}."}, {"query": biomedical, "document": biomedical}]
    assert len({each.id for each in (paper, mteb, code)}) == 3 and code.weights != paper.weights


def test_runs_are_labelled_with_the_variants_whose_protocol_they_have(tmp_path: Path) -> None:
    for name, of_tuning, of_suite in (
        ("M9", {"M9", "M10", "M9@mteb-prompts"}, {"M9", "M10"}),
        ("M9@contrastive-code", {"M9@contrastive-code"}, {"M9@contrastive-code"}),
    ):
        row = planned(tmp_path, name)
        row.write(Layout(tmp_path), SYNTHETIC, SOURCE, EXECUTION)
        *_, tuned, suite = (set(read_run_file(unit.folder).labels["variants"]) for unit in row.planned)
        known = {"M9", "M10", "M9@mteb-prompts", "M9@contrastive-code", "M9@code-prompts"}
        assert (tuned & known, suite & known) == (of_tuning, of_suite)


def test_slurm_gets_fine_tuning_and_behind_it_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is sent twice, and --cancel of the same plan takes all of it."""
    slurm, runs = FakeSlurm.make(tmp_path / "slurm").install(monkeypatch), tmp_path / "runs"
    command = ["--variant", "M8", "--stages", "pretrain", "mteb", "--cluster", "slurm", "--runs", str(runs)]
    assert main(command) == EXIT_DONE and main(command) == EXIT_DONE
    _, pretrain, tuned, suite = read_submissions(Layout(runs))
    assert [pretrain.kind, tuned.kind, suite.kind] == ["pretrain", "pretrain", "mteb"]
    assert (tuned.after, suite.after) == ((pretrain.job,), (tuned.job,))
    assert suite.elements == len(SYNTHETIC.embedding_tasks())
    pickled = list((runs / suite.logs).glob("*_submitted.pkl"))
    assert pickled and all(b"--patience" in path.read_bytes() for path in pickled)
    rows = {row.kind: row for row in read_index(Layout(runs)).rows()}
    assert (rows["mteb"].state, rows["mteb"].job) == ("submitted", suite.job)
    capsys.readouterr()
    assert main([*command, "--cancel"]) == EXIT_DONE
    assert set((slurm.state / "cancelled").read_text().split()) == set(slurm.submitted())


def test_missing_data_are_named_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the hub alone: every data set. In a folder: a file that is not there, or that there are no tasks or pairs."""
    runs, folder = tmp_path / "runs", tmp_path / "data"
    common = ["--variant", "M8", "--stages", "pretrain", "mteb", "--runs", str(runs)]
    assert main([*common, "--data", "hub", "--scale", "paper"]) == EXIT_MISSING
    said = capsys.readouterr().err
    assert "MTEB task STS12 (mteb/sts12-sts)" in said and "CQADupstackAndroidRetrieval" in said
    assert "--stages pretraining contrastive mteb" in said
    write_published(folder, "STS12", {}, card_of(default__test="test.parquet"))
    encoder, zero_shot_choice = EncoderWeights.of_stage(tiny_run()), EmbeddingChoice(zero_shot=True)
    with pytest.raises(MissingData, match=r"no data sets of pairs.*--zero-shot: without it"):
        embedding_runs(encoder, SMOKE, [0], DirectorySource(folder), ("mteb",), EVERYTHING)
    (tmp_path / "empty").mkdir()
    (folder / "mteb/STS12/README.md").unlink()
    with pytest.raises(MissingData, match=r"task STS12 lacks 1 of the 1 files"):
        embedding_runs(encoder, SMOKE, [0], DirectorySource(folder), ("mteb",), zero_shot_choice)
    with pytest.raises(MissingData, match="holds no tasks of embeddings"):
        embedding_runs(encoder, SMOKE, [0], DirectorySource(tmp_path / "empty"), ("mteb",), zero_shot_choice)
    assert not runs.exists()


def test_a_plan_without_mteb_installed_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ablations.launch.checks.find_spec", lambda name: None)
    command = ["--variant", "M8", "--stages", "pretrain", "mteb", "--runs", str(tmp_path / "runs")]
    assert main([*command, "--cluster", "here"]) == EXIT_MISSING
    assert "pip install -e '.[eval]'" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_a_benchmark_chooses_its_tasks_and_each_has_its_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a folder with tasks of both benchmarks and of one of them."""
    model, data = save(seeded(bert), tmp_path / "tiny-bert"), tmp_path / "data"
    for task in ("STS12", "STS16", "STS22.v2"):
        write_published(data, task, {}, card_of(default__test="test.parquet"))
    runs = ["--runs", str(tmp_path / "runs"), "--dry-run", "--json"]
    command = ["--model", str(model), "--zero-shot", "--data", str(data), *runs]

    def measured(*flags: str) -> list[str]:
        capsys.readouterr()
        assert mteb_suite.main([*command, *flags]) == EXIT_DONE
        (found,) = json.loads(capsys.readouterr().out)
        means = {(mean["suite"], mean["category"]): mean["expected"] for mean in found["means"]}
        assert (means["MTEB(eng, v1)", None], means["MTEB(eng, v2)", None]) == (56, 41)
        assert (means["MTEB(eng, v1)", "retrieval"], means["MTEB(eng, v2)", "retrieval"]) == (15, 10)
        return [task["task"] for task in found["tasks"]]

    assert measured() == ["STS12", "STS16"]
    assert measured("--benchmark", "MTEB(eng, v2)") == ["STS12", "STS22.v2"]
    assert measured("--benchmark", "MTEB(eng, v1)") == ["STS12", "STS16"]
    assert measured("--tasks", "STS22.v2", "STS16") == ["STS16", "STS22.v2"]
    assert mteb_suite.main([*command, "--benchmark", "MTEB(eng, 2)"]) == EXIT_REFUSED
    assert "there is no benchmark 'MTEB(eng, 2)': did you mean 'MTEB(eng, v2)'" in capsys.readouterr().err
    assert main(["--variant", "M8", *STAGES, *runs, "--benchmark", "MTEB(eng, v2)"]) == EXIT_MISSING
    assert "no task of MTEB(eng, v2) is in this data" in capsys.readouterr().err


def test_tasks_of_both_benchmarks_count_in_both_means() -> None:
    tasks = dict.fromkeys(task for own in BENCHMARKS.values() for task in own)
    entries = [
        {"task": task.name, "category": task.category, "suite": task.suite, "score": place / 100}
        for place, task in enumerate(tasks)
    ]
    scores = {entry["task"]: entry["score"] for entry in entries}
    means = {(mean["suite"], mean["category"]): mean for mean in means_of(entries, list(tasks))}
    for suite, own in BENCHMARKS.items():
        mean = means[suite, None]
        assert mean["tasks"] == mean["expected"] == len(own)
        assert mean["score"] == pytest.approx(sum(scores[task.name] for task in own) / len(own))


def test_an_external_model_is_planned_with_fine_tuning_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One whose vectors another library makes is refused; the plan writes nothing."""
    folder, runs = save(seeded(bert), tmp_path / "tiny-bert"), tmp_path / "runs"
    command = ["--model", str(folder), "--runs", str(runs), "--dry-run"]
    capsys.readouterr()
    assert mteb_suite.main([*command, "--json", "--seed", "0", "1"]) == EXIT_DONE
    told = capsys.readouterr()
    suites = json.loads(told.out)
    assert [{entry["seed"] for entry in suite["tasks"]} for suite in suites] == [{0}, {1}]
    assert {entry["state"] for suite in suites for entry in suite["tasks"]} == {"missing"}
    assert all(mean["score"] is None and mean["tasks"] == 0 for suite in suites for mean in suite["means"])
    assert mteb_suite.main([*command, "--zero-shot"]) == EXIT_DONE
    assert re.search(r"zero_shot.*missing", capsys.readouterr().out)
    (folder / "modules.json").write_text("[]")
    assert mteb_suite.main([*command, "--zero-shot"]) == EXIT_REFUSED
    assert "tiny-bert has a modules.json: measure it by mteb's own command" in capsys.readouterr().err
    assert not runs.exists()
