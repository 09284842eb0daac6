"""The hub's file service: what a repository holds at a commit, and one file of it; reading goes through here alone.

Addresses and tokens are the library's own: HF_ENDPOINT, HF_TOKEN or the stored login. Torch-free.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from neobert.data.repositories import Repository
from neobert.errors import MissingData, RunFailed
from neobert.files import is_local


class HubUnreachable(MissingData):
    """No repository of the hub can be asked from here."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository; the checksum is "sha256:…" for large files and "git:…" for small ones."""

    name: str
    bytes: int
    checksum: str


@dataclass(frozen=True)
class Listing:
    """All files of a repository at one commit."""

    revision: str
    files: tuple[HubFile, ...]

    def matching(self, pattern: str) -> list[HubFile]:
        """The files whose name fits the pattern, in the order of their names."""
        return [file for file in self.files if fnmatchcase(file.name, pattern)]


def list_repository(repository: Repository, revision: str) -> Listing:
    """The files of a repository; `revision` is a branch, of which the newest commit is taken, or a commit.

    Raises:
        MissingData: the hub does not answer, or does not give the repository away.
    """
    from huggingface_hub import HfApi

    with _hub_errors(repository):
        ask = HfApi().dataset_info if repository.kind == "dataset" else HfApi().model_info
        info = ask(repository.name, revision=revision, files_metadata=True)
    assert info.sha is not None
    files = []
    for sibling in info.siblings or ():
        if sibling.rfilename == ".gitattributes":
            continue
        if sibling.size is None or sibling.blob_id is None or not is_local(sibling.rfilename):
            raise RunFailed(f"the hub's list of {repository.name} has no size or a strange name: {sibling.rfilename}")
        checksum = f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"git:{sibling.blob_id}"
        files.append(HubFile(sibling.rfilename, sibling.size, checksum))
    return Listing(info.sha, tuple(sorted(files, key=lambda file: file.name)))


def download(repository: Repository, revision: str, file: str, folder: Path) -> Path:
    """Fetch one file into a folder of its own, which the library also uses for notes.

    Raises:
        MissingData: the hub does not answer, or does not give the file away.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    with _hub_errors(repository):
        path = hf_hub_download(
            repository.name, file, repo_type=repository.kind, revision=revision, local_dir=folder, etag_timeout=30
        )
    return Path(path)


def matches(path: Path, checksum: str) -> bool:
    """Whether a file has the checksum that the hub states."""
    kind, _, digest = checksum.partition(":")
    with path.open("rb") as file:
        if kind == "sha256":
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
        blob = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while block := file.read(1 << 20):
            blob.update(block)
    return blob.hexdigest() == digest


@contextmanager
def _hub_errors(repository: Repository) -> Iterator[None]:
    """Whatever keeps the hub from answering, as one sentence; errors of the local disk stay what they are."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        XetDownloadError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise MissingData(f"{repository.name} is gated: {_how_to_log_in(repository)}") from error
    except RepositoryNotFoundError as error:
        raise MissingData(
            f"the hub has no {repository.kind} {repository.name}, or none for you; if it is private or gated, "
            f"{_how_to_log_in(repository)}"
        ) from error
    except OfflineModeIsEnabled as error:
        raise HubUnreachable("hub access is switched off (HF_HUB_OFFLINE is set): unset it to prefetch") from error
    except (HTTPError, XetDownloadError, ConnectionError, TimeoutError, LocalEntryNotFoundError) as error:
        raise _unanswered(repository, error) from error
    except (RuntimeError, json.JSONDecodeError) as error:  # of hf_xet; of a portal that answers in the hub's place
        raise _unanswered(repository, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _unanswered(repository, error) from error


def _unanswered(repository: Repository, error: Exception) -> MissingData:
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
    reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    if isinstance(cause, HfHubHTTPError):
        return MissingData(f"{repository.name} cannot be read from the hub ({reason}): run the same command again")
    return HubUnreachable(
        f"the hub at {constants.ENDPOINT} does not answer ({reason}): run this where there is a network"
    )


def _how_to_log_in(repository: Repository) -> str:
    from huggingface_hub import constants

    prefix = "datasets/" if repository.kind == "dataset" else ""
    return (
        f"accept its licence at {constants.ENDPOINT}/{prefix}{repository.name}, set HF_TOKEN to a token of that "
        f"account, and run the same command again"
    )
