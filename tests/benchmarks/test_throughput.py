"""The benchmark of throughput times forward passes of whole rows, each model at its best batch, and records them."""

import statistics
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from benchmarks import throughput
from benchmarks.__main__ import main, read_results
from benchmarks.contenders import huggingface_shape
from benchmarks.measuring import Timing, count_operations
from benchmarks.throughput import (
    CPU_SETTING,
    ENCODERS,
    QUARTERS,
    ROBERTA,
    ROUNDS,
    Encoder,
    Forward,
    compared,
    throughput_record,
)
from neobert.execution import utc_now
from neobert.files import replace_file
from neobert.recipe import Precision
from neobert.runs.kinds import read_records
from neobert.runs.layout import Layout
from neobert.runs.records import ThroughputConfig, ThroughputScores, sealed

CPU = torch.device("cpu")
SHAPE = huggingface_shape(2, 64, 1, 96)
SMALL = (
    Encoder("small neobert", "neobert", {"layers": 2, "width": 64, "heads": 1, "feedforward_width": 96}),
    Encoder("small modernbert", "modernbert", SHAPE),
    Encoder("small bert", "bert", SHAPE),
    Encoder("small roberta", "roberta", ROBERTA | SHAPE),
)
SETTING = CPU_SETTING._replace(encoders=SMALL, lengths=(16, 32), batch_tokens=(32, 64), steps=2, compared=32)


def forward_of(encoder: Encoder, rows: int, tokens: int, precision: Precision = "fp32") -> Forward:
    """On the CPU."""
    return Forward(encoder, rows, tokens, precision, "sdpa", CPU)


@pytest.mark.parametrize("encoder", SMALL, ids=lambda encoder: encoder.family)
@pytest.mark.parametrize("precision", get_args(Precision))
@torch.inference_mode()
def test_every_family_gives_hidden_states_up_to_its_last_position(encoder: Encoder, precision: Precision) -> None:
    """Without dropout."""
    forward, token_ids = forward_of(encoder, 1, 512, precision), torch.randint(1000, 30_000, (1, 512))
    module = forward.build()
    hidden = forward.hidden_states(module, token_ids)
    assert hidden.shape == (1, 512, 64) and hidden.isfinite().all()
    assert hidden.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    assert torch.equal(forward.hidden_states(module, token_ids), hidden)


def test_a_step_is_one_forward_pass_over_all_rows_and_returns_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def hidden_states(forward: Forward, module: torch.nn.Module, token_ids: torch.Tensor) -> None:
        assert torch.is_inference_mode_enabled()
        seen.append(tuple(token_ids.shape))

    monkeypatch.setattr(Forward, "hidden_states", hidden_states)
    step = forward_of(SMALL[0], 3, 16).make()
    assert (step(), step()) == (48, 48) and seen == [(3, 16)] * 2


@pytest.mark.parametrize("tokens", [8, 32])
def test_operations_of_a_token_are_those_of_its_weights_and_of_attention(tokens: int) -> None:
    """All tokens of a row are attended to: two products of the width, with as many positions as tokens."""
    forward = forward_of(SMALL[0], 1, tokens)
    products = sum(each.weight.numel() for each in forward.build().modules() if isinstance(each, torch.nn.Linear))
    assert count_operations({"ours": forward.make}, 1) == {"ours": 2 * products + 4 * tokens * 64 * 2}


def write(folder: Path, forward: Forward, *walls: float) -> dict[str, Any]:
    """Write the record of a pass with these times of a token, of two steps each."""
    record = throughput_record(forward, [1 / wall for wall in walls], 2, utc_now())
    replace_file(Layout(folder).throughput(str(record["id"])), sealed(record))
    return record


