"""The Optuna study of records alone, in memory. No storage is read."""

from optuna.study import Study

from neobert.kinds.glue import GlueStudy
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile
from neobert.search.storages import storage_in_memory
from neobert.search.study import OptunaStudy
from neobert.search.subjects import GlueSubject, failure_of

__all__ = ["Study", "study_in_memory"]


def study_in_memory(layout: Layout, study: GlueStudy, run_file: RunFile | None = None) -> Study:
    """Return the Optuna study of a grid or search as its records and failures tell it, without running trials.

    A grid's trials are in its order, those of a search in the order in which they were asked for; a point that a
    sampler asked for twice is there twice. `run_file` names the study in words.
    """
    subject = GlueSubject(layout, study, run_file)
    optuna_study = OptunaStudy(subject, storage_in_memory())
    told = optuna_study.opened()
    for part in subject.trials(subject.asked()):
        ending = subject.ending_of(part) or failure_of(part, subject.marks_of(part))
        if ending is not None:
            told.add_trial(optuna_study.made_of(part, ending))
    return told
