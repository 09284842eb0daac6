"""Instructions of a contrastive run as prompts of sentence-transformers, which are prefixes of texts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neobert.data.mteb_tasks import BENCHMARKS, CATEGORY_FACTS, Category, EmbeddingTask, member_names, task_prompts
from neobert.data.tokenizers import frame_texts
from neobert.export.checkpoint import PROBES, ExportSource
from neobert.kinds.contrastive import ContrastiveRun

WITH_DOCUMENTS: tuple[Category, ...] = ("retrieval", "reranking")
"""Categories whose tasks have queries and documents, to which mteb gives prompts of their own."""


def instructions_of(run: ContrastiveRun, tasks: Sequence[EmbeddingTask]) -> dict[str, str]:
    """Return the instruction by name of a data set of pairs or of an embedding task; "" stands for none.

    mteb looks prompts up by the name of a task, or by its type if it does not know the task, with the suffix "-query"
    or "-document" if the task has both.
    """
    if run.instructed == "nothing":
        return {}
    instructions = {pairs.name: pairs.instruction for pairs in run.sets if pairs.instruction}
    by_type: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        prompts = task_prompts(task, run.instructed)
        for name in member_names(task):
            instructions |= _by_role(name, task.category, prompts)
        if task.suite not in BENCHMARKS:
            task_type = CATEGORY_FACTS[task.category].task_type
            for name, instruction in _by_role(task_type, task.category, prompts).items():
                by_type[name].add(instruction)
    return instructions | {name: found.pop() for name, found in by_type.items() if len(found) == 1}


def _by_role(name: str, category: Category, prompts: Mapping[str, str]) -> dict[str, str]:
    if not prompts or category not in WITH_DOCUMENTS:
        return {name: prompts["query"]} if prompts else {}
    return {f"{name}-{role}": prompts.get(role, "") for role in ("query", "document")}


def prompts_of(checkpoint: ExportSource, instructions: Mapping[str, str]) -> dict[str, str]:
    """Return the prompts that give the tokens of an instruction in training, by names of `instructions`. Instructions
    that no prompt reproduces are left out."""
    prompts = {instruction: _prompt(checkpoint, instruction) for instruction in set(instructions.values())}
    found = {name: prompts[instruction] for name, instruction in instructions.items()}
    return {name: prompt for name, prompt in found.items() if prompt is not None}


def _prompt(checkpoint: ExportSource, instruction: str) -> str | None:
    if not instruction:
        return ""
    tokenizer, embedder = checkpoint.tokenizer, checkpoint.embedder
    separator, opening = tokenizer.sep_token or "", tokenizer.cls_token or ""
    framed, _ = frame_texts(PROBES, embedder.tokenizer, instruction, embedder.context)
    for end in (separator, separator + opening, separator + separator):
        read = [tokenizer(f"{instruction}{end}{text}", truncation=True) for text in PROBES]
        if all(_reads_as(tokens, *text) for tokens, text in zip(read, framed, strict=True)):
            return f"{instruction}{end}"
    return None


def _reads_as(tokens: Any, token_ids: Any, token_types: Any) -> bool:
    types = tokens.get("token_type_ids", np.zeros(len(tokens["input_ids"])))
    return np.array_equal(tokens["input_ids"], token_ids) and np.array_equal(types, token_types)
