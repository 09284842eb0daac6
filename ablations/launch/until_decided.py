"""Paired seeds until the primary measure has a verdict: `ablations/run.py --variant … --until-decided`.

Every comparison begins with the fewest seeds that can have a verdict, then gets one more at a time. Verdicts follow
from the records alone (`neobert.referee.paired`), so the same command goes on where it was killed.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ablations import declarations
from ablations.arm_seeds import ArmSeeds, check_spread, check_transition, diagnose
from ablations.designs import chosen_variants
from ablations.launch.execute import Workspace, run_or_submit
from ablations.plan import VariantRow, plan
from ablations.readings import at_scale
from ablations.regime import checks_of, pilot_records
from ablations.variant import Variant
from neobert.console import logs, output, table
from neobert.errors import EXIT_DONE, EXIT_REQUEUE, MissingData
from neobert.kinds.pretraining import PretrainingRun
from neobert.referee.paired import decide, least_pairs
from neobert.runs.layout import Layout
from neobert.runs.records import read_record

ALPHA = 0.05
"""Largest probability that any verdict of a command is false."""
MOST_SEEDS = 10
LEAST_GAIN = 0.1
"""Gain in nats over token frequencies below which an arm has learned nothing to compare, as in the reports."""
NOT_TRAINED = "not trained"
FIELDS = {"bits per byte": "bits_per_byte", "loss": "loss"}
"""The primary measures that can be judged, with their names in records."""
HOURS = {"core_hours_saved": "core-hours", "gpu_hours_saved": "GPU-hours"}
Rows = Mapping[tuple[str, int], VariantRow]
"""Rows of a plan by variant and seed."""


@dataclass(frozen=True)
class Comparison:
    """A child that is compared with its parent in a quantity with a margin of equivalence. `corpus` is the child's."""

    child: str
    parent: str
    quantity: str
    corpus: str
    margin: float

    @property
    def name(self) -> str:
        return f"{self.child} − {self.parent}"


@dataclass(frozen=True)
class Judged(Comparison):
    """What the records say of a comparison: child minus parent at each seed that both have, in the order of seeds, and
    the verdict with the number of seeds that it took. Without a verdict it is empty, and all seeds count."""

    differences: tuple[float, ...]
    verdict: str
    seeds: int

    @property
    def mean(self) -> float | None:
        """The mean difference over the seeds that count."""
        return fmean(self.differences[: self.seeds]) if self.seeds else None


# From the flags


def seeds_of(options: argparse.Namespace) -> list[int]:
    """Return the seeds that may be trained, in their order: the declared ones, or 0, 1, 2 …

    Raises:
        ValueError: seeds or other stages are given, or more seeds are allowed than are declared.
    """
    if options.seed:
        raise ValueError("--until-decided chooses the seeds: leave out --seed, and limit them with --most-seeds")
    if others := [stage for stage in options.stages if stage != "pretraining"]:
        raise ValueError(
            f"--until-decided judges held-out losses, which {others[0]} does not have: give --stages pretrain, and run "
            f"{others[0]} afterwards with the seeds that were trained"
        )
    declaration, most = declarations.in_use(), options.most_seeds or MOST_SEEDS
    if declaration is None:
        return list(range(most))
    if options.most_seeds and most > len(declaration.seeds):
        raise ValueError(f"--most-seeds {most}: {declaration.name} declares {len(declaration.seeds)} seeds")
    return list(declaration.seeds[:most])


def pairs_of(options: argparse.Namespace) -> list[tuple[Variant, Variant]]:
    """Return the pairs (child, parent) that the flags name: the second of two variants and the first, or else each
    variant and its parent. Raises ValueError if there is no pair, or a design is given."""
    if options.design is not None or not options.variant:
        raise ValueError("--until-decided compares variants: name them with --variant (A B, M0..M5, all)")
    chosen = chosen_variants(options.variant)
    pairs: list[tuple[Variant, Variant]] = [(each, each.parent) for each in chosen if each.parent is not None]
    if len(chosen) == len(options.variant) == 2:
        (parent,), (child,) = (chosen_variants([name]) for name in options.variant)
        pairs = [(child, parent)]
    if not pairs:
        raise ValueError(f"{chosen[0].name} has no parent: name two variants, of which the second is the change")
    return [(at_scale(child, options.scale), at_scale(parent, options.scale)) for child, parent in pairs]


