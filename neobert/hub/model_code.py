"""Classes that lie beside a model's weights and are named by its auto_map: for folders whose code is trusted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from neobert.model_files import is_inside


class Refused(ValueError):
    """A sentence for people, to be passed on as it is."""


def class_beside(folder: Path, settings: Mapping[str, Any], auto: str, name: str) -> Any:
    """The class of a folder that stands for transformers' class `auto`; None where its settings name none.

    It is taken from the folder alone, also where auto_map names a repository ("REPOSITORY--module.Class"), and without
    transformers' Auto classes, which give a second folder of one model_type the code of the first.

    Raises:
        Refused: its module is not there.
    """
    classes = settings.get("auto_map") or {}
    named = classes.get(auto) if isinstance(classes, dict) else classes
    reference = next((one for one in reversed(named) if one), None) if isinstance(named, list) else named
    if reference is None:
        return None
    repository, _, local = reference.rpartition("--")
    module = f"{local.rpartition('.')[0]}.py"
    if not is_inside(module) or not (folder / module).is_file():
        raise Refused(
            f"{name} has no {module}{f' of {repository}' if repository else ''}, which its auto_map names: put the "
            "Python files beside config.json, as ablations/prefetch.py --models does"
        )
    return get_class_from_dynamic_module(local, folder, local_files_only=True)


def built_anew(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model whose __init__ ran with memory: transformers builds models without any, and what a
    class of a folder computes there and does not save would stay undefined."""
    with torch.device("cpu"):
        built = type(model)(model.config)
    built.load_state_dict(model.state_dict())
    return built
