"""Labels of records: names of scale, data, variants and model, and the ladder that a record was planned on."""

from collections import Counter
from typing import Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from ablations.ladders import Ladder
from ablations.scales import Scale
from neobert.errors import did_you_mean
from neobert.recipe import Value


class Labels(Value):
    """What reports read of a record's labels: names, which decide nothing. They are read with a ladder, which
    says what scales there are."""

    model_config = ConfigDict(extra="ignore")

    scale: Scale
    data: str
    variants: tuple[str, ...] = ()
    unavailable_tasks: dict[str, str] = Field({})
    model: str | None = None
    ladder: str = ""

    @field_validator("scale")
    @classmethod
    def _is_known(cls, scale: Scale, info: ValidationInfo) -> Scale:
        ladder = ladder_of(info)
        if scale not in ladder.known_scales:
            raise ValueError(f"there is no such scale: {did_you_mean(scale, ladder.known_scales)}")
        return scale


def ladder_of(info: ValidationInfo) -> Ladder:
    """Return the ladder that a record is read with."""
    ladder: Ladder = info.context.about  # type: ignore[union-attr]
    return ladder


def why_of_another(ladder: str) -> str:
    """Describe records that were planned on another ladder than that of the reports."""
    if ladder:
        return f"planned on the ladder {ladder}: pass --ladder and that file to include them"
    return "planned on the paper's ladder: leave out --ladder to include them"


class OthersRecords:
    """Number of records left out per other ladder: those that could be mistaken for records of `ladder`."""

    def __init__(self, ladder: Ladder) -> None:
        self.ladder = ladder
        self._counts = Counter[str]()

    def leaves_out(self, labels: Any, *, named: bool) -> bool:
        """Return whether a record is left out because of its labels, and count it if so. Records matched by recipe may
        belong to another ladder if their scale is known; records matched by label (`named`) may not."""
        theirs = str(labels.get("ladder", "")) if isinstance(labels, dict) else ""
        if not isinstance(labels, dict) or theirs == self.ladder.name:
            return False
        is_other = named or bool(labels.get("model")) or labels.get("scale") not in self.ladder.known_scales
        self._counts[theirs] += is_other
        return is_other

    def sentences(self) -> list[str]:
        """Return one sentence per ladder."""
        return [f"{count} record(s) {why_of_another(name)}" for name, count in sorted(self._counts.items()) if count]
