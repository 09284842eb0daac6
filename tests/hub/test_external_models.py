"""External models: named by their bytes, read as transformers reads them, refused in one sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from neobert.data.synthetic import task_examples
from neobert.errors import DamagedFile, MissingData
from neobert.executors.external import read_model_file, resolve_model, write_model_file
from neobert.executors.glue import load_model
from neobert.executors.preparation import open_specified
from neobert.export.publishing import export
from neobert.glue.batching import PaddedLayout
from neobert.glue.encoding import encode_task
from neobert.glue.finetuning import FineTuner
from neobert.glue.tasks import TASKS
from neobert.hub.external import load_external
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.build import initialize_classifier
from neobert.model.heads import Classifier
from neobert.runs.layout import Layout
from sweeps import glue_grid
from tests.glue.glue_worlds import CPU, point, protocol, study_of
from tests.support import external_models as world
from tests.support.exported_runs import M0_FORM, write_checkpoints
from tests.support.tiny_runs import SOURCE, tiny_model, tiny_run

TOLERANCE = 1e-5
"""Between the flat engine and transformers' padded call, absolute, on logits and losses of order 1."""

LONG = ["sun " * 90, "a short one", "two of them"]


def rte(count: int) -> dict[str, dict[str, list[Any]]]:
    """The first examples of each split of the synthetic RTE."""
    return {
        split: {column: values[:count] for column, values in task_examples("rte", split).items()}
        for split in ("train", "validation")
    }


# Identity: which files it covers is tested in test_model_files.py


def test_a_worker_refuses_files_that_changed_or_went_since_they_were_named(tmp_path: Path) -> None:
    folder, layout = world.save(world.seeded(world.bert), tmp_path / "model"), Layout(tmp_path / "runs")
    named = resolve_model(layout, str(folder))
    write_model_file(layout, named)
    model = read_model_file(layout, named.id)
    assert model == named and model.require_unchanged() == folder
    older = {key: value for key, value in model.model_dump(mode="json").items() if key != "trusts_code"}
    layout.model(named.id).write_text(json.dumps({**older, "trust": {"pickle": False, "code": False}}))
    assert read_model_file(layout, named.id) == named, "as earlier versions wrote it"
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    with pytest.raises(DamagedFile, match="are not those that"):
        model.require_unchanged()
    shutil.rmtree(folder)
    with pytest.raises(MissingData, match="no longer in"):
        model.require_unchanged()


# What the encoder reads


