"""Deviations of records from the declaration of their study: what was declared, and what the records show instead."""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablations.budgets import MARK as SHARE_MARK
from ablations.budgets import share_text
from ablations.declarations import Declaration, run_options
from ablations.designs import chosen_variants, design_of
from ablations.scales import scaled
from ablations.variant import Variant
from neobert.errors import name_first
from neobert.identity import difference, plain
from reports.declared import list_arms, list_seeds
from reports.evidence import Evidence, select_group
from reports.facts import weights_up_to
from reports.scores import Group
from reports.tables import Column, Table, count, make_table

NONE = "The records show no deviation from the declaration."


@dataclass(frozen=True)
class Deviation:
    """One deviation: its subject, what was declared of it, and what was found."""

    subject: str
    declared: str
    found: str

    def __str__(self) -> str:
        return f"{self.subject}: declared {self.declared}; found {self.found}."


def find_deviations(
    declaration: Declaration, group: Group, evidence: Evidence, others: Sequence[Declaration] = ()
) -> tuple[Deviation, ...]:
    """Return all deviations of a group's records from its declaration. `others` are further declarations that are
    stored with the records."""
    return (
        *_changes(declaration, others),
        *_labels(declaration, group, evidence),
        *_arms(declaration, group),
        *_others(declaration, group),
        *_seeds(declaration, group),
        *_pilots(declaration, group, evidence),
        *_rates(declaration, group, evidence),
        *_budgets(declaration, group),
        *_forecasts(declaration, evidence),
        *_commands(declaration, group, evidence),
    )


def _changes(declaration: Declaration, others: Sequence[Declaration]) -> Iterator[Deviation]:
    """Compare the declaration with the others of its study, which runs were planned with."""
    for other in others:
        if other.name == declaration.name and other.id != declaration.id:
            changed = sorted({path.partition(".")[0] for path in difference(other, declaration)})
            for field in changed:
                before, after = (plain(each)[field] for each in (other, declaration))
                yield Deviation(f"{field} (changed since {other.id})", *_differing(before, after))


def _differing(before: Any, after: Any) -> tuple[str, str]:
    """Return what each of two values of a field has and the other lacks; of those that are no lists, all."""
    if isinstance(before, list) and {*map(str, before)} != {*map(str, after)}:
        removed, added = (
            [each for each in before if each not in after],
            [each for each in after if each not in before],
        )
        return "; ".join(map(str, removed)) or "without", "; ".join(map(str, added)) or "without"
    return str(before), str(after)


def _labels(declaration: Declaration, group: Group, evidence: Evidence) -> Iterator[Deviation]:
    """Count the records with another declaration, or none."""
    frames = (evidence.runs, evidence.pilots, evidence.trials)
    hashes = pd.concat([select_group(frame, group.scale, group.data).declaration_id.fillna("") for frame in frames])
    for found, number in sorted(hashes[hashes != declaration.id].value_counts().items()):
        named = f"name declaration {found}" if found else "name no declaration"
        yield Deviation("records", f"{declaration.name}, {declaration.id}", f"{number} of {len(hashes)} {named}")


def _seeds_by_arm(names: Iterable[str], group: Group) -> dict[str, set[int]]:
    rows = group.compared_rows
    return {name: set(rows[name].runs.seed) if name in rows else set() for name in names}


def _arms(declaration: Declaration, group: Group) -> Iterator[Deviation]:
    trained = _seeds_by_arm(declaration.arms, group)
    if missing := [name for name, seeds in trained.items() if not seeds]:
        yield Deviation("arms", list_arms(declaration.arms), f"{list_arms(missing)} not trained")
    rows = group.compared_rows
    known = {run for name in declaration.arms if name in rows for run in rows[name].run_ids}
    added = [row.name for row in group.last_rows.values() if set(row.run_ids) - known]
    if added:
        yield Deviation("arms", list_arms(declaration.arms), f"{list_arms(added)} trained and not declared")


