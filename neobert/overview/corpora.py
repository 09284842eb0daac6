"""The row of a tokenised corpus that a job of its own makes."""

from dataclasses import replace

from neobert.layout import MANIFEST, PARTIAL
from neobert.overview.row import Row
from neobert.overview.tree import Tree
from neobert.overview.units import failure_at, heartbeat_of, owners_of, workers_of


def corpus_row(tree: Tree, row: Row) -> Row:
    """The row of a corpus; shards are counted while it grows, and how many there will be nobody knows."""
    owners = owners_of(tree, [f"corpus-{row.id}"])
    folder = tree.layout.data(row.id)
    if MANIFEST in tree.names(folder):
        return replace(row, state="done")
    failure = failure_at(folder.parent / "errors" / f"{row.id}.json", row.id)
    workers = workers_of(owners)
    is_live = any(worker.is_live for worker in workers)
    growing = tree.names(folder.with_name(folder.name + PARTIAL))
    return replace(
        row,
        state="running" if is_live else "failed" if failure else "waiting",
        done=sum(name.startswith("shard-") and name.endswith(".json") for name in growing),
        workers=workers,
        heartbeat_at=heartbeat_of(tree, owners),
        errors=() if failure is None else (failure,),
    )
