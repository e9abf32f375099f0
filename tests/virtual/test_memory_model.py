"""The allocator's C++ model against an independent one: every statistic after every step."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .allocator_model import MIB, UNLIMITED, Model, OutOfMemoryError

HERE = Path(__file__).parent
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target = tmp_path_factory.mktemp("driver") / "caching_allocator.so"
    source = HERE / "caching_allocator_driver.cpp"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-D_GLIBCXX_ASSERTIONS"]
    subprocess.run([str(COMPILER), *flags, str(source), "-o", str(target)], check=True)
    lib = ctypes.CDLL(str(target))
    lib.make.restype = lib.allocate.restype = ctypes.c_void_p
    lib.size_of.restype = lib.address_of.restype = lib.free_bytes.restype = ctypes.c_uint64
    lib.blocks.restype = ctypes.c_int64
    return lib


class Compiled:
    """The C++ model, with the methods of `Model`."""

    figures = 5 + (9 * 3 + 2) * 4

    def __init__(self, lib: ctypes.CDLL, model: Model) -> None:
        self.lib = lib
        u64 = ctypes.c_uint64
        self.handle = ctypes.c_void_p(
            lib.make(
                u64(model.total),
                u64(model.max_split),
                u64(model.large_segment),
                ctypes.c_double(model.gc_threshold),
                int(model.expandable),
                u64(model.divisions),
            )
        )

    def allocate(self, size: int, stream: int) -> ctypes.c_void_p:
        refused = (ctypes.c_uint64 * 5)()
        block = self.lib.allocate(
            self.handle, ctypes.c_uint64(size), ctypes.c_int64(stream), refused
        )
        if block is None:
            raise OutOfMemoryError(*refused)
        return ctypes.c_void_p(block)

    def statistics(self) -> list[int]:
        out = (ctypes.c_int64 * self.figures)()
        self.lib.statistics(self.handle, out)
        return list(out)

    def used(self) -> set[tuple[int, int]]:
        out = (ctypes.c_uint64 * (5 * 4096))()
        count = self.lib.blocks(self.handle, out, ctypes.c_int64(4096))
        rows = [tuple(out[5 * i : 5 * i + 5]) for i in range(count)]
        return {(address, size) for address, size, _, active, _ in rows if active}


KIB = 1 << 10
sizes = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 3 * MIB),
    st.integers(MIB, 40 * MIB),
    st.sampled_from([512, 513, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 20 * MIB]),
)
streams = st.sampled_from([0, 0, 0, 7])
steps = st.one_of(
    st.tuples(st.just("allocate"), sizes, streams),
    st.tuples(st.just("allocate"), sizes, streams),
    st.tuples(st.just("free"), st.integers(0, 1000), st.just(0)),
    st.tuples(st.just("free"), st.integers(0, 1000), st.just(0)),
    st.tuples(st.just("record_stream"), st.integers(0, 1000), streams),
    st.tuples(
        st.sampled_from(["empty_cache", "reset_peak", "reset_accumulated"]), st.just(0), st.just(0)
    ),
    st.tuples(st.just("fraction"), st.integers(3, 10), st.just(0)),
)
plain = st.builds(Model, total=st.sampled_from([16 * MIB, 60 * MIB, 200 * MIB]))
tuned = st.builds(
    Model,
    total=st.sampled_from([60 * MIB, 200 * MIB]),
    max_split=st.sampled_from([UNLIMITED, 20 * MIB, 32 * MIB]),
    large_segment=st.sampled_from([12 * MIB, 20 * MIB]),
    gc_threshold=st.sampled_from([0.0, 0.3, 0.8]),
    divisions=st.sampled_from([0, 1, 2, 4, 8]),
)
growing = st.builds(
    Model,
    total=st.sampled_from([60 * MIB, 200 * MIB]),
    expandable=st.just(True),
    divisions=st.sampled_from([0, 4]),
)


@settings(max_examples=150, deadline=None)
@given(model=st.one_of(plain, tuned, growing), trace=st.lists(steps, max_size=60))
def test_every_statistic_after_every_step_is_what_the_published_rules_say(
    library: ctypes.CDLL, model: Model, trace: list[tuple[str, int, int]]
) -> None:
    compiled = Compiled(library, model)
    try:
        replay(compiled, model, trace)
    finally:
        library.unmake(compiled.handle)


def replay(compiled: Compiled, model: Model, trace: list[tuple[str, int, int]]) -> None:
    lib, live = compiled.lib, []  # type: ctypes.CDLL, list[tuple[Any, Any]]
    for name, amount, stream in trace:
        if name == "allocate":
            ours, theirs = attempt(compiled, amount, stream), attempt(model, amount, stream)
            if isinstance(theirs, OutOfMemoryError):
                assert isinstance(ours, OutOfMemoryError)
                assert ours.args == theirs.args
            else:
                assert lib.size_of(ours) == theirs.size
                assert lib.address_of(ours) == theirs.segment.start + theirs.start
                live.append((ours, theirs))
        elif name == "free" and live:
            ours, theirs = live.pop(amount % len(live))
            lib.release(compiled.handle, ours)
            model.free(theirs)
        elif name == "record_stream" and live:
            ours, theirs = live[amount % len(live)]
            lib.record_stream(compiled.handle, ours, ctypes.c_int64(stream))
            model.record_stream(theirs, stream)
        elif name == "empty_cache":
            lib.empty_cache(compiled.handle)
            model.release_everything()
        elif name == "fraction":
            model.fraction = amount / 10
            lib.set_fraction(compiled.handle, ctypes.c_double(amount / 10))
        elif name in ("reset_peak", "reset_accumulated"):
            getattr(lib, name)(compiled.handle)
            getattr(model, name)()
        assert compiled.statistics() == model.statistics(), name
        assert lib.free_bytes(compiled.handle) == model.total - model.reserved
    uses = [(s.start + u.start, u.size) for s in model.segments for u in s.uses.values()]
    assert compiled.used() == set(uses)


def attempt(allocator: Any, size: int, stream: int) -> Any:
    try:
        return allocator.allocate(size, stream)
    except OutOfMemoryError as refused:
        return refused
