"""The line at the end of `anydevice run`: what the program asked of GPUs that are not there."""

import json
import os
import sys
from ctypes import c_int64
from dataclasses import asdict, dataclass, field
from pathlib import Path

from anydevice.files import write_whole
from anydevice.text import counted, size_text
from anydevice.virtual import core
from anydevice.virtual.machine import Machine


@dataclass
class Tally:
    """What one process did, or several together."""

    peaks: list[int] = field(default_factory=lambda: [0] * core.MOST_GPUS)  # bytes on each GPU
    transfers: int = 0
    transferred: int = 0
    synchronisations: int = 0
    processes: int = 1

    def __bool__(self) -> bool:
        return any((*self.peaks, self.transfers, self.synchronisations))

    def add(self, other: "Tally") -> None:
        """A GPU's peak is that of the process which took most."""
        self.peaks = [max(pair) for pair in zip(self.peaks, other.peaks, strict=True)]
        self.transfers += other.transfers
        self.transferred += other.transferred
        self.synchronisations += other.synchronisations
        self.processes += other.processes


def own() -> Tally:
    """This process's tally; the native library counts."""
    native = core.library()
    totals = (c_int64 * 3)()
    native.anydevice_totals(totals)
    peaks = [0] * core.MOST_GPUS
    for device in range(core.MOST_GPUS):  # where CUDA_VISIBLE_DEVICES is set, not the GPU's number
        gpu = native.anydevice_number(device)
        peaks[gpu] = max(peaks[gpu], native.anydevice_memory_highest(device))
    return Tally(peaks, *totals)


def forget() -> None:
    """Counts from nothing, in a forked child."""
    core.library().anydevice_reset_totals()


def leave(folder: str) -> None:
    """Leaves this process's tally for the program, which prints it at its end."""
    tally = own()
    if tally and os.path.isdir(folder):
        write_whole(Path(folder, f"{os.getpid()}.json"), json.dumps(asdict(tally)).encode())


def report(machine: Machine, folder: str) -> None:
    """Prints the line, for this process and those that left their tallies in the folder."""
    tallies = [Tally(**json.loads(path.read_text("utf-8"))) for path in Path(folder).glob("*.json")]
    if "torch" in sys.modules and (tally := own()):
        tallies.append(tally)
    together = Tally(processes=0)
    for each in tallies:
        together.add(each)
    print(f"anydevice: {_sentence(machine, together)}", file=sys.stderr, flush=True)


def _sentence(machine: Machine, tally: Tally) -> str:
    unreal = f"{machine.gpus} × {machine.gpu.name}, virtual: nothing ran on a real GPU"
    if not tally:
        return f"the program did not use its GPUs ({unreal})."
    peaks = ", ".join(f"cuda:{i} {size_text(peak)}" for i, peak in enumerate(tally.peaks) if peak)
    processes = f" in {tally.processes} processes" if tally.processes > 1 else ""
    return (
        f"peak memory {peaks or 'none'}; {counted(tally.transfers, 'transfer')} "
        f"({size_text(tally.transferred)}), {counted(tally.synchronisations, 'synchronisation')}"
        f"{processes}; {unreal}."
    )
