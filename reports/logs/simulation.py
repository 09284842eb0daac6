"""The referee on simulated sessions with a known truth, beside other rules for keeping changes.

`python -m reports.logs.simulation` prints the tables of docs/referee.md; `--page docs/referee.md` writes them there.
"""

import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from neobert.command_line import count, parser_from
from neobert.referee import Session
from neobert.referee.evidence import Array, critical_t
from reports.logs.chain import follow, weigh
from reports.logs.noise import Repeats, measure_spread
from reports.logs.reading import Log, Run
from reports.logs.survival import survival
from reports.simulated import add_page_flag, print_tables
from reports.tables import markdown_row

CHANGES, ALPHA, SESSIONS, SEEDS, MOST_SEEDS = 60, 0.1, 2000, 5, 10
COLUMNS = (
    *("rule", "sessions refused, %", "false keeps per session", "share of false keeps, %", "gains kept, %"),
    *("runs per change", "true gain of the final state"),
)
SURVIVAL_COLUMNS = ("case", "recorded gain", "true gain", "surviving gain", "its RMS error", "false keeps", "expected")
Draw = Callable[[np.random.Generator, int], Array]


def _nothing(draws: np.random.Generator, size: int) -> Array:
    return np.zeros(size)


def _few(draws: np.random.Generator, size: int) -> Array:
    """A tenth gains 3, 6 or 12 spreads; of the rest, half does nothing and half costs 2 on average."""
    other = np.where(draws.random(size) < 0.5, 0.0, -draws.exponential(2, size))
    return np.where(draws.random(size) < 0.1, draws.choice([3.0, 6.0, 12.0], size), other)


def _many_small(draws: np.random.Generator, size: int) -> Array:
    """A fifth gains 0.5 on average, half does nothing, the rest costs 1 on average."""
    kind = draws.random(size)
    small, cost = draws.exponential(0.5, size), -draws.exponential(1, size)
    return np.where(kind < 0.2, small, np.where(kind < 0.7, 0.0, cost))


@dataclass(frozen=True)
class Case:
    """A kind of session: effects of changes in spreads, the noise of runs, and how often the baseline was repeated."""

    name: str
    effects: Draw
    tails: float = math.inf
    drift: float = 0.0
    repeats: int = 9


CASES = (
    Case("nothing is real", _nothing),
    Case("a few are real", _few),
    Case("a greedy chain of small effects", _many_small),
    Case("heavy tails (Student's t, 3 df), a few are real", _few, tails=3),
    Case("two repeats only, a few are real", _few, repeats=2),
    Case("drift, nothing is real", _nothing, drift=0.5),
)
"""`tails` are degrees of freedom of the noise, scaled to variance 1; `drift` is the step of a random walk per run."""


class World:
    """Runs of one simulated session, with noise of variance 1 around the true values."""

    def __init__(self, case: Case, draws: np.random.Generator) -> None:
        self.case, self.draws, self.level, self.runs = case, draws, 0.0, 0
        self.effects = case.effects(draws, CHANGES)

    def run(self, mean: float) -> float:
        """Return the loss of one more run."""
        self.runs += 1
        self.level += self.case.drift * float(self.draws.normal())
        tails = self.case.tails
        noise = self.draws.normal() if math.isinf(tails) else self.draws.standard_t(tails) * math.sqrt(1 - 2 / tails)
        return mean + self.level + float(noise)


@dataclass(frozen=True)
class Outcome:
    """What a rule did in a session: changes kept that are no gain, kept gains, all gains there were, runs, the true
    gain of the final state, and whether the rule refused to judge."""

    false: int
    real: int
    gains: int
    runs: int
    final: float
    refused: bool = False


def _outcome(world: World, kept: Sequence[bool], refused: bool = False) -> Outcome:
    flags = np.array(kept, bool) & (not refused)
    gains = world.effects > 0
    return Outcome(
        int((flags & ~gains).sum()),
        int((flags & gains).sum()),
        int(gains.sum()),
        world.runs,
        float(world.effects[flags].sum()),
        refused,
    )


