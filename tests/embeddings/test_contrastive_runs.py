"""Contrastive runs through the real worker command: killed, resumed, shared by processes, from any encoder."""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from neobert.data.sources import open_source
from neobert.embeddings.contrastive import ContrastiveTrainer
from neobert.embeddings.pairs import PairCounts
from neobert.errors import MissingData
from neobert.execution import Execution
from neobert.executors.contrastive import open_trainer
from neobert.executors.encoders import load_encoder
from neobert.executors.external import resolve_model, write_model_file
from neobert.kinds.contrastive import ContrastiveRun
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, read_run_file, write_run_file
from neobert.training.distributed import ALONE
from tests.embeddings.tiny_contrastive import (
    STEPS,
    WORLD,
    pair_set,
    tiny_contrastive,
    write_encoder,
    write_tiny_contrastive,
)
from tests.support.external_models import bert, save, seeded
from tests.support.small_corpora import write_table
from tests.support.tiny_runs import assert_equal_weights, beside, curve, final_weights, finish, kill_after, record, work

Trainable = tuple[Path, ContrastiveRun]
COUNTED = tuple(field.name for field in fields(PairCounts))
WITHOUT_TIME = ("seconds", "gpu_hours", "commit", "dirty", "checksum", "started_at", "finished_at", "sha256")


def trainer_of(root: Path, run: ContrastiveRun, **execution: int) -> ContrastiveTrainer:
    """The run in this process, at its start."""
    folder = write_tiny_contrastive(root, run, **execution)
    return open_trainer(Layout(root), read_run_file(folder), ALONE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trainable:
    """A finished run with dropout; its encoder, tokenizer and pairs serve the others."""
    root = tmp_path_factory.mktemp("contrastive")
    run = tiny_contrastive(write_encoder(root).id)
    write_tiny_contrastive(root, run)
    finish(root, run.reference)
    return root, run


@pytest.fixture
def root(tmp_path: Path, undisturbed: Trainable) -> Path:
    """A folder of runs that shares the tokenizer and the pairs."""
    return beside(tmp_path / "runs", undisturbed[0])


def test_a_run_leaves_a_record_a_curve_and_checkpoints(undisturbed: Trainable) -> None:
    root, run = undisturbed
    content = record(root, run)
    assert (content["kind"], content["id"], content["steps"]) == ("contrastive", run.id, STEPS)
    assert content["inputs"]["weights"] == run.weights
    assert content["scores"]["heldout_accuracy"].keys() == {"paraphrases", "answers"}
    assert content["pairs"]["paraphrases"] == {**dict.fromkeys(COUNTED, 0), "read": 2000, "kept": 2000}
    assert len(curve(root, run)) == STEPS
    assert {name.split(".")[0] for name in final_weights(root, run)} == {"model"}, "names are those of pre-training"
    assert work(root, run.reference) == 0 and (root / "starts.jsonl").read_text().count("\n") == 1


def test_what_it_ended_with_encodes_texts_as_it_was_trained(undisturbed: Trainable) -> None:
    """A query behind its instruction has the vector that the loss saw, and so has a document without one."""
    root, run = undisturbed
    encoder = load_encoder(Layout(root), run.id, torch.device("cpu"))
    trainer = open_trainer(Layout(root), read_run_file(root / run.reference), ALONE)
    assert trainer.restore() == STEPS
    trainer.model.eval()
    pairs, encoded = list(WORLD.pairs("answers"))[:5], trainer.sets[1]
    for texts, framed, instruction in (
        ([pair.query for pair in pairs], encoded.queries, run.sets[1].instruction),
        ([pair.document for pair in pairs], encoded.documents, None),
    ):
        ours = encoder.encode(texts, instruction=instruction)
        for number, vector in enumerate(ours):
            batch = trainer.model.collate([framed[number]], trainer.device, "fp32")
            with torch.no_grad():
                assert np.allclose(vector, trainer.model(batch)[0].numpy(), atol=1e-5)


def test_kill_9_changes_nothing(undisturbed: Trainable, root: Path) -> None:
    run = tiny_contrastive(write_encoder(root).id)
    write_tiny_contrastive(root, run)
    kill_after(root, run, 9)
    finish(root, run.reference)
    assert_equal_weights(root, undisturbed[0], run)
    assert curve(root, run) == curve(undisturbed[0], run)
    records = [{k: v for k, v in record(at, run).items() if k not in WITHOUT_TIME} for at in (root, undisturbed[0])]
    assert records[0] == records[1]


def test_two_processes_learn_what_one_does(tmp_path: Path, undisturbed: Trainable) -> None:
    """Each computes a part of the texts, all are compared with all; without dropout only sums are in another order."""
    roots = [beside(tmp_path / name, undisturbed[0]) for name in ("one", "two")]
    for processes, root in enumerate(roots, start=1):
        run = tiny_contrastive(write_encoder(root, dropout=0.0).id)
        write_tiny_contrastive(root, run, processes=processes)
        finish(root, run.reference)
    assert curve(roots[0], run) == pytest.approx(curve(roots[1], run), rel=1e-4)
    one, two = (final_weights(root, run) for root in roots)
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)
    assert record(roots[1], run)["processes"] == 2


