"""Fine-tuning of one grid point with transformers: a script around `Trainer`, run in a separate process.

python -m benchmarks.trainer_peer JOB.json      prints {"scores", "losses", "steps", "seconds"} as JSON
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neobert.glue.tasks import Task, task_named
from neobert.recipe import FineTuning, Point, Value
from neobert.runs.run_file import SourceSpecification
from neobert.training.schedule import FineTuningSchedule

EVALUATION_BATCH_SIZE = 64

Rows = list[dict[str, Any]]


class TrainerJob(Value):
    """A training job: the exported `model`, and the same protocol and point as for a worker."""

    model: str
    task: str
    source: SourceSpecification
    protocol: FineTuning
    point: Point
    seed: int


def main() -> int:
    """Run the command; return its exit code."""
    started = time.perf_counter()
    job = TrainerJob.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(job, folder)
        ready = time.perf_counter()
        trainer.train()
    ended = time.perf_counter()
    history = trainer.state.log_history
    outcome = {
        "scores": [entry["eval_score"] for entry in history if "eval_score" in entry],
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "steps": trainer.state.global_step,
        "seconds": {"before training": round(ready - started, 2), "training": round(ended - ready, 2)},
    }
    print(json.dumps(outcome))
    return 0


def trainer_of(job: TrainerJob, folder: str) -> Any:
    """Return a `Trainer` of the exported encoder with a new head, as in the protocol."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        set_seed,
    )

    import neobert.hub  # noqa: F401 - registers the classes
    from neobert.glue.metrics import evaluate

    set_seed(job.seed)
    task, tokenizer = task_named(job.task), AutoTokenizer.from_pretrained(job.model)
    train, validation = task_rows(job, task, tokenizer)
    classifier = AutoModelForSequenceClassification.from_pretrained(
        job.model,
        dtype=torch.float32,
        num_labels=task.labels,
        classifier_pooling=job.protocol.pooling,
        classifier_dropout=job.protocol.dropout,
        classifier_init_range=job.protocol.classifier_scale,
    )

    def metrics(predicted: Any) -> dict[str, float]:
        (split,), (logits, labels) = task.validation_splits, predicted
        score = evaluate(task, {split: np.asarray(logits)}, {split: np.asarray(labels)}).score
        return {"score": float("nan") if score is None else score}

    return Trainer(
        classifier,
        arguments(job, folder, len(train), has_gpu=torch.cuda.is_available()),
        train_dataset=train,
        eval_dataset=validation,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=metrics,
    )


def task_rows(job: TrainerJob, task: Task, tokenizer: Any) -> tuple[Rows, Rows]:
    """Return the examples that a worker trains and evaluates on, tokenised with the exported tokenizer."""
    from neobert.data.preparation import open_specified
    from neobert.glue.encoding import CAP_KEY, permutation

    source = open_specified(job.source)
    train, validation = (
        rows(task, source.task_examples(job.task, split), tokenizer, job.protocol.max_tokens) for split in task.splits
    )
    return [train[number] for number in permutation(len(train), CAP_KEY)[: job.protocol.train_examples]], validation


def rows(task: Task, examples: Mapping[str, Sequence[Any]], tokenizer: Any, max_tokens: int) -> Rows:
    """Return the token ids and label of each example."""
    columns = [list(examples[column]) for column in task.columns]
    token_ids = tokenizer(*columns, truncation=True, max_length=max_tokens)["input_ids"]
    return [{"input_ids": ids, "labels": int(label)} for ids, label in zip(token_ids, examples["label"], strict=True)]


def arguments(job: TrainerJob, folder: str, examples: int, *, has_gpu: bool) -> Any:
    """Return arguments with as many steps and evaluations as a worker's; batches have texts of similar length, padded
    to the longest."""
    from transformers import TrainingArguments

    protocol, point = job.protocol, job.point
    course = FineTuningSchedule.of(protocol, examples, point.batch_size)
    return TrainingArguments(
        output_dir=folder,
        num_train_epochs=protocol.epochs,
        per_device_train_batch_size=point.batch_size,
        per_device_eval_batch_size=EVALUATION_BATCH_SIZE,
        learning_rate=point.learning_rate,
        weight_decay=point.weight_decay,
        adam_beta1=protocol.beta1,
        adam_beta2=protocol.beta2,
        adam_epsilon=protocol.epsilon,
        max_grad_norm=0.0,
        lr_scheduler_type="linear",
        warmup_steps=course.warmup_steps,
        train_sampling_strategy="group_by_length",
        bf16=protocol.precision == "bf16",
        optim="adamw_torch_fused",
        eval_strategy="steps",
        eval_steps=course.evaluation_interval,
        logging_steps=course.evaluation_interval,
        save_strategy="no",
        seed=job.seed,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not has_gpu,
        dataloader_pin_memory=has_gpu,
    )


if __name__ == "__main__":
    sys.exit(main())
