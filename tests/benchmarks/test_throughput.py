"""The benchmark of throughput counts real tokens, finds a batch size, names what it leaves out, and says all of it."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from benchmarks import throughput
from benchmarks.__main__ import main, read_results
from benchmarks.measuring import Timing
from benchmarks.throughput import (
    BASES,
    CPU_NAME,
    GPU_NAME,
    LARGES,
    MARGIN,
    NEOBERT,
    WARM_UP_STEPS,
    BatchSearch,
    EncoderShape,
    LoadedEncoder,
    Speed,
    ThroughputSetting,
    cpu_setting,
    measure_speeds,
    search_batch,
    throughput_record,
)
from neobert.files import replace_file
from neobert.recipe import Precision
from neobert.runs.kinds import read_records
from neobert.runs.layout import Layout
from neobert.runs.records import ThroughputConfig, ThroughputScores, sealed, utc_now
from neobert.training.accounting import DTYPES

CPU = torch.device("cpu")
FAMILIES = ("neobert", "bert", "roberta", "modernbert")


def small(family: Any) -> EncoderShape:
    """Two layers of 64; all but ours have 32 positions."""
    return EncoderShape(f"small {family}", family, 2, 64, 96, 1100, None if family == "neobert" else 32)


SMALL = tuple(small(family) for family in FAMILIES)
SETTING = replace(
    cpu_setting(),
    encoders=SMALL,
    lengths=(16, 32, 64),
    steps=4,
    most_rows=4,
    most_tokens=64,
    other="small modernbert",
    compared=32,
)


def running(shape: EncoderShape, precision: Precision = "fp32") -> LoadedEncoder:
    """On the CPU."""
    return LoadedEncoder(shape, shape.build("sdpa").to(CPU, DTYPES[precision]), CPU)


@pytest.mark.parametrize("shape", SMALL, ids=FAMILIES)
@pytest.mark.parametrize("precision", get_args(Precision))
@torch.inference_mode()
def test_every_family_gives_hidden_states_up_to_its_last_position(shape: EncoderShape, precision: Precision) -> None:
    """Of sequences as long as their rows, and without dropout."""
    model = running(shape, precision)
    token_ids = model.sequences(3, 32)
    hidden = model.forward(token_ids)
    assert (token_ids != 0).all()
    assert hidden.shape == (3, 32, 64) and hidden.isfinite().all()
    assert hidden.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    assert torch.equal(model.forward(token_ids), hidden)


def test_a_step_is_one_forward_pass_over_all_rows_and_its_time_is_told_for_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first steps do not count."""
    seen: list[tuple[int, ...]] = []

    def forward(model: LoadedEncoder, token_ids: torch.Tensor) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        seen.append(tuple(token_ids.shape))
        return token_ids

    monkeypatch.setattr(LoadedEncoder, "forward", forward)
    monkeypatch.setattr("benchmarks.throughput.time_call", lambda run: Timing(4.8, 2.4, run()))
    timings = running(SMALL[0]).time_steps(3, 16, 5)
    assert timings == [Timing(4.8 / 48, 2.4 / 48, None)] * 5 and seen == [(3, 16)] * (5 + WARM_UP_STEPS)


@pytest.mark.parametrize("tokens", [8, 32])
def test_operations_of_a_token_are_those_of_its_weights_and_of_attention(tokens: int) -> None:
    """All tokens of a row are attended to: two products of the width, with as many positions as tokens."""
    (shape,) = (shape for shape in SMALL if shape.family == "neobert")
    products = sum(
        module.weight.numel() for module in shape.build("sdpa").modules() if isinstance(module, torch.nn.Linear)
    )
    assert running(shape).operations_per_token(tokens) == 2 * products + 4 * tokens * shape.width * shape.layers


def speeds(*of_doubling: float) -> Callable[[int], float]:
    """Tokens a second of batch 1, 2, 4, …; out of memory behind the last."""

    def speed(rows: int) -> float:
        if rows.bit_length() > len(of_doubling):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has …")
        return of_doubling[rows.bit_length() - 1]

    return speed


@pytest.mark.parametrize(
    ("of_doubling", "most", "best", "tried", "ended"),
    [
        ((1, 2, 4, 4 * (1 - MARGIN) - 0.1, 9), 512, 4, 4, "slower at batch 8"),
        ((1, 2, 4, 4 * (1 - MARGIN) + 0.1, 9), 512, 16, 5, "out of memory at batch 32: CUDA out of memory"),
        ((1, 2, 4, 8), 4, 4, 3, "batch 4 is the largest that was allowed"),
        ((5,), 1, 1, 1, "batch 1 is the largest that was allowed"),
        ((), 8, None, 0, "out of memory at batch 1: CUDA out of memory"),
    ],
)
def test_the_batch_doubles_until_that_is_slower_or_memory_is_out(
    of_doubling: tuple[float, ...], most: int, best: int | None, tried: int, ended: str
) -> None:
    found = search_batch(speeds(*of_doubling), most)
    assert (found.best, len(found.tried), found.ended) == (best, tried, ended)


def test_another_error_is_no_lack_of_memory() -> None:
    def broken(rows: int) -> float:
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side"):
        search_batch(broken, 8)