def test_training_finds_partners_that_the_start_did_not(root: Path) -> None:
    """Held-out pairs: 64 queries, each with 128 candidates."""
    encoder = write_encoder(root, dropout=0.0)
    run = tiny_contrastive(encoder.id, ("paraphrases",), steps=150, texts_per_step=96)
    trainer = trainer_of(root, run, micro_batch_tokens=10_000)
    trainer.begin()
    before = trainer.heldout_scores()["heldout_accuracies"]["paraphrases"]
    for step in trainer.steps(0):
        step.measured()
    after = trainer.heldout_scores()["heldout_accuracies"]["paraphrases"]
    assert after > before + 0.2, (before, after)


def test_hard_negatives_and_instructions_enter(root: Path) -> None:
    """Without either the first loss, whose weights are equal, is another one."""
    encoder = write_encoder(root, dropout=0.0)
    first = {}
    for name, changes in {
        "all": {},
        "no negatives": {"most_negatives": 0},
        "no instruction": {"instructed": "nothing"},
        "instructed documents": {"instructed": "queries_and_documents"},
        "summed": {"reduction": "sum"},
    }.items():
        run = tiny_contrastive(encoder.id, ("paraphrases",), **changes)
        trainer = trainer_of(root, run)
        trainer.begin()
        first[name] = next(trainer.steps(0)).measured().loss
    assert len({round(loss, 4) for loss in first.values()}) == len(first), first


def test_an_encoder_of_transformers_is_trained(tmp_path: Path) -> None:
    model = resolve_model(Layout(tmp_path), str(save(seeded(bert), tmp_path / "model", token_types=True)))
    write_model_file(Layout(tmp_path), model)
    run = tiny_contrastive(model.id, ("paraphrases",)).model_copy(
        update={"context": 48, "tokenizer_origin": model.tokenizer_origin}
    )
    write_tiny_contrastive(tmp_path, run)
    assert work(tmp_path, run.reference) == 0
    start = bert().state_dict()
    trained = final_weights(tmp_path, run)
    assert {name.removeprefix("model.encoder.") for name in trained} == start.keys()
    assert all(tensor.isfinite().all() for tensor in trained.values())
    encoder = bert().eval()
    encoder.load_state_dict({name.removeprefix("model.encoder."): tensor for name, tensor in trained.items()})
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokens = tokenizer("find the same", "the cat sleeps", return_tensors="pt")
    tokens["token_type_ids"].zero_()  # the instruction has its text's
    opened = load_encoder(Layout(tmp_path), run.id, torch.device("cpu"))
    found = opened.encode(["the cat sleeps"], instruction="find the same")
    with torch.no_grad():
        np.testing.assert_allclose(found, encoder(**tokens).last_hidden_state.mean(1), atol=1e-5, rtol=0)
    assert opened.context == run.max_tokens == 32


def test_own_pairs_are_named_and_a_set_with_a_single_one_is_refused(
    tmp_path: Path, undisturbed: Trainable, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, root = tmp_path / "mydata", tmp_path / "runs"
    (tokenizer,) = (undisturbed[0] / "data" / "tokenizers").iterdir()
    shutil.copytree(tokenizer, folder / "tokenizers" / "bert-base-uncased")
    write_table(folder / "pairs" / "mine.parquet", {"query": ["a", ""], "document": ["b", "c"]})
    (folder / "pairs" / "instructions.json").write_text(json.dumps({"mine": "find the same"}))
    source = open_source(str(folder), synthetic_documents=1)
    assert source.pair_sets() == ("mine",) and source.pair_instruction("mine") == "find the same"
    with pytest.raises(MissingData, match=r"no data set of pairs mien .*did you mean 'mine'"):
        source.pair_origin("mien")
    encoder = write_encoder(root, tokenizer_origin=source.tokenizer_origin("wordpiece", 512))
    pairs = pair_set("paraphrases").model_copy(update={"name": "mine", "origin": source.pair_origin("mine")})
    run = tiny_contrastive(encoder.id).model_copy(update={"sets": (pairs,)})
    execution = Execution(threads=1, processes=1, micro_batch_tokens=100, checkpoint_interval_steps=4)
    write_run_file(Layout(root), run, SourceSpecification(name=str(folder), synthetic_documents=1), execution, {})
    assert work(root, run.reference) == 1
    assert "data set mine has 1 pairs with text (of 2)" in capsys.readouterr().err
