"""Exports of contrastive runs, checked to produce the same vectors as the run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neobert.data.mteb_tasks import (
    BENCHMARKS,
    CATEGORY_FACTS,
    OFFICIAL_TASKS,
    Category,
    EmbeddingTask,
    Wording,
    member_names,
    task_prompts,
)
from neobert.data.tokenizers import TextTokenizer, frame_texts
from neobert.embeddings.encoders import PaddedEncoder, TextEncoder
from neobert.embeddings.sentence_modules import PROMPT_TYPES
from neobert.executors.encoders import load_encoder
from neobert.executors.external import read_model_file
from neobert.executors.preparation import open_specified
from neobert.export.checkpoint import TEXTS, chosen_step, require_close, require_equal_weights
from neobert.export.huggingface import (
    TOLERANCE,
    configuration_of,
    load_sentence_encoder,
    save_modules,
    transformers_tokenizer,
)
from neobert.hub import NeoBERTModel
from neobert.hub.external import ExternalTokenizer, load_external
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.pretraining import PretrainingRun
from neobert.own_code import sources_in
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile, read_run_file

CPU = torch.device("cpu")
PROBES = (*TEXTS, "A text that is longer than any context. " * 60)


@dataclass(frozen=True, eq=False)
class ContrastiveCheckpoint:
    """A step of a run: the run's own text encoder, and its encoder and tokenizer as transformers classes.

    `record` is that of the finished run, None for earlier steps. `tasks` get prompts in this `wording`.
    """

    folder: Path
    run_file: RunFile
    step: int
    record: dict[str, Any] | None
    embedder: TextEncoder
    encoder: Any
    tokenizer: Any
    tasks: Sequence[EmbeddingTask]
    wording: Wording

    @property
    def run(self) -> ContrastiveRun:
        """The specification of the run."""
        return self.run_file.specification(ContrastiveRun)

    def expected(self, instruction: str | None = None) -> Tensor:
        """Return the run's vectors of the probes."""
        return torch.from_numpy(self.embedder.encode(PROBES, instruction=instruction))

    @cached_property
    def instructions(self) -> dict[str, str]:
        """The instruction by name of a data set of pairs or of an embedding task; "" stands for none.

        mteb looks prompts up by the name of a task, or by its type if it does not know the task, with the suffix
        "-query" or "-document" if the task has both.
        """
        if self.run.instructed == "nothing":
            return {}
        instructions = {pairs.name: pairs.instruction for pairs in self.run.sets if pairs.instruction}
        by_kind: dict[str, set[str]] = defaultdict(set)
        for task in self.tasks:
            prompts = task_prompts(task, self.run.instructed, self.wording)
            for name in member_names(task):
                instructions |= _by_role(name, task.category, prompts)
            if task.suite not in BENCHMARKS:
                for name, instruction in _by_role(
                    CATEGORY_FACTS[task.category].task_type, task.category, prompts
                ).items():
                    by_kind[name].add(instruction)
        return instructions | {name: found.pop() for name, found in by_kind.items() if len(found) == 1}

    @cached_property
    def prompts(self) -> dict[str, str]:
        """Prefixes of texts that give the tokens of an instruction in training, by names of `instructions`.
        Instructions that no prefix reproduces are left out."""
        prompts = {instruction: self._prompt(instruction) for instruction in set(self.instructions.values())}
        found = {name: prompts[instruction] for name, instruction in self.instructions.items()}
        return {name: prompt for name, prompt in found.items() if prompt is not None}

    def _prompt(self, instruction: str) -> str | None:
        if not instruction:
            return ""
        separator, opening = self.tokenizer.sep_token or "", self.tokenizer.cls_token or ""
        framed, _ = frame_texts(PROBES, self.embedder.tokenizer, instruction, self.run.max_tokens)
        for end in (separator, separator + opening, separator + separator):
            read = [self.tokenizer(f"{instruction}{end}{text}", truncation=True) for text in PROBES]
            if all(_reads_as(tokens, *text) for tokens, text in zip(read, framed, strict=True)):
                return f"{instruction}{end}"
        return None


def _by_role(name: str, category: Category, prompts: Mapping[str, str]) -> dict[str, str]:
    if not prompts or category not in PROMPT_TYPES:
        return {name: prompts["query"]} if prompts else {}
    return {f"{name}-{role}": prompts.get(role, "") for role in PROMPT_TYPES[category] if role}


def _reads_as(tokens: Any, token_ids: Any, token_types: Any) -> bool:
    types = tokens.get("token_type_ids", np.zeros(len(tokens["input_ids"])))
    return np.array_equal(tokens["input_ids"], token_ids) and np.array_equal(types, token_types)


