"""Declarations: what a study runs and how it is judged, in a file that is committed before its runs.

`declarations/<study>.json` holds one. Its hash is a label of the runs and a part of the forecasts made for it, so that
reports can list the deviations of the records from it.
"""

import argparse
import contextlib
import io
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError, model_validator

from neobert.errors import MissingData, did_you_mean
from neobert.identity import identity, plain
from neobert.recipe import Value

if TYPE_CHECKING:
    from neobert.runs.layout import Layout

NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
SCRIPT = "ablations/run.py"
"""The command whose flags are checked when a declaration is read."""
MINIMAL_PAIRS = "minimal pairs (BLiMP)"
MARGINS: Mapping[str, float] = {
    "bits per byte": 0.016,
    "whole words": 0.016,
    "cloze": 3.0,
    MINIMAL_PAIRS: 4.0,
    "loss, all [MASK]": 0.05,
    "loss, 80/10/10": 0.05,
    "GLUE": 0.5,
    "loss": 0.05,
}
"""Every quantity of the reports with its usual margin of equivalence, in the quantity's unit."""
WITHOUT_CORPUS = frozenset({MINIMAL_PAIRS, "GLUE"})
"""Quantities that are not measured on a corpus."""


def _refuse_repeats(field: str, values: Iterable[str]) -> None:
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(f"{field} names {repeated[0]} twice")


class Measure(Value):
    """A quantity of the reports on the corpus that the child was trained on (`own`), or on the others. Those that are
    not measured on a corpus are `own`."""

    quantity: str
    corpus: Literal["own", "other"] = "own"

    def __str__(self) -> str:
        return self.describe(_CORPORA)

    def describe(self, corpora: Mapping[str, str]) -> str:
        """Return the quantity with its corpus in these words, if it has one."""
        return self.quantity if self.quantity in WITHOUT_CORPUS else f"{self.quantity} on {corpora[self.corpus]}"


_CORPORA = {"own": "the child's own corpus", "other": "the other corpora"}


class Protocol(Value):
    """How the differences of a study are judged.

    `looks` are numbers of seeds with the largest family-wise p that claims a difference there. `margins` are the
    bounds of equivalence by quantity. `primary` is one family: of each step the first of these measures that both arms
    have. The measures of `sequence` are tested in this order, each only for the steps that all before it claimed.
    Everything else is exploratory and has no verdict.
    """

    looks: Mapping[PositiveInt, float]
    margins: Mapping[str, PositiveFloat]
    primary: tuple[Measure, ...] = Field(min_length=1)
    sequence: tuple[Measure, ...]

    def margin_of(self, quantity: str) -> float:
        """Return the bound of equivalence of a quantity, in its unit; the usual one if none is declared."""
        return self.margins.get(quantity, MARGINS[quantity])

    @model_validator(mode="after")
    def _is_possible(self) -> "Protocol":
        for name in (*self.margins, *(each.quantity for each in (*self.primary, *self.sequence))):
            if name not in MARGINS:
                raise ValueError(f"{name!r} is no quantity: {did_you_mean(name, MARGINS)}")
        if missing := sorted({each.quantity for each in (*self.primary, *self.sequence)} - self.margins.keys()):
            raise ValueError(f"{missing[0]!r} is tested and has no margin: add it to margins")
        _refuse_repeats("primary and sequence", map(str, (*self.primary, *self.sequence)))
        if not self.looks:
            raise ValueError("there is no look: name at least one number of seeds with its level")
        for seeds, level in self.looks.items():
            least = math.ldexp(1, 1 - seeds)
            if not least <= level < 1:
                raise ValueError(
                    f"the look at {seeds} seeds has level {level:g}: the smallest p that sign flips of {seeds} seeds "
                    f"reach is {least:.3g}; give a level from there to 1, or more seeds"
                )
        return self


