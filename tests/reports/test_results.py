"""The results section of a study's page: every number is one of its tables, and nothing beside it changes."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from reports import make_figures
from reports.analysis.quantities import QUANTITIES
from reports.tables import printed_range, signed
from tests.reports.made_up_study import Study, undrawn_figures
from tests.reports.measurements import answer, ask

PAGE = "# A study\n\n12.5 typed\n\n<!-- results of smoke-synthetic -->\nold\n<!-- end of results -->\n\nEnd.\n"


def write_results(study: Study, folder: Path, page: str = PAGE, *chosen: str) -> tuple[int, str]:
    """The exit code of the command, and the page behind it."""
    path = folder / "page.md"
    path.write_text(page, encoding="utf-8")
    flags = ["--runs", str(study.root), "--out", str(folder / "out"), "--results", str(path), *chosen]
    with undrawn_figures():
        code = make_figures.main(flags)
    return code, path.read_text(encoding="utf-8")


def test_every_number_is_one_of_the_tables(tmp_path: Path) -> None:
    """At six seeds, with losses on two corpora and a readout whose interval holds items; again nothing changes."""
    study = Study(tmp_path / "runs", measured=("web", "wikibook"), common_context=64)
    for name, right in (("M0", 100), ("M1", 140), ("M2", 141), ("M3", 120)):
        for seed in range(6):
            study.pretrain(name, seed, seconds=3600.0)
            ask(study, name, seed, "cloze", answer((np.arange(200) < right + seed).astype(float)))
    code, page = write_results(study, tmp_path)
    assert code == 0 and page.startswith("# A study\n\n12.5 typed\n\n<!--") and page.endswith("-->\n\nEnd.\n")
    lines = csv.DictReader((tmp_path / "out" / "smoke-synthetic" / "deltas.csv").read_text().splitlines())
    expected = {}
    for line in lines:
        if line["difference"] and line["quantity"] in ("bits per byte", "cloze"):
            digits = QUANTITIES[line["quantity"]].digits - 1
            low, high = ("both_low", "both_high") if line["both_low"] else ("t_low", "t_high")
            interval = printed_range((float(line[low]), float(line[high])), digits)
            expected[f"{line['variant']} − {line['against']}", line["measured"].removeprefix("held-out ")] = (
                signed(float(line["difference"]), digits),
                interval,
            )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "| Step |" in line]
    (header,) = rows
    told = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if " − M" in line]
    for row in (dict(zip(header, own, strict=True)) for own in told if len(own) == len(header)):
        own = row["Trained on"].rpartition(" ")[2]
        mean, interval = expected[row["Step"], f"bits per byte on {own}, 64 tokens"]
        assert row["Bits per byte"].replace("\u00a0", " ") == f"{mean} ({interval})"
        other = {"web": "wikibook", "wikibook": "web"}[own]
        assert row["Bits per byte, other corpus"] == expected[row["Step"], f"bits per byte on {other}, 64 tokens"][0]
        assert row["Cloze"] in ("—", expected.get((row["Step"], "cloze on web"), ("", ""))[0])
    assert len(told) >= 3 and "24 stages of pre-training" in page
    assert re.search(r"\| cloze on web \| points \| 2 \| 12 \|", page)
    assert write_results(study, tmp_path, page) == (0, page)


def test_what_has_no_record_says_so_and_a_page_without_a_place_is_refused(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.pretrain("M0")
    code, page = write_results(study, tmp_path, PAGE.replace("smoke-synthetic", "other-real_text"))
    assert code == 0 and "No run of the study is recorded yet." in page and "old" not in page
    code, page = write_results(study, tmp_path, "# A study\n")
    assert code == 2 and page == "# A study\n" and "has no lines <!-- results of" in capsys.readouterr().err


def test_sections_that_are_not_chosen_stay(study: Study, tmp_path: Path) -> None:
    study.pretrain("M0")
    Study(study.root, data="other", trained=True).pretrain("M1")
    code, page = write_results(study, tmp_path, PAGE + PAGE.replace("synthetic", "other"), "--data", "other")
    assert code == 0 and page.startswith(PAGE) and "No run of the study" not in page and page.count("Records: ") == 1


def test_a_page_that_is_not_there_is_refused_before_anything_is_drawn(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.pretrain("M0")
    flags = ["--runs", str(study.root), "--out", str(tmp_path / "out"), "--results", str(tmp_path / "nowhere.md")]
    assert make_figures.main(flags) == 2 and not (tmp_path / "out").exists()
    assert "nowhere.md: there is no such page" in capsys.readouterr().err
