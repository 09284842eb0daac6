"""Checkpoints that transformers' own classes read once their config.json and names of tensors are translated."""

from collections.abc import Mapping
from typing import Any

KEY_MAPPINGS: Mapping[str, dict[str, str]] = {"nomic_bert": {r"^bert\.": ""}}
"""By model_type: what to replace in names of tensors. NomicBERT was saved under a language model's head."""

_NOMIC_ALWAYS: Mapping[str, Any] = {
    "activation_function": "swiglu",
    "prenorm": False,
    "parallel_block": False,
    "causal": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "use_rms_norm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
}
"""What transformers' class does always."""


def native_configuration(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A config.json as transformers' class of its model_type reads it; `name` is for errors.

    Raises:
        ValueError: it asks for what that class does not do.
    """
    if content.get("model_type") == "nomic_bert" and "n_embd" in content:
        return _nomic_bert(content, name)
    return dict(content)


def _nomic_bert(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """From GPT-2's words, in which NomicBERT was published (nomic-ai/contrastors, configuration_hf_nomic_bert.py)."""
    lacking = [key for key in ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions") if key not in content]
    if lacking:
        raise ValueError(f"config.json of {name} lacks {', '.join(lacking)}: fetch it again")
    for key, only in _NOMIC_ALWAYS.items():
        if key in content and content[key] != only:
            raise ValueError(f"{name} sets {key} to {content[key]!r}: transformers' nomic_bert knows {only!r} alone")
    positions = content["n_positions"]
    if content.get("rotary_scaling_factor"):  # its dynamic scaling starts behind the positions that it was trained on
        positions = min(positions, content.get("max_trained_positions", positions))
    return {
        "model_type": "nomic_bert",
        "vocab_size": content["vocab_size"],
        "hidden_size": content["n_embd"],
        "num_hidden_layers": content["n_layer"],
        "num_attention_heads": content["n_head"],
        "intermediate_size": content.get("n_inner") or 4 * content["n_embd"],
        "hidden_act": "silu",
        "hidden_dropout_prob": content.get("resid_pdrop", 0.0),
        "attention_probs_dropout_prob": content.get("attn_pdrop", 0.0),
        "max_position_embeddings": positions,
        "type_vocab_size": content.get("type_vocab_size", 2),
        "layer_norm_eps": content.get("layer_norm_epsilon", 1e-12),
        "rope_parameters": {"rope_type": "default", "rope_theta": content.get("rotary_emb_base", 10_000)},
    }
