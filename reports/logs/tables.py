"""The cells of an experiment log: TSV, CSV or JSON lines, with or without a header, with lines of other widths."""

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neobert.errors import MissingData, name_first

Row = tuple[int, dict[str, str]]
MOST_BYTES = 64_000_000
MOST_BAD_SHARE = 0.2
"""Largest share of lines that may be left out because their width fits no column names."""
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
DECIMAL_COMMA = re.compile(r"([+-]?\d+),(\d+(?:[eE][+-]?\d+)?\s*%?)")
STATUS_WORDS = {
    **dict.fromkeys(("keep", "kept", "best", "new_best", "accept", "accepted", "improved", "promoted"), "keep"),
    **dict.fromkeys(("discard", "discarded", "revert", "reverted", "reject", "rejected", "worse"), "discard"),
    **dict.fromkeys(("crash", "crashed", "fail", "failed", "error", "timeout", "oom", "infra", "aborted"), "crash"),
    **dict.fromkeys(("rate_limited", "invalid", "killed", "nan"), "crash"),
    "baseline": "baseline",
}
"""What logs call the outcome of a run, and what it means here; any other word is `other`."""


@dataclass
class Cells:
    """The rows of a file as {column: cell} with their line numbers, and what was found on the way."""

    columns: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def status_of(word: str) -> str:
    """Return what the word of a status column means: keep, discard, crash, baseline or other."""
    plain = word.strip().lower().replace("-", "_").replace(" ", "_")
    return STATUS_WORDS.get(plain) or STATUS_WORDS.get(plain.split("_(")[0].split(":")[0], "other")


def number_of(cell: str) -> float | None:
    """Return the number of a cell; None for an empty cell, N/A, nan, inf, a word or a decimal comma."""
    plain = cell.strip().rstrip("%").rstrip()
    try:
        value = float(plain.replace(",", "") if THOUSANDS.fullmatch(plain) else plain)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def has_decimal_comma(cell: str) -> bool:
    """Return whether a cell is a number whose comma separates no thousands, such as 0,98."""
    return number_of(cell) is None and DECIMAL_COMMA.fullmatch(cell.strip()) is not None


def read_cells(path: Path, columns: Sequence[str] | None = None) -> Cells:
    """Read the cells of a log. `columns` names them if the file has no header.

    Raises:
        MissingData: the file is not there, is no text, or its lines do not fit its header; the sentence names the line.
    """
    text = _text(path)
    first = text.lstrip()[:1]
    if first == "{":
        return _json_lines(path, text)
    if first == "[":
        raise MissingData(f"{path} is one JSON list, not a log: write one object per line (JSON lines)")
    lines = _split(text)
    if not lines:
        raise MissingData(f"{path} has no lines")
    return _named(path, lines, list(columns) if columns else None)


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise MissingData(f"{path} is not there: name a log of experiments (tsv, csv or jsonl)") from None
    except IsADirectoryError:
        raise MissingData(f"{path} is a folder: name the log in it") from None
    if len(content) > MOST_BYTES:
        raise MissingData(f"{path} has {len(content) / 1e6:,.0f} MB, which no log of experiments has")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise MissingData(f"{path}, line {line}: not UTF-8 text") from None


def _json_lines(path: Path, text: str) -> Cells:
    rows: list[Row] = []
    plain_ends = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, line in enumerate(plain_ends.split("\n"), start=1):  # a JSON text may hold other line separators
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise MissingData(f"{path}, line {number}: not a JSON object; remove or mend it")
        own = {key: each for key, each in value.items() if not isinstance(each, dict | list)}
        inner = {key: each for part in value.values() if isinstance(part, dict) for key, each in part.items()}
        plain = own | {key: each for key, each in inner.items() if not isinstance(each, dict | list) and key not in own}
        rows.append((number, {key: "" if each is None else str(each) for key, each in plain.items()}))
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return Cells(names, _completed(rows, names))


