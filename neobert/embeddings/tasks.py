"""The tasks of embeddings: the 56 of MTEB(eng, v1), and what a task of any suite is. Torch-free, mteb-free.

Names, metrics, splits and instructions are those of mteb 2.26.24's own metadata; a test compares them with the mteb
that is installed. The paper evaluates with an instruction for each task (App. D, Tables 8 and 9); here an encoder gets
it that was fine-tuned with instructions, and the released evaluation code applies none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from neobert.errors import MissingData, did_you_mean
from neobert.result_records import ENGLISH_SUITE, Category

CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True)
class EmbeddingTask:
    """One task of embeddings.

    `suite` is MTEB(eng, v1), or an honest name for tasks that are none of it. `metric` is mteb's main score of it on
    `split`. `members` are mteb's own tasks where several count as one. `instruction` tells an encoder that was trained
    with instructions what to do with the texts, or with the queries where a task has queries and documents.
    """

    name: str
    category: Category
    suite: str
    metric: str
    split: str
    members: tuple[str, ...] = ()
    instruction: str | None = None


METRICS: Mapping[Category, str] = {
    "classification": "accuracy",
    "clustering": "v_measure",
    "pair_classification": "max_ap",
    "reranking": "map_at_1000",
    "retrieval": "ndcg_at_10",
    "sts": "cosine_spearman",
    "summarization": "cosine_spearman",
}
"""The main score of the tasks of a category."""

INSTRUCTIONS: Mapping[Category, str] = {
    "classification": "Classify user passages.",
    "clustering": "Identify categories in user passages.",
    "pair_classification": "Retrieve text that are semantically similar to the given text.",
    "reranking": "Retrieve text based on user query.",
    "retrieval": "Retrieve text based on user query.",
    "sts": "Retrieve semantically similar text.",
    "summarization": "Given a news summary, retrieve other semantically similar summaries.",
}
"""What mteb tells an encoder to do in a task that has no instruction of its own."""

_FORUMS = tuple(
    f"CQADupstack{forum}Retrieval"
    for forum in (
        *("Android", "English", "Gaming", "Gis", "Mathematica", "Physics"),
        *("Programmers", "Stats", "Tex", "Unix", "Webmasters", "Wordpress"),
    )
)
_MEMBERS: Mapping[str, tuple[str, ...]] = {"CQADupstackRetrieval": _FORUMS}
_SPLITS: Mapping[str, str] = {"MSMARCO": "dev"}
_METRICS: Mapping[str, str] = {"MindSmallReranking": "max_over_subqueries_map_at_1000"}

_OWN_INSTRUCTIONS: Mapping[Category, Mapping[str, str | None]] = {
    "classification": {
        "AmazonCounterfactualClassification": (
            "Classify a given Amazon customer review text as either counterfactual or not-counterfactual"
        ),
        "AmazonPolarityClassification": "Classify Amazon reviews into positive or negative sentiment",
        "AmazonReviewsClassification": "Classify the given Amazon review into its appropriate rating category",
        "Banking77Classification": "Given a online banking query, find the corresponding intents",
        "EmotionClassification": (
            "Classify the emotion expressed in the given Twitter message into one of the six emotions: anger, fear, "
            "joy, love, sadness, and surprise"
        ),
        "ImdbClassification": ("Classify the sentiment expressed in the given movie review text from the IMDB dataset"),
        "MassiveIntentClassification": "Given a user utterance as query, find the user intents",
        "MassiveScenarioClassification": "Given a user utterance as query, find the user scenarios",
        "MTOPDomainClassification": "Classify the intent domain of the given utterance in task-oriented conversation",
        "MTOPIntentClassification": "Classify the intent of the given utterance in task-oriented conversation",
        "ToxicConversationsClassification": "Classify the given comments as either toxic or not toxic",
        "TweetSentimentExtractionClassification": (
            "Classify the sentiment of a given tweet as either positive, negative, or neutral"
        ),
    },
    "clustering": {
        "ArxivClusteringP2P": (
            "Identify the main and secondary category of Arxiv papers based on the titles and abstracts"
        ),
        "ArxivClusteringS2S": "Identify the main and secondary category of Arxiv papers based on the titles",
        "BiorxivClusteringP2P": "Identify the main category of Biorxiv papers based on the titles and abstracts",
        "BiorxivClusteringS2S": "Identify the main category of Biorxiv papers based on the titles",
        "MedrxivClusteringP2P": "Identify the main category of Medrxiv papers based on the titles and abstracts",
        "MedrxivClusteringS2S": "Identify the main category of Medrxiv papers based on the titles",
        "RedditClustering": "Identify the topic or theme of Reddit posts based on the titles",
        "RedditClusteringP2P": "Identify the topic or theme of Reddit posts based on the titles and posts",
        "StackExchangeClustering": "Identify the topic or theme of StackExchange posts based on the titles",
        "StackExchangeClusteringP2P": (
            "Identify the topic or theme of StackExchange posts based on the given paragraphs"
        ),
        "TwentyNewsgroupsClustering": "Identify the topic or theme of the given news articles",
    },
    "pair_classification": {
        "SprintDuplicateQuestions": "Retrieve duplicate questions from Sprint forum",
        "TwitterSemEval2015": "Retrieve tweets that are semantically similar to the given tweet",
        "TwitterURLCorpus": "Retrieve tweets that are semantically similar to the given tweet",
    },
    "reranking": {
        "AskUbuntuDupQuestions": "Retrieve duplicate questions from AskUbuntu forum",
        "MindSmallReranking": "Retrieve relevant news articles based on user browsing history",
        "SciDocsRR": "Given a title of a scientific paper, retrieve the titles of other relevant papers",
        "StackOverflowDupQuestions": "Retrieve duplicate questions from StackOverflow forum",
    },
    "retrieval": {
        "ArguAna": "Given a claim, find documents that refute the claim",
        "ClimateFEVER": "Given a claim about climate change, retrieve documents that support or refute the claim",
        "CQADupstackRetrieval": None,
        "DBPedia": "Given a query, retrieve relevant entity descriptions from DBPedia",
        "FEVER": "Given a claim, retrieve documents that support or refute the claim",
        "FiQA2018": "Given a financial question, retrieve user replies that best answer the question",
        "HotpotQA": "Given a multi-hop question, retrieve documents that can help answer the question",
        "MSMARCO": "Given a web search query, retrieve relevant passages that answer the query",
        "NFCorpus": "Given a question, retrieve relevant documents that best answer the question",
        "NQ": "Given a question, retrieve Wikipedia passages that answer the question",
        "QuoraRetrieval": (
            "Given a question, retrieve questions that are semantically equivalent to the given question"
        ),
        "SCIDOCS": "Given a scientific paper title, retrieve paper abstracts that are cited by the given paper",
        "SciFact": "Given a scientific claim, retrieve documents that support or refute the claim",
        "Touche2020": "Given a question, retrieve detailed and persuasive arguments that answer the question",
        "TRECCOVID": "Given a query on COVID-19, retrieve documents that answer the query",
    },
    "sts": dict.fromkeys(
        ("BIOSSES", "SICK-R", "STS12", "STS13", "STS14", "STS15", "STS16", "STS17", "STS22", "STSBenchmark")
    ),
    "summarization": {"SummEval": None},
}

MTEB_ENGLISH_V1: tuple[EmbeddingTask, ...] = tuple(
    EmbeddingTask(
        name=name,
        category=category,
        suite=ENGLISH_SUITE,
        metric=_METRICS.get(name, METRICS[category]),
        split=_SPLITS.get(name, "test"),
        members=_MEMBERS.get(name, ()),
        instruction=own or INSTRUCTIONS[category],
    )
    for category, tasks in _OWN_INSTRUCTIONS.items()
    for name, own in tasks.items()
)
"""The 56 tasks of Table 4, category by category; CQADupstack's twelve forums count as one (paper, Table 4)."""

