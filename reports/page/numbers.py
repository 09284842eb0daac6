"""Numbers of the page as printed, each with the records that it comes from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reports.formats import DASH


@dataclass(frozen=True)
class Number:
    """A printed text; `key` names its entry in the register, None where there is nothing behind it."""

    text: str
    key: int | None = None


NO_NUMBER = Number(DASH)


class Register:
    """Gives every number its key and, at the end, the whole as JSON: words and ids are written once."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._entries: dict[tuple[int, int, tuple[int, ...]], int] = {}

    def number(self, text: str, title: str, how: str, ids: Sequence[str]) -> Number:
        """A number with its title, how it was computed, and the ids of its records; without any, or as a dash, it has
        no key."""
        return self._entered(text, title, how, ids) if ids and text != DASH else Number(text)

    def published(self, text: str, title: str, source: str) -> Number:
        """A number that the paper prints, with the place where it does; without a text it has no key."""
        return (
            self._entered(text, title, f"printed in the paper: {source}", ())
            if text not in ("", DASH)
            else Number(text)
        )

    def _entered(self, text: str, title: str, how: str, ids: Sequence[str]) -> Number:
        places = tuple(self._ids.setdefault(each, len(self._ids)) for each in ids)
        entry = self.word(title), self.word(how), places
        return Number(text, self._entries.setdefault(entry, len(self._entries)))

    def word(self, text: str) -> int:
        """The place of a text among all words."""
        return self._words.setdefault(text, len(self._words))

    def mention(self, record_id: str) -> None:
        """Describe a record that no number names but another record does."""
        self._ids.setdefault(record_id, len(self._ids))

    @property
    def ids(self) -> list[str]:
        """Every id that is to be described, in the order of first use."""
        return list(self._ids)

    def plain(self, records: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The register as JSON; `records` has one line of places of words for each id."""
        assert len(records) == len(self._ids)
        numbers = [[title, how, list(places)] for title, how, places in self._entries]
        return {"words": list(self._words), "ids": self.ids, "records": records, "numbers": numbers}
