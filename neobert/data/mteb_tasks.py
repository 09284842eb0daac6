"""The tasks of embeddings: the 56 of MTEB(eng, v1), and what a task of any suite is. Torch-free, mteb-free.

Names, metrics and splits are those of mteb 2.26.24's own metadata; a test compares them with the installed mteb.
mteb_tasks.csv has what an encoder is told in each of the 56 tasks, in three wordings: the paper's (Tables 8 and 9;
in v1 7 and 8), mteb's own, and the released code's (conf/mteb_task_to_instruction_{query,corpus}.json), which end in
the name of a field and differ for documents.
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from neobert.data.manifest import MANIFEST, Manifest, hub_origin, missing_files, require_brought
from neobert.data.reading import require_columns
from neobert.errors import DamagedFile, MissingData, did_you_mean
from neobert.recipe import Instructed
from neobert.runs.records import ENGLISH_SUITE, Category

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


def _read_instructions() -> dict[str, dict[str, str]]:
    """The rows of mteb_tasks.csv by task."""
    with (Path(__file__).parent / "mteb_tasks.csv").open(newline="", encoding="utf-8") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


_INSTRUCTED: Mapping[str, Mapping[str, str]] = _read_instructions()

MTEB_ENGLISH_V1: tuple[EmbeddingTask, ...] = tuple(
    EmbeddingTask(
        name=name,
        category=category,
        suite=ENGLISH_SUITE,
        metric=_METRICS.get(name, METRICS[category]),
        split=_SPLITS.get(name, "test"),
        members=_MEMBERS.get(name, ()),
        instruction=row["paper"],
    )
    for category in CATEGORIES
    for name, row in _INSTRUCTED.items()
    if row["category"] == category
)
"""The 56 tasks of Table 4, category by category; CQADupstack's twelve forums count as one (paper, Table 4)."""

Wording = Literal["paper", "mteb", "code"]
"""Whose instructions the 56 tasks are measured with; other tasks have one of their own."""

OFFICIAL_TASKS: Mapping[str, EmbeddingTask] = {task.name: task for task in MTEB_ENGLISH_V1}


def task_prompts(task: EmbeddingTask, instructed: Instructed, wording: Wording = "paper") -> dict[str, str]:
    """What an encoder is told of a task's texts, by "query" (also where it has no documents) and "document"."""
    if instructed == "nothing" or task.instruction is None:
        return {}
    query = document = task.instruction
    if task.suite == ENGLISH_SUITE and wording == "mteb":
        query = document = _INSTRUCTED[task.name]["mteb"]
    if task.suite == ENGLISH_SUITE and wording == "code":
        query, document = (_INSTRUCTED[task.name][f"code_{texts}"] for texts in ("queries", "documents"))
    return {"query": query, **({"document": document} if instructed == "queries_and_documents" else {})}


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


