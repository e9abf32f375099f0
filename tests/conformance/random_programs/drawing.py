"""Programs as hypothesis draws them."""

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.conformance.random_programs.kinds import KINDS
from tests.conformance.random_programs.programs import Program, Step

LONGEST = 24  # steps
BYTES = 14  # a step

WEIGHTED = [name for name, (_, weight) in KINDS.items() for _ in range(weight)]
STEPS = st.builds(Step, st.sampled_from(WEIGHTED), st.binary(min_size=BYTES, max_size=BYTES))
PROGRAMS = st.lists(STEPS, min_size=3, max_size=LONGEST).map(tuple)


def drawn(number: int, count: int) -> list[Program]:
    """The programs of a seed; the first, which hypothesis always makes the same, is left out."""
    programs: list[Program] = []

    @seed(number)
    @settings(
        max_examples=count + 1,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(PROGRAMS)
    def collect(program: Program) -> None:
        programs.append(program)

    collect()
    return programs[1:]
