"""Tokenised corpora and tokenizers of runs: opened if they are there, else made once for all workers."""

import shutil
from collections.abc import Iterator
from contextlib import suppress

from neobert.data.manifest import PARTIAL
from neobert.data.shards import TokenizedCorpus, finished_shards, open_shards, prepare
from neobert.data.sources import NoCorpus, Source
from neobert.data.tokenizers import TextTokenizer, open_kept_tokenizer
from neobert.errors import ChangedData, DamagedFile
from neobert.executors.preparation import open_specified, prepare_once, require_origin
from neobert.files import set_aside
from neobert.kinds.corpus import Corpus
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile, SourceSpecification
from neobert.runs.work import Part


def text_tokenizer(
    layout: Layout, run: PretrainingRun, source: Source, stop: StopRequest | None = None
) -> TextTokenizer:
    """Return the tokenizer of a run. If the source trains it, one worker does so while the others wait.

    Raises:
        ChangedData: the source's tokenizer has changed since the run was planned.
        ValueError: it has more tokens than the recipe's embedding has rows.
        Stopped: `stop` was requested before it was ready.
    """
    stop = stop or StopRequest()
    name, size = run.recipe.data.tokenizer, run.recipe.model.vocabulary_size
    what, cache = f"the {name} tokenizer", layout.root / "data" / "tokenizers"
    require_origin(what, run.tokenizer_origin, source.tokenizer_origin(name, size))
    if not source.trains_tokenizers:
        return source.tokenizer(name, size, cache)

    def train(damage: DamagedFile | None, claim: Claim) -> None:
        stop.outlive(lambda: source.tokenizer(name, size, cache), what)

    claims, folder = layout.claims(f"tokenizer-{name}-{size}"), source.trained_folder(name, size, cache)
    return prepare_once(claims, what, stop, lambda: open_kept_tokenizer(folder), train)


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Tokenise the corpora that a stage of pre-training is measured on, and that of its data last. This part of a job
    needs no GPU. Finished shards of a killed job are kept."""
    run = run_file.specification(PretrainingRun)
    for corpus in reversed(measured_corpora(run_file)):
        tokenized_corpus(layout, run, corpus, run_file.source, stop)


def measured_corpora(run_file: RunFile) -> list[Corpus]:
    """Return the corpus that a stage reads and, if the held-out loss is measured on all corpora, the source's others.

    One that is incomplete or changed is an error, not a corpus less.
    """
    run = run_file.specification(PretrainingRun)
    found = [run.corpus]
    if run_file.execution.heldout == "all":
        source = open_specified(run_file.source)
        for name in source.corpora:
            if name != run.corpus.corpus:
                with suppress(NoCorpus):
                    found.append(run.on_corpus(name, source.corpus_origin(name)))
    return found


def tokenized_corpus(
    layout: Layout,
    run: PretrainingRun,
    corpus: Corpus,
    specification: SourceSpecification,
    stop: StopRequest | None = None,
) -> TokenizedCorpus:
    """Open a tokenised corpus of a run, or tokenise it, also if it is damaged.

    Raises:
        ChangedData: the data have changed since the run was planned.
        Stopped: `stop` was requested during tokenisation; finished shards are kept.
    """
    stop = stop or StopRequest()
    folder = layout.data(corpus.id)

    def make(damage: DamagedFile | None, claim: Claim) -> None:
        if damage is not None:
            set_aside(folder, str(damage))
        _tokenize(layout, run, corpus, specification, stop, claim)

    claims, what = layout.claims(f"data-{corpus.id}"), f"the tokens of {corpus.corpus}"
    return prepare_once(claims, what, stop, lambda: open_shards(folder), make)


def _tokenize(
    layout: Layout,
    run: PretrainingRun,
    corpus: Corpus,
    specification: SourceSpecification,
    stop: StopRequest,
    claim: Claim,
) -> None:
    name, folder = corpus.corpus, layout.data(corpus.id)

    def require_corpus() -> None:
        # Reopened, because a source caches its origins.
        found = open_specified(specification).corpus_origin(name)
        place = specification.corpora[name][0] if name in specification.corpora else specification.name
        require_origin(f"corpus {name} of {place}", corpus.origin, found)

    def documents() -> Iterator[str]:
        before = finished_shards(folder)
        for document in source.documents(name):
            if stop.requested:
                finished = finished_shards(folder)
                raise Stopped(f"tokenising was asked to stop after {finished} shards", progressed=finished > before)
            yield document
        require_corpus()

    require_corpus()
    source = open_specified(specification)
    tokenizer = text_tokenizer(layout, run, source, stop)
    try:
        origins = {"corpus": corpus.origin, "tokenizer": corpus.tokenizer}
        prepare(documents(), tokenizer, folder, origins=origins, check=claim.check)
    except ChangedData:  # finished shards may contain earlier data
        claim.check()
        shutil.rmtree(folder.with_name(folder.name + PARTIAL), ignore_errors=True)
        raise
