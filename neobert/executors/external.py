"""External models in a folder of runs: models/<id>/model.json says where the files of a model are."""

from typing import Any

from pydantic import TypeAdapter

from neobert.errors import MissingData
from neobert.external import ExternalModel, external_id, locate
from neobert.files import as_written, is_there, json_bytes, read_json, replace_file
from neobert.runs.layout import Layout


def write_model_file(layout: Layout, model: ExternalModel) -> None:
    """Write models/<id>/model.json for workers, also to update the folder of a model that moved."""
    path = layout.model(model.id)
    content = json_bytes(model.model_dump(mode="json"))
    if not is_there(path) or path.read_bytes() != content:
        replace_file(path, content)


def read_model_file(layout: Layout, model_id: str) -> ExternalModel:
    """Read the model that `write_model_file` wrote.

    Raises:
        MissingData: the file does not exist.
        DamagedFile: the file is torn or of another version.
    """
    path = layout.model(model_id)
    if not is_there(path):
        raise MissingData(f"{path} is not there: give --model the folder of {model_id}")
    return as_written(TypeAdapter(ExternalModel), read_json(path), path, f"give --model the folder of {model_id} again")


def resolve_model(layout: Layout, name_or_folder: str, trusts_code: bool = False) -> ExternalModel:
    """Return the model that `--model` names. A model without a model.json is loaded once and inspected. Writes nothing.

    Raises MissingData or ValueError if the model does not exist or is not an encoder that can be fine-tuned.
    """
    from neobert.hub.external import inspect_model

    located = locate(name_or_folder, trusts_code)
    found_at: dict[str, Any] = {"name": located.name, "folder": str(located.folder), "trusts_code": trusts_code}
    model_id = external_id(located.origin)
    if is_there(layout.model(model_id)):
        return read_model_file(layout, model_id).model_copy(update=found_at)
    found = inspect_model(located.folder, name_or_folder, trusts_code)
    origin, tokenizer_origin = dict(located.origin), located.tokenizer_origin
    return ExternalModel(**found_at, **found, origin=origin, tokenizer_origin=tokenizer_origin)
