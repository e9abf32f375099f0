"""Runs a batch of random programs, or one program, and prints what fails, shrunk.

python -m tests.conformance.random_programs --seed 17
python -m tests.conformance.random_programs --program 'binary:00af… view:0102…'
"""

import argparse
import sys

from tests.conformance.crew import Worker, WorkerDiedError
from tests.conformance.random_programs import BATCH
from tests.conformance.random_programs.programs import read, written
from tests.conformance.random_programs.shrinking import shrunk

COMMAND = ("-m", "tests.conformance.random_programs.worker")


class Trial:
    """Runs programs in another process, so that a crash is an answer like others."""

    def __init__(self) -> None:
        self.worker = Worker(COMMAND, limit_s=60)

    def __call__(self, text: str) -> str | None:
        try:
            return self.worker.ask({"program": text})
        except WorkerDiedError as end:
            self.worker.close()
            return str(end)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.random_programs", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=BATCH, help="so many programs of the seed")
    parser.add_argument("--program", help="this one, as it was printed")
    given = parser.parse_args()
    trial = Trial()
    asked = {"seed": given.seed, "count": given.count}
    texts = [given.program] if given.program else trial.worker.ask(asked)
    failed = 0
    for text in texts:
        if found := trial(text):
            failed += 1
            least, how = shrunk(read(text), found, lambda program: trial(written(program)))
            print(f"{how}\n\n{written(least)}\n{'-' * 80}", flush=True)
    print(f"{failed} of {len(texts)} programs failed.")
    trial.worker.close()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
