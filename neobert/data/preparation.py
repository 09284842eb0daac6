"""Tokenise what a run needs, once for all workers: whoever comes first does it, the others wait. Torch-free."""

import time
from pathlib import Path

from neobert.data.corpora import SOURCES, Source, open_source
from neobert.data.shards import prepare
from neobert.data.tokenized import MANIFEST, TokenizedCorpus, open_shards
from neobert.data.tokenizers import TextTokenizer
from neobert.grid.claims import acquire
from neobert.layout import Layout
from neobert.specifications import PretrainingRun
from neobert.specifications import Source as SourceSpecification

POLL_SECONDS = 0.2


def specify(data: str, synthetic_documents: int) -> SourceSpecification:
    """What a run.json says of `--data`; folders as absolute paths, since workers and jobs may start elsewhere."""
    name = data if data in SOURCES else str(Path(data).resolve())
    return SourceSpecification(name=name, synthetic_documents=synthetic_documents)


def open_specified(specification: SourceSpecification) -> Source:
    """The source that a run.json names."""
    return open_source(specification.name, synthetic_documents=specification.synthetic_documents)


def text_tokenizer(layout: Layout, source: Source, tokenizer: str, vocabulary_size: int) -> TextTokenizer:
    """The tokenizer of a recipe, trained (where the source trains) by one worker while the others wait.

    Raises:
        ValueError: it has more tokens than the recipe's embedding has rows.
    """
    cache = layout.root / "data" / "tokenizers"
    unit = f"tokenizer-{tokenizer}-{vocabulary_size}"
    while (claim := acquire(layout.claims(unit))) is None:
        time.sleep(POLL_SECONDS)
    with claim:
        opened = source.tokenizer(tokenizer, vocabulary_size, cache)
    if opened.vocabulary_size > vocabulary_size:
        raise ValueError(
            f"the {tokenizer} tokenizer has {opened.vocabulary_size} tokens, the recipe's vocabulary_size is "
            f"{vocabulary_size}: raise it"
        )
    return opened


def tokenized_corpus(layout: Layout, run: PretrainingRun, specification: SourceSpecification) -> TokenizedCorpus:
    """The run's corpus in its tokens, from disk or made now."""
    folder = layout.data(run.data_id)
    while not (folder / MANIFEST).exists():
        claim = acquire(layout.claims(f"data-{run.data_id}"))
        if claim is None:
            time.sleep(POLL_SECONDS)
            continue
        with claim:
            _tokenize(layout, run, specification)
    return open_shards(folder)


def _tokenize(layout: Layout, run: PretrainingRun, specification: SourceSpecification) -> None:
    source = open_specified(specification)
    data, vocabulary_size = run.recipe.data, run.recipe.model.vocabulary_size
    tokenizer = text_tokenizer(layout, source, data.tokenizer, vocabulary_size)
    origins = {"corpus": run.corpus_origin, "tokenizer": run.tokenizer_origin}
    prepare(source.documents(data.corpus), tokenizer, layout.data(run.data_id), origins=origins)
