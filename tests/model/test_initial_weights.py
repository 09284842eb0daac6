"""Weights start where they started: the names of parameters seed their values, so a renamed module is another model."""

import hashlib

from torch import nn

from ablations.loading import papers
from ablations.scaling import scaled
from neobert.model.build import build_classifier, build_masked_language_model, initialize, initialize_classifier
from neobert.recipe import Pretraining
from tests.support.golden_files import GoldenFiles


def digest_of(module: nn.Module) -> str:
    """A digest of the names, shapes and bytes of all values."""
    digest = hashlib.sha256()
    for name, values in module.state_dict().items():
        digest.update(f"{name} {tuple(values.shape)}".encode() + values.contiguous().numpy().tobytes())
    return digest.hexdigest()


def masked_language_model(recipe: Pretraining) -> nn.Module:
    module = build_masked_language_model(recipe.model, recipe.longest_context)
    initialize(module, recipe.model.initialization, recipe.seed)
    return module


def test_every_variant_starts_from_the_same_weights(golden: GoldenFiles) -> None:
    recipes = {
        name: scaled(papers(), variant.recipe, "smoke", "trained").pretraining
        for name, variant in papers().variants.items()
    }
    modules = {name: masked_language_model(recipe) for name, recipe in recipes.items()}
    golden.compare_entries("initial_weights.json", {name: digest_of(module) for name, module in modules.items()})


def test_the_head_of_a_fine_tuned_model_starts_from_the_same_weights(golden: GoldenFiles) -> None:
    recipe = scaled(papers(), papers().variants["M7"].recipe, "smoke", "trained")
    classifier = build_classifier(recipe.pretraining.model, 64, 3, 0.1)
    initialize_classifier(classifier, recipe.finetuning.classifier_scale, 0)
    head = nn.ModuleDict({"dense": classifier.dense, "classifier": classifier.classifier})
    golden.compare_entries("initial_head.json", {"three labels": digest_of(head)})
