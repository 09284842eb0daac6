"""How much disk the units of a plan take: tokenised corpora, checkpoints, records of GLUE. Torch-free; estimates."""

from itertools import islice

from neobert.data.shards import DOCUMENT, TOKEN
from neobert.data.sources import DirectorySource, HubSource, Source, SyntheticSource
from neobert.glue.sizes import CHARACTERS_PER_TOKEN, PUBLISHED, TaskSize
from neobert.glue.tasks import task_named
from neobert.model.size import parameter_count
from neobert.runs.specifications import GlueStudy, PretrainingRun

MILESTONES = 4
NEWEST_KEPT = 2
"""As in `neobert.training`, which imports torch; a test compares them."""

WEIGHT_BYTES = 4
OPTIMIZER_BYTES = 8

TRIAL_RECORD_BYTES = 20_000
"""A record with its curve; some 250 evaluations at paper scale."""

HUB_CORPORA = {
    "wikibook": (13e9 / CHARACTERS_PER_TOKEN, 80_500_000),  # 13 GB (paper, Table 1); articles and sentences
    "web": (600e9, 968_000_000),  # paper §3.2; documents of tiiuae/falcon-refinedweb
}
"""Tokens and documents."""

SAMPLED_DOCUMENTS = 64
SYNTHETIC_CHARACTERS = 80.0
"""Of a GLUE example of the synthetic world."""


def corpus_bytes(source: Source, corpus: str) -> float | None:
    """What a corpus of a source takes in tokens; None where nobody knows."""
    size = _tokens_and_documents(source, corpus)
    return None if size is None else size[0] * TOKEN.itemsize + size[1] * DOCUMENT.itemsize


def _tokens_and_documents(source: Source, corpus: str) -> tuple[float, float] | None:
    if isinstance(source, HubSource):
        return HUB_CORPORA[corpus]
    if isinstance(source, SyntheticSource):  # its words are nearly all tokens
        sample = list(islice(source.documents(corpus), SAMPLED_DOCUMENTS))
        words = sum(len(text.split()) for text in sample) / len(sample)
        return words * source.documents_per_corpus, source.documents_per_corpus
    if isinstance(source, DirectorySource):
        characters, documents = source.text_size(corpus)
        return characters / CHARACTERS_PER_TOKEN, documents
    return None


def checkpoint_bytes(run: PretrainingRun) -> int:
    """What a finished stage keeps: weights at the milestones, and the newest checkpoints with the optimizer's state."""
    parameters = parameter_count(run.recipe.model, run.context).total
    return parameters * (MILESTONES * WEIGHT_BYTES + NEWEST_KEPT * (WEIGHT_BYTES + OPTIMIZER_BYTES))


def task_size(source: Source, task: str) -> TaskSize:
    """How large a task of a source is; a folder's tasks are taken to be the published ones."""
    if isinstance(source, SyntheticSource):
        from neobert.data.synthetic.tasks import example_counts

        return TaskSize(*example_counts(task), characters=SYNTHETIC_CHARACTERS)
    return PUBLISHED[task]


def study_bytes(study: GlueStudy, run: PretrainingRun, source: Source) -> int:
    """Records and predictions of all points, and the weights of the best one."""
    labels = task_named(study.task).labels
    predictions = task_size(source, study.task).validation * labels * 4
    encoder = parameter_count(run.recipe.model, run.context).encoder
    head = run.recipe.model.width * (run.recipe.model.width + 1 + labels) + labels
    return len(study.points) * (TRIAL_RECORD_BYTES + predictions) + WEIGHT_BYTES * (encoder + head)
