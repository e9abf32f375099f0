"""Runs trained as one program are the runs alone, or are done one by one, with the reason."""

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anydevice as ad
from anydevice.sweep.fuse import driver, reasons
from anydevice.sweep.fuse.process import draw_orders
from anydevice.sweep.fuse.training import Together
from anydevice.sweep.records import tracker
from anydevice.sweep.records.records import RecordError, read_all
from anydevice.train.callbacks import Callback, EarlyStopping, Schedule
from anydevice.train.history import SPEED

X = torch.randn(70, 6, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


OPTIMIZERS: dict[str, Callable[[int], Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": lambda i: lambda p: torch.optim.SGD(p, lr=0.1 / (i + 1), weight_decay=0.01 * i),
    "momentum": lambda i: lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.3 * i),
    "nesterov": lambda i: (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.2 + 0.3 * i, nesterov=True)
    ),
    "adam": lambda i: lambda p: torch.optim.Adam(p, lr=0.01 * (i + 1), weight_decay=0.1 * i),
    "adamw": lambda i: lambda p: torch.optim.AdamW(p, lr=0.01 * (i + 1), weight_decay=0.1 * i),
}


def trials(
    make: Callable[[], nn.Module] = mlp, optimizer: str = "adam", seeds: bool = True, **more: Any
) -> list[ad.Trial]:
    """Three trials in float64, so that what differs is arithmetic and not rounding."""
    made = []
    for number in range(3):
        torch.manual_seed(number if seeds else 0)
        network = make().double()
        metrics = ["loss", "accuracy"]
        trial = ad.Trial(network, OPTIMIZERS[optimizer](number), "cross_entropy", metrics, **more)
        trial.with_generators((X.double(), Y), (X[:20].double(), Y[:20]), batch_size=16)
        draw_orders(trial)
        made.append(trial)
    return made


def together(those: list[ad.Trial], epochs: int = 2) -> None:
    assert reasons.why_not(those) is None
    as_one = Together(those)
    for _ in range(epochs):
        as_one.epoch()
    as_one.end()


def assert_the_same(some: list[ad.Trial], others: list[ad.Trial]) -> None:
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(one.network.state_dict(), other.network.state_dict())
        assert len(one.history) == len(other.history)
        for record, same in zip(one.history, other.history, strict=True):
            for name in ("epoch", "loss", "accuracy", "val_loss", "val_accuracy"):
                assert record[name] == pytest.approx(same[name], rel=1e-6), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("seeds", [False, True], ids=["one seed", "seeds"])
def test_each_ends_as_it_does_alone(optimizer: str, seeds: bool) -> None:
    alone, as_one = (trials(mlp, optimizer, seeds) for _ in range(2))
    for trial in alone:
        trial.run(2, verbose=False)
    together(as_one)
    assert_the_same(as_one, alone)
    assert as_one[0].history[-1]["loss"] != as_one[1].history[-1]["loss"]


def test_networks_with_buffers_and_convolutions_do_too() -> None:
    alone, as_one = (trials(convolutional) for _ in range(2))
    for trial in alone:
        trial.run(2, verbose=False)
    together(as_one)
    assert_the_same(as_one, alone)
    assert int(as_one[0].network[2].num_batches_tracked) == 10  # type: ignore[index, operator, union-attr]


def test_gradients_are_clipped_run_by_run() -> None:
    alone, as_one = (
        [trial.with_options(clip_norm=0.1) for trial in trials(optimizer="sgd")] for _ in range(2)
    )
    for trial in (*alone, *as_one):
        draw_orders(trial)
    for trial in alone:
        trial.run(2, verbose=False)
    together(as_one)
    assert_the_same(as_one, alone)


def test_a_trial_goes_on_alone_as_if_it_had_been_so_from_the_start() -> None:
    alone, as_one = (trials() for _ in range(2))
    together(as_one, 1)
    for trial in (*alone, *as_one):
        trial.run(3, verbose=False)
    assert_the_same(as_one, alone)


def test_those_that_stop_keep_what_they_have_and_the_others_go_on() -> None:
    alone, as_one = (trials() for _ in range(2))
    for trial, epochs in zip(alone, (3, 1, 3), strict=True):
        trial.run(epochs, verbose=False)
    group = Together(as_one)
    group.epoch()
    as_one[1].stop()
    group.drop_stopped()
    group.epoch()
    group.epoch()
    group.end()
    assert_the_same(as_one, alone)


def test_the_short_trial_leaves_the_trials_as_they_were() -> None:
    alone, as_one = (trials(convolutional) for _ in range(2))
    group = Together(as_one)
    assert reasons.times_as_fast(group, 1) > 0
    group.epoch()
    group.end()
    for trial in alone:
        trial.run(1, verbose=False)
    assert_the_same(as_one, alone)


