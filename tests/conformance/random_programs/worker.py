"""One process with virtual GPUs that runs program after program: a line of JSON in, a line out."""

import json
import os
import sys

from tests.conformance.worker import start


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start()
    from tests.conformance.random_programs.drawing import drawn
    from tests.conformance.random_programs.judging import failure
    from tests.conformance.random_programs.programs import read, written

    for line in sys.stdin:
        asked = json.loads(line)
        if "seed" in asked:
            answer = [written(program) for program in drawn(asked["seed"], asked["count"])]
        else:
            answer = failure(read(asked["program"]))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
