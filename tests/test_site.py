"""`make docs`: every page is in the site, and every link and anchor of a page leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree_copy import REPOSITORY

LINK = re.compile(r'(?:href|src)="(?![a-z]+:)([^"#]*)(#[^"]*)?"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "docs/site.py", "--out", str(out), "--packages", "neobert.errors"]
    ended = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return out


def test_every_page_is_there_and_lists_all_others(site: Path) -> None:
    pages = [path.stem for path in (REPOSITORY / "docs").glob("*.md")]
    assert all((site / "docs" / f"{page}.html").is_file() for page in pages)
    index = (site / "index.html").read_text(encoding="utf-8")
    assert all(f'href="docs/{page}.html"' in index for page in pages) and 'href="api/index.html"' in index
    assert "<table>" in index and "<pre>" in index and (site / "docs/study/parts-real_text/answer.png").is_file()
    assert "../index.html" in (site / "api" / "neobert" / "errors.html").read_text(encoding="utf-8")


def test_links_and_anchors_lead_somewhere(site: Path) -> None:
    broken = []
    for page in [site / "index.html", site / "CONTRIBUTING.html", *(site / "docs").glob("*.html")]:
        for link, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            target = Path(os.path.normpath(page.parent / link)) if link else page
            if not target.is_file():
                broken.append((page.name, link))
            elif anchor and target.suffix == ".html" and f'id="{anchor[1:]}"' not in target.read_text(encoding="utf-8"):
                broken.append((page.name, link + anchor))
    assert not broken
