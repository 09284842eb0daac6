"""Models, their code and tokenizers of runs as those of transformers and sentence-transformers."""

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from neobert import __version__
from neobert.data.tokenizers import TextTokenizer
from neobert.files import replace_file
from neobert.hub import AUTO_CLASSES, NeoBERTConfig
from neobert.kinds.pretraining import PretrainingRun

CODE_MODULES = (
    *("neobert.errors", "neobert.identity", "neobert.own_code", "neobert.recipe"),
    *("neobert.model.attention", "neobert.model.positions", "neobert.model.layers", "neobert.model.encoder"),
    *("neobert.model.heads", "neobert.model.build"),
    *("neobert.hub.attention", "neobert.hub.configuration", "neobert.hub.modeling"),
)
"""All modules of this package that the classes of `neobert.hub` need."""
AUTO_MAP = {"AutoConfig": NeoBERTConfig, **AUTO_CLASSES}
WHOLE_MODULE = re.compile(r"^( *)from neobert import (\w+)$", re.MULTILINE)
NAMES = re.compile(r"^( *)from (neobert\.[\w.]+) import ", re.MULTILINE)


def transformers_tokenizer(tokenizer: TextTokenizer, context: int) -> PreTrainedTokenizerFast:
    """Convert a tokenizer for transformers. It adds special tokens itself and reads "[MASK]" in a text as the mask.

    context: length after truncation in tokens, specials included.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    ids, fast = tokenizer.ids, Tokenizer.from_str(tokenizer.tokenizer.to_str())
    names = {name: fast.id_to_token(getattr(ids, name)) for name in ("pad", "cls", "sep", "mask", "unk")}
    cls, sep = names["cls"], names["sep"]
    opening = f"{cls} " if tokenizer.opens_second else ""
    fast.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} {opening}$B:1 {sep}:1",
        special_tokens=[(cls, ids.cls), (sep, ids.sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        model_max_length=context,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in names.items()},
    )


def configuration_of(run: PretrainingRun, tokenizer: TextTokenizer) -> NeoBERTConfig:
    """Return the transformers configuration of a pre-training run's model."""
    ids = tokenizer.ids
    special_ids = {"pad_token_id": ids.pad, "cls_token_id": ids.cls, "sep_token_id": ids.sep}
    return NeoBERTConfig.from_recipe(run.recipe.model, run.context, dtype="float32", **special_ids)


def save_modules(encoder: Any, tokenizer: Any, folder: Path, prompts: Mapping[str, str]) -> None:
    """Write a transformers encoder and tokenizer with mean pooling and named `prompts`, which are prepended to texts.

    Raises:
        ValueError: sentence-transformers is not installed.
    """
    require_packages("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with tempfile.TemporaryDirectory() as scratch:
        encoder.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        modules = [Transformer(scratch), Pooling(encoder.config.hidden_size, "mean")]
        model = SentenceTransformer(modules=modules, device="cpu", prompts=dict(prompts))
        model.save_pretrained(str(folder), create_model_card=False)


Encode = Callable[[Sequence[str], str | None], Any]
"""Function of texts and the name of a prompt that returns vectors (texts, width)."""


def transformers_vectors(folder: Path) -> Encode:
    """Return a function that encodes with a folder for transformers, which has no prompts."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)

    @torch.no_grad()
    def encode(texts: Sequence[str], prompt: str | None) -> Any:
        tokens = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        mask = tokens["attention_mask"].unsqueeze(-1)
        return ((model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)).numpy()

    return encode


def sentence_vectors(folder: Path) -> Encode:
    """Return a function that encodes with a folder for sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts, prompt: model.encode(list(texts), prompt_name=prompt, show_progress_bar=False)


def require_packages(*names: str) -> None:
    """Raise ValueError unless packages are installed."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise ValueError(f"this export needs {', '.join(missing)}: install the extra with pip install -e '.[export]'")


def write_remote_code(folder: Path) -> None:
    """Add the modules to an exported folder, and name their classes in its config.json.

    transformers loads flat folders, and copies only files that are imported in the form `from .name import …`: module
    neobert.a.b becomes the file neobert_a_b.py, and imports become relative.
    """
    for name, content in remote_modules().items():
        replace_file(folder / f"{name}.py", content.encode())
    path = folder / "config.json"
    auto_map = {auto: f"{file_name(named.__module__)}.{named.__name__}" for auto, named in AUTO_MAP.items()}
    config = {**json.loads(path.read_text(encoding="utf-8")), "auto_map": auto_map}
    replace_file(path, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())


def remote_modules() -> dict[str, str]:
    """Return the content of each module by the name of its file, without .py."""
    files = {}
    for module in CODE_MODULES:
        found = find_spec(module)
        assert found is not None and found.origin is not None, f"{module} does not exist"
        source = Path(found.origin).read_text(encoding="utf-8")
        files[file_name(module)] = f"# {module} of neobert-ablations {__version__}, MIT\n{relative(source)}"
    return files


def file_name(module: str) -> str:
    """Return the name of a module's file, without .py."""
    return module.replace(".", "_")


def relative(source: str) -> str:
    """Return a source with its imports of this package relative."""
    # The loader does not follow `from . import`, so a second line names the file in the form that it does.
    source = WHOLE_MODULE.sub(r"\1from . import neobert_\2 as \2\n\1from .neobert_\2 import __name__ as _", source)
    return NAMES.sub(lambda found: f"{found[1]}from .{file_name(found[2])} import ", source)
