"""Random programs, each run on the CPU and on virtual GPUs at the same time, step by step.

A program is a list of steps; a step is a kind ("binary", "view", "graph", …) and some bytes, from
which the step takes each of its choices: which values it works on, which op, which dimension. So
any bytes are a program, and a program that fails stays one while `shrink.py` takes parts away.

- `programs.py` draws programs (hypothesis), `choices.py` reads the bytes of a step.
- `values.py` has the values of a program: pairs of tensors, one on each side, that must be equal.
- `running.py` runs a program; each op is applied to both sides, and its results are compared.
- `elementwise.py`, `shapes.py`, `indices.py`, `places.py`, `layers.py`, `training.py`,
  `functions.py`, `sparse.py` and `database.py` have the kinds of steps; `kinds.py` lists them.
- `accounting.py` compares the memory statistics with the values that are left.
- `python -m tests.conformance.random_programs --seed 17` runs one batch, each program in a separate
  process, and prints what fails, shrunk.
"""

BATCHES = 200
BATCH = 100