class Declaration(Value):
    """A study: its arms, seeds, budgets, rates and commands, and the protocol that judges it.

    `ladder` is the name of the file of a ladder, empty for the paper's; `data` the name of the data's folder.
    `own_rates` are the arms that are also trained at their own best rate, found on `pilot_seeds`. `budgets` are the
    shares of the steps that the forecast rests on, trained with the seeds `budget_seeds`.
    """

    name: str
    question: str
    ladder: str
    scale: str
    data: str
    arms: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[NonNegativeInt, ...] = Field(min_length=1)
    pilot_seeds: tuple[NonNegativeInt, ...]
    own_rates: tuple[str, ...]
    budgets: tuple[PositiveFloat, ...]
    budget_seeds: tuple[NonNegativeInt, ...]
    protocol: Protocol
    commands: tuple[str, ...]

    @property
    def id(self) -> str:
        """The hash of everything declared."""
        return identity(self)

    @property
    def labels(self) -> dict[str, str]:
        return {"declaration": self.name, "declaration_id": self.id}

    @model_validator(mode="after")
    def _fields_are_valid(self) -> "Declaration":
        from ablations.budgets import share_text

        if NAME.fullmatch(self.name) is None:
            raise ValueError(f"{self.name!r} cannot be the name of a study: take small letters, digits, - and _")
        for field in ("arms", "seeds", "pilot_seeds", "own_rates", "budgets", "budget_seeds"):
            _refuse_repeats(field, map(str, dict(self)[field]))
        for share in self.budgets:
            share_text(share)
        return self

    @model_validator(mode="after")
    def _fields_fit_together(self) -> "Declaration":
        for arm in self.own_rates:
            if arm not in self.arms:
                raise ValueError(f"own_rates names {arm!r}, which is no arm: {did_you_mean(arm, self.arms)}")
        if self.own_rates and not self.pilot_seeds:
            raise ValueError("own_rates are found on pilot seeds, and pilot_seeds is empty: name one at least")
        if bool(self.budgets) != bool(self.budget_seeds):
            raise ValueError("budgets and budget_seeds go together: fill in both, or leave both empty")
        if (most := max(self.protocol.looks)) > len(self.seeds):
            raise ValueError(f"there is a look at {most} seeds, and {len(self.seeds)} are declared")
        return self

    @model_validator(mode="after")
    def _pilot_seeds_are_apart(self) -> "Declaration":
        from ablations.rates import PILOT_SEEDS

        if pilots := [seed for seed in (*self.seeds, *self.budget_seeds) if seed in PILOT_SEEDS]:
            raise ValueError(f"seed {pilots[0]} is a pilot seed, which no comparison counts: name it in pilot_seeds")
        if others := [seed for seed in self.pilot_seeds if seed not in PILOT_SEEDS]:
            raise ValueError(f"pilot seeds are {PILOT_SEEDS[0]} to {PILOT_SEEDS[-1]}, not {others[0]}")
        return self


PROTOCOL = Protocol(
    looks={6: 0.032, 8: 0.016, 10: 0.02},
    margins=MARGINS,
    primary=(Measure(quantity="bits per byte"),),
    sequence=(
        Measure(quantity="bits per byte", corpus="other"),
        Measure(quantity="whole words"),
        Measure(quantity="cloze"),
        Measure(quantity=MINIMAL_PAIRS),
    ),
)
"""The protocol of records without a declaration."""


# Reading


def read_declaration(path: Path) -> Declaration:
    """Read a declaration and check it against the ladder in use.

    Raises:
        MissingData: there is no such file.
        ValueError: it is no declaration, is of another ladder, or names an arm or a command that does not exist.
    """
    from ablations.ladders import current

    declaration = _parse(path)
    if declaration.ladder != current().name:
        flag = f"--ladder with the file {declaration.ladder}" if declaration.ladder else "no --ladder"
        raise ValueError(f"{path} is a study of {declaration.ladder or 'the paper'}: give {flag}")
    try:
        _check_names(declaration)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return declaration


