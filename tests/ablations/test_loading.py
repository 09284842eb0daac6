"""A loaded ladder is what it declares: every variant is proved, every type is checked."""

from pathlib import Path

import pytest

from ablations import ladder, loading, run, status
from ablations.ladders import Ladder
from ablations.loading import Settings, papers, proved
from ablations.names import variants_of_design
from neobert.errors import EXIT_DONE, EXIT_REFUSED

IMPORTS = """
from dataclasses import replace
from ablations import ladder
from ablations.ladder import M0, M1, MASKING_20, ROTARY, SWIGLU, WEB
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant
"""


def refusal(content: str, folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The sentence with which run.py refuses a ladder file."""
    path = folder / "mine.py"
    path.write_text(IMPORTS + content)
    assert run.main(["--ladder", str(path), "--runs", str(folder / "runs"), *(flags or ["--list"])]) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert said.startswith(f"run.py: --ladder {path}") and said.count("\n") == 1, said
    assert not (folder / "runs").exists()
    return said


def load(content: str, folder: Path) -> Ladder:
    path = folder / "mine.py"
    path.write_text(IMPORTS + content)
    return loading.load(str(path))


def test_the_papers_ladder_passes_all_checks() -> None:
    assert proved(papers()) is papers()


HIDDEN = "A = Variant('A', 'a', 'here', M1.recipe, M0, (SWIGLU,))"


def test_a_variant_that_hides_a_change_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(HIDDEN, tmp_path, capsys, "--variant", "all", "--cluster", "here")
    assert "A differs from its parent by more than it declares" in said
    assert "model.norm: layer_norm → rms_norm" in said and "model.positions: learned → rotary" in said
    assert "feedforward" not in said


WRONG_VARIANTS = (
    ("A = Variant('A', 'a', 'here', M0.recipe, M0, (SWIGLU,))", "'SwiGLU' declares a change but changes nothing"),
    (
        "B = Variant('B', 'b', 'here', ladder.M9.recipe)\n"
        "one = B.recipe.pretraining.model_copy(update={'stages': B.recipe.pretraining.stages[:1]})\n"
        "C = MASKING_20.apply(B.recipe).model_copy(update={'pretraining': one})\n"
        "A = Variant('A', 'a', 'here', C, B)",
        "A does not have what it declares and its parent has: pretraining.stages.1.context",
    ),
    (
        "A = Variant('A', 'a', 'here', M1.recipe, None, (SWIGLU,))",
        "A declares modifications of a parent, and it has no",
    ),
    ("A = M0.derive('A', ROTARY)\nobject.__setattr__(A, 'recipe', M1.recipe)", "more than it declares"),
    ("A = Variant(3, 'a', 'here', M0.recipe)", "3 cannot be the name of a variant"),
)


WRONG_FILES = (
    ("del M0, M1", "declares no variants"),
    ("A1 = (", "line 7: '(' was never closed"),
    ("raise SystemExit(0)", "line 7: SystemExit: 0"),
    ("def arm():\n    1 / 0\n\narm()", "line 10 (in line 8): ZeroDivisionError: division by zero"),
    ("A = M0.derive('A', ROTARY).derive('B', ROTARY)", "line 7: B: modification 'RoPE' declares"),
    ("A = M0.derive('M0', ROTARY)", "declares two variants M0"),
    ("A = M0.derive('A', ROTARY)\ndel M0, M1", "A continues M0, which the file does not hold"),
    ("A = M0.derive('A..B', ROTARY)", "'A..B' cannot be the name of a variant"),
    ("SCALES = {'paper': SMOKE}", "every ladder has the scale 'paper': give yours another name"),
    ("SCALES = {'A': SMOKE}", "'A' cannot be the name of a scale"),
    ("SCALES = {'tiny': replace(SMOKE, documents=0)}", "line 7: documents is 0, and must be at least 1"),
    (
        "CORPORA = {'novels': ('here', 3)}",
        "CORPORA: Input should be a valid string, got {'novels': ('here', 3)}",
    ),
    (
        "CORPORA = {'novels': 'here'}\nA = M0.derive('A', Modification('A', 'here', data={'corpus': 'novel'}))",
        "A reads corpus 'novel': did you mean 'novels'",
    ),
    (
        "replace(SMOKE, peak_learning_rates={1e-4: 2e-3, 6e-4: 1e-3})",
        "peak_learning_rates maps 0.0001 to 0.002 and 0.0006 to 0.001: their order must stay",
    ),
    ("replace(SMOKE, contexts={0: 64})", "contexts maps 0 to 64: its rows are numbers above 0"),
    ("SCALES = {'tiny': replace(SMOKE, steps=None)}", "'NoneType' object has no attribute 'items'"),
    ("SCALES = {'tiny': replace(SMOKE, heads='x')}", "SCALES['tiny']: heads: Input should be a valid integer"),
    ("END = M0", "END is no setting any more: take it out"),
)


@pytest.mark.parametrize(("content", "said"), [*WRONG_VARIANTS, *WRONG_FILES])
def test_what_is_wrong_in_a_file_is_one_sentence(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(content, tmp_path, capsys)


def test_a_variant_made_directly_is_accepted_if_it_declares_all_that_it_changes(tmp_path: Path) -> None:
    own = load("A = Variant('A', 'a', 'here', M1.recipe, M0, (ROTARY, SWIGLU, ladder.RMS_NORM))", tmp_path)
    assert own.variants["A"].delta() == ladder.M1.delta()


TWICE = """
WIDE = Modification("4,096 wide", "here", model={"feedforward_width": 4096})
WIDER = Modification("4,608 wide", "here", model={"feedforward_width": 4608})
A = M0.derive("A", WIDE)
B = A.derive("B", WIDER)
"""


def test_what_a_later_modification_overwrites_cannot_be_left_out(tmp_path: Path) -> None:
    variants, left_out = variants_of_design(load(TWICE, tmp_path), "leave-one-out", "paper", "trained")
    assert [variant.name for variant in variants] == ["B", "B-4-608-wide"]
    assert left_out == ["B-4-096-wide: without '4,096 wide' B has the same recipe"]


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_declaration_of_another_type_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ("3", "{3: 3}", "[None]"):
        assert name in refusal(f"A = M0.derive('A', ROTARY)\n{name} = {value}", tmp_path, capsys)


def test_a_ladder_without_tasks_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{IMPORTS}A = M0.derive('A', ROTARY)\nTASKS = []\n")
    for command, flags in ((run.main, ["--list"]), (status.main, [])):
        assert command(["--ladder", str(path), "--runs", str(tmp_path), *flags]) == EXIT_DONE


def test_rules_that_fit_no_recipe_are_refused_where_they_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    for rule, said in {
        "model={'headz': 2}": "model has no field 'headz': did you mean 'heads'",
        "warmup_fraction=-1": "give a scale of your own other rules",
        "heads=-1": "give a scale of your own other rules",
    }.items():
        path.write_text(f"{IMPORTS}A = M0.derive('A', ROTARY)\nSCALES = {{'tiny': replace(SMOKE, {rule})}}")
        assert run.main(["--ladder", str(path), "--runs", str(tmp_path / "runs"), "--list"]) == EXIT_REFUSED
        assert said in capsys.readouterr().err
