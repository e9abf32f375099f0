"""GPUs that come and go in random order, beside threads and forks, without a hang or a crash.

python -m tests.virtual.stress --rounds 200 --seed 0

Each round is a process of its own that runs a dozen random steps; a round that hangs is killed, and
each that fails is printed with its seed, which `--only` runs again.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

STEPS = 12
LIMIT_S = 120


def main() -> None:
    """Run the rounds; exit code 1 if one of them failed."""
    parser = argparse.ArgumentParser(description="Enabling, disabling, threads and forks at random")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this one round in this process")
    given = parser.parse_args()
    if given.only is not None:
        return Round(given.only).run()
    begin, failed = time.monotonic(), 0
    for seed in range(given.seed, given.seed + given.rounds):
        problem = complaint(seed)
        failed += problem is not None
        if problem:
            print(f"round {seed}: {problem}", flush=True)
    took = time.monotonic() - begin
    print(f"{given.rounds} rounds, {failed} failed, {took / given.rounds:.1f} s a round")
    sys.exit(failed > 0)


def complaint(seed: int) -> str | None:
    """What is wrong with how a round ended, or None."""
    command = [sys.executable, "-m", "tests.virtual.stress", "--only", str(seed)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        return f"hung after {error.stdout!r}"
    if ended.returncode or "whole" not in ended.stdout.split():
        return f"ended with {ended.returncode} after {ended.stdout.split()}: {ended.stderr[-2000:]}"
    return None


class Round:
    """A dozen steps in the order that a seed gives."""

    def __init__(self, seed: int) -> None:
        import torch

        import anydevice as ad

        self.torch, self.virtual = torch, ad.virtual
        self.random = random.Random(seed)
        self.kept: list[object] = []  # tensors, streams and generators that may outlive their GPUs
        torch.set_num_threads(1 + seed % 2)

    def run(self) -> None:
        """Each step's name is printed before it, so that a hang can be told where it was."""
        for _ in range(STEPS):
            step = self.random.choice(self.steps())
            print(step.__name__, flush=True)
            step()
        print("whole", flush=True)

    def steps(self) -> list[Callable[[], None]]:
        """What can be done now."""
        always = [self.disable, self.fork, self.look_at_what_is_left, self.forget, self.in_thread]
        if not self.virtual.enabled():
            return [self.enable, self.enable, self.enable, *always]
        return [self.work, self.backward, self.workers, self.streams, self.threads, *always]

    def enable(self) -> None:
        kind = self.random.choice(["t4", "h100", "a100-80gb"])
        hollow = self.random.random() < 0.2
        self.virtual.enable(self.random.randint(1, 4), kind, memory="1GiB", hollow=hollow)

    def disable(self) -> None:
        self.virtual.disable()
        assert not self.torch.cuda.is_available()

    def device(self) -> str:
        return f"cuda:{self.random.randrange(self.torch.cuda.device_count())}"

    def hollow(self) -> bool:
        return self.virtual.enabled().hollow

    def work(self) -> None:
        x = self.torch.full((64, 64), 2.0, device=self.device())
        total = (x @ x).sum().item()
        assert total == (0 if self.hollow() else 64 * 64 * 64 * 4), total
        self.kept.append(x[1:3])

    def backward(self) -> None:
        nn, device = self.torch.nn, self.device()
        network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
        network.to(device)
        optimizer = self.torch.optim.Adam(network.parameters())
        loss = network(self.torch.randn(4, 8, device=device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        self.kept.append(loss)

    def workers(self) -> None:
        data = self.torch.utils.data.TensorDataset(self.torch.arange(8.0))
        loader = self.torch.utils.data.DataLoader(data, 4, num_workers=2, pin_memory=True)
        total = sum(batch.to(self.device()).sum().item() for (batch,) in loader)
        assert total == (0 if self.hollow() else 28), total

    def streams(self) -> None:
        cuda = self.torch.cuda
        with cuda.device(self.device()):
            stream, event = cuda.Stream(), cuda.Event(enable_timing=True)
            with cuda.stream(stream):
                x = self.torch.rand(100, device="cuda")
                event.record()
            x.record_stream(stream)
            event.synchronize()
            self.kept += [stream, event, self.torch.Generator("cuda").manual_seed(1), x]

    def threads(self) -> None:
        """Threads that work while this one takes the GPUs away: errors, but nothing worse."""
        self._beside(lambda: [self._spin() for _ in range(20)], self.random.random() < 0.7)

    def in_thread(self) -> None:
        """Whoever enables, the GPUs are the process's."""
        self._beside(lambda: self.virtual.enable(2, "t4", memory="1GiB"), False)
        self.virtual.enabled()

    def _beside(self, work: Callable[[], object], take_away: bool) -> None:
        import threading

        def quietly() -> None:
            # The GPUs went, or others are there.
            with suppress(RuntimeError, AssertionError, AttributeError, ValueError):
                work()

        threads = [threading.Thread(target=quietly) for _ in range(3)]
        for thread in threads:
            thread.start()
        if take_away:
            time.sleep(self.random.random() / 50)
            self.virtual.disable()
        for thread in threads:
            thread.join()

    def _spin(self) -> None:
        x = self.torch.ones(32, 32, device="cuda", requires_grad=True)
        (x @ x + self.torch.randperm(32, device="cuda")).sum().backward()

    def fork(self) -> None:
        child = os.fork()
        if child == 0:
            os._exit(self._in_child())
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status

    def _in_child(self) -> int:
        """CUDA cannot be used in a child of who has used it; the CPU can."""
        if self.torch.ones(3).sum().item() != 3:
            return 3
        try:
            self.torch.ones(1, device="cuda")
        except (RuntimeError, AssertionError):
            return 0
        return 0 if self.virtual.enabled() else 4

    def look_at_what_is_left(self) -> None:
        for thing in self.kept:
            if isinstance(thing, self.torch.Tensor):
                assert thing.detach().cpu().device.type == "cpu"

    def forget(self) -> None:
        self.random.shuffle(self.kept)
        del self.kept[: len(self.kept) // 2]


if __name__ == "__main__":
    main()
