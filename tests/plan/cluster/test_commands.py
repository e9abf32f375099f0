"""Commands that start a program on many ranks, and what is refused before anything runs."""

from pathlib import Path

import pytest

from anydevice.errors import UsageError
from anydevice.plan.cluster.command import Launched, launched
from anydevice.plan.cluster.world import World

HERE = str(Path(__file__))


@pytest.mark.parametrize(
    ("words", "nodes", "gpus"),
    [
        ("torchrun --nproc-per-node 8 --nnodes 2 {}", 2, 8),
        ("torchrun --standalone --nproc_per_node=4 {}", 1, 4),
        ("torchrun --nnodes=1:4 --nproc-per-node gpu {}", 4, None),
        ("torchrun {}", None, None),
        ("-m torch.distributed.run --nproc-per-node 2 {}", None, 2),
        ("-m torch.distributed.launch --nproc_per_node 2 --use_env {}", None, 2),
    ],
)
def test_torchrun_says_how_many_ranks_there_are(
    words: str, nodes: int | None, gpus: int | None
) -> None:
    found = launched([*words.format(HERE).split(), "--lr", "1"])
    assert found.program == (HERE, "--lr", "1")
    assert (found.nodes, found.gpus) == (nodes, gpus)


def test_a_module_after_torchrun() -> None:
    assert launched(["torchrun", "-m", "json.tool", "x"]).program == ("-m", "json.tool", "x")


def test_a_program_without_a_launcher_is_alone_unless_there_are_nodes() -> None:
    alone = launched([HERE])
    assert alone.world(None, 4) is None
    assert alone.world(2, 4) == World(2, 4)
    assert alone.world(2, None) == World(2, 8)


def test_the_plans_options_fill_in_what_torchrun_does_not_say() -> None:
    assert launched(["torchrun", HERE]).world(16, 8) == World(16, 8)
    assert launched(["torchrun", "--nnodes", "3", HERE]).world(None, 8) == World(3, 8)
    assert launched(["torchrun", HERE]).world(None, None) == World(1, 1)


def test_two_different_counts_are_refused() -> None:
    found = Launched((HERE,), nodes=2, gpus=8, launcher="torchrun")
    with pytest.raises(UsageError, match=r"--nodes .* --nnodes, got 4 and 2: leave one out"):
        found.world(4, None)
    with pytest.raises(UsageError, match=r"--gpus .* --nproc-per-node, got 4 and 8"):
        found.world(None, 4)


@pytest.mark.parametrize("launcher", ["deepspeed", "mpirun", "srun", "ray", "/usr/bin/horovodrun"])
def test_other_launchers_are_refused(launcher: str) -> None:
    with pytest.raises(UsageError, match=r"write `torchrun` with --nnodes"):
        launched([launcher, HERE])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "torchrun --nproc-per-node many {}",
            "a number from 1 on after --nproc-per-node, got 'many'",
        ),
        ("torchrun --nproc-per-node 0 {}", "a number from 1 on after --nproc-per-node, got '0'"),
        ("torchrun --no-python {}", "a Python program after torchrun"),
        ("torchrun --no-such-option 3 {}", "arguments that torchrun knows"),
        ("torchrun", "arguments that torchrun knows"),
        ("torchrun not_there.py", "got not_there.py, which does not exist"),
    ],
)
def test_odd_arguments_of_torchrun_are_refused(words: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        launched(words.format(HERE).split())


def test_ranks_have_the_variables_of_torchrun() -> None:
    variables = World(2, 4).environment(6)
    assert [variables[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")] == ["6", "2", "1"]
    assert variables["WORLD_SIZE"] == "8"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import torch, deepspeed\n", r"train.py:1, which needs code for a GPU \(deepspeed\)"),
        ("\nfrom megatron.core import tensor_parallel\n", r"train.py:2, .* \(megatron\)"),
        (
            "import torch.distributed._symmetric_memory as memory\n",
            "train.py:1, which uses symmetric memory",
        ),
    ],
)
def test_what_a_program_imports_is_refused_before_it_runs(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        launched(["torchrun", str(tmp_path / "train.py")])


def test_imports_that_need_not_run_are_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "megatron.py").touch()
    (tmp_path / "train.py").write_text(
        "try:\n    import deepspeed\nexcept ImportError: ...\nimport megatron\n"
    )
    assert launched(["torchrun", str(tmp_path / "train.py")]).launcher == "torchrun"


@pytest.mark.parametrize(
    ("words", "nodes", "gpus"),
    [
        ("accelerate launch --num_processes 8 --num_machines=2 {}", 2, 4),
        ("accelerate-launch --num-processes=4 {}", 1, 4),
        ("accelerate launch --config_file {}/ours.yaml {}", 1, 3),
        ("accelerate launch {}", 1, None),
    ],
)
def test_accelerate_says_how_many_processes_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, nodes: int, gpus: int | None
) -> None:
    for name in ("accelerate", "accelerate-launch"):
        (tmp_path / name).write_text("#!/usr/bin/env python3\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "ours.yaml").write_text("num_machines: 1\nnum_processes: 3\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    names = [tmp_path, HERE] if words.count("{}") == 2 else [HERE]
    found = launched(words.format(*names).split())
    assert (found.nodes, found.gpus, found.launcher) == (nodes, gpus, "accelerate")
    assert found.program[0].endswith(("accelerate", "accelerate-launch"))


def test_accelerate_on_other_devices_is_refused() -> None:
    with pytest.raises(UsageError, match="got --use_deepspeed: DeepSpeed needs its own CUDA code"):
        launched(["accelerate", "launch", "--use_deepspeed", HERE])
