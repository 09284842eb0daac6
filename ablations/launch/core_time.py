"""Estimated time of a plan on the cores of this machine, with one thread per worker and no other load.

A step takes a constant time per block, in which kernels are called from Python, and its floating-point operations at a
share of the rate of a large matrix product, which is measured. What finished runs took on this kind of processor
corrects the estimate.
"""

import heapq
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ablations.launch.costs import TrialWork, task_size
from neobert.data.blimp import PARADIGMS
from neobert.data.catalog import CHARACTERS_PER_TOKEN
from neobert.data.heldout import COUNTED_BYTES, HELDOUT_BYTES, SMALL_TEXT_TOKENS
from neobert.data.shards import FRAME_TOKENS, HELDOUT_LEAST_TEXTS, HELDOUT_SHARE, MANIFEST
from neobert.data.source import NoCorpus
from neobert.data.sources import Source
from neobert.errors import DamagedFile
from neobert.evaluation.items import READ_BYTES
from neobert.kinds.corpus import Corpus
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.kinds.readouts import ReadoutEvaluation, ReadoutName
from neobert.model.size import stage_flops_per_token, training_flops_per_token
from neobert.processes import available_cores, thread_variables
from neobert.recipe import Pretraining
from neobert.runs.kinds import Run, stage_records
from neobert.runs.layout import Layout
from neobert.runs.records import cpu_model
from neobert.runs.run_file import Execution, read_run_file
from neobert.training.schedule import MILESTONES
from neobert.training.transitions import POINTS

BLOCK_SECONDS = 2.3e-3
"""Seconds of a step per block that do not depend on its tokens. It and the share were fitted to the processor time of
twelve shapes and batches of the scales smoke and study on an AMD EPYC in fp32; each is within 21 % of the fit."""
SUSTAINED_SHARE = 0.57
"""Share of the rate of a large matrix product that a step reaches, beyond the time per block."""
START_SECONDS = 8.0
"""Time until a worker has imported torch and opened its corpus."""
TOKENIZED_BYTES_PER_SECOND = 2e6
"""Text that a core reads, hashes, trains a tokenizer on and tokenises in a second."""
TRIAL_SECONDS = 0.5
"""Time of a trial beside its steps: it loads weights, and draws and scores resamples."""
ITEM_SECONDS = 10.0
"""Time in which the items of readouts are drawn from a corpus."""
BF16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}
BF16_TIMES = {True: 1.6, False: 9.5}
"""How often as long a step in bf16 takes as in fp32, with and without such instructions: measured on a Xeon with
avx512_bf16, and on an AMD EPYC (benchmarks/README.md)."""
PASSES = 3
"""A training step's work in forward passes."""
PREDICTED_SHARE = 0.15
"""Share of the tokens that evaluations predict."""
OF_ITEMS: tuple[ReadoutName, ...] = ("cloze", "perplexity")
"""Readouts of items; the others read stretches of text."""
ITEM_TOKENS_PER_CONTEXT = 2000
"""Tokens of a corpus's items that a readout reads, divided by the context: 1,000 cloze items with distractors."""
BLIMP_TOKENS = 95
"""Tokens that a sentence of BLiMP takes, masked at each of its words in turn: the mean of n (n + 2) over n words."""

_CALIBRATION = """
import numpy, time
a = numpy.random.default_rng(0).random((768, 768), dtype=numpy.float32)
a @ a
def rate():
    started = time.process_time()
    for _ in range(8):
        a @ a
    return 8 * 2 * 768**3 / (time.process_time() - started)
print(max(rate() for _ in range(3)))
"""


@cache
def core_flops_per_second() -> float:
    """Measure the rate of a matrix product in fp32 on one core, in processor time, in about half a second.

    It runs in a process of its own, because numpy's number of threads cannot be changed once it is imported.
    """
    environment = os.environ | thread_variables(1) | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _CALIBRATION]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


