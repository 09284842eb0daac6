"""BabyLM's evaluation: its backend `mlm` loads an export without this package, and its predictions are ours."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from ablations import run
from neobert.data.blimp import pairs_in
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_REFUSED
from neobert.evaluation.readouts import Subject, pair_losses, read_pairs
from neobert.export.__main__ import main
from neobert.export.checkpoint import open_checkpoint
from neobert.processes import StopRequest
from neobert.recipe import Initialization
from tests.support.exported_runs import export_start, m0_folder, write_checkpoints
from tests.support.small_corpora import WORDS
from tests.support.tiny_runs import tiny_model, tiny_run, tiny_stage
from tests.support.tree_copy import REPOSITORY

SITE_PACKAGES = Path(torch.__file__).parents[1]
WIDE = Initialization(distribution="normal", weight_scale=0.7, embedding_scale=1.0, position_scale=0.7)
"""First weights with which sentences differ by nats rather than by rounding."""
FORMS = {
    "NeoBERT form": tiny_model(initialization=WIDE),
    "M0 form": tiny_model(initialization=WIDE, positions="learned", feedforward="gelu", norm="layer_norm"),
}

PIPELINE = """
import importlib.util, json, sys
site, scratch, model, *sentences = sys.argv[1:]
sys.path.append(site)
assert importlib.util.find_spec("neobert") is None
import torch
from transformers import AutoModelForMaskedLM, AutoProcessor

processor = AutoProcessor.from_pretrained(model, padding_side="right", revision=None, trust_remote_code=True)
tokenizer = getattr(processor, "tokenizer", processor)
network = AutoModelForMaskedLM.from_pretrained(model, revision=None, trust_remote_code=True).eval()
scores = []
for sentence in sentences:
    encoded = processor(text=sentence, return_offsets_mapping=True)
    token_ids = torch.tensor(encoded["input_ids"])
    scored = [place for place, (_, end) in enumerate(encoded["offset_mapping"]) if end > 0]
    masked = token_ids.repeat(len(scored), 1)
    masked[torch.arange(len(scored)), scored] = tokenizer.mask_token_id
    padding = torch.full((len(scored), 3), tokenizer.pad_token_id)  # a batch of the pipeline has longer sentences
    attention = torch.tensor(encoded["attention_mask"] + 3 * [0]).repeat(len(scored), 1)
    with torch.no_grad():
        logits = network(input_ids=torch.cat([masked, padding], dim=1), attention_mask=attention)["logits"]
    chosen = logits[torch.arange(len(scored)), scored].log_softmax(dim=-1)
    scores.append(chosen.gather(1, token_ids[scored].unsqueeze(1)).sum().item())
