"""A guide to a working GPU, for what is found on this machine: driver, PyTorch's build, cloud."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.text import Text

from anydevice.devices.absence import Surroundings, diagnose, look_around
from anydevice.tables import Shown

DOCKER = "docker run --gpus all …"
CLOUD = (
    "An image for machine learning (AWS Deep Learning AMI, Google Deep Learning VM, Azure's "
    "ubuntu-hpc) has the driver already; on a plain image the steps above are needed. The kinds of "
    "machines with NVIDIA GPUs are p and g (AWS), a2, a3 and g2 (Google), NC and ND (Azure)."
)


@dataclass(frozen=True)
class Step:
    """One thing to do, or one that is in order."""

    title: str
    text: str
    command: str = ""
    done: bool = False


@dataclass(frozen=True, repr=False)
class Guide(Shown):
    """The steps to a working GPU on this machine; it prints as a list."""

    steps: tuple[Step, ...]

    def _shown(self) -> Iterator[Text]:
        for number, step in enumerate(self.steps, 1):
            mark = "ok" if step.done else "to do"
            lines = [Text.assemble((f"{number}. {step.title}", "bold"), f" ({mark})")]
            lines.append(Text(f"   {step.text}"))
            lines += [Text(f"   $ {step.command}")] if step.command else []
            yield Text("\n").join(lines)


def guide(facts: Surroundings | None = None, gpus: int | None = None) -> Guide:
    """What to do for a GPU on this machine.

    Args:
        facts: What is known of the machine; without it, this one is looked at.
        gpus: How many GPUs PyTorch sees; without it, it is asked.

    Example:
        >>> len(guide().steps) >= 4
        True
    """
    facts = facts or look_around()
    gpus = torch.accelerator.device_count() if gpus is None else gpus
    if facts.system == "Darwin":
        return Guide((_mac(facts, gpus), _check(facts, gpus)))
    first = _card(facts, gpus), _driver(facts), _build(facts), _cudnn(facts)
    return Guide((*first, _cloud(facts), _check(facts, gpus)))


def _card(facts: Surroundings, gpus: int) -> Step:
    if facts.nvidia_card or gpus:
        return Step("A GPU", "A GPU is in this machine.", done=True)
    if facts.in_container:
        text = "This is a container, which sees the GPU only if it is started so:"
        return Step("A GPU", text, DOCKER)
    text = (
        "No NVIDIA GPU shows on the PCI bus. Try the program without one meanwhile: "
        "`anydevice run train.py` runs it on virtual GPUs, `anydevice plan` predicts a real one."
    )
    return Step("A GPU", text, "lspci | grep -i nvidia")


def _driver(facts: Surroundings) -> Step:
    title = "The NVIDIA driver"
    if facts.driver is not None:
        release = f"{facts.driver // 1000}.{facts.driver % 1000 // 10}"
        needed = int(str(facts.cuda).split(".")[0]) if facts.cuda else 0
        if facts.driver // 1000 >= needed:
            return Step(title, f"It is here, for CUDA {release}.", done=True)
        text = f"It is for CUDA {release}; this PyTorch needs CUDA {needed}: update it."
        return Step(title, text, "sudo ubuntu-drivers install")
    if facts.in_container:
        text = "The driver belongs to the container's host, with the NVIDIA container toolkit:"
        return Step(title, text, DOCKER)
    text = "It is not installed. The CUDA toolkit is not needed: PyTorch brings its libraries."
    linux = facts.system == "Linux"
    where = "" if linux else " It is at nvidia.com/drivers."
    return Step(title, text + where, "sudo ubuntu-drivers install" if linux else "")


def _build(facts: Surroundings) -> Step:
    title = "PyTorch's build"
    if facts.cuda:
        text = f"PyTorch {facts.torch_version} is built for CUDA {facts.cuda}."
        return Step(title, text, done=True)
    if facts.accelerator:
        text = f"PyTorch {facts.torch_version} is built for {facts.accelerator} devices."
        return Step(title, text, done=True)
    release = facts.driver // 1000 if facts.driver else None
    which = f"one for CUDA {release} or older" if release else "one for CUDA"
    text = (
        f"PyTorch {facts.torch_version} is for the CPU alone: pytorch.org/get-started has {which}."
    )
    command = "pip install --force-reinstall torch  # with the index that pytorch.org names"
    return Step(title, text, command)


def _cudnn(facts: Surroundings) -> Step:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    text = "It comes with PyTorch's CUDA build: nothing has to be installed."
    if version:
        text = f"Version {version // 10000}.{version // 100 % 100} came with PyTorch."
    return Step("cuDNN", text, done=facts.cuda is not None)


def _cloud(facts: Surroundings) -> Step:
    return Step("On a cloud machine", CLOUD, "nvidia-smi", done=facts.driver is not None)


def _mac(facts: Surroundings, gpus: int) -> Step:
    text = "PyTorch's arm64 build uses the GPU of Apple silicon as the device mps, from macOS 14."
    return Step("An Apple GPU", text, "pip install torch", done=bool(gpus))


def _check(facts: Surroundings, gpus: int) -> Step:
    if gpus:
        return Step("The check", f"PyTorch sees {gpus} of them.", "anydevice bench", done=True)
    reason = diagnose(facts).reason
    return Step("The check", f"PyTorch sees none: {reason}.", "anydevice devices")
