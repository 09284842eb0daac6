"""Check the project's claims about GPUs on this one, each check in a process of its own.

examples:
  python -m benchmarks.acceptance                  # on a GPU; the same command goes on after a break
  python -m benchmarks.acceptance step speed       # some of the checks
  python -m benchmarks.acceptance speed --again    # judged already, but once more
  python -m benchmarks.acceptance --rehearse       # tiny, on a CPU: tries the checks, says nothing about GPUs

The result file holds every claim with its value and goal, and the versions and date of each check. Exit codes: 0 all
held, 4 a claim was falsified, 1 a check died or took too long, 2 bad input, 3 no GPU.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import FOLDER, SIGNS, Result, describe_machine, describe_versions
from neobert.command_line import count, guarded, parser_from, refuse_no_folder
from neobert.errors import EXIT_DONE, EXIT_OFF, EXIT_RUN_FAILED, MissingData, did_you_mean
from neobert.files import json_bytes, read_json, replace_file
from neobert.processes import end_with_parent, gpu_variables, start_child, without_place, worker_environment

if TYPE_CHECKING:
    from benchmarks.acceptance.checks import Check

CHECKS = {
    name: f"benchmarks.acceptance.{module}:{name.upper()}"
    for module, names in (
        ("checks", "environment kernels step memory"),
        ("worker_checks", "syncs"),
        ("checks", "speed profile graphs contrastive"),
        ("attention_checks", "attention"),
        ("worker_checks", "resume group compiled"),
    )
    for name in names.split()
}
"""The location of each `Check`, in the order in which they run."""

RANK_CHECKS = {
    name: f"benchmarks.acceptance.worker_checks:{name.upper()}" for name in ["ranks", "zero", "lost", "scaling"]
}
"""Checks that need two GPUs."""

LIMIT_SECONDS = 600
"""Compiling 28 layers is estimated at two minutes, and most checks of steps compile twice."""

STDERR = 2
"""File descriptor for the output of checks, so that stdout is reserved for `--json`."""

JUDGED = ("held", "falsified")
Outcome = dict[str, Any]
"""The outcome of a check: `state` (held, falsified, died, too long), `seconds`, `claims`, `figures`, `why`, and `date`
and `versions` of the measurement."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = parser_from("python -m benchmarks.acceptance", __doc__)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join([*CHECKS, *RANK_CHECKS])} (all)")
    parser.add_argument("--rehearse", action="store_true", help="a tiny model on the CPU; judges no speed")
    parser.add_argument("--again", action="store_true", help="repeat checks that were judged already")
    parser.add_argument(
        "--limit", type=count, default=LIMIT_SECONDS, help=f"seconds that a check may take (default: {LIMIT_SECONDS})"
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER / "acceptance", help="of the result file (benchmarks/results/acceptance)"
    )
    parser.add_argument("--json", action="store_true", help="print the result file instead of a line a claim")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # runs one check, in its separate process
    options = parser.parse_args(arguments)
    if options.into:
        return measure(options.checks[0], options.rehearse, options.into)
    return guarded("benchmarks.acceptance", lambda: accept(options), options.folder)


def accept(options: argparse.Namespace) -> int:
    """Run the checks that these versions have not judged yet, write the result file after each, and print the outcomes.

    Raises:
        ValueError: a check is not known, or needs more GPUs than there are.
        MissingData: there is no GPU.
    """
    refuse_no_folder("--folder", options.folder)
    path, result = open_result(options.folder, options.rehearse)
    chosen = chosen_checks(options.checks, 2 if options.rehearse else result["machine"]["gpus"])
    versions = describe_versions()
    for name in chosen:
        known = result["checks"].get(name, {})
        if not options.again and known.get("state") in JUDGED and known.get("versions") == versions:
            print(f"{name}: judged already; --again repeats it", file=sys.stderr)
        else:
            outcome = run_check(name, options.rehearse, options.limit)
            day = datetime.now(UTC).date().isoformat()
            result["checks"][name] = {**outcome, "date": day, "versions": versions}
            replace_file(path, json_bytes(result))
        if not options.json:
            print("\n".join(describe(name, result["checks"][name])), flush=True)
    if options.json:
        print(json_bytes(result).decode())
    states = {name: result["checks"][name]["state"] for name in chosen}
    print(f"{summary(states)}; {path}", file=sys.stderr)
    if "falsified" in states.values():
        return EXIT_OFF
    return EXIT_DONE if set(states.values()) == {"held"} else EXIT_RUN_FAILED


def chosen_checks(names: Sequence[str], gpus: int) -> list[str]:
    """Return the checks of these names (default: all that are possible with `gpus`), in the order in which they run."""
    possible = CHECKS | (RANK_CHECKS if gpus > 1 else {})
    for name in names:
        if name in RANK_CHECKS and name not in possible:
            raise ValueError(f"check {name!r} needs two GPUs, and there is {gpus} here: leave it out")
        if name not in possible:
            raise ValueError(f"{name!r} is no check: {did_you_mean(name, possible)}")
    return [name for name in possible if name in (names or possible)]