def _split(text: str) -> list[tuple[int, list[str]]]:
    """Return the fields of each line. Tab-separated files are not quoted, so a quote in a description is one."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    numbered = [(n, line) for n, line in enumerate(plain.split("\n"), start=1) if line.strip() and line[0] != "#"]
    if not numbered:
        return []
    head = numbered[0][1]
    if "\t" in head:
        return [(number, line.split("\t")) for number, line in numbered]
    delimiter = ";" if head.count(";") > head.count(",") else ","
    reader = csv.reader((line + "\n" for line in plain.split("\n")), delimiter=delimiter)
    rows, before = [], 0
    for fields in reader:
        start, before = before + 1, reader.line_num
        if any(cell.strip() for cell in fields) and not fields[0].startswith("#"):
            rows.append((start, [_pointed(cell) for cell in fields] if delimiter == ";" else fields))
    return rows


def _pointed(cell: str) -> str:
    """Return a cell of a file with semicolons, whose numbers have decimal commas, with a point in its number."""
    return DECIMAL_COMMA.sub(r"\1.\2", cell) if DECIMAL_COMMA.fullmatch(cell.strip()) else cell


def _is_header(fields: Sequence[str]) -> bool:
    names = [cell.strip() for cell in fields]
    return all(names) and len(set(names)) == len(names) and not any(map(_is_number, names))


def _is_number(cell: str) -> bool:
    return number_of(cell) is not None


def _named(path: Path, lines: list[tuple[int, list[str]]], given: list[str] | None) -> Cells:
    names, notes = given, list[str]()
    if names is None and _is_header(lines[0][1]):
        names, lines = [cell.strip() for cell in lines[0][1]], lines[1:]
    elif names is None:
        names = _guess_names(path, lines)
        notes.append(f"no header: the columns are taken as {', '.join(names)}")
    columns, rows, other_widths, left_out = dict.fromkeys(names), list[Row](), list[int](), list[int]()
    for number, fields in lines:
        fitted = _fitted(fields, names)
        if _is_header(fields) and len({cell.strip() for cell in fields} & set(names)) >= 2:
            before, names = names, [cell.strip() for cell in fields]
            columns |= dict.fromkeys(names)
            notes.append(f"line {number} is {'the header again' if names == before else 'a new header'}")
        elif fitted is None:
            left_out.append(number)
        else:
            rows.append((number, fitted))
            if len(fields) != len(names):
                other_widths.append(number)
    _refuse_unfit(path, lines, len(names), len(rows), left_out)
    if other_widths:
        notes.append(f"{_lines(other_widths)} have other widths than the header and were read by their status word")
    if left_out:
        notes.append(f"{_lines(left_out)} fit no column names and are left out")
    return Cells(list(columns), _completed(rows, columns), notes)


def _completed(rows: Sequence[Row], names: Iterable[str]) -> list[Row]:
    """Return rows with a cell for every name; missing ones are empty."""
    return [(number, {name: row.get(name, "") for name in names}) for number, row in rows]


def _refuse_unfit(
    path: Path, lines: list[tuple[int, list[str]]], width: int, rows: int, left_out: Sequence[int]
) -> None:
    if not rows and not left_out:
        raise MissingData(f"{path} has a header and no runs")
    if len(left_out) > MOST_BAD_SHARE * (rows + len(left_out)):
        raise MissingData(
            f"{path}, line {left_out[0]}: {len(dict(lines)[left_out[0]])} fields where the header names {width}, and "
            f"so in {len(left_out)} of {len(lines)} lines: name the columns as they are with --columns"
        )


def _lines(numbers: Sequence[int]) -> str:
    return f"lines {name_first(list(map(str, numbers)), most=6)}"


def _fitted(fields: list[str], names: list[str]) -> dict[str, str] | None:
    """Return the cells of a line. One that is wider or narrower than the header is read if its status word shows where
    its columns are: those before the status count from the left, those after it follow it."""
    if len(fields) == len(names):
        return dict(zip(names, fields, strict=True))
    places = [place for place, name in enumerate(names) if name.lower() in ("status", "decision", "outcome")]
    if not places:
        return None
    place = places[0]
    known = [index for index, cell in enumerate(fields) if cell.strip() and status_of(cell) != "other"]
    if len(known) != 1:
        return None
    own, after = known[0], names[place + 1 :]
    if own > place:
        return None
    row = dict(zip(names[:place], fields[:own], strict=False))
    row[names[place]] = fields[own]
    tail = fields[own + 1 :]
    if len(tail) > len(after) and after:  # a tab or comma inside the last column, the description
        tail = [*tail[: len(after) - 1], " ".join(tail[len(after) - 1 :])]
    return {**row, **dict(zip(after, tail, strict=False))}


def _guess_names(path: Path, lines: list[tuple[int, list[str]]]) -> list[str]:
    """Name the columns of a file without a header by what they hold: a status word, numbers, text."""
    width = len(lines[0][1])
    columns = [[row[place].strip() for _, row in lines if len(row) == width] for place in range(width)]
    places: dict[str, list[int]] = {"status": [], "number": [], "text": []}
    for place, cells in enumerate(columns):
        places[_kind_of([cell for cell in cells if cell])].append(place)
    if len(places["status"]) != 1 or not places["number"] or not places["text"]:
        raise MissingData(
            f"{path}, line {lines[0][0]}: no header, and the columns are not clear: name them by --columns"
        )
    status = places["status"][0]
    metric = next((place for place in places["number"] if place < status), places["number"][0])
    longest = max(places["text"], key=lambda place: sum(map(len, columns[place])))
    named = {status: "status", metric: "metric", longest: "description"}
    if (first := places["text"][0]) < metric:
        named.setdefault(first, "commit")
    return [named.get(place, f"column_{place + 1}") for place in range(width)]


def _kind_of(cells: Sequence[str]) -> str:
    if sum(status_of(cell) != "other" for cell in cells) > 0.5 * len(cells):
        return "status"
    return "number" if sum(map(_is_number, cells)) > 0.7 * len(cells) else "text"
