"""python docs/site.py: the guide pages and the API as one static site, to be opened or hosted as it is.

The site has the paths of the repository: README.md is index.html, docs/guide.md is docs/guide.html, and files that
pages link to are copied. The API reference is in api/, by pdoc.
"""

import argparse
import html
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import markdown2
import pdoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("neobert", "ablations", "sweeps", "reports")
FIRST = ("README.md", "docs/guide.md", "docs/design.md")
LAST = ("benchmarks/README.md", "CONTRIBUTING.md", "CHANGELOG.md")
EXTRAS = ("cuddled-lists", "fenced-code-blocks", "tables")
LINK = re.compile(r'(?P<attribute>href|src)="(?P<target>(?![a-z]+:|#)[^"#]+)(?P<anchor>#[^"]*)?"')
HEADING = re.compile(r"<h([1-4])>(.*?)</h\1>", re.DOTALL)
META = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
STYLE = """
body { margin: 0; display: flex; font: 16px/1.5 system-ui, sans-serif; color: #222 }
nav { flex: 0 0 14rem; padding: 1rem; background: #f4f4f4; min-height: 100vh }
nav a { display: block; color: #2F6690; text-decoration: none } nav a[aria-current] { font-weight: bold }
main { flex: 1 1 auto; max-width: 60rem; padding: 1rem 2rem; overflow-x: auto } img { max-width: 100% }
pre { background: #f4f4f4; padding: .7rem; overflow-x: auto } table { border-collapse: collapse }
td, th { border: 1px solid #ccc; padding: .2rem .5rem; text-align: left; vertical-align: top }
@media (max-width: 50rem) {
  body { display: block } nav { min-height: 0; columns: 2 } main { padding: .5rem 1rem }
  table { display: block; overflow-x: auto }
}
@media (prefers-color-scheme: dark) {
  body { background: #16181b; color: #ddd } nav, pre { background: #22252a } a, nav a { color: #8ab8dc }
  td, th { border-color: #444 } img { background: #fff }
}
"""


def pages() -> list[str]:
    """Return the paths of all pages in the order of the list at the side, relative to the repository."""
    others = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
    return [*FIRST, *(page for page in others if page not in FIRST), *LAST]


def place_of(page: str) -> str:
    """Return the path of a page in the site."""
    return "index.html" if page == "README.md" else str(Path(page).with_suffix(".html"))


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as code hosts make it."""
    text = html.unescape(re.sub(r"<[^>]+>", "", heading)).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def navigation(current: str) -> str:
    """Return the list of pages, with links relative to the place `current` in the site."""
    entries = [(title_of(page), place_of(page)) for page in pages()] + [("API reference", "api/index.html")]
    lines = []
    for title, place in entries:
        link = os.path.relpath(place, Path(current).parent)
        mark = ' aria-current="page"' if place == current else ""
        lines.append(f'<a href="{link}"{mark}>{html.escape(title)}</a>')
    return f"<nav>{''.join(lines)}</nav>"


def title_of(page: str) -> str:
    """Return the first heading of a page."""
    found = re.search(r"^# (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1).replace("`", "") if found else page


def write_page(page: str, site: Path) -> None:
    """Write a page, and copy the files that it links to. Links to folders become text."""
    source, place = ROOT / page, place_of(page)
    body = str(markdown2.markdown(source.read_text(encoding="utf-8"), extras=list(EXTRAS)))
    body = HEADING.sub(lambda found: f'<h{found[1]} id="{anchor(found[2])}">{found[2]}</h{found[1]}>', body)

    def in_site(found: re.Match[str]) -> str:
        target = (source.parent / found["target"]).resolve()
        path = target.relative_to(ROOT).as_posix()
        if target.is_dir():
            return 'class="folder"'
        if path in pages():
            path = place_of(path)
        else:
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, site / path)
        return f'{found["attribute"]}="{os.path.relpath(path, Path(place).parent)}{found["anchor"] or ""}"'

    head = f"{META}<title>{html.escape(title_of(page))}</title><style>{STYLE}</style>"
    text = f"<!DOCTYPE html><html lang=en>{head}<body>{navigation(place)}<main>{LINK.sub(in_site, body)}</main></html>"
    (site / place).parent.mkdir(parents=True, exist_ok=True)
    (site / place).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the site into an empty folder."""
    parser = argparse.ArgumentParser(description="Write the pages and the API reference as a static site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder (default: build/site)")
    parser.add_argument("--packages", nargs="*", default=PACKAGES, help="of the API reference (default: all)")
    options = parser.parse_args(arguments)
    shutil.rmtree(options.out, ignore_errors=True)
    for page in pages():
        write_page(page, options.out)
    if options.packages:
        pdoc.render.configure(footer_text='<a href="../index.html">Guide</a>')
        pdoc.pdoc(*options.packages, output_directory=options.out / "api")


if __name__ == "__main__":
    main()
