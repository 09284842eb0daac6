"""A ladder of one's own does what the paper's does, and what is wrong with its file is said in a sentence."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from ablations import loading, prefetch, run, status
from ablations.ladder import M0
from ablations.loading import papers
from ablations.names import chosen_variants, names_of_design
from ablations.recipe_runs import pretraining_runs
from ablations.scaling import execution_at, scaled
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_REFUSED
from neobert.kinds.glue import GlueStudy
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from neobert.runs.worker import main as work
from sweeps import glue_grid, learning_rates, mteb_suite
from tests.ablations.fake_slurm import FakeSlurm
from tests.ablations.plans import SYNTHETIC, rows_of

OWN = '''
"""Three steps from M0."""
from dataclasses import replace
from ablations.ladder import M0, MASKING_20, ROTARY
from ablations.scales import SMOKE
from ablations.variant import Modification

SHAPE = {(12, 768): (2, 16)}
SCALES = {"tiny": replace(SMOKE, shapes={"trained": SHAPE, "published": SHAPE}, heads=2, contexts={512: 32},
                          tokens_per_step={131_072: 64}, steps={1_000_000: 4}, documents=60)}
A1 = M0.derive("A1", ROTARY)
A2 = A1.derive("A2", MASKING_20)
ARMS = [A2.derive(f"mask{rate}", Modification(f"Rate {rate}", source="here", masking={"rate": rate}), kept=False)
        for rate in (0.3, 0.4)]
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "steps.py"
    path.write_text(OWN)
    return path


def plan(file: Path, runs: Path, *flags: str) -> list[str]:
    return ["--ladder", str(file), "--runs", str(runs), "--scale", "tiny", "--stages", "pretrain", *flags]


def test_a_file_is_a_ladder_with_its_scales_and_modifications(file: Path) -> None:
    own = loading.load(str(file))
    assert list(own.steps) == ["M0", "A1", "A2", "mask0.3", "mask0.4"]
    assert (own.root.name, own.full_variant.name, own.last_kept.name) == ("M0", "A2", "A2") and own.root is M0
    assert own.known_scales[-1] == "tiny" and execution_at(own, "tiny").heldout_context == 32
    assert [each.name for each in chosen_variants(own, ["A1..mask0.3"])] == ["A1", "A2", "mask0.3"]
    assert [each.name for each in chosen_variants(own, ["A2@steps0.25"])] == ["A2@steps0.25"]
    assert list(own.modifications) == ["rope", "20-masking", "rate-0-3", "rate-0-4"]
    assert names_of_design(own, "leave-one-out") == ["A2", "A2-rope", "A2-20-masking"]
    assert [each.name for each in chosen_variants(own, ["M0+rate-0-3", "A1-rope"])] == ["M0+rate-0-3", "A1-rope"]
    own_run = pretraining_runs(scaled(own, M0.recipe, "smoke", "trained").pretraining, 0, SYNTHETIC)[0]
    assert "tiny" not in papers().known_scales and "M9-rope" in names_of_design(papers(), "leave-one-out")
    paper = pretraining_runs(scaled(papers(), M0.recipe, "smoke", "trained").pretraining, 0, SYNTHETIC)[0]
    assert own_run.id == paper.id, "what both ladders hold is trained once"


def test_a_variant_that_a_scale_cannot_hold_keeps_no_other_from_it(tmp_path: Path) -> None:
    """At smoke 3e-4 lies between two rows of the rates."""
    change = 'Modification("Rate", source="here", optimization={"peak_learning_rate": 3e-4})'
    derived = f'from ablations.variant import Modification\nA1 = M0.derive("A1", {change})\n'
    (tmp_path / "own.py").write_text(f"from ablations.ladder import M0\n{derived}")
    own = loading.load(str(tmp_path / "own.py"))
    with pytest.raises(ValueError, match="lies between the rows"):
        rows_of(tmp_path, "A1", ladder=own)
    (row,) = rows_of(tmp_path, "M0", ladder=own)
    assert row.labels(row.planned[0], SYNTHETIC)["variants"] == ["M0"]


def test_commands_list_and_plan_it(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(plan(file, tmp_path, "--list", "--json")) == EXIT_DONE
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == ["M0", "A1", "A2", "mask0.3", "mask0.4"]
    assert listed[3]["delta"] == {"pretraining.masking.rate": [0.2, 0.3]}
    assert run.main(plan(file, tmp_path, "--design", "add-one", "--dry-run", "--cluster", "here")) == EXIT_DONE
    assert "M0+rate-0-4" in capsys.readouterr().out
    common = ["--ladder", str(file), "--scale", "tiny", "--runs", str(tmp_path), "--dry-run", "--cluster", "here"]
    assert learning_rates.main(["--variant", "A1", *common]) == EXIT_DONE
    assert glue_grid.main(["--task", "cola", "--variant", "A1", "--grid", "extended", *common]) == EXIT_DONE
    assert mteb_suite.main(["--variant", "A1", "--zero-shot", *common]) == EXIT_DONE
    wanted = ["--variant", "all", "--ladder", str(file), "--scale", "tiny", "--data-dir", str(tmp_path)]
    assert prefetch.main([*wanted, "--check"]) == EXIT_MISSING
    assert f"--ladder {file}" in capsys.readouterr().out


def test_jobs_do_what_was_planned_whatever_becomes_of_the_file(
    file: Path, tmp_path: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run files hold whole recipes: the worker of a job reads no ladder, and the file lies beside the runs."""
    runs = tmp_path / "runs"
    assert run.main(plan(file, runs, "--variant", "mask0.3", "--cluster", "slurm")) == EXIT_DONE
    assert len(slurm.submitted()) == 2  # the corpus and the training
    file.write_text(OWN.replace("rate in (0.3,", "rate in (0.35,"))
    (folder,) = (runs / "pretraining").iterdir()
    assert work(["--runs", str(runs), f"corpus/{read_run_file(folder).run.data_id}/{folder.name}"]) == EXIT_DONE
    assert work(["--runs", str(runs), f"pretraining/{folder.name}"]) == EXIT_DONE
    record = json.loads((folder / "done.json").read_text())
    assert record["config"]["recipe"]["masking"]["rate"] == 0.3
    assert record["labels"]["variants"] == ["mask0.3"] and record["labels"]["ladder"] == "steps.py"
    kept = Layout(runs).ladder("steps.py", record["labels"]["ladder_sha256"][:12])
    assert kept.read_text() == OWN
    capsys.readouterr()
    assert run.main(plan(file, runs, "--variant", "mask0.35", "--dry-run", "--cluster", "here")) == EXIT_DONE
    assert "1 missing" in capsys.readouterr().out, "an edit is a new run"
    assert status.main(["--ladder", str(kept), "--runs", str(runs), "--variant", "mask0.3"]) == EXIT_DONE
    assert "mask0.3" in capsys.readouterr().out
    assert glue_grid.main(["--task", "cola", "--runs", str(runs)]) == EXIT_REFUSED
    assert "is of the ladder steps.py: name that with --ladder" in capsys.readouterr().err


