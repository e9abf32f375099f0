"""Commands that start a program on many ranks: torchrun, torch.distributed.run and .launch."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from anydevice.errors import UsageError
from anydevice.options import program_arguments
from anydevice.plan.cluster.unsupported import refuse_what_it_imports
from anydevice.plan.cluster.world import World

MODULES = ("torch.distributed.run", "torch.distributed.launch")
OTHERS = {
    "deepspeed": "its launcher starts programs by ssh",
    "mpirun": "MPI starts programs of any kind",
    "mpiexec": "MPI starts programs of any kind",
    "srun": "Slurm starts programs on its own nodes",
    "horovodrun": "Horovod is no part of PyTorch",
    "ray": "Ray starts programs in its own cluster",
    "colossalai": "its launcher starts programs by ssh",
    "composer": "its launcher sets other variables",
}
OF_ACCELERATE = {
    "--cpu": "a plan is for GPUs",
    "--tpu": "a plan is for GPUs",
    "--use_deepspeed": "DeepSpeed needs its own CUDA code; --use_fsdp shards as its ZeRO-3",
    "--use_megatron_lm": "Megatron-LM needs its own CUDA code",
}
ALONE = "write `torchrun` with --nnodes and --nproc-per-node in its place."


@dataclass(frozen=True)
class Launched:
    """A program and its arguments, and the world that its launcher asks for."""

    program: tuple[str, ...]
    nodes: int | None = None
    gpus: int | None = None
    launcher: str = ""

    def world(self, nodes: int | None, gpus: int | None) -> World | None:
        """With what --nodes and --gpus say; None for a program without a launcher or nodes."""
        if not self.launcher and nodes is None:
            return None
        return World(
            self._agreed("nodes", nodes, self.nodes) or 1,
            self._agreed("gpus", gpus, self.gpus) or (8 if nodes and nodes > 1 else 1),
        )

    def _agreed(self, option: str, given: int | None, launched: int | None) -> int | None:
        if given is not None and launched is not None and given != launched:
            name = {"nodes": "--nnodes", "gpus": "--nproc-per-node"}[option]
            raise UsageError(
                f"expected the same from --{option} and from {self.launcher}'s {name}, got {given} "
                f"and {launched}: leave one out."
            )
        return launched if given is None else given


def launched(arguments: list[str]) -> Launched:
    """What a command of a program starts; a launcher that is not supported is refused at once."""
    name = Path(arguments[0]).name if arguments else ""
    if name in OTHERS:
        raise UsageError(f"expected a program, or torchrun, got {name}: {OTHERS[name]}; {ALONE}")
    refuse_what_it_imports(arguments)
    if name == "torchrun":
        return _torchrun(arguments[1:], "torchrun")
    if arguments[:1] == ["-m"] and arguments[1:2] and arguments[1] in MODULES:
        return _torchrun(arguments[2:], arguments[1])
    if name in ("accelerate", "accelerate-launch"):
        return _accelerate(list(arguments))
    return Launched(tuple(program_arguments(list(arguments))))


def _torchrun(arguments: list[str], launcher: str) -> Launched:
    for option in ("nnodes", "nproc_per_node"):  # before torch is imported, which takes a second
        if text := _value(arguments, option):
            _nodes(text) if option == "nnodes" else _gpus(text)
    if not {"-m", "--module"} & set(arguments):
        program_arguments([word for word in arguments if word.endswith(".py")][:1] or ["-"])
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.add_argument(
        "--use-env", "--use_env", action="store_true"
    )  # of torch.distributed.launch
    parser.error = _refuse  # type: ignore[method-assign, assignment]
    given = parser.parse_args(arguments)
    if given.no_python or given.run_path:
        raise UsageError(
            f"expected a Python program after {launcher}, got --no-python or --run-path, by which "
            "it starts something else: name the program."
        )
    words = ["-m", given.training_script] if given.module else [given.training_script]
    old = launcher == MODULES[1] and not given.use_env
    words += ["--local-rank=0"] if old else []
    program = program_arguments([*words, *given.training_script_args])
    nodes = _nodes(str(given.nnodes)) if _named(arguments, "nnodes") else None
    gpus = _gpus(str(given.nproc_per_node)) if _named(arguments, "nproc") else None
    return Launched(tuple(program), 1 if given.standalone else nodes, gpus, launcher)


def _accelerate(arguments: list[str]) -> Launched:
    """Its own code runs in the plan; how many processes it starts has to be known before."""
    words = arguments[2:] if arguments[1:2] == ["launch"] else arguments[1:]
    for option, why in OF_ACCELERATE.items():
        if option in words:
            raise UsageError(f"expected GPUs and PyTorch for accelerate, got {option}: {why}.")
    found = dict.fromkeys(("num_processes", "num_machines"))
    file = _value(words, "config_file") or os.environ.get("ACCELERATE_CONFIG_FILE")
    for name in found:
        text = _value(words, name) or _of_file(file, name)
        found[name] = _count(text, f"--{name}") if text else None
    machines = found["num_machines"] or 1
    each = found["num_processes"] and found["num_processes"] // machines
    return Launched(tuple(program_arguments(arguments)), machines, each or None, "accelerate")


def _value(words: list[str], option: str) -> str:
    """Of `--num_processes 4`, or `--num-processes=4`, before the program."""
    for word, after in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if word.endswith(".py"):
            break
        if name.lstrip("-").replace("-", "_") == option and name.startswith("--"):
            return value if equals else after
    return ""


def _of_file(file: str | None, name: str) -> str:
    """The entry of a YAML file; nothing if there is none."""
    with suppress(OSError):
        lines = Path(file).read_text("utf-8").splitlines() if file else []
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
    return ""


def _named(arguments: list[str], option: str) -> bool:
    return any(a.startswith("--") and a.lstrip("-").startswith(option) for a in arguments)


def _nodes(text: str) -> int:
    """Of `2`, or of `1:4`, which is elastic: the most."""
    return _count(text.rpartition(":")[2], "--nnodes")


def _gpus(text: str) -> int | None:
    """As many as there are, if it is `gpu` or `auto`."""
    return None if text in ("gpu", "auto") else _count(text, "--nproc-per-node")


def _count(text: str, option: str) -> int:
    if text.isascii() and text.isdecimal() and int(text):
        return int(text)
    raise UsageError(f"expected a number from 1 on after {option}, got {text!r}.")


def _refuse(message: str) -> None:
    raise UsageError(f"expected arguments that torchrun knows, got others: {message}.")
