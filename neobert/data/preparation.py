"""Preparation of data, once for all workers: one tokenises or trains a tokenizer under a claim, the others wait."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from neobert.data.shards import TokenizedCorpus, finished_shards, open_shards, prepare
from neobert.data.sources import SOURCES, NoCorpus, Source, open_source
from neobert.data.tokenizers import TextTokenizer, open_kept_tokenizer
from neobert.errors import ChangedData, DamagedFile, MissingData
from neobert.files import refresh, set_aside
from neobert.kinds.corpus import Corpus
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import Claim, ClaimLost, acquire
from neobert.runs.layout import PARTIAL, Layout
from neobert.runs.run_file import RunFile, SourceSpecification
from neobert.runs.work import Part

Prepared = TypeVar("Prepared")

POLL_SECONDS = 0.2


def specify(
    data: str,
    synthetic_documents: int,
    unseen: Iterable[str] = (),
    task_folders: Mapping[str, str] | None = None,
    corpora: Mapping[str, tuple[str, str]] | None = None,
) -> SourceSpecification:
    """Convert `--data` and `--without-texts-of` for run.json, with absolute paths, as jobs may start elsewhere."""
    name = data if data in SOURCES else str(Path(data).resolve())
    paths = tuple(str(Path(path).resolve()) for path in unseen)
    return SourceSpecification(
        name=name,
        synthetic_documents=synthetic_documents,
        unseen=paths,
        task_folders=dict(task_folders or {}),
        corpora=dict(corpora or {}),
    )


def open_specified(specification: SourceSpecification) -> Source:
    """Open the source named in a run.json."""
    return open_source(
        specification.name,
        synthetic_documents=specification.synthetic_documents,
        unseen=specification.unseen,
        corpora=specification.corpora,
    )


def require_origin(what: str, planned: str, found: str) -> None:
    """Raise ChangedData if the data differ from those that a run was planned on. Call it before and after reading."""
    if found != planned:
        raise ChangedData(
            f"{what} changed since this was planned (from {planned} to {found}): restore the earlier data, or run "
            "the same command again, which plans on those that are here now"
        )


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

    def open_own() -> TokenizedCorpus:
        opened = open_shards(folder)
        if (origins := opened.manifest.get("origins")) != _origins(corpus):
            raise DamagedFile(f"{folder} holds the tokens of {origins} and not of {_origins(corpus)}: it was copied")
        return opened

    claims, what = layout.claims(f"data-{corpus.id}"), f"the tokens of {corpus.corpus}"
    return prepare_once(claims, what, stop, open_own, make)


def _origins(corpus: Corpus) -> dict[str, str]:
    """Return what the manifest of a tokenised corpus says of where it came from."""
    return {"corpus": corpus.origin, "tokenizer": corpus.tokenizer}


def prepare_once(
    claims: Path,
    what: str,
    stop: StopRequest,
    open_whole: Callable[[], Prepared],
    make: Callable[[DamagedFile | None, Claim], None],
) -> Prepared:
    """Open prepared data, or make them: one process does so under a claim while all others wait.

    Args:
        what: name of the data in the message of `Stopped`, if a stop is requested while waiting.
        open_whole: opens the data; raises MissingData if absent, DamagedFile if damaged or incomplete.
        make: makes the data, given the damage found, if any, and the claim, which it checks before each publish. If the
            claim is lost, the data of the new owner are waited for.
    """
    while True:
        with suppress(MissingData, DamagedFile, FileNotFoundError):
            return open_whole()
        claim = acquire(claims)
        if claim is None:
            stop.check(what)
            time.sleep(POLL_SECONDS)
            continue
        with claim, suppress(ClaimLost):
            for folder in (data := claims.parents[1] / "data", *data.glob("*/")):
                refresh(folder)
            try:
                open_whole()
            except (MissingData, FileNotFoundError):
                make(None, claim)
            except DamagedFile as error:
                make(error, claim)


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
        prepare(documents(), tokenizer, folder, origins=_origins(corpus), check=claim.check)
    except ChangedData:  # finished shards may contain earlier data
        claim.check()
        shutil.rmtree(folder.with_name(folder.name + PARTIAL), ignore_errors=True)
        raise