Instructed = Literal["nothing", "queries", "queries_and_documents"]
"""Which texts stand behind an instruction; what contrastive fine-tuning was done with (`Contrastive.instructed`)."""

OFFICIAL_TASKS: Mapping[str, EmbeddingTask] = {task.name: task for task in MTEB_ENGLISH_V1}


def task_prompts(task: EmbeddingTask, instructed: Instructed) -> dict[str, str]:
    """What an encoder is told of a task's texts, by "query" (also where it has no documents) and "document"."""
    if instructed == "nothing" or task.instruction is None:
        return {}
    documents = {"document": task.instruction} if instructed == "queries_and_documents" else {}
    return {"query": task.instruction, **documents}


def member_names(task: EmbeddingTask) -> tuple[str, ...]:
    """mteb's own tasks that are measured for a task: its members, or itself."""
    return task.members or (task.name,)


def chosen_tasks(
    available: Sequence[EmbeddingTask], names: Sequence[str] | None, categories: Sequence[str] | None
) -> tuple[EmbeddingTask, ...]:
    """The available tasks that are named, of the categories that are named, in their own order; None or "all" stands
    for all.

    Raises:
        ValueError: no suite has such a task, there is no such category, or nothing is left.
        MissingData: one of the 56 is not among the available ones.
    """
    known = {task.name: task for task in available}
    names = None if names is not None and "all" in names else names
    for category in categories or ():
        if category not in CATEGORIES:
            raise ValueError(f"there is no category {category!r} of tasks: {did_you_mean(category, CATEGORIES)}")
    for name in names or ():
        if name not in known:
            _refuse(name, known)
    chosen = tuple(
        task
        for task in available
        if (names is None or task.name in names) and (categories is None or task.category in categories)
    )
    if not chosen:
        asked = ", ".join((*(names or ()), *(categories or ()))) or "any"
        raise ValueError(f"no task is left of {asked}: here are {', '.join(known) or 'none'}")
    return chosen


def _refuse(name: str, known: Mapping[str, EmbeddingTask]) -> None:
    if name in OFFICIAL_TASKS:
        raise MissingData(f"task {name} of {ENGLISH_SUITE} is not in this data: here are {', '.join(known) or 'none'}")
    raise ValueError(f"there is no task {name!r}: {did_you_mean(name, [*known, *OFFICIAL_TASKS])}")
