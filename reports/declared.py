"""The declaration of a study in reports: which one judges a group of records, and what a page says of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ablations.declarations import Declaration
from ablations.ladders import ladder
from ablations.scales import Scale
from reports.analysis.quantities import QUANTITIES
from reports.tables import markdown_row


def declaration_of(declarations: Sequence[Declaration], scale: Scale, data: str) -> Declaration | None:
    """Return the declaration of a group; None if there is none.

    Raises:
        ValueError: there are several.
    """
    own = [each for each in declarations if (each.scale, each.data) == (scale, Path(data).name)]
    if len(own) > 1:
        names = " and ".join(f"{each.name}-{each.id}" for each in own)
        raise ValueError(f"scale {scale} with data {data} has the declarations {names}: say which with --declaration")
    return own[0] if own else None


def list_seeds(seeds: Iterable[int]) -> str:
    """Format seeds with their noun, and three or more neighbours as ranges: seeds 0 to 5, 8."""
    names = {seed: str(seed) for seed in seeds}
    return f"{'seed' if len(names) == 1 else 'seeds'} {', '.join(_ranges(names))}"


def list_arms(names: Iterable[str]) -> str:
    """Format arms, with three or more neighbours of the ladder as ranges: M0 to M7, M9."""
    places, own = {name: place for place, name in enumerate(ladder())}, list(dict.fromkeys(names))
    on_ladder = {places[name]: name for name in own if name in places}
    return ", ".join([*_ranges(on_ladder), *(name for name in own if name not in places)])


def _ranges(names: Mapping[int, str]) -> list[str]:
    """Return names by their places, with three or more neighbours as a range."""
    parts: list[list[str]] = []
    for place in sorted(names):
        if place - 1 in names:
            parts[-1].append(names[place])
        else:
            parts.append([names[place]])
    return [f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(part) for part in parts]


def declared_section(declaration: Declaration) -> str:
    """Return the part of a study's page that says what its declaration holds, in Markdown."""
    lines = ["| | |", "|---|---|", *map(markdown_row, _lines(declaration)), "", "```", *declaration.commands, "```"]
    return "\n".join(lines) + "\n"


def _lines(declaration: Declaration) -> Iterator[tuple[str, str]]:
    protocol = declaration.protocol
    looks = ", ".join(f"{seeds} with p ≤ {level:g}" for seeds, level in sorted(protocol.looks.items()))
    yield "Declaration", f"{declaration.name}, {declaration.id}"
    yield "Arms", list_arms(declaration.arms)
    yield "Scale and data", f"`{declaration.scale}`, {declaration.data}"
    yield "Trained with", f"{list_seeds(declaration.seeds)}, paired"
    yield "Looks", f"at {looks}, over all steps in one family"
    yield "Primary", "; where an arm lacks it, ".join(map(str, protocol.primary))
    yield "Then, in this sequence", "; ".join(map(str, protocol.sequence)) or "nothing"
    margins = [
        (name, each.unit, protocol.margins[name]) for name, each in QUANTITIES.items() if name in protocol.margins
    ]
    yield "Margins", "; ".join(f"{name} {margin:g} {unit}" for name, unit, margin in margins)
    if declaration.own_rates:
        pilots = list_seeds(declaration.pilot_seeds)
        yield "At their own best rate too", f"{list_arms(declaration.own_rates)}, found on pilot {pilots}"
    if declaration.budgets:
        shares = ", ".join(f"{share:g}" for share in declaration.budgets)
        seeds = list_seeds(declaration.budget_seeds)
        yield "Forecast", f"from {shares} of the steps with {seeds}, before any run in full"