def _parse(path: Path) -> Declaration:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingData(f"{path}: there is no such declaration") from error
    except OSError as error:
        raise MissingData(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    try:
        return Declaration.read(content)
    except ValidationError as error:
        raise ValueError(f"{path}: {'; '.join(_in_words(each) for each in error.errors())}") from error


def _in_words(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        fields = {*Declaration.model_fields, *Protocol.model_fields, *Measure.model_fields}
        return f"{place} is no field of a declaration: {did_you_mean(str(error['loc'][-1]), sorted(fields))}"
    if error["type"] == "missing":
        return f"the field {place} is missing"
    return f"{place}: {error['msg']}".removeprefix(": ").replace("Value error, ", "")


def _check_names(declaration: Declaration) -> None:
    """Raise ValueError if an arm, the scale or a command does not exist on the ladder in use."""
    from ablations.designs import chosen_variants, one_variant
    from ablations.ladders import known_scales, variants

    for arm in declaration.arms:
        if arm not in variants() and one_variant(arm).name != arm:
            raise ValueError(f"{arm!r} is no arm")
    if declaration.scale not in known_scales():
        raise ValueError(f"{declaration.scale!r} is no scale: {did_you_mean(declaration.scale, known_scales())}")
    for command in declaration.commands:
        options = run_options(command)
        if options is not None and options.variant:
            chosen_variants(options.variant)


def run_options(command: str) -> argparse.Namespace | None:
    """Return the flags of a command of `ablations/run.py`; None for every other command. Raises ValueError if the
    command is refused."""
    from ablations.run import build_parser

    words = shlex.split(command)
    if SCRIPT not in words:
        return None
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            # In a context of its own, as its --json says nothing of how the command that runs prints errors.
            return copy_context().run(build_parser().parse_args, words[words.index(SCRIPT) + 1 :])
    except SystemExit as error:
        reason = said.getvalue().strip() or "it prints its help and runs nothing"
        raise ValueError(f"the command {command!r} is refused: {reason.splitlines()[-1]}") from error


# In use


_used: ContextVar[Declaration | None] = ContextVar("declaration", default=None)


@contextmanager
def using(declaration: Declaration | None) -> Iterator[None]:
    """Label the runs that are planned within the context with a declaration; None labels nothing."""
    token = _used.set(declaration)
    try:
        yield
    finally:
        _used.reset(token)


def in_use() -> Declaration | None:
    """Return the declaration in use, if there is one."""
    return _used.get()


def protocol_in_use() -> Protocol:
    """Return the protocol of the declaration in use, or that of records without one."""
    return PROTOCOL if (declaration := in_use()) is None else declaration.protocol


def labels_in_use() -> dict[str, str]:
    """Return the labels of the declaration in use; empty without one."""
    return {} if (declaration := in_use()) is None else declaration.labels


def keep_in_use(layout: "Layout") -> None:
    """Store a copy of the declaration in use beside the runs that are planned for it."""
    if (declaration := _used.get()) is not None:
        keep(declaration, layout.root)


def kept_as(declaration: Declaration) -> str:
    """Return the path of a declaration's copy in a folder of runs, relative to it."""
    return f"declarations/{declaration.name}-{declaration.id}.json"


def keep(declaration: Declaration, root: Path) -> None:
    """Store a declaration below `declarations/` of a folder of runs, unless it is there."""
    from neobert.files import json_bytes, replace_file

    path = root / kept_as(declaration)
    if not path.exists():
        replace_file(path, json_bytes(plain(declaration)))


def kept_declarations(paths: Iterable[Path], problems: list[str]) -> list[Declaration]:
    """Return the declarations in files of a folder of runs that are of the ladder in use; add a sentence to `problems`
    for each that cannot be read or is not what its name says."""
    from ablations.ladders import current

    found = []
    for path in paths:
        try:
            declaration = _parse(path)
        except (ValueError, MissingData) as error:
            problems.append(f"a declaration is left out: {error}")
            continue
        if path.stem != f"{declaration.name}-{declaration.id}":
            problems.append(f"the declaration {path} is left out: it holds {declaration.name}-{declaration.id}")
        elif declaration.ladder == current().name:
            found.append(declaration)
    return found
