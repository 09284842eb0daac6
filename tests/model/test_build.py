"""Names, shapes and starting values of parameters, and the classifier."""

import pytest
import torch

from neobert import recipe
from neobert.model.build import build_classifier, build_masked_language_model, initialize, initialize_classifier
from neobert.model.heads import mean_over_tokens
from tests.support.small_models import CONTEXT, FORMS, released_shapes, small_model


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_tensors_are_those_of_the_released_checkpoint_at_its_size(form):
    shape = {"vocabulary_size": 30_522, "layers": 28, "width": 768, "heads": 12, "feedforward_width": 3072}
    model = small_model(**shape, **form)
    with torch.device("meta"):
        network = build_masked_language_model(model, 512)
    assert {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()} == released_shapes(model, 512)
    assert form is not FORMS["NeoBERT form"] or len(network.state_dict()) == 172


# Starting values


def started(seed: int = 0, distribution: str = "uniform", **changes) -> dict[str, torch.Tensor]:
    """The state dict of a freshly initialized model: matrices at 0.02, embeddings at 0.5, positions at 0.1."""
    network = build_masked_language_model(small_model(width=48, vocabulary_size=400, **changes), CONTEXT)
    scales = {"weight_scale": 0.02, "embedding_scale": 0.5, "position_scale": 0.1}
    initialize(network, recipe.Initialization.model_validate({"distribution": distribution} | scales), seed)
    return network.state_dict()


def scale_of(name: str) -> float:
    return {"model.encoder.weight": 0.5, "model.positional_embedding.weight": 0.1}.get(name, 0.02)


@pytest.mark.parametrize(
    ("distribution", "deviation", "tolerance"), [("uniform", 3**-0.5, 0.05), ("normal", 1.0, 0.06)]
)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_matrices_have_the_standard_deviation_of_their_distribution(form, distribution, deviation, tolerance):
    """A uniform one has its range, and rows of padding are drawn too."""
    for name, values in started(distribution=distribution, **form).items():
        if values.ndim == 2:
            assert float(values.std()) == pytest.approx(scale_of(name) * deviation, rel=tolerance), name
            assert (float(values.abs().max()) <= scale_of(name)) is (distribution == "uniform") and values[0].all()


def test_norms_start_at_one_and_biases_at_zero():
    for name, values in started(**FORMS["M0 form"]).items():
        if values.ndim == 1:
            assert torch.equal(values, torch.full_like(values, 0.0 if name.endswith("bias") else 1.0)), name


def test_parameters_that_two_variants_share_start_equal():
    bert, neobert = started(**FORMS["M0 form"]), started(**FORMS["NeoBERT form"])
    shared = bert.keys() & neobert.keys()
    assert len(shared) == 3 + 5 * 3 - 3 + 1
    assert all(torch.equal(bert[name], neobert[name]) for name in shared)


# Classifier


def test_the_head_is_dense_tanh_and_classifier_and_its_dropout_acts_in_training_alone():
    built, pooled = build_classifier(small_model(), CONTEXT, 3, 0.5), torch.randn(2, 24)
    expected = built.classifier(torch.tanh(built.dense(pooled)))
    torch.testing.assert_close(built.eval().head(pooled), expected, rtol=0, atol=1e-6)
    assert not torch.allclose(built.train().head(pooled), expected)


def test_the_mean_leaves_padding_out_whatever_stands_there():
    hidden = torch.tensor([[[1.0], [3.0], [float("nan")]], [[7.0], [8.0], [9.0]]])
    assert mean_over_tokens(hidden, torch.tensor([[0, 1, -1], [-1, -1, -1]])).tolist() == [[2.0], [0.0]]


def test_the_head_starts_normal_and_the_encoder_keeps_its_values():
    built = build_classifier(small_model(width=48), CONTEXT, 400, 0.0)
    before = {name: values.clone() for name, values in built.model.state_dict().items()}
    initialize_classifier(built, 0.02, seed=3)
    assert all(torch.equal(before[name], values) for name, values in built.model.state_dict().items())
    assert not built.dense.bias.any() and not built.classifier.bias.any()
    for linear in (built.dense, built.classifier):
        assert float(linear.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
        assert float(linear.weight.detach().abs().max()) > 0.05
    weights = built.dense.weight.clone()
    initialize_classifier(built, 0.02, seed=4)
    assert not torch.equal(weights, built.dense.weight)
