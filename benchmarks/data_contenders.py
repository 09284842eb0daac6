"""One way from text files to rows of tokens on the disk, timed after all imports.

python -m benchmarks.data_contenders ours|bare|datasets FOLDER OUT [PROCESSES BATCH]
"""

import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.data_texts import print_timed, read_texts
from neobert.data.tokenizers import TOKENIZER_FILE, load_tokenizer

CONTEXT = 512
ROWS_PER_STEP = 128
BARE_BATCH = 2048


def main() -> int:
    """The command; prints one line of JSON."""
    way, folder, out, *form = sys.argv[1:]
    paths = sorted(Path(folder).glob("*.txt"))
    if way == "ours":
        run = ours(paths, Path(folder), Path(out))
    elif way == "bare":
        run = bare(paths, Path(folder))
    else:
        run = with_datasets(paths, Path(folder), Path(out), *map(int, form))
    print_timed(run)
    return 0


def ours(paths: list[Path], folder: Path, out: Path) -> Callable[[], dict[str, Any]]:
    """Shards, then one epoch of packed rows written out as training would read them, masks included."""
    from benchmarks.data_loader import NEOBERT_MASKING, stage
    from neobert.data.batches import StepIterator, collate
    from neobert.data.shards import TOKEN, all_documents, prepare

    def run() -> dict[str, Any]:
        begun = time.perf_counter()
        corpus = prepare(read_texts(paths), load_tokenizer(folder), out / "corpus", origins={})
        tokenised = time.perf_counter() - begun
        steps = StepIterator(all_documents(corpus), stage(CONTEXT, ROWS_PER_STEP), "packed", seed=0)
        documents = slots = tokens = 0
        with (out / "rows.bin").open("wb") as file:
            while documents < corpus.documents:
                rows = next(steps)
                batch = collate(rows, corpus, NEOBERT_MASKING)
                file.write(batch.token_ids.numpy().astype(TOKEN).tobytes())
                documents += len(rows.pieces.documents)
                slots, tokens = slots + rows.count * CONTEXT, tokens + rows.real_tokens
        return {"rows": slots // CONTEXT, "fill": round(tokens / slots, 4), "tokenised": tokenised}

    return run


def bare(paths: list[Path], folder: Path) -> Callable[[], dict[str, Any]]:
    """encode_batch_fast over texts in memory and nothing else: the limit."""
    texts = list(read_texts(paths))
    tokenizer = load_tokenizer(folder).tokenizer

    def run() -> dict[str, Any]:
        for first in range(0, len(texts), BARE_BATCH):
            tokenizer.encode_batch_fast(texts[first : first + BARE_BATCH], add_special_tokens=False)
        return {}

    return run


def with_datasets(
    paths: list[Path], folder: Path, out: Path, processes: int, batch: int
) -> Callable[[], dict[str, Any]]:
    """load_dataset, map of a fast tokenizer, map of a grouping as transformers' run_mlm has it."""
    from datasets import __version__, disable_progress_bars, load_dataset
    from transformers import PreTrainedTokenizerFast

    disable_progress_bars()
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_with_specials(folder), model_max_length=10**9, **names)
    workers = processes if processes > 1 else None

    def tokenized(examples: dict[str, list[str]]) -> Any:
        return dict(tokenizer(examples["text"], return_special_tokens_mask=True))

    def run() -> dict[str, Any]:
        files = [str(path) for path in paths]
        texts = load_dataset("text", data_files=files, cache_dir=str(out), split="train")
        encoded = texts.map(tokenized, batched=True, batch_size=batch, num_proc=workers, remove_columns=["text"])
        rows = encoded.map(grouped, batched=True, batch_size=batch, num_proc=workers)
        return {"rows": len(rows), "version": __version__}

    return run


def _with_specials(folder: Path) -> Any:
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    specials = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=specials)
    return tokenizer


def grouped(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """All documents of a batch one after the other, cut into rows; what is left over at the end is dropped."""
    joined = {name: list(chain.from_iterable(lists)) for name, lists in examples.items()}
    end = len(joined["input_ids"]) // CONTEXT * CONTEXT
    return {name: [ids[i : i + CONTEXT] for i in range(0, end, CONTEXT)] for name, ids in joined.items()}


if __name__ == "__main__":
    sys.exit(main())
