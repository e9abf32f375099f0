"""What a sweep shows while it runs."""

from time import perf_counter

import pytest

from anydevice.sweep.grid import grid
from anydevice.sweep.records.records import Record
from anydevice.sweep.results.live import Progress, line_of, picture
from anydevice.tables import plain_text

RUNS = grid(lr=[1, 2, 3, 4])


def a_record(place: int, state: str = "done", error: str | None = None, **figures) -> Record:
    run, epochs = RUNS[place], [{"epoch": 1, "seconds": 0.5, **figures}]
    return Record(run.key, run.parameters, state, error, epochs, seconds=90)


def test_the_view_tells_how_many_are_done_what_runs_and_the_best_so_far() -> None:
    progress = Progress(total=4, workers=2)
    progress.started(RUNS[0])
    assert plain_text(picture(progress)).splitlines()[0].endswith("0 of 4 runs done, 1 running")
    progress.started(RUNS[1])
    progress.epoch(RUNS[1], {"epoch": 2, "loss": 0.5})
    progress.ended(RUNS[0], a_record(0, loss=0.25))
    progress.ended(RUNS[2], a_record(2, "failed", "Traceback:\n  x\nValueError: bad"))
    first, best, running = plain_text(picture(progress)).splitlines()
    assert "2 of 4 runs done (1 failed), 1 running, about " in first
    assert first.endswith(" left")
    assert best == "best so far: loss 0.25 (lr=1)"
    assert running == "  lr=2  epoch 2  loss 0.5"


def test_the_time_left_is_that_of_the_runs_that_ended_and_does_not_climb_meanwhile() -> None:
    now = perf_counter()
    progress = Progress(total=5, workers=1, begin=now - 1000, done=1, ended_here=1)
    progress.latest_end = now - 900
    left = progress.seconds_left()
    assert left == pytest.approx(300)  # a run is under way for longer than the first one took
    assert (progress.seconds_left() or 0) <= left


def test_a_run_that_ended_is_one_line() -> None:
    done, failed = a_record(0, loss=0.25), a_record(1, "failed", "Traceback:\n  x\nValueError: bad")
    assert line_of(RUNS[0], done) == "lr=1  epoch 1  loss 0.25  90 s"
    assert line_of(RUNS[1], failed) == "lr=2  failed after 90 s: ValueError: bad"
    crashed = Record(RUNS[1].key, RUNS[1].parameters, "failed", error="killed by SIGKILL")
    assert line_of(RUNS[1], crashed) == "lr=2  failed: killed by SIGKILL"
    assert line_of(RUNS[0], a_record(0, "stopped", loss=1)).endswith("stopped after epoch 1")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            "the run's process was killed by SIGKILL\nabout to",
            "the run's process was killed by SIGKILL",
        ),
        ("Traceback …\n  File …\nKeyError: 'a'", "KeyError: 'a'"),
        (None, "no reason is known"),
    ],
)
def test_a_reason_is_the_line_that_says_something(error: str | None, line: str) -> None:
    assert Record("k", {}, "failed", error).reason == line
