"""Pages of the documentation: their text, and parts between two marker lines that tests render."""

from pathlib import Path


def text_of(page: Path) -> str:
    """The page on one line, so that sentences are found wherever they break."""
    return " ".join(page.read_text(encoding="utf-8").split())


def compare_part(page: Path, begin: str, end: str, content: str, write_golden: bool) -> None:
    """Compare what stands between the lines `begin` and `end` of a page; `write_golden` writes it first."""
    before, rest = page.read_text(encoding="utf-8").split(begin)
    rendered = f"{before}{begin}{content}{end}{rest.split(end)[1]}"
    if write_golden:
        page.write_text(rendered, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == rendered, (
        "python -m pytest --write-golden writes the tables of the page anew"
    )
