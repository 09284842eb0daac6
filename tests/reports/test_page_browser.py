"""The page in a real browser: no complaint on its console, by mouse and keyboard, wide and narrow, light and dark."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from reports import make_figures
from tests.reports.chromium import Chromium, browser
from tests.reports.made_up_study import Study

pytestmark = pytest.mark.skipif(browser() is None, reason="no Chromium is installed (apt-get install chromium)")

REAL_STUDY = Path(__file__).resolve().parents[2] / "docs" / "study" / "index.html"
WIDE, PHONE = (1280, 900), (390, 844)
HOSTILE = "<img src=x onerror=window.hacked=1> $\\alpha$ </script><script>window.hacked=1</script>"
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => {
    for (let node = element; node; node = node.parentElement) {
      const colour = rgba(getComputedStyle(node).backgroundColor);
      if (colour[3] === 255) { return colour; }
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *:not(script):not(style)")) {
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || !element.getClientRects().length) { continue; }
    const style = getComputedStyle(element);
    const front = element instanceof SVGElement ? style.fill : style.color;
    const [more, less] = [light(rgba(front)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (more + 0.05) / (less + 0.05);
    if (ratio < 4.5) { faint.push([element.textContent.trim().slice(0, 30), ratio]); }
  }
  return faint;
})()"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two seeds of M0, M1; an arm, curves, a failed and a missing trial; names that try to be code."""
    root = tmp_path_factory.mktemp("browser") / "runs"
    made = Study(root, data=HOSTILE, version=HOSTILE, measured=("web", "wikibook"), common_context=64)
    made.write(["M0", "M1"], seeds=(0, 1))
    for name in ("M2", "M3", "M4"):
        made.pretrain(name, commit="abc123", dirty=False)
    for name in ("M0", "M1", "M2", "M3", "M4"):
        made.metrics(name)
    of_task = made.study("M4", "cola")
    made.begin("M4", of_task)
    made.fail(of_task, of_task.points[0])
    return made


@pytest.fixture(scope="module")
def chromium(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    out = tmp_path_factory.mktemp("out")
    assert make_figures.main(["--runs", str(study.root), "--out", str(out)]) == 0
    with Chromium(tmp_path_factory.mktemp("profile")) as started:
        started.page = out / "index.html"
        yield started


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Chromium]:
    """The page, freshly loaded in a wide window; whatever the console says fails the test."""
    chromium.show_as(*WIDE)
    chromium.open(chromium.page)
    yield chromium
    assert chromium.complaints == []


def dialog_text(page: Chromium) -> str:
    return str(page.evaluate("document.getElementById('provenance').innerText"))


def is_open(page: Chromium) -> bool:
    return bool(page.evaluate("document.getElementById('provenance').open"))


def focused(page: Chromium) -> str:
    return str(page.evaluate("document.activeElement.textContent"))


def test_on_a_phone_the_answer_and_the_difference_are_on_screen(page: Chromium) -> None:
    page.show_as(*PHONE)
    for head in ("Answer", "Bits per byte"):
        column = f"[...document.querySelectorAll('.answers thead th')].find((each) => each.textContent === '{head}')"
        assert page.evaluate(f"{column}.getBoundingClientRect().right") <= PHONE[0]


def test_on_a_wide_screen_the_whole_answer_is_seen(page: Chromium) -> None:
    page.show_as(1400, 900)
    assert page.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.answers .box'))")


