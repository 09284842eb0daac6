"""Run the benchmarks one after the other, then write the table: python -m benchmarks [--data DIR]."""

import argparse
import subprocess
import sys

ALWAYS = (
    "data_loader",
    "data_scaling",
    "data_tokenize",
    "engine_memory",
    "pretraining_peers",
    "pretraining_gpu",
    "scaling_processes",
    "throughput",
)
ON_DATA_OR_SYNTHETIC = ("encoding", "glue_trainer")


def main() -> int:
    """The command; 1 where a benchmark did not run to its end. A missed goal is a result, not a failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--data", help="data folder of those that can measure on real data (default: synthetic text)")
    options = parser.parse_args()
    data = [] if options.data is None else ["--data", options.data]
    failed = [name for name in ALWAYS if not _runs(name)]
    failed += [name for name in ON_DATA_OR_SYNTHETIC if not _runs(name, *data)]
    _runs("table")
    print(f"failed: {', '.join(failed)}" if failed else "all ran", file=sys.stderr)
    return bool(failed)


def _runs(name: str, *arguments: str) -> bool:
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
