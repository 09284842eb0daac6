"""What killed writers left: temporary files and folders that nobody will rename any more. Torch-free."""

from collections.abc import Iterator
from pathlib import Path

from ablations.garbage import DAY_SECONDS, Garbage, age_seconds, garbage_at
from neobert.files import TEMPORARY_MARK
from neobert.launching.submissions import SUBMISSION_UNIT
from neobert.layout import Layout


def left_by_killed_writers(layout: Layout) -> Iterator[Garbage]:
    """Temporaries in which nothing was written for a day."""
    for path in sorted(layout.root.rglob(f"*{TEMPORARY_MARK}*")):
        if age_seconds(path) > DAY_SECONDS:
            yield garbage_at(path, "left by a killed writer", *_units_near(layout, path))


def corpus_units(data_id: str) -> tuple[str, ...]:
    """The units of work that write a tokenised corpus."""
    return f"corpus-{data_id}", f"data-{data_id}"


def pairs_unit(pairs_id: str) -> str:
    """The unit of work that writes a data set of pairs in token ids."""
    return f"pairs-{pairs_id}"


def _units_near(layout: Layout, path: Path) -> tuple[str, ...]:
    """The units whose owners write where a file lies."""
    units: tuple[str, ...] = ()
    match path.relative_to(layout.root).parts:
        case ["pretraining" | "contrastive", run_id, _, *_]:
            units = (run_id,)
        case ["glue", _, "studies", study_id, _, *_]:
            units = (f"{study_id}-selection",)
        case ["glue" | "mteb", _, name]:
            units = (name.split(".")[0],)
        case ["data", "tokenizers", *_]:
            units = tuple(sorted(unit.name for unit in (layout.root / "claims").glob("tokenizer-*")))
        case ["data", "glue" | "errors", *_]:
            pass
        case ["data", "pairs", name, *_]:
            units = (pairs_unit(name.split(TEMPORARY_MARK)[0]),)
        case ["data", name, *_]:
            units = corpus_units(name.split(".")[0])
        case ["snapshots", *_]:
            units = (SUBMISSION_UNIT,)
    return units
