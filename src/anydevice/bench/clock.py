"""The clock: medians of synchronised calls, and what a clock shows that does not wait."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from statistics import quantiles
from time import perf_counter
from typing import Any

import torch

from anydevice import system

Work = Callable[[], object]

WARM_UP = 0.1  # seconds, in which kernels are chosen, memory is taken and clocks rise
ENOUGH = 0.5  # seconds of calls for one figure, but at least FEWEST calls
FEWEST, MOST = 3, 50


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, the quartiles, and what was read without waiting."""

    seconds: float
    low: float
    high: float
    repeats: int
    unsynchronised: float


class TooSlow(Exception):  # noqa: N818, no error
    """A call takes longer than the patience allows; `seconds` says how long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"a call takes {seconds:.3g} s")


class Clock:
    """Times work on one device: by its own events where it has them, else by waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cache = _cache_size(device)
        self._events = _events(device)
        self._scratch: torch.Tensor | None = None

    def time(self, work: Work, *, touched: int = 0, patience: float = inf) -> Timing:
        """The time of a call; where the cache could hold the `touched` bytes, it is emptied first.

        The GPU's queue is then not empty when the work is launched, so the launch is not counted;
        a training hides it in the same way. Work that takes more than `patience` seconds raises
        `TooSlow`.
        """
        estimate = self._warm_up(work)
        if FEWEST * estimate > patience:
            raise TooSlow(estimate)
        flushes = 0 < touched < 4 * self.cache
        readings: list[tuple[float, float]] = []
        begin = perf_counter()
        while len(readings) < FEWEST or (len(readings) < MOST and perf_counter() - begin < ENOUGH):
            readings.append(self._reading(work, flushes))
        low, median, high = quantiles((true for true, _ in readings), method="inclusive")
        _, unsynchronised, _ = quantiles((early for _, early in readings), method="inclusive")
        return Timing(median, low, high, len(readings), unsynchronised)

    def wait(self) -> None:
        """Waits until the device has done all its work."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def _warm_up(self, work: Work) -> float:
        """Seconds of the last call of the warm-up."""
        begin = perf_counter()
        while True:
            last = perf_counter()
            work()
            self.wait()
            now = perf_counter()
            if now - begin > WARM_UP:
                return now - last

    def _reading(self, work: Work, flushes: bool) -> tuple[float, float]:
        """Seconds of one call, and the seconds until it returned."""
        if flushes:
            self._flush()
        if self._events:
            start, stop = self._events
            start.record()
            begin = perf_counter()
            work()
            back = perf_counter()
            stop.record()
            stop.synchronize()
            return start.elapsed_time(stop) / 1000, back - begin
        self.wait()
        begin = perf_counter()
        work()
        back = perf_counter()
        self.wait()
        return perf_counter() - begin, back - begin

    def _flush(self) -> None:
        if self._scratch is None:
            self._scratch = torch.empty(2 * self.cache, dtype=torch.uint8, device=self.device)
        self._scratch.zero_()


def _events(device: torch.device) -> tuple[Any, Any] | None:
    """Two of the device's own events, where it has them."""
    if device.type == "cpu":
        return None
    try:
        start, stop = (torch.Event(device, enable_timing=True) for _ in range(2))
        start.record()
        stop.record()
        stop.synchronize()
        start.elapsed_time(stop)
    except (RuntimeError, NotImplementedError):
        return None
    return start, stop


def _cache_size(device: torch.device) -> int:
    """Bytes of the last cache before the memory."""
    if device.type != "cpu":
        properties = getattr(torch.get_device_module(device), "get_device_properties", None)
        size = getattr(properties(device), "L2_cache_size", None) if properties else None
        return size or 32 * 2**20
    caches = system.kernel_files("/sys/devices/system/cpu/cpu0/cache/index*/size")
    try:
        return max(int(size.read_text().strip().removesuffix("K")) * 1024 for size in caches)
    except (OSError, ValueError):  # not Linux, or a kernel that does not say
        return 32 * 2**20
