"""A checkpoint of a run: opened, written for another library, and compared with what is read back."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neobert.data.mteb_tasks import BENCHMARKS, CATEGORY_FACTS, Category, EmbeddingTask, member_names, task_prompts
from neobert.data.tokenizers import Array, TextTokenizer, frame_texts
from neobert.embeddings.encoders import TextEncoder
from neobert.errors import MissingData, ParityOff
from neobert.executors.encoders import base_model, load_encoder
from neobert.executors.external import read_model_file
from neobert.export.huggingface import (
    configuration_of,
    save_modules,
    sentence_vectors,
    transformers_tokenizer,
    transformers_vectors,
)
from neobert.files import is_there
from neobert.hub import NeoBERTForMaskedLM, NeoBERTModel
from neobert.hub.external import ExternalTokenizer
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.heads import encoder_part
from neobert.own_code import sources_in
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.run_file import RunFile, read_run_file
from neobert.training import checkpoints

CPU = torch.device("cpu")
TOLERANCE = 1e-5
PROBES = (
    "A short text.",
    "Another, which is rather longer than the first one and has a comma.",
    "x",
    "",
    "A text that is longer than any context. " * 60,
)
WITH_DOCUMENTS: tuple[Category, ...] = ("retrieval", "reranking")
"""Categories whose tasks have queries and documents, to which mteb gives prompts of their own."""


@dataclass(frozen=True, eq=False)
class ExportSource:
    """A step of a pre-training or contrastive run.

    record: that of the finished run, None for earlier steps. embedder: the run's own encoder of texts. weights: the
    run's weights by their names in `model`. model, tokenizer: those of transformers.
    """

    run_file: RunFile
    step: int
    record: dict[str, Any] | None
    embedder: TextEncoder
    weights: dict[str, Tensor]
    model: Any
    tokenizer: Any

    @property
    def run(self) -> PretrainingRun | ContrastiveRun:
        """The specification of the run."""
        assert isinstance(self.run_file.run, PretrainingRun | ContrastiveRun)
        return self.run_file.run


def open_checkpoint(folder: Path, step: int | None) -> ExportSource:
    """Open the checkpoint of `step`, or the last one of a finished run.

    Raises:
        ValueError: the folder is that of another kind of run, or of a contrastive run whose encoder has code of its
            own, which exports do not contain.
        MissingData: there is no such run or step, or the run is unfinished and no step is given.
        DamagedFile: a file does not match its checksum.
    """
    folder = folder.resolve()
    run_file, layout = read_run_file(folder), Layout(folder.parent.parent)
    run = run_file.run
    if not isinstance(run, PretrainingRun | ContrastiveRun):
        raise ValueError(f"{folder} is of the kind {run.kind}: give that of a pre-training or contrastive run")
    is_done = is_there(folder / "done.json")
    if step is None and not is_done:
        known = ", ".join(map(str, checkpoints.steps_on_disk(folder / "checkpoints"))) or "none"
        raise MissingData(f"{folder} is not finished: name a checkpoint with --step (there: {known})")
    chosen = run.total if step is None else step
    record = read_record(folder / "done.json") if is_done and chosen == run.total else None
    read = _pretrained if isinstance(run, PretrainingRun) else _contrastive
    return ExportSource(run_file, chosen, record, *read(layout, run_file, chosen))


def _pretrained(layout: Layout, run_file: RunFile, step: int) -> tuple[TextEncoder, dict[str, Tensor], Any, Any]:
    run = run_file.specification(PretrainingRun)
    weights = checkpoints.load(layout.pretraining(run.id) / "checkpoints", step).weights()
    encoder, framing = base_model(layout, run.id, run_file.source, run.context)
    encoder.load_state_dict(encoder_part(weights))
    embedder = TextEncoder(encoder, framing, run.context, precision="fp32", device=CPU)
    assert isinstance(framing, TextTokenizer)
    model = NeoBERTForMaskedLM(configuration_of(run, framing))
    model.load_state_dict(weights)
    return embedder, weights, model.eval(), transformers_tokenizer(framing, run.context)


def _contrastive(layout: Layout, run_file: RunFile, step: int) -> tuple[TextEncoder, dict[str, Tensor], Any, Any]:
    run = run_file.specification(ContrastiveRun)
    start = None if run.is_external else read_run_file(layout.pretraining(run.weights)).specification(PretrainingRun)
    if start is None and (described := read_model_file(layout, run.weights)).trusts_code:
        raise ValueError(
            f"{described.name} runs code of its own, which exports do not contain: use the run with load_encoder of "
            "neobert.embeddings.encoders"
        )
    if start is not None and (parts := sources_in(start.recipe.model)):
        raise ValueError(
            f"the encoder of {run.id} has the own parts {', '.join(parts)}, whose code exports of contrastive runs do "
            "not contain: use the run with load_encoder of neobert.embeddings.encoders"
        )
    embedder = load_encoder(layout, run.id, CPU, "fp32", step=step)
    trained, tokenizer = embedder.model.model, embedder.tokenizer
    if isinstance(tokenizer, ExternalTokenizer):
        tokenizer.tokenizer.model_max_length = run.max_tokens
        return embedder, trained.encoder.state_dict(), trained.encoder, tokenizer.tokenizer
    assert isinstance(tokenizer, TextTokenizer) and start is not None
    model = NeoBERTModel(configuration_of(start, tokenizer)).eval()
    model.load_state_dict(trained.state_dict())
    return embedder, trained.state_dict(), model, transformers_tokenizer(tokenizer, run.max_tokens)


# Instructions as prompts of sentence-transformers, which are prefixes of texts


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


# Writing and comparing


def write(checkpoint: ExportSource, target: str, folder: Path, prompts: Mapping[str, str]) -> None:
    """Write the folder for a target; `prompts` are those of sentence-transformers. Raises ValueError if a package is
    not installed."""
    if target == "hf":
        checkpoint.model.save_pretrained(folder)
        checkpoint.tokenizer.save_pretrained(folder)
    else:
        save_modules(checkpoint.model.base_model, checkpoint.tokenizer, folder, prompts)


def measure(checkpoint: ExportSource, target: str, folder: Path, instructions: Mapping[str, str]) -> dict[str, float]:
    """Read a written folder, and compare its vectors of texts with the run's; return the largest deviations.

    instructions: what the run was told in training, by the name of the prompt that does the same.

    Raises:
        ParityOff: weights differ, or vectors differ by more than 1e-5.
    """
    if target == "hf":
        found = type(checkpoint.model).from_pretrained(folder).state_dict()
        if others := found.keys() ^ checkpoint.weights.keys():
            raise ParityOff(f"the exported weights lack or add {', '.join(sorted(others))}")
        if wrong := [name for name, tensor in checkpoint.weights.items() if not torch.equal(found[name], tensor)]:
            raise ParityOff(f"the exported tensor {wrong[0]} is not the run's")
    encode = (transformers_vectors if target == "hf" else sentence_vectors)(folder)
    parity = {"vectors": _deviation("vectors", encode(PROBES, None), checkpoint.embedder.encode(PROBES))}
    if target == "sentence-transformers":
        names = {instruction: name for name, instruction in instructions.items()}
        behind = [
            _deviation(
                f"vectors behind the prompt {name}",
                encode(PROBES, name),
                checkpoint.embedder.encode(PROBES, instruction=instruction or None),
            )
            for instruction, name in names.items()
        ]
        parity |= {"vectors behind prompts": max(behind)} if behind else {}
    return parity


def _deviation(what: str, found: Array, expected: Array) -> float:
    """Return the largest difference, relative to the largest expected value if that exceeds 1."""
    deviation = float(np.abs(found - expected).max()) / max(1.0, float(np.abs(expected).max()))
    if not deviation <= TOLERANCE:
        raise ParityOff(f"the exported {what} differs from the run by {deviation:.1e}, more than {TOLERANCE:.0e}")
    return deviation
