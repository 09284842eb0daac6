"""The study: the ladder of variants with its designs and scales, the commands that run it, and its Python interface.

    ablations.variants()["M7"].delta()                    the differences between M7 and its parent
    ablations.build("M7")                                 the model with its initial weights
    run = ablations.train("M9@steps0.01")                 pre-training; the same call resumes or finds a finished run
    run.loss, run.metrics, run.evaluate("cola"), run.export("hf", "folder")
    ablations.load_records("runs")                        every record below a folder of runs as a frame
    ablations.study("M7", "cola")                         a grid or search as a study of Optuna, made from its records

The functions are imported when they are first used, so that `--help` is fast.
"""

TYPE_CHECKING = False  # typing's own would import typing
if TYPE_CHECKING:
    from ablations.api import build as build
    from ablations.api import load_records as load_records
    from ablations.api import study as study
    from ablations.api import train as train
    from ablations.api import variants as variants

INTERFACE = ("build", "load_records", "study", "train", "variants")


def __getattr__(name: str) -> object:
    if name in INTERFACE:
        from ablations import api

        return vars(api)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *INTERFACE])
