"""Whether this machine trains as those on which the study's losses were recorded.

A small recipe is trained for 96 steps on a slice of text that the repository has, and its losses are compared with
those recorded for the instructions of this processor (`torch.backends.cpu.get_cpu_capability`).
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from neobert.errors import EXIT_DONE, ParityOff
from neobert.files import json_bytes, read_json, replace_file

SLICE = Path(__file__).resolve().parents[1] / "examples" / "slice"
RECORDED = Path(__file__).with_suffix(".json")

VARIANT, SCALE, STEPS = "M1", "study", 96

ROUNDING = 1e-5
"""Largest relative difference of a loss that rounding explains. In fp32, sums in another order change the losses of 96
steps by 1.8e-7: DEFAULT compared with AVX2."""


def check_machine(*, record: bool, as_json: bool) -> int:
    """Train, print how the losses compare, and return 0 if they agree exactly or within rounding. `record` writes them
    as those of this processor's instructions instead.

    Raises:
        ParityOff: the losses differ by more than rounding.
        RunFailed: the training failed.
    """
    import torch

    capability, losses = torch.backends.cpu.get_cpu_capability(), measure_losses()
    recorded: dict[str, Any] = read_json(RECORDED) if RECORDED.is_file() else {"losses": {}}
    if record:
        recorded = {
            **{"variant": VARIANT, "scale": SCALE, "torch": torch.__version__.split("+")[0]},
            "losses": {**recorded["losses"], capability: losses},
        }
        replace_file(RECORDED, json_bytes(recorded))
    found = compare(losses, capability, recorded["losses"])
    if as_json:
        print(json.dumps({"capability": capability, "torch": torch.__version__, **found}))
    else:
        print(f"{capability}, torch {torch.__version__}: {found['verdict']}")
    if not found["agrees"]:
        raise ParityOff(
            f"the losses differ by up to {found['largest_difference']:.1e} of their value, rounding explains "
            f"{ROUNDING:.0e}: compare the version of torch (recorded with {recorded['torch']}) and the processor"
        )
    return EXIT_DONE


def measure_losses() -> list[float]:
    """Return the training loss of each step, in nats per predicted token."""
    from ablations import api

    with tempfile.TemporaryDirectory() as folder:
        run = api.train(VARIANT, SCALE, steps=STEPS, data=SLICE, runs=folder, workers=1)
        return [float(loss) for loss in run.metrics.loss.dropna()]


def compare(losses: list[float], capability: str, recorded: dict[str, list[float]]) -> dict[str, Any]:
    """Compare losses with those recorded for the same instructions, or with the nearest others if there are none."""

    def difference(other: list[float]) -> float:
        return max(abs(mine - theirs) / theirs for mine, theirs in zip(losses, other, strict=True))

    against = capability if capability in recorded else min(recorded, key=lambda name: difference(recorded[name]))
    largest = difference(recorded[against])
    if largest == 0:
        words = "exactly"
    elif largest <= ROUNDING:
        words = f"within rounding (largest relative difference {largest:.1e})"
    else:
        words = f"no: the largest relative difference is {largest:.1e}"
    verdict = f"the losses of {len(losses)} steps agree with those of {against} {words}"
    return {
        "agrees": largest <= ROUNDING,
        "verdict": verdict,
        "recorded_capability": against,
        "largest_difference": largest,
    }
