"""`python -m neobert.export`: whole folders that compute what the run computes, or none."""

import json
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

import neobert.hub  # noqa: F401 - registers the classes
from ablations import loading
from ablations.ladder import M10
from ablations.scaling import scaled
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_OFF, EXIT_REFUSED
from neobert.export import huggingface
from neobert.export.__main__ import main
from neobert.export.card import glue_scores
from neobert.export.remote_code import remote_modules
from neobert.kinds.glue import GlueStudy, Start
from neobert.model.build import build_masked_language_model
from neobert.recipe import FineTuning
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record, publish_sealed, sealed
from tests.glue.glue_worlds import point, study_of
from tests.support.exported_runs import m0_folder, write_checkpoints
from tests.support.tiny_runs import STEPS, finish, tiny_run, tiny_stage, write_tiny_run
from tests.support.tree_copy import REPOSITORY


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run with its milestones."""
    root = tmp_path_factory.mktemp("runs")
    run = tiny_run()
    folder = write_tiny_run(root, run)
    finish(root, run.reference)
    return folder


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exports") / "hf"
    assert main([str(trained), "--to", "hf", "--out", str(out)]) == EXIT_DONE
    return out


def test_the_folder_holds_what_transformers_needs_and_nothing_else(exported: Path) -> None:
    code = {f"{name}.py" for name in remote_modules({})}
    assert code <= {path.name for path in exported.iterdir()}, "without a flag"
    names = {path.name for path in exported.iterdir()} - code
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert [path.name for path in exported.parent.iterdir()] == ["hf"]


def test_it_reloads_through_the_auto_classes_to_the_runs_weights(trained: Path, exported: Path) -> None:
    weights = load_file(trained / "checkpoints" / f"step-{STEPS:08d}" / "model.safetensors")
    model, info = AutoModelForMaskedLM.from_pretrained(exported, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert model.state_dict().keys() == weights.keys()
    tokenizer = AutoTokenizer.from_pretrained(exported)
    tokens = tokenizer(["the cat", "a [MASK] that sleeps"], ["a dog", "x"], padding=True, return_tensors="pt")
    assert set(tokens) == {"input_ids", "attention_mask"}
    assert tokens["input_ids"][1, 2] == tokenizer.mask_token_id and tokenizer.model_max_length == 32
    assert model(**tokens).logits.isfinite().all()


@pytest.mark.parametrize("step", [0, STEPS // 4])
def test_every_milestone_is_exported_with_its_own_weights(trained: Path, tmp_path: Path, step: int, capsys) -> None:
    assert (
        main([str(trained), "--to", "hf", "--no-remote-code", "--out", str(tmp_path / "out"), "--step", str(step)])
        == EXIT_DONE
    )
    said = json.loads(capsys.readouterr().out)
    assert said["step"] == step and 0 <= said["parity"]["logits"] <= 1e-5
    expected = load_file(trained / "checkpoints" / f"step-{step:08d}" / "model.safetensors")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["decoder.bias"], expected["decoder.bias"])


def test_the_answer_is_json_alone_whatever_libraries_print(trained: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    original = huggingface.masked_language_model
    monkeypatch.setattr(huggingface, "masked_language_model", lambda found: print("chatter") or original(found))
    assert main([str(trained), "--to", "hf", "--no-remote-code", "--out", str(tmp_path / "out")]) == EXIT_DONE
    said = capsys.readouterr()
    assert json.loads(said.out)["step"] == STEPS and "chatter" in said.err


def test_the_card_says_what_the_model_is(trained: Path, exported: Path, tmp_path: Path) -> None:
    card = (exported / "README.md").read_text()
    record = json.loads((trained / "done.json").read_text())
    metadata = ModelCard(card).data
    assert (metadata.license, metadata.library_name) == ("mit", "transformers")
    losses = {result.dataset_config: result.metric_value for result in metadata.eval_results}
    assert losses == record["scores"]["heldout_loss"]
    assert "## Changes against P\n" in card and "| model.layers | 1 → 2 |" in card
    assert f"step {STEPS}" in card and "6,144" not in card and "| token slots read | 6.144k |" in card
    for section in ("Use", "Model", "Scores", "Recipe", "Limits", "Parity", "Licence", "Citation"):
        assert f"\n## {section}\n" in card
    recipe = json.loads(re.search(r"## Recipe\n\n```json\n(.*?)```", card, re.DOTALL).group(1))
    assert recipe["model"]["width"] == 16 and recipe["masking"]["rate"] == 0.2
    assert (
        main([str(trained), "--to", "hf", "--no-remote-code", "--out", str(tmp_path / "start"), "--step", "0"])
        == EXIT_DONE
    )
    early = (tmp_path / "start" / "README.md").read_text()
    assert "None are recorded" in early and "model-index" not in early and "checkpoint on the way" in early


def close_study(
    root: Path,
    weights: str,
    scores: dict[float, float | None],
    *,
    seed: int = 0,
    before: GlueStudy | None = None,
    **changes: object,
) -> GlueStudy:
    """A closed study with these scores by rate; `changes` are to a study of CoLA, or to the paper's protocol."""
    protocol = {field: changes.pop(field) for field in FineTuning.model_fields if field in changes}
    kind = (
        {"kind": "study", "task": "mnli", "study": before.id}
        if before
        else {"kind": "pretraining", "task": None, "study": None}
    )
    study = study_of(
        weights=weights,
        points=tuple(point(learning_rate=rate) for rate in scores),
        seed=seed,
        protocol=M10.recipe.finetuning.model_copy(update=protocol),
        starts_from=Start(**kind, rule=None, reason=None),
        **changes,
    )
    layout, names = Layout(root), {"mrpc": ("f1", "accuracy")}.get(study.task, ("matthews",))
    write_tiny_run(root, study)
    for trial, score in zip(study.trials(layout), scores.values(), strict=True):
        found = {"score": score, "metrics": dict.fromkeys(names, score)}
        publish_record(trial.record, {"kind": "glue", "id": trial.id, "state": "done", "scores": found})
    publish_sealed(study.closing(layout).record, {"study": study.id, "trial": study.trial_ids[0]})
    return study


