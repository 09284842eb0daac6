"""Is a change an improvement? Evidence for single changes, and error control over a whole session.

    from neobert.referee import Session

    session = Session(alpha=0.1, spread=0.0005, runs_behind=9, path="session.json")
    session.judge(parent_losses=[0.9979], child_losses=[0.9860])  # keep, discard or more (then session.next_run)

docs/referee.md explains the method. Only numpy is imported.
"""

from neobert.referee.session import Session as Session