print(json.dumps(scores))
"""
"""What its sentence_zero_shot does with a sentence, whose completion is the whole: targets are the tokens whose offsets
end behind 0, each is masked alone, and the log p of all are added."""


def pairs_folder(folder: Path) -> Path:
    """Two files as in blimp_filtered, the second with two UIDs, and one as in supplement_filtered, without a field."""
    folder.mkdir(parents=True)
    draw = torch.Generator().manual_seed(1)
    for name, uids in (("transitive", ["transitive"]), ("npi", ["npi_1", "npi_2"]), ("hypernym", [])):
        lines = []
        for number in range(6):
            good = [WORDS[index] for index in torch.randperm(len(WORDS), generator=draw)[:6].tolist()]
            pair = {"sentence_good": " ".join(good).capitalize() + ".", "sentence_bad": " ".join(good[::-1]) + "."}
            known = {"field": "syntax", "UID": uids[number % len(uids)], "linguistics_term": "x"} if uids else {}
            lines.append(json.dumps(pair | known) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines))
    (folder / "readme.txt").write_text("not read")
    return folder


def scored_by_the_pipeline(model: Path, sentences: list[str], scratch: Path) -> list[float]:
    command = [sys.executable, "-I", "-S", "-W", "error::UserWarning", "-c", PIPELINE]
    environment = {"HF_MODULES_CACHE": str(scratch / "modules"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [*command, str(SITE_PACKAGES), str(scratch), str(model), *sentences],
        env=environment,
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return list(json.loads(process.stdout))


@pytest.mark.parametrize("form", FORMS)
def test_the_pipelines_scores_of_an_export_are_our_predictions(tmp_path: Path, form: str, capsys) -> None:
    trained = write_checkpoints(tmp_path / "runs", tiny_run(model=FORMS[form]), 0)
    folder = pairs_folder(tmp_path / "blimp_fast")
    model = export_start(trained, tmp_path / "model", "hf", "--remote-code")
    capsys.readouterr()
    flags = ["--to", "babylm", "--step", "0", "--pairs", str(folder), "--out", str(tmp_path / "results" / "model")]
    assert main([str(trained), *flags]) == EXIT_DONE
    said = json.loads(capsys.readouterr().out)

    expected: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    files = sorted(folder.glob("*.jsonl"))
    pairs = [json.loads(line) | {"file": path.stem} for path in files for line in path.read_text().splitlines()]
    sentences = [pair[f"sentence_{side}"] for pair in pairs for side in ("good", "bad")]
    scores = scored_by_the_pipeline(model, sentences, tmp_path)
    by_pair = list(zip(scores[::2], scores[1::2], strict=True))
    assert min(abs(good - bad) for good, bad in by_pair) > 1e-3, "no near ties, which rounding could decide"
    for pair, (good, bad) in zip(pairs, by_pair, strict=True):
        uid = pair["UID"] if "field" in pair else pair["file"]
        taken = pair["sentence_good"] if good >= bad else pair["sentence_bad"]
        expected[uid].append({"id": f"{uid}_{len(expected[uid])}", "pred": taken})
    path = tmp_path / "results" / "model" / "main" / "zero_shot" / "mlm" / "blimp" / "blimp_fast" / "predictions.json"
    assert json.loads(path.read_text()) == {uid: {"predictions": own} for uid, own in expected.items()}
    assert expected.keys() == {"transitive", "npi_1", "npi_2", "hypernym"}

    checkpoint = open_checkpoint(trained, 0)
    subject = Subject(checkpoint.network, checkpoint.tokenizer, 32, "fp32", torch.device("cpu"))
    unknown = checkpoint.tokenizer.ids.unk
    assert all(unknown not in token_ids for token_ids in subject.tokenizer.encode(sentences))
    losses = pair_losses(subject, pairs_in(folder), StopRequest())
    np.testing.assert_allclose(-losses, by_pair, rtol=1e-5)
    own = read_pairs(subject, pairs_in(folder), StopRequest())
    assert said["accuracy"]["blimp_fast"] == pytest.approx(fmean(own.groups[uid] for uid in expected))


def test_what_cannot_be_predicted_is_one_sentence(tmp_path: Path, capsys) -> None:
    masked, folder = m0_folder(tmp_path / "runs"), pairs_folder(tmp_path / "pairs")
    causal = write_checkpoints(tmp_path / "runs", tiny_run(stages=(tiny_stage(objective="causal", decay_steps=0),)), 0)
    other = pairs_folder(tmp_path / "other" / "pairs")
    (tmp_path / "empty").mkdir()
    out = ["--step", "0", "--out", str(tmp_path / "out")]
    for where, flags, code, said in (
        (masked, ["--to", "babylm"], EXIT_REFUSED, "goes with --pairs"),
        (masked, ["--to", "hf", "--pairs", str(folder)], EXIT_REFUSED, "goes with --pairs"),
        (masked, ["--to", "babylm", "--pairs", str(folder), str(other)], EXIT_REFUSED, "two folders of one name"),
        (masked, ["--to", "babylm", "--pairs", str(tmp_path / "empty")], EXIT_MISSING, "holds no *.jsonl"),
        (causal, ["--to", "babylm", "--pairs", str(folder)], EXIT_REFUSED, "ends causal"),
        (masked, ["--to", "babylm", "--remote-code", "--pairs", str(folder)], EXIT_REFUSED, "babylm needs no code"),
    ):
        assert main([str(where), *flags, *out]) == code
        assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_babylms_schedule_from_the_ladder_to_the_predictions(tmp_path: Path, monkeypatch, capsys) -> None:
    """The commands of docs/own-ladder.md, with hundreds of words in the place of millions."""
    monkeypatch.chdir(tmp_path)
    pairs_folder(tmp_path / "blimp_fast")
    flags = ["--variant", "mask15", "--scale", "tiny", "--stages", "pretrain", "--checkpoint-words", "500"]
    assert run.main(["--ladder", str(REPOSITORY / "examples" / "babylm_masking.py"), *flags]) == EXIT_DONE
    (folder,) = tmp_path.glob("runs/pretraining/*")
    kept = json.loads((folder / "done.json").read_text())["checkpoints_by_words"]
    assert {"chck_500", "chck_1000"} <= kept.keys()
    capsys.readouterr()
    for target, more in (("hf", ["--no-remote-code"]), ("babylm", ["--pairs", "blimp_fast"])):
        assert main([str(folder), "--to", target, "--by-words", "--out", target, *more]) == EXIT_DONE
        said = json.loads(capsys.readouterr().out)["checkpoints"]
        assert {name: done["step"] for name, done in said.items() if name != "main"} == kept
        assert {path.name for path in (tmp_path / target).iterdir()} == {*kept, "main"}
    for name in (*kept, "main"):
        path = tmp_path / "babylm" / name / "zero_shot" / "mlm" / "blimp" / "blimp_fast" / "predictions.json"
        assert sum(len(each["predictions"]) for each in json.loads(path.read_text()).values()) == 18
        assert (tmp_path / "hf" / name / "config.json").exists()