def test_scores_are_the_best_trials_on_these_weights_with_record_data_and_revision(trained: Path, tmp_path) -> None:
    from huggingface_hub import ModelCard

    hub, other = "hub:nyu-mll/glue@bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c", "synthetic:tests"
    root, weights = trained.parent.parent, trained.name
    cola = close_study(root, weights, {1e-5: 0.2, 2e-5: 0.4}, task_origin=hub).trial_ids[1]
    close_study(root, "x", {1e-5: 0.9}, task="rte", task_origin=hub)
    (mrpc,) = close_study(root, weights, {1e-5: 0.8}, task="mrpc", task_origin=hub).trial_ids
    (sst2,) = close_study(root, weights, {1e-5: 0.7}, task="sst2", task_origin=other).trial_ids
    close_study(root, weights, {1e-5: None}, task="qqp", task_origin=hub)
    close_study(root, weights, {1e-5: 0.9}, task_origin=hub, epoch_counted_in="examples")
    close_study(root, weights, {1e-5: 0.8}, task_origin=hub, epochs=99)
    out = tmp_path / "out"
    assert main([str(trained), "--to", "hf", "--no-remote-code", "--out", str(out)]) == EXIT_DONE
    card = (out / "README.md").read_text()
    assert f"| glue/cola | {hub} | matthews | 0.4000 | best of 2 grid points, record {cola} |" in card
    assert f"| glue/mrpc | {hub} | mean of accuracy and f1 | 0.8000 | best of one grid point, record {mrpc} |" in card
    assert f"| glue/sst2 | {other} | accuracy | 0.7000 | best of one grid point, record {sst2} |" in card
    assert "glue/rte" not in card and "glue/qqp" not in card
    index = {result.dataset_config: result for result in ModelCard(card).data.eval_results}
    assert index["cola"].metric_value == 0.4 and index["cola"].dataset_type == "nyu-mll/glue"
    assert index["cola"].dataset_revision == hub.split("@")[1] and f"record {cola}" in index["cola"].metric_name
    assert index["sst2"].dataset_type == other and index["sst2"].dataset_revision is None


def test_trials_of_two_protocols_are_never_mixed_and_the_papers_counts(tmp_path: Path) -> None:
    """M10 and M10@code measure one checkpoint; the best of a grid is its best mean over seeds."""
    code = {"epoch_counted_in": "examples", "weight_decay_on": "all_but_biases"}
    others = [close_study(tmp_path, "w", {1e-5: 0.99}, seed=seed, **code) for seed in range(5)]
    (score,) = glue_scores(Layout(tmp_path), "w")
    assert score.value == pytest.approx(0.99)
    assert score.notes.startswith(
        "best of one grid point, mean of 5 seeds, epoch_counted_in examples, weight_decay_on all_but_biases, record "
    )
    assert {study.trial_ids[0] for study in others} == set(score.notes.split("record ")[1].split(", "))
    close_study(tmp_path, "w", {3e-5: 0.9, 1e-5: 0.7, 2e-5: None})
    close_study(tmp_path, "w", {3e-5: 0.1, 1e-5: 0.5, 2e-5: None}, seed=1)
    (score,) = glue_scores(Layout(tmp_path), "w")
    assert score.value == pytest.approx(0.6) and score.notes.startswith("best of 3 grid points, mean of 2 seeds, ")
    assert glue_scores(Layout(tmp_path), "x") == []


