"""`anydevice plan`: an unmodified program, planned for GPUs that need not be there."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.options import HelpWanted, misplaced_option, options_before_program
from anydevice.plan.cluster.command import Launched, launched
from anydevice.plan.cluster.variations import Variation
from anydevice.plan.hollow.program import Program

if TYPE_CHECKING:
    from anydevice.plan.answer import Plan
    from anydevice.plan.cluster.answer import ClusterPlan

HELP = """\
Usage: anydevice plan [options] program.py [arguments]
       anydevice plan [options] -m module [arguments]
       anydevice plan [options] torchrun [arguments]
       anydevice plan --calibrate | --rates [--json]

Does it fit, with which batch size, and how long does a step take? The program's
first steps run on hollow GPUs, which track memory and time but compute nothing.
What follows the program's name is passed to the program.

Options:
  --gpu KIND        plan for this GPU; may be repeated; h100 by default.
                    `anydevice devices --known` lists the kinds
  --gpus N          give the program's process N GPUs of this kind; by default one, or
                    as many as it asks for. With --nodes or torchrun: how many GPUs a
                    node has, with a process on each
  --nodes N         how many nodes a cluster has, each with --gpus GPUs
  --network NAME    what is between GPUs and nodes, such as nvlink4,infiniband-ndr,
                    or a .toml file; by default what is usual for the GPU
  --cost PRICE      the price of a GPU's hour: adds what steps and tokens cost
  --vary OPT=A,B    plan the program with each of these values of its option, or of
                    --nodes, --gpus, --gpu, --network; may be repeated
  --try             the same for half and twice as many nodes, and with --batch-arg
                    for half and twice the batch
  --steps N         run N optimizer steps; 3 by default
  --batch-arg NAME  the program's option for its batch size, such as --batch-size
                    or batch=; the largest batch that fits is found too
  --inference       count forward passes; a program that never computes
                    gradients is recognised without it
  --assume-true X   the share of true values in masks, on which the size of x[mask]
                    and nonzero depends; 0.5 by default
  --assume-zeros    where the program branches on a value that it reads from the
                    GPU, take the branch for zero
  --sdpa KERNEL     the kernel that attention takes where it can: flash, efficient,
                    cudnn or math; by default PyTorch chooses, by card and tensors
  --context SIZE    the CUDA context's size, such as 500MiB, if it was measured: what
                    nvidia-smi shows beyond torch.cuda.memory_reserved()
  --cuda VERSION    the version of CUDA there, such as 11.3: before 11.7 the context
                    is larger; the newest by default
  --compile         show what torch.compile would change, if the program called it for
                    its networks: memory, time, kernels, graph breaks, recompilations
  --fixes           show what would need less memory, even if the program fits
  --quiet           leave out what the program prints
  --report FILE     write an HTML page with all results and the memory over the
                    steps, such as plan.html
  --snapshot FILE   write the allocations for pytorch.org/memory_viz, such as
                    memory.pickle
  --json            print JSON
  --calibrate       measure what the GPU and host of this machine reach, in about
                    a minute, and save it for predictions on this machine
  --rates           list the rates that time predictions use, with their sources
  --help            show this message

