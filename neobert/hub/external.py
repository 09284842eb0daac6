"""Load any encoder that transformers' AutoModel loads; a checkpoint's own code runs only if the user trusts it."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import logging

from neobert.data.tokenizers import Framed
from neobert.external import CONFIGURATION, model_files, read_settings
from neobert.files import json_bytes
from neobert.hub.modeling import list_tensors

KEY_MAPPINGS: Mapping[str, dict[str, str]] = {"nomic_bert": {r"^bert\.": ""}}
"""Replacements in tensor names by model_type. NomicBERT was saved as a part of its language model."""

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
"""The only values that transformers' class supports."""


def native_configuration(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Convert a config.json to the keys that transformers' class of its model_type reads; `name` is for errors. Raises
    ValueError if it needs an option that the class does not support."""
    if content.get("model_type") != "nomic_bert" or "n_embd" not in content:
        return dict(content)
    # NomicBERT was published with GPT-2's key names (nomic-ai/contrastors, configuration_hf_nomic_bert.py).
    for key, only in _NOMIC_ALWAYS.items():
        if key in content and content[key] != only:
            raise ValueError(f"{name} sets {key} to {content[key]!r}: transformers' nomic_bert knows {only!r} alone")
    positions = content["n_positions"]
    if content.get("rotary_scaling_factor"):  # dynamic scaling starts after the trained positions
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


UNBOUNDED_TOKENS = 1_000_000
"""Limit from which a tokenizer counts as unbounded."""

NEVER_READ = ("pooler.",)
"""Name prefixes of tensors that a checkpoint may lack, because the protocol adds its own heads."""

LONGEST_CAUSE = 300
PROBE_TOKENS = 8
PADDING_TOLERANCE = 1e-3


class ExternalEncoder(nn.Module):
    """An encoder of transformers, with the dropout of its configuration."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        self.encoder = encoder
        types = getattr(encoder.config, "type_vocab_size", None)
        has_types = isinstance(types, int) and types > 1
        self.reads_token_types = has_types and "token_type_ids" in inspect.signature(encoder.forward).parameters

    @property
    def width(self) -> int:
        """Size of a hidden state; in ELECTRA and ALBERT it differs from the embedding's."""
        return int(self.encoder.config.hidden_size)

    @property
    def embedding(self) -> nn.Embedding:
        """The token embedding. Raises ValueError if the model has none."""
        found = self.encoder.get_input_embeddings()
        if not isinstance(found, nn.Embedding):
            raise ValueError(f"{type(self.encoder).__name__} reads no token ids: --model takes an encoder of text")
        return found

    @property
    def most_tokens(self) -> int | None:
        """Longest input in tokens, by the configuration; None if it gives no limit."""
        positions = getattr(self.encoder.config, "max_position_embeddings", None)
        if not isinstance(positions, int) or positions <= 0:
            return None
        tables = [module for name, module in self.encoder.named_modules() if name.endswith("position_embeddings")]
        offsets = [table.padding_idx for table in tables if isinstance(table, nn.Embedding)]
        # RoBERTa's family counts positions from the padding id + 1, so the first rows of the table are never used.
        return positions - max((offset + 1 for offset in offsets if offset is not None), default=0)

    @property
    def pad_id(self) -> int:
        """The model's padding id, or 0 if it has none; padding is masked anyway."""
        return getattr(self.encoder.config, "pad_token_id", None) or 0

    def forward(self, token_ids: Tensor, mask: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Return hidden states (rows, tokens, width) for ids, mask and token types, (rows, tokens) each."""
        inputs = {"input_ids": token_ids, "attention_mask": mask}
        if token_types is not None and self.reads_token_types:
            inputs["token_type_ids"] = token_types
        hidden: Tensor = self.encoder(**inputs, return_dict=True).last_hidden_state
        return hidden


@dataclass(frozen=True)
class ExternalTokenizer:
    """A tokenizer of transformers with its own special tokens, which are never parsed from text."""

    tokenizer: Any

    @property
    def most_tokens(self) -> int | None:
        """The tokenizer's own length limit in tokens; None if it has none."""
        limit = int(self.tokenizer.model_max_length)
        return limit if limit < UNBOUNDED_TOKENS else None

    def frame_all(self, columns: Sequence[Sequence[str]], *, max_tokens: int) -> list[Framed]:
        """Tokenize texts, or pairs from two columns, with special tokens; the longer text of a pair is cut first."""
        framed = self._frame_all(columns, max_tokens + 1)  # one extra token shows which are too long
        long = [number for number, text in enumerate(framed) if len(text.token_ids) > max_tokens]
        if long:
            cut = self._frame_all([[column[number] for number in long] for column in columns], max_tokens)
            for number, text in zip(long, cut, strict=True):
                framed[number] = text._replace(is_cut=True)
        return framed

    def _frame_all(self, columns: Sequence[Sequence[str]], max_tokens: int) -> list[Framed]:
        encoded = self.tokenizer(
            *(list(column) for column in columns),
            truncation="longest_first",
            max_length=max_tokens,
            split_special_tokens=True,
            return_attention_mask=False,
        )
        types = encoded.get("token_type_ids") or repeat(None)
        return [Framed(list(ids), kind) for ids, kind in zip(encoded["input_ids"], types, strict=False)]


def load_external(folder: Path, name: str, trusts_code: bool = False) -> tuple[ExternalEncoder, ExternalTokenizer]:
    """Load the fp32 encoder and the tokenizer of a folder; `name` is for errors. Only `model_files` are read.

    Raises:
        MissingData, ValueError: as in `model_files`, or transformers cannot load them, or tensors of the encoder are
            missing.
    """
    files = model_files(folder, name, trusts_code)
    content = _configuration(folder, files, name, trusts_code)
    with _quiet(), TemporaryDirectory() as root, torch.random.fork_rng(devices=[]), _one_sentence(name):
        view = Path(root) / folder.name  # with links to these files only
        for file in files:
            (view / file).parent.mkdir(parents=True, exist_ok=True)
            (view / file).symlink_to((folder / file).resolve())
        (view / CONFIGURATION).unlink()
        (view / CONFIGURATION).write_bytes(json_bytes(content))
        options = {"trust_remote_code": trusts_code, "local_files_only": True}
        configuration = AutoConfig.from_pretrained(view, **options)
        torch.manual_seed(0)  # tensors that the checkpoint lacks start equal in every process
        model: Any = AutoModel
        if own := trusts_code and (content.get("auto_map") or {}).get("AutoModel"):
            # AutoModel takes the class that it loaded first for all folders with equal configuration classes.
            model = get_class_from_dynamic_module(own, view, local_files_only=True)
        encoder, report = model.from_pretrained(
            view,
            config=configuration,
            use_safetensors=True,
            dtype=torch.float32,
            key_mapping=KEY_MAPPINGS.get(configuration.model_type),
            output_loading_info=True,
            **options,
        )
        tokenizer = AutoTokenizer.from_pretrained(view, config=configuration, **options)
    if configuration.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder ({configuration.model_type}): --model takes an encoder")
    if configuration.model_type in KEY_MAPPINGS:  # or saving undoes the mapping, and AutoModel finds tensors missing
        vars(encoder).pop("_weight_conversions", None)
    if own:  # transformers runs __init__ on the meta device: buffers that the class computes there are undefined
        with torch.device("cpu"):
            rebuilt = type(encoder)(encoder.config)
        rebuilt.load_state_dict(encoder.state_dict())
        encoder = rebuilt
    encoder.config.name_or_path = tokenizer.name_or_path = str(folder)
    if lacking := sorted(key for key in report["missing_keys"] if not key.startswith(NEVER_READ)):
        raise ValueError(f"{name} lacks {list_tensors(lacking)}: it is incomplete or fits another config.json")
    return ExternalEncoder(encoder), ExternalTokenizer(tokenizer)


def _configuration(folder: Path, files: Sequence[str], name: str, trusts_code: bool) -> dict[str, Any]:
    """Return the config.json for AutoModel. Classes that auto_map names come from the folder, also if it names the
    repository in which they were published ("REPOSITORY--module.Class")."""
    content = read_settings(folder / CONFIGURATION)
    named = content.get("auto_map")
    if not trusts_code or not isinstance(named, dict):
        return native_configuration(content, name)
    local = {}
    for auto in {"AutoConfig", "AutoModel"} & named.keys():
        repository, _, local[auto] = str(named[auto]).rpartition("--")
        module = f"{local[auto].rpartition('.')[0]}.py"
        if module not in files:
            raise ValueError(
                f"{name} has no {module}{f' of {repository}' if repository else ''}, which its auto_map names: put the "
                "Python files beside config.json, as ablations/prefetch.py --models does"
            )
    return {**content, "auto_map": local}


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    """Turn errors of loading the model `name` into one sentence each."""
    try:
        yield
    except Exception as error:  # transformers, safetensors and tokenizers raise many kinds
        cause = " ".join(str(error).split())[:LONGEST_CAUSE] or type(error).__name__
        if "trust_remote_code" in str(error):
            cause = "it has code of its own, which runs only with --trust-remote-code"
        raise ValueError(f"transformers cannot load {name}: {cause}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and load reports; errors are still raised."""
    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


def inspect_model(folder: Path, name: str, trusts_code: bool = False) -> dict[str, Any]:
    """Load a model and check that it is an encoder, before a grid is built on it; return its model_type, its number of
    parameters and its context in tokens, special tokens included (None if unbounded).

    Raises:
        ValueError: it cannot be loaded, attends from left to right only, padding changes its output, or its tokenizer
            has ids that its embedding has not.
    """
    encoder, tokenizer = load_external(folder, name, trusts_code)
    encoder.eval()
    rows = encoder.embedding.num_embeddings
    highest = max(tokenizer.tokenizer.get_vocab().values(), default=-1)
    if highest >= rows:
        raise ValueError(f"the tokenizer of {name} has the id {highest}, but its embedding only {rows} rows")
    _require_two_directions(encoder, name, rows)
    limits = [limit for limit in (encoder.most_tokens, tokenizer.most_tokens) if limit is not None]
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    model_type = str(encoder.encoder.config.model_type)
    return {"model_type": model_type, "parameters": parameters, "context": min(limits, default=None)}


@torch.no_grad()
def _require_two_directions(encoder: ExternalEncoder, name: str, rows: int) -> None:
    """Check that the first token attends to the last one, and that padding does not change the output."""
    known = [number for number in range(rows) if number != encoder.pad_id][: PROBE_TOKENS + 1]
    tokens, other = torch.tensor([known[:-1]]), torch.tensor([[*known[:-2], known[-1]]])
    padded = torch.nn.functional.pad(tokens, (0, PROBE_TOKENS), value=encoder.pad_id)
    mask = (torch.arange(padded.shape[1])[None] < tokens.shape[1]).long()
    try:
        states, others = (encoder(ids, torch.ones_like(ids)) for ids in (tokens, other))
        masked = encoder(padded, mask)[:, : tokens.shape[1]]
        if masked.shape[-1] != encoder.width:
            raise ValueError(f"hidden states of {masked.shape[-1]} are not {encoder.width} wide")
    except Exception as error:  # models of images or audio fail in many ways
        raise ValueError(
            f"{name} does not map token ids and mask to hidden states ({error}): give an encoder"
        ) from error
    if torch.equal(states[0, 0], others[0, 0]):
        raise ValueError(f"{name} is a decoder: its first token sees no later one; --model takes an encoder")
    deviation = float((states - masked).abs().max() / states.abs().max())
    if not deviation <= PADDING_TOLERANCE:
        raise ValueError(f"padding changes what {name} computes (by {deviation:.0e}): batches would decide its scores")