@cache
def times_of(precision: str) -> float:
    """Return how often as long a step takes on this processor as in fp32."""
    if precision == "fp32":
        return 1.0
    known = Path("/proc/cpuinfo")
    words = set(known.read_text(encoding="utf-8").split()) if known.exists() else set()
    return BF16_TIMES[bool(words & BF16_INSTRUCTIONS)]


@dataclass(frozen=True)
class CorpusSize:
    """Approximate numbers of tokens and documents of a corpus."""

    tokens: float
    documents: float

    def fill(self, recipe: Pretraining) -> float:
        """Return the share of a stage's slots that have a token: rows of padded packing stand for one document or
        passage each."""
        if recipe.packing != "padded":
            return 1.0
        return min(1.0, (self.tokens / self.documents + FRAME_TOKENS) / recipe.stages[-1].context)

    def heldout_tokens(self, recipe: Pretraining, context: int) -> float:
        """Return the number of held-out tokens on which a loss is measured in a context."""
        mean = self.tokens / self.documents
        documents = max(HELDOUT_SHARE * self.documents, min(HELDOUT_LEAST_TEXTS, self.documents / 10))
        wanted = HELDOUT_BYTES / CHARACTERS_PER_TOKEN
        if recipe.data.long_documents == "split":
            return min(documents * mean, wanted)
        counted = min(mean, COUNTED_BYTES / CHARACTERS_PER_TOKEN)
        return min(documents, wanted / counted) * min(mean, context)


@dataclass(frozen=True)
class Work:
    """Work of a plan: the seconds of its parts on one core, done after other work, by reference."""

    reference: str
    after: tuple[str, ...]
    parts: tuple[float, ...]


def clock_seconds(work: Iterable[Work], workers: int) -> float:
    """Return the time in which workers do all parts: each takes the next part of the work that is ready first."""
    waiting, free, ends = list(work), [0.0] * workers, dict[str, float]()
    while waiting:
        open_references = {each.reference for each in waiting}
        ready = [each for each in waiting if not open_references.intersection(each.after)]
        assert ready, "work does not wait for itself"
        begins = {each.reference: max([ends.get(name, 0.0) for name in each.after], default=0.0) for each in ready}
        chosen = min(ready, key=lambda each: begins[each.reference])
        ends[chosen.reference] = begins[chosen.reference]
        for seconds in chosen.parts:
            end = max(heapq.heappop(free), begins[chosen.reference]) + seconds
            heapq.heappush(free, end)
            ends[chosen.reference] = max(ends[chosen.reference], end)
        waiting.remove(chosen)
    return max(ends.values(), default=0.0)


