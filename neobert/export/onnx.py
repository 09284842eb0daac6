"""Exports as ONNX graphs for any number of rows and tokens: logits, and hidden states with sentence vectors."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neobert.export.checkpoint import (
    PretrainedCheckpoint,
    flat_logits,
    flat_means,
    flat_states,
    probes,
    require_close,
    require_equal_tokens,
    require_packages,
)
from neobert.export.huggingface import masked_language_model, transformers_tokenizer
from neobert.hub import NeoBERTForMaskedLM, NeoBERTModel
from neobert.model.heads import mean_over_tokens

OPSET = 18
TOLERANCE = 1e-4
INPUTS = ("input_ids", "attention_mask")
LANGUAGE_MODEL, EMBEDDING = "model.onnx", "embedding.onnx"


class Logits(nn.Module):
    """Module that returns the logits of masked language modelling, (rows, tokens, vocabulary)."""

    outputs = ("logits",)

    def __init__(self, model: NeoBERTForMaskedLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return logits; both inputs are (rows, tokens) int64."""
        return (self.model(input_ids=input_ids, attention_mask=attention_mask).logits,)


class Embedding(nn.Module):
    """Module that returns hidden states (rows, tokens, width) and their mean over tokens (rows, width)."""

    outputs = ("last_hidden_state", "sentence_embedding")

    def __init__(self, model: NeoBERTModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return hidden states and means; both inputs are (rows, tokens) int64."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return hidden, mean_over_tokens(hidden, attention_mask - 1)


def write_onnx(checkpoint: PretrainedCheckpoint, folder: Path) -> dict[str, float]:
    """Write both graphs, config.json and the tokenizer, and run them on padded rows; return the measured deviations.

    Raises:
        ValueError: onnx, onnxscript or onnxruntime is not installed.
        ParityOff: token ids differ from the run's, or a graph's outputs by more than 1e-4.
    """
    model = masked_language_model(checkpoint)
    model.config.save_pretrained(folder)
    tokenizer = transformers_tokenizer(checkpoint.tokenizer, checkpoint.run.context)
    tokenizer.save_pretrained(folder)
    require_equal_tokens(type(tokenizer).from_pretrained(folder), checkpoint)
    write_graph(Logits(model), folder / LANGUAGE_MODEL)
    write_graph(Embedding(model.model), folder / EMBEDDING)
    documents, token_ids, mask = probes(checkpoint.run)
    token = mask.bool()
    (logits,) = run_graph(folder / LANGUAGE_MODEL, token_ids, mask)
    hidden, means = run_graph(folder / EMBEDDING, token_ids, mask)
    pairs = {
        "logits": (logits[token], flat_logits(checkpoint, documents)),
        "last_hidden_state": (hidden[token], flat_states(checkpoint, documents)),
        "sentence_embedding": (means, flat_means(checkpoint, documents)),
    }
    return {name: require_close(name, found, expected, TOLERANCE) for name, (found, expected) in pairs.items()}


def write_graph(module: Logits | Embedding, path: Path) -> None:
    """Trace `module` with dynamic rows and tokens (up to the context, if positions are learned).

    Raises:
        ValueError: onnx, onnxscript or onnxruntime is not installed.
    """
    require_packages("onnx", "onnxscript", "onnxruntime")
    context, learned = module.model.config.max_length, module.model.config.positions == "learned"
    rows = torch.export.Dim("rows", min=1)
    tokens = torch.export.Dim("tokens", min=1, max=context if learned else None)
    example = torch.ones(3, max(2, min(context - 1, 7)), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns about its own deprecated calls
        program = torch.onnx.export(
            module.eval(),
            (example, example.clone()),
            dynamo=True,
            opset_version=OPSET,
            input_names=INPUTS,
            output_names=module.outputs,
            dynamic_shapes={name: {0: rows, 1: tokens} for name in INPUTS},
            verbose=False,
        )
    assert program is not None
    program.save(path)


def run_graph(path: Path, token_ids: Tensor, mask: Tensor) -> list[Tensor]:
    """Run a graph on the CPU and return its outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, {"input_ids": token_ids.numpy(), "attention_mask": mask.numpy()})
    return [torch.from_numpy(output) for output in outputs]