MTEB_REPOSITORIES: Mapping[str, tuple[str, str]] = {
    "AmazonCounterfactualClassification": ("mteb/amazon_counterfactual", "1f7e6a9d6fa6e64c53d146e428565640410c0df1"),
    "AmazonPolarityClassification": ("mteb/amazon_polarity", "e2d317d38cd51312af73b3d32a06d1a08b442046"),
    "AmazonReviewsClassification": ("mteb/AmazonReviewsClassification", "6b5d328eaae8ef408dd7d775040245cf86f92e9d"),
    "ArguAna": ("mteb/arguana", "c22ab2a51041ffd869aaddef7af8d8215647e41a"),
    "ArxivClusteringP2P": ("mteb/arxiv-clustering-p2p", "a122ad7f3f0291bf49cc6f4d32aa80929df69d5d"),
    "ArxivClusteringS2S": ("mteb/arxiv-clustering-s2s", "f910caf1a6075f7329cdf8c1a6135696f37dbd53"),
    "AskUbuntuDupQuestions": ("mteb/AskUbuntuDupQuestions", "c5691e3c48741d5f83b5cc8e630653d7a8cfc048"),
    "Banking77Classification": ("mteb/banking77", "0fd18e25b25c072e09e0d92ab615fda904d66300"),
    "BiorxivClusteringP2P": ("mteb/biorxiv-clustering-p2p", "65b79d1d13f80053f67aca9498d9402c2d9f1f40"),
    "BiorxivClusteringS2S": ("mteb/biorxiv-clustering-s2s", "258694dd0231531bc1fd9de6ceb52a0853c6d908"),
    "BIOSSES": ("mteb/biosses-sts", "d3fb88f8f02e40887cd149695127462bbcf29b4a"),
    "ClimateFEVER": ("mteb/climate-fever", "47f2ac6acb640fc46020b02a5b59fdda04d39380"),
    "CQADupstackAndroidRetrieval": ("mteb/CQADupstackAndroidRetrieval", "9be4c0e46342e8e3aff577a89b9a1ec9bc6b4af3"),
    "CQADupstackEnglishRetrieval": ("mteb/cqadupstack-english", "ad9991cb51e31e31e430383c75ffb2885547b5f0"),
    "CQADupstackGamingRetrieval": ("mteb/cqadupstack-gaming", "4885aa143210c98657558c04aaf3dc47cfb54340"),
    "CQADupstackGisRetrieval": ("mteb/cqadupstack-gis", "5003b3064772da1887988e05400cf3806fe491f2"),
    "CQADupstackMathematicaRetrieval": ("mteb/cqadupstack-mathematica", "90fceea13679c63fe563ded68f3b6f06e50061de"),
    "CQADupstackPhysicsRetrieval": ("mteb/cqadupstack-physics", "79531abbd1fb92d06c6d6315a0cbbbf5bb247ea4"),
    "CQADupstackProgrammersRetrieval": ("mteb/cqadupstack-programmers", "6184bc1440d2dbc7612be22b50686b8826d22b32"),
    "CQADupstackStatsRetrieval": ("mteb/cqadupstack-stats", "65ac3a16b8e91f9cee4c9828cc7c335575432a2a"),
    "CQADupstackTexRetrieval": ("mteb/cqadupstack-tex", "46989137a86843e03a6195de44b09deda022eec7"),
    "CQADupstackUnixRetrieval": ("mteb/cqadupstack-unix", "6c6430d3a6d36f8d2a829195bc5dc94d7e063e53"),
    "CQADupstackWebmastersRetrieval": ("mteb/cqadupstack-webmasters", "160c094312a0e1facb97e55eeddb698c0abe3571"),
    "CQADupstackWordpressRetrieval": ("mteb/cqadupstack-wordpress", "4ffe81d471b1924886b33c7567bfb200e9eec5c4"),
    "DBPedia": ("mteb/dbpedia", "c0f706b76e590d620bd6618b3ca8efdd34e2d659"),
    "EmotionClassification": ("mteb/emotion", "4f58c6b202a23cf9a4da393831edf4f9183cad37"),
    "FEVER": ("mteb/fever", "bea83ef9e8fb933d90a2f1d5515737465d613e12"),
    "FiQA2018": ("mteb/fiqa", "27a168819829fe9bcd655c2df245fb19452e8e06"),
    "HotpotQA": ("mteb/hotpotqa", "ab518f4d6fcca38d87c25209f94beba119d02014"),
    "ImdbClassification": ("mteb/imdb", "3d86128a09e091d6018b6d26cad27f2739fc2db7"),
    "MassiveIntentClassification": ("mteb/amazon_massive_intent", "4672e20407010da34463acc759c162ca9734bca6"),
    "MassiveScenarioClassification": ("mteb/amazon_massive_scenario", "fad2c6e8459f9e1c45d9315f4953d921437d70f8"),
    "MedrxivClusteringP2P": ("mteb/medrxiv-clustering-p2p", "e7a26af6f3ae46b30dde8737f02c07b1505bcc73"),
    "MedrxivClusteringS2S": ("mteb/medrxiv-clustering-s2s", "35191c8c0dca72d8ff3efcd72aa802307d469663"),
    "MindSmallReranking": ("mteb/MindSmallReranking", "227478e3235572039f4f7661840e059f31ef6eb1"),
    "MSMARCO": ("mteb/msmarco", "c5a29a104738b98a9e76336939199e264163d4a0"),
    "MTOPDomainClassification": ("mteb/MTOPDomainClassification", "a76d16fae880597b9c73047b50159220a441cb54"),
    "MTOPIntentClassification": ("mteb/MTOPIntentClassification", "2992d820f31312593c49a4890430aadadb0f0039"),
    "NFCorpus": ("mteb/nfcorpus", "ec0fa4fe99da2ff19ca1214b7966684033a58814"),
    "NQ": ("mteb/nq", "b774495ed302d8c44a3a7ea25c90dbce03968f31"),
    "QuoraRetrieval": ("mteb/quora", "e4e08e0b7dbe3c8700f0daef558ff32256715259"),
    "RedditClustering": ("mteb/reddit-clustering", "24640382cdbf8abc73003fb0fa6d111a705499eb"),
    "RedditClusteringP2P": ("mteb/reddit-clustering-p2p", "385e3cb46b4cfa89021f56c4380204149d0efe33"),
    "SCIDOCS": ("mteb/scidocs", "f8c2fcf00f625baaa80f62ec5bd9e1fff3b8ae88"),
    "SciDocsRR": ("mteb/SciDocsRR", "39b8377811871075eed9de3b8a7e21aaa6acb3d8"),
    "SciFact": ("mteb/scifact", "d56462d0e63a25450459c4f213e49ffdb866f7f9"),
    "SICK-R": ("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d"),
    "SprintDuplicateQuestions": (
        "mteb/sprintduplicatequestions-pairclassification",
        "d66bd1f72af766a5cc4b0ca5e00c162f89e8cc46",
    ),
    "StackExchangeClustering": ("mteb/stackexchange-clustering", "6cbc1f7b2bc0622f2e39d2c77fa502909748c259"),
    "StackExchangeClusteringP2P": ("mteb/stackexchange-clustering-p2p", "815ca46b2622cec33ccafc3735d572c266efdb44"),
    "StackOverflowDupQuestions": ("mteb/StackOverflowDupQuestions", "5debda000fe8e27ebb5c123d38081f92e1847a59"),
    "STS12": ("mteb/sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384"),
    "STS13": ("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca"),
    "STS14": ("mteb/sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375"),
    "STS15": ("mteb/sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3"),
    "STS16": ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513"),
    "STS17": ("mteb/sts17-crosslingual-sts", "faeb762787bd10488a50c8b5be4a3b82e411949c"),
    "STS22": ("mteb/sts22-crosslingual-sts", "de9d86b3b84231dc21f76c7b7af1f28e2f57f6e3"),
    "STSBenchmark": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831"),
    "SummEval": ("mteb/summeval", "cda12ad7615edc362dbf25a00fdd61d3b1eaf93c"),
    "Touche2020": ("mteb/touche2020", "a34f9a33db75fa0cbb21bb5cfc3dae8dc8bec93f"),
    "ToxicConversationsClassification": ("mteb/toxic_conversations_50k", "edfaf9da55d3dd50d43143d90c1ac476895ae6de"),
    "TRECCOVID": ("mteb/trec-covid", "bb9466bac8153a0349341eb1b22e06409e78ef4e"),
    "TweetSentimentExtractionClassification": (
        "mteb/tweet_sentiment_extraction",
        "d604517c81ca91fe16a244d1248fc021f9ecee7a",
    ),
    "TwentyNewsgroupsClustering": ("mteb/twentynewsgroups-clustering", "6125ec4e24fa026cec8a478383ee943acfbd5449"),
    "TwitterSemEval2015": ("mteb/twittersemeval2015-pairclassification", "70970daeab8776df92f5ea462b6173c0b46fd2d1"),
    "TwitterURLCorpus": ("mteb/twitterurlcorpus-pairclassification", "8b6510b0b1fa4e4c4f879467980e9be563ec1cdf"),
}
"""Task: (repository, commit)."""


