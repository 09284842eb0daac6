"""Reader of sentence-transformers' modules.json: the pooling, normalisation and prompts of a published model.
Unsupported modules are refused. Torch-free."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import PositiveInt

from neobert.data.mteb_tasks import CATEGORY_FACTS, Category, EmbeddingTask, member_names
from neobert.external import CONFIGURATION, MODULES, read_json_as, read_settings
from neobert.files import is_local
from neobert.recipe import Value

SentencePooling = Literal["cls", "mean", "max", "mean_sqrt_len_tokens"]

LIBRARY = "sentence_transformers"
OLDER_POOLINGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
HIDDEN_STATES = {"method": "forward", "method_output_name": "last_hidden_state"}
LIBRARY_SETTINGS = "config_sentence_transformers.json"
LOADING_OPTIONS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
WITHOUT_EFFECT: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "Transformer": {
        "modality_config": (HIDDEN_STATES, {"text": HIDDEN_STATES}),
        "do_lower_case": (False,),
        "query_length": (),
        "document_length": (),
        "query_expansion": (),
        "processing_kwargs": ({},),
        **dict.fromkeys(LOADING_OPTIONS, ({}, {"trust_remote_code": True}, {"trust_remote_code": False})),
    },
    "Pooling": {"include_prompt": (True,)},
    LIBRARY_SETTINGS: {"model_type": ("SentenceTransformer",)},
}
"""Settings that may change vectors, with the values, besides null, that do not."""

PROMPT_TYPES: Mapping[Category, tuple[str | None, ...]] = {
    "retrieval": ("query", "document"),
    "reranking": ("query", "document"),
}
"""The prompt types that mteb passes with texts; other categories have none."""


class SentenceModules(Value):
    """Pooling, normalisation and prompts of a model. Texts are cut to `max_tokens`, specials included. `prompts` are
    prepended to texts, by the names that mteb looks up; `default_prompt` names the prompt for all others."""

    pooling: SentencePooling
    normalize: bool
    max_tokens: PositiveInt | None
    prompts: dict[str, str]
    default_prompt: str | None

    def __str__(self) -> str:
        named = [name for name, prompt in self.prompts.items() if prompt]
        parts = [f"pooling {self.pooling}", "vectors of length 1" if self.normalize else "vectors not normalised"]
        parts += [f"at most {self.max_tokens} tokens"] if self.max_tokens else []
        parts += [f"prompts {', '.join(named)}"] if named else []
        return ", ".join(parts)

    def task_prompts(self, task: EmbeddingTask) -> dict[str, str]:
        """Return the prompts of a task by "query" (also for tasks without documents) and "document", chosen as in
        mteb's own wrapper of sentence-transformers: for a task of several members by their names, not by its own.
        Raises ValueError if the members have different prompts."""
        roles, task_type = PROMPT_TYPES.get(task.category, (None,)), CATEGORY_FACTS[task.category].task_type
        first, *others = (
            {role or "query": self._prompt(member, task_type, role) for role in roles} for member in member_names(task)
        )
        if any(other != first for other in others):
            raise ValueError(
                f"{LIBRARY_SETTINGS} has different prompts for the members of {task.name}, which is measured with one: "
                "leave the task out"
            )
        return {role: prompt for role, prompt in first.items() if prompt}

    def _prompt(self, task: str, task_type: str, role: str | None) -> str:
        for name in (task, task_type):
            for key in (f"{name}-{role}", name):
                if key in self.prompts:
                    return self.prompts[key]
        return self.prompts.get(role or self.default_prompt or "", "")


def read_sentence_modules(folder: Path, name: str) -> SentenceModules | None:
    """Read the modules of a folder; None without a modules.json. `name` is for errors: ValueError if one is not
    supported."""
    if not (folder / MODULES).is_file():
        return None
    modules = [_module(entry, name) for entry in read_json_as(list, folder / MODULES)]
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{name} makes its vectors by {' → '.join(kinds)}: only Transformer → Pooling (→ Normalize) is read; "
            f"remove {MODULES} from a copy to measure the mean of its hidden states"
        )
    if modules[0][1]:
        raise ValueError(f"{name} has its encoder in the folder {modules[0][1]}: give --model that folder")
    transformer, pooling = (_settings(folder, path) for _, path in modules[:2])
    library = read_settings(folder / LIBRARY_SETTINGS) if (folder / LIBRARY_SETTINGS).is_file() else {}
    pooling_mode = _pooling(pooling, f"{modules[1][1]}/{CONFIGURATION} of {name}")
    normalizes = len(modules) == 3
    for where, settings in (("Transformer", transformer), ("Pooling", pooling), (LIBRARY_SETTINGS, library)):
        for key, values in WITHOUT_EFFECT[where].items():
            _require(name, where, settings, key, values)
    _require(name, LIBRARY_SETTINGS, library, "similarity_fn_name", ("cosine", *(["dot"] if normalizes else [])))
    return SentenceModules(
        pooling=pooling_mode,
        normalize=normalizes,
        max_tokens=transformer.get("max_seq_length"),
        prompts={key: prompt for key, prompt in (library.get("prompts") or {}).items() if prompt is not None},
        default_prompt=library.get("default_prompt_name"),
    )


def _module(entry: Any, name: str) -> tuple[str, str]:
    """Return the class of a module, without its package, and its folder."""
    kind, path = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(path, str) or (path and not is_local(path)):
        raise ValueError(f"{MODULES} of {name} describes no module of sentence-transformers: {entry}")
    package, _, short = kind.rpartition(".")
    return (short if package.partition(".")[0] == LIBRARY else kind), path


def _settings(folder: Path, path: str) -> dict[str, Any]:
    """Read a module's configuration. For a Transformer in the model's own folder this is sentence_*_config.json."""
    files = [folder / path / CONFIGURATION] if path else sorted(folder.glob("sentence_*_config.json"))
    return read_settings(files[0]) if files and files[0].is_file() else {}


def _pooling(settings: dict[str, Any], where: str) -> SentencePooling:
    older = [mode for flag, mode in OLDER_POOLINGS.items() if settings.get(flag) is True]
    modes = settings.get("pooling_mode", older)
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in get_args(SentencePooling):
        known = ", ".join(get_args(SentencePooling))
        raise ValueError(f"{where} pools by {' and '.join(map(str, modes)) or 'nothing'}: one of {known} is read")
    return cast(SentencePooling, modes[0])


def _require(name: str, where: str, settings: Mapping[str, Any], key: str, values: tuple[Any, ...]) -> None:
    if settings.get(key) not in (None, *values):
        raise ValueError(f"{name} sets {key} of {where} to {settings[key]!r}, which is not read here")
