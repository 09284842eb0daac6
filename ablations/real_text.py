# PYTHON_ARGCOMPLETE_OK
"""Build the real text of the study from public originals, with the hash that is declared for it.

python ablations/real_text.py --list                     origin, licence and declared texts of each source
python ablations/real_text.py --build --out DIR          fetch the originals, convert them, write what --data reads
python ablations/real_text.py --check-machine            train 96 steps on a committed slice, compare the losses

--build reads a git repository below --repositories if it has the declared commit, and fetches that commit otherwise;
pip downloads packages. Exit codes: 0 done and as declared, 2 refused, or other texts than
declared, 3 a source cannot be had, 4 the losses of --check-machine differ.
"""

import argparse
import csv
import hashlib
import io
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.plain_text import CONVERSIONS, is_english
from ablations.text_sources import TextSource
from neobert.command_line import guarded, parser_from
from neobert.console import logs
from neobert.errors import EXIT_DONE

SOURCES = Path(__file__).with_suffix(".csv")
ATTRIBUTION = "ATTRIBUTION.md"

PIECE_CHARACTERS = 20_000
"""Longer training texts are split between paragraphs, so that a book is read in many places of a run."""

HELD_OUT_CHARACTERS = 40_000
"""Largest size of the text of a held-out group."""


@dataclass(frozen=True)
class Text:
    """A document: `id` names its source and file."""

    id: str
    source: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = parser_from("python ablations/real_text.py", __doc__)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--build", action="store_true", help="build the folder --out from the originals")
    what.add_argument("--list", action="store_true", help="print the sources with origins and licences, and stop")
    what.add_argument("--check-machine", action="store_true", help="compare this machine's losses with recorded ones")
    add("--out", type=Path, metavar="DIR", help="folder to write, for --data; it must not exist")
    add("--repositories", type=Path, metavar="DIR", help="git clones or mirrors, as DIR/owner/name or DIR/owner+name")
    add("--cache", type=Path, metavar="DIR", help="where what is fetched is kept (default: OUT.originals)")
    add(
        "--record",
        action="store_true",
        help="store what was built, or measured here, as declared, instead of comparing",
    )
    add("--json", action="store_true", help="print JSON on stdout")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 2 refused, 3 a source is missing, 4 losses differ)."""
    options = build_parser().parse_args(arguments)
    return guarded("real_text.py", lambda: _run(options), options.out or Path())


def read_sources(path: Path = SOURCES) -> list[TextSource]:
    from pydantic import TypeAdapter

    with path.open(encoding="utf-8", newline="") as file:
        return TypeAdapter(list[TextSource]).validate_python(list(csv.DictReader(file)))


def _write_sources(sources: Sequence[TextSource], path: Path) -> None:
    from neobert.files import replace_file

    table = io.StringIO()
    rows = csv.DictWriter(table, [field.name for field in fields(TextSource)], lineterminator="\n")
    rows.writeheader()
    rows.writerows(map(asdict, sources))
    replace_file(path, table.getvalue().encode())


def total_hash(sources: Sequence[TextSource]) -> str:
    """Return the hash of all texts, from the hashes of the sources."""
    lines = "".join(f"{source.corpus} {source.name} {source.sha256}\n" for source in sources)
    return hashlib.sha256(lines.encode()).hexdigest()


def _run(options: argparse.Namespace) -> int:
    sources = read_sources()
    if options.check_machine:
        from ablations.machine_check import check_machine

        return check_machine(record=options.record, as_json=options.json)
    if options.build:
        if options.out is None:
            raise ValueError("--build needs --out DIR, the folder to write")
        cache = options.cache or options.out.with_name(options.out.name + ".originals")
        found = build(sources, options.out, options.repositories, cache, record=options.record)
        if options.json:
            print(json.dumps({"folder": str(options.out), "sha256": total_hash(found), "sources": len(found)}))
        else:
            print(f"{options.out} has the texts with hash {total_hash(found)}")
        return EXIT_DONE
    if not options.list:
        raise ValueError("give --build, --list or --check-machine")
    if options.json:
        print(json.dumps([asdict(source) for source in sources], indent=1))
        return EXIT_DONE
    for source in sources:
        kind = f"{source.corpus}, held out" if source.held_out else source.corpus
        print(f"{source.origin}\n  {kind}: {source.documents} texts, {source.characters:,} characters")
        print(f"  licence: {source.licence}; by {source.authors}\n  sha256 of the texts: {source.sha256}")
    print(f"sha256 of all: {total_hash(sources)}")
    return EXIT_DONE


def build(
    sources: Sequence[TextSource], out: Path, repositories: Path | None, cache: Path, *, record: bool = False
) -> list[TextSource]:
    """Convert all sources and write `out` atomically. Return the sources with what was found of their texts; `record`
    writes these into the table instead of comparing.

    Raises:
        MissingData: a source can neither be found nor fetched.
        ValueError: the texts of a source differ from the declared ones, or `out` exists.
    """
    from neobert.files import publish_folder, temporary_sibling

    if out.exists():
        raise ValueError(f"{out} exists: name a folder that does not, or remove it")
    cache.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    texts: dict[str, list[Text]] = {}
    found = {}
    for source in sorted(
        sources, key=lambda source: not source.held_out
    ):  # held-out pages first: no copy is trained on
        chosen = _texts_of(source, repositories, cache, seen)
        found[source] = _described(source, chosen)
        texts.setdefault(source.corpus, []).extend(chosen)
        logs().print(f"{source.name}: {found[source].documents} texts, {found[source].characters:,} characters")
    described = [found[source] for source in sources]
    if record:
        _write_sources(described, SOURCES)
    else:
        _require_declared(sources, described)
    partial = temporary_sibling(out)
    try:
        for corpus, chosen in texts.items():
            _write_corpus(partial / "corpora" / corpus / "texts.jsonl", chosen)
        (partial / ATTRIBUTION).write_text(attribution(described), encoding="utf-8")
        publish_folder(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return described


def _texts_of(source: TextSource, repositories: Path | None, cache: Path, seen: set[str]) -> list[Text]:
    """Return the texts of a source that are English, long enough and not among those `seen`, which is added to."""
    pages = []
    for path, content in source.read(repositories, cache):
        if len(content) < source.least_characters:
            continue
        for number, text in enumerate(CONVERSIONS[source.conversion](content)):
            page = Text(f"{source.name}/{path}" + (f"#{number}" if number else ""), source.name, text)
            if len(text) >= source.least_characters and page.sha256 not in seen and is_english(text):
                seen.add(page.sha256)
                pages.append(page)
    pages.sort(key=lambda page: page.sha256)
    if source.held_out == "source":
        pages = [Text(source.name, source.name, "\n".join(page.text for page in pages))]
    if source.held_out:
        return [replace(page, text=held_out_text(page.text)) for page in pages]
    return list(_up_to(source.most_characters, (piece for page in pages for piece in _pieces(page))))


def _up_to(most_characters: int, texts: Iterator[Text]) -> Iterator[Text]:
    """Yield texts for training until there are `most_characters`, or all if it is 0. Those whose hash would hold them
    out are left out."""
    characters = 0
    for text in texts:
        if _is_held_out(text.text):
            continue
        characters += len(text.text)
        if most_characters and characters > most_characters:
            return
        yield text


def _pieces(page: Text) -> Iterator[Text]:
    """Split a text between paragraphs into pieces of about `PIECE_CHARACTERS`."""
    lines: list[str] = []
    number = size = 0
    for line in page.text.split("\n"):
        lines.append(line)
        size += len(line) + 1
        if size >= PIECE_CHARACTERS:
            yield replace(page, id=f"{page.id}:{number}", text="\n".join(lines))
            lines, size, number = [], 0, number + 1
    if lines:
        yield replace(page, id=f"{page.id}:{number}" if number else page.id, text="\n".join(lines))


def held_out_text(text: str) -> str:
    """Return the beginning of a text that the harness holds out.

    Runs hold out the texts whose hash is in the lowest hundredth (`neobert.data.shards`). The longest beginning of at
    most `HELD_OUT_CHARACTERS` is returned that ends with a word and has such a hash.

    Raises:
        ValueError: the text has too few words for one of its beginnings to have such a hash.
    """
    end = len(text) if len(text) <= HELD_OUT_CHARACTERS else text.rfind(" ", 0, HELD_OUT_CHARACTERS)
    while end > 0:
        if _is_held_out(text[:end]):
            return text[:end]
        end = text.rfind(" ", 0, end)
    raise ValueError(f"no beginning of the text {text[:40]!r}… can be held out: it is too short")


def _is_held_out(text: str) -> bool:
    from neobert.data.shards import HELDOUT_SHARE, text_hash

    return text_hash(text) <= int(HELDOUT_SHARE * 2**64)


def _described(source: TextSource, texts: Sequence[Text]) -> TextSource:
    """Return the source with number, size and hash of its texts."""
    hashes = sorted(text.sha256 for text in texts)
    digest = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return replace(source, documents=len(texts), characters=sum(len(text.text) for text in texts), sha256=digest)


def _require_declared(declared: Sequence[TextSource], found: Sequence[TextSource]) -> None:
    different = [
        f"{mine.name} ({mine.documents} texts, {mine.characters} characters, declared "
        f"{source.documents} and {source.characters})"
        for source, mine in zip(declared, found, strict=True)
        if mine.sha256 != source.sha256
    ]
    if different:
        raise ValueError(f"the texts of {len(different)} sources differ from the declared ones: {'; '.join(different)}")


def _write_corpus(path: Path, texts: Sequence[Text]) -> None:
    """Write a corpus ordered by hash, so that its beginning has texts of all sources."""
    path.parent.mkdir(parents=True)
    with path.open("x", encoding="utf-8") as file:
        for text in sorted(texts, key=lambda text: text.sha256):
            file.write(json.dumps(asdict(text), ensure_ascii=False) + "\n")


def attribution(sources: Sequence[TextSource]) -> str:
    """Return the file that names origin, authors and licence of each source, as the licences ask for."""
    lines = [
        "# Sources of these texts",
        "",
        "The texts were converted to plain text by `ablations/real_text.py`: markup, code, tables and links were "
        "removed, and long texts were split. Each has the licence of its source; `id` and `source` of a text name it.",
        "",
        "| source | authors | licence | corpus |",
        "|---|---|---|---|",
    ]
    lines += [f"| {source.origin} | {source.authors} | {source.licence} | {source.corpus} |" for source in sources]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
