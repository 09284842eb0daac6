"""Table of the kinds of work. A new kind is a module of `neobert.kinds` and a row here."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from neobert.errors import RunFailed
from neobert.files import matching
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.corpus import Corpus
from neobert.kinds.glue import GlueStudy
from neobert.kinds.mteb import EmbeddingEvaluation
from neobert.kinds.pretraining import PretrainingRun
from neobert.kinds.rates import RateSweep
from neobert.kinds.readouts import ReadoutEvaluation
from neobert.runs.layout import Layout
from neobert.runs.records import is_published, read_record
from neobert.runs.work import Work

KINDS: Mapping[str, type[Work]] = {
    "corpus": Corpus,
    "pretraining": PretrainingRun,
    "rates": RateSweep,
    "contrastive": ContrastiveRun,
    "glue": GlueStudy,
    "mteb": EmbeddingEvaluation,
    "readouts": ReadoutEvaluation,
}
Run = Annotated[
    PretrainingRun | RateSweep | GlueStudy | ContrastiveRun | EmbeddingEvaluation | ReadoutEvaluation,
    Field(discriminator="kind"),
]
"""Work with a run.json: all kinds but corpora, which are prepared for a run."""
RUN_KINDS = tuple(kind for kind in KINDS if kind != "corpus")
STAGES_OF_VARIANTS = tuple(kind for kind in RUN_KINDS if kind != "rates")
"""The kinds that a variant has runs of; a sweep is planned by a command of its own."""
RUN_FOLDERS = tuple(KINDS[kind].folders() for kind in RUN_KINDS)
"""Glob patterns of the folders with a run.json, in the order of listings."""
RECORD_PLACES = {kind: each.record_place for kind, each in KINDS.items() if each.record_place is not None} | {
    "throughput": "throughput/{id}.json"
}
"""By the kind in a record: where it lies below the folder of runs, by its content."""
RECORDS = tuple(re.sub("{.*?}", "*", place) for place in RECORD_PLACES.values())
"""Glob patterns of all records below a folder of runs."""


def kind_of(folder: str) -> str | None:
    """Return the kind of work whose result is in a folder, relative to the folder of runs; None if there is none."""
    return next((kind for kind, work in KINDS.items() if work.names_in(folder) is not None), None)


def closing_record(layout: Layout, folder: str) -> Path:
    """Return the file that marks the work of a folder, relative to the folder of runs, as done."""
    kind = kind_of(folder)
    assert kind is not None, folder
    return layout.root / folder / KINDS[kind].closing_file


def is_done(layout: Layout, reference: str) -> bool:
    """Return whether the training run or study of a reference is done."""
    kind = kind_of(reference)
    assert kind is not None, reference
    return is_published(closing_record(layout, reference), KINDS[kind].read_closing)


def record_paths(root: Path) -> Iterator[Path]:
    """Yield every record file below a folder of runs, in a stable order."""
    for pattern in RECORDS:
        yield from matching(root, pattern)


def read_records(root: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return all readable records, and one sentence for each file that could not be read."""
    records, problems = [], []
    for path in record_paths(root):
        try:
            records.append(read_record(path))
        except (RunFailed, OSError) as error:
            problems.append(str(error))
    return records, problems
