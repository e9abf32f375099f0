"""What a virtual GPU says of itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GPU:
    """A kind of GPU; sizes in bytes. The fields are those of the catalogue's entries."""

    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    threads_per_multiprocessor: int
    l2_cache: int


H100 = GPU("NVIDIA H100 80GB HBM3", (9, 0), 84_942_979_072, 132, 2048, 52_428_800)
KINDS = {
    "h100": H100,
    "t4": GPU("Tesla T4", (7, 5), 15_828_320_256, 40, 1024, 4_194_304),
}


def kind(name: str) -> GPU:
    """The GPU of this kind: from the catalogue where there is one."""
    try:
        from anydevice.devices.catalogue import card  # type: ignore[import-not-found]
    except ImportError:
        if name not in KINDS:
            known = ", ".join(KINDS)
            raise ValueError(f"expected a GPU in the catalogue, got {name!r}: known are {known}.") from None
        return KINDS[name]
    entry: GPU = card(name)
    return entry
