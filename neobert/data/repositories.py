"""A repository of the Hugging Face hub, and which of its files are wanted. Torch-free."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Repository:
    """A dataset or model repository: which of its branches (or commits), which files, which column holds the text."""

    name: str
    files: str
    column: str | None = None
    branch: str = "main"
    kind: str = "dataset"
