"""The Optuna study of records alone, in memory, and what Optuna plots and computes of it. No storage is read."""

import warnings
from typing import TYPE_CHECKING

import numpy as np
from optuna.exceptions import ExperimentalWarning
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.storages import InMemoryStorage
from optuna.study import Study
from optuna.trial import TrialState

from neobert.kinds.glue import GlueStudy
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile
from neobert.search.storages import Storage
from neobert.search.study import OptunaStudy
from neobert.search.subjects import GlueSubject, failure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Study", "importances", "plot_slices", "study_in_memory"]

SEED_OF_FORESTS = 0


def study_in_memory(layout: Layout, study: GlueStudy, run_file: RunFile | None = None) -> Study:
    """Return the Optuna study of a grid or search as its records and failures tell it, without running trials.

    A grid's trials are in its order, those of a search in the order in which they were asked for; a point that a
    sampler asked for twice is there twice. `run_file` names the study in words.
    """
    subject = GlueSubject(layout, study, run_file)
    optuna_study = OptunaStudy(subject, Storage("memory:", InMemoryStorage()))
    told = optuna_study.opened()
    for part in subject.trials(subject.asked()):
        ending = subject.ending_of(part) or failure_of(part, subject.marks_of(part))
        if ending is not None:
            told.add_trial(optuna_study.made_of(part, ending))
    return told


def importances(study: Study) -> dict[str, float]:
    """Return the share of each field of a point in the variance of the scores, by fANOVA, largest first; nothing if
    fewer than two scores differ. Equal trials give equal shares."""
    scores = {trial.values[0] for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))}
    if len(scores) < 2:
        return {}
    return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=SEED_OF_FORESTS))


def plot_slices(study: Study, factor: float, label: str) -> "list[Axes]":
    """Return Optuna's plots of `factor` times the scores over each field of a point, beside each other in a figure of
    pyplot, which the caller closes. They set a style for all later figures, so the caller has one of its own around
    them."""
    from optuna.visualization.matplotlib import plot_slice

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "Attempting to set identical")  # the axis of a field with one value
        plots = plot_slice(study, target=lambda trial: factor * trial.values[0], target_name=label)
    return list(np.ravel(np.asarray(plots, dtype=object)))
