"""The committed study: where its records and figures are, and what reports find in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ablations.declarations import read_declaration

from ablations import ladders
from reports.analysis.resampling import StoredPredictions
from reports.curves import Curves
from reports.evidence import read_evidence
from reports.findings import Findings
from reports.matching import group_of

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDS, MADE = REPOSITORY / "reports" / "study", REPOSITORY / "docs" / "study"
LADDER, DECLARATION = (REPOSITORY / "declarations" / f"parts.{suffix}" for suffix in ("py", "json"))
SCALE, DATA = "parts", "real_text"
FOLDER = MADE / f"{SCALE}-{DATA}"


@contextmanager
def committed_study() -> Iterator[Findings]:
    """Within, its ladder is in use."""
    with ladders.using(ladders.load(str(LADDER))):
        evidence = read_evidence(RECORDS)
        yield Findings(
            group_of(evidence, SCALE, DATA),
            FOLDER.name,
            StoredPredictions(RECORDS, evidence.studies),
            evidence,
            Curves(RECORDS, evidence.runs),
            read_declaration(DECLARATION),
            evidence.declarations,
        )