OFFICIAL_ROWS: Mapping[str, Mapping[str, int]] = {
    "AmazonPolarityClassification": {"train": 3_600_000, "test": 400_000},
    "Banking77Classification": {"train": 10_003, "test": 3080},
    "EmotionClassification": {"train": 16_000, "test": 2000},
    "ImdbClassification": {"train": 25_000, "test": 25_000},
    "TweetSentimentExtractionClassification": {"train": 27_481, "test": 3534},
    "BIOSSES": {"test": 100},
    "SICK-R": {"test": 9927},
    "STS12": {"test": 3108},
    "STS13": {"test": 1500},
    "STS14": {"test": 3750},
    "STS15": {"test": 3000},
    "STS16": {"test": 1186},
    "STSBenchmark": {"test": 1379},
}
"""Rows of each table."""

OFFICIAL_GOLD: Mapping[str, float] = {
    "Banking77Classification": 77,
    "EmotionClassification": 6,
    "ImdbClassification": 2,
    "AmazonPolarityClassification": 2,
    "TweetSentimentExtractionClassification": 3,
    "BIOSSES": 2.1960,
    "SICK-R": 3.5291,
    "STS12": 3.5061,
    "STS13": 2.3362,
    "STS14": 2.8114,
    "STS15": 2.4059,
    "STS16": 2.4132,
    "STSBenchmark": 2.6079,
}
"""Their different labels, or the mean of their gold scores, to `GOLD_DIGITS` digits."""

