"""The published checkpoint's files, and those of an M0, load as they are and give the described outputs."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from neobert.hub import NeoBERTConfig, NeoBERTForMaskedLM, NeoBERTForSequenceClassification, NeoBERTModel
from tests.support.described_model import described_logits
from tests.support.small_models import BERT_FORM, CONTEXT, FORMS, random_document, released_shapes, small_model

WIDTH = 24
PUBLISHED_CONFIG = {
    "architectures": ["NeoBERTLMHead"],
    "auto_map": {
        "AutoConfig": "model.NeoBERTConfig",
        "AutoModel": "model.NeoBERT",
        "AutoModelForMaskedLM": "model.NeoBERTLMHead",
        "AutoModelForSequenceClassification": "model.NeoBERTForSequenceClassification",
    },
    "classifier_init_range": 0.02,
    "decoder_init_range": 0.02,
    "dim_head": 8,
    "embedding_init_range": 0.02,
    "hidden_size": WIDTH,
    "intermediate_size": 60,
    "kwargs": {"classifier_init_range": 0.02, "trust_remote_code": True},
    "max_length": CONTEXT,
    "model_type": "neobert",
    "norm_eps": 1e-05,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "pad_token_id": 0,
    "pretrained_model_name_or_path": "google-bert/bert-base-uncased",
    "torch_dtype": "float32",
    "transformers_version": "4.48.2",
    "trust_remote_code": True,
    "vocab_size": 50,
}
M0_CONFIG = {**PUBLISHED_CONFIG, "rope": False, "rms_norm": False, "hidden_act": "GELU"}


CHECKPOINTS = {
    "published": (PUBLISHED_CONFIG, released_shapes(small_model(), CONTEXT)),
    "M0": (M0_CONFIG, released_shapes(small_model(**BERT_FORM), CONTEXT)),
}


def write_checkpoint(folder: Path, kind: str) -> dict[str, Tensor]:
    """config.json and random weights, without the metadata that transformers writes; returns the weights."""
    config, shapes = CHECKPOINTS[kind]
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return weights


@pytest.fixture(params=CHECKPOINTS)
def checkpoint(request, tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    return tmp_path, write_checkpoint(tmp_path, request.param)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_outputs_are_those_of_the_description_with_and_without_padding(checkpoint, side, implementation) -> None:
    folder, weights = checkpoint
    model = NeoBERTForMaskedLM.from_pretrained(folder, attn_implementation=implementation)
    documents = [random_document(length) for length in (CONTEXT, 9, 1)]
    padded = torch.nn.utils.rnn.pad_sequence(documents, True, padding_side=side, padding_value=-1)
    token_ids, mask = padded.clamp(min=0), (padded >= 0).long()
    together = model(token_ids, attention_mask=mask).logits
    for row, document in enumerate(documents):
        expected = described_logits(weights, document)
        torch.testing.assert_close(together[row, mask[row].bool()], expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(model(document[None]).logits[0], expected, rtol=0, atol=1e-5)


def test_the_encoder_alone_and_a_new_head_take_the_encoders_weights(checkpoint) -> None:
    folder, weights = checkpoint
    encoder = AutoModel.from_pretrained(folder)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    assert type(encoder) is NeoBERTModel and type(classifier) is NeoBERTForSequenceClassification
    for model in (encoder, classifier.model):
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, weights[f"model.{name}"])
    assert classifier.classifier.weight.shape == (3, WIDTH)
    assert 0.01 < float(classifier.dense.weight.detach().std()) < 0.03 and not classifier.dense.bias.any()


@pytest.mark.parametrize("form", FORMS)
def test_every_toggle_of_a_recipe_stands_in_config_json_and_comes_back(form: str, tmp_path: Path) -> None:
    model = small_model(**FORMS[form], dropout=0.25, rotary_base=500.0)
    NeoBERTConfig.from_recipe(model, CONTEXT, pad_token_id=3).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert {written[key] for key in ("positions", "feedforward", "norm")} == set(FORMS[form].values())
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.to_recipe() == model
    assert (loaded.max_length, loaded.max_position_embeddings, loaded.pad_token_id) == (CONTEXT, CONTEXT, 3)


# Bad input: one clear sentence


def test_keys_of_other_programs_are_kept_and_load_again(tmp_path: Path) -> None:
    """What users, converters and trainers leave in a configuration must not make a saved model unreadable."""
    write_checkpoint(tmp_path / "first", "published")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "first")
    others = {
        "my_note": "a",
        "transformers.js_config": {"dtype": "q8"},
        "unsloth_version": "1",
        "initializer_range": 0.02,
    }
    for key, value in others.items():
        setattr(model.config, key, value)
    model.save_pretrained(tmp_path / "second")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "second")
    assert {key: getattr(loaded.config, key) for key in others} == others
    loaded.save_pretrained(tmp_path / "third")
    assert (tmp_path / "third" / "config.json").read_bytes() == (tmp_path / "second" / "config.json").read_bytes()
    assert loaded.config.to_recipe() == model.config.to_recipe()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norm": "rms"}, "^config.json describes no model: norm is 'rms': [^\n]* did you mean 'rms_norm'"),
        ({"hidden_act": "ReLU"}, "feedforward is 'relu'"),
        ({"init_distribution": "norm"}, "init_distribution is 'norm'"),
        ({"classifier_pooling": "max"}, "classifier_pooling 'max': did you mean 'mean'"),
        ({"ngpt": True}, "ngpt"),
        ({"attention_window": 16, "global_every": 1}, "attention_window 16, which this version no longer has"),
        ({"hidden_size": 25}, "^config.json describes no model: width 25 is not divisible by 3 heads: [^\n]*$"),
        ({"norm_eps": -1.0}, "^config.json describes no model: norm_eps is -1.0: [^\n]*$"),
        ({"transformers_weights": "weights.bin"}, "names the weights 'weights.bin'"),
    ],
)
def test_a_configuration_that_no_model_can_have_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        NeoBERTConfig(**{**PUBLISHED_CONFIG, **changes})


@pytest.mark.parametrize(
    ("load", "gone", "said"),
    [
        *(
            (load, "model.transformer_encoder.1.wo.", r"lacks tensors .*encoder\.1\.wo\.weight: it is incomplete")
            for load in (NeoBERTForMaskedLM, NeoBERTModel, NeoBERTForSequenceClassification)
        ),
        (NeoBERTForMaskedLM, "decoder.", r"lacks tensors decoder\.bias, decoder\.weight"),
        (NeoBERTForMaskedLM, "", r"unknown tensors .*attn_alpha"),
    ],
)
def test_tensors_of_the_model_are_never_invented_and_others_are_named(
    load: type, gone: str, said: str, tmp_path: Path
) -> None:
    weights = write_checkpoint(tmp_path, "published")
    kept = {name: tensor for name, tensor in weights.items() if not gone or not name.startswith(gone)}
    extra = {} if gone else {"model.transformer_encoder.0.attn_alpha": torch.ones(WIDTH)}
    save_file(kept | extra, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=said):
        load.from_pretrained(tmp_path)


def test_tensors_of_another_shape_are_named_and_never_replaced(tmp_path: Path) -> None:
    """Not even where transformers is told to ignore them; the one exception is a classification head."""
    write_checkpoint(tmp_path, "published")
    for ignoring in (False, True):
        with pytest.raises(
            ValueError, match=r"encoder\.weight of shape \(50, 24\), but the configuration needs \(60, 24\)"
        ):
            NeoBERTModel.from_pretrained(tmp_path, vocab_size=60, ignore_mismatched_sizes=ignoring)
        with pytest.raises(ValueError, match=r"its config\.json is of another model"):
            NeoBERTForMaskedLM.from_pretrained(tmp_path, vocab_size=60, ignore_mismatched_sizes=ignoring)
    classifier = NeoBERTForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    classifier.save_pretrained(tmp_path / "three")
    with pytest.raises(ValueError, match=r"classifier\.\w+ of shape .*: pass ignore_mismatched_sizes=True"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "three", num_labels=5)
    again = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "three", num_labels=5, ignore_mismatched_sizes=True
    )
    assert again.classifier.weight.shape == (5, WIDTH) and torch.equal(again.dense.weight, classifier.dense.weight)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED_CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is a pickle"):
        AutoModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is a pickle"):
        NeoBERTModel.from_pretrained(tmp_path / "pytorch_model.bin", config=NeoBERTConfig(**PUBLISHED_CONFIG))
    with pytest.raises(ValueError, match="use_safetensors=False"):
        AutoModel.from_pretrained(tmp_path, use_safetensors=False)


def test_learned_positions_refuse_more_than_the_context_and_rotary_ones_warn(tmp_path: Path, monkeypatch) -> None:
    from neobert.hub import modeling

    said: list[str] = []
    monkeypatch.setattr(modeling.logger, "warning_once", said.append)
    document = random_document(CONTEXT + 1)[None]
    for kind in ("published", "M0"):
        write_checkpoint(tmp_path / kind, kind)
    assert NeoBERTModel.from_pretrained(tmp_path / "published")(document).last_hidden_state.isfinite().all()
    assert said == [f"A sequence reaches {CONTEXT + 1} tokens, and the model was trained on at most {CONTEXT}."]
    learned = NeoBERTModel.from_pretrained(tmp_path / "M0")
    assert learned.config.to_recipe().positions == BERT_FORM["positions"]
    with pytest.raises(ValueError, match=f"learned position table has {CONTEXT}: truncate"):
        learned(document)
    with pytest.raises(ValueError, match=f"reaches {CONTEXT + 3} tokens"):
        learned(document[:, :3], position_ids=torch.arange(CONTEXT, CONTEXT + 3)[None])