Exit codes: 0 it surely fits each of these GPUs, 1 it does not or may not, 2 it
could not be planned.
"""
VALUES = (
    *("--gpu", "--gpus", "--steps", "--batch-arg", "--assume-true", "--context", "--cuda"),
    *("--report", "--snapshot", "--sdpa", "--nodes", "--network", "--cost", "--vary"),
)
FLAGS = (
    *("--json", "--try", "--assume-zeros", "--inference", "--quiet", "--fixes"),
    "--compile",
    *("--calibrate", "--rates"),
)


@dataclass
class Options:
    """The options of `anydevice plan`."""

    gpus: list[str] = field(default_factory=list)
    steps: int = 3
    batch_arg: str | None = None
    assume_zeros: bool = False
    assume_true: float = 0.5
    inference: bool = False
    num_gpus: int | None = None
    quiet: bool = False
    fixes: bool = False
    compile: bool = False
    json: bool = False
    sdpa: str | None = None
    context: str | None = None
    cuda: str | None = None
    report: str | None = None
    snapshot: str | None = None
    nodes: int | None = None
    network: str | None = None
    cost: float | None = None
    vary: list[Variation] = field(default_factory=list)
    tries: bool = False
    kept: list[str] = field(default_factory=list)  # the options that each variation has
    words: list[str] = field(default_factory=list)  # the program as it was given
    calibrate: bool = False
    rates: bool = False
    launched: Launched = field(
        default_factory=partial(Launched, ())
    )  # the program and its arguments, and its launcher


def main(arguments: list[str]) -> NoReturn:
    """Plans, prints the answer, and exits with 0 if it fits each GPU, else with 1."""
    try:
        options = parse(arguments)
    except HelpWanted:
        print(HELP, end="")
        sys.exit(0)
    if options.calibrate or options.rates:
        _rates(options)
    if misplaced := misplaced_option("plan", options.words, (*VALUES, *FLAGS)):
        print(f"anydevice: {misplaced}", file=sys.stderr)
    for path in (options.report, options.snapshot):
        _refuse_missing_folder(path)
    if options.vary or options.tries:
        _vary(options)
    from anydevice.plan.cluster.answer import ClusterPlan
    from anydevice.plan.hollow.failures import CannotPlanError
    from anydevice.plan.planning import plan
    from anydevice.tables import show

    try:
        answer = plan(
            _subject(options),
            options.gpus or ["h100"],
            steps=options.steps,
            batch_arg=options.batch_arg,
            assume_zeros=options.assume_zeros,
            context=options.context,
            cuda=options.cuda,
            assume_true=options.assume_true,
            inference=options.inference,
            sdpa=options.sdpa,
            quiet=options.quiet,
            remedies=options.fixes or None,
            compile=options.compile,
            network=options.network,
            nodes=options.nodes,
            gpus=options.num_gpus if _is_of_many(options) else None,
            num_gpus=None if _is_of_many(options) else options.num_gpus,
        )
    except CannotPlanError as error:
        sys.stderr.write(error.details)
        raise
    if options.cost is not None and isinstance(answer, ClusterPlan):
        answer.price = options.cost
    if options.json:
        print(answer.to_json())
    else:
        show(answer)
    _write_files(options, answer)
    sys.exit(0 if answer.fits else 1)


def _vary(options: Options) -> NoReturn:
    """Plans all variations, and prints them."""
    from anydevice.plan.cluster.variations import usual, vary
    from anydevice.tables import show

    variations = options.vary
    if options.tries:
        nodes = options.nodes or options.launched.nodes
        batch = Program(options.launched.program, options.batch_arg).batch
        named = (options.batch_arg, batch) if options.batch_arg and batch else None
        variations = variations + usual(nodes, named)
    answer = vary(variations, options.kept, options.words)
    if options.json:
        print(answer.to_json())
    else:
        show(answer)
    sys.exit(0 if answer.fits else 1)


def _subject(options: Options) -> Launched | Program:
    """The program; with its launcher, if it is one of many ranks."""
    launched = options.launched
    return launched if _is_of_many(options) else Program(launched.program)


def _is_of_many(options: Options) -> bool:
    """Whether the program has a process on each GPU; else --gpus are those of one process."""
    return bool(options.launched.launcher) or options.nodes is not None


def _rates(options: Options) -> NoReturn:
    """Measures the rates, or lists them."""
    from anydevice.plan.time import calibrate, rates
    from anydevice.tables import show

    if options.calibrate:
        calibrate.main(options.json)
    elif options.json:
        print(rates.to_json())
    else:
        show(rates.table().__rich__())
    sys.exit(0)


def _refuse_missing_folder(path: str | None) -> None:
    """Called before the plan, which takes a while."""
    if path and not Path(path).absolute().parent.is_dir():
        folder = Path(path).absolute().parent
        raise UsageError(f"expected a folder for {path}, got none at {folder}: create it first.")


def _write_files(options: Options, answer: Plan | ClusterPlan) -> None:
    from anydevice.plan.cluster.answer import ClusterPlan

    if options.report:
        if isinstance(answer, ClusterPlan):
            from anydevice.plan.cluster import page as cluster_page

            cluster_page.write_report(answer, options.report)
        else:
            from anydevice.plan.page.page import write_report

            write_report(answer, options.report)
        print(f"anydevice: wrote the page {options.report}.", file=sys.stderr)
    if options.snapshot:
        from anydevice.plan.page.timeline import write_snapshot

        if isinstance(answer, ClusterPlan):
            run = answer.verdicts[0].tightest.run
        else:
            run = answer.verdicts[0].run
        write_snapshot(options.snapshot, run.blocks)
        print(
            f"anydevice: wrote {options.snapshot}, the memory of {run.gpu}: "
            "open it at pytorch.org/memory_viz.",
            file=sys.stderr,
        )


def parse(arguments: list[str]) -> Options:
    """What the arguments of `anydevice plan` ask for."""
    options = Options()
    given, rest = options_before_program("plan", arguments, values=VALUES, flags=FLAGS)
    for option, value in given:
        _set(options, option, value)
        if option not in ("--vary", "--try", "--json", "--quiet", "--batch-arg"):
            options.kept += [option, value] if option in VALUES else [option]
    options.words = rest
    if not options.calibrate and not options.rates:
        options.launched = _program(rest)
    elif rest:
        alone = "--calibrate" if options.calibrate else "--rates"
        raise UsageError(f"expected {alone} without a program, got {rest[0]}: run it by itself.")
    return options


def _program(arguments: list[str]) -> Launched:
    """The program and its arguments; one that has no file cannot be run several times."""
    if arguments and arguments[0] in ("-", "-c"):
        raise UsageError(f"expected a program in a file or -m module, got {arguments[0]}.")
    return launched(arguments)


def _set(options: Options, option: str, value: str) -> None:
    if option == "--vary":
        options.vary.append(Variation.parse(value))
    elif option == "--try":
        options.tries = True
    elif option in FLAGS:
        setattr(options, option.removeprefix("--").replace("-", "_"), True)
    elif option == "--gpu":
        options.gpus.append(card(value).kind)
    elif option == "--batch-arg":
        options.batch_arg = value.removesuffix("=")
    elif option in ("--report", "--snapshot", "--context", "--cuda", "--sdpa"):
        setattr(options, option.removeprefix("--"), value)
    elif option == "--assume-true":
        options.assume_true = _share(value)
    elif option == "--network":
        from anydevice.plan.cluster.networks import network

        network(card("h100"), 8, value)  # refuses an unknown one, before a program is looked at
        options.network = value
    elif option == "--cost":
        options.cost = _price(value)
    elif not value.isascii() or not value.isdecimal() or not int(value):
        what = f"a number of {option[2:]}, from 1 on,"
        raise UsageError(f"expected {what} after {option}, got {value!r}.")
    elif option == "--nodes":
        options.nodes = int(value)
    elif option == "--gpus":
        options.num_gpus = int(value)
    else:
        options.steps = int(value)


def _price(value: str) -> float:
    with suppress(ValueError):
        if 0 < float(value) < 1e6:
            return float(value)
    raise UsageError(f"expected the price of a GPU's hour after --cost, got {value!r}.")


def _share(value: str) -> float:
    with suppress(ValueError):
        if 0 <= float(value) <= 1:
            return float(value)
    raise UsageError(f"expected a share from 0 to 1 after --assume-true, got {value!r}.")