@pytest.mark.parametrize("family", world.FAMILIES)
def test_batches_are_what_transformers_makes_of_the_texts(tmp_path: Path, family: str) -> None:
    """Hidden states of padded pairs, token types included, against the tokenizer's and model's own call."""
    folder = world.save(world.seeded(world.FAMILIES[family]), tmp_path / "model", token_types=family == "bert")
    encoder, tokenizer = load_external(folder, "model")
    encoder.eval()
    encoded = encode_task(TASKS["rte"], rte(12), tokenizer, world.CONTEXT)
    split = encoded.splits["train"]
    assert split.token_types.any() == (family == "bert")
    layout = PaddedLayout(encoder.pad_id, world.CONTEXT)
    batch = layout.collate(split, np.arange(12), CPU)
    texts = [list(rte(12)["train"][column]) for column in ("sentence1", "sentence2")]
    expected_inputs = tokenizer.tokenizer(
        *texts, truncation=True, max_length=world.CONTEXT, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = encoder.encoder(**expected_inputs).last_hidden_state
        found = encoder(batch.texts.token_ids, batch.texts.mask, batch.texts.token_types)[:, : expected.shape[1]]
    mask = expected_inputs["attention_mask"].bool()
    torch.testing.assert_close(found[mask], expected[mask], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("family", world.FAMILIES)
def test_logits_are_those_of_each_example_alone_up_to_the_longest(tmp_path: Path, family: str, pooling: Any) -> None:
    """Padding changes nothing, and an example as long as the position table has its place."""
    model = resolve_model(Layout(tmp_path), str(world.save(world.seeded(world.FAMILIES[family]), tmp_path / "model")))
    assert model.context == world.CONTEXT and model.model_type == family
    encoder, tokenizer = load_external(tmp_path / "model", "model")
    splits = {name: {"sentence": LONG, "label": [0, 1, 0]} for name in ("train", "validation")}
    split = encode_task(TASKS["cola"], splits, tokenizer, world.CONTEXT).splits["train"]
    assert split.lengths.max() == world.CONTEXT
    classifier = Classifier(encoder, encoder.width, 2, 0.1).eval()
    initialize_classifier(classifier, 0.5, 0)
    layout = PaddedLayout(encoder.pad_id, world.CONTEXT)
    with torch.no_grad():
        together = layout.logits(classifier, layout.collate(split, np.arange(3), CPU), pooling)
        alone = [layout.logits(classifier, layout.collate(split, np.array([n]), CPU), pooling) for n in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), atol=TOLERANCE, rtol=0)


def test_special_tokens_do_not_come_from_text(tmp_path: Path) -> None:
    _, tokenizer = load_external(world.save(world.seeded(world.bert), tmp_path / "model"), "model")
    ids = world.tokenizer().ids
    ((token_ids, _, _),) = tokenizer.frame_all([["a [SEP] b [MASK]"]], max_tokens=40)
    assert token_ids[0] == ids.cls and token_ids.index(ids.sep) == len(token_ids) - 1 and ids.mask not in token_ids


# Our own models, exported


@pytest.fixture(scope="module", params=["M0 form", "rotary"])
def exported(request, tmp_path_factory) -> tuple[Path, PretrainingRun]:
    """A folder of runs with one checkpoint, and beside it the same model for transformers."""
    root = tmp_path_factory.mktemp("runs")
    form = M0_FORM if request.param == "M0 form" else tiny_model()
    run = tiny_run(model=form.model_copy(update={"dropout": 0.0}))
    steps = run.recipe.stages[-1].steps
    export(write_checkpoints(root, run, steps), "hf", root / "exported", steps)
    return root, run


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_an_exported_model_fine_tunes_as_the_run_does(exported: tuple[Path, PretrainingRun], pooling: str) -> None:
    """Equal tokens, equal head; logits before and losses during the first three steps (head dropout on) to 1e-5."""
    (root, run), layout = exported, Layout(exported[0])
    model = resolve_model(layout, str(root / "exported"))
    write_model_file(layout, model)
    short = protocol(max_tokens=32, pooling=pooling, classifier_scale=0.5, epochs=1)
    tuners = []
    for weights in (run.id, model.id):
        study = study_of(task="rte", weights=weights, protocol=short)
        measured = load_model(layout, study)
        task = encode_task(TASKS["rte"], rte(48), measured.tokenizer(open_specified(SOURCE)), 32)
        tuners.append(FineTuner(measured.classifier, measured.weights(), task, study.protocol, CPU, measured.layout))
    own, external = tuners
    for split, content in own.encoded.splits.items():
        assert np.array_equal(content.token_ids, external.encoded.splits[split].token_ids)
    before = []
    for tuner in tuners:
        tuner.classifier.load_state_dict(tuner._start, strict=False)
        initialize_classifier(tuner.classifier, tuner.protocol.classifier_scale, 3)
        before.append(tuner.predict()["validation"])
    np.testing.assert_allclose(before[1], before[0], atol=TOLERANCE, rtol=0)
    courses = [[step.loss for step in tuner.evaluations(point(learning_rate=1e-4), seed=3)] for tuner in tuners]
    assert len(courses[0]) == 3 and courses[0][0] != courses[0][1]
    np.testing.assert_allclose(courses[1], courses[0], atol=TOLERANCE, rtol=0)


# Refusals


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def torn(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])


def without_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.bias")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def untouched(folder: Path) -> None:
    """Nothing is wrong with the files."""


@pytest.mark.parametrize(
    ("build", "damage", "code", "sentence"),
    [
        (world.bert, without("config.json"), 3, "has no config.json"),
        (world.bert, without("model.safetensors"), 3, "has no model.safetensors"),
        (world.bert, pickled, 2, "pytorch_model.bin, a pickle, which runs code when read, and is refused: save the"),
        (world.bert, without("tokenizer.json"), 3, "has no tokenizer"),
        (world.bert, torn, 2, "transformers cannot load"),
        (world.bert, without_a_tensor, 2, "lacks tensors encoder.layer.1.output.dense.bias"),
        (lambda: world.bert(vocab_size=40), untouched, 2, "but its embedding only 40 rows"),
        (world.gpt2, untouched, 2, "is a decoder"),
        (world.t5, untouched, 2, "is an encoder-decoder (t5)"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:20]),
)
def test_what_cannot_be_fine_tuned_is_refused_in_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    build: Callable[[], PreTrainedModel],
    damage: Callable[[Path], None],
    code: int,
    sentence: str,
) -> None:
    folder = world.save(world.seeded(build), tmp_path / "model")
    damage(folder)
    capsys.readouterr()
    assert glue_grid.main(["--task", "cola", "--model", str(folder), "--runs", str(tmp_path / "runs")]) == code
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["nowhere/at/all", "./nowhere", "org/unknown", "bert-bse-uncased"])
def test_a_name_that_nobody_knows_is_missing_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert glue_grid.main(["--task", "cola", "--model", name, "--runs", str(tmp_path / "runs")]) == 3
    said = capsys.readouterr().err
    assert name in said and said.count("\n") == 1


def test_a_model_is_no_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        glue_grid.main(["--task", "cola", "--model", "x", "--variant", "M5"])
    assert stopped.value.code == 2
    for flags, said in (
        (["--model", "x", "--pretraining-seed", "1"], "--pretraining-seed belongs to a variant"),
        (["--variant", "M7", "--trust-remote-code"], "--trust-remote-code goes with --model"),
    ):
        assert glue_grid.main(["--task", "cola", *flags, "--runs", str(tmp_path)]) == 2
        assert said in capsys.readouterr().err
