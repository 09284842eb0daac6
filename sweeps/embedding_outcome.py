"""What mteb_suite.py prints: every task with its state, then means that say how many tasks they are of."""

import json

from ablations.listing import means_of, print_means, print_tasks, task_entries
from neobert.console import logs
from neobert.data.sources import Source
from neobert.runs.layout import Layout
from sweeps.embedding_planning import evaluations_of
from sweeps.planning import Sweep


def print_outcome(layout: Layout, sweep: Sweep, source: Source, *, as_json: bool) -> None:
    """The tasks of each evaluation and the means of its suites; in JSON {"tasks": …, "means": …} for each."""
    available = source.embedding_tasks()
    told = []
    for evaluation in evaluations_of(sweep):
        entries = task_entries(layout, evaluation)
        told.append((evaluation.encoder, entries, means_of(entries, available)))
    if as_json:
        print(json.dumps([_summary(entries, [m.summary() for m in means]) for _, entries, means in told], indent=1))
        return
    print_tasks(f"{sweep.title}: main scores of tasks, ×100", [entry for _, entries, _ in told for entry in entries])
    print_means([(encoder.protocol, encoder.seed, mean) for encoder, _, means in told for mean in means])
    for entry in (entry for _, entries, _ in told for entry in entries if entry["error"]):
        logs().print(f"failed: {entry['task']}: {entry['error']}", markup=False)


def _summary(entries: list[dict[str, object]], means: list[dict[str, object]]) -> dict[str, object]:
    return {"tasks": entries, "means": means}
