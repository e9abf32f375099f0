"""Worker processes: a crash or a hang costs the case that caused it, never the suite."""

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import Any

from tests.conformance.cases import Case, Outcome
from tests.forked import Piped

WORKER = ("-m", "tests.conformance.worker")
# One thread a worker: the CPU's own sums then come out the same each time.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
FIRST_ANSWER_S = 300  # importing torch, and building the native library if it is not built


class WorkerDiedError(Exception):
    """The worker ended, or was ended, before it answered."""


class Worker:
    def __init__(self, words: Sequence[str] = WORKER, limit_s: float = 120) -> None:
        self.words, self.limit_s = words, limit_s
        self.process: Piped | None = None
        # What it prints beside its answers is read only once it is dead.
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115

    def ask(self, question: Any) -> Any:
        limit = self.limit_s if self.process else FIRST_ANSWER_S
        process = self.process or self.start()
        begun = time.monotonic()
        killer = threading.Timer(limit, process.kill)
        killer.start()
        try:
            print(json.dumps(question), file=process.stdin, flush=True)
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        killer.cancel()
        if not answer:
            hung = time.monotonic() - begun >= limit
            raise WorkerDiedError(f"hung for {limit:.0f} s" if hung else self.last_words())
        return json.loads(answer)

    def start(self) -> Piped:
        self.log.truncate(0)
        self.process = Piped(*self.words, env=os.environ | ENVIRONMENT, stderr=self.log)
        return self.process

    def last_words(self) -> str:
        assert self.process
        code = self.process.wait()
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().splitlines() if line.strip()]
        telling = [x for x in lines if "what()" in x or "Fatal" in x] + lines[-1:]
        return f"the process ended with {code}: {(telling or [''])[0][:300]}"

    def judge(self, case: Case, limit: int | None) -> Outcome:
        try:
            answer = self.ask({"case": [case.check, case.name, case.dtype], "limit": limit})
        except WorkerDiedError as end:
            self.close()
            return Outcome(case, 1, 0, (str(end),))
        return Outcome(case, answer["tried"], answer["computed"], tuple(answer["failures"]),
                       answer["seconds"])  # fmt: skip

    def close(self) -> None:
        if self.process:
            self.process.close()
            self.process = None


def listed(worker: Worker) -> list[Case]:
    return [Case(*case) for case in worker.ask("list")]


def run(
    cases: Iterable[Case], limit: int | None, crew: list[Worker], seen: Callable[[Outcome], None]
) -> list[Outcome]:
    """Judges the cases, as many at a time as the crew has, calling `seen` with each outcome."""
    idle, outcomes = SimpleQueue[Worker](), []
    for worker in crew:
        idle.put(worker)

    def judge(case: Case) -> Outcome:
        worker = idle.get()
        try:
            return worker.judge(case, limit)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(len(crew)) as pool:
        for done in as_completed([pool.submit(judge, case) for case in cases]):
            outcomes.append(done.result())
            seen(outcomes[-1])
    for worker in crew:
        worker.close()
    return outcomes
