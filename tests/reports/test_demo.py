"""What `make demo` shows: the recorded numbers in the README, and that another machine gets them within a tolerance."""

import json
import re
from pathlib import Path

import pytest

from neobert.errors import EXIT_DONE, EXIT_MISSING
from neobert.files import append_line
from neobert.runs.records import publish_record
from reports import demo
from reports.demo import DemoRun
from tests.support.tree_copy import REPOSITORY, fresh_clone, shell

RECORDED = [
    DemoRun(**json.loads(line))
    for line in (REPOSITORY / "docs" / "demo.jsonl").read_text(encoding="utf-8").splitlines()
]
TOLERANCES = {"learned": 0.15, "rope": 0.5}
"""In nats. Sums are rounded in another order on other processors, and RoPE then leaves the plateau some steps sooner or
later."""


def write_record(runs: Path, run: DemoRun, ladder: str = "demo.py") -> None:
    """A record with the fields that the demo reads."""
    folder = runs / "pretraining" / f"{run.variant}{run.seed}{ladder}"
    for step in (1, 10, 1000):
        line = {"step": step, "loss": run.heldout_loss + 1 / step, "real_tokens": step, "seconds": 1.0}
        append_line(folder / "metrics.jsonl", line)
    record = {
        "kind": "pretraining",
        "id": folder.name,
        "state": "done",
        "seed": run.seed,
        "labels": {"ladder": ladder, "variants": [run.variant]},
        "scores": {
            "heldout_loss": {"wikibook": run.heldout_loss},
            "heldout": [{"frequency_loss": run.frequency_loss}],
        },
    }
    publish_record(folder / "done.json", record)


def test_the_readme_has_the_recorded_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in RECORDED:
        write_record(tmp_path / "runs", run)
    write_record(tmp_path / "runs", DemoRun("rope", 0, 9.0, 9.0), ladder="another.py")
    assert demo.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]) == EXIT_DONE
    *_, sentence, path = capsys.readouterr().out.strip().splitlines()
    assert Path(path).read_bytes().startswith(b"\x89PNG")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert sentence in readme
    for run in RECORDED:
        assert re.search(
            rf"^{run.variant} +{run.seed} +{run.heldout_loss:.2f} +{run.frequency_loss:.2f}$", readme, re.M
        )
    for arm, tolerance in TOLERANCES.items():
        assert re.search(rf"{tolerance} \(`{arm}`\)", readme)


def test_arms_are_compared_if_both_have_trained() -> None:
    runs = [DemoRun("learned", 0, 3.0, 3.63), DemoRun("rope", 0, 2.5, 3.63), DemoRun("rope", 1, 2.0, 3.63)]
    assert demo.sentence(runs, 10).endswith("2.25 with RoPE; the difference at paired seeds is -0.50.")
    untrained = [DemoRun("learned", 0, 3.54, 3.63), *runs[1:]]
    assert demo.sentence(untrained, 10).endswith("learned has not trained yet, so the two are not compared.")


def test_an_arm_without_runs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(tmp_path, RECORDED[0])
    assert demo.main(["--runs", str(tmp_path)]) == EXIT_MISSING
    assert "has no finished run of rope: `make demo` trains it" in capsys.readouterr().err


@pytest.mark.slow
def test_this_machine_gets_the_recorded_numbers(tmp_path: Path) -> None:
    tree = fresh_clone(tmp_path / "clone")
    answer = shell(tree, "make --old-file=.venv/demo demo")
    assert answer.returncode == 0, answer.stderr
    answer = shell(tree, ".venv/bin/python -m reports.demo --json")
    found = {(run["variant"], run["seed"]): run["heldout_loss"] for run in json.loads(answer.stdout)}
    for run in RECORDED:
        assert found[run.variant, run.seed] == pytest.approx(run.heldout_loss, abs=TOLERANCES[run.variant])
