"""`ad.plan()` and `anydevice plan`: a program is run on hollow GPUs of each kind in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.notices import say_once
from anydevice.plan.answer import Plan, Verdict
from anydevice.plan.batch import largest_batch
from anydevice.plan.cluster.answer import ClusterPlan, ClusterVerdict
from anydevice.plan.cluster.command import Launched
from anydevice.plan.cluster.planning import Cluster
from anydevice.plan.cluster.rank import playing
from anydevice.plan.cluster.world import World
from anydevice.plan.compiling import Measured, compared
from anydevice.plan.context import Context, context_size, cuda_version
from anydevice.plan.hollow.attention import kernel_name
from anydevice.plan.hollow.failures import CannotPlanError
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.hollow.sizes import SHARE
from anydevice.plan.remedies.programs import remedies_for_program
from anydevice.plan.remedies.search import try_remedies
from anydevice.plan.subjects import Subject, subject_of
from anydevice.train.trial import Trial

MOST_GPUS = 8
ASKS_FOR_MORE = ("invalid device ordinal", "You requested gpu:")  # the second is Lightning's
alone = partial(playing, None)  # a program that may start other ranks itself


def plan(
    function: Callable[..., object] | Trial | Launched,
    kinds: str | Sequence[str] | None = None,
    *,
    gpus: str | Sequence[str] | int | None = None,
    nodes: int | None = None,
    network: str | None = None,
    steps: int = 3,
    batch_arg: str | None = None,
    batch: int | None = None,
    assume_zeros: bool = False,
    assume_true: float = SHARE,
    inference: bool = False,
    sdpa: str | None = None,
    num_gpus: int | None = None,
    quiet: bool = True,
    remedies: bool | None = None,
    compile: bool = False,
    cards: int = 2,
    context: int | str | None = None,
    cuda: str | None = None,
) -> Plan | ClusterPlan:
    """Predicts whether training fits these GPUs, what holds the memory, and how long a step takes.

    The first steps run in a forked process on hollow GPUs, which have shapes and bytes but no
    values: this process, the Trial and the disk stay as they are, and no real GPU is needed.

    Args:
        function: A function that trains and takes no required arguments but `batch_arg`; or a Trial
            that has data.
        kinds: One kind of GPU or several; `anydevice devices --known` lists them. By default h100.
        gpus: The kinds by another name; or a number: how many GPUs each node of a cluster has, with
            a process for each.
        nodes: How many nodes the cluster has.
        network: What is between the GPUs and between the nodes: names from the catalogue, such as
            "nvlink4,infiniband-ndr", or a TOML file. By default what is usual for the GPUs.
        steps: How many optimizer steps to run.
        batch_arg: The function's parameter for its batch size, or "batch_size" for a Trial whose
            data comes without batches. The largest batch that fits is found too.
        batch: The batch size to begin with; by default the function's or the Trial's own.
        assume_zeros: Where the function branches on a value that it reads from the GPU, take the
            branch for zero. Otherwise such a branch is not taken, and an error before the end of
            the first step.
        assume_true: The share of true values in a mask, on which the size of `x[mask]` and
            `nonzero` depends.
        num_gpus: How many GPUs the function sees in its process. By default one, or as many as it
            asks for.
        quiet: Leave out what the function prints, except where it fails.
        inference: Count forward passes as steps. A function that never computes gradients is
            recognised without it.
        sdpa: The kernel that attention takes where it can: "flash", "efficient", "cudnn" or
            "math". By default PyTorch chooses, by card and tensors; the answer says which.
        remedies: Whether to show what would need less memory. A Trial is run with each change:
            mixed precision, checkpointing, several GPUs and others. For other programs, changes
            of the code are estimated. By default, where it does not fit.
        compile: Whether to show what torch.compile would change: memory, time, the number of
            kernels, graph breaks and recompilations. The program need not call it.
        cards: How many GPUs those tries may use together.
        context: The size of the CUDA context, such as "500MiB", if it was measured: what
            nvidia-smi shows beyond torch.cuda.memory_reserved(). By default a range.
        cuda: The version of CUDA there, such as "11.3": before 11.7, all kernels are loaded at once
            and the context is larger. By default the newest.

    Returns:
        A Plan with one Verdict for each kind of GPU, or a ClusterPlan if there are several ranks.
        It shows itself as tables in a terminal and in a notebook; `plan.to_json()` has the same for
        a program.

    Raises:
        UsageError: If an argument makes no sense, or if the function cannot be planned: it failed,
            it did not use the GPU, it needs code for real GPUs, or it branched on a value before
            its first step was complete.

    Example:
        >>> answer = ad.plan(train, ["t4", "a100-80gb"], batch_arg="batch")  # doctest: +SKIP
        >>> answer.fits, answer["t4"].largest.batch  # doctest: +SKIP
        (True, 212)
    """
    per_node = gpus if isinstance(gpus, int) else None
    named = kinds or (gpus if not isinstance(gpus, int) and gpus else "h100")
    kinds = list(dict.fromkeys(card(gpu).kind for gpu in _listed(named)))
    _refuse_odd_worlds(nodes, per_node, num_gpus)
    if steps < 1 or not kinds:
        raise UsageError(f"expected at least one step and one GPU, got {steps} and {kinds}.")
    if num_gpus is not None and num_gpus < 1:
        raise UsageError(f"expected at least one GPU as num_gpus, got {num_gpus}.")
    if not 0 <= assume_true <= 1:
        raise UsageError(f"expected a share from 0 to 1 as assume_true, got {assume_true}.")
    world = _world(function, nodes, per_node)
    subject = subject_of(function, batch_arg, batch, together=world is not None)
    verdicts: list[Verdict] = []
    clusters: list[ClusterVerdict] = []
    version = cuda_version(cuda) if cuda else None
    for kind in kinds:
        taken = Context.of(card(kind), version)
        if context is not None:
            taken = Context.exactly(context_size(context))
        hollow = HollowGPUs(
            kind,
            steps=steps,
            assume_zeros=assume_zeros,
            assume_true=assume_true,
            inference=inference,
            sdpa=kernel_name(sdpa) if sdpa else None,
            context=taken,
            count=num_gpus or 1,
            shown=not quiet and not verdicts,
            around=alone,
        )
        if world:
            hollow = replace(hollow, shown=not quiet and not clusters)
            clusters.append(_of_cluster(Cluster(world, network), hollow, subject, compile))
            continue
        hollow, run = _first_run(hollow, subject, more=num_gpus is None)
        if run.part and run.part.size > 1:  # as mp.spawn or the program itself has it
            world = World(1, run.part.size)
            clusters.append(_of_cluster(Cluster(world, network), hollow, subject, compile))
            continue
        verdict = Verdict(run, time=run.predicted(run.step_samples or run.samples))
        if batch_arg is not None:
            verdict.largest = largest_batch(subject, hollow, run, batch_arg)
        if remedies or (remedies is None and not run.fits):
            verdict.remedies = (
                try_remedies(function, kind, cards=cards, run=run, assume_zeros=assume_zeros)
                if isinstance(function, Trial)
                else remedies_for_program(subject, hollow, run, batch_arg)
            )
        if compile:
            _compare(verdict, hollow, subject)
        verdicts.append(verdict)
    return ClusterPlan(subject.name, clusters) if clusters else Plan(subject.name, verdicts)


def _compare(verdict: Verdict, hollow: HollowGPUs, subject: Subject) -> None:
    """Adds what compiling changes, or a note that says why that is not known."""

    def again(how: str) -> Measured:
        return Measured.of(replace(hollow, compiles=how).run(subject, subject.name))

    answer = compared(Measured.of(verdict.run), again)
    if isinstance(answer, str):
        verdict.run.notes.append(answer)
    else:
        verdict.compiling = answer


def _of_cluster(
    cluster: Cluster, hollow: HollowGPUs, subject: Subject, compile: bool
) -> ClusterVerdict:
    """The answer for a cluster; with what compiling changes, if that is asked for."""

    def again(how: str) -> Measured:
        gpus = replace(hollow, compiles=how, shown=False)
        return _measured(cluster.verdict(gpus, subject, subject.name))

    verdict = cluster.verdict(hollow, subject, subject.name)
    if compile:
        answer = compared(_measured(verdict), again)
        if isinstance(answer, str):
            verdict.notes.append(answer)
        else:
            verdict.compiling = answer
    return verdict


def _measured(verdict: ClusterVerdict) -> Measured:
    seconds = verdict.time.seconds if verdict.time else None
    return Measured(verdict.roles[0].run, verdict.tightest.run, seconds)


def _refuse_odd_worlds(nodes: int | None, gpus: int | None, num_gpus: int | None) -> None:
    for name, count in (("nodes", nodes), ("gpus", gpus)):
        if count is not None and count < 1:
            raise UsageError(f"expected at least one of {name}, got {count}.")
    if num_gpus is not None and nodes is not None:
        raise UsageError(
            "expected num_gpus for one process, or nodes and gpus for a process on each GPU, got "
            "both: leave num_gpus out."
        )


def _world(function: object, nodes: int | None, gpus: int | None) -> World | None:
    """The ranks that the program is started on; None if it is one process."""
    if isinstance(function, Launched):
        return function.world(nodes, gpus)
    return World(nodes or 1, gpus or (MOST_GPUS if nodes else 1)) if nodes or gpus else None


def _first_run(gpus: HollowGPUs, subject: Subject, *, more: bool) -> tuple[HollowGPUs, HollowRun]:
    """The run, on more GPUs if the program asks for one that is not there; and the GPUs."""
    try:
        run = gpus.run(subject, subject.name)
    except CannotPlanError as error:
        asks = any(sign in str(error) for sign in ASKS_FOR_MORE)
        if not more or not asks or gpus.count >= MOST_GPUS:
            raise
        more_gpus = replace(gpus, count=2 * gpus.count)
        if gpus.shown:
            say_once(f"{subject.name} asks for more GPUs: it runs again with {more_gpus.count}.")
        return _first_run(more_gpus, subject, more=more)
    if more and gpus.count > 1:
        run.notes.append(
            f"The program asks for more than one GPU, so it was given {gpus.count} (--gpus)."
        )
    return replace(gpus, shown=False), run


def _listed(gpus: str | Sequence[str]) -> list[str]:
    return [gpus] if isinstance(gpus, str) else list(gpus)
