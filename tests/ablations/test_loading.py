"""A loaded ladder is what it declares: every variant is proved, every type is checked."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ablations import ladder, loading, run, status
from ablations.ladders import Ladder
from ablations.loading import Settings, papers, proved
from ablations.names import variants_of_design
from ablations.scales import Rules
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


@pytest.mark.parametrize("flags", [["--list"], ["--variant", "all", "--cluster", "here"]])
def test_a_variant_that_hides_a_change_is_refused(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(HIDDEN, tmp_path, capsys, *flags)
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
    ("A = Variant('A', None, 'here', M0.recipe)", "variant A: title: Input should be a valid string"),
    ("A = Variant('A', 'a', 'here', M0.recipe, M0, 3)", "variant A: modifications: Input should be a valid tuple"),
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
    ("SCALES = {'paper': SMOKE}", "SCALES redefines 'paper', which every ladder has: give the scale another name"),
    ("SCALES = {'A': SMOKE}", "'A' cannot be the name of a scale"),
    ("SCALES = {'tiny': replace(SMOKE, documents=0)}", "SCALES['tiny']: documents is 0, and must be at least 1"),
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


# Types


ODD = ("3", "None", "''", "[]", "{3: 3}", "{'tiny': None}", "[None]", "object()")
ACCEPTED = {("TASKS", "[]")}


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_declaration_of_another_type_is_one_sentence(
    name: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = f"A = M0.derive('A', ROTARY)\n{name} = {value}"
    if (name, value) in ACCEPTED:
        assert load(content, tmp_path).last_kept.name in ("A", "M0")
        for command in (run.main, status.main):
            flags = ["--list"] if command is run.main else []
            path, runs = str(tmp_path / "mine.py"), str(tmp_path)
            assert command(["--ladder", path, "--runs", runs, *flags]) == EXIT_DONE
    else:
        assert name in refusal(content, tmp_path, capsys)


WRONG_IN_RULES = ("'x'", "-1", "None", "{1: 'x'}")


@pytest.mark.parametrize("value", WRONG_IN_RULES)
@pytest.mark.parametrize("name", [field.name for field in fields(Rules)])
def test_no_value_of_a_rule_ends_in_a_traceback(
    name: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands either accept the scale or say in a sentence why not."""
    path = tmp_path / "mine.py"
    path.write_text(
        f"{IMPORTS}A = M0.derive('A', ROTARY)\n"
        f"W = A.derive('W', Modification('odd sizes', 'here', model={{'layers': 13, 'width': 780}},"
        " stages=({'context': 500, 'tokens_per_step': 128_000, 'steps': 999_999},)))\n"
        f"SCALES = {{'tiny': replace(SMOKE, {name}={value})}}"
    )
    for flags in (["--list"], ["--variant", "A", "--stages", "pretrain", "--dry-run", "--cluster", "here"]):
        code = run.main(["--ladder", str(path), "--scale", "tiny", "--runs", str(tmp_path / "runs"), *flags])
        said = capsys.readouterr().err
        assert code == EXIT_DONE or (code == EXIT_REFUSED and re.fullmatch(r"run\.py: .*\n", said))
