"""Readouts that a ladder declares: minimal pairs and cloze items of a file, and pass keys in texts of given lengths."""

import hashlib
import random
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from neobert.data.blimp import MinimalPair
from neobert.data.reading import read_table
from neobert.errors import MissingData
from neobert.identity import IDENTITY_DIGITS, canonical
from neobert.recipe import Value

NAME = re.compile(r"[a-z][a-z0-9_-]*")
BLANK = "___"
"""Where the word stands in the text of a cloze item."""
RULE = re.compile(rf"{BLANK}_*")
"""A blank of any length: of a longer one a part would stay beside the word."""

FILLER = (
    "The river runs past the old mill.",
    "Two boats lie at the landing.",
    "A dog sleeps in the shade of the wall.",
    "The shop opens at nine and closes at six.",
    "On Sundays the street is empty.",
    "The train was late again.",
    "People waited on the platform and read.",
    "The garden has apple trees and a bench.",
    "Somebody cuts the grass every week.",
)
"""Sentences around a pass key. None has a digit."""
SEED = 20_261_125


@dataclass(frozen=True)
class Choice:
    """A text with a word from character `begin` to `end`, another word that could stand there, and the group that the
    item belongs to, which may be empty."""

    text: str
    begin: int
    end: int
    distractor: str
    group: str


class OwnReadout(Value):
    """A readout that a ladder declares. `file` is relative to the ladder file, and no part of ids, which have a hash of
    the items (`origin`)."""

    name: str
    file: str = Field("", exclude=True)

    reaches_far: ClassVar[bool] = False
    """Whether it is measured in the longest context that pseudo-perplexity has, not in the shortest of the scale."""

    @property
    def origin(self) -> str:
        """The hash of all items."""
        content = canonical([list(astuple(item)) for item in self.items])
        return hashlib.sha256(content.encode()).hexdigest()[:IDENTITY_DIGITS]

    @cached_property
    @abstractmethod
    def items(self) -> Sequence[MinimalPair | Choice]:
        """The items, in order.

        Raises:
            MissingData: there is no such file.
            DamagedFile, ValueError: it cannot be read, lacks a column, or a row is no item.
        """

    @model_validator(mode="after")
    def _has_a_possible_name(self) -> Self:
        if NAME.fullmatch(self.name) is None:
            raise ValueError(f"{self.name!r} cannot be the name of a readout: take small letters, digits, - and _")
        return self

    def _rows(self, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the rows of the file: the given columns as text, `columns` being required."""
        path = Path(self.file)
        if not path.is_file():
            raise MissingData(f"the readout {self.name} has no file {path}")
        table = read_table(path, columns)
        rows = list(zip(*(table[column] for column in columns), strict=True))
        if not rows:
            raise ValueError(f"{path} has no rows: put the items of the readout {self.name} there")
        for number, row in enumerate(rows, start=1):
            if wrong := [column for column, cell in zip(columns, row, strict=True) if not _is_text(cell)]:
                raise ValueError(f"{path}, row {number}: {wrong[0]} is {row[columns.index(wrong[0])]!r}, and no text")
        return [tuple(map(str, row)) for row in rows]


class MinimalPairs(OwnReadout):
    """Pairs of an acceptable and an unacceptable sentence, scored like those of BLiMP: the share of pairs in which the
    acceptable one has the higher pseudo-log-likelihood. `columns` are those of the two, and `group_column` names the
    paradigm of a pair, over which the value is a mean; without one, all pairs are one paradigm."""

    kind: Literal["minimal_pairs"] = "minimal_pairs"
    columns: tuple[str, str] = ("sentence_good", "sentence_bad")
    group_column: str | None = None

    @cached_property
    def items(self) -> list[MinimalPair]:
        if self.group_column is None:
            return [MinimalPair(good, bad, self.name) for good, bad in self._rows(self.columns)]
        return [MinimalPair(*row) for row in self._rows((*self.columns, self.group_column))]


class ClozeItems(OwnReadout):
    """Texts with a blank (`___`), the word that fills it, and another: the share of items in which the word is more
    probable. `columns` are those of the three, and `group_column` one by which accuracies are told apart."""

    kind: Literal["cloze_items"] = "cloze_items"
    columns: tuple[str, str, str] = ("text", "word", "distractor")
    group_column: str | None = None

    @cached_property
    def items(self) -> list[Choice]:
        groups = () if self.group_column is None else (self.group_column,)
        items = []
        for number, (text, word, distractor, *group) in enumerate(self._rows((*self.columns, *groups)), start=1):
            if RULE.findall(text) != [BLANK] or word == distractor:
                what = "its two words are equal" if word == distractor else f"its text has not one blank {BLANK}"
                raise ValueError(f"{self.file}, row {number} is no cloze item: {what}")
            begin = text.index(BLANK)
            filled = text.replace(BLANK, word)
            items.append(Choice(filled, begin, begin + len(word), distractor, "".join(group)))
        return items


class PassKeys(OwnReadout):
    """Texts that name a digit at a random place and ask for it at the end (Mohtashami and Jaggi 2023, arXiv
    2305.16300), beside another digit that is not in the text. `words` are the lengths of the texts in words, each with
    `items_per_length` texts; accuracies are also given by length. What is longer than the model's context loses its
    beginning."""

    kind: Literal["pass_keys"] = "pass_keys"
    words: tuple[PositiveInt, ...]
    items_per_length: PositiveInt = 100

    reaches_far: ClassVar[bool] = True

    @cached_property
    def items(self) -> list[Choice]:
        generator = random.Random(SEED)
        return [_pass_key(length, generator) for length in self.words for _ in range(self.items_per_length)]

    @model_validator(mode="after")
    def _has_lengths_and_no_file(self) -> Self:
        if self.file or not self.words:
            raise ValueError(f"the readout {self.name} needs lengths in words and reads no file")
        return self


def _pass_key(length: int, generator: random.Random) -> Choice:
    """Return an item of about `length` words: whole sentences of `FILLER` around the one with the key."""
    key, other = generator.sample("0123456789", 2)
    named, asked = f"The pass key is {key}.", "What is the pass key? The pass key is "
    sentences: list[str] = []
    words = len(f"{named} {asked}".split())
    while words < length:
        sentences.append(generator.choice(FILLER))
        words += len(sentences[-1].split())
    sentences.insert(generator.randint(0, len(sentences)), named)
    text = f"{' '.join(sentences)} {asked}"
    return Choice(f"{text}{key}.", len(text), len(text) + 1, other, f"{length} words")


def _is_text(cell: Any) -> bool:
    return cell is not None and bool(str(cell).strip())


AnyOwnReadout = Annotated[MinimalPairs | ClozeItems | PassKeys, Field(discriminator="kind")]