class Steps(Callback):
    def on_step(self, trial: ad.Trial) -> None:
        pass


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.with_options(accumulate=2), "its options"),
        (lambda t: t.callbacks.append(Steps()), "one of its callbacks looks at each step"),
        (lambda t: t.checkpoint("nowhere"), "writes checkpoints"),
        (lambda t: t.with_generators([(X.double(), Y)]), "not tensors"),
        (lambda t: t.run(1, verbose=False), "trained already"),
        (lambda t: t.with_generators((X.double(), Y), batch_size=8), "the shapes of their data"),
    ],
)
def test_what_cannot_be_shared_is_named(change: Callable[[ad.Trial], Any], reason: str) -> None:
    made = trials()
    change(made[1])
    assert reason in (reasons.why_not(made) or "")


def test_dropout_is_refused() -> None:
    made = trials(lambda: nn.Sequential(mlp(), nn.Dropout(0.5)))
    with pytest.raises(RuntimeError, match="random"):
        reasons.times_as_fast(Together(made), 1)


def test_runs_that_differ_in_anything_else_are_another_group() -> None:
    runs = ad.grid(lr=[0.1, 0.2], width=[8, 16], seed=[0, 1])
    groups = driver.groups_of(runs)
    assert [{run.width for run in group} for group in groups] == [{8}, {16}]
    assert [len(group) for group in groups] == [4, 4]
    assert driver.groups_of(ad.grid(width=[8, 16])) == []


# ---- whole sweeps ----


def experiment(run: ad.Run) -> Any:  # type: ignore[name-defined]
    print(f"lr is {run.lr}")
    trial = ad.Trial(
        mlp(),
        lambda p: torch.optim.SGD(p, lr=run.lr),
        "cross_entropy",
        metrics=["loss", "accuracy"],
        callbacks=[
            Schedule(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5)),
            EarlyStopping("val_accuracy", patience=2),
        ],
    )
    history = trial.with_generators((X, Y), (X[:20], Y[:20]), batch_size=16).run(3)
    if run.lr == 0.3:
        raise ValueError("one of them fails afterwards")
    return {**history[-1], "afterwards": trial.evaluate((X, Y))["loss"]}


def random_experiment(run: ad.Run) -> Any:  # type: ignore[name-defined]
    trial = ad.Trial(nn.Sequential(mlp(), nn.Dropout(0.5)), torch.optim.Adam, "cross_entropy")
    return trial.with_generators((X, Y)).run(1)


def handwritten(run: ad.Run) -> Any:  # type: ignore[name-defined]
    return {"loss": run.lr}


def killed(run: ad.Run) -> Any:  # type: ignore[name-defined]
    marker = run.folder.parent / "killed"
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return handwritten(run)


def unwritable(run: ad.Run) -> Any:  # type: ignore[name-defined]
    def full(folder: Path, record: Any) -> None:
        raise RecordError("the disk is full")

    tracker.write = full
    raise ValueError("which its record cannot say")


def done(folder: Path, what: Any, fuse: bool, count: int = 2) -> dict[float, Any]:
    runs = ad.grid(lr=[number / 10 for number in range(1, count + 1)], seed=[0])
    ad.Sweep(what, runs).run(folder, fuse=fuse, verbose=False)
    records, damaged = read_all(folder)
    assert not damaged
    return {record.parameters["lr"]: record for record in records}


def test_a_sweep_with_fuse_ends_with_the_same_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    separate = done(tmp_path / "separate", experiment, False, 16)
    fused = done(tmp_path / "fused", experiment, True, 16)
    for lr, record in separate.items():
        assert fused[lr].state == record.state == ("failed" if lr == 0.3 else "done")
        for name, figure in record.last.items():
            if name not in SPEED:
                assert fused[lr].last[name] == pytest.approx(figure, rel=1e-5), name
        output = tmp_path / "fused" / "runs" / record.key / "output.txt"
        assert f"lr is {lr}\n" in output.read_text()
        assert "lr_scheduler.step()" not in output.read_text()
    assert "one of them fails afterwards" in fused[0.3].error
    assert "16 runs are trained as one" in caplog.text


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (random_experiment, "random"),
        pytest.param(handwritten, "does not call trial.run", marks=pytest.mark.long),
    ],
)
def test_what_cannot_be_fused_is_done_one_by_one_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: Any, reason: str
) -> None:
    caplog.set_level(logging.WARNING)
    records = done(tmp_path, what, True)
    assert {record.state for record in records.values()} == {"done"}
    assert reason in caplog.text


def test_a_group_whose_process_is_killed_is_done_one_by_one(tmp_path: Path) -> None:
    records = done(tmp_path, killed, True)
    assert {record.state for record in records.values()} == {"done"}


def test_a_full_disk_ends_a_group_instead_of_keeping_it_waiting(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="the disk is full"):
        done(tmp_path, unwritable, True)
