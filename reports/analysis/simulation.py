"""Simulated studies of a known truth: how often each test claims what is untrue, and finds what is true.

`python -m reports.analysis.simulation` prints the tables of docs/statistics.md; `--page docs/statistics.md` writes them
there. Seven arms form six steps of a tree, with spreads like those recorded at 3 × 128, in nats.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ablations.arm_seeds import LATEST_SHARE, MOST_DEVIATIONS, SPREAD_LEVEL
from reports.analysis.inference import (
    EQUIVALENCE_LEVEL,
    LOOKS,
    Array,
    equivalence_test,
    flip_statistics,
    holm,
    joint_sign_flips,
    shrink_variances,
    stepwise_p_values,
    t_test,
)
from reports.analysis.pilots import LEAST_PILOTS, are_unlike
from reports.simulated import add_page_flag, print_tables
from reports.tables import markdown_row

ARMS = ("M0", "M1", "M2", "M4", "M5", "M6", "M7")
PARENTS = (0, 1, 2, 3, 4, 4)  # places in ARMS of the parents of all arms but the first
SPREADS = (0.045, 0.025, 0.02, 0.008, 0.10, 0.09, 0.06)
EQUAL = 0.0155
"""With it, differences spread as those of M4 − M2 above."""
LATE_ARMS = slice(4, 7)  # M5 to M7
EARLY_SHARE, LATE_SHARE = 0.15, 0.4  # of the run, when seeds leave the plateau
WITHIN_MODE = 0.1  # of an arm's standard deviation: the noise around each of its two modes
NO_EFFECTS = (0.0,) * 6
EFFECTS = (-0.2, -0.9, 0.05, 0.0, 0.0, 0.0)
SMALL = 2  # M4 − M2, whose effect of 0.05 is the margin of equivalence
MARGIN = 0.05
STUDIES, PARTS = 2000, 40
OF_PILOTS = 2  # measures with pilot deviations


@dataclass(frozen=True)
class Noise:
    """Noise of seeds: standard deviations of the arms, and the share of seeds of M5 to M7 that leave the plateau late
    and have another mode; None if all noise is normal."""

    title: str
    spreads: Sequence[float]
    late: float | None = None


NOISES: Mapping[str, Noise] = {
    "equal": Noise("normal, equal spreads", (EQUAL,) * 7),
    "unequal": Noise("normal, unequal spreads", SPREADS),
    **{
        f"late{share:g}": Noise(f"M5 to M7: {share:.0%} of the seeds late", SPREADS, share)
        for share in (0.5, 0.35, 0.2, 0.1)
    },
}


@dataclass(frozen=True)
class Studies:
    """Simulated studies: values (studies, arms, 10 seeds), those of pilot seeds (studies, arms, 4), whether a seed is
    late, and the true effects of the steps."""

    values: Array
    pilots: Array
    is_late: Array
    effects: Array

    @property
    def differences(self) -> Array:
        """Variant minus parent, (studies, steps, seeds)."""
        return subtract(self.values)


def subtract(values: Array) -> Array:
    """Return each arm but the first minus its parent, for arms on the second axis."""
    return np.asarray(values[:, 1:] - values[:, list(PARENTS)])


def levels_of(effects: Sequence[float]) -> Array:
    """Return the true means of the arms, (arms,)."""
    levels = np.zeros(len(ARMS))
    for step, (parent, effect) in enumerate(zip(PARENTS, effects, strict=True), 1):
        levels[step] = levels[parent] + effect
    return levels


def simulate(noise: Noise, effects: Sequence[float], studies: int, key: int) -> Studies:
    """Simulate studies with true effects of the steps."""
    random, levels = np.random.default_rng([key, *noise.title.encode()]), levels_of(effects)

    def draw(seeds: int) -> tuple[Array, Array]:
        unit = random.normal(size=(studies, len(ARMS), seeds))
        is_late = np.zeros(unit.shape, dtype=bool)
        if noise.late is not None:
            is_late[:, LATE_ARMS] = random.random(unit[:, LATE_ARMS].shape) < noise.late
            modes = (is_late - noise.late) / np.sqrt(noise.late * (1 - noise.late))
            both = np.sqrt(1 - WITHIN_MODE**2) * modes + WITHIN_MODE * unit
            unit[:, LATE_ARMS] = both[:, LATE_ARMS]
        return unit * np.array(noise.spreads)[:, None] + levels[:, None], is_late

    values, is_late = draw(max(LOOKS))
    return Studies(values, draw(LEAST_PILOTS)[0], is_late, np.array(effects))


def pilot_scales(pilots: Array) -> Array:
    """Return the standard deviation of each difference known from pilot seeds, (studies, steps)."""
    variances = shrink_variances(pilots.var(axis=-1, ddof=1), np.full(len(ARMS), LEAST_PILOTS - 1))
    return np.asarray(np.sqrt(variances[:, 1:] + variances[:, list(PARENTS)]))


# Tests: p-values at a look, (studies, steps)


def _pooled(studies: Studies, seeds: int) -> Array:
    return joint_sign_flips(studies.differences[..., :seeds])


def _scaled(studies: Studies, seeds: int) -> Array:
    return joint_sign_flips(studies.differences[..., :seeds] / pilot_scales(studies.pilots)[..., None])


def _diagnosed(studies: Studies, seeds: int) -> Array:
    return np.where(is_diagnosed(studies, seeds), 1.0, _scaled(studies, seeds))


def _by_holm(studies: Studies, seeds: int) -> Array:
    return holm(t_test(studies.differences[..., :seeds]))


TESTS: Mapping[str, Callable[[Studies, int], Array]] = {
    "variances pooled": _pooled,
    "divided by pilots": _scaled,
    "and diagnosed": _diagnosed,
    "Holm's t": _by_holm,
}


def is_diagnosed(studies: Studies, seeds: int) -> Array:
    """Whether a step has no verdict at a look, (studies, steps), as reports decide it: one of its arms leaves the
    plateau late in its run, or spreads more than its parent (`ablations.arm_seeds`), or otherwise than its pilot
    seeds (`reports.analysis.pilots`). Such steps stay in the family here."""
    from scipy.special import fdtrc

    variances = studies.values[..., :seeds].var(axis=-1, ddof=1)
    shares = np.where(studies.is_late[..., :seeds], LATE_SHARE, EARLY_SHARE)
    of_arm = np.percentile(shares, 95, axis=-1) > LATEST_SHARE
    of_arm |= are_unlike(variances, seeds - 1, studies.pilots.var(axis=-1, ddof=1), LEAST_PILOTS - 1)
    ratios = variances[:, 1:] / variances[:, list(PARENTS)]
    of_arm[:, 1:] |= (ratios > MOST_DEVIATIONS**2) & (fdtrc(seeds - 1, seeds - 1, ratios) < SPREAD_LEVEL)
    return np.asarray(of_arm[:, 1:] | of_arm[:, list(PARENTS)])


@dataclass(frozen=True)
class Rates:
    """Percent of studies with an untrue claim, at each look and at any, and that find the small effect by each look."""

    errors: tuple[float, ...]
    powers: tuple[float, ...]


def rates(studies: Studies, test: Callable[[Studies, int], Array]) -> Rates:
    """Return the rates of a test. Claims stay: those of any look count."""
    is_null = studies.effects == 0
    claims = [test(studies, seeds) <= level for seeds, level in LOOKS.items()]
    wrong = [claim[:, is_null].any(axis=1) for claim in claims]
    found = np.logical_or.accumulate([claim[:, SMALL] for claim in claims])
    everything = [*wrong, np.any(wrong, axis=0)]
    return Rates(
        tuple(100 * float(each.mean()) for each in everything), tuple(100 * float(each.mean()) for each in found)
    )


def find_rates(noise: str, effects: Sequence[float], studies: int) -> dict[str, Rates]:
    """Return the rates of every test for one noise."""
    simulated = simulate(NOISES[noise], effects, studies, key=int(any(effects)))
    return {name: rates(simulated, test) for name, test in TESTS.items()}


# Everything with a verdict: measures in sequence, equivalences

CORRELATED = ((1.0, 0.95, 0.9, 0.5), (0.95, 1.0, 0.9, 0.5), (0.9, 0.9, 1.0, 0.5), (0.5, 0.5, 0.5, 1.0))
"""Correlation within arms between four measures: both corpora, whole words, cloze."""
NULLS = (NO_EFFECTS,) * 3
TRUTHS: Mapping[str, tuple[str, tuple[Sequence[float], ...], Array]] = {
    "null": ("nothing differs in any measure", (NO_EFFECTS, *NULLS), np.array(CORRELATED)),
    "large": ("three steps differ clearly, in the primary measure alone", (EFFECTS, *NULLS), np.eye(4)),
    "small": (
        "three steps differ by 0.05, in the primary measure alone",
        ((0.05,) * 3 + (0.0,) * 3, *NULLS),
        np.eye(4),
    ),
    "margin": (
        "three steps differ by the margin in all measures, three do not differ",
        ((0.05,) * 3 + (0.0,) * 3,) * 4,
        np.array(CORRELATED),
    ),
}


def find_false_words(truth: str, studies: int) -> tuple[float, float, float]:
    """Return the percent of studies with a false difference, a false equivalence, and either, over all measures and
    looks. Spreads are unequal; differences are divided by pilot deviations in the first two measures, as held-out
    losses are."""
    _, effects, correlation = TRUTHS[truth]
    random, mixing = np.random.default_rng(list(truth.encode())), np.linalg.cholesky(correlation)
    levels = np.array([levels_of(own) for own in effects])
    is_null, is_far = np.array(effects).T == 0, np.abs(np.array(effects).T) >= MARGIN
    wrong = []
    for part in np.array_split(np.arange(studies), PARTS):
        noise = random.normal(size=(len(part), len(ARMS), max(LOOKS) + LEAST_PILOTS, len(effects))) @ mixing.T
        values = np.moveaxis(noise, -1, 1) * np.array(SPREADS)[:, None] + levels[:, :, None]
        scales = [pilot_scales(values[:, measure, :, max(LOOKS) :]) for measure in range(OF_PILOTS)]
        scales += [np.ones_like(scales[0])] * (len(effects) - OF_PILOTS)
        own = np.zeros((2, len(part)), dtype=bool)
        for seeds, level in LOOKS.items():
            looked = [subtract(values[:, measure, :, :seeds]) for measure in range(len(effects))]
            flips = [flip_statistics(each / scale[..., None]) for each, scale in zip(looked, scales, strict=True)]
            is_different = stepwise_p_values(np.stack(flips, axis=2)) <= level
            tost = equivalence_test(np.stack(looked, axis=2), MARGIN)
            is_equivalent = holm(tost.reshape(len(part), -1)).reshape(tost.shape) <= EQUIVALENCE_LEVEL
            own |= [(is_different & is_null).any(axis=(1, 2)), (is_equivalent & is_far).any(axis=(1, 2))]
        wrong.append(own)
    difference, equivalence = np.concatenate(wrong, axis=1)
    return (
        100 * float(difference.mean()),
        100 * float(equivalence.mean()),
        100 * float((difference | equivalence).mean()),
    )


# Tables


def tables(studies: int = STUDIES) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield f"Percent of {studies:,} studies with an untrue claim at 6 / 8 / 10 seeds / any of them. Nothing differs:"
    yield from ("", markdown_row(("noise", *TESTS)), f"|---|{'---:|' * len(TESTS)}")
    for name, noise in NOISES.items():
        yield _line(noise.title, [found.errors for found in find_rates(name, NO_EFFECTS, studies).values()])
    both = [f"{name}: {what}" for name in TESTS for what in ("error", "power")]
    yield from ("", "M1, M2 and M4 differ. Percent of studies with an untrue claim at any look, and with a claim of")
    yield from ("M4 − M2 (0.05, 2.3 standard deviations of the difference) by 6 / 8 / 10 seeds:", "")
    yield from (markdown_row(("noise", *both)), f"|---|{'---:|' * len(both)}")
    for name, noise in NOISES.items():
        found = find_rates(name, EFFECTS, studies).values()
        yield _line(noise.title, [part for each in found for part in (each.errors[-1:], each.powers)])
    yield from (
        "",
        "Four measures in sequence, with equivalences. Percent of studies with an untrue claim at any look:",
    )
    yield ""
    yield from ("| truth | a false difference | a false equivalence | any |", "|---|---:|---:|---:|")
    for name, (title, *_) in TRUTHS.items():
        yield _line(title, [(each,) for each in find_false_words(name, studies)])


def _line(title: str, cells: Sequence[Sequence[float]]) -> str:
    return markdown_row((title, *(" / ".join(f"{each:.1f}" for each in cell) for cell in cells)))


def main(given: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m reports.analysis.simulation", description=__doc__)
    parser.add_argument("--studies", type=int, default=STUDIES, help="studies per line (default: %(default)s)")
    add_page_flag(parser)
    arguments = parser.parse_args(given)
    return print_tables(parser, arguments.page, lambda: tables(arguments.studies))


if __name__ == "__main__":
    sys.exit(main())