def open_result(folder: Path, rehearse: bool) -> tuple[Path, dict[str, Any]]:
    """Return the path of this machine's result file, and its content, or that of a new one.

    Raises:
        MissingData: there is no GPU, and this is not a rehearsal.
    """
    import torch

    if not rehearse and not torch.cuda.is_available():
        raise MissingData("there is no GPU here, so nothing can be accepted: --rehearse tries the checks on the CPU")
    machine: dict[str, Any] = describe_machine() | {"gpus": torch.cuda.device_count()}
    name = "rehearsal" if rehearse else re.sub(r"\W+", "-", machine["gpu"]).lower()
    path = folder / f"{name}.json"
    new = {"name": "acceptance", "rehearsal": rehearse, "machine": machine}
    known = read_json(path) if path.exists() else {}
    if known and any(known.get(key) != value for key, value in new.items()):
        print(f"{path} is of another machine, and begins anew", file=sys.stderr)
        known = {}
    return path, new | {"checks": known.get("checks", {})}


def run_check(name: str, rehearse: bool, limit_seconds: int) -> Outcome:
    """Run a check in a separate process, which is killed after `limit_seconds`."""
    print(f"{name} …", file=sys.stderr, flush=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "found.json"
        child = start_child(command_of(name, rehearse, into), environment_of(rehearse), STDERR)
        try:
            code = child.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            child.kill()
            child.wait()
        found = read_json(into) if into.exists() else {"results": [], "why": None}
    results = [Result(**result) for result in found["results"]]
    outcome = judge(resolve_name({**CHECKS, **RANK_CHECKS}[name]), results)
    if code is None:
        outcome |= {"state": "too long", "why": f"not done within {limit_seconds} s: --limit gives it more"}
    elif code != 0 or found["why"]:
        outcome |= {"state": "died", "why": found["why"] or describe_end(code)}
    return {**outcome, "seconds": round(time.perf_counter() - started, 1)}


def command_of(name: str, rehearse: bool, into: Path) -> list[str]:
    """Return the command that runs one check in a separate process and writes its results to the file `into`."""
    flags = ["--rehearse"] if rehearse else []
    return [sys.executable, "-m", "benchmarks.acceptance", name, *flags, "--into", str(into)]


def environment_of(rehearse: bool) -> Mapping[str, str]:
    """Return the environment of a check: that of a worker, with this copy of the code and CUDA's variables, but all
    threads; in a rehearsal one thread and no GPU."""
    of_worker = worker_environment(1)
    if rehearse:
        return of_worker | {"CUDA_VISIBLE_DEVICES": ""}
    return without_place(os.environ) | gpu_variables(os.environ) | {"PYTHONPATH": of_worker["PYTHONPATH"]}


def describe_end(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def measure(name: str, rehearse: bool, into: Path) -> int:
    """Run one check in this process, write its results even after an error, and return an exit code."""
    from benchmarks.acceptance.checks import setting_here

    end_with_parent()
    check: Check = resolve_name({**CHECKS, **RANK_CHECKS}[name])
    found: list[Result] = []
    why = None
    try:
        found.extend(check.measure(setting_here(rehearse)))
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    replace_file(into, json_bytes({"results": [result._asdict() for result in found], "why": why}))
    return EXIT_DONE if why is None else EXIT_RUN_FAILED


def judge(check: "Check", results: Sequence[Result]) -> Outcome:
    """Compare results with the goals: a missed goal falsifies the check, and a goal without a value stays open."""
    values = {result.name: result.ratio for result in results}
    claims = {
        name: {"value": values.get(name), "met": goal.is_met(values.get(name)), "goal": asdict(goal)}
        for name, goal in check.goals.items()
    }
    figures = {key: value for result in results for key, value in result.figures.items()}
    is_falsified = any(claim["met"] is False for claim in claims.values())
    return {"state": "falsified" if is_falsified else "held", "claims": claims, "figures": figures, "why": None}


def describe(name: str, outcome: Outcome) -> list[str]:
    """Return a line for the check and one for each of its claims."""
    why = f": {outcome['why']}" if outcome["why"] else ""
    lines = [f"{name}: {outcome['state']}{why} ({outcome['seconds']} s)"]
    for claim in outcome["claims"].values():
        goal = claim["goal"]
        word = {True: "holds", False: "FALSIFIED", None: "open"}[claim["met"]]
        value = "not measured" if claim["value"] is None else f"{claim['value']:.4g}"
        lines.append(f"  {word:9}  {value}, claimed {SIGNS[goal['side']]} {goal['bound']:g}: {goal['of']}")
    return lines


def summary(states: Mapping[str, str]) -> str:
    """Return how many checks held, and which did not."""
    others = ", ".join(f"{name} {state}" for name, state in states.items() if state != "held")
    held = sum(state == "held" for state in states.values())
    return f"{held} of {len(states)} checks held" + (f"; {others}" if others else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
