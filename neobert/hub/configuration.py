"""NeoBERTConfig, the config.json of every model of the ladder.

Keys are named as in the published checkpoint (hidden_size, norm_eps, …); options that it does not have (learned
positions, GELU, layer norm, initial weights) are named as in the recipe.
"""

from typing import Any, Literal, Self

from pydantic import ValidationError
from transformers import PreTrainedConfig

from neobert import recipe
from neobert.errors import did_you_mean

RECIPE_NAMES = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "feedforward_width",
    "positions": "positions",
    "rotary_base": "rotary_base",
    "feedforward": "feedforward",
    "norm": "norm",
    "norm_eps": "norm_epsilon",
    "dropout": "dropout",
    "block": "block",
    "tie_word_embeddings": "tied_embeddings",
    "part_settings": "settings",
}
"""Keys of config.json to fields of `recipe.Model`."""

INITIALIZATION_NAMES = {
    "init_distribution": "distribution",
    "decoder_init_range": "weight_scale",
    "embedding_init_range": "embedding_scale",
    "position_init_range": "position_scale",
}
"""Keys of config.json to fields of `recipe.Initialization`."""

IGNORED_PUBLISHED = frozenset(
    {
        *("auto_map", "base_scale", "dim_head", "flash_attention", "kwargs"),
        *("pretrained_model_name_or_path", "trust_remote_code"),
    }
)
"""Keys of published configurations that have no effect here."""

POOLINGS = ("cls", "mean")
"""Poolings of a classification head."""


class NeoBERTConfig(PreTrainedConfig):
    r"""
    Configuration of NeoBERT or of any step of its ablation ladder. The defaults are those of
    [chandar-lab/NeoBERT](https://huggingface.co/chandar-lab/NeoBERT), whose config.json can be loaded too.

    Args:
        vocab_size (`int`): Rows of the token embedding.
        hidden_size (`int`): Width of a hidden state.
        num_hidden_layers (`int`): Number of blocks.
        num_attention_heads (`int`): Attention heads per block.
        intermediate_size (`int`): Nominal width of the feed-forward; a gated one takes two thirds of it.
        max_length (`int`): Context in tokens: the size of a learned position table; rotary models accept longer inputs.
        positions (`str`): `"rotary"` or `"learned"`.
        rotary_base (`float`): Base of the rotary angles.
        feedforward (`str`): `"swiglu"`, `"geglu"` or `"gelu"`; own code is named as `"ReLU2@3f2a9c01d2e4"`.
        norm (`str`): `"rms_norm"` or `"layer_norm"`.
        norm_eps (`float`): Epsilon that a norm adds to the variance.
        dropout (`float`): Dropout after attention and feed-forward.
        block (`str`): `"pre_norm"` or `"post_norm"`.
        part_settings (`dict`): Hyper-parameters of own parts, by `"positions"`, `"feedforward"`, `"norm"` or `"block"`.
        init_distribution (`str`): `"uniform"` or `"normal"`.
        decoder_init_range, embedding_init_range, position_init_range (`float`):
            Half-width or standard deviation of new matrices, token embeddings and learned positions.
        classifier_init_range (`float`): Standard deviation of a new classification head.
        classifier_dropout (`float`): Dropout of a classification head.
        classifier_pooling (`str`): `"cls"` or `"mean"`.
        pad_token_id (`int`): Id of the padding token.

    Raises:
        ValueError: an option has an impossible value. Unknown keys are kept.

    Example:

    ```python
    >>> from neobert.hub import NeoBERTConfig, NeoBERTModel

    >>> configuration = NeoBERTConfig()
    >>> model = NeoBERTModel(configuration)
    ```
    """

    model_type = "neobert"
    attribute_map = {"max_position_embeddings": "max_length"}  # noqa: RUF012 - transformers' convention

    vocab_size: int = 30_522
    hidden_size: int = 768
    num_hidden_layers: int = 28
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_length: int = 4096
    positions: str = "rotary"
    rotary_base: float = 10_000.0
    feedforward: str = "swiglu"
    norm: str = "rms_norm"
    norm_eps: float = 1e-5
    dropout: float = 0.0
    block: str = "pre_norm"
    part_settings: dict[str, Any] | None = None
    init_distribution: Literal["uniform", "normal"] = "uniform"
    decoder_init_range: float = 0.02
    embedding_init_range: float = 0.02
    position_init_range: float = 0.02
    classifier_init_range: float = 0.02
    classifier_dropout: float = 0.1
    classifier_pooling: Literal["cls", "mean"] = "cls"
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Translate published switches; refuse impossible values."""
        known = {key: value for key, value in self._without_published(kwargs).items() if key not in IGNORED_PUBLISHED}
        if "transformers_weights" in known:
            raise ValueError(
                f"config.json names the weights {known['transformers_weights']!r} (transformers_weights): only "
                "model.safetensors is read"
            )
        super().__post_init__(**known)
        self.to_recipe()

    @classmethod
    def from_recipe(cls, model: recipe.Model, context: int, **heads: Any) -> Self:
        """Make the configuration of `model` for `context` tokens; `heads` are keys that `recipe.Model` lacks."""
        values = {key: getattr(model, field) for key, field in RECIPE_NAMES.items()}
        start = {key: getattr(model.initialization, field) for key, field in INITIALIZATION_NAMES.items()}
        return cls(**values, **start, max_length=context, **heads)

    def to_recipe(self) -> recipe.Model:
        """Convert to the recipe's model. Raises ValueError if an option's word is unknown, or a value impossible."""
        if (pooling := self.classifier_pooling) not in POOLINGS:
            raise ValueError(f"config.json has classifier_pooling {pooling!r}: {did_you_mean(str(pooling), POOLINGS)}")
        start = {field: getattr(self, key) for key, field in INITIALIZATION_NAMES.items()}
        values = {field: getattr(self, key) for key, field in RECIPE_NAMES.items()}
        values["settings"] = self.part_settings or {}
        values |= {name: getattr(self, name) for name in recipe.Model.retired.keys() & vars(self).keys()}
        try:
            return recipe.Model.read({**values, "initialization": start})
        except ValidationError as error:
            raise ValueError(f"config.json describes no model: {_first_problem(error)}") from error

    def _without_published(self, keys: dict[str, Any]) -> dict[str, Any]:
        """Set options from the switches of the authors' repository; return the remaining `keys`."""
        rest = dict(keys)
        if rest.pop("ngpt", False):
            raise ValueError("config.json says ngpt: true, and normalised GPT blocks are not supported")
        if "rope" in rest:
            self.positions = "rotary" if rest.pop("rope") else "learned"
        if "rms_norm" in rest:
            self.norm = "rms_norm" if rest.pop("rms_norm") else "layer_norm"
        if "hidden_act" in rest:
            self.feedforward = rest.pop("hidden_act").lower()
        if "rope_theta" in rest:
            self.rotary_base = rest.pop("rope_theta")
        return rest


def _first_problem(error: ValidationError) -> str:
    """Format the first problem in one sentence, with the key's name in config.json."""
    first = error.errors()[0]
    keys = {field: key for key, field in (RECIPE_NAMES | INITIALIZATION_NAMES).items()}
    key = keys.get(str(first["loc"][-1])) if first["loc"] else None
    problem = first["msg"].removeprefix("Value error, ")
    return f"{key} is {first['input']!r}: {problem}" if key else problem