def _others(declaration: Declaration, group: Group) -> Iterator[Deviation]:
    """Name what was trained beside the ladder (arms of designs, at other rates, shares of the steps) although neither a
    field nor a command of the declaration has it."""
    commands = filter(None, map(run_options, declaration.commands))
    chosen = (_variants_of(options, declaration) for options in commands)
    marks = [f"{SHARE_MARK}{share_text(share)}" for share in declaration.budgets]
    named = {
        *declaration.arms,
        *(variant.name for own in chosen for variant in own),
        *(f"{name}{mark}" for name in declaration.arms for mark in marks),
        *_at_best_rates(declaration, group),
    }
    rows = group.compared_rows
    known = {run for name in named if name in rows for run in rows[name].run_ids}
    added = [name for name, row in rows.items() if name not in group.last_rows and set(row.run_ids) - known]
    if added:
        yield Deviation("arms", list_arms(declaration.arms), f"{list_arms(added)} trained and in no command")


def _at_best_rates(declaration: Declaration, group: Group) -> list[str]:
    """Return the names of the arms that were trained at their own best rates."""
    return [row.name for row in map(group.row_at_best_rate, declaration.own_rates) if row is not None]


def _grouped(found: Mapping[str, str]) -> str:
    """Join the arms with equal findings: M0 to M3: no seed 6; M4: no seed 2."""
    arms: dict[str, list[str]] = defaultdict(list)
    for name, text in found.items():
        if text:
            arms[text].append(name)
    return "; ".join(f"{list_arms(names)}: {text}" for text, names in arms.items())


def _seeds(declaration: Declaration, group: Group) -> Iterator[Deviation]:
    wanted, looks = set(declaration.seeds), sorted(declaration.protocol.looks)
    arms = dict.fromkeys([*declaration.arms, *_at_best_rates(declaration, group)])
    trained = {name: seeds for name, seeds in _seeds_by_arm(arms, group).items() if seeds}
    declared = list_seeds(wanted)
    missing = {name: f"without {list_seeds(wanted - seeds)}" for name, seeds in trained.items() if wanted - seeds}
    others = {name: f"{list_seeds(seeds - wanted)} too" for name, seeds in trained.items() if seeds - wanted}
    for found in filter(None, map(_grouped, (missing, others))):
        yield Deviation("seeds", declared, found)
    between = {name: _between_looks(len(seeds & wanted), looks) for name, seeds in trained.items()}
    if found := _grouped(between):
        yield Deviation("looks", f"at {', '.join(map(str, looks))} seeds", found)


def _between_looks(seeds: int, looks: Sequence[int]) -> str:
    if seeds in looks:
        return ""
    before = [look for look in looks if look < seeds]
    return f"{count(seeds, 'seed')}, of which the first {before[-1]} count" if before else f"{count(seeds, 'seed')}"


def _pilots(declaration: Declaration, group: Group, evidence: Evidence) -> Iterator[Deviation]:
    pilots = set(select_group(evidence.pilots, group.scale, group.data).seed)
    if added := pilots - set(declaration.pilot_seeds):
        seeds = list_seeds(declaration.pilot_seeds) if declaration.pilot_seeds else "none"
        yield Deviation("pilot seeds", seeds, f"{list_seeds(added)} too")


def _rates(declaration: Declaration, group: Group, evidence: Evidence) -> Iterator[Deviation]:
    """Compare the arms that were swept, on which pilot seeds and when, and those trained at their own best rates."""
    if not declaration.own_rates:
        return
    declared = f"{list_arms(declaration.own_rates)} on pilot {list_seeds(declaration.pilot_seeds)}"
    swept = [name for name in declaration.own_rates if name in group.sweeps]
    if missing := [name for name in declaration.own_rates if name not in swept]:
        yield Deviation("rates", declared, f"no sweep of {list_arms(missing)}")
    curves = {name: group.sweeps[name].curve for name in swept}
    lacking = {
        name: set(declaration.pilot_seeds).difference(*curve.losses.values(), *curve.failures.values())
        for name, curve in curves.items()
    }
    if found := _grouped({name: f"without pilot {list_seeds(own)}" for name, own in lacking.items() if own}):
        yield Deviation("rates", declared, found)
    untrained = [name for name in swept if group.row_at_best_rate(name) is None]
    for has_optimum, words in ((False, "no optimum in the sweep of"), (True, "not trained at their own best rate:")):
        if names := [name for name in untrained if (group.sweeps[name].optimum is not None) == has_optimum]:
            yield Deviation("rates", declared, f"{words} {list_arms(names)}")
    yield from _late_sweeps(declaration, group, evidence)


