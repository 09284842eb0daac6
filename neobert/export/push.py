"""An exported folder on the Hugging Face hub."""

from pathlib import Path

from neobert.errors import RunFailed


def check_repository(repository: str) -> None:
    """Check a repository's name, and that somebody is logged in, before anything is computed.

    Raises:
        ValueError: it is no name that the hub takes, or there is no token.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ValueError(
            f"--push {repository!r} names no repository of the hub, such as user/model: {error}"
        ) from error
    if get_token() is None:
        raise ValueError(f"--push {repository} needs a token of the hub: run hf auth login, or set HF_TOKEN")


def push(folder: Path, repository: str, message: str) -> str:
    """Upload a folder, into a new private repository where there is none; returns the commit's address.

    Raises:
        RunFailed: the hub refused, or was not reached; the folder stays.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # that of the http library which the installed client uses

    api = HfApi()
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        return str(api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message).commit_url)
    except (HTTPError, OSError) as error:
        raise RunFailed(f"{folder} is exported, but the hub took no {repository}: {error}") from error
