"""Errors that a card raises: what they mean, and what to change."""

from __future__ import annotations

KNOWN = (
    (
        "Cannot re-initialize CUDA in forked subprocess",
        "cuda-in-forked-process",
        "A forked process, such as a worker of a DataLoader, cannot use the GPU that its parent "
        "uses.",
        "return tensors on the CPU from the data set; or multiprocessing_context='spawn'",
    ),
    (
        "Expected to have finished reduction in the prior iteration",
        "unused-parameters",
        "DDP waits for the gradients of all parameters, and the loss does not depend on some.",
        "DistributedDataParallel(…, find_unused_parameters=True), or leave those out",
    ),
)
RULES = ("device-error", *(name for _, name, _, _ in KNOWN), "collective-order")


def explained_error(error: BaseException) -> tuple[str, str, str] | None:
    """The rule, what is wrong and the fix; None if it is the program's own error."""
    text = str(error)
    for part, rule, what, fix in KNOWN:
        if part in text:
            return rule, what, fix
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("anydevice: ")]
    if not notes:
        return None
    what, _, fix = notes[0].removeprefix("anydevice: ").partition("\n  Fix: ")
    return "device-error", what, fix
