"""The drill: a study is worked through while workers are killed or paused and files damaged; then all is counted."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from neobert.files import read_lines
from neobert.kinds.glue import SearchTrial, Trial
from neobert.runs.layout import Layout
from neobert.search.space import Search
from neobert.search.storages import storage_address, storage_at
from tests.search.grid_worlds import (
    assert_search_is_right,
    assert_shows_records,
    dummies,
    load,
    start_worker,
    started,
    study_of,
)
from tests.support.forking import ForkedProcess

DAMAGES = ("deleted", "garbage", "torn record")
FAULTS = ("kills", "pauses", *DAMAGES, "new launcher")
"""Beside the kills: every second victim is paused past its lease instead, or half-way the storage is deleted or filled
with garbage, a record is torn, or all workers of both launchers are killed and a third launcher is started."""
FAILS, UNDEFINED, KILLS = "break-0", "undefined-1", "kill-2"
"""In every grid one point always fails, one has no score and one kills its first workers."""
LIMIT_SECONDS = 300


@dataclass
class Drill:
    """Workers of two launchers on one study. Those that are killed are replaced; those that crash are counted.

    Each launcher is on a machine of its own: that a worker of the other is dead shows in the age of its claims alone.
    """

    layout: Layout
    storage: str
    points: int
    workers: int
    kills: int
    seconds: float
    lease_seconds: float
    search: Search | None = None
    _chance: random.Random = field(default_factory=lambda: random.Random(0))
    _live: dict[ForkedProcess, str] = field(default_factory=dict)
    _ended: list[ForkedProcess] = field(default_factory=list)
    _killed: set[int] = field(default_factory=set)
    _paused: dict[ForkedProcess, float] = field(default_factory=dict)
    _pauses: int = 0
    _torn: str = ""

    def run(self, fault: str, half_way: Callable[[], None] = lambda: None) -> None:
        """Do all points under a fault, demand that nothing is lost, doubled or wrong, and print the numbers."""
        began = time.monotonic()
        for name in (FAILS, UNDEFINED, KILLS) if self.search is None else ():
            (self.layout.root / name).touch()
        self._launch("first", self.workers // 2)
        self._launch("second", self.workers - self.workers // 2)
        harm = self._pause if fault == "pauses" else self._kill
        harms = [harm if number % 2 else self._kill for number in range(self.kills)]
        damages = [lambda: self._damage(fault), half_way]
        while self._live:
            assert time.monotonic() < began + LIMIT_SECONDS, "the drill does not end"
            self._replace()
            if damages and len(self._lines("published")) >= self.points // 2:
                damages.pop(0)()
            if harms and started(self.layout) >= (self.kills - len(harms) + 1) * self.points * 3 // (4 * self.kills):
                time.sleep(self._chance.uniform(0, self.seconds))
                harms.pop(0)()
            time.sleep(0.02)
        assert not harms and not damages, "all was done before the last fault"
        self._count(fault, time.monotonic() - began)

    # Launchers

    def _launch(self, machine: str, workers: int) -> None:
        for _ in range(workers):
            worker = start_worker(
                self.layout,
                self.points,
                self.seconds,
                self.storage,
                self.lease_seconds,
                self.search,
                machine=machine,
                failures_since=0.0,
            )
            self._live[worker] = machine

    def _replace(self) -> None:
        for worker in [each for each in self._paused if time.monotonic() > self._paused[each]]:
            worker.send_signal(signal.SIGCONT)
            del self._paused[worker]
        for worker in [each for each in self._live if each.poll() is not None]:
            machine = self._live.pop(worker)
            self._ended.append(worker)
            if worker.pid in self._killed | self._killed_themselves():
                self._launch(machine, 1)

    def _killed_themselves(self) -> set[int]:
        return {line["pid"] for line in self._lines("killed_themselves")}

    def _lines(self, name: str) -> list[dict[str, str | int]]:
        return list(read_lines(self.layout.root / f"{name}.jsonl"))

    # Faults

    def _victim(self) -> ForkedProcess | None:
        alive = [worker for worker in self._live if worker not in self._paused and worker.poll() is None]
        return self._chance.choice(alive) if alive else None

    def _kill(self) -> None:
        if (victim := self._victim()) is not None:
            self._killed.add(victim.pid)
            victim.kill()

    def _pause(self) -> None:
        if (victim := self._victim()) is not None:
            victim.send_signal(signal.SIGSTOP)
            self._paused[victim] = time.monotonic() + 1.5 * self.lease_seconds
            self._pauses += 1

    def _damage(self, fault: str) -> None:
        path = storage_at(storage_address(self.storage, self.layout.root)).path
        if fault == "torn record":
            done = [trial for trial in self._trials() if trial.is_done]
            self._torn = done[0].id
            done[0].record.write_bytes(done[0].record.read_bytes()[:40])
        elif fault == "new launcher":
            for worker in self._live:
                self._killed.add(worker.pid)
                worker.kill()
            while self._live:
                worker, _ = self._live.popitem()
                worker.wait()
                self._ended.append(worker)
            self._launch("third", self.workers)
        elif fault in DAMAGES:
            assert path is not None
            content = path.read_bytes()
            path.unlink()
            if fault == "garbage":
                path.write_bytes(content[: len(content) // 2] + b"\x00garbage" * 500)

    # What is left

    def _trials(self) -> tuple[Trial, ...] | tuple[SearchTrial, ...]:
        if self.search is None:
            return dummies(self.layout, self.points)
        return study_of(self.points, search=self.search).search_trials(self.layout)

    def _count(self, fault: str, seconds: float) -> None:
        said = b"".join(worker.communicate()[1] for worker in self._ended).decode()
        left_alone = [each for each in self._ended if each.pid not in self._killed | self._killed_themselves()]
        crashed = [line["error"] for line in self._lines("crashed")]
        crashed += [f"signal {-each.returncode}" for each in left_alone if (each.returncode or 0) < 0]
        made_again = said.count("made again from the records")
        done = [trial for trial in self._trials() if trial.is_done]
        failed = [trial for trial in self._trials() if trial.error.exists()]
        published = Counter(line["part"] for line in self._lines("published"))
        print(
            f"{self.storage.partition(':')[0]}, {self.search.sampler if self.search else 'grid'}, {fault}: "
            f"{len(self._killed)} killed, {len(self._killed_themselves())} by a point, {self._pauses} paused; "
            f"{len(done)} records + {len(failed)} failed, {started(self.layout)} starts, {len(self._ended)} workers, "
            f"{len(crashed)} crashed, {said.count('; this result is dropped') + said.count('taken over')} dropped, "
            f"made again {made_again}, {seconds:.1f} s"
        )
        ends = f"{[(each.pid, each.returncode) for each in left_alone]}, {said}"
        assert not crashed, crashed
        assert made_again <= (fault in DAMAGES), said
        assert {name for name, times in published.items() if times > 1} <= {self._torn}, "published twice"
        if self.search is not None:
            assert {each.returncode for each in left_alone} == {0}, ends
            assert_search_is_right(self.layout, self.search, self.storage, self.points)
            return
        parts = self._trials()
        assert {each.returncode for each in left_alone} == {1}, ends
        assert (done, failed) == (list(parts[1:]), [parts[0]])
        assert_shows_records(self.layout, self.points, self.storage)
        errors = {
            trial.user_attrs["error"]
            for trial in load(self.layout, self.points, self.storage).trials
            if trial.user_attrs.get("trial") in (parts[0].id, parts[1].id) and "error" in trial.user_attrs
        }
        assert errors >= {"RuntimeError: broken on purpose", "the score is undefined"}
