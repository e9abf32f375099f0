"""What once crashed, hung or went unsaid: each in a process of its own."""

import os
import subprocess
import textwrap

import pytest

from ..forked import python

HEAD = "import os, sys, threading, torch\nimport anydevice as ad\nad.virtual.enable(2, 't4')\n"


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = ("-c", HEAD + textwrap.dedent(program))
    return python(*words, timeout=100, env={**os.environ, **environment})


def test_a_tensor_survives_that_its_resize_ran_out_of_memory() -> None:
    done = run("""
        x, y = torch.ones(4, device="cuda"), torch.ones(2 << 20, device="cuda")
        torch.cuda.set_per_process_memory_fraction(0.0015)
        try:
            torch.cat([y] * 6, out=x)
        except torch.OutOfMemoryError:
            print("refused")
        print((x + 1).tolist())
    """)
    assert done.stdout.split("\n")[:2] == ["refused", "[2.0, 2.0, 2.0, 2.0]"], done.stderr


def test_a_forked_child_frees_what_it_inherited_while_the_parent_works() -> None:
    done = run("""
        stop = False
        def work():
            while not stop:
                torch.empty(3, device="cuda")
        workers = [threading.Thread(target=work) for _ in range(2)]
        [worker.start() for worker in workers]
        for _ in range(10):
            keep = [torch.ones(3, device="cuda") for _ in range(50)]
            child = os.fork()
            if child == 0:
                keep.clear()
                os._exit(0)
            os.waitpid(child, 0)
        stop = True
        [worker.join() for worker in workers]
        print("done")
    """)
    assert done.stdout == "done\n", done.stderr


def test_a_gpu_that_is_not_there_is_refused_everywhere() -> None:
    done = run("""
        torch.ones(1, device="cuda")
        for ask in (
            torch.cuda.memory_allocated, torch.cuda.mem_get_info, torch.cuda.current_stream,
            torch.cuda.reset_peak_memory_stats, torch.accelerator.memory_allocated,
            lambda i: torch.cuda.set_per_process_memory_fraction(0.5, i),
        ):
            for index in (2, 5, 100000):
                try:
                    print("not refused", ask, index, ask(index))
                except (RuntimeError, OverflowError, AssertionError, ValueError, TypeError):
                    pass
    """)
    assert done.stdout == "", done.stderr
    assert done.returncode == 0, done.stderr


def test_what_is_left_after_disabling_raises_and_does_not_abort() -> None:
    done = run("""
        weight = torch.nn.Linear(4, 4).cuda().weight
        ad.virtual.disable()
        try:
            weight + 1
        except Exception as error:
            print(type(error).__name__)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_traced_convolution_keeps_its_input_variable() -> None:
    done = run("""
        layer, x = torch.nn.Conv1d(1, 2, 1).cuda(), torch.ones(1, 1, 4, device="cuda")
        traced = torch.jit.trace(layer, x, check_trace=False)
        print(traced(5 * x).device, torch.allclose(traced(5 * x), layer(5 * x)))
    """)
    assert done.stdout.strip() == "cuda:0 True", done.stderr


def test_listeners_nest_and_their_errors_are_raised() -> None:
    done = run("""
        from anydevice.virtual.events import listening
        x, outer, inner = torch.ones(1, device="cuda"), [], []
        with listening(outer.append):
            with listening(inner.append):
                x.item()
            x.item()
        kinds = [event.kind for event in outer]
        print(kinds.count("synchronise"), [e.kind for e in inner].count("synchronise"))
        def refuse(event):
            raise KeyError(event.kind)
        try:
            with listening(refuse):
                x.item()
        except KeyError as error:
            print("raised", error)
    """)
    assert done.stdout.splitlines()[0] == "2 1", done.stderr
    assert "raised" in done.stdout


@pytest.mark.parametrize("folder", ["/dev/full", "/proc/1/nothing"])
def test_a_cache_that_cannot_be_written_is_a_sentence(folder: str) -> None:
    words = ("-m", "anydevice.virtual.build")
    done = python(*words, env={**os.environ, "XDG_CACHE_HOME": folder})
    assert done.returncode == 1
    assert "set XDG_CACHE_HOME to a directory that can be written" in done.stderr
    assert "Traceback" not in done.stderr
