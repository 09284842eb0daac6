"""Tiny models with random weights in the layouts in which baselines of the paper are published."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from neobert.export.huggingface import transformers_tokenizer
from tests.support import external_models as world

WIDTH, LAYERS, HEADS, INNER = 16, 2, 2, 32
ROTARY_BASE = 1000


def nomic_configuration(**changes: Any) -> dict[str, Any]:
    """config.json of nomic-ai/nomic-bert-2048, in GPT-2's words, with other sizes."""
    return {
        "model_type": "nomic_bert",
        "architectures": ["NomicBertForPreTraining"],
        "auto_map": {"AutoConfig": "configuration_hf_nomic_bert.NomicBertConfig"},
        "activation_function": "swiglu",
        "vocab_size": world.specials()["vocab_size"],
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_inner": INNER,
        "n_positions": world.CONTEXT,
        "layer_norm_epsilon": 1e-12,
        "type_vocab_size": 2,
        "prenorm": False,
        "causal": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "rotary_emb_base": ROTARY_BASE,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "use_flash_attn": True,
        **changes,
    }


def nomic_weights() -> dict[str, Tensor]:
    """Tensors as NomicBertForPreTraining saves them."""
    torch.manual_seed(0)
    rows = world.specials()["vocab_size"]
    weights = {
        "bert.embeddings.word_embeddings.weight": torch.randn(rows, WIDTH),
        "bert.embeddings.token_type_embeddings.weight": torch.randn(2, WIDTH),
        "bert.emb_ln.weight": 1 + torch.randn(WIDTH) / 10,
        "bert.emb_ln.bias": torch.randn(WIDTH) / 10,
        "cls.predictions.transform.dense.weight": torch.randn(WIDTH, WIDTH),
        "cls.predictions.decoder.bias": torch.randn(rows),
    }
    for layer in range(LAYERS):
        prefix = f"bert.encoder.layers.{layer}"
        weights |= {
            f"{prefix}.attn.Wqkv.weight": torch.randn(3 * WIDTH, WIDTH) / 4,
            f"{prefix}.attn.out_proj.weight": torch.randn(WIDTH, WIDTH) / 4,
            f"{prefix}.mlp.fc11.weight": torch.randn(INNER, WIDTH) / 4,
            f"{prefix}.mlp.fc12.weight": torch.randn(INNER, WIDTH) / 4,
            f"{prefix}.mlp.fc2.weight": torch.randn(WIDTH, INNER) / 4,
        }
        for norm in ("norm1", "norm2"):
            weights[f"{prefix}.{norm}.weight"] = 1 + torch.randn(WIDTH) / 10
            weights[f"{prefix}.{norm}.bias"] = torch.randn(WIDTH) / 10
    return weights


def save_nomic(folder: Path, **changes: Any) -> Path:
    """A checkpoint of NomicBERT with a tokenizer of BERT's kind."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(nomic_configuration(**changes)))
    save_file(nomic_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = transformers_tokenizer(world.tokenizer(), world.CONTEXT)
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.save_pretrained(folder)
    return folder


def nomic_hidden_states(weights: dict[str, Tensor], token_ids: Tensor, token_types: Tensor) -> Tensor:
    """NomicBERT in plain torch (Nussbaum et al. 2024): post-norm, rotary halves, SwiGLU whose gate is fc12; ids, types
    (tokens) → (tokens, width)."""

    def norm(hidden: Tensor, name: str) -> Tensor:
        return F.layer_norm(hidden, (WIDTH,), weights[f"bert.{name}.weight"], weights[f"bert.{name}.bias"], 1e-12)

    embeddings = "bert.embeddings.{}_embeddings.weight"
    hidden = weights[embeddings.format("word")][token_ids] + weights[embeddings.format("token_type")][token_types]
    hidden = norm(hidden, "emb_ln")
    for layer in range(LAYERS):
        prefix = f"encoder.layers.{layer}"
        product = {name: weights[f"bert.{prefix}.{name}.weight"] for name in ("attn.Wqkv", "attn.out_proj")}
        query, key, value = (hidden @ product["attn.Wqkv"].T).view(-1, 3, HEADS, WIDTH // HEADS).unbind(1)
        query, key = _rotated(query), _rotated(key)
        scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(WIDTH // HEADS)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(-1, WIDTH)
        hidden = norm(hidden + mixed @ product["attn.out_proj"].T, f"{prefix}.norm1")
        up, gate, down = (weights[f"bert.{prefix}.mlp.{name}.weight"] for name in ("fc11", "fc12", "fc2"))
        hidden = norm(hidden + (hidden @ up.T * F.silu(hidden @ gate.T)) @ down.T, f"{prefix}.norm2")
    return hidden


def _rotated(heads: Tensor) -> Tensor:
    size = heads.shape[-1]
    angles = torch.outer(torch.arange(len(heads)), ROTARY_BASE ** (-torch.arange(0, size, 2) / size))[:, None]
    first, second = heads.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def save_remote(folder: Path, *, repository: str = "") -> Path:
    """A model whose classes lie in its own folder, or by its config.json in another `repository`."""
    folder.mkdir(parents=True)
    transformers_tokenizer(world.tokenizer(), world.CONTEXT).save_pretrained(folder)
    (folder / "configuration.py").write_text(CONFIGURATION_CODE)
    (folder / "modeling.py").write_text(MODELING_CODE)
    place = f"{repository}--" if repository else ""
    content = {
        "model_type": "new",
        "auto_map": {"AutoConfig": f"{place}configuration.NewConfig", "AutoModel": f"{place}modeling.NewModel"},
        "vocab_size": world.specials()["vocab_size"],
        "hidden_size": WIDTH,
        "max_position_embeddings": world.CONTEXT,
    }
    (folder / "config.json").write_text(json.dumps(content))
    torch.manual_seed(0)
    embedding = torch.randn(content["vocab_size"], WIDTH)
    weights = {"embeddings.weight": embedding, "mixing.weight": torch.randn(WIDTH, WIDTH) / 4}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


CONFIGURATION_CODE = """
from transformers import PreTrainedConfig


class NewConfig(PreTrainedConfig):
    model_type = "new"

    def __init__(self, vocab_size=1, hidden_size=1, max_position_embeddings=1, **kwargs):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**kwargs)
"""

MODELING_CODE = '''
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .configuration import NewConfig


class NewModel(PreTrainedModel):
    """Every token sees the mean of all, at a position whose table is computed and not saved."""

    config_class = NewConfig

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mixing = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.register_buffer("table", torch.arange(config.max_position_embeddings).float().sin(), persistent=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings

    def forward(self, input_ids, attention_mask=None, return_dict=True):
        hidden = self.embeddings(input_ids) * (1 + self.table[: input_ids.shape[1], None])
        weights = attention_mask[..., None].float()
        mean = (hidden * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
        return BaseModelOutput(last_hidden_state=hidden + self.mixing(mean))
'''
