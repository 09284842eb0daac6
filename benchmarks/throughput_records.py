"""Records of throughput as the reports read them: one file a model, length and device, the newest measurement."""

import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.results import machine
from benchmarks.throughput_settings import Setting
from benchmarks.throughput_timing import Speed
from neobert.files import replace_file
from neobert.identity import identity, plain
from neobert.layout import Layout
from neobert.records import provenance, sealed
from neobert.result_records import ThroughputConfig, ThroughputScores


def write_throughput(folder: Path, speed: Speed, setting: Setting) -> Path:
    """Write a measurement below `folder`, in place of an older one of the same model, length and device."""
    content = throughput_record(speed, setting)
    path = Layout(folder).throughput(str(content["id"]))
    replace_file(path, sealed(content))
    return path


def throughput_record(speed: Speed, setting: Setting) -> dict[str, Any]:
    """The median speed of the steps, their standard deviation and quartiles, and all that tells where it comes from."""
    here = machine()
    device = str(here["gpu"] if setting.device.type == "cuda" else here["processor"])
    assert speed.found.best is not None
    steps = speed.tokens_per_second
    config = ThroughputConfig(
        model=speed.encoder.name,
        parameters=speed.parameters,
        sequence_tokens=speed.tokens,
        batch_size=speed.found.best,
        precision=setting.precision,
        compiled=False,
        steps=len(steps),
    )
    decisive = (speed.encoder.name, speed.tokens, setting.precision, setting.attention, device)
    low, _, high = statistics.quantiles(steps, n=4, method="inclusive")
    return {
        "kind": "throughput",
        "id": identity(["throughput", *decisive]),
        "state": "done",
        "inputs": {},
        "config": plain(config),
        "labels": {"pass": "forward, without gradients, hidden states", "attention": setting.attention},
        "scores": plain(ThroughputScores(tokens_per_second=speed.median, spread=statistics.stdev(steps))),
        "quartiles": {"low": low, "high": high},
        "search": {"tokens_per_second": plain(speed.found.tried), "ended": speed.found.ended},
        "seed": 0,
        "device": device,
        "date": datetime.now(UTC).date().isoformat(),
        **provenance(),
    }