GOLD_DIGITS = 4


Table = Mapping[str, Sequence[Any]]

COLUMNS: Mapping[Category, Mapping[str, tuple[str, ...]]] = {
    "classification": {"train": ("text", "label"), "test": ("text", "label")},
    "clustering": {"test": ("sentences", "labels")},
    "pair_classification": {"test": ("sentence1", "sentence2", "labels")},
    "reranking": {"test": ("query", "positive", "negative")},
    "retrieval": {
        "corpus": ("_id", "text"),
        "queries_test": ("_id", "text"),
        "qrels_test": ("query-id", "corpus-id", "score"),
    },
    "sts": {"test": ("sentence1", "sentence2", "score")},
    "summarization": {"test": ("text", "human_summaries", "machine_summaries", "relevance")},
}
"""The tables of a task of each category, and the columns that each must have."""

TEXTS = frozenset({"text", "title", "sentences", "sentence1", "sentence2", "query"})
TEXT_LISTS = frozenset({"positive", "negative", "human_summaries", "machine_summaries"})


@dataclass(frozen=True, eq=False)
class TaskTables:
    """A task's tables by their names in `COLUMNS`; a text that was missing is empty."""

    category: Category
    tables: Mapping[str, Table]


@dataclass(frozen=True)
class PublishedTask:
    """A task whose data lie as on the hub: the folder of each of mteb's own tasks that belong to it."""

    folders: Mapping[str, Path]


def checked_tables(category: Category, tables: Mapping[str, Table], where: str) -> TaskTables:
    """Tables that a score can be computed from, missing texts made empty.

    Raises:
        ValueError: there are no rows, a text is none, or labels or scores do not serve.
    """
    for name, columns in COLUMNS[category].items():
        if not len(tables[name][columns[0]]):
            raise ValueError(f"{where}: table {name} has no rows, so leave the task out or fill it")
    cleaned = {
        name: {column: _cleaned(column, values, f"{where}, table {name}") for column, values in table.items()}
        for name, table in tables.items()
    }
    _CHECKS[category](cleaned, where)
    return TaskTables(category, cleaned)


def _cleaned(column: str, values: Sequence[Any], where: str) -> Sequence[Any]:
    if column in TEXTS:
        return [_text(value, f"{where}, row {row}") for row, value in enumerate(values)]
    if column in TEXT_LISTS:
        return [_texts(value, f"{where}, row {row}") for row, value in enumerate(values)]
    return values


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{where}: {value!r} is not a text")
    return value


def _texts(value: Any, where: str) -> list[str]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{where}: {value!r} is not a list of texts")
    return [_text(text, where) for text in value or ()]


def _different_labels(labels: Iterable[Any], where: str) -> set[Any]:
    found = set(labels)
    if None in found:
        raise ValueError(f"{where}: a label is missing, so leave its row out or give it one")
    if len(found) < 2:
        raise ValueError(f"{where}: all rows have the label {next(iter(found))!r}, so nothing can be told apart")
    return found


def _classification(tables: Mapping[str, Table], where: str) -> None:
    known = _different_labels(tables["train"]["label"], f"{where}, table train")
    unknown = _different_labels(tables["test"]["label"], f"{where}, table test") - known
    if unknown:
        first = sorted(map(repr, unknown))[0]
        raise ValueError(f"{where}: label {first} of table test has no example in table train to learn it from")


def _clustering(tables: Mapping[str, Table], where: str) -> None:
    _different_labels(tables["test"]["labels"], f"{where}, table test")


def _pair_classification(tables: Mapping[str, Table], where: str) -> None:
    wrong = _different_labels(tables["test"]["labels"], f"{where}, table test") - {0, 1}
    if wrong:
        raise ValueError(f"{where}: label {sorted(map(repr, wrong))[0]} is neither 0 nor 1")


def _require_scores(scores: Sequence[Any], where: str) -> None:
    for row, score in enumerate(scores):
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise ValueError(f"{where}, row {row}: score {score!r} is not a finite number")
    if len(set(scores)) < 2:
        raise ValueError(f"{where}: all rows have the score {scores[0]!r}, so nothing can be ranked")


