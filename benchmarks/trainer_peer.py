"""Fine-tuning of one grid point with transformers: a script around `Trainer`, run in a separate process.

python -m benchmarks.trainer_peer JOB.json      prints {"scores", "losses", "steps", "seconds"} as JSON
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from neobert.glue.tasks import Task, task_named
from neobert.recipe import FineTuning, Point, Value
from neobert.runs.run_file import SourceSpecification
from neobert.training.schedule import FineTuningSchedule


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
    """Return a `Trainer` of the exported encoder with a new head, with as many steps and evaluations as a worker's;
    batches have texts of similar length, padded to the longest."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    import neobert.hub  # noqa: F401 - registers the classes
    from neobert.glue.metrics import evaluate

    set_seed(job.seed)
    task, tokenizer = task_named(job.task), AutoTokenizer.from_pretrained(job.model)
    protocol, point = job.protocol, job.point
    train, validation = (examples_of(job, task, split, tokenizer) for split in task.splits)
    course = FineTuningSchedule.of(protocol, len(train), point.batch_size)
    has_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=protocol.epochs,
        per_device_train_batch_size=point.batch_size,
        per_device_eval_batch_size=64,
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
    classifier = AutoModelForSequenceClassification.from_pretrained(
        job.model,
        dtype=torch.float32,
        num_labels=task.labels,
        classifier_pooling=protocol.pooling,
        classifier_dropout=protocol.dropout,
        classifier_init_range=protocol.classifier_scale,
    )

    def metrics(predicted: Any) -> dict[str, float]:
        (split,), (logits, labels) = task.validation_splits, predicted
        score = evaluate(task, {split: np.asarray(logits)}, {split: np.asarray(labels)}).score
        return {"score": float("nan") if score is None else score}

    return Trainer(
        classifier,
        arguments,
        train_dataset=train,
        eval_dataset=validation,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=metrics,
    )


def examples_of(job: TrainerJob, task: Task, split: str, tokenizer: Any) -> list[dict[str, Any]]:
    """Return token ids and label of the examples that a worker trains or evaluates on."""
    from neobert.data.preparation import open_specified
    from neobert.glue.encoding import CAP_KEY, permutation

    examples = open_specified(job.source).task_examples(job.task, split)
    columns = [list(examples[column]) for column in task.columns]
    token_ids = tokenizer(*columns, truncation=True, max_length=job.protocol.max_tokens)["input_ids"]
    rows = [{"input_ids": ids, "labels": int(label)} for ids, label in zip(token_ids, examples["label"], strict=True)]
    if split in task.validation_splits:
        return rows
    return [rows[number] for number in permutation(len(rows), CAP_KEY)[: job.protocol.train_examples]]


if __name__ == "__main__":
    sys.exit(main())
