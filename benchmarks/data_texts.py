"""Text files that the benchmarks of data read, one document a line, and children that measure themselves."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.measuring import Timing, timed
from neobert.data.sources import CORPORA, DirectorySource
from neobert.data.synthetic import corpus_documents
from neobert.data.tokenizers import TextTokenizer, train_wordpiece

FILES = 4
TOKENIZER_TEXTS, VOCABULARY = 2000, 8192
ENDLESS = 10**9


def documents(data: str | None) -> Iterator[str]:
    """Documents of both corpora in turns, without line ends: of a data folder, or synthetic ones without end."""
    sources = [
        corpus_documents(corpus, documents=ENDLESS) if data is None else DirectorySource(Path(data)).documents(corpus)
        for corpus in CORPORA
    ]
    for texts in zip(*sources, strict=False):
        yield from (" ".join(text.split()) for text in texts)


def write_texts(data: str | None, folder: Path, megabytes: float) -> dict[str, Any]:
    """Write the first documents to `FILES` files; what they are, for a result file."""
    paths = [folder / f"texts-{number}.txt" for number in range(FILES)]
    written = count = 0
    files = [path.open("w", encoding="utf-8") for path in paths]
    for text in documents(data):
        written += files[count % FILES].write(text + "\n")
        count += 1
        if written >= megabytes * 1e6:
            break
    for file in files:
        file.close()
    size = sum(path.stat().st_size for path in paths)
    return {"texts": "synthetic" if data is None else "real", "documents": count, "megabytes": round(size / 1e6, 2)}


def read_texts(paths: Iterable[Path]) -> Iterator[str]:
    """The documents of text files."""
    for path in paths:
        with path.open(encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file)


def write_tokenizer(data: str | None, folder: Path) -> None:
    """tokenizer.json of BERT's kind: that of the data folder, or one trained on synthetic text."""
    if data is None:
        tokenizer: TextTokenizer = train_wordpiece(list(islice(documents(None), TOKENIZER_TEXTS)), VOCABULARY)
    else:
        tokenizer = DirectorySource(Path(data)).tokenizer("wordpiece", 2**16, folder)
    tokenizer.save(folder)


def child(module: str, *arguments: str) -> Any:
    """What `python -m module` prints last, as JSON; every library may use all cores."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def print_timed(run: Callable[[], dict[str, Any]]) -> None:
    """The child's side: run, and print seconds (without imports) beside what the run says."""
    said: dict[str, Any] = {}
    timing = timed(lambda: said.update(run()))
    print(json.dumps({"wall": timing.wall, "processor": timing.processor, **said}))


def timing_of(answer: dict[str, Any]) -> Timing:
    """The seconds that a child printed."""
    return Timing(answer["wall"], answer["processor"])
