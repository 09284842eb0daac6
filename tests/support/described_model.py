"""The released model as its description has it, one document at a time: an independent reference for small models."""

import torch
from torch import Tensor
from torch.nn import functional

HEADS, HEAD_SIZE = 3, 8


def described_norm(weights: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    if f"{name}.bias" in weights:
        centred = hidden - hidden.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-5) * weights[f"{name}.weight"]


def described_turn(vectors: Tensor) -> Tensor:
    frequencies = 1.0 / 10_000 ** (torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    angles = torch.outer(torch.arange(len(vectors)), frequencies)
    phases = torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.view_as_real(torch.view_as_complex(vectors.reshape(len(vectors), HEADS, -1, 2)) * phases).flatten(2)


def described_attention(weights: dict[str, Tensor], block: str, hidden: Tensor) -> Tensor:
    fused = (hidden @ weights[f"{block}.qkv.weight"].T).view(len(hidden), HEADS, 3 * HEAD_SIZE)
    query, key, value = fused.chunk(3, dim=-1)
    if "model.positional_embedding.weight" not in weights:
        query, key = described_turn(query), described_turn(key)
    scores = torch.einsum("qhd,khd->hqk", query, key) / HEAD_SIZE**0.5
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
    return mixed @ weights[f"{block}.wo.weight"].T


def described_feedforward(weights: dict[str, Tensor], block: str, hidden: Tensor) -> Tensor:
    if f"{block}.ffn.0.weight" in weights:
        return functional.gelu(hidden @ weights[f"{block}.ffn.0.weight"].T) @ weights[f"{block}.ffn.2.weight"].T
    gate, value = (hidden @ weights[f"{block}.ffn.w12.weight"].T).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * value) @ weights[f"{block}.ffn.w3.weight"].T


def described_logits(weights: dict[str, Tensor], document: Tensor) -> Tensor:
    """Logits (tokens, vocabulary) of one document, by the digest's description of the released code."""
    hidden = weights["model.encoder.weight"][document]
    if "model.positional_embedding.weight" in weights:
        hidden = hidden + weights["model.positional_embedding.weight"][1 : len(document) + 1]
    for layer in range(3):
        block = f"model.transformer_encoder.{layer}"
        hidden = hidden + described_attention(
            weights, block, described_norm(weights, f"{block}.attention_norm", hidden)
        )
        hidden = hidden + described_feedforward(weights, block, described_norm(weights, f"{block}.ffn_norm", hidden))
    hidden = described_norm(weights, "model.layer_norm", hidden)
    return hidden @ weights["decoder.weight"].T + weights["decoder.bias"]
