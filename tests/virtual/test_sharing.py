"""CUDA tensors sent to other processes: the receiver sees the same memory, as on a card."""

import os
import textwrap

import pytest

from ..forked import python

# Children import the program's file again, and so have the GPUs as well.
BEGIN = """
import gc, os, sys, torch
import torch.multiprocessing as mp
from anydevice import virtual

virtual.enable(gpus=2, gpu="t4", hollow={hollow})
torch.set_num_threads(1)
"""


def run(tmp_path, program, hollow=False):
    """What a program in a file of its own prints."""
    file = tmp_path / "program.py"
    file.write_text(BEGIN.format(hollow=hollow) + textwrap.dedent(program))
    done = python(file, timeout=120, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_both_sides_see_what_is_written(tmp_path, method):
    assert run(
        tmp_path,
        f"""
        def receive(queue, answers, parameter):
            tensor, view = queue.get(), queue.get()
            shared = tensor.untyped_storage()._cdata == view.untyped_storage()._cdata
            tensor += 1
            allocated = torch.cuda.memory_allocated(1)
            kind = type(parameter).__name__
            answers.put([shared, tensor.device.index, tensor.stride(), allocated, kind,
                         parameter.requires_grad])
            queue.get()
            answers.put(view.tolist())
            with torch.no_grad():
                parameter.fill_(3)

        if __name__ == "__main__":
            context = mp.get_context({method!r})
            queue, answers = context.SimpleQueue(), context.SimpleQueue()
            tensor = torch.zeros(3, 4, device="cuda:1").t()
            parameter = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
            process = context.Process(target=receive, args=(queue, answers, parameter))
            process.start()
            queue.put(tensor)
            queue.put(tensor[1])
            print(*answers.get())
            print(tensor.sum().item())
            tensor[1] = 5
            queue.put(None)
            print(answers.get())
            process.join()
            print(parameter.sum().item() / (1 << 20), process.exitcode)
        """,
    ) == [
        "True 1 (1, 4) 0 Parameter True",
        "12.0",
        "[5.0, 5.0, 5.0]",
        "3.0 0",
    ]


def test_the_sender_keeps_the_memory_until_the_receiver_lets_go(tmp_path):
    assert run(
        tmp_path,
        """
        def receive(queue, answers):
            tensor = queue.get()
            answers.put(tensor.sum().item())
            queue.get()
            answers.put(tensor.sum().item())
            del tensor
            answers.put("gone")
            queue.get()

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            queue, answers = context.SimpleQueue(), context.SimpleQueue()
            process = context.Process(target=receive, args=(queue, answers))
            process.start()
            tensor = torch.ones(1000, device="cuda")
            queue.put(tensor)
            print(answers.get())
            del tensor
            other = torch.zeros(1000, device="cuda")
            torch.cuda.ipc_collect()
            print(torch.cuda.memory_allocated())
            queue.put(None)
            print(answers.get(), answers.get())
            torch.cuda.ipc_collect()
            print(torch.cuda.memory_allocated())
            queue.put(None)
            process.join()
        """,
    ) == ["1000.0", "8192", "1000.0 gone", "4096"]


@pytest.mark.long
def test_a_network_learns_in_two_processes_at_once(tmp_path):
    assert run(
        tmp_path,
        """
        def learn(rank, network):
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            for _ in range(20):
                optimizer.zero_grad()
                (network(torch.ones(4, 3, device="cuda")) - 2).pow(2).mean().backward()
                optimizer.step()

        if __name__ == "__main__":
            network = torch.nn.Linear(3, 1, device="cuda").share_memory()
            mp.spawn(learn, (network,), nprocs=2)
            print((network(torch.ones(1, 3, device="cuda")) - 2).abs().item() < 0.1)
            del network
            torch.cuda.ipc_collect()
            print(torch.cuda.memory_allocated())
        """,
    ) == ["True", "0"]


def test_workers_of_a_loader_return_tensors_on_the_gpu(tmp_path):
    assert run(
        tmp_path,
        """
        class Numbers(torch.utils.data.Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, index):
                return torch.full((2,), float(index), device="cuda:1")

        if __name__ == "__main__":
            loader = torch.utils.data.DataLoader(
                Numbers(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
            batches = list(loader)
            print({batch.device.index for batch in batches})
            print(torch.cat(batches)[:, 0].tolist())
        """,
    ) == ["{1}", "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]"]


def test_what_cannot_be_sent_says_why(tmp_path):
    lines = run(
        tmp_path,
        """
        def receive(pipe, tensor):
            try:
                pipe.send(tensor)
            except RuntimeError as error:
                pipe.send(str(error))

        def touch(queue):
            try:
                queue.get()
            except RuntimeError as error:
                queue.put(str(error))

        if __name__ == "__main__":
            tensor = torch.ones(1, device="cuda", requires_grad=True)
            context = mp.get_context("spawn")
            here, there = context.Pipe()
            process = context.Process(target=receive, args=(there, tensor.detach()))
            process.start()
            print(here.recv())
            process.join()
            try:
                here.send(tensor * 2)
            except RuntimeError as error:
                print(error)
            queue = mp.get_context("fork").SimpleQueue()
            process = mp.get_context("fork").Process(target=touch, args=(queue,))
            process.start()
            queue.put(tensor.detach())
            process.join()
            print(queue.get())
        """,
    )
    assert lines[0].startswith("Attempted to send CUDA tensor received from another process")
    assert lines[1].startswith("Cowardly refusing to serialize non-leaf tensor")
    assert lines[2].startswith("Cannot re-initialize CUDA in forked subprocess.")


def test_a_sender_that_is_killed_leaves_nothing_behind(tmp_path):
    before = set(os.listdir("/dev/shm"))
    killed = """
        if __name__ == "__main__":
            tensor = torch.ones(1 << 20, device="cuda")
            tensor.untyped_storage()._share_cuda_()
            os.kill(os.getpid(), 9)
    """
    with pytest.raises(AssertionError):
        run(tmp_path, killed)
    left = set(os.listdir("/dev/shm")) - before
    assert not [name for name in left if "anydevice" in name or "torch" in name]


def test_a_sender_that_has_ended_is_named(tmp_path):
    lines = run(
        tmp_path,
        """
        def send(queue):
            queue.put(torch.ones(1, device="cuda").untyped_storage()._share_cuda_())

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            queue = context.SimpleQueue()
            process = context.Process(target=send, args=(queue,))
            process.start()
            process.join()
            try:
                torch.UntypedStorage._new_shared_cuda(*queue.get())
            except RuntimeError as error:
                print(error)
        """,
    )
    assert "keep the sender alive" in lines[0]


@pytest.mark.long
def test_what_dlpack_lent_stays_the_same_memory_when_it_is_sent(tmp_path):
    assert run(
        tmp_path,
        """
        def receive(queue):
            queue.get().fill_(7)

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            queue = context.SimpleQueue()
            tensor = torch.ones(3, device="cuda")
            lent = torch.from_dlpack(tensor)
            process = context.Process(target=receive, args=(queue,))
            process.start()
            queue.put(lent[1:])
            process.join()
            print(tensor.tolist(), lent.tolist())
        """,
    ) == ["[1.0, 7.0, 7.0] [1.0, 7.0, 7.0]"]


def test_hollow_tensors_are_sent_as_sizes(tmp_path):
    assert run(
        tmp_path,
        """
        def receive(queue, answers):
            tensor = queue.get()
            answers.put([(tensor + 1).shape, tensor[1].data_ptr() - tensor.data_ptr()])

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            queue, answers = context.SimpleQueue(), context.SimpleQueue()
            process = context.Process(target=receive, args=(queue, answers))
            process.start()
            queue.put(torch.ones(1 << 20, 1 << 10, device="cuda"))
            print(*answers.get())
            process.join()
        """,
        hollow=True,
    ) == ["torch.Size([1048576, 1024]) 4096"]
