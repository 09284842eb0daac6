"""Predictions for BabyLM's evaluation pipeline (github.com/babylm-org/babylm-eval, strict, commit 45fe2c1).

Its backend `mlm` masks each token of a sentence alone, sums their log p, and takes the sentence with the higher sum,
the first of equal ones. It collects MODEL/REVISION/zero_shot/mlm/blimp/FOLDER/predictions.json, which this writes
without the pipeline: by UID, the sentences that were taken, in the order of the files.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from neobert.data.blimp import pairs_in
from neobert.evaluation.readouts import Subject, pair_losses
from neobert.export.checkpoint import PretrainedCheckpoint
from neobert.files import json_bytes, replace_file
from neobert.processes import StopRequest
from neobert.training.distributed import choose_kernels, default_device


def write_predictions(checkpoint: PretrainedCheckpoint, folders: Sequence[Path], out: Path) -> dict[str, float]:
    """Write the predictions on the minimal pairs of some folders, `out` being MODEL/REVISION; return the accuracy on
    each folder, the mean over its UIDs, from 0 to 1.

    As the pipeline does, and other than the readouts, this computes in float32, and unknown tokens are scored. Of
    sentences that are longer than the context a window around each token is shown.

    Raises:
        ValueError: the run ends with a causal stage, or two folders have one name.
        MissingData, DamagedFile: as `neobert.data.blimp.pairs_in`.
    """
    run, device = checkpoint.run, default_device()
    if run.recipe.ends_causal:
        raise ValueError(f"run {run.id} ends causal, and predictions are of masked tokens: export it as hf instead")
    if len({folder.resolve().name for folder in folders}) < len(folders):
        raise ValueError("--pairs has two folders of one name, which is what their predictions go by: rename one")
    choose_kernels(deterministic=False)
    subject = Subject(checkpoint.network.to(device), checkpoint.tokenizer, run.context, "fp32", device)
    accuracy = {}
    for folder in folders:
        pairs = pairs_in(folder)
        losses = pair_losses(subject, pairs, StopRequest())
        taken: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
        right: defaultdict[str, list[bool]] = defaultdict(list)
        for pair, (good, bad) in zip(pairs, losses.tolist(), strict=True):
            own = taken[pair.paradigm]
            own.append({"id": f"{pair.paradigm}_{len(own)}", "pred": pair.good if good <= bad else pair.bad})
            right[pair.paradigm].append(good <= bad)
        content = {paradigm: {"predictions": own} for paradigm, own in taken.items()}
        path = out / "zero_shot" / "mlm" / "blimp" / folder.resolve().name / "predictions.json"
        path.parent.mkdir(parents=True)
        replace_file(path, json_bytes(content))
        accuracy[folder.resolve().name] = fmean(map(fmean, right.values()))
    return accuracy