def _sts(tables: Mapping[str, Table], where: str) -> None:
    _require_scores(tables["test"]["score"], f"{where}, table test")


def _reranking(tables: Mapping[str, Table], where: str) -> None:
    positives, negatives = tables["test"]["positive"], tables["test"]["negative"]
    if not any(found and others for found, others in zip(positives, negatives, strict=True)):
        raise ValueError(f"{where}, table test: no query has both a positive and a negative, so nothing can be ranked")


def _retrieval(tables: Mapping[str, Table], where: str) -> None:
    judged = tables["qrels_test"]
    for name, column in (("corpus", "corpus-id"), ("queries_test", "query-id")):
        known = list(map(str, tables[name]["_id"]))
        if len(set(known)) < len(known):
            raise ValueError(f"{where}, table {name}: an _id comes twice, so give each text its own")
        unknown = set(map(str, judged[column])) - set(known)
        if unknown:
            raise ValueError(f"{where}, table qrels_test: {column} {min(unknown)!r} is not in table {name}")
    if not any(score and score > 0 for score in judged["score"]):
        raise ValueError(f"{where}, table qrels_test: no document belongs to a query (score above 0)")


def _summarization(tables: Mapping[str, Table], where: str) -> None:
    table = tables["test"]
    for row, (machine, human, relevance) in enumerate(
        zip(table["machine_summaries"], table["human_summaries"], table["relevance"], strict=True)
    ):
        if not human or not machine or len(machine) != len(relevance):
            raise ValueError(
                f"{where}, table test, row {row}: {len(human)} human summaries, {len(machine)} machine summaries and "
                f"{len(relevance)} scores of these do not go together"
            )
    _require_scores([score for scores in table["relevance"] for score in scores], f"{where}, table test")


_CHECKS: Mapping[Category, Callable[[Mapping[str, Table], str], None]] = {
    "classification": _classification,
    "clustering": _clustering,
    "pair_classification": _pair_classification,
    "reranking": _reranking,
    "retrieval": _retrieval,
    "sts": _sts,
    "summarization": _summarization,
}


FOLDER_SUITE = "tasks of a folder"
FOLDERS: Mapping[str, Category] = {
    "Classification": "classification",
    "Clustering": "clustering",
    "PairClassification": "pair_classification",
    "Reranking": "reranking",
    "Retrieval": "retrieval",
    "STS": "sts",
    "Summarization": "summarization",
}
"""The folders of categories, by mteb's names for them."""


@dataclass(frozen=True)
class FolderTask:
    """A task and its data: a file for each table, or what prefetch brought, a folder for each of mteb's own tasks."""

    task: EmbeddingTask
    files: Mapping[str, Path] = field(default_factory=dict)
    published: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class FolderTasks:
    """The tasks below `folder`/mteb; `origin_of` identifies files by their contents."""

    folder: Path
    manifest: Manifest
    origin_of: Callable[[Sequence[Path]], str]

    @cached_property
    def tasks(self) -> dict[str, FolderTask]:
        """The tasks by name, those that were prefetched first.

        Raises:
            ValueError: a folder there is no category, or two tasks have one name.
        """
        found = {task.task.name: task for task in _prefetched(self.folder, self.manifest)}
        for task in _laid_out(self.folder / "mteb", self.manifest):
            earlier = found.get(task.task.name)
            if earlier is not None and not earlier.published:
                raise ValueError(
                    f"{self.folder / 'mteb'} has two tasks named {task.task.name}: rename the folder of one"
                )
            found.setdefault(task.task.name, task)
        return found

    @cached_property
    def _origins(self) -> dict[str, str]:
        """Origins found so far: to check a task's data takes time."""
        return {}

    def origin(self, name: str) -> str:
        """What identifies a task's data, which are checked.

        Raises:
            MissingData: the task or a file of it is not here.
            DamagedFile, ValueError: a file is not what it should be.
        """
        if name not in self._origins:
            self._origins[name] = self._checked_origin(self._task(name))
        return self._origins[name]

    def data(self, name: str) -> TaskTables | PublishedTask:
        """A task's data, checked.

        Raises:
            MissingData, DamagedFile, ValueError: as `origin`.
        """
        return _data(self._task(name))

    def _task(self, name: str) -> FolderTask:
        if name not in self.tasks:
            hint = did_you_mean(name, [*self.tasks, *OFFICIAL_TASKS])
            raise MissingData(f"there is no task {name} in {self.folder / 'mteb'} ({hint})")
        return self.tasks[name]

    def _checked_origin(self, found: FolderTask) -> str:
        if found.published:
            return self._published_origin(found)
        _data(found)
        return self.origin_of(list(found.files.values()))

    def _published_origin(self, found: FolderTask) -> str:
        """The hub's identity of what prefetch brought."""
        manifest = self.manifest
        entries = {
            name: entry for member in found.published for name, entry in manifest.below(f"mteb/{member}").items()
        }
        missing = missing_files(self.folder, entries)
        if missing:
            raise MissingData(
                f"task {found.task.name} lacks {len(missing)} of the {len(entries)} files that "
                f"{self.folder / MANIFEST} lists (first: {missing[0]}): run ablations/prefetch.py again"
            )
        require_brought(self.folder, entries)
        return hub_origin((entry.repository, entry.revision) for entry in entries.values())


