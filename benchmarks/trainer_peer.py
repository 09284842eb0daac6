"""Fine-tuning of grid points with transformers: what a script around `Trainer` does."""

from collections.abc import Sequence
from typing import Any

import torch

from neobert.executors.preparation import open_specified
from neobert.glue.encoding import CAP_KEY, permutation
from neobert.glue.tasks import task_named
from neobert.kinds.glue import GlueStudy
from neobert.recipe import Point
from neobert.runs.run_file import SourceSpecification
from neobert.training.schedule import FineTuningSchedule


def train_points(model: str, source: SourceSpecification, grid: Sequence[tuple[GlueStudy, Point]]) -> None:
    """Train an exported model at every point."""
    for study, point in grid:
        train_point(model, source, study, point)


def train_point(model: str, source: SourceSpecification, study: GlueStudy, point: Point) -> None:
    """Train the exported encoder with a new head, with as many steps and evaluations as a worker; batches have texts of
    similar length, padded to the longest."""
    import transformers

    import neobert.hub  # noqa: F401 - registers the classes

    transformers.set_seed(study.seed)
    task, protocol = task_named(study.task), study.protocol
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    train, validation = (examples_of(study, source, split, tokenizer) for split in task.splits)
    course = FineTuningSchedule.of(protocol, len(train), point.batch_size)
    arguments = transformers.TrainingArguments(
        output_dir=f"{model}_trainer",
        num_train_epochs=protocol.epochs,
        per_device_train_batch_size=point.batch_size,
        per_device_eval_batch_size=64,
        learning_rate=point.learning_rate,
        weight_decay=point.weight_decay,
        adam_beta1=protocol.beta1,
        adam_beta2=protocol.beta2,
        adam_epsilon=protocol.epsilon,
        max_grad_norm=0.0,
        warmup_steps=course.warmup_steps,
        train_sampling_strategy="group_by_length",
        bf16=protocol.precision == "bf16",
        optim="adamw_torch_fused",
        eval_strategy="steps",
        eval_steps=course.evaluation_interval,
        logging_steps=course.evaluation_interval,
        save_strategy="no",
        seed=study.seed,
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(
        model,
        dtype=torch.float32,
        num_labels=task.labels,
        classifier_pooling=protocol.pooling,
        classifier_dropout=protocol.dropout,
        classifier_init_range=protocol.classifier_scale,
    )
    transformers.Trainer(
        classifier, arguments, train_dataset=train, eval_dataset=validation, processing_class=tokenizer
    ).train()


def examples_of(study: GlueStudy, source: SourceSpecification, split: str, tokenizer: Any) -> list[dict[str, Any]]:
    """Return token ids and label of the examples that a worker trains or evaluates on."""
    task, examples = task_named(study.task), open_specified(source).task_examples(study.task, split)
    columns = [list(examples[column]) for column in task.columns]
    token_ids = tokenizer(*columns, truncation=True, max_length=study.protocol.max_tokens)["input_ids"]
    rows = [{"input_ids": ids, "labels": int(label)} for ids, label in zip(token_ids, examples["label"], strict=True)]
    if split in task.validation_splits:
        return rows
    return [rows[number] for number in permutation(len(rows), CAP_KEY)[: study.protocol.train_examples]]
