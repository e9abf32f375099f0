"""Predicted step times against times that others published of real GPUs.

python benchmarks/step_time.py
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

import anydevice as ad
from anydevice.devices.catalogue import card
from anydevice.plan.time.predict import predict
from anydevice.plan.time.recorder import WorkRecorder
from anydevice.tables import Table, show

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "virtual"))
import networks

# u39kun/deep-learning-benchmark, README.md: torchvision's networks, 16 images of 224 × 224, the
# time of a forward pass and of forward and backward between two synchronisations, cudnn.benchmark.
# PyTorch 0.3 (cuDNN 7.0), 1.0 (cuDNN 7.4) for the 2080 Ti. Milliseconds.
PASSES = [
    ("v100-16gb", "vgg16", "fp32", 26.2, 83.5),
    ("v100-16gb", "vgg16", "fp16", 12.6, 58.8),
    ("v100-16gb", "resnet152", "fp32", 38.7, 136.5),
    ("v100-16gb", "resnet152", "fp16", 21.7, 92.9),
    ("gtx-1080-ti", "vgg16", "fp32", 39.3, 131.9),
    ("gtx-1080-ti", "resnet152", "fp32", 57.8, 206.4),
    ("rtx-2080-ti", "vgg16", "fp32", 28.0, 95.5),
    ("rtx-2080-ti", "vgg16", "fp16", 19.1, 68.1),
    ("rtx-2080-ti", "resnet152", "fp32", 41.8, 142.5),
    ("rtx-2080-ti", "resnet152", "fp16", 25.0, 98.6),
]

# lambdal/deeplearning-benchmark, pytorch/pytorch-train-{throughput,bs}-{fp32,fp16}.csv: NVIDIA's
# example programs in its containers (TF32 where the card has it, AMP for fp16), samples a second.
THROUGHPUT = [
    ("v100-16gb", "resnet50", 128, "fp32", 369),
    ("rtx-3090", "resnet50", 224, "tf32", 513),
    ("rtx-a6000", "resnet50", 496, "tf32", 514),
    ("rtx-4090", "resnet50", 224, "tf32", 721),
    ("a100-40gb", "resnet50", 360, "tf32", 882),
    ("a100-80gb", "resnet50", 640, "tf32", 1066),
    ("h100-pcie", "resnet50", 640, "tf32", 1197),
    ("h100", "resnet50", 640, "tf32", 1893),
    ("v100-16gb", "bert", 24, "fp32", 42),
    ("rtx-3090", "bert", 48, "tf32", 85),
    ("rtx-a6000", "bert", 96, "tf32", 101),
    ("rtx-4090", "bert", 48, "tf32", 137),
    ("a100-80gb", "bert", 172, "tf32", 239),
    ("h100-pcie", "bert", 172, "tf32", 292),
    ("h100", "bert", 172, "tf32", 436),
    ("v100-16gb", "bert", 24, "fp16", 189),
    ("rtx-3090", "bert", 48, "fp16", 172),
    ("rtx-4090", "bert", 48, "fp16", 297),
    ("a100-80gb", "bert", 172, "fp16", 443),
    ("h100", "bert", 172, "fp16", 870),
]


class Bert(nn.Module):
    """BERT-base for questions: 12 layers, 384 tokens, two numbers a token."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(30522, 768), nn.Embedding(512, 768)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
            for _ in range(12)
        )
        self.head = nn.Linear(768, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Two numbers for each token."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def resnet152() -> nn.Module:
    """ResNet-50's parts, more of them."""
    first = networks.resnet50()
    layers, channels = list(first)[:4], 64
    for stage, depth in enumerate((3, 8, 36, 3)):
        for index in range(depth):
            stride = 2 if stage and not index else 1
            layers.append(networks.Bottleneck(channels, 64 << stage, stride))
            channels = 256 << stage
    return nn.Sequential(*layers, *list(first)[-3:])


NETWORKS = {
    "vgg16": networks.vgg16,
    "resnet50": networks.resnet50,
    "resnet152": resnet152,
    "bert": Bert,
}


def passes(name: str, precision: str, train: bool) -> Callable[[], None]:
    """As in u39kun's benchmark: the input has a gradient, the loss is a sum."""
    dtype = torch.float16 if precision == "fp16" else torch.float32
    with torch.device("cuda"):
        network = NETWORKS[name]().to(dtype)
    images = torch.rand(16, 3, 224, 224, device="cuda", dtype=dtype, requires_grad=train)

    def step() -> None:
        with torch.set_grad_enabled(train):
            network.zero_grad()
            loss = network(images)
        if train:
            loss.sum().backward()

    return step


def training(name: str, batch: int, precision: str) -> Callable[[], None]:
    """A whole step; Adam for BERT, SGD with momentum for ResNet, as in NVIDIA's examples."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    with torch.device("cuda"):
        network = NETWORKS[name]()
    parameters = network.parameters()
    if name == "bert":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, fused=True)
        batch_of = lambda: torch.randint(30522, (batch, 384), device="cuda")  # noqa: E731
    else:
        optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        batch_of = lambda: torch.rand(batch, 3, 224, 224, device="cuda")  # noqa: E731

    def step() -> None:
        with torch.autocast("cuda", torch.float16, enabled=precision == "fp16"):
            output = network(batch_of())
            labels = torch.zeros(len(output), *output.shape[2:], dtype=torch.long, device="cuda")
            loss = F.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def predicted(kind: str, make: Callable[[], Callable[[], None]], synchronised: bool):
    """The prediction for the second step of what `make` makes, on a hollow card."""
    with ad.virtual_gpus(gpu=kind, hollow=True, memory="512GiB"):
        step = make()
        step()
        with WorkRecorder() as recorder:
            step()
            recorder.mark_step()
    return predict(recorder.step(), card(kind), synchronised=synchronised, measured={})


def main() -> None:
    """Predicts each and prints how far off it is."""
    columns = ("card", "network", "precision", "what", "published", "predicted", "range", "ratio")
    table = Table(columns, right=columns[4:], title="Milliseconds a step, predicted and published")
    ratios, inside = [], 0

    def add(kind: str, name: str, precision: str, what: str, truth: float, found) -> None:
        nonlocal inside
        ratio, ends = found.seconds / truth, (found.low * 1e3, found.high * 1e3)
        ratios.append(ratio)
        inside += found.low <= truth <= found.high
        cells = f"{truth * 1e3:.1f}", f"{found.seconds * 1e3:.1f}", "{:.1f}–{:.1f}".format(*ends)
        table.rows.append((kind, name, precision, what, *cells, f"{ratio:.2f}"))

    for kind, name, precision, forward, both in PASSES:
        for what, truth, train in (("forward", forward, False), ("both", both, True)):
            make = lambda n=name, p=precision, t=train: passes(n, p, t)  # noqa: E731
            add(kind, name, precision, what, truth / 1e3, predicted(kind, make, True))
    for kind, name, batch, precision, rate in THROUGHPUT:
        make = lambda n=name, b=batch, p=precision: training(n, b, p)  # noqa: E731
        add(kind, name, precision, f"{batch}", batch / rate, predicted(kind, make, False))
    show(table)
    errors = [abs(ratio - 1) for ratio in ratios]
    print(
        f"{len(ratios)} times: median error {statistics.median(errors):.0%}, worst "
        f"{max(errors):.0%}, median ratio {statistics.median(ratios):.2f}; "
        f"{inside} of {len(ratios)} within the range."
    )


if __name__ == "__main__":
    main()
