"""How large the GLUE tasks are, for plans: nothing is read. Torch-free."""

from dataclasses import dataclass

from neobert.glue.tasks import task_named
from neobert.recipe import FineTuning
from neobert.training.schedule import FineTuningSchedule

CHARACTERS_PER_TOKEN = 4.5
"""English text in BERT's WordPieces: 2.8 TB of RefinedWeb are 600 G tokens (paper, Table 1 and §3.2), 4.7 each."""

SPECIALS = {1: 2, 2: 3}
"""Special tokens around one text and around a pair."""


@dataclass(frozen=True)
class TaskSize:
    """Examples of the train split and of all validation splits together, and the mean length of one in characters."""

    train: int
    validation: int
    characters: float

    def tokens(self, task: str, most: int) -> float:
        """Mean tokens of an example, at most `most`."""
        specials = SPECIALS[len(task_named(task).text_columns)]
        return min(float(most), self.characters / CHARACTERS_PER_TOKEN + specials)

    def capped(self, protocol: FineTuning) -> "TaskSize":
        """What a protocol trains on."""
        most = protocol.train_examples
        return self if most is None else TaskSize(min(most, self.train), self.validation, self.characters)


PUBLISHED = {  # dataset card of nyu-mll/glue: num_examples; (num_bytes / num_examples) less label, number and offsets
    "mnli": TaskSize(392_702, 19_647, 170.0),
    "qnli": TaskSize(104_743, 5_463, 224.5),
    "qqp": TaskSize(363_846, 40_430, 119.9),
    "rte": TaskSize(2_490, 277, 320.3),
    "sst2": TaskSize(67_349, 872, 53.5),
    "mrpc": TaskSize(3_668, 408, 237.3),
    "cola": TaskSize(8_551, 1_043, 40.7),
    "stsb": TaskSize(5_749, 1_500, 115.3),
}


@dataclass(frozen=True)
class TrialWork:
    """What one fine-tuning trial does if patience does not end it: updates, tokens trained on, and tokens evaluated."""

    updates: int
    trained_tokens: float
    evaluated_tokens: float

    @classmethod
    def of(cls, task: str, size: TaskSize, protocol: FineTuning, batch_size: int) -> "TrialWork":
        """The work of a trial by the protocol."""
        course = FineTuningSchedule.of(protocol, size.train, batch_size)
        evaluations = -(-course.steps // course.evaluation_interval)
        tokens = size.tokens(task, protocol.max_tokens)
        trained = tokens * size.train * protocol.epochs
        return cls(course.steps, trained, tokens * size.validation * evaluations)