def test_lengths_beyond_the_positions_and_models_without_memory_are_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = LoadedEncoder.time_steps

    def scarce(model: LoadedEncoder, rows: int, tokens: int, steps: int) -> list[Timing[None]]:
        if model.shape.family == "bert" or rows * tokens > 32:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return timed(model, rows, tokens, steps)

    monkeypatch.setattr(LoadedEncoder, "time_steps", scarce)
    left_out: dict[str, str] = {}
    found = list(measure_speeds(SETTING, left_out))
    assert left_out == {
        "small bert at 16 tokens": "out of memory at batch 1: CUDA out of memory",
        "small bert at 32 tokens": "out of memory at batch 1: CUDA out of memory",
        "small bert at 64 tokens": "it has 32 positions",
        "small roberta at 64 tokens": "it has 32 positions",
        "small modernbert at 64 tokens": "it has 32 positions",
        "small neobert at 64 tokens": "out of memory at batch 1: CUDA out of memory",
    }
    assert {(speed.encoder.shape.family, speed.tokens) for speed in found} == {
        (family, tokens) for family in ("neobert", "roberta", "modernbert") for tokens in (16, 32)
    }
    assert all(len(speed.per_token) == 4 for speed in found)


def test_an_attention_that_is_not_installed_leaves_its_models_out(monkeypatch: pytest.MonkeyPatch) -> None:
    build = EncoderShape.build

    def missing(shape: EncoderShape, attention: str) -> torch.nn.Module:
        if shape.family == "bert":
            raise ImportError(f"{attention} has not been found\nInstall it")
        return build(shape, attention)

    monkeypatch.setattr(EncoderShape, "build", missing)
    left_out: dict[str, str] = {}
    setting = replace(SETTING, lengths=(16,), attention="sdpa")
    assert len(list(measure_speeds(setting, left_out))) == 3
    assert left_out == {"small bert": "sdpa has not been found"}


def made(name: str, tokens: int, *walls: float) -> Speed:
    """A speed with these times of a token."""
    encoder = LoadedEncoder(replace(SMALL[0], name=name), torch.nn.Linear(3, 4), CPU)
    timings = tuple(Timing(wall, wall / 2, None) for wall in walls)
    return Speed(encoder, tokens, BatchSearch({1: 3.0, 2: 5.0, 4: 4.0}, "slower at batch 4"), timings, utc_now())


def write(folder: Path, speed: Speed, setting: ThroughputSetting) -> None:
    record = throughput_record(speed, setting)
    replace_file(Layout(folder).throughput(str(record["id"])), sealed(record))


def test_a_record_is_complete_and_read_by_the_reports(tmp_path: Path) -> None:
    speed = made("small neobert", 32, 0.5, 0.25, 0.2, 0.125)
    record = throughput_record(speed, SETTING)
    write(tmp_path, speed, SETTING)
    (read,), problems = read_records(tmp_path)
    assert not problems and {key: read[key] for key in record} == record | {"finished_at": read["finished_at"]}
    assert read["started_at"] == speed.started_at <= read["finished_at"]
    config = ThroughputConfig.model_validate(record["config"])
    assert (config.model, config.sequence_tokens, config.batch_size, config.steps) == ("small neobert", 32, 2, 4)
    scores = ThroughputScores.model_validate(record["scores"])
    assert scores.tokens_per_second == statistics.median([2, 4, 5, 8])
    assert scores.spread == pytest.approx(statistics.stdev([2, 4, 5, 8]))
    assert record["quartiles"] == {"low": 3.5, "high": 5.75}
    assert {"device", "date", "packages", "machine", "commit"} <= record.keys()
    assert "forward" in record["labels"]["pass"] and record["search"]["ended"] == "slower at batch 4"


def test_a_newer_measurement_takes_the_place_of_an_older_one_alone(tmp_path: Path) -> None:
    write(tmp_path, made("small neobert", 32, 0.5, 0.5), SETTING)
    write(tmp_path, made("small neobert", 16, 0.5, 0.5), SETTING)
    write(tmp_path, made("small neobert", 32, 0.25, 0.25), SETTING)
    write(tmp_path, made("small neobert", 32, 0.25, 0.25), replace(SETTING, precision="bf16"))
    rates = sorted(record["scores"]["tokens_per_second"] for record in read_records(tmp_path)[0])
    assert rates == [2.0, 4.0, 4.0]


def test_without_a_gpu_the_small_models_are_measured_and_the_real_ones_said_not_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "cpu_setting", lambda: SETTING)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["throughput", "--folder", str(tmp_path), "--lengths", "16", "32"]) == 0
    ours, real = read_results(tmp_path)
    assert (ours["name"], real["name"]) == (CPU_NAME, GPU_NAME)
    assert real["ratio"] is None and ours["ratio"] == ours["figures"]["ratio"]["processor"] > 0
    assert len(list((tmp_path / "throughput").glob("*.json"))) == 4 * 2
    assert set(ours["figures"]["operations per token"]) == {"small neobert", "small modernbert"}
    assert main(["throughput", "--folder", str(tmp_path), "--lengths", "16"]) == 0
    assert read_results(tmp_path) == [ours, real], "without the compared length the ratio on record stays"


def test_real_sizes_have_the_parameters_that_are_published_for_them() -> None:
    """Without their heads; NeoBERT's 221.7 million and the rest to a hundredth."""
    millions = [221.7, 108.9, 124.1, 149.0, 334.1, 354.3, 394.8]
    with torch.device("meta"):
        for shape, expected in zip((NEOBERT, *BASES, *LARGES), millions, strict=True):
            count = sum(parameter.numel() for parameter in shape.build("sdpa").parameters()) / 1e6
            assert count == pytest.approx(expected, rel=0.01), shape.name