def plan_pairs(workspace: Workspace, pairs: Sequence[tuple[Variant, Variant]], seeds: Sequence[int]) -> Rows:
    """Return the pre-training of all variants of the pairs with all seeds, with the present states."""
    variants = list({variant.name: variant for child, parent in pairs for variant in (parent, child)}.values())
    rows = plan(variants, seeds, workspace.options.scale, workspace.source, workspace.layout, ("pretraining",))
    return {(row.name, row.seed): row for row in rows}


def comparisons_of(
    options: argparse.Namespace, pairs: Sequence[tuple[Variant, Variant]], rows: Rows, seeds: Sequence[int]
) -> list[Comparison]:
    """Return the comparison of each pair whose pre-training differs at the scale. Raises ValueError if no pair differs,
    one cannot be compared in the primary measure, or the seeds are too few."""
    found = []
    for child, parent in pairs:
        own, theirs = (rows[variant.name, seeds[0]].stages[-1] for variant in (child, parent))
        if own.recipe.ends_causal or theirs.recipe.ends_causal:
            raise ValueError(
                f"{child.name} or {parent.name} ends causal and has no held-out loss, so --until-decided cannot judge "
                "it: run seeds with --seed"
            )
        if own.id == theirs.id:
            logs().print(f"left out: {child.name} and {parent.name} have the same pre-training here", markup=False)
            continue
        corpus, other = own.recipe.data.corpus, theirs.recipe.data.corpus
        if corpus != other and options.heldout != "all":
            raise ValueError(
                f"{child.name} is trained on {corpus} and {parent.name} on {other}: add --heldout all, which measures "
                "each of them on both"
            )
        quantity, margin = _measure(own, theirs)
        found.append(Comparison(child.name, parent.name, quantity, corpus, margin))
    if not found:
        raise ValueError("no pre-training differs, so there is nothing to decide: choose other variants")
    least = least_pairs(ALPHA / len(found))
    if least > len(seeds):
        few = f"{len(seeds)} seed(s) cannot decide {len(found)} comparison(s)"
        raise ValueError(f"{few}: allow {least} or more with --most-seeds")
    return found


def _measure(own: PretrainingRun, theirs: PretrainingRun) -> tuple[str, float]:
    """Return the first primary measure that both arms have, with its margin."""
    protocol, tokens = declarations.protocol_in_use(), {_tokens(own), _tokens(theirs)}
    for measure in protocol.primary:
        if measure.quantity not in FIELDS or measure.corpus != "own":
            raise ValueError(
                f"the primary measure {measure} is no held-out loss on the child's own corpus, so --until-decided "
                "cannot judge it: run the declared seeds with --seed"
            )
        if measure.quantity != "loss" or len(tokens) == 1:
            return measure.quantity, protocol.margins[measure.quantity]
    raise ValueError("a primary loss is compared between equal tokens and contexts alone: declare bits per byte too")


def _tokens(run: PretrainingRun) -> tuple[str, int, int]:
    recipe = run.recipe
    return recipe.data.tokenizer, recipe.model.vocabulary_size, recipe.stages[-1].context


# From the records


def judge(layout: Layout, comparison: Comparison, rows: Rows, seeds: Sequence[int], level: float) -> Judged:
    """Return the verdict of a comparison so far. Raises MissingData if the records of child and parent have no held-out
    text in common."""
    child, parent, gains = list[float](), list[float](), list[tuple[float, float]]()
    for seed in seeds:
        arms = rows[comparison.child, seed], rows[comparison.parent, seed]
        if not all(map(is_trained, arms)):
            break
        ours, theirs = (_heldout(layout, row.stages[-1]) for row in arms)
        context = arms[0].stages[-1].recipe.stages[-1].context
        places = [place for place in ours.keys() & theirs.keys() if place[0] == comparison.corpus]
        places = [place for place in places if comparison.quantity != "loss" or place[1] == context]
        if not places:
            raise MissingData(f"{arms[0].heading}: its record shares no held-out text with that of {comparison.parent}")
        place, field = max(places, key=lambda each: each[1]), FIELDS[comparison.quantity]
        child.append(ours[place][field])
        parent.append(theirs[place][field])
        gains.append((_gain(arms[0].stages[-1], ours), _gain(arms[1].stages[-1], theirs)))
    differences = tuple(new - old for new, old in zip(child, parent, strict=True))
    first = gains[: least_pairs(level)]
    if len(first) == least_pairs(level) and min(fmean(own) for own in zip(*first, strict=True)) < LEAST_GAIN:
        return Judged(**asdict(comparison), differences=differences, verdict=NOT_TRAINED, seeds=len(first))
    found = decide(parent, child, level=level, margin=comparison.margin, most=len(seeds))
    verdict, count = (found.verdict, found.pairs) if found else ("", len(differences))
    return Judged(**asdict(comparison), differences=differences, verdict=verdict, seeds=count)