def test_grids_that_start_from_other_studies_or_read_other_data_are_never_mixed(tmp_path: Path) -> None:
    """A larger grid on the same weights has its own MNLI; the seeds of a grid start from their own seeds of it."""
    small, *large = (
        close_study(tmp_path, "w", dict.fromkeys(rates, 0.5), seed=seed, task="mnli")
        for rates, seed in (((1e-5,), 0), ((1e-5, 2e-5), 0), ((1e-5, 2e-5), 1))
    )
    close_study(tmp_path, "w", {1e-5: 0.9}, task="rte", before=small)
    close_study(tmp_path, "w", {1e-5: 0.9}, task="rte", before=large[0], task_origin="others")
    for seed, (before, score) in enumerate(zip(large, (0.7, 0.8), strict=True)):
        close_study(tmp_path, "w", {1e-5: score, 2e-5: 0.1}, seed=seed, task="rte", before=before)
    rte = glue_scores(Layout(tmp_path), "w")[1]
    assert rte.value == pytest.approx(0.75) and rte.notes.startswith("best of 2 grid points, mean of 2 seeds, ")


def test_labels_cannot_smuggle_markup_into_the_card(tmp_path: Path) -> None:
    folder = m0_folder(tmp_path)
    content = json.loads((folder / "run.json").read_text())
    content["labels"] = {"variants": ["<script>x</script>\n---\nevil: 1"], "scale": "a|b"}
    (folder / "run.json").write_bytes(sealed(content))
    assert (
        main([str(folder), "--to", "hf", "--no-remote-code", "--out", str(tmp_path / "out"), "--step", "0"])
        == EXIT_DONE
    )
    card = (tmp_path / "out" / "README.md").read_text()
    assert "<" not in card.split("## Use")[0] and "\nevil" not in card and "| scale | ab |" in card


# Local blocks


def local_folder(root: Path) -> Path:
    """The start of ModernBERT's last step at smoke scale, whose local blocks see 8 tokens on each side."""
    own = loading.load(str(REPOSITORY / "examples" / "modernbert.py"))
    recipe = scaled(own, own.variants["B7"].recipe, "tiny", "trained").pretraining
    model = recipe.model.model_copy(update={"vocabulary_size": 512})
    assert (model.layers, model.attention_window, model.global_every) == (4, 16, 3)
    return write_checkpoints(root, tiny_run(model=model, stages=(tiny_stage(context=recipe.longest_context),)), 0)


def test_local_blocks_are_exported_with_their_window(tmp_path: Path) -> None:
    """And the export has compared the logits with the engine's."""
    folder, out = local_folder(tmp_path), tmp_path / "hf"
    assert main([str(folder), "--to", "hf", "--no-remote-code", "--step", "0", "--out", str(out)]) == EXIT_DONE
    config = json.loads((out / "config.json").read_text())
    assert (config["attention_window"], config["global_every"]) == (16, 3)


# Refusals and parity


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["RUN", "--out", "EMPTY"], EXIT_REFUSED, "exists: name a new folder"),
        (["EMPTY"], EXIT_MISSING, "holds no run.json"),
        (["UNFINISHED"], EXIT_MISSING, "is not finished: name a checkpoint with --step (there: 0)"),
        (["RUN", "--step", "7"], EXIT_MISSING, "no checkpoint of step 7 (there: 0,"),
    ],
)
def test_what_cannot_be_exported_ends_with_a_sentence_and_its_code(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, said: str
) -> None:
    places = {"RUN": trained, "EMPTY": tmp_path / "empty"}
    places["EMPTY"].mkdir()
    if "UNFINISHED" in flags:
        places["UNFINISHED"] = m0_folder(tmp_path)
    given = [str(places.get(flag, flag)) for flag in flags]
    out = [] if "--out" in flags else ["--out", str(tmp_path / "out")]
    assert main([*given, *out, "--to", "hf"]) == code
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["weights", "function", "tokenizer"])
def test_an_export_that_differs_is_never_published(
    damage: str, trained: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    original = huggingface.masked_language_model

    def other_weights(checkpoint):
        model = original(checkpoint)
        with torch.no_grad():
            model.decoder.bias[3] += 1e-6
        return model

    def other_network(checkpoint):
        other = checkpoint.run.recipe.model.model_copy(update={"rotary_base": 100.0})
        network = build_masked_language_model(other, checkpoint.run.context)
        network.load_state_dict(checkpoint.weights)
        vars(checkpoint)["network"] = network.eval()
        return original(checkpoint)

    if damage == "tokenizer":
        fast = huggingface.transformers_tokenizer

        def unframed(tokenizer, context):
            made = fast(tokenizer, context)
            made.backend_tokenizer.post_processor = None
            return made

        monkeypatch.setattr(huggingface, "transformers_tokenizer", unframed)
    else:
        monkeypatch.setattr(
            huggingface, "masked_language_model", other_weights if damage == "weights" else other_network
        )
    assert main([str(trained), "--to", "hf", "--no-remote-code", "--out", str(tmp_path / "out")]) == EXIT_OFF
    said = capsys.readouterr().err
    assert {"weights": "tensor decoder.bias", "function": "differs from the run by", "tokenizer": "reads"}[
        damage
    ] in said
    assert list(tmp_path.iterdir()) == []