def _late_sweeps(declaration: Declaration, group: Group, evidence: Evidence) -> Iterator[Deviation]:
    """Compare when the pilot runs of each arm began with when its runs of the first look had ended, as far as records
    have times."""
    first = sorted(declaration.seeds)[: min(declaration.protocol.looks)]
    pilots, late = select_group(evidence.pilots, group.scale, group.data), dict[str, str]()
    for name in group.sweeps.keys() & group.compared_rows.keys():
        runs, sweep = group.compared_rows[name].runs, group.sweeps[name]
        ends = runs[runs.seed.isin(first)].finished_at
        begun = pilots[pilots.id.isin({run for by_seed in sweep.ids.values() for run in by_seed.values()})].started_at
        if len(ends) and not (ends.isna().any() or begun.isna().any()) and (begun > ends.max()).any():
            late[name] = f"pilot runs begun after its runs of the first look had ended ({ends.max()})"
    if found := _grouped({name: late[name] for name in group.sweeps if name in late}):
        yield Deviation("rates", "found before the runs of an arm", found)


def _budgets(declaration: Declaration, group: Group) -> Iterator[Deviation]:
    wanted = set(declaration.budget_seeds)
    for share in declaration.budgets:
        mark = f"{SHARE_MARK}{share_text(share)}"
        trained = _seeds_by_arm([f"{name}{mark}" for name in declaration.arms], group)
        lacking = {name.removesuffix(mark): wanted - seeds for name, seeds in trained.items()}
        found = _grouped(
            {
                name: f"without {list_seeds(seeds)}" if seeds < wanted else "not trained"
                for name, seeds in lacking.items()
                if seeds
            }
        )
        if found:
            yield Deviation(f"{share:g} of the steps", list_seeds(wanted), found)


def _forecasts(declaration: Declaration, evidence: Evidence) -> Iterator[Deviation]:
    if not declaration.budgets:
        return
    own = [each for each in evidence.forecasts if (each.scale, each.data) == (declaration.scale, declaration.data)]
    shares = ", ".join(f"{share:g}" for share in declaration.budgets)
    seeds = list_seeds(declaration.budget_seeds)
    if not own:
        yield Deviation("forecast", f"from {shares} of the steps", "none")
    for each in own:
        if each.declaration != declaration.id:
            named = f"declaration {each.declaration}" if each.declaration else "no declaration"
            yield Deviation("forecast", f"{declaration.name}, {declaration.id}", f"{each.id} names {named}")
        budgets = [name.partition(SHARE_MARK)[2] for name in each.budgets]
        if budgets != [share_text(share) for share in declaration.budgets]:
            yield Deviation("forecast", f"from {shares} of the steps", f"{each.id} from {', '.join(each.budgets)}")
        fewest = min(at.seeds for predicted in each.predictions for at in predicted.budgets)
        if fewest != len(declaration.budget_seeds):
            yield Deviation("forecast", seeds, f"{each.id} was made from {count(fewest, 'seed')} at a budget")
        if each.present:
            there = count(len(each.present), "record")
            yield Deviation("forecast", "before any run in full", f"{each.id} was made beside {there}")


def _commands(declaration: Declaration, group: Group, evidence: Evidence) -> Iterator[Deviation]:
    """Compare each command of ablations/run.py with the records of its runs."""
    for number, command in enumerate(declaration.commands, 1):
        options = run_options(command)
        if options is not None:
            chosen = _variants_of(options, declaration)
            rows = [group.compared_rows[each.name] for each in chosen if each.name in group.compared_rows]
            runs = pd.concat([evidence.runs[:0], *(row.runs for row in rows), _pilots_of(chosen, group, evidence)])
            runs = runs[runs.seed.isin(options.seed or [0])].drop_duplicates("id")
            yield from _of_command(f"command {number}", command, options, runs, evidence)
            yield from _unmeasured(f"command {number}", options, runs, group, evidence)


