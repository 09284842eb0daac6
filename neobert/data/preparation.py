"""Tokenise what a run needs, once for all workers: whoever comes first does it, the others wait. Torch-free."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from neobert.data.corpora import CORPORA, SOURCES, Source, open_source
from neobert.data.shards import finished_shards, prepare
from neobert.data.tokenized import TokenizedCorpus, open_shards
from neobert.data.tokenizers import TextTokenizer
from neobert.errors import MissingData
from neobert.grid.claims import Claim, acquire
from neobert.grid.points import Report
from neobert.layout import MANIFEST, Layout
from neobert.specifications import PretrainingRun, RunFile, read_checked_run_file
from neobert.specifications import Source as SourceSpecification
from neobert.stopping import Stopped, StopRequest

POLL_SECONDS = 0.2


def specify(data: str, synthetic_documents: int, unseen: Iterable[str] = ()) -> SourceSpecification:
    """What a run.json says of `--data` and `--without-texts-of`; folders as absolute paths, since workers and jobs may
    start elsewhere."""
    name = data if data in SOURCES else str(Path(data).resolve())
    places = tuple(str(Path(place).resolve()) for place in unseen)
    return SourceSpecification(name=name, synthetic_documents=synthetic_documents, unseen=places)


def open_specified(specification: SourceSpecification) -> Source:
    """The source that a run.json names."""
    documents, unseen = specification.synthetic_documents, specification.unseen
    return open_source(specification.name, synthetic_documents=documents, unseen=unseen)


def text_tokenizer(
    layout: Layout, source: Source, tokenizer: str, vocabulary_size: int, stop: StopRequest | None = None
) -> TextTokenizer:
    """The tokenizer of a recipe, trained (where the source trains) by one worker while the others wait.

    Raises:
        ValueError: it has more tokens than the recipe's embedding has rows.
        Stopped: `stop` asked to before it was there.
    """
    stop = stop or StopRequest()
    cache = layout.root / "data" / "tokenizers"
    unit, what = f"tokenizer-{tokenizer}-{vocabulary_size}", f"the {tokenizer} tokenizer"
    while (claim := acquire(layout.claims(unit))) is None:
        stop.check(what)
        time.sleep(POLL_SECONDS)
    with claim:
        opened = stop.outlive(lambda: source.tokenizer(tokenizer, vocabulary_size, cache), what)
    if opened.vocabulary_size > vocabulary_size:
        raise ValueError(
            f"the {tokenizer} tokenizer has {opened.vocabulary_size} tokens, the recipe's vocabulary_size is "
            f"{vocabulary_size}: raise it"
        )
    return opened


@dataclass(frozen=True)
class CorpusUnit:
    """The tokenised corpus of a stage of pre-training as a unit of work, for jobs that need no GPU."""

    layout: Layout
    run_file: RunFile

    @classmethod
    def open(cls, layout: Layout, run_id: str) -> "CorpusUnit":
        """The corpus that the run of a folder with run.json reads."""
        return cls(layout, read_checked_run_file(layout.pretraining(run_id)))

    @property
    def run_specification(self) -> PretrainingRun:
        assert self.run_file.pretraining is not None
        return self.run_file.pretraining

    @property
    def id(self) -> str:
        return f"corpus-{self.run_specification.data_id}"

    @property
    def name(self) -> str:
        return f"tokenising the {self.run_specification.recipe.data.corpus} corpus {self.run_specification.data_id}"

    @property
    def error_path(self) -> Path:
        return self.layout.root / "data" / "errors" / f"{self.run_specification.data_id}.json"

    @property
    def grid_point(self) -> None:
        """None: a corpus is no point of a grid."""

    def is_finished(self) -> bool:
        return all(is_tokenized(self.layout, run) for run in measured_runs(self.run_file))

    def is_ready(self) -> bool:
        """Always: nothing comes before it."""
        return True

    def run(self, claim: Claim, stop: StopRequest, report: Report) -> None:
        """Tokenise; what a killed job had finished of it is kept."""
        for each in measured_runs(self.run_file):
            tokenized_corpus(self.layout, each, self.run_file.source, stop)


def measured_runs(run_file: RunFile) -> list[PretrainingRun]:
    """The run, and what it would be on each other corpus of its source whose held-out documents it is measured on."""
    run = run_file.pretraining
    assert run is not None
    if run_file.execution.heldout == "own":
        return [run]
    source = open_specified(run_file.source)
    others = [_on_corpus(run, corpus, source) for corpus in CORPORA if corpus != run.recipe.data.corpus]
    return [run, *(other for other in others if other is not None)]


def _on_corpus(run: PretrainingRun, corpus: str, source: Source) -> PretrainingRun | None:
    """The run on another corpus; None where the source has no such corpus."""
    try:
        origin = source.corpus_origin(corpus)
    except MissingData:
        return None
    data = run.recipe.data.model_copy(update={"corpus": corpus})
    recipe = run.recipe.model_copy(update={"data": data})
    return run.model_copy(update={"recipe": recipe, "corpus_origin": origin})


def is_tokenized(layout: Layout, run: PretrainingRun) -> bool:
    """Whether the corpus of a run lies ready."""
    return (layout.data(run.data_id) / MANIFEST).exists()


def tokenized_corpus(
    layout: Layout, run: PretrainingRun, specification: SourceSpecification, stop: StopRequest | None = None
) -> TokenizedCorpus:
    """The run's corpus in its tokens, from disk or made now.

    Raises:
        Stopped: `stop` asked to while it was made; finished shards stay.
    """
    stop = stop or StopRequest()
    folder = layout.data(run.data_id)
    while not is_tokenized(layout, run):
        claim = acquire(layout.claims(f"data-{run.data_id}"))
        if claim is None:
            stop.check(f"the tokens of {run.recipe.data.corpus}")
            time.sleep(POLL_SECONDS)
            continue
        with claim:
            _tokenize(layout, run, specification, stop)
    return open_shards(folder)


def _tokenize(layout: Layout, run: PretrainingRun, specification: SourceSpecification, stop: StopRequest) -> None:
    source = open_specified(specification)
    data, vocabulary_size = run.recipe.data, run.recipe.model.vocabulary_size
    tokenizer = text_tokenizer(layout, source, data.tokenizer, vocabulary_size, stop)
    origins = {"corpus": run.corpus_origin, "tokenizer": run.tokenizer_origin}
    folder = layout.data(run.data_id)
    prepare(_until_stopped(source.documents(data.corpus), folder, stop), tokenizer, folder, origins=origins)


def _until_stopped(documents: Iterable[str], folder: Path, stop: StopRequest) -> Iterator[str]:
    before = finished_shards(folder)
    for document in documents:
        if stop.requested:
            finished = finished_shards(folder)
            raise Stopped(f"tokenising was asked to stop after {finished} shards", progressed=finished > before)
        yield document
