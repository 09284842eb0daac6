"""The verdict on paired comparisons: few false ones at any number of pairs, and no other one after a kill."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from neobert.referee.paired import Decision, decide, least_pairs

MOST = 8
ROOT = Path(__file__).resolve().parents[2]
Pairs = st.lists(st.tuples(st.floats(2, 4), st.floats(2, 4)), min_size=3, max_size=MOST)


def decided(differences: object, margin: float = 0.5, level: float = 0.05) -> Decision | None:
    """The verdict on a child whose losses are so much above those of its parent."""
    values = np.asarray(differences, float)
    return decide(np.zeros(len(values)).tolist(), values.tolist(), level=level, margin=margin, most=MOST)


def test_clear_differences_take_few_seeds() -> None:
    noise = np.array([0.1, -0.05, 0.08, -0.1, 0.02, 0.06, -0.07, 0.01])
    assert decided(-5 + noise) == Decision("better", 3)
    assert decided(5 + noise) == Decision("worse", 3)
    assert decided(noise, margin=3.0) == Decision("equivalent", 3)
    assert decided((5 + noise)[:2]) is None, "no difference of two pairs is large enough"


def test_noise_ends_without_a_verdict_and_before_the_last_seed() -> None:
    """Nothing differs, and the margin is too small to be shown: half of the seeds are saved."""
    draws = np.random.default_rng(0)
    found = [decided(draws.normal(size=MOST), margin=0.1) for _ in range(30)]
    assert all(each is not None and each.verdict == "not shown" for each in found)
    assert np.mean([each.pairs for each in found if each]) < 0.75 * MOST


def test_false_verdicts_are_rarer_than_the_level_at_whatever_seed_they_end() -> None:
    """At a level of 0.2, with nothing to find, and with a difference of exactly the margin."""
    draws = np.random.default_rng(1)
    for truth in (0.0, 0.8):
        found = [decided(draws.normal(truth, 1, size=MOST), 0.8, 0.2) for _ in range(60)]
        false = {"better", "worse"} if truth == 0 else {"better", "equivalent"}
        assert all(found) and sum(each.verdict in false for each in found if each) <= 0.2 * len(found)


def test_the_seeds_that_are_looked_at_first_grow_with_the_comparisons() -> None:
    assert [least_pairs(0.05 / comparisons) for comparisons in (1, 10, 100, 1000)] == [3, 3, 3, 4]


@settings(max_examples=15)
@given(Pairs, st.floats(0.01, 0.5))
def test_more_seeds_never_change_a_verdict(pairs: list[tuple[float, float]], margin: float) -> None:
    """What is recomputed from more records, or from those that a killed command left, is what was decided."""
    parent, child = (list(each) for each in zip(*pairs, strict=True))
    by_count = [decide(parent[:n], child[:n], level=0.05, margin=margin, most=MOST) for n in range(len(pairs) + 1)]
    last = by_count[-1]
    for count, found in enumerate(by_count):
        assert found == (last if last is not None and count >= last.pairs else None)
    if len(pairs) == MOST:
        assert last is not None


@settings(max_examples=15)
@given(Pairs, st.floats(0.01, 0.5), st.sampled_from([0.25, 8.0]))
def test_the_verdict_has_no_unit_and_no_side(pairs: list[tuple[float, float]], margin: float, unit: float) -> None:
    parent, child = (list(each) for each in zip(*pairs, strict=True))
    found = decide(parent, child, level=0.05, margin=margin, most=MOST)
    scaled = decide(
        [unit * each for each in parent], [unit * each for each in child], level=0.05, margin=unit * margin, most=MOST
    )
    turned = decide(child, parent, level=0.05, margin=margin, most=MOST)
    assert scaled == found
    other = {"better": "worse", "worse": "better"}
    assert turned == (found and Decision(other.get(found.verdict, found.verdict), found.pairs))  # type: ignore[arg-type]


def test_the_committed_study_would_have_needed_the_seeds_that_the_page_names() -> None:
    """The steps in bits per byte on the child's corpus; a t interval of all six seeds agrees with each verdict."""
    parents = {"M1": "M0", "M2": "M1", "M3": "M2", "M4": "M2", "M5": "M4", "M6": "M5", "M7": "M5", "M8": "M7"}
    bits, corpora = defaultdict[tuple[str, str], dict[int, float]](dict), dict[str, str]()
    for line in (ROOT / "reports" / "study" / "records.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)["content"]
        if record["kind"] == "pretraining" and record["seed"] < 6:
            name = record["labels"]["variants"][0]
            corpora[name] = record["config"]["recipe"]["data"]["corpus"]
            for score in sorted(record["scores"]["heldout"], key=lambda score: score["context"]):
                if score["context"] == 32:
                    bits[name, score["corpus"]][record["seed"]] = score["bits_per_byte"]
    rows, ended = [], list[int]()
    for child, parent in parents.items():
        ours, theirs = ([bits[name, corpora[child]][seed] for seed in range(6)] for name in (child, parent))
        found = decide(theirs, ours, level=0.05 / len(parents), margin=0.016, most=10)
        differences = np.subtract(ours, theirs)
        low, high = stats.t.interval(0.95, 5, differences.mean(), stats.sem(differences))
        if found is not None:
            ended.append(found.pairs)
            assert found.verdict == ("better" if high < 0 else "worse" if low > 0 else "not shown")
        verdict, seeds = (found.verdict, f"{found.pairs}") if found else ("undecided", "more than 6")
        cells = (f"{child} − {parent}", f"{differences.mean():+.3f} ({low:+.3f} to {high:+.3f})", verdict)
        rows.append(f"| {' | '.join(cells)} | {seeds} |")
    page = (ROOT / "docs" / "referee.md").read_text(encoding="utf-8")
    told = page.partition("<!-- replay -->\n")[2].partition("<!-- end of replay -->")[0].splitlines()
    assert told[2:] == rows and max(ended) < 6
    assert f"{len(ended)} of {len(parents)} comparisons end before the sixth seed" in " ".join(page.split())
