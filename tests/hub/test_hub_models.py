"""The transformers classes: equal to the flat engine, and everything that a user of BERT-base expects of them."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, DataCollatorWithFlattening
from transformers.masking_utils import flash_attention_mask, sdpa_mask

from neobert.hub import (
    AUTO_CLASSES,
    NeoBERTConfig,
    NeoBERTForMaskedLM,
    NeoBERTForSequenceClassification,
    NeoBERTForTokenClassification,
)
from neobert.model.heads import MaskedLanguageModel
from tests.support.small_models import (
    CONTEXT,
    FORMS,
    classified,
    language_model,
    padded_rows,
    random_document,
    small_model,
)

CLOSE = {"rtol": 0.0, "atol": 1e-5}
TOKEN_IDS, MASK = padded_rows((CONTEXT, 9, 1))
"""(3, 24), padding on the right."""


@pytest.fixture(params=FORMS)
def form(request) -> str:
    return request.param


def configuration(form: str = "NeoBERT form", **changes: object) -> NeoBERTConfig:
    return NeoBERTConfig.from_recipe(small_model(**FORMS[form]), CONTEXT, **changes)


def masked_lm(form: str, implementation: str = "sdpa") -> tuple[NeoBERTForMaskedLM, MaskedLanguageModel]:
    """The same weights as a transformers model and in the flat engine."""
    network = language_model(**FORMS[form])
    model = NeoBERTForMaskedLM._from_config(configuration(form), attn_implementation=implementation).eval()
    model.load_state_dict(network.state_dict())
    return model, network


# Equal to the engine


def test_the_classifier_is_the_fine_tuned_one(form: str) -> None:
    """Weights of `neobert.glue` load by name and give equal logits, both poolings."""
    from neobert.model.attention import padded_plan
    from neobert.model.build import build_classifier, initialize, initialize_classifier

    for pooling in ("cls", "mean"):
        trained = build_classifier(small_model(**FORMS[form]), CONTEXT, 3, 0.1).eval()
        initialize(trained, small_model().initialization, 0)
        initialize_classifier(trained, 0.1, 0)
        config = configuration(form, num_labels=3, classifier_pooling=pooling)
        model = NeoBERTForSequenceClassification(config).eval()
        model.load_state_dict(trained.state_dict())
        expected = classified(trained, TOKEN_IDS, padded_plan(MASK), pooling)
        torch.testing.assert_close(model(TOKEN_IDS, MASK).logits, expected, **CLOSE)


def attended_row_by_row(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """What a variable-length kernel does with a 2-D mask: every row without its padding."""
    attended = torch.zeros_like(query)
    for row, token in enumerate(mask.bool()):
        parts = (vectors[row : row + 1, :, token] for vectors in (query, key, value))
        attended[row, :, token] = functional.scaled_dot_product_attention(*parts, scale=scale)[0]
    return attended


@pytest.mark.parametrize("kind", ["4d", "2d"])
def test_any_function_of_the_attention_interface_serves(form: str, kind: str) -> None:
    """Also one that takes the 2-D mask which transformers gives to flash kernels."""
    model, _ = masked_lm(form)
    expected, called = model(TOKEN_IDS, MASK).logits, []

    def own(module, query, key, value, attention_mask, **options):
        called.append((module.is_causal, attention_mask.ndim))
        scale = options["scaling"]
        if kind == "2d":
            return attended_row_by_row(query, key, value, attention_mask, scale).transpose(1, 2), None
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scale)
        return attended.transpose(1, 2), None

    AttentionInterface.register(f"own_{kind}", own)
    AttentionMaskInterface.register(f"own_{kind}", sdpa_mask if kind == "4d" else flash_attention_mask)
    model.set_attn_implementation(f"own_{kind}")
    torch.testing.assert_close(model(TOKEN_IDS, MASK).logits[MASK.bool()], expected[MASK.bool()], **CLOSE)
    assert called == [(False, 4 if kind == "4d" else 2)] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flash_attention_2"])
@torch.no_grad()
def test_on_a_gpu_every_kernel_gives_the_cpus_logits(form: str, implementation: str) -> None:
    """In bf16, padded: within two percent of fp32 on the CPU."""
    if implementation.startswith("flash"):
        pytest.importorskip("flash_attn", reason="flash_attn is not installed (extra flash)")
    exact, _ = masked_lm(form)
    model, _ = masked_lm(form, implementation)
    expected = exact(TOKEN_IDS, MASK).logits[MASK.bool()]
    logits = model.to("cuda", torch.bfloat16)(TOKEN_IDS.cuda(), MASK.cuda()).logits.float().cpu()[MASK.bool()]
    assert float((logits - expected).norm()) < 0.02 * float(expected.norm())


# Inputs and outputs


def test_hidden_states_and_attentions_are_one_a_layer(form: str) -> None:
    model, _ = masked_lm(form, "eager")
    outputs = model.model(TOKEN_IDS, MASK, output_hidden_states=True, output_attentions=True)
    assert len(outputs.hidden_states) == 4 and len(outputs.attentions) == 3
    assert torch.equal(outputs.hidden_states[-1], outputs.last_hidden_state)
    for weights in outputs.attentions:
        assert weights.shape == (3, 3, CONTEXT, CONTEXT)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 3, CONTEXT))
        assert not weights[1, :, :, 9:].any()
    assert outputs.hidden_states[0].shape == (3, CONTEXT, 24)
    assert isinstance(model(TOKEN_IDS, MASK, return_dict=False), tuple)
    with pytest.raises(ValueError, match=r"attn_implementation=.eager. for output_attentions"):
        masked_lm(form, "sdpa")[0](TOKEN_IDS, output_attentions=True)


def test_what_berts_tokenizers_and_users_pass_is_understood(form: str) -> None:
    """Token types change nothing; embeddings in place of ids, explicit positions and no mask give equal logits."""
    model, _ = masked_lm(form)
    expected = model(TOKEN_IDS, MASK).logits[MASK.bool()]
    embeddings = model.get_input_embeddings()(TOKEN_IDS)
    places = torch.arange(CONTEXT)[None]
    for given in (
        {"input_ids": TOKEN_IDS, "token_type_ids": torch.ones_like(TOKEN_IDS)},
        {"inputs_embeds": embeddings},
        {"input_ids": TOKEN_IDS, "position_ids": places},
    ):
        torch.testing.assert_close(model(**{"attention_mask": MASK, **given}).logits[MASK.bool()], expected, **CLOSE)
    torch.testing.assert_close(model(TOKEN_IDS[:1]).logits[0], expected[:CONTEXT], **CLOSE)
    shifted = model(TOKEN_IDS[1:2, :9], position_ids=places[:, 3:12]).logits
    if FORMS[form]["positions"] == "learned":
        assert (shifted[0] - expected[CONTEXT : CONTEXT + 9]).abs().max() > 1e-2
    with pytest.raises(ValueError, match="exactly one of"):
        model(TOKEN_IDS, inputs_embeds=embeddings)
    with pytest.raises(ValueError, match="exactly one of"):
        model(attention_mask=MASK)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cu_seqlens": [0, 3, 20]}, "do not rise from 0 to the 24 tokens"),
        ({"cu_seqlens": [0, 30, 24]}, "do not rise"),
        ({"cu_seqlens": [0, 24], "attention_mask": [[1] * 24]}, "without attention_mask"),
        ({"cu_seqlens": [0, 24], "position_ids": [list(range(24))]}, "without attention_mask"),
    ],
)
def test_borders_that_fit_no_row_are_refused(given: dict[str, list], said: str) -> None:
    model, _ = masked_lm("NeoBERT form")
    with pytest.raises(ValueError, match=said):
        model(TOKEN_IDS[:1], **{name: torch.tensor(value) for name, value in given.items()})


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_documents_of_one_row_do_not_see_each_other(form: str, implementation: str) -> None:
    """As transformers' collator for padding-free batches returns them, and with the published forward's cu_seqlens."""
    model, _ = masked_lm(form, implementation)
    lengths = [9, 1, 14]
    documents = [random_document(length) for length in lengths]
    rows = [{"input_ids": document} for document in documents]
    alone = torch.cat([model(document[None]).logits[0] for document in documents])
    for flags in ({}, {"return_flash_attn_kwargs": True}, {"return_seq_idx": True}):
        batch = DataCollatorWithFlattening(return_tensors="pt", **flags)(rows)
        outputs = model(**batch)
        torch.testing.assert_close(outputs.logits[0], alone, **CLOSE)
        asked = batch["labels"][0] != -100
        expected = functional.cross_entropy(alone[asked], batch["labels"][0, asked])
        torch.testing.assert_close(outputs.loss, expected, **CLOSE)
    row, places = batch["input_ids"], batch["position_ids"]
    borders = {"cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).int(), "max_seqlen": max(lengths)}
    torch.testing.assert_close(model(row, **borders).logits[0], alone, **CLOSE)
    torch.testing.assert_close(model.model(row, **borders)[0], model.model(row, position_ids=places)[0], **CLOSE)
    assert (model(row).logits[0] - alone).abs().max() > 1e-3
    two = model(row.expand(2, -1), position_ids=places.expand(2, -1)).logits
    torch.testing.assert_close(two[1], alone, **CLOSE)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_row_of_padding_alone_makes_no_nan(form: str, implementation: str) -> None:
    model, _ = masked_lm(form, implementation)
    mask = MASK.clone()
    mask[2] = 0
    logits = model(TOKEN_IDS, mask).logits
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    sees = torch.eye(CONTEXT, dtype=torch.bool).repeat(3, 1, 1, 1)
    sees[0, 0, 3] = False  # a token that sees nothing, not even itself
    assert model(TOKEN_IDS, sees).logits.isfinite().all()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_masks_of_every_form_mean_the_same(form: str, implementation: str) -> None:
    """2-D and 4-D, boolean, whole numbers, or added to the scores; on the left too."""
    model, _ = masked_lm(form, implementation)
    for token in (MASK.bool(), MASK.bool().flip(1)):
        expected = masked_lm(form)[0](TOKEN_IDS, token.long()).logits[token]
        places = (token.long().cumsum(1) - 1).clamp(min=0)
        pairs = token[:, None, None, :].expand(3, 1, CONTEXT, CONTEXT)
        added = torch.zeros(pairs.shape).masked_fill(~pairs, torch.finfo(torch.float32).min)
        for given in (token, token.float(), pairs, pairs.long(), added):
            logits = model(TOKEN_IDS, given, position_ids=places).logits
            torch.testing.assert_close(logits[token], expected, **CLOSE)


def test_a_mask_of_another_shape_is_refused_in_a_sentence() -> None:
    model = NeoBERTForSequenceClassification(configuration(num_labels=2)).eval()
    for wrong in (MASK[:, :5], MASK[:, None, :], MASK[:1]):
        with pytest.raises(ValueError, match=r"attention_mask has the shape .* need \(3, 24\)"):
            model(TOKEN_IDS, wrong)
    with pytest.raises(ValueError, match=r"needs a 2-D attention_mask"):
        model(TOKEN_IDS, MASK.bool()[:, None, None, :].expand(3, 1, CONTEXT, CONTEXT))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_classifier_reads_the_same_with_padding_on_either_side(form: str, pooling: str) -> None:
    """With padding on the left, [CLS] is the first token and not the first column."""
    model = NeoBERTForSequenceClassification(configuration(form, num_labels=3, classifier_pooling=pooling)).eval()
    documents = [random_document(length) for length in (9, 4, 1)]
    sides = [
        torch.nn.utils.rnn.pad_sequence(documents, True, padding_side=side, padding_value=-1)
        for side in ("right", "left")
    ]
    right, left = (model(ids.clamp(min=0), (ids >= 0).long()).logits for ids in sides)
    torch.testing.assert_close(left, right, **CLOSE)
    alone = torch.cat([model(document[None]).logits for document in documents])
    torch.testing.assert_close(right, alone, **CLOSE)


# Losses


def test_labels_give_torchs_losses(form: str) -> None:
    labels = TOKEN_IDS.where(MASK.bool() & (TOKEN_IDS % 2 == 0), -100)
    model, _ = masked_lm(form)
    outputs = model(TOKEN_IDS, MASK, labels=labels)
    torch.testing.assert_close(outputs.loss, functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten()))
    classes = torch.tensor([0, 2, 1])
    config = configuration(form, num_labels=3)
    sequences = NeoBERTForSequenceClassification(config).eval()(TOKEN_IDS, MASK, labels=classes)
    torch.testing.assert_close(sequences.loss, functional.cross_entropy(sequences.logits, classes))
    regression = NeoBERTForSequenceClassification(configuration(form, num_labels=1)).eval()
    scores = regression(TOKEN_IDS, MASK, labels=torch.tensor([0.5, 1.0, -2.0]))
    torch.testing.assert_close(scores.loss, (scores.logits[:, 0] - torch.tensor([0.5, 1.0, -2.0])).square().mean())
    tags = torch.where(MASK.bool(), TOKEN_IDS % 3, -100)
    tokens = NeoBERTForTokenClassification(config).eval()(TOKEN_IDS, MASK, labels=tags)
    torch.testing.assert_close(tokens.loss, functional.cross_entropy(tokens.logits.flatten(0, 1), tags.flatten()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_loss_and_gradients_are_finite_and_near(form: str, dtype: torch.dtype) -> None:
    model, _ = masked_lm(form)
    exact = model(TOKEN_IDS, MASK, labels=TOKEN_IDS).loss
    with torch.autocast("cpu", dtype=dtype):
        loss = model(TOKEN_IDS, MASK, labels=TOKEN_IDS).loss
    loss.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.01, atol=0)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_gradient_checkpointing_changes_no_gradient(form: str) -> None:
    model, _ = masked_lm(form)
    gradients = []
    new_name = hasattr(model, "activation_checkpointing_enable")
    enable = model.activation_checkpointing_enable if new_name else model.gradient_checkpointing_enable
    for checkpointed in (False, True):
        if checkpointed:
            enable()
        model.train()(TOKEN_IDS, MASK, labels=TOKEN_IDS).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.zero_grad()
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain, rtol=0, atol=1e-7)


def test_new_weights_start_as_the_recipe_says(form: str) -> None:
    """Uniform in ±decoder_init_range and ±embedding_init_range, norms 1, biases 0."""
    model = NeoBERTForMaskedLM(configuration(form))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.zeros_like(parameter) if "bias" in name else torch.ones_like(parameter))
        else:
            bound = 0.3 if "encoder.weight" in name or "positional" in name else 0.2
            assert 0.9 * bound < float(parameter.detach().abs().max()) <= bound


# Machinery


def test_the_vocabulary_grows(form: str, tmp_path) -> None:
    model, _ = masked_lm(form)
    before = model(TOKEN_IDS).logits
    model.resize_token_embeddings(53)
    assert model.config.vocab_size == 53 and model.decoder.bias.shape == (53,)
    torch.testing.assert_close(model(TOKEN_IDS).logits[..., :50], before, **CLOSE)
    assert model(torch.tensor([[52]]), labels=torch.tensor([[52]])).loss.isfinite()
    model.save_pretrained(tmp_path)
    again = NeoBERTForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(again(TOKEN_IDS).logits, model(TOKEN_IDS).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_loaded_in_half_precision_only_the_weights_are_rounded(form: str, dtype: torch.dtype, tmp_path) -> None:
    """Rotary angles are not among them: in fp32 arithmetic the model equals one with rounded weights, and in its own it
    stays near it."""
    model, _ = masked_lm(form)
    model.save_pretrained(tmp_path)
    exact = model(TOKEN_IDS, MASK).logits[MASK.bool()]
    loaded = NeoBERTForMaskedLM.from_pretrained(tmp_path, dtype=dtype)
    rounded = loaded(TOKEN_IDS, MASK).logits[MASK.bool()]
    assert rounded.dtype == dtype
    assert float((rounded - exact).norm()) < 0.02 * float(exact.norm())
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype).float())
    torch.testing.assert_close(loaded.float()(TOKEN_IDS, MASK).logits, model(TOKEN_IDS, MASK).logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("auto", "own"), AUTO_CLASSES.items())
def test_loading_through_the_auto_class_and_saving_changes_no_byte(form: str, tmp_path, auto: str, own: type) -> None:
    own(configuration(form, num_labels=5)).save_pretrained(tmp_path / "one")
    loaded = getattr(transformers, auto).from_pretrained(tmp_path / "one")
    assert type(loaded) is own
    loaded.save_pretrained(tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_accelerates_device_maps_place_it_whole_or_block_by_block(form: str, tmp_path) -> None:
    """Built without memory, then filled; a block on disk is fetched for its turn."""
    pytest.importorskip("accelerate", reason="accelerate is not installed (extra export)")
    model, _ = masked_lm(form)
    model.save_pretrained(tmp_path / "saved", max_shard_size="5KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 2
    parts = ["model.encoder", "model.positional_embedding", "model.layer_norm", "decoder"]
    places = dict.fromkeys(parts, "cpu") | {f"model.transformer_encoder.{layer}": "cpu" for layer in range(3)}
    for placed in ("auto", places | {"model.transformer_encoder.1": "disk"}):
        loaded = NeoBERTForMaskedLM.from_pretrained(
            tmp_path / "saved", device_map=placed, offload_folder=tmp_path / "disk"
        )
        assert torch.equal(loaded(TOKEN_IDS, MASK).logits, model(TOKEN_IDS, MASK).logits)


def spread(model: Any) -> Any:
    """Move all after the first block to another device, and the arguments by hooks, as accelerate does."""
    heads = [part for part in model.children() if part is not model.model]
    for module in (*model.model.transformer_encoder[1:], model.model.layer_norm, *heads):
        module.to("meta").register_forward_pre_hook(lambda _, given: tuple(part.to("meta") for part in given))
    return model


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("changes", [FORMS["M0 form"], {"block": "post_norm"}], ids=str)
def test_blocks_on_another_device_are_whole_and_get_all_tensors(implementation: str, changes: dict[str, Any]) -> None:
    config = NeoBERTConfig.from_recipe(small_model(**changes), CONTEXT)
    model = NeoBERTForMaskedLM._from_config(config, attn_implementation=implementation).eval()
    blocks = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
    assert blocks == list(model.model.transformer_encoder)
    assert spread(model)(TOKEN_IDS, MASK).logits.is_meta
    for pooling in ("cls", "mean"):
        config.classifier_pooling = pooling
        assert spread(NeoBERTForSequenceClassification(config).eval())(TOKEN_IDS, MASK).logits.is_meta


def test_flash_kernels_are_told_of_borders_in_one_row_on_the_device_of_their_block() -> None:
    """In several rows they refuse them."""
    seen: list[Tensor] = []

    def kernel(module, query, key, value, attention_mask, position_ids=None, **_):
        assert attention_mask is None
        seen.append(position_ids)
        return query.transpose(1, 2), None

    AttentionInterface.register("flash_seen", kernel)
    AttentionMaskInterface.register("flash_seen", flash_attention_mask)
    model, _ = masked_lm("NeoBERT form")
    model.config._attn_implementation = "flash_seen"
    places = torch.cat([torch.arange(10), torch.arange(14)])[None]
    model(TOKEN_IDS[:1], position_ids=places)
    assert len(seen) == 3 and all(torch.equal(each, places) for each in seen)
    with pytest.raises(ValueError, match="flatten the batch to one row"):
        model(TOKEN_IDS[:2], position_ids=places.expand(2, -1))
    spread(model)(TOKEN_IDS[:1], position_ids=places)
    assert [each.is_meta for each in seen[3:]] == [False, True, True]


def test_compiled_whole_it_gives_equal_logits(form: str) -> None:
    model, _ = masked_lm(form)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(TOKEN_IDS, MASK).logits, model(TOKEN_IDS, MASK).logits, **CLOSE)


def test_exported_it_takes_other_shapes(form: str) -> None:
    model, _ = masked_lm(form)
    rows, tokens = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("tokens", min=2, max=CONTEXT)
    shapes = {"input_ids": {0: rows, 1: tokens}, "attention_mask": {0: rows, 1: tokens}}
    inputs = {"input_ids": TOKEN_IDS[:, :20].clone(), "attention_mask": MASK[:, :20].clone()}
    program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False).module()
    for size in ((3, CONTEXT), (2, 9)):
        given = {"input_ids": TOKEN_IDS[: size[0], : size[1]], "attention_mask": MASK[: size[0], : size[1]]}
        torch.testing.assert_close(program(**given).logits, model(**given).logits, **CLOSE)
