"""`anydevice plan --calibrate`: what this machine's GPU and host reach, measured in under a minute.

Each measurement replaces one constant of rates.toml.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydevice.devices.catalogue import Card, card
from anydevice.errors import UsageError
from anydevice.plan.time.rates import Rates, rates, store
from anydevice.tables import Table
from anydevice.virtual.machine import enabled

WARM_UP = 5.0  # seconds of products, after which the GPU's clock is stable
BUDGET = 1.0  # seconds for each measurement
MANY = 500  # small ops in a row


@dataclass
class Calibration:
    """The measured constants, and whether the GPU was a real one."""

    card: Card
    device: str
    real: bool
    rates: dict[str, float] = field(default_factory=dict)

    def store(self) -> Path:
        """Saves them for predictions on this machine; those of a real GPU only."""
        if not self.real:
            raise UsageError(
                f"expected rates measured on a real GPU, got those of a virtual {self.device}, "
                "which computes on the CPU: run anydevice plan --calibrate where the GPU is."
            )
        return store(self.card, self.rates, self.device)

    def table(self) -> Table:
        """The measured values next to those of rates.toml."""
        columns = ("constant", "measured", "assumed before", "unit")
        shown = Table(columns, right=columns[1:3], title=f"Rates of {self.device}")
        if not self.real:
            shown.title += ", a virtual GPU: not the rates of a real one, not saved"
        before = Rates(self.card, measured={})
        for name, figure in self.rates.items():
            cells = (f"{figure:.3g}", f"{before[name]:.3g}", rates()[name].unit)
            shown.rows.append((name, *cells))
        return shown


def calibrate(device: int = 0, *, scale: float = 1.0, budget: float = BUDGET) -> Calibration:
    """Measures the GPU; a small `scale` makes the tensors smaller, for tests."""
    if not torch.cuda.is_available():
        raise UsageError(
            "expected a GPU to calibrate, got a machine without one that torch can use: run "
            "anydevice plan --calibrate where there is one, or plan with the built-in rates."
        )
    name = torch.cuda.get_device_name(device)
    found = Calibration(card(name), name, real=enabled() is None)
    bench = Bench(found.card, torch.device("cuda", device), scale, budget)
    with torch.cuda.device(device):
        if found.real:
            bench.warm_up()
        for constant, figure in bench.measurements():
            found.rates[constant] = figure
    return found


class Bench:
    """The measurements, on one GPU."""

    def __init__(self, known: Card, device: torch.device, scale: float, budget: float) -> None:
        self.card, self.device, self.scale, self.budget = known, device, scale, budget

    def measurements(self) -> Iterator[tuple[str, float]]:
        """Measures one constant after another: its name and value."""
        peak, half = self.card.peak, torch.bfloat16
        if "bfloat16" not in peak:
            half = torch.float16
        unit = str(half).removeprefix("torch.")
        products = self._product(torch.float32)
        yield "cuda_cores", products / peak["float32"]
        yield from self._convolutions_in_float32(products)
        if "tf32" in peak:
            yield "tf32", self._product(torch.float32, tf32=True) / peak["tf32"]
        if unit in peak:
            products = self._product(half)
            yield "tensor_cores", products / peak[unit]
            yield "convolution", self._convolution(half, 3) / products
            yield "attention", self._attention(half) / products
        yield "bandwidth", self._bandwidth() / self.card.bandwidth
        yield "pinned", self._copy(pinned=True) / self.card.link
        yield "pageable", self._copy(pinned=False) / self.card.link
        yield from self._small_ops()

    def warm_up(self) -> None:
        """Keeps the GPU busy until it runs at its clock under load."""
        a, end = self._random(4096, 4096), perf_counter() + WARM_UP
        while perf_counter() < end:
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()

    def _random(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, device=self.device).to(dtype)

    def _side(self, side: int, multiple: int = 64) -> int:
        return max(multiple, int(side * self.scale) // multiple * multiple)

    def seconds(self, function: Callable[[], object]) -> float:
        """The median time on the GPU, between two events."""
        event: Any = torch.cuda.Event
        for _ in range(3):
            function()
        times: list[float] = []
        end = perf_counter() + self.budget
        while len(times) < 3 or (perf_counter() < end and len(times) < 50):
            begin, done = (event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            done.record()
            done.synchronize()
            times.append(begin.elapsed_time(done) / 1e3)
        return max(statistics.median(times), 1e-9)

    def _product(self, dtype: torch.dtype, tf32: bool = False) -> float:
        side = self._side(8192 if dtype != torch.float32 or tf32 else 4096)
        a, b = (self._random(side, side, dtype=dtype) for _ in range(2))
        matmul: Any = torch.backends.cuda.matmul
        before, matmul.fp32_precision = matmul.fp32_precision, "tf32" if tf32 else "ieee"
        try:
            return float(2 * side**3) / self.seconds(lambda: a @ b)
        finally:
            matmul.fp32_precision = before

    def _convolutions_in_float32(self, products: float) -> Iterator[tuple[str, float]]:
        cudnn: Any = torch.backends.cudnn
        convolutions = cudnn.conv
        before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee"
        try:
            plain = self._convolution(torch.float32, 1)
            yield "convolution_float32", plain / products
            yield "winograd", max(1.0, self._convolution(torch.float32, 3) / plain)
        finally:
            convolutions.fp32_precision = before

    def _convolution(self, dtype: torch.dtype, width: int) -> float:
        """FLOP/s of a convolution like those of ResNets; channels last for tensor cores."""
        layout = torch.contiguous_format if dtype == torch.float32 else torch.channels_last
        images, channels = max(1, int(64 * self.scale)), self._side(256, 16)
        x = self._random(images, channels, 28, 28, dtype=dtype).to(memory_format=layout)
        weight = self._random(channels, channels, width, width, dtype=dtype).to(
            memory_format=layout
        )
        flops = 2 * images * 28 * 28 * channels**2 * width**2
        return flops / self.seconds(lambda: F.conv2d(x, weight, padding=width // 2))

    def _attention(self, dtype: torch.dtype) -> float:
        heads, length = max(1, int(32 * self.scale)), self._side(2048)
        q, k, v = (self._random(4, heads, length, 64, dtype=dtype) for _ in range(3))
        flops = 4 * 4 * heads * length**2 * 64
        return flops / self.seconds(lambda: F.scaled_dot_product_attention(q, k, v))

    def _bandwidth(self) -> float:
        x = self._random(self._side(1 << 27))
        y = torch.empty_like(x)
        return 2 * x.nbytes / self.seconds(lambda: y.copy_(x))

    def _copy(self, pinned: bool) -> float:
        x = self._random(self._side(1 << 24))
        host = torch.empty(x.shape, pin_memory=pinned)
        return x.nbytes / self.seconds(lambda: x.copy_(host, non_blocking=pinned))

    def _small_ops(self) -> Iterator[tuple[str, float]]:
        """The host's times, by ops too small to keep the GPU busy."""
        relu, x = nn.ReLU(), self._random(8).requires_grad_()
        host_op = self._host(lambda: [relu(x) for _ in range(MANY)]) / MANY
        yield "host_op", host_op
        yield "host_view", self._host(lambda: [x.view(-1) for _ in range(MANY)]) / MANY
        y = x
        for _ in range(MANY):
            y = relu(y)
        loss = y.sum()
        backward = self._host(lambda: torch.autograd.grad(loss, x, retain_graph=True))
        yield "host_backward", backward / MANY
        convolution = nn.Conv2d(8, 8, 1).to(self.device)
        image = self._random(1, 8, 4, 4)
        with_library = self._host(lambda: [convolution(image) for _ in range(100)]) / 100
        yield "host_library", max(1e-9, with_library - host_op)
        yield "host_tensor", self._optimizer(host_op)

        def waits() -> None:
            for _ in range(100):
                relu(x)
                torch.cuda.synchronize()

        yield "host_wait", max(1e-9, self._host(waits) / 100 - host_op)

    def _optimizer(self, host_op: float) -> float:
        """The host's time for each weight of a foreach Adam."""

        def step(tensors: int) -> float:
            weights = [nn.Parameter(self._random(8)) for _ in range(tensors)]
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            adam = torch.optim.Adam(weights, foreach=True)
            return self._host(adam.step)

        return max(1e-9, (step(200) - step(20)) / 180)

    def _host(self, function: Callable[[], object]) -> float:
        """Seconds until the host is done with it, even if the GPU is still busy."""
        function()
        times: list[float] = []
        end = perf_counter() + self.budget
        while len(times) < 3 or (perf_counter() < end and len(times) < 20):
            torch.cuda.synchronize()
            begin = perf_counter()
            function()
            times.append(perf_counter() - begin)
        return statistics.median(times)


def main(json: bool = False) -> None:
    """Measure, save and show."""
    from json import dumps

    from anydevice.tables import show

    found = calibrate()
    kept = found.store()
    if json:
        print(dumps({"card": found.card.kind, "rates": found.rates, "file": str(kept)}, indent=2))
        return
    show(found.table().__rich__())
    print(f"Saved in {kept}: predictions for {found.card.kind} use these rates from now on.")