def require_legible(page: Chromium, width: int) -> None:
    """With everything opened, the page is no wider than the window, and no words are faint."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("size", [WIDE, PHONE, (320, 640)])
@pytest.mark.parametrize("dark", [False, True])
def test_page_fits_every_width_and_is_legible_in_light_and_dark(
    page: Chromium, size: tuple[int, int], dark: bool
) -> None:
    page.show_as(*size, dark=dark)
    is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert is_dark == dark
    require_legible(page, size[0])


def test_the_measure_of_legibility_finds_faint_words(page: Chromium) -> None:
    page.evaluate("document.documentElement.style.setProperty('--soft', '#9a9a9a')")
    assert page.evaluate(CONTRAST)


@pytest.mark.parametrize("size", [WIDE, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_the_committed_page_of_the_real_study_reads_as_well(
    chromium: Chromium, size: tuple[int, int], dark: bool
) -> None:
    chromium.show_as(*size, dark=dark)
    chromium.open(REAL_STUDY)
    require_legible(chromium, size[0])
    assert chromium.complaints == []
    links = chromium.evaluate("[...document.querySelectorAll('a')].map((each) => each.getAttribute('href'))")
    files = [link for link in links if not link.startswith(("#", "https:"))]
    assert [link for link in files if not (REAL_STUDY.parent / link).is_file()] == []


def test_a_click_on_a_number_shows_the_records_behind_it(page: Chromium, study: Study) -> None:
    page.click("[id$=-scores] tbody tr:nth-child(2) td .n")
    assert is_open(page)
    row = study.group().last_rows["M1"]
    shown = page.evaluate("[...document.querySelectorAll('.ids button')].map((each) => each.textContent)")
    assert set(shown) == set(row.cells["mnli"].ids.values())
    text = dialog_text(page)
    for word in ("M1: MNLI", "Batch/rate/decay", "Data id", "Commit", "Config unlike M0's", "Seed of pre-training"):
        assert word in text
    page.click("dialog .ids button:nth-child(2)")
    assert shown[1] in dialog_text(page).split("Id\n", 1)[1].splitlines()[0]


def test_from_a_trial_to_its_run_and_its_recipe(page: Chromium, study: Study) -> None:
    page.click("[id$=-scores] tbody tr:nth-child(2) td .n")
    page.click("dialog dd button")
    (run,) = study.runs("M1")
    text = dialog_text(page)
    assert run.id in text and "model.feedforward: gelu → swiglu" in text and run.data_id in text
    page.click("dialog .close")
    assert not is_open(page)


def test_every_record_that_is_described_links_to_its_file(page: Chromium, study: Study) -> None:
    page.click(".answers tbody .n")
    shown = page.evaluate("document.querySelector('.ids [aria-current]').textContent")
    url = page.evaluate("document.querySelector('dialog dd a').href")
    record = json.loads(Path(unquote(urlsplit(url).path)).read_text())
    expected = {run.id for name in ("M0", "M1") for seed in (0, 1) for run in study.runs(name, seed)}
    assert record["kind"] == "pretraining" and record["id"] == shown in expected
    without = page.evaluate(
        "(() => { const register = JSON.parse(document.getElementById('register').textContent);"
        "return register.files.filter((each) => each === null).length; })()"
    )
    assert without == 1, "the failed trial left no record"


def test_a_number_of_the_paper_says_where_it_is_printed(page: Chromium) -> None:
    page.click(".answers tbody td:nth-last-child(2) .n")
    assert "printed in the paper: Figure 1" in dialog_text(page)
    assert page.evaluate("document.querySelectorAll('dialog .ids button, dialog dd').length") == 0


def test_everything_works_by_keyboard_alone(page: Chromium) -> None:
    page.press("Tab")
    assert focused(page) == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.press("Enter")
    assert page.evaluate("location.hash") == "#content"
    for _ in range(30):
        page.press("Tab")
        if page.evaluate("document.activeElement.matches('.answers button.n')"):
            break
    first = focused(page)
    assert page.evaluate("document.activeElement.matches('button.n:focus-visible')")
    assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    page.press("ArrowDown")
    second = focused(page)
    assert second != first
    page.press("Enter")
    assert is_open(page) and f"({second})" in dialog_text(page)
    page.press("Tab")
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.press("Escape")
    assert not is_open(page) and focused(page) == second
    page.press("ArrowUp")
    assert focused(page) == first
    page.press("Tab")
    assert page.evaluate("document.activeElement.closest('.answers table') === null")


def test_a_table_is_one_stop_of_the_tab_key(page: Chromium) -> None:
    stops = page.evaluate(
        "[...document.querySelectorAll('table')]"
        ".map((table) => [...table.querySelectorAll('button.n')].filter((each) => each.tabIndex === 0).length)"
    )
    assert set(stops) <= {0, 1} and sum(stops) > 3


def test_links_lead_to_their_headings_past_the_fixed_bar(page: Chromium) -> None:
    for link in page.evaluate("[...document.querySelectorAll('nav a')].map((each) => each.getAttribute('href'))"):
        page.click(f"nav a[href={json.dumps(link)}]")
        assert page.evaluate("location.hash") == link
        top = page.evaluate(f"document.querySelector({json.dumps(link)}).getBoundingClientRect().top")
        bar = page.evaluate("document.querySelector('nav').getBoundingClientRect().bottom")
        at_the_end = page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 1")
        assert top >= bar - 1 and (top < bar + 60 or at_the_end), link


def test_names_that_try_to_be_code_are_only_text(page: Chromium) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('img:not(.figure), section script').length") == 0
    assert HOSTILE in page.evaluate("document.querySelector('main h2').textContent")
    page.click(".answers tbody .n")
    assert HOSTILE in dialog_text(page)
    assert page.evaluate("window.hacked") is None


def test_every_control_and_picture_has_a_name_and_every_id_is_alone(page: Chromium) -> None:
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, a, summary, svg[role=img], [role=region], dialog')].filter((each) =>"
        " !(each.getAttribute('aria-label') || each.getAttribute('aria-labelledby') || each.textContent.trim())).length"
    )
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert nameless == 0 and len(ids) == len(set(ids))
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("['header', 'nav', 'main', 'footer', 'h1'].every((each) => document.querySelector(each))")
