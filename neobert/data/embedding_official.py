"""By which numbers a file is known to hold the examples of a task of MTEB(eng, v1). Torch-free, mteb-free.

Facts of mteb 2.26.24's descriptive statistics, for the tasks whose data are plain tables; a test compares them.
"""

from collections.abc import Mapping

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
