"""Tiny models with random weights in the layouts in which baselines of the paper are published."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from neobert.export.huggingface import transformers_tokenizer
from tests.support import external_models as world

WIDTH = 16


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