def test_a_record_is_complete_and_read_by_the_reports(tmp_path: Path) -> None:
    record = write(tmp_path, forward_of(SMALL[0], 2, 32), 0.5, 0.25, 0.2, 0.125)
    (read,), problems = read_records(tmp_path)
    assert not problems and {key: read[key] for key in record} == record
    assert read["started_at"] <= read["finished_at"]
    config = ThroughputConfig.model_validate(record["config"])
    assert (config.model, config.sequence_tokens, config.batch_size, config.steps) == ("small neobert", 32, 2, 8)
    scores = ThroughputScores.model_validate(record["scores"])
    assert scores.tokens_per_second == statistics.median([2, 4, 5, 8])
    assert scores.spread == pytest.approx(statistics.stdev([2, 4, 5, 8]))
    assert {"device", "date", "packages", "machine", "commit"} <= record.keys()
    assert "forward" in record["labels"]["pass"]


def test_a_newer_measurement_takes_the_place_of_an_older_one_alone(tmp_path: Path) -> None:
    write(tmp_path, forward_of(SMALL[0], 2, 32), 0.5, 0.5)
    write(tmp_path, forward_of(SMALL[0], 2, 16), 0.5, 0.5)
    write(tmp_path, forward_of(SMALL[0], 2, 32), 0.25, 0.25)
    write(tmp_path, forward_of(SMALL[0], 2, 32, "bf16"), 0.25, 0.25)
    rates = sorted(record["scores"]["tokens_per_second"] for record in read_records(tmp_path)[0])
    assert rates == [2.0, 4.0, 4.0]


def test_without_a_gpu_the_small_models_are_measured_at_lengths_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = SETTING._replace(lengths=(32, 1024), batch_tokens=(1024, 2048))
    monkeypatch.setattr(throughput, "CPU_SETTING", setting)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["throughput", "--folder", str(tmp_path)]) == 0
    (ours,) = read_results(tmp_path)
    assert (ours["name"], ours["open"]) == ("throughput_over_modernbert", None) and ours["figures"]["threads"] == 1
    assert ours["ratio"] == ours["figures"]["ratio"]["processor"]["median"] > 0
    found = {(each["config"]["model"], each["config"]["sequence_tokens"]): each for each in read_records(tmp_path)[0]}
    lengths = {"small neobert": (32, 1024), "small modernbert": (32, 1024), "small bert": (32,), "small roberta": (32,)}
    assert found.keys() == {(name, tokens) for name, able in lengths.items() for tokens in able}
    for (_, tokens), record in found.items():
        assert record["config"]["batch_size"] in (1024 // tokens, 2048 // tokens)
        assert record["config"]["steps"] == ROUNDS * setting.steps


def test_on_a_gpu_modernbert_without_its_kernels_leaves_the_goal_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be slower than at its best. No GPU is needed to say so."""
    monkeypatch.setattr(throughput, "count_operations", lambda makers, steps: dict.fromkeys(makers, 1))
    own, other = (Forward(encoder, 2, 16, "bf16", "sdpa", torch.device("cuda")) for encoder in SMALL[:2])
    found = {own.name: [Timing(1.0, 1.0, 32)], other.name: [Timing(2.0, 2.0, 32)]}
    assert compared(found, own, other).open == "flash-attn missing"
    fast = other._replace(attention="flash_attention_2")
    assert (compared(found, own, fast).open, compared(found, own, fast).ratio["median"]) == (None, 2.0)


def test_real_sizes_have_the_parameters_that_are_published_for_them() -> None:
    """Without their heads; NeoBERT's 221.7 million and the rest to a hundredth."""
    millions = [221.7, 149.0, 108.9, 124.1, 334.1, 354.3, 394.8]
    with torch.device("meta"):
        for encoder, expected in zip(ENCODERS, millions, strict=True):
            count = sum(parameter.numel() for parameter in encoder.build("sdpa").parameters()) / 1e6
            assert count == pytest.approx(expected, rel=0.01), encoder.name


def test_quarters_have_a_quarter_of_the_depth_and_width() -> None:
    for quarter, whole in zip(QUARTERS, ENCODERS, strict=False):
        with torch.device("meta"):
            small, large = (
                [each.weight.shape for each in encoder.build("sdpa").modules() if isinstance(each, torch.nn.Linear)]
                for encoder in (quarter, whole)
            )
        assert small[0] == torch.Size(size // 4 for size in large[0]), quarter.name
        assert len(small) / len(large) == pytest.approx(0.25, rel=0.1), quarter.name
