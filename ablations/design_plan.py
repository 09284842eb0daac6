"""A design at a scale, as run.py plans it: what the scale cannot hold, and how many runs it needs and has."""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ablations.designs import Design, design_of
from ablations.ladder import ladder
from ablations.plan import Row
from ablations.scales import Scale, Vocabulary, scaled, scaled_variant
from ablations.variant import Variant
from neobert.runs.specifications import GlueStudy, PretrainingRun


@dataclass(frozen=True)
class ScaledDesign:
    """A design without the variants that its scale cannot hold; `left_out` has a sentence for each of them."""

    design: Design
    vocabulary: Vocabulary
    left_out: tuple[str, ...]


def planned_design(options: argparse.Namespace, vocabulary: Vocabulary) -> ScaledDesign | None:
    """The design that the flags ask for; None where they ask for none.

    Raises:
        ValueError: the flags contradict each other, or a factor that was named cannot be varied at this scale.
    """
    if options.design is None:
        if options.factors or options.fraction != "full":
            raise ValueError("--factors and --fraction belong to a --design: add --design factorial, for instance")
        return None
    if options.variant:
        raise ValueError("--variant and --design both choose variants: give one of them")
    design = design_of(options.design, options.factors or (), options.fraction)
    problems = {variant.name: _problem(variant, options.scale, vocabulary) for variant in design.variants}
    sentences = tuple(f"{name}: {problem}" for name, problem in problems.items() if problem)
    if sentences and options.factors:
        raise ValueError(f"{sentences[0]} (take another factor or another --scale)")
    kept = tuple(variant for variant in design.variants if not problems[variant.name])
    return ScaledDesign(replace(design, variants=kept), vocabulary, sentences)


def _problem(variant: Variant, scale: Scale, vocabulary: Vocabulary) -> str | None:
    try:
        scaled_variant(variant, scale, vocabulary)
    except ValueError as error:
        return str(error)
    return None


def design_lines(planned: ScaledDesign, rows: Sequence[Row]) -> list[str]:
    """What a design needs and has, what it shares with the ladder, and which claims it supports."""
    design = planned.design
    units = {unit.run.id: unit for row in rows for unit in row.units}
    stages = [unit.state for unit in units.values() if isinstance(unit.run, PretrainingRun)]
    studies = [unit.state for unit in units.values() if isinstance(unit.run, GlueStudy)]
    seeds = len({row.seed for row in rows})
    needs = [_counted(stages, "pre-training stage(s)"), *([_counted(studies, "GLUE studies")] if studies else [])]
    lines = [f"design: {design.title}: {len(design.variants)} variants, {seeds} seed(s) need {' and '.join(needs)}"]
    shared = [f"{name} = {other}" for name, other in _equal_to_the_ladder(planned.vocabulary, rows).items()]
    lines += [f"trained once, as their recipes are equal: {', '.join(shared)}"] if shared else []
    return [*lines, *(f"left out: {sentence}" for sentence in planned.left_out), *design.notes]


def _counted(states: Sequence[str], what: str) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in sorted(Counter(states).items()))
    return f"{len(states)} {what} ({counts})"


def _equal_to_the_ladder(vocabulary: Vocabulary, rows: Sequence[Row]) -> dict[str, str]:
    """Variants of a design whose pre-training is that of one of the ladder under another name."""
    scale = rows[0].scale
    of_ladder = {
        name: scaled(variant.recipe, scale, vocabulary).pretraining for name, variant in reversed(ladder().items())
    }
    return {
        row.variant.name: name
        for row in rows
        for name, pretraining in of_ladder.items()
        if row.variant.name not in of_ladder and pretraining == row.recipe.pretraining
    }
