"""Why is there no GPU? Each cause has its own answer, and what to do about it."""

import ctypes
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from anydevice import system

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
CUDA_ERRORS = {
    NO_DEVICE: "no CUDA device is detected",
    46: "the GPU is in use by another process, and exclusive",
    101: "a device number is invalid",
    802: "the fabric manager is not running yet",
    803: "the driver and its libraries are of different versions",
    804: "the driver's forward compatibility does not cover this GPU",
    999: "unknown error, often after the machine slept",
}

# How many virtual GPUs this process has been given; set where they are put in place.
virtual_gpus = 0


@dataclass(frozen=True)
class Absence:
    """Why there is no GPU (a clause without a full stop), and what to do about it (a sentence)."""

    cause: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Surroundings:
    """The facts that the diagnosis rests on."""

    torch_version: str
    accelerator: str | None  # the kind of GPU this torch is built for
    cuda: str | None  # the CUDA release torch is built with, such as "13.0"
    system: str
    nvidia_card: bool  # a card on the PCI bus, with or without a driver
    in_container: bool
    driver: int | None  # the CUDA release the driver supports: 13000 is 13.0; None without driver
    driver_status: int  # what the driver's own start-up answers; 0 is success
    visible: str | None  # CUDA_VISIBLE_DEVICES
    virtual: int = 0  # GPUs that this process was given, visible or not


def why_no_gpu() -> Absence | None:
    """Why there is no GPU and what to do about it; None if there is one."""
    return None if torch.accelerator.device_count() else diagnose(look_around())


def diagnose(facts: Surroundings) -> Absence:
    """The first cause, in the order in which they have to be fixed."""
    if facts.accelerator == "cuda" and facts.cuda:
        return _cuda_cause(facts)
    if facts.accelerator == "mps":
        return Absence(
            "unusable",
            f"PyTorch {facts.torch_version} supports Apple GPUs, but macOS offers none",
            "Use macOS 14 or newer on a Mac with Apple silicon, outside a virtual machine.",
        )
    if facts.accelerator:
        return Absence(
            "unusable",
            f"PyTorch {facts.torch_version} is built for {facts.accelerator} devices, "
            "and its driver offers none",
            f"Install the driver for {facts.accelerator} devices, or a CUDA build of PyTorch.",
        )
    return _cpu_build(facts)


def look_around() -> Surroundings:
    """Gather the facts. It is called where torch sees no GPU: starting the driver is harmless."""
    accelerator = torch.accelerator.current_accelerator()
    driver, status = _ask_driver()
    return Surroundings(
        torch_version=torch.__version__,
        accelerator=accelerator.type if accelerator else None,
        cuda=torch.version.cuda,
        system=platform.system(),
        nvidia_card=_nvidia_card(),
        in_container=any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")),
        driver=driver,
        driver_status=status,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        virtual=virtual_gpus,
    )


def _cpu_build(facts: Surroundings) -> Absence:
    if facts.system == "Darwin":
        remedy = "GPUs of Macs need PyTorch's arm64 build, on Apple silicon."
    elif facts.nvidia_card or facts.driver:
        remedy = "An NVIDIA GPU is here: install a CUDA build of PyTorch (pytorch.org/get-started)."
    else:
        remedy = (
            "No NVIDIA GPU shows on this machine either; on one that has it, "
            "install a CUDA build (pytorch.org/get-started)."
        )
    return Absence("CPU-only build", f"PyTorch {facts.torch_version} is a CPU-only build", remedy)


def _cuda_cause(facts: Surroundings) -> Absence:
    if facts.virtual and facts.visible is not None:
        numbers = "0" if facts.virtual == 1 else f"0 to {facts.virtual - 1}"
        return Absence(
            "hidden",
            f"CUDA_VISIBLE_DEVICES is {facts.visible!r}, which hides the virtual GPUs (numbers "
            f"{numbers})",
            "Unset CUDA_VISIBLE_DEVICES, or name GPUs among these.",
        )
    if facts.driver is None:
        return Absence("no driver", "no NVIDIA driver is installed", _driver_remedy(facts))
    needed = int(str(facts.cuda).split(".")[0])
    if facts.driver // 1000 < needed:
        release = f"{facts.driver // 1000}.{facts.driver % 1000 // 10}"
        return Absence(
            "driver too old",
            f"the NVIDIA driver supports CUDA {release}, "
            f"and PyTorch {facts.torch_version} needs CUDA {needed}",
            f"Update the driver to one for CUDA {needed} or newer, "
            f"or install a PyTorch build for CUDA {facts.driver // 1000}.",
        )
    # Hidden GPUs and absent ones give the same status; the variable decides.
    if facts.visible is not None and facts.driver_status in (0, NO_DEVICE):
        return Absence(
            "hidden",
            f"CUDA_VISIBLE_DEVICES is {facts.visible!r}, which leaves no GPU visible",
            "Unset CUDA_VISIBLE_DEVICES, or name GPUs that exist (nvidia-smi -L lists them).",
        )
    if facts.driver_status == 0:
        return Absence(
            "unusable",
            "the NVIDIA driver starts, yet PyTorch finds no GPU",
            "See whether nvidia-smi lists the GPU; if it does, restart the program.",
        )
    meaning = CUDA_ERRORS.get(facts.driver_status, "see the CUDA driver API's error list")
    return Absence(
        "unusable",
        f"the NVIDIA driver is here, but answers with error {facts.driver_status} ({meaning})",
        "See whether nvidia-smi lists the GPU; if it does, reload the driver or restart.",
    )


def _driver_remedy(facts: Surroundings) -> str:
    if facts.in_container:
        return (
            "This is a container: if its host has an NVIDIA GPU, start it with GPU access "
            "(docker run --gpus all …, with the NVIDIA container toolkit on the host)."
        )
    if facts.nvidia_card:
        return f"An NVIDIA GPU is on the bus: install a driver for CUDA {facts.cuda} or newer."
    return (
        "No NVIDIA GPU shows on this machine either; "
        f"on one that has it, install a driver for CUDA {facts.cuda} or newer."
    )


def _ask_driver() -> tuple[int | None, int]:
    """The CUDA release that the driver supports, and what its start-up answers."""
    library = "nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None, 0
    version = ctypes.c_int(0)
    answer = driver.cuDriverGetVersion(ctypes.byref(version))
    if answer or not version.value:  # the stub that toolkits bring to link against
        return None, 0
    return version.value, driver.cuInit(0)


def _nvidia_card() -> bool:
    """Whether a display controller by NVIDIA (vendor 0x10de, class 0x03…) is on the PCI bus."""
    for card in system.kernel_files("/sys/bus/pci/devices/*"):
        try:
            vendor, kind = (card / "vendor").read_text(), (card / "class").read_text()
        except OSError:
            continue
        if vendor.strip() == "0x10de" and kind.startswith("0x03"):
            return True
    return Path("/dev/dxg").exists()  # Windows' GPUs under WSL