def greedy_log(world: World) -> tuple[Log, Repeats]:
    """Return the log of a session that kept what looked better, with the baseline repeated throughout."""
    every = max(1, CHANGES // max(1, world.case.repeats - 1))
    base = Run(2, world.run(0.0), "keep", "baseline")
    runs, repeats, mean, best = [base], [base], 0.0, float(base.value or 0.0)
    for effect in world.effects.tolist():
        value = world.run(mean - effect)
        keep = value < best
        runs.append(Run(len(runs) + 2, value, "keep" if keep else "discard", "change"))
        if keep:
            mean, best = mean - effect, value
        if (len(runs) - 1) % every == 0 and len(repeats) < world.case.repeats:
            again = Run(len(runs) + 2, world.run(0.0), "discard", "baseline again")
            runs.append(again)
            repeats.append(again)
    return Log("simulated", "loss", True, "", tuple(runs), True), Repeats(tuple(repeats), "simulated")


def greedy(world: World) -> Outcome:
    """Keep what looks better in one run."""
    log, _ = greedy_log(world)
    return _outcome(world, [run.status == "keep" for run in log.runs if run.description == "change"])


def replay(world: World) -> Outcome:
    """Let the referee judge the log of the greedy session."""
    log, repeats = greedy_log(world)
    yardstick = measure_spread([repeats], logarithms=False)
    chain = follow(log, [repeats], logarithms=False)
    shown = weigh(chain, yardstick, ALPHA)
    kept = [place in shown and shown[place][1] and each.moves for place, each in enumerate(chain.tries)]
    return _outcome(world, kept, yardstick.spread is None)


def five_seeds(world: World) -> Outcome:
    """Run every change with five seeds, and keep it if a one-sided t test against its parent has p ≤ 0.05."""
    mean, kept = 0.0, []
    parent = np.array([world.run(mean) for _ in range(SEEDS)])
    for effect in world.effects.tolist():
        child = np.array([world.run(mean - effect) for _ in range(SEEDS)])
        error = math.sqrt((parent.var(ddof=1) + child.var(ddof=1)) / SEEDS)
        kept.append(bool((parent.mean() - child.mean()) / error > 1.8595))  # 95 % of Student's t with 8 df
        if kept[-1]:
            mean, parent = mean - effect, child
    return _outcome(world, kept)


def one_decision(world: World) -> Outcome:
    """Run paired seeds of parent and change until an e-value says yes at level 0.1 for this decision alone, ten at
    most. This is the idea of PACE (arXiv 2606.08106), with our e-value instead of its bets on bounded scores."""
    mean, kept = 0.0, []
    for effect in world.effects.tolist():
        differences: list[float] = []
        is_shown = False
        while len(differences) < MOST_SEEDS and not is_shown:
            differences.append(world.run(mean) - world.run(mean - effect))
            own = np.array(differences)
            if len(own) > 2 and own.mean() < 0:
                break
            if len(own) > 1:
                t = own.mean() / own.std(ddof=1) * math.sqrt(len(own))
                is_shown = bool(t >= critical_t(1 / ALPHA, len(own) - 1, 1 / len(own)))
        kept.append(is_shown)
        mean -= effect if kept[-1] else 0.0
    return _outcome(world, kept)


def live(world: World, paired: bool) -> Outcome:
    """Let a live session decide, with the spread of the repeats, whose runs are counted, or on pairs of parent and
    change that run side by side."""
    mean, kept = 0.0, []
    repeats = [] if paired else [world.run(0.0) for _ in range(world.case.repeats)]
    spread = None if paired else float(np.std(repeats, ddof=1))
    behind = None if paired else len(repeats)
    session = Session(ALPHA, spread, runs_behind=behind, paired=paired, changes=CHANGES, most_seeds=MOST_SEEDS)
    parent = repeats[:1]
    for effect in world.effects.tolist():
        child: list[float] = []
        parent = [] if paired else parent
        verdict = "more"
        while verdict == "more":
            side = session.next_run if child else "both" if paired else "child"
            if side != "parent":
                child.append(world.run(mean - effect))
            if side != "child":
                parent.append(world.run(mean))
            verdict = session.judge(parent, child)
        kept.append(verdict == "keep")
        if kept[-1]:
            mean, parent = mean - effect, child
    return _outcome(world, kept)


RULES: dict[str, Callable[[World], Outcome]] = {
    "keep what looks better": greedy,
    "referee on that log": replay,
    "five seeds, t test": five_seeds,
    "e-value per decision": one_decision,
    "live session": partial(live, paired=False),
    "live session, pairs": partial(live, paired=True),
}


def simulate(case: Case, rule: str, sessions: int) -> list[Outcome]:
    """Return what a rule does in simulated sessions of a case."""
    seeds = np.random.SeedSequence([*map(ord, case.name + rule)]).spawn(sessions)
    return [RULES[rule](World(case, np.random.default_rng(seed))) for seed in seeds]


def row(rule: str, outcomes: Sequence[Outcome]) -> str:
    """Return a line of the table of a case."""
    judged = [each for each in outcomes if not each.refused]
    refused = f"{100 * (1 - len(judged) / len(outcomes)):.1f}"
    if not judged:
        return markdown_row((rule, refused, *"–" * (len(COLUMNS) - 2)))
    share = np.mean([each.false / max(1, each.false + each.real) for each in judged])
    false, real, gains, runs, final = np.mean([(e.false, e.real, e.gains, e.runs, e.final) for e in judged], axis=0)
    kept = f"{100 * real / gains:.0f}" if gains else "–"
    cells = (refused, f"{false:.2f}", f"{100 * share:.1f}", kept, f"{runs / CHANGES:.1f}", f"{final:.1f}")
    return markdown_row((rule, *cells))


def table_head(columns: Sequence[str]) -> list[str]:
    """Return the first two lines of a table of numbers."""
    return [markdown_row(columns), f"|---|{'---:|' * (len(columns) - 1)}"]


def tables(sessions: int, workers: int) -> list[str]:
    """Return the tables as lines of Markdown."""
    jobs = [(case, rule, sessions) for case in CASES for rule in RULES]
    with ProcessPoolExecutor(workers) as pool:
        rows = [
            row(rule, found)
            for (_, rule, _), found in zip(jobs, pool.map(simulate, *zip(*jobs, strict=True)), strict=True)
        ]
    lines = [f"{sessions:,} sessions of {CHANGES} changes each; declared level {ALPHA:.0%}.", ""]
    for place, case in enumerate(CASES):
        own = rows[place * len(RULES) : (place + 1) * len(RULES)]
        lines += [f"**{case.name[0].upper()}{case.name[1:]}**", "", *table_head(COLUMNS), *own, ""]
    return lines + survival_table(sessions)


def survival_table(sessions: int) -> list[str]:
    """Return how well the surviving gain and the expected false keeps meet the truth."""
    lines = ["Total gain and false keeps of the greedy log, in spreads, and their estimates with a known spread:", ""]
    lines += table_head(SURVIVAL_COLUMNS)
    for case in CASES[:3]:
        draws = np.random.default_rng(0)
        start = draws.normal(size=sessions) / math.sqrt(SEEDS)
        best, mean = start.copy(), np.zeros(sessions)
        values, moves, effects = (np.zeros((sessions, CHANGES)) for _ in range(3))
        for place in range(CHANGES):
            effects[:, place] = case.effects(draws, sessions)
            values[:, place] = mean - effects[:, place] + draws.normal(size=sessions)
            moves[:, place] = values[:, place] < best
            best = np.minimum(best, values[:, place])
            mean = mean - effects[:, place] * moves[:, place]
        found = survival(start, np.full(sessions, float(SEEDS)), values, np.ones_like(values), moves > 0)
        error = math.sqrt(float(np.mean((found.total + mean) ** 2)))
        false = ((moves > 0) & (effects <= 0)).sum(axis=1).mean()
        gains = (start - best).mean(), -mean.mean(), found.total.mean()
        numbers = (*gains, error, false, found.false.sum(axis=1).mean())
        lines.append(markdown_row((case.name, *(f"{number + 0.0:.2f}" for number in numbers))))
    return lines


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = parser_from("python -m reports.logs.simulation", __doc__)
    parser.add_argument("--sessions", type=count, default=SESSIONS, help=f"per case and rule (default: {SESSIONS})")
    parser.add_argument("--workers", type=count, default=2, help="processes (default: 2)")
    add_page_flag(parser)
    arguments = parser.parse_args(given)
    return print_tables(parser, arguments.page, lambda: tables(arguments.sessions, arguments.workers))


if __name__ == "__main__":
    sys.exit(main())