def is_trained(row: VariantRow) -> bool:
    """Return whether all stages of a row have their records."""
    return all(planned.state == "done" for planned in row.planned)


def _record(layout: Layout, run: PretrainingRun) -> dict[str, Any]:
    return read_record(layout.root / run.reference / run.closing_file)


def _heldout(layout: Layout, run: PretrainingRun) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Return the held-out scores of a run by corpus, context and set of texts."""
    scores = _record(layout, run)["scores"].get("heldout", ())
    return {(score["corpus"], score["context"], score["texts"]): score for score in scores}


def _gain(run: PretrainingRun, scores: Mapping[tuple[str, int, str], dict[str, Any]]) -> float:
    """Return the gain over token frequencies on the run's own corpus; inf in records from before it was measured."""
    own = run.recipe.data.corpus, run.recipe.stages[-1].context
    losses = [(score.get("frequency_loss"), score["loss"]) for place, score in scores.items() if place[:2] == own]
    return min((before - loss for before, loss in losses if before is not None), default=math.inf)


def failing_checks(layout: Layout, judged: Judged, rows: Rows, seeds: Sequence[int]) -> list[str]:
    """Return the regime checks that the arms of a comparison fail, one sentence each. The delta table claims nothing
    then, whatever the verdict: the arms differ, but perhaps in when they leave the plateau or in how they are tuned."""
    paired, pilots = seeds[: len(judged.differences)], pilot_records(layout)
    arms = {
        name: _seeds_of(layout, name, [rows[name, seed].stages[-1] for seed in paired])
        for name in (judged.child, judged.parent)
    }
    spread = check_spread(arms[judged.child], arms[judged.parent])
    failed = [f"{judged.child}: {spread.words}"] if spread.fails else []
    margin = declarations.protocol_in_use().margin_of("loss")
    failed += filter(None, (diagnose(arm, margin) for arm in arms.values()))
    for name, arm in arms.items():
        checks = (check_transition(arm), *checks_of(rows[name, seeds[0]].stages[-1], pilots))
        failed += [f"{name}: {check.words}" for check in checks if check.fails]
    return failed


def _seeds_of(layout: Layout, name: str, runs: Sequence[PretrainingRun]) -> ArmSeeds:
    """Return the final losses of trained runs on their own corpus, and their transitions where records have them."""
    losses, shares = dict[int, float](), dict[int, float]()
    for run in runs:
        scores = _record(layout, run)["scores"]
        losses[run.seed] = scores["heldout_loss"][run.recipe.data.corpus]
        transition = scores.get("transition")
        if transition is not None:
            steps = run.recipe.stages[-1].steps
            shares[run.seed] = (transition["step"] or steps) / steps
    return ArmSeeds(name, losses, shares)


def wanted_next(judged: Sequence[Judged], rows: Rows, seeds: Sequence[int], level: float) -> list[VariantRow]:
    """Return the rows that open comparisons need: at first the fewest seeds, then one more."""
    wanted = dict[tuple[str, int], VariantRow]()
    for each in judged:
        if not each.verdict:
            own = seeds[: max(least_pairs(level), len(each.differences) + 1)]
            arms = [(name, seed) for seed in own for name in (each.parent, each.child)]
            wanted |= {arm: rows[arm] for arm in arms if not is_trained(rows[arm])}
    return list(wanted.values())


# The command


def run_until_decided(
    workspace: Workspace,
    pairs: Sequence[tuple[Variant, Variant]],
    compared: Sequence[Comparison],
    seeds: Sequence[int],
) -> int:
    """Train seeds until every comparison is decided, and print the verdicts and what they saved; return the exit code.

    On SLURM, submit the seeds that are needed next and return; the same command goes on once they are trained. A
    comparison whose seed failed stays undecided, and the others go on.

    Raises:
        MissingData, ValueError: as `judge` and `run_or_submit`.
    """
    options, layout, level = workspace.options, workspace.layout, ALPHA / len(compared)
    tried, code = set[tuple[str, int]](), EXIT_DONE
    while True:
        rows = plan_pairs(workspace, pairs, seeds)
        judged = [judge(layout, each, rows, seeds, level) for each in compared]
        going = [each for each in judged if tried.isdisjoint(map(_arm, wanted_next([each], rows, seeds, level)))]
        missing = wanted_next(going, rows, seeds, level)
        if not missing:
            break
        code = max(code, run_or_submit(workspace, missing, lambda: None))
        if code == EXIT_REQUEUE:
            return code
        tried.update(map(_arm, missing))
    waiting = wanted_next(judged, rows, seeds, level)
    if waiting:  # they failed, are submitted, or another command is at work on them
        left = ", ".join(f"{row.name} seed {row.seed}" for row in waiting)
        under_way = f"{len(waiting)} run(s) are under way; the same command goes on once they are done"
        failure = f"not trained: {left}; the same command tries again"
        logs().print(under_way if code == EXIT_DONE else failure, markup=False)
    if code != EXIT_DONE or not (waiting and options.json):  # else stdout has the submitted jobs
        failed = [failing_checks(layout, each, rows, seeds) for each in judged]
        _print_verdicts(layout, judged, failed, rows, as_json=options.json)
    return code


