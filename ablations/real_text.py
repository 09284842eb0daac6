# PYTHON_ARGCOMPLETE_OK
"""Assemble the real text of the study from public sources in a folder, each of which must have its recorded checksum.

python ablations/real_text.py --sources DIR --out data/real_text    check the sources, write what --data reads
python ablations/real_text.py --list                                file, checksum, origin and licence of each

Novels that come in pieces are joined again, so that whole books are held out. Exit codes: 0 done, 2 refused, 3 a source
is missing.
"""

import argparse
import csv
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from neobert.command_line import guarded, parser_from
from neobert.errors import EXIT_DONE, MissingData

SOURCES = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True)
class TextSource:
    """A parquet file: its path below the folder of sources, and the folder `into` which it is written.

    Texts are converted to jsonl, tasks are copied. Texts with the same value in the column `join` are pieces of one
    document.
    """

    file: str
    sha256: str
    into: str
    join: str
    origin: str
    licence: str


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = parser_from("python ablations/real_text.py", __doc__)
    add = parser.add_argument
    add("--sources", type=Path, metavar="DIR", help="where the public sources lie")
    add("--out", type=Path, metavar="DIR", help="the folder that --data DIR will read; one that exists is refused")
    add("--list", action="store_true", help="print the sources with origins and licences, and stop")
    add("--json", action="store_true", help="print JSON on stdout")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 2 refused, 3 a source is missing)."""
    options = build_parser().parse_args(arguments)
    return guarded("real_text.py", lambda: _run(options), options.out or Path())


def read_sources(path: Path = SOURCES) -> list[TextSource]:
    """Read the declared sources."""
    with path.open(encoding="utf-8", newline="") as file:
        return [TextSource(**row) for row in csv.DictReader(file)]


def _run(options: argparse.Namespace) -> int:
    sources = read_sources()
    if options.list and options.json:
        print(json.dumps([vars(source) for source in sources], indent=1))
        return EXIT_DONE
    if options.list:
        for source in sources:
            print(f"{source.file}\n  sha256 {source.sha256}\n  {source.origin}\n  licence: {source.licence}")
        return EXIT_DONE
    if options.sources is None or options.out is None:
        raise ValueError("give --sources and --out, or --list")
    assemble(sources, options.sources, options.out)
    if options.json:
        print(json.dumps({"folder": str(options.out), "sources": len(sources)}))
    return EXIT_DONE


def assemble(sources: Sequence[TextSource], folder: Path, out: Path) -> None:
    """Check all sources in `folder`, then write `out` atomically.

    Raises:
        MissingData: a source is not there.
        ValueError: the content of a source differs from the recorded one, or `out` exists.
    """
    from neobert.files import publish_folder, sha256_of, temporary_sibling

    if out.exists():
        raise ValueError(f"{out} exists: name a folder that does not, or remove it")
    for source in sources:
        path = folder / source.file
        if not path.is_file():
            raise MissingData(f"{path} is not there: --list says where it comes from")
        if (found := sha256_of(path)) != source.sha256:
            raise ValueError(f"{path} has another content than recorded (sha256 {found}, not {source.sha256})")
    partial = temporary_sibling(out)
    try:
        for source in sources:
            (partial / source.into).mkdir(parents=True, exist_ok=True)
            name = Path(source.file).name
            if source.into.startswith("corpora/"):
                _write_texts(folder / source.file, source.join, (partial / source.into / name).with_suffix(".jsonl"))
            else:
                shutil.copyfile(folder / source.file, partial / source.into / name)
        publish_folder(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_texts(path: Path, join: str, out: Path) -> None:
    """Write one line per document, its pieces in the order of the file."""
    import pandas as pd

    texts = pd.read_parquet(path, columns=["id", "text", *([join] if join else [])])
    documents = texts.groupby(join).text.agg("\n".join) if join else texts.set_index("id").text
    with out.open("x", encoding="utf-8") as file:
        for name, text in documents.items():
            file.write(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
