"""A small stand-in of the hub's file API on this machine: repository info, lists of files, files with ETag and commit.

It serves what a test puts into it, can gate a repository, send wrong bytes, or stall in the middle of a file. At the
end is what the tests of prefetch ask of a folder.
"""

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import huggingface_hub.constants as hub_constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ablations import prefetch
from neobert.data.tokenizers import train_bpe, train_wordpiece
from neobert.files import sha256_of

WEB = "datasets/tiiuae/falcon-refinedweb"
LLAMA = "models/meta-llama/Llama-2-7b-hf"
OWN = ("manifest.json", "verified.json")
FILES = 24
"""Files of the stand-in that the ladder reads."""
GLUE_ROWS = {"sentence": ["good film", "bad film"], "label": [1, 0], "idx": [0, 1]}


def parquet_bytes(columns: dict[str, list[Any]]) -> bytes:
    """A parquet file."""
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


@dataclass
class StandInRepository:
    """Files at one commit; parquet has a SHA-256, other files a git blob's checksum."""

    files: dict[str, bytes]
    commit: str
    branch: str = "main"
    newest: str | None = None
    gated: bool = False
    wrong: dict[str, bytes] = field(default_factory=dict)

    def info(self, revision: str) -> dict[str, Any]:
        """The files; the branch may have moved on to a `newest` commit with the same ones."""
        siblings = [_sibling(name, content) for name, content in self.files.items()]
        commit = self.newest if revision == self.branch and self.newest else self.commit
        return {"id": "x", "sha": commit, "siblings": siblings}

    def tree(self) -> list[dict[str, Any]]:
        """The files as `list_repo_tree` gets them."""
        tree = []
        for sibling in self.info(self.commit)["siblings"]:
            file = {"type": "file", "path": sibling["rfilename"], "size": sibling["size"], "oid": sibling["blobId"]}
            if "lfs" in sibling:
                file["lfs"] = {"oid": sibling["lfs"]["sha256"], "size": sibling["size"], "pointerSize": 130}
            tree.append(file)
        return tree


def _is_large(name: str) -> bool:
    return name.endswith(".parquet")


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
    if _is_large(name):
        sibling["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return sibling


@dataclass
class StandIn:
    """The repositories by "datasets/<name>" or "models/<name>", every path that was asked for, and a place to stall."""

    repositories: dict[str, StandInRepository]
    asked: list[str] = field(default_factory=list)
    stall_at: int | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    @property
    def fetched(self) -> list[str]:
        """The files that were sent."""
        return [path for path in self.asked if path.startswith("GET") and "/resolve/" in path]

    def must_stall(self) -> bool:
        """Whether the file asked for just now is the one to stall in."""
        return self.stall_at is not None and len(self.fetched) == self.stall_at


class Handler(BaseHTTPRequestHandler):
    """Answers as the hub does, as far as huggingface_hub asks."""

    protocol_version = "HTTP/1.1"
    hub: StandIn

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        self.hub.asked.append(f"{self.command} {path}")
        if path.startswith("/api/"):
            self._info(path.removeprefix("/api/"))
            return
        place, _, rest = path[1:].partition("/resolve/")
        key = place if place.startswith("datasets/") else f"models/{place}"
        self._file(key, rest, with_body=with_body)

    def _info(self, path: str) -> None:
        is_tree = "/tree/" in path
        key, _, revision = path.partition("/tree/" if is_tree else "/revision/")
        repository = self.hub.repositories.get(key)
        if repository is None:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision not in (repository.branch, repository.commit):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            content = repository.tree() if is_tree else repository.info(revision)
            self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _file(self, key: str, rest: str, *, with_body: bool) -> None:
        repository = self.hub.repositories[key]
        revision, _, name = rest.partition("/")
        if repository.gated and "authorization" not in self.headers:
            self._send(401, b"", {"X-Error-Code": "GatedRepo"})
            return
        assert revision == repository.commit, "files are asked for at the commit that was resolved"
        stated = _sibling(name, repository.files[name])
        content = repository.wrong.get(name, repository.files[name])
        etag = stated["lfs"]["sha256"] if "lfs" in stated else stated["blobId"]
        self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": revision}, with_body=with_body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], *, with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not with_body:
            return
        if "X-Repo-Commit" in headers and self.hub.must_stall():
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.go_on.wait(60)
            return
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


@contextmanager
def serving(repositories: dict[str, StandInRepository]) -> Iterator[StandIn]:
    """The stand-in at work."""
    hub = StandIn(repositories)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def tokenizer_json(kind: str) -> bytes:
    """A trained tokenizer small enough for every recipe."""
    lines = [f"the old cat sees {number} green birds over the river" for number in range(30)]
    train = {"wordpiece": train_wordpiece, "bpe": train_bpe}[kind]
    return train(lines, 320).tokenizer.to_str().encode()


def published_repositories() -> dict[str, StandInRepository]:
    """What the harness asks the hub for, in small: two corpora (five files), GLUE, both tokenizers."""
    tasks = ("qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb")
    names = [f"{task}/{split}" for task in tasks for split in ("train", "validation", "test")]
    names += [f"mnli/{split}" for split in ("train", "validation_matched", "validation_mismatched")]
    glue = {f"{name}-00000-of-00001.parquet": parquet_bytes(GLUE_ROWS | {"name": [name] * 2}) for name in names}
    web = {
        f"data/train-0000{n}-of-00003-abc.parquet": parquet_bytes({"content": [f"web {n}", f"page {n}"]})
        for n in range(3)
    }
    wiki = {"data/20220301.en/train-00000-of-00001.parquet": parquet_bytes({"text": ["article"], "title": ["t"]})}
    books = {"plain_text/train/0000.parquet": parquet_bytes({"text": ["a sentence", "another"]})}
    card = {"README.md": b"# card\n", ".gitattributes": b"*.parquet filter=lfs\n"}
    return {
        "datasets/tiiuae/falcon-refinedweb": StandInRepository(web | card, "a" * 40),
        "datasets/legacy-datasets/wikipedia": StandInRepository(wiki | card, "b" * 40),
        "datasets/bookcorpus/bookcorpus": StandInRepository(books, "c" * 40, branch="refs/convert/parquet"),
        "datasets/nyu-mll/glue": StandInRepository(glue | card, "d" * 40),
        "models/google-bert/bert-base-uncased": StandInRepository(
            {"tokenizer.json": tokenizer_json("wordpiece"), "config.json": b"{}"}, "e" * 40
        ),
        "models/meta-llama/Llama-2-7b-hf": StandInRepository({"tokenizer.json": tokenizer_json("bpe")}, "f" * 40),
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, with nobody logged in."""
    monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with serving(published_repositories()) as stand_in:
        monkeypatch.setattr(hub_constants, "ENDPOINT", stand_in.address)
        template = stand_in.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield stand_in


def run(folder: Path, *flags: str) -> int:
    """The command for the whole ladder."""
    return prefetch.main(["--variant", "all", "--data-dir", str(folder), *flags])


def contents(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file but those of prefetch's own."""
    files = [path for path in folder.rglob("*") if path.is_file() and not {".prefetch", ".cache"} & set(path.parts)]
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files if path.name not in OWN}


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """The manifest's files."""
    found: dict[str, dict[str, Any]] = json.loads((folder / "manifest.json").read_text())["files"]
    return found