def _arm(row: VariantRow) -> tuple[str, int]:
    return row.name, row.seed


def tell_most(compared: Sequence[Comparison], seeds: Sequence[int]) -> str:
    """Return what a dry run says beside the plan of all seeds."""
    names = ", ".join(f"{each.name} in {each.quantity}" for each in compared)
    return (
        f"until decided: {names}; {least_pairs(ALPHA / len(compared))} paired seeds at first, then one more at a time, "
        f"{len(seeds)} at most, which is what this plan shows; the probability of any false verdict is at most "
        f"{ALPHA:.0%}"
    )


def _print_verdicts(
    layout: Layout, judged: Sequence[Judged], failed: Sequence[Sequence[str]], rows: Rows, *, as_json: bool
) -> None:
    saved = _saved(layout, rows)
    if as_json:
        entries = [
            {**asdict(each), "mean": each.mean, "verdict": each.verdict or None, "failing_checks": list(checks)}
            for each, checks in zip(judged, failed, strict=True)
        ]
        print(json.dumps({"alpha": ALPHA, "comparisons": entries, **saved}, indent=1))
        return
    most = len({seed for _, seed in rows})
    cells = [
        (
            each.name,
            (f"equivalent within {each.margin:g}" if each.verdict == "equivalent" else each.verdict) or "undecided",
            None if each.mean is None else f"{each.mean:+.4f}",
            each.quantity,
            f"{each.seeds} of {most}",
        )
        for each in judged
    ]
    title = f"Verdicts; the probability that any is false is at most {ALPHA:.0%}"
    output().print(table(title, ("comparison", "verdict", "mean difference", "measure", "seeds"), cells))
    for each, checks in zip(judged, failed, strict=True):
        if checks:
            reasons = "; ".join(checks)
            output().print(f"reports do not claim {each.name}, as its regime fails: {reasons}", markup=False)
    hours = ", ".join(f"about {saved[key]:.2g} {name}" for key, name in HOURS.items() if saved[key])
    output().print(
        f"{saved['runs']} of at most {saved['runs_at_most']} runs are trained: {saved['runs_saved']} fewer"
        + (f" ({hours}, if they take as long as the trained ones)" if hours else ""),
        markup=False,
    )


def _saved(layout: Layout, rows: Rows) -> dict[str, float]:
    """Return how many runs are trained of how many, and the time of the others if they take as long as those of their
    arm."""
    trained, others = dict[str, VariantRow](), dict[str, VariantRow]()
    for row in rows.values():
        (trained if is_trained(row) else others)[row.stages[-1].id] = row
    costs: dict[str, list[tuple[float, float]]] = {}
    for row in trained.values():
        costs.setdefault(row.name, []).append(_hours_of(layout, row))
    usual = {name: [fmean(each) for each in zip(*known, strict=True)] for name, known in costs.items()}
    saved = [usual[row.name] for row in others.values() if row.name in usual]
    return {
        "runs": len(trained),
        "runs_at_most": len(trained) + len(others),
        "runs_saved": len(others),
        "core_hours_saved": sum(core for core, _ in saved),
        "gpu_hours_saved": sum(gpu for _, gpu in saved),
    }


def _hours_of(layout: Layout, row: VariantRow) -> tuple[float, float]:
    """Return the core-hours and the GPU-hours of a trained row, one of which is 0."""
    records = [_record(layout, run) for run in row.stages]
    if gpu := sum(record["gpu_hours"] for record in records):
        return 0.0, gpu
    core = sum(record["seconds"] * record.get("threads", 1) * record.get("processes", 1) for record in records)
    return core / 3600, 0.0