def _prefetched(folder: Path, manifest: Manifest) -> Iterator[FolderTask]:
    for task in MTEB_ENGLISH_V1:
        members = member_names(task)
        if all(manifest.below(f"mteb/{member}") for member in members):
            yield FolderTask(task, published={member: folder / "mteb" / member for member in members})


def _laid_out(folder: Path, manifest: Manifest) -> Iterator[FolderTask]:
    present = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    for path in present:
        if path.name in FOLDERS:
            tasks = sorted(task for task in path.iterdir() if task.is_dir())
            yield from (_own_task(task, FOLDERS[path.name]) for task in tasks)
        elif not manifest.below(f"mteb/{path.name}"):
            raise ValueError(f"{path} is no category of tasks: {did_you_mean(path.name, FOLDERS)}")


def _own_task(folder: Path, category: Category) -> FolderTask:
    files = {table: _file_of(folder, table) for table in COLUMNS[category]}
    return FolderTask(_described(folder.name, category, files), files)


def _file_of(folder: Path, table: str) -> Path:
    """test.parquet, or the one file test_….parquet."""
    exact = folder / f"{table}.parquet"
    others = sorted(folder.glob(f"{table}_*.parquet"))
    return others[0] if len(others) == 1 and not exact.is_file() else exact


def _described(name: str, category: Category, files: Mapping[str, Path]) -> EmbeddingTask:
    official = OFFICIAL_TASKS.get(name)
    if official is not None and official.category == category:
        rows = _rows(files)
        if rows == OFFICIAL_ROWS.get(name) and _gold(category, files["test"]) == OFFICIAL_GOLD[name]:
            return official
    if official is not None:
        name = f"{name}-{_rows(files)[list(files)[-1]]}rows"
    return EmbeddingTask(name, category, FOLDER_SUITE, METRICS[category], "test", instruction=INSTRUCTIONS[category])


def _rows(files: Mapping[str, Path]) -> dict[str, int]:
    """Rows of each file, 0 where it cannot be read: what reads it says why."""
    from pyarrow import ArrowInvalid, parquet

    rows = dict.fromkeys(files, 0)
    for table, path in files.items():
        try:
            rows[table] = parquet.read_metadata(path).num_rows
        except (OSError, ArrowInvalid):
            continue
    return rows


def _gold(category: Category, path: Path) -> float | None:
    """What `OFFICIAL_GOLD` says of a file; None where it has no such column."""
    column = COLUMNS[category]["test"][-1]
    try:
        values = _read(path, (column,))[column]
    except (DamagedFile, ValueError):
        return None
    if category == "classification":
        return len(set(values))
    numbers = [value for value in values if isinstance(value, int | float)]
    return round(sum(numbers) / len(numbers), GOLD_DIGITS) if len(numbers) == len(values) else None


def _data(found: FolderTask) -> TaskTables | PublishedTask:
    if found.published:
        return PublishedTask(found.published)
    where = str(next(iter(found.files.values())).parent)
    for table, path in found.files.items():
        if not path.is_file():
            raise MissingData(f"task {found.task.name} lacks {path}: put its table {table} there")
    category = found.task.category
    tables = {table: _read(path, COLUMNS[category][table]) for table, path in found.files.items()}
    return checked_tables(category, tables, where)


def _read(path: Path, needed: tuple[str, ...]) -> Table:
    from pyarrow import parquet

    require_columns(path, needed)
    table: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    return table
