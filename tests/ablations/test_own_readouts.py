"""Readouts that a ladder declares: minimal pairs and cloze items of files, and pass keys, through the real commands."""

import csv
import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import neobert
from ablations import run
from neobert.data.own_readouts import ClozeItems, MinimalPairs, OwnReadout, PassKeys
from neobert.data.preparation import open_specified, text_tokenizer
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_REFUSED
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from neobert.runs.worker import main as work
from reports import make_figures
from tests.support.tree_copy import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
CLOZE, COLUMNS = "ClozeItems(name='x', file='a.csv')", "text,word,distractor\n"
STAGES = ("--stages", "pretrain", "readouts", "--cluster", "here", "--workers", "1")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example and its files, after M0 and M1 were trained and measured."""
    folder = tmp_path_factory.mktemp("study")
    shutil.copy(EXAMPLES / "probes.py", folder)
    shutil.copytree(EXAMPLES / "probes", folder / "probes")
    assert run.main([*flags(folder), "--variant", "all", *STAGES]) == EXIT_DONE
    return folder


def flags(folder: Path) -> list[str]:
    return ["--ladder", str(folder / "probes.py"), "--runs", str(folder / "runs")]


def records(folder: Path, readout: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"runs/readouts/{readout}/*.json"))]


def log_probability(model: torch.nn.Module, token_ids: list[int], places: list[int], mask: int) -> float:
    """Of the tokens at `places`, all masked together: one plain forward pass."""
    asked = torch.tensor([token_ids])
    asked[0, places] = mask
    with torch.inference_mode():
        logits = model(asked).float().log_softmax(-1)
    return sum(float(logits[0, place, token_ids[place]]) for place in places)


def test_accuracies_are_those_of_plain_forward_passes(study: Path) -> None:
    layout = Layout(study / "runs")
    measured = records(study, "agreement")
    assert len(measured) == 2
    for record in measured:
        folder = layout.pretraining(record["inputs"]["pretraining"])
        run_file = read_run_file(folder)
        tokenizer = text_tokenizer(layout, run_file.specification(PretrainingRun), open_specified(run_file.source))
        model, ids = neobert.load(folder).eval(), tokenizer.ids
        (score,) = record["scores"].values()
        right: dict[str, list[float]] = {}
        for line in (study / "probes" / "agreement.jsonl").read_text().splitlines():
            pair = json.loads(line)
            sums = []
            for sentence in (pair["good"], pair["bad"]):
                (own,) = tokenizer.encode([sentence])
                framed = [ids.cls, *own, ids.sep]
                places = [place for place in range(1, len(framed) - 1) if framed[place] not in ids.never_predicted]
                sums.append(sum(log_probability(model, framed, [place], ids.mask) for place in places))
            right.setdefault(pair["kind"], []).append(0.5 if sums[0] == sums[1] else float(sums[0] > sums[1]))
        assert score["groups"] == {kind: fmean(own) for kind, own in right.items()}
        assert score["value"] == fmean(right["adjacent"] + right["across a noun of the other number"])


def test_a_model_that_knows_the_words_fills_the_blanks(study: Path) -> None:
    for record in records(study, "places"):
        assert record["scores"]["places"]["units"] == 6 and record["config"]["readout"] == "places"
    for record in records(study, "pass-keys"):
        score = record["scores"]["pass-keys"]
        assert score["groups"].keys() == {"24 words", "48 words", "96 words"} and score["units"] == 150
        assert score["value"] == pytest.approx(fmean(score["groups"].values()))


def test_the_table_and_the_page_show_them(study: Path, tmp_path: Path) -> None:
    assert make_figures.main([*flags(study), "--out", str(tmp_path), "--formats", "csv", "md"]) == EXIT_DONE
    (table,) = tmp_path.glob("*/own-readouts.csv")
    with table.open(newline="") as file:
        rows = {(row["readout"], row["group"], row["variant"]): row for row in csv.DictReader(file)}
    for record in records(study, "agreement"):
        (arm,) = record["labels"]["variants"]
        assert float(rows["agreement", "all", arm]["ties"]) == record["scores"]["agreement"]["ties"]
        for group, value in {
            "all": record["scores"]["agreement"]["value"],
            **record["scores"]["agreement"]["groups"],
        }.items():
            assert float(rows["agreement", group, arm]["accuracy"]) == pytest.approx(100 * value)
    assert "Own readouts" in (tmp_path / "index.html").read_text()


def test_they_change_no_id_of_other_readouts_and_another_file_is_another_readout(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(study, tmp_path, dirs_exist_ok=True)

    def planned(**readouts: str) -> set[str]:
        for name, content in readouts.items():
            (tmp_path / "probes" / name.replace("_", ".")).write_text(content)
        capsys.readouterr()
        assert run.main([*flags(tmp_path), "--variant", "M0", *STAGES[:3], "--dry-run", "--json"]) == EXIT_DONE
        (row,) = json.loads(capsys.readouterr().out)
        return {each["id"] for each in row["stages"] if each["kind"].startswith("readouts")}

    before = planned()
    places = (tmp_path / "probes" / "places.csv").read_text()
    assert planned(places_csv=places.replace('"', "")) == before, "the items count, not how the file quotes them"
    changed = planned(places_csv=places.replace("kitchen", "cellar"))
    assert len(before) == len(changed) == 4 and len(before & changed) == 3


def test_a_worker_refuses_a_file_that_changed_and_needs_no_ladder(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(study / "runs", tmp_path / "runs")
    before = records(study, "places")[0]
    evaluation = f"readouts/evaluations/{before['inputs']['evaluation']}"
    (tmp_path / "runs" / "readouts" / "places" / f"{before['id']}.json").unlink()
    file = study / "probes" / "places.csv"
    content = file.read_text()
    file.write_text(content.replace("kitchen", "cellar"))
    try:
        assert work(["--runs", str(tmp_path / "runs"), evaluation]) != EXIT_DONE
        assert "the readout places changed since this was planned" in " ".join(capsys.readouterr().err.split())
    finally:
        file.write_text(content)
    assert work(["--runs", str(tmp_path / "runs"), evaluation]) == EXIT_DONE
    (again,) = [each for each in records(tmp_path, "places") if each["id"] == before["id"]]
    assert again["scores"] == before["scores"]


@pytest.mark.parametrize(
    ("readout", "file", "code", "said"),
    [
        ("MinimalPairs(name='x', file='no.csv')", "", EXIT_MISSING, "the readout x has no file"),
        ("MinimalPairs(name='X y', file='a.csv')", "", EXIT_REFUSED, "'X y' cannot be the name of a readout"),
        ("MinimalPairs(name='cloze', file='a.csv')", "", EXIT_REFUSED, "'cloze', which is one of the package"),
        ("PassKeys(name='x', words=(9,)), PassKeys(name='x', words=(9,))", "", EXIT_REFUSED, "READOUTS has 'x' twice"),
        ("PassKeys(name='x', words=())", "", EXIT_REFUSED, "needs lengths in words and reads no file"),
        ("'agreement'", "", EXIT_REFUSED, "and must be a list of MinimalPairs, ClozeItems and PassKeys"),
        ("MinimalPairs(name='x', file='a.csv')", "sentence_good,bad\na,b\n", EXIT_REFUSED, "no column 'sentence_bad'"),
        (CLOZE, COLUMNS + "a b,c,d\n", EXIT_REFUSED, "has not one blank ___"),
        (CLOZE, COLUMNS + "a ____,b,c\n", EXIT_REFUSED, "has not one blank ___"),
        (CLOZE, COLUMNS + "a ___,c,c\n", EXIT_REFUSED, "two words are equal"),
        (CLOZE, COLUMNS + "a ___,,c\n", EXIT_REFUSED, "row 1: word is ''"),
        (CLOZE, COLUMNS, EXIT_REFUSED, "has no rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], readout: str, file: str, code: int, said: str
) -> None:
    ladder = (EXAMPLES / "probes.py").read_text()
    begin, end = ladder.index("READOUTS = ["), ladder.index("SHAPES")
    (tmp_path / "probes.py").write_text(f"{ladder[:begin]}READOUTS = [{readout}]\n{ladder[end:]}")
    (tmp_path / "a.csv").write_text(file)
    assert run.main([*flags(tmp_path), "--variant", "M0", *STAGES[:3], "--dry-run"]) == code
    assert said in " ".join(capsys.readouterr().err.split())


@given(words=st.lists(st.integers(1, 300), min_size=1, max_size=4), items=st.integers(1, 5))
def test_a_pass_key_stands_once_before_the_question(words: list[int], items: int) -> None:
    readout: OwnReadout = PassKeys(name="keys", words=tuple(words), items_per_length=items)
    assert readout.origin == PassKeys(name="other", words=tuple(words), items_per_length=items).origin
    choices = list(readout.items)
    assert len(choices) == len(words) * items
    for choice, length in zip(choices, (length for length in words for _ in range(items)), strict=True):
        key = choice.text[choice.begin : choice.end]
        assert [letter for letter in choice.text if letter.isdigit()] == [key, key] and choice.distractor != key
        assert choice.text.startswith("The pass key is") or choice.text.index("The pass key") > 0
        assert length <= len(choice.text.split()) <= max(length + 10, 20) and choice.group == f"{length} words"


def test_groups_and_formats_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("good\tbad\tuid\nA cat\tA cats\tnumber\n")
    (pair,) = MinimalPairs(
        name="pairs", file=str(tmp_path / "a.tsv"), columns=("good", "bad"), group_column="uid"
    ).items
    assert (pair.good, pair.bad, pair.paradigm) == ("A cat", "A cats", "number")
    (tmp_path / "b.jsonl").write_text('{"text": "7 ___ 9", "word": "8", "distractor": "5"}\n')
    (choice,) = ClozeItems(name="digits", file=str(tmp_path / "b.jsonl")).items
    assert choice.text[choice.begin : choice.end] == "8" and choice.distractor == "5" and choice.text == "7 8 9"


def test_they_can_be_asked_alone_and_have_the_same_ids(study: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(study, tmp_path, dirs_exist_ok=True)
    asked = [*flags(tmp_path), "--variant", "M0", "--dry-run", "--json", "--stages", "pretrain"]
    capsys.readouterr()
    found = []
    for stages in (["readouts"], ["own-readouts"], ["readouts", "own-readouts"]):
        assert run.main([*asked, *stages]) == EXIT_DONE
        (row,) = json.loads(capsys.readouterr().out)
        found.append([each["id"] for each in row["stages"]])
    every, own, both = found
    assert set(own) < set(every) and both == every and len(own) == 1 + 3, "pre-training and three readouts"
    assert run.main(["--variant", "M0", "--stages", "own-readouts", "--dry-run"]) == EXIT_REFUSED
    assert "the ladder declares no READOUTS" in " ".join(capsys.readouterr().err.split())
