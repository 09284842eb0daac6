"""Tokens a second of encoders against sequence length, each at its best batch size (the paper's Figure 3, Table 9).

python -m benchmarks.throughput                         with a GPU the real sizes, else scaled-down ones on the CPU
python -m benchmarks.throughput --steps 20 --lengths 512 4096
python -m benchmarks.throughput --folder runs           records for the figures of a folder of runs

A step is a forward pass without gradients to the hidden states: inference, no head. Weights are random, and every
sequence is as long as its row, so that all tokens are real. One record a model and length goes to throughput/.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.batch_search import Found, best_batch
from benchmarks.measuring import load, median_ratio
from benchmarks.results import FOLDER, write_result, write_unmeasured
from benchmarks.throughput_records import write_throughput
from benchmarks.throughput_settings import CPU_NAME, GOALS, GPU_NAME, Setting, cpu_setting, gpu_setting
from benchmarks.throughput_timing import Running, Speed, timed_in_turns
from neobert.command_line import count, guarded, parser_from
from neobert.errors import EXIT_DONE

SEARCH_STEPS = 3


def measured(setting: Setting, left_out: dict[str, str]) -> Iterator[Speed]:
    """All models at all lengths, a length after the other; `left_out` is told what has no speed and why."""
    running = []
    for encoder in setting.encoders:
        try:
            running.append(Running.of(encoder, setting.attention, setting.device, setting.precision))
        except ImportError as error:
            left_out[encoder.name] = str(error).partition("\n")[0]
    for tokens in setting.lengths:
        searches = _searches(setting, running, tokens, left_out)
        racing = [model for model in running if model.encoder.name in searches]
        found = [searches[model.encoder.name] for model in racing]
        yield from timed_in_turns(racing, found, tokens, setting.steps, setting.turns)


def _searches(setting: Setting, models: Sequence[Running], tokens: int, left_out: dict[str, str]) -> dict[str, Found]:
    """The search of each model that reads so many tokens, by name; none that does not have the room for one row."""
    searches: dict[str, Found] = {}
    for model in models:
        name = f"{model.encoder.name} at {tokens} tokens"
        if not model.encoder.reads(tokens):
            left_out[name] = f"it has {model.encoder.positions} positions"
            continue
        search = _search(setting, model, tokens)
        if search.best is None:
            left_out[name] = search.ended
        else:
            searches[model.encoder.name] = search
    return searches


def _search(setting: Setting, model: Running, tokens: int) -> Found:
    """By the clock on a GPU, else by processor time, which others on the machine disturb less."""
    most = max(1, min(setting.most_rows, setting.most_tokens // tokens))

    def speed(rows: int) -> float:
        timings = model.timed(rows, tokens, SEARCH_STEPS)
        return 1 / min(timing.wall if setting.device.type == "cuda" else timing.processor for timing in timings)

    return best_batch(speed, most)


def ratio_of(speeds: Sequence[Speed], setting: Setting) -> dict[str, float] | None:
    """How many times as fast the one is as the other that is compared, by clock and by processor: medians of paired
    ratios; None where one is missing."""
    times = {speed.encoder.name: speed.per_token for speed in speeds if speed.tokens == setting.compared}
    if setting.own not in times or setting.other not in times:
        return None
    return median_ratio(times[setting.other], times[setting.own])


def figures_of(setting: Setting, speeds: Sequence[Speed], left_out: dict[str, str]) -> dict[str, Any]:
    """All medians and the setting, for the result file."""
    medians: dict[str, dict[str, int]] = {}
    for speed in speeds:
        medians.setdefault(speed.encoder.name, {})[str(speed.tokens)] = round(speed.median)
    return {
        "title": setting.title,
        "ratio": ratio_of(speeds, setting),
        "tokens per second, median": medians,
        "left out": left_out,
        "precision": setting.precision,
        "attention of Hugging Face's models": setting.attention,
        "steps": setting.steps,
        "threads": torch.get_num_threads(),
    }


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = parser_from("python -m benchmarks.throughput", __doc__)
    add = parser.add_argument
    add("--lengths", nargs="+", type=count, metavar="TOKENS", help="default: 512 … 8192 on a GPU, 128 … 1024 on a CPU")
    add("--steps", type=count, metavar="N", help="timed steps of a model at a length (default: 100 on a GPU, else 12)")
    add("--folder", type=Path, default=FOLDER, help="where the records and the result go (default: benchmarks/results)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = build_parser().parse_args(arguments)
    return guarded("benchmarks.throughput", lambda: measure(options), options.folder)


def measure(options: argparse.Namespace) -> int:
    """Measure what this machine can, and write the records and the ratio: by the clock on a GPU, else by processor."""
    has_gpu = torch.cuda.is_available()
    setting, name, other = (gpu_setting(), GPU_NAME, CPU_NAME) if has_gpu else (cpu_setting(), CPU_NAME, GPU_NAME)
    setting = replace(setting, lengths=tuple(options.lengths or setting.lengths), steps=options.steps or setting.steps)
    write_unmeasured(other, GOALS[other], options.folder)
    print(setting.title, flush=True)
    before, left_out, speeds = load(), dict[str, str](), list[Speed]()
    for speed in measured(setting, left_out):
        speeds.append(speed)
        write_throughput(options.folder, speed, setting)
        print(_line(speed), flush=True)
    for what, reason in left_out.items():
        print(f"  left out: {what}, {reason}")
    figures = figures_of(setting, speeds, left_out) | {"load_before": before, "load_after": load()}
    ratio = figures["ratio"] and figures["ratio"]["wall" if has_gpu else "processor"]
    print(write_result(name, ratio, GOALS[name], figures, options.folder).read_text())
    return EXIT_DONE


def _line(speed: Speed) -> str:
    what = f"{speed.encoder.name}, {speed.tokens} tokens: {speed.median:,.0f} tokens a second"
    return f"  {what} at batch {speed.found.best} ({speed.found.ended})"


if __name__ == "__main__":
    sys.exit(main())