def _variants_of(options: argparse.Namespace, declaration: Declaration) -> Sequence[Variant]:
    """Return the variants that a command of ablations/run.py trains."""
    if options.design:
        return design_of(options.design, options.factors or (), options.fraction).variants
    return chosen_variants(options.variant or declaration.arms)


def _pilots_of(chosen: Iterable[Variant], group: Group, evidence: Evidence) -> pd.DataFrame:
    """Return the runs of variants on pilot seeds."""
    pilots, recipes = select_group(evidence.pilots, group.scale, group.data), set[str]()
    for variant in chosen if len(pilots) else ():
        with suppress(ValueError):  # impossible at this scale
            pretraining = scaled(variant.recipe, group.scale, group.vocabulary).pretraining
            recipes.add(weights_up_to(pretraining, len(pretraining.stages) - 1).model_dump_json())
    return pilots[pilots.recipe.isin(recipes)]


def _of_command(
    subject: str, command: str, options: argparse.Namespace, runs: pd.DataFrame, evidence: Evidence
) -> Iterator[Deviation]:
    """Compare the stages after the runs of one command, and their compilation."""
    if runs.empty:
        yield Deviation(subject, command, "nothing of it is recorded")
        return
    measured = set(runs.id) & set(evidence.runs.id)  # measurements on pilot seeds are not counted
    for stage, frame in (("readouts", evidence.readouts), ("glue", evidence.trials)):
        if stage in options.stages and (lacking := measured - set(frame.run)):
            yield Deviation(subject, f"stage {stage}", f"{len(lacking)} of {len(measured)} runs lack it")
    others = runs[runs.compiled.notna() & (runs.compiled != (options.compile == "on"))]
    if options.compile != "auto" and len(others):
        how = "compiled" if options.compile == "off" else "not compiled"
        yield Deviation(subject, f"--compile {options.compile}", f"{count(len(others), 'run')} {how}")


def _unmeasured(
    subject: str, options: argparse.Namespace, runs: pd.DataFrame, group: Group, evidence: Evidence
) -> Iterator[Deviation]:
    """Count the runs of a command with `--heldout all` that lack a corpus which another run of the group has."""
    if options.heldout != "all":
        return
    in_group = select_group(evidence.runs, group.scale, group.data).id
    losses = evidence.heldout[evidence.heldout.run.isin(in_group)]
    corpora, measured = losses.corpus.unique(), runs.id[runs.id.isin(in_group)]
    lacking = [run for run in measured if losses.corpus[losses.run == run].nunique() < len(corpora)]
    if lacking:
        found = f"{len(lacking)} of {len(measured)} runs were not measured on all of {', '.join(sorted(corpora))}"
        yield Deviation(subject, "--heldout all", found)


COLUMNS: Sequence[Column[Deviation]] = (
    Column("What", "What", lambda each: each.subject),
    Column("Declared", "Declared", lambda each: each.declared),
    Column("Found", "Found", lambda each: each.found),
)


def deviations_table(declaration: Declaration, deviations: Sequence[Deviation], group: Group) -> Table:
    """Return a table with one line per deviation."""
    scope = (
        f"The declaration {declaration.id} is compared with the records. What leaves no record, such as commands of "
        "reports and discarded runs, is not seen."
    )
    return make_table(
        f"Deviations from the declaration {declaration.name} (scale {group.scale}, data {group.data})",
        COLUMNS,
        deviations,
        [scope] if deviations else [NONE, scope],
    )


def summarize(declaration: Declaration, deviations: Sequence[Deviation]) -> str:
    """Return a line for the terminal."""
    subjects = list(dict.fromkeys(each.subject for each in deviations))
    told = f"{count(len(deviations), 'deviation')}: {name_first(subjects, 8)}" if deviations else "no deviation"
    return f"declaration {declaration.name} ({declaration.id}): {told}"