def test_the_file_of_the_page_for_programs_is_a_ladder(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "automation.md"
    (block,) = re.findall(r"^   ```python\n(.*?)^   ```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.py").write_text(textwrap.dedent(block))
    assert loading.load(str(tmp_path / "mine.py")).last_kept.delta() == {
        "pretraining.model.feedforward_width": (3072, 4608)
    }


def test_a_task_of_glue_may_start_from_another_one_or_from_none(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from ablations.ladder import M0\nfrom neobert.glue.tasks import TASKS as GLUE\n"
        "TASKS = ['mnli', 'stsb', GLUE['qnli'], GLUE['rte'].model_copy(update={'starts_from': 'qnli'})]\n"
    )
    (row,) = rows_of(tmp_path, "M0", stages=["glue"], ladder=loading.load(str(tmp_path / "own.py")))
    starts = {study.task: study.starts_from.task for study in GlueStudy.among(row.runs)}
    assert starts == {"mnli": None, "stsb": "mnli", "qnli": None, "rte": "qnli"}


@pytest.mark.parametrize(
    ("given", "said"), [("nowhere.py", "No such file or directory"), (".", "Is a directory"), ("\0", "null byte")]
)
def test_a_ladder_that_is_not_there_is_said(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    for main in (run.main, lambda words: status.main(words[:2])):
        assert main(["--ladder", given, "--list"]) == EXIT_MISSING
        assert re.fullmatch(rf"\w+\.py: --ladder {re.escape(given)}: .*{said}.*\n", capsys.readouterr().err)


def test_the_default_scale_is_the_files_first_or_as_written(file: Path, tmp_path: Path) -> None:
    plain_file, several = tmp_path / "plain.py", tmp_path / "several.py"
    plain_file.write_text("from ablations.ladder import M0, M1\n")
    several.write_text(f"{OWN}\nSCALES['other'] = SMOKE\n")
    scales = [loading.load(str(each)).scale for each in (file, plain_file, several)]
    assert scales == ["tiny", "as-written", "tiny"] and papers().scale == "smoke"