@dataclass(frozen=True)
class CoreTime:
    """The time of a plan's unfinished `runs` on the cores of this machine, with so many `workers`."""

    layout: Layout
    runs: Sequence[Run]
    source: Source
    execution: Execution
    workers: int

    @classmethod
    def of(
        cls, layout: Layout, runs: Sequence[Run], source: Source, execution: Execution, workers: int | None
    ) -> "CoreTime":
        """Return the time of runs; without a number of `workers` one for each core."""
        return cls(layout, runs, source, execution, workers or available_cores())

    @property
    def basis(self) -> str:
        """What the estimate rests on, in words."""
        if self._ratios:
            return f"as {len(self._ratios)} finished run{'s' * (len(self._ratios) > 1)} here took"
        return f"if nothing else runs on them ({core_flops_per_second() / 1e9:.0f} GFLOP/s each)"

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Kinds of work whose time is not estimated."""
        return tuple(dict.fromkeys(run.kind for run in self.runs if run.kind not in PARTS))

    def core_hours(self, runs: Iterable[Run]) -> float | None:
        """Return the core-hours of the unfinished ones of runs, without corpora; None if none can be estimated."""
        unfinished = {run.id for run in self.runs}
        known = {run.id: run for run in runs if run.kind in PARTS}
        left = self._parts([run for run in known.values() if run.id in unfinished])
        return sum(map(sum, left.values())) / 3600 if known else None

    def hours(self) -> float:
        """Return the hours in which the workers do everything, tokenising included."""
        stages = PretrainingRun.among(self.runs)
        corpora = [
            Work(f"data/{data_id}", (), (self._tokenizing_seconds(corpus),))
            for data_id, corpus in {corpus.id: corpus for run in stages for corpus in run.corpora}.items()
        ]
        data_of = {run.id: tuple(f"data/{corpus.id}" for corpus in run.corpora) for run in stages}
        parts = self._parts(self.runs)
        runs = [Work(run.reference, (*run.after, *data_of.get(run.id, ())), parts[run.id]) for run in self.runs]
        return clock_seconds([*corpora, *runs], self.workers) / 3600

    def _parts(self, runs: Iterable[Run]) -> dict[str, tuple[float, ...]]:
        """Return, by run, the seconds of each part that is left on one core; none if they are not estimated. A trial of
        two grids counts in the first."""
        found, counted = dict[str, tuple[float, ...]](), set[Path]()
        for run in runs:
            modelled = (
                zip(PARTS[run.kind](self, run), run.parts(self.layout), strict=False) if run.kind in PARTS else ()
            )
            left = {
                part.record: seconds for seconds, part in modelled if not part.is_done and part.record not in counted
            }
            found[run.id] = tuple(seconds * self._correction for seconds in left.values())
            counted |= left.keys()
        return found

    def _stage_of(self, weights: str) -> PretrainingRun | None:
        """Return the stage that ends with these weights, planned here or finished; None of an external model."""
        if weights not in self._stages and (self.layout.pretraining(weights) / "run.json").exists():
            with suppress(DamagedFile):  # it is written again before anything runs
                self._stages[weights] = read_run_file(self.layout.pretraining(weights)).specification(PretrainingRun)
        return self._stages.get(weights)

    @cached_property
    def _stages(self) -> dict[str, PretrainingRun]:
        return {run.id: run for run in PretrainingRun.among(self.runs)}

    @cached_property
    def _read_sizes(self) -> dict[str, CorpusSize | None]:
        return {}

    def _size(self, corpus: str) -> CorpusSize | None:
        """Return the size of a corpus, None if it is not known; reading it can take seconds."""
        if corpus not in self._read_sizes:
            size = self.source.corpus_size(corpus)
            self._read_sizes[corpus] = None if size is None or min(size) <= 0 else CorpusSize(*size)
        return self._read_sizes[corpus]

    def _sizes(self, corpora: Iterable[str]) -> list[CorpusSize]:
        """Return the known sizes of those of the corpora that the source has."""
        found = []
        for corpus in corpora:
            with suppress(NoCorpus):
                found.append(self._size(corpus))
        return [size for size in found if size is not None]

    def _tokenizing_seconds(self, corpus: Corpus) -> float:
        size = self._size(corpus.corpus)
        if size is None or (self.layout.data(corpus.id) / MANIFEST).exists():
            return 0.0
        return size.tokens * CHARACTERS_PER_TOKEN / TOKENIZED_BYTES_PER_SECOND

    def _stage(self, run: PretrainingRun) -> tuple[float, ...]:
        recipe, stage = run.recipe, run.recipe.stages[-1]
        own, contexts = self._size(recipe.data.corpus), {stage.context, self.execution.heldout_context or stage.context}
        read = [corpus.corpus for corpus in run.corpora]
        measured = self._sizes(self.source.corpora if self.execution.heldout == "all" else read)
        heldout = sum(size.heldout_tokens(recipe, context) for size in measured for context in contexts)
        curve = min(SMALL_TEXT_TOKENS, own.heldout_tokens(recipe, stage.context)) if own else 0.0
        shares = stage.shares(recipe.data.corpus)
        fill = sum(
            share * (size.fill(recipe) if (size := self._size(corpus)) else 1.0) for corpus, share in shares.items()
        )
        evaluation = forward_seconds(recipe, stage.context, MILESTONES * heldout + POINTS * curve)
        return (START_SECONDS + training_seconds(recipe, stage.tokens * fill) + evaluation,)

    def _study(self, study: GlueStudy) -> tuple[float, ...]:
        stage = self._stage_of(study.weights)
        if stage is None:
            return ()
        size, protocol, model = task_size(self.source, study.about), study.protocol, stage.recipe.model
        flops_per_token = training_flops_per_token(model, size.tokens(study.about, protocol.max_tokens), 0)
        parts = []
        for point in study.points:
            work = TrialWork.of(study.about, size, protocol, point.batch_size)
            flops = flops_per_token * (work.trained_tokens + work.evaluated_tokens / PASSES)
            steps = work.updates * model.layers * BLOCK_SECONDS + flops_seconds(flops)
            parts.append(TRIAL_SECONDS + steps * times_of(protocol.precision))
        return tuple(parts)

    def _readouts(self, evaluation: ReadoutEvaluation) -> tuple[float, ...]:
        stage = self._stage_of(evaluation.weights)
        if stage is None:
            return ()
        context = evaluation.context
        if evaluation.pairs_per_paradigm is not None:
            sentences = 2 * evaluation.pairs_per_paradigm * len(PARADIGMS)
            return (START_SECONDS + forward_seconds(stage.recipe, context, BLIMP_TOKENS * sentences),)
        if evaluation.own is not None:
            texts = 2 * len(evaluation.own.items)
            return (START_SECONDS + forward_seconds(stage.recipe, context, BLIMP_TOKENS * texts),)
        corpora = self._sizes(evaluation.corpora)
        most = READ_BYTES / CHARACTERS_PER_TOKEN
        text = sum(min(most, size.heldout_tokens(stage.recipe, context)) for size in corpora)
        items = len(corpora) * ITEM_TOKENS_PER_CONTEXT * context
        seconds = [
            forward_seconds(stage.recipe, context, items if name in OF_ITEMS else text) for name in evaluation.readouts
        ]
        return (seconds[0] + len(corpora) * ITEM_SECONDS, *seconds[1:])

    @property
    def _correction(self) -> float:
        return statistics.median(self._ratios) if self._ratios else 1.0

    @cached_property
    def _ratios(self) -> list[float]:
        """What each finished run took on one core of this kind, divided by the estimate."""
        ratios = []
        for _, record in stage_records(self.layout):
            with suppress(ValueError):  # of another version
                recipe = Pretraining.read(record["config"]["recipe"])
                cpu, processes = record.get("machine", {}).get("cpu"), record.get("processes", 1)
                if cpu == cpu_model() and record["threads"] == processes == 1 and not record["gpu_hours"]:
                    ratios.append(record["seconds"] / training_seconds(recipe, record["real_tokens"]))
        return ratios


def training_seconds(recipe: Pretraining, tokens: float) -> float:
    """Return the seconds of the steps of the last stage, with so many real tokens in total."""
    stage, number = recipe.stages[-1], len(recipe.stages) - 1
    flops = stage_flops_per_token(recipe, number) * tokens
    seconds = stage.steps * recipe.model.layers * BLOCK_SECONDS + flops_seconds(flops)
    return seconds * times_of(recipe.precision)


def forward_seconds(recipe: Pretraining, context: int, tokens: float) -> float:
    """Return the seconds of forward passes over so many tokens, of which a share is predicted."""
    flops = training_flops_per_token(recipe.model, context, PREDICTED_SHARE) * tokens / PASSES
    return flops_seconds(flops) * times_of(recipe.precision)


def flops_seconds(flops: float) -> float:
    """Return the seconds of floating-point operations."""
    return flops / (SUSTAINED_SHARE * core_flops_per_second())


PARTS: Mapping[str, Callable[[CoreTime, Any], tuple[float, ...]]] = {
    "pretraining": CoreTime._stage,
    "glue": CoreTime._study,
    "readouts": CoreTime._readouts,
}
"""The seconds of the parts of each kind of work that is estimated."""
