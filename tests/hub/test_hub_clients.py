"""The programs that people use an encoder with: each loads an export, works, and keeps its numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    pipeline,
)

import neobert.hub  # noqa: F401 - registers the classes
from neobert.data.synthetic import task_examples
from tests.support.exported_runs import export_start, neobert_folder

QUIETLY = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False}
"""How transformers' Trainer runs here."""

SENTENCES = ["the cat sleeps", "a dog and a cat and a bird", "x"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    return neobert_folder(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def exported(run_folder: Path, tmp_path_factory) -> Path:
    return export_start(run_folder, tmp_path_factory.mktemp("exports") / "hf", "hf")


def test_trainer_fine_tunes_it_on_cola(exported: Path, tmp_path: Path) -> None:
    """Thirty steps lower the training loss; the saved model gives the trainer's predictions."""
    pytest.importorskip("accelerate", reason="accelerate is not installed (extra export)")
    from transformers import Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(exported)
    rows = {}
    for split, number in (("train", 16), ("validation", 8)):
        columns = task_examples("cola", split)
        tokens = tokenizer(columns["sentence"][:number], truncation=True)["input_ids"]
        labels = map(int, columns["label"][:number])
        rows[split] = [{"input_ids": ids, "labels": label} for ids, label in zip(tokens, labels, strict=True)]
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(exported, num_labels=2, dtype=torch.float32)
    course = {"max_steps": 30, "learning_rate": 5e-3, "per_device_train_batch_size": 8, "logging_steps": 10}
    collator = DataCollatorWithPadding(tokenizer)
    arguments = TrainingArguments(output_dir=str(tmp_path / "trainer"), save_strategy="no", **course, **QUIETLY)
    trainer = Trainer(model, arguments, train_dataset=rows["train"], data_collator=collator, processing_class=tokenizer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    trainer.save_model(str(tmp_path / "saved"))
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    batch = collator([dict(row) for row in rows["validation"]])
    batch.pop("labels")
    with torch.no_grad():
        logits = again(**batch).logits
    np.testing.assert_allclose(trainer.predict(rows["validation"]).predictions, logits.numpy(), atol=1e-5)


def test_pipelines_serve_it(exported: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(exported)
    fill = pipeline("fill-mask", model=str(exported), device="cpu")
    guesses = fill(f"the {tokenizer.mask_token} sleeps", top_k=5)
    ids = tokenizer(f"the {tokenizer.mask_token} sleeps", return_tensors="pt")
    with torch.no_grad():
        scores = AutoModelForMaskedLM.from_pretrained(exported)(**ids).logits[0, 2].softmax(-1).topk(5)
    assert [guess["token"] for guess in guesses] == scores.indices.tolist()
    np.testing.assert_allclose([guess["score"] for guess in guesses], scores.values.numpy(), rtol=1e-5)
    model = AutoModelForSequenceClassification.from_pretrained(exported, num_labels=3)
    classified = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")(SENTENCES)
    assert len(classified) == 3 and all(answer["label"].startswith("LABEL_") for answer in classified)
    features = pipeline("feature-extraction", model=str(exported), device="cpu")(SENTENCES[0])
    assert np.array(features).shape == (1, len(tokenizer(SENTENCES[0])["input_ids"]), 16)
    tagger = AutoModelForTokenClassification.from_pretrained(exported, id2label={0: "O", 1: "B", 2: "I"})
    tags = pipeline("token-classification", model=tagger, tokenizer=tokenizer, device="cpu", ignore_labels=[])(
        SENTENCES[0]
    )
    assert [SENTENCES[0][tag["start"] : tag["end"]] for tag in tags][:2] == ["the", "cat"]
    assert {tag["entity"] for tag in tags} <= {"O", "B", "I"}


def test_sentence_transformers_encodes_and_trains_a_step(run_folder: Path, tmp_path: Path) -> None:
    """Vectors do not depend on who else is in the batch; one step of a ranking loss moves a pair together."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    out = export_start(run_folder, tmp_path / "st", "sentence-transformers")
    assert {"modules.json", "1_Pooling", "config_sentence_transformers.json", "README.md"} <= {
        path.name for path in out.iterdir()
    }
    model = library.SentenceTransformer(str(out), device="cpu")
    assert model.max_seq_length == 32
    vectors = model.encode(SENTENCES)
    assert vectors.shape == (3, 16)
    for sentence, vector in zip(SENTENCES, vectors, strict=True):
        np.testing.assert_allclose(model.encode([sentence])[0], vector, atol=1e-5)
    loss = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pairs = [model.tokenize(SENTENCES[:2]), model.tokenize(SENTENCES[1::-1])]
    model.eval()
    before = loss(pairs, None)
    before.backward()
    optimizer.step()
    assert float(loss(pairs, None).detach()) < float(before.detach())


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # what peft calls
@pytest.mark.parametrize("targets", [["qkv", "wo"], "all-linear"], ids=str)
def test_peft_attaches_lora_to_the_fused_projections(exported: Path, tmp_path: Path, targets: list[str] | str) -> None:
    """An adapter alone is trained and saved; loaded again it gives the same logits, merged too."""
    peft = pytest.importorskip("peft", reason="peft is not installed (extra export)")
    tokenizer = AutoTokenizer.from_pretrained(exported)
    tokens = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    base = AutoModelForMaskedLM.from_pretrained(exported)
    plain = base(**tokens).logits.detach()
    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    adapted = peft.get_peft_model(base, config).eval()
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name for name in trained) and any(".qkv." in name for name in trained)
    logits = adapted(**tokens, labels=tokens["input_ids"]).logits
    assert (logits - plain).abs().max() > 1e-3
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(AutoModelForMaskedLM.from_pretrained(exported), tmp_path).eval()
    torch.testing.assert_close(again(**tokens).logits, logits, rtol=0, atol=1e-6)
    torch.testing.assert_close(again.merge_and_unload()(**tokens).logits, logits, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # what peft calls
def test_peft_keeps_a_new_classification_head_that_it_is_told_of(exported: Path, tmp_path: Path) -> None:
    """By itself peft saves modules named classifier; the head has a dense layer too, which must be named."""
    peft = pytest.importorskip("peft", reason="peft is not installed (extra export)")
    tokens = AutoTokenizer.from_pretrained(exported)(SENTENCES, padding=True, return_tensors="pt")
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=["qkv", "wo"], modules_to_save=["dense", "classifier"]
    )
    models = [AutoModelForSequenceClassification.from_pretrained(exported, num_labels=2) for _ in range(2)]
    adapted = peft.get_peft_model(models[0], config)
    optimizer = torch.optim.SGD([part for part in adapted.parameters() if part.requires_grad], lr=0.1)
    adapted(**tokens, labels=torch.tensor([0, 1, 0])).loss.backward()
    optimizer.step()
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(models[1], tmp_path).eval()
    torch.testing.assert_close(again(**tokens).logits, adapted.eval()(**tokens).logits, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")
def test_trainer_pretrains_it_further_in_bf16_with_checkpointing_and_resumes(exported: Path, tmp_path: Path) -> None:
    """The collator of masked language modelling, activations recomputed; a run resumed from its checkpoint goes on."""
    pytest.importorskip("accelerate", reason="accelerate is not installed (extra export)")
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(exported)
    rows = [tokenizer("the cat sleeps and a dog and a bird") for _ in range(8)]

    def trainer(steps: int) -> Trainer:
        course = {"max_steps": steps, "per_device_train_batch_size": 4, "save_steps": 1}
        how = {"bf16": True, "gradient_checkpointing": True}
        arguments = TrainingArguments(output_dir=str(tmp_path), **course, **how, **QUIETLY)
        model = AutoModelForMaskedLM.from_pretrained(exported)
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5)
        return Trainer(model, arguments, train_dataset=rows, data_collator=collator, processing_class=tokenizer)

    trainer(2).train()
    again = trainer(3)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 3
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-1", "checkpoint-2", "checkpoint-3"}
    reloaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "checkpoint-3")
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, reloaded.state_dict()[name])
