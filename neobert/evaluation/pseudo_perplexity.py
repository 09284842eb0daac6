"""Pseudo-perplexity of pre-trained checkpoints over lengths: exp of the mean loss of tokens masked alone (Figure 2).

python -m neobert.evaluation.pseudo_perplexity --runs runs --run 0123456789ab
python -m neobert.evaluation.pseudo_perplexity --runs runs --run STAGE1 STAGE2 --lengths 1024 2048 4096 --sample 32
python -m neobert.evaluation.pseudo_perplexity --runs runs --run 0123456789ab --sample all --documents 8
python -m neobert.evaluation.pseudo_perplexity --runs runs --run STAGE2 --text wikipedia/ --lengths 1024 2048 4096 \\
    --documents 2467 --sample all          Figure 2 of the paper, given long articles

The texts are beginnings of held-out documents, the same for every run of a corpus and at every length, or of the files
of --text; nothing checks that the run was not trained on those. The cost grows with positions times length. Nothing is
measured twice, and a stopped command resumes after the last document.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neobert.command_line import count, guarded, parser_from, seed
from neobert.errors import EXIT_DONE, MissingData, did_you_mean

if TYPE_CHECKING:
    from neobert.evaluation.perplexity import PerplexityRun
    from neobert.evaluation.texts import TextFiles
    from neobert.runs.layout import Layout
    from neobert.runs.run_file import RunFile
    from neobert.runs.specifications import PretrainingRun

PROGRAM = "neobert.evaluation.pseudo_perplexity"
TEXT_HELP = "measure on a file or folder of .parquet (column text) or .txt files, not on held-out documents"


def positions_flag(text: str) -> int | None:
    """Parse the number of positions; None stands for all."""
    return None if text == "all" else count(text)


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = parser_from(f"python -m {PROGRAM}", __doc__)
    add = parser.add_argument
    add("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add("--run", nargs="+", required=True, metavar="ID", help="finished stages of pre-training, by id")
    add(
        "--lengths",
        nargs="+",
        type=count,
        metavar="TOKENS",
        help="specials included (default: a quarter, half and all of the stage's context, with rotary positions also "
        "twice and four times as long)",
    )
    add("--text", type=Path, metavar="PATH", help=TEXT_HELP)
    add("--sample", type=positions_flag, default=64, metavar="N", help="positions of a document, or all (default: 64)")
    add("--documents", type=count, default=64, metavar="N", help="at most (default: 64)")
    add("--seed", type=seed, default=0, metavar="N", help="of the sample (default: 0)")
    add("--batch-tokens", type=count, metavar="N", help="tokens of a batch; changes results by rounding alone")
    add("--json", action="store_true", help="print the records on stdout")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 1 failed, 2 refused, 3 missing data or run, 75 stopped)."""
    options = build_parser().parse_args(arguments)
    return guarded(PROGRAM, lambda: _measure(options), options.runs)


def _measure(options: argparse.Namespace) -> int:
    from neobert.evaluation.texts import open_files
    from neobert.processes import StopRequest, end_with_parent
    from neobert.runs.layout import Layout
    from neobert.runs.records import read_record
    from neobert.runs.worker import Worker

    layout = Layout(options.runs.resolve())
    files = [read_finished_run(layout, name) for name in dict.fromkeys(options.run)]
    text = open_files(options.text) if options.text is not None else None
    measured = [_perplexity_run(layout, run_file, options, text) for run_file in files]
    for run in measured:
        if not run.part.is_done:
            run.refuse_impossible()
    stop = StopRequest()
    stop.listen()
    end_with_parent()
    code = Worker(layout, measured, stop).run()
    if code == EXIT_DONE:
        _show([read_record(run.part.record) for run in measured], as_json=options.json)
    return code


def _perplexity_run(
    layout: "Layout", run_file: "RunFile", options: argparse.Namespace, text: "TextFiles | None"
) -> "PerplexityRun":
    from neobert.evaluation.perplexity import PerplexityMeasurement, PerplexityRun

    assert run_file.pretraining is not None
    measurement = PerplexityMeasurement(
        run=run_file.id,
        lengths=tuple(sorted(set(options.lengths or default_lengths(run_file.pretraining)))),
        documents=options.documents,
        sampled_positions=options.sample,
        seed=options.seed,
        text=None if text is None else text.content,
    )
    return PerplexityRun(layout, run_file, measurement, options.batch_tokens, text)


def read_finished_run(layout: "Layout", name: str) -> "RunFile":
    """Read the run.json of a finished stage of pre-training.

    Raises:
        MissingData: the run does not exist or is not finished.
    """
    from neobert.runs.run_file import read_run_file

    folder = layout.pretraining(name)
    known = sorted(path.parent.name for path in layout.root.glob("pretraining/*/run.json"))
    if name not in known:
        nearest = did_you_mean(name, known) if known else "there are no runs"
        raise MissingData(f"{layout.root} holds no pre-training run {name}: {nearest}")
    if not (folder / "done.json").exists():
        raise MissingData(f"run {name} is not finished: run the command that started it again")
    return read_run_file(folder)


def default_lengths(run: "PretrainingRun") -> list[int]:
    """Return lengths around the context of the stage; longer ones only if positions are not learned."""
    context = run.recipe.stages[-1].context
    lengths = [context // 4, context // 2, context]
    return lengths if run.position_table is not None else [*lengths, 2 * context, 4 * context]


def _show(records: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    from neobert.console import logs, output, table

    for record in records:
        for tokens, reason in record["left_out"].items():
            logs().print(f"{record['inputs']['pretraining']}: {tokens} tokens left out, {reason}", markup=False)
    if as_json:
        print(json.dumps(records, indent=1))
        return
    columns = ("run", "stage", "tokens", "pseudo-perplexity", "95 %", "positions", "documents")
    rows = [
        (
            record["inputs"]["pretraining"],
            record["config"]["stage"] + 1,
            length["tokens"],
            f"{length['pseudo_perplexity']:.4g}",
            f"{length['low']:.4g} to {length['high']:.4g}",
            length["positions"],
            length["documents"],
        )
        for record in records
        for length in record["scores"]["lengths"]
    ]
    output().print(table("Pseudo-perplexity", columns, rows))


if __name__ == "__main__":
    sys.exit(main())
