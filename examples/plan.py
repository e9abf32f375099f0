"""Do AlexNet and VGG-16 fit a Titan X with 12 GB at batch 128? Asked on a machine without a GPU.

python examples/plan.py

"AlexNet takes 1.1 GB, VGG-16 14 GB, on a Titan X with 12 GB" is often quoted. What the tensors
take, what the process holds and what cuDNN works in are three figures; here are all of them.
"""

from functools import partial

import torch
from torch import nn

import anydevice as ad

MIB, GB = 2**20, 10**9
OPTIMIZERS = {
    "SGD": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
}


def convolution(channels, width, kernel=3, stride=1, padding=1):
    """A convolution and its ReLU, which works in place."""
    return nn.Conv2d(channels, width, kernel, stride, padding), nn.ReLU(inplace=True)


def classifier(inputs):
    """The layers that hold most of the weights."""
    hidden = nn.Linear(inputs, 4096), nn.ReLU(inplace=True), nn.Dropout()
    last = nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000)
    return nn.Flatten(), *hidden, *last


def alexnet():
    """61 million parameters, five convolutions."""
    return nn.Sequential(
        *(*convolution(3, 64, 11, 4, 2), nn.MaxPool2d(3, 2)),
        *(*convolution(64, 192, 5, 1, 2), nn.MaxPool2d(3, 2)),
        *(*convolution(192, 384), *convolution(384, 256), *convolution(256, 256)),
        *(nn.MaxPool2d(3, 2), *classifier(256 * 6 * 6)),
    )


def vgg16():
    """138 million parameters, thirteen convolutions on larger images."""
    layers, channels = [], 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += convolution(channels, width)
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *classifier(512 * 7 * 7))


def train(make_network, make_optimizer, batch=128):
    """Plain training: nothing here knows that it is planned, or that there is no GPU."""
    with torch.device("cuda"):
        network = make_network()
    optimizer = make_optimizer(network.parameters(), lr=0.01)
    while True:
        images = torch.rand(batch, 3, 224, 224, device="cuda")
        labels = torch.randint(1000, (batch,), device="cuda")
        loss = nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    """The two networks with three optimizers, on the Titan X and on a card with tensor cores."""
    print("MiB at the peak of a step     tensors  whole process  on a Titan X")
    for name, make_network in (("AlexNet", alexnet), ("VGG-16", vgg16)):
        for word, make_optimizer in OPTIMIZERS.items():
            plan = ad.plan(partial(train, make_network, make_optimizer), gpus="titan-x")
            run = plan["titan-x"].run
            sizes = f"{run.tensors / MIB:12,.0f} {run.device_bytes / MIB:14,.0f}"
            print(f"{name:10} {word:12} {sizes}  {'fits' if plan.fits else 'does not fit'}")
        explain(name, partial(train, make_network, OPTIMIZERS["momentum"]))


def explain(name, training):
    """Which of the figures the quoted one is."""
    run = ad.plan(training, gpus="a100-80gb")["a100-80gb"].run
    tensors, workspace = run.tensors / GB, run.cudnn / GB
    quoted = "1.1 GB are its tensors" if name == "AlexNet" else "14 GB are not its tensors alone"
    print(f"  {quoted}: {tensors:.1f} GB with momentum. Where cuDNN has")
    together = f"{tensors + workspace:.1f} GB"
    print(f"  tensor cores, a convolution works in {workspace:.1f} GB more: together {together}.\n")


main()
