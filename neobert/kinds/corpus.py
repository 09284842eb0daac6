"""Tokenised corpora, which stages of pre-training read. A corpus is prepared for a run and has no run.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from neobert.data.manifest import MANIFEST, PARTIAL
from neobert.files import children, read_json
from neobert.identity import chosen, identity
from neobert.runs.layout import Layout
from neobert.runs.work import Part, Work


class Corpus(Work):
    """Tokenised corpus that the pre-training run `run` reads; `origin` and `tokenizer` identify the bytes of both."""

    kind: Literal["corpus"] = "corpus"
    corpus: str
    origin: str
    tokenizer: str
    run: str

    job = "prepare"
    counted = "shards"
    folder_pattern = "data/{id}"
    closing_file = MANIFEST

    def id_under(self, numerics: Mapping[str, int]) -> str:
        """Return the id of the tokens, the same for every run that reads them.

        It includes the corpus name, since both corpora of a source may have the same origin.
        """
        content = {"corpus": self.corpus, "origin": self.origin, "tokenizer": self.tokenizer}
        return identity({**content, "numerics": chosen(numerics, ("tokenization",))})

    @property
    def reference(self) -> str:
        return f"corpus/{self.id}/{self.run}"

    @property
    def title(self) -> str:
        return f"corpus {self.corpus}"

    @staticmethod
    def read_closing(path: Path) -> Any:
        return read_json(path)

    def closing(self, layout: Layout) -> Part:
        return Part(
            work=self,
            id=f"corpus-{self.id}",
            title=f"{self.title} {self.id}",
            record=layout.data(self.id) / MANIFEST,
            read=self.read_closing,
            error=layout.root / "data" / "errors" / f"{self.id}.json",
        )

    def done(self, layout: Layout, pending: Sequence[Part]) -> int:
        """Return the number of shards of an unfinished corpus."""
        return len(children(layout.root / f"{self.folder}{PARTIAL}", "shard-*.json"))