def open_contrastive_checkpoint(folder: Path, step: int | None, wording: Wording = "paper") -> ContrastiveCheckpoint:
    """Open the checkpoint of `step`, or the last one of a finished run, with the tasks of mteb and of its source.

    Raises:
        ValueError: the run started from a model with own parts, or from an external one with code of its own.
        MissingData: there is no such step, the run is unfinished and no step is given, or its source is gone.
        DamagedFile: a file does not match its checksum.
    """
    run_file = read_run_file(folder)
    run = run_file.specification(ContrastiveRun)
    chosen, record = chosen_step(folder, run.protocol.steps, step)
    layout = Layout(folder.parent.parent)
    if run.is_external and (model := read_model_file(layout, run.weights)).trust.code:
        raise ValueError(
            f"{model.name} runs code of its own, which exports do not hold: use the run with load_encoder of "
            "neobert.executors.encoders"
        )
    if not run.is_external and (parts := sources_in(_pretraining(layout, run).recipe.model)):
        raise ValueError(
            f"the encoder of {run_file.id} has the own parts {', '.join(parts)}, whose code exports of contrastive "
            "runs do not hold: use the run with load_encoder of neobert.executors.encoders"
        )
    embedder = load_encoder(layout, run_file.id, CPU, "fp32", step=chosen)
    encoder, tokenizer = _convert(layout, run, embedder)
    own = {task.name: task for task in open_specified(run_file.source).embedding_tasks()}
    tasks = tuple({**OFFICIAL_TASKS, **own}.values())
    return ContrastiveCheckpoint(folder, run_file, chosen, record, embedder, encoder, tokenizer, tasks, wording)


def _pretraining(layout: Layout, run: ContrastiveRun) -> PretrainingRun:
    """Return the pre-training run that a run started from."""
    return read_run_file(layout.pretraining(run.weights)).specification(PretrainingRun)


def _convert(layout: Layout, run: ContrastiveRun, embedder: TextEncoder) -> tuple[Any, Any]:
    """Return encoder and tokenizer; the tokenizer cuts texts as the run does."""
    trained, tokenizer = embedder.model.model, embedder.tokenizer
    if isinstance(tokenizer, ExternalTokenizer):
        tokenizer.tokenizer.model_max_length = run.max_tokens
        return trained.encoder, tokenizer.tokenizer
    assert isinstance(tokenizer, TextTokenizer)
    encoder = NeoBERTModel(configuration_of(_pretraining(layout, run), tokenizer)).eval()
    encoder.load_state_dict(trained.state_dict())
    return encoder, transformers_tokenizer(tokenizer, run.max_tokens)


def write_contrastive(checkpoint: ContrastiveCheckpoint, target: str, folder: Path) -> dict[str, float]:
    """Write a folder for `target` and reload it; return the measured deviations.

    Raises:
        ValueError: a package is not installed.
        ParityOff: the reloaded folder does not produce the run's vectors.
    """
    writers = {"hf": _write_transformers, "sentence-transformers": _write_sentence_transformers}
    return writers[target](checkpoint, folder)


def _write_transformers(checkpoint: ContrastiveCheckpoint, folder: Path) -> dict[str, float]:
    checkpoint.encoder.save_pretrained(folder)
    checkpoint.tokenizer.save_pretrained(folder)
    encoder, tokenizer = load_external(folder, str(folder))
    require_equal_weights(encoder.encoder.state_dict(), checkpoint.encoder.state_dict())
    reloaded = TextEncoder(
        PaddedEncoder(encoder, tokenizer.most_tokens), tokenizer, tokenizer.most_tokens, precision="fp32", device=CPU
    )
    found = torch.from_numpy(reloaded.encode(PROBES))
    return {"vectors": require_close("vectors", found, checkpoint.expected(), TOLERANCE)}


def _write_sentence_transformers(checkpoint: ContrastiveCheckpoint, folder: Path) -> dict[str, float]:
    save_modules(checkpoint.encoder, checkpoint.tokenizer, folder, checkpoint.prompts)
    encode = load_sentence_encoder(folder)
    parity = {"vectors": require_close("vectors", encode(PROBES), checkpoint.expected(), TOLERANCE)}
    one_name = {checkpoint.instructions[name]: name for name in checkpoint.prompts}
    deviations = [
        require_close(
            f"vectors behind the prompt {name}",
            encode(PROBES, name),
            checkpoint.expected(instruction or None),
            TOLERANCE,
        )
        for instruction, name in one_name.items()
    ]
    return parity | ({"vectors behind prompts": max(deviations)} if deviations else {})
