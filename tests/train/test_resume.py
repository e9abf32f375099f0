"""An interrupted run goes on as if it had not been, and no checkpoint is ever half there."""

import copy
import gc
import json
import math
import os
import weakref

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from anydevice.notices import say_once
from anydevice.train.callbacks import Callback
from anydevice.train.checkpoint.checkpoints import CheckpointError
from anydevice.train.history import SPEED
from anydevice.train.trial import Trial

from ..forked import python

TRAINS = """
import json, os, signal, sys
from pathlib import Path
from anydevice.train.callbacks import Callback, callback
from tests import killed

folder, last = sys.argv[1:]


class Ends(Callback):
    def on_step(self, trial):
        if trial.job.step == int(last):
            os.kill(os.getpid(), signal.SIGTERM)


callback.everywhere.append(Ends())
print(json.dumps(killed.trained("tensors", Path(folder))))
"""


def test_asked_to_end_it_finishes_the_step_and_exits_with_143(tmp_path):
    def ended(folder, last):
        return python("-c", TRAINS, tmp_path / folder, str(last), env=os.environ | ONE_THREAD)

    asked = ended("asked", 7)
    assert (asked.returncode, asked.stdout) == (143, "")
    newest = max((tmp_path / "asked" / "checkpoints").iterdir())
    assert json.loads((newest / "state.json").read_text())["state"]["step"] == 7
    again = ended("asked", -1)
    assert f"resuming from {newest}" in again.stderr
    assert again.stdout == ended("alone", -1).stdout != ""


def test_a_run_whose_epochs_are_all_done_says_so(tmp_path, caplog):
    x = torch.ones(4, 2)
    for _ in range(2):
        trial = Trial(torch.nn.Linear(2, 2), "sgd", "mse").with_generators((x, x))
        trial.checkpoint(tmp_path).run(epochs=1, verbose=False)
    assert caplog.messages[-1].endswith("(1 of 1 epochs done: nothing is left to train).")


ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class InterruptionError(Exception):
    """What interrupts the runs of these tests."""


class StopsAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_step(self, trial):
        if trial.job.step == self.step:
            raise InterruptionError


def made(network, data, folder, device="cpu", precision="fp32", stops_at=None, **options):
    stops = [StopsAt(stops_at)] if stops_at else []
    trial = Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"], callbacks=stops)
    trial.to(device, precision).with_generators(data, batch_size=20)
    return trial.with_options(seed=4).checkpoint(folder, **options)


def network_with_dropout():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3))


def weights(trial):
    return [parameter.detach().cpu() for parameter in trial.network.parameters()]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_interrupted_in_the_middle_of_an_epoch_on_a_gpu(data, tmp_path, virtual_gpu, precision):
    whole = made(network_with_dropout(), data, tmp_path / "whole", "cuda:0", precision)
    whole.run(3, verbose=False)
    cut = made(network_with_dropout(), data, tmp_path, "cuda:0", precision, stops_at=12, every=5)
    with pytest.raises(InterruptionError):
        cut.run(3, verbose=False)
    again = made(network_with_dropout(), data, tmp_path, "cuda:0", precision, every=5)
    again.run(3, verbose=False)
    assert all(map(torch.equal, weights(again), weights(whole)))
    for found, expected in zip(again.history, whole.history, strict=True):
        assert {**found, **dict.fromkeys(SPEED)} == {**expected, **dict.fromkeys(SPEED)}


@pytest.mark.parametrize(("trained", "loaded"), [("cuda:0", "cpu"), ("cpu", "cuda:0")])
def test_trained_on_one_device_and_gone_on_with_on_another(
    data, tmp_path, virtual_gpu, trained, loaded
):
    first = made(network_with_dropout(), data, tmp_path, trained)
    first.run(1, verbose=False)
    second = made(network_with_dropout(), data, tmp_path, loaded)
    assert [r["epoch"] for r in second.run(2, verbose=False)] == [1, 2]
    state = second.optimizer.state[second.network[0].weight]["exp_avg"]
    assert state.device == torch.device(loaded)


def test_a_loader_with_a_generator_of_its_own_goes_on(network, data, tmp_path):
    def made(seed, stops_at=None):
        seen = []

        def step(network, batch):
            seen.append(batch[1].tolist())
            return network(batch[0]).square().mean()

        generator = torch.Generator().manual_seed(seed)
        loader = torch.utils.data.DataLoader(
            list(zip(*data, strict=True)), batch_size=26, shuffle=True, generator=generator
        )
        stops = [StopsAt(stops_at)] if stops_at else []
        trial = Trial(copy.deepcopy(network), "sgd", step=step, callbacks=stops)
        return trial.with_generators(loader), seen

    whole, expected = made(3)
    whole.run(3, verbose=False)
    cut, seen = made(3, stops_at=7)
    with pytest.raises(InterruptionError):
        cut.checkpoint(tmp_path, every=7).run(3, verbose=False)
    again, rest = made(99)
    again.checkpoint(tmp_path, every=7).run(3, verbose=False)
    done = again.job.step - len(rest)
    assert seen[:done] + rest == expected


@pytest.mark.parametrize("cut_at", [7, 10])  # in the middle of the second epoch, and at its end
def test_persistent_workers_go_on_with_the_same_samples(tmp_path, caplog, cut_at):
    def made(folder, stops_at=None):
        seen = []

        class Seen(Callback):
            def on_step(self, trial):
                seen.append(trial.job.batch[1].tolist())

        torch.manual_seed(1)
        loader, val = (
            torch.utils.data.DataLoader(
                [(torch.randn(3), row) for row in range(rows)],
                batch_size=8,
                shuffle=True,
                num_workers=1,
                persistent_workers=True,
            )
            for rows in (40, 8)
        )
        network = nn.Sequential(nn.Dropout(), nn.Linear(3, 40))
        stops = [StopsAt(stops_at)] if stops_at else []
        trial = Trial(network, "sgd", "cross_entropy", callbacks=[Seen(), *stops])
        return trial.with_generators(loader, val).checkpoint(folder, every=1), seen

    whole, expected = made(tmp_path / "whole")
    whole.run(3, verbose=False)
    cut, seen = made(tmp_path / "cut", stops_at=cut_at)
    if cut_at == 10:
        cut, seen = made(tmp_path / "cut")
        cut.run(2, verbose=False)
    else:
        with pytest.raises(InterruptionError):
            cut.run(3, verbose=False)
    say_once.cache_clear()
    again, rest = made(tmp_path / "cut")
    again.run(3, verbose=False)
    done = again.job.step - len(rest)
    assert seen[:done] + rest == expected
    assert all(map(torch.equal, weights(again), weights(whole)))
    assert "persistent workers start anew" in caplog.text


def test_a_trial_is_freed_with_its_last_reference(data, tmp_path):
    """In a cycle with its loader, persistent workers would be waited for, 5 s each."""
    made(network_with_dropout(), data, tmp_path / "first").run(
        1, verbose=False
    )  # what torch imports
    trial = made(network_with_dropout(), data, tmp_path / "second")
    trial.run(1, verbose=False)
    gc.disable()
    try:
        freed = weakref.ref(trial)
        del trial
        assert freed() is None
    finally:
        gc.enable()


def test_only_the_newest_are_kept(data, tmp_path):
    made(network_with_dropout(), data, tmp_path, every=2, keep=3).run(2, verbose=False)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", ["killed", "full"])
def test_interrupted_at_each_point_where_it_writes_it_ends_with_the_same_bits(tmp_path, how, every):
    words = ("-m", "tests.train.write_points", how, tmp_path, str(every))
    done = python(*words, env=os.environ | ONE_THREAD)
    assert done.returncode == 0, done.stderr
    points, ends = json.loads(done.stdout)
    assert points > 20
    assert len(ends) == math.ceil(points / every)
    assert all(same_bits for _, same_bits, _ in ends)
    for _, _, left in ends:
        assert "checkpoint-000002" in left
    if how == "killed":
        assert {end for end, _, _ in ends} == {"SIGKILL"}
        return
    errors = [end for end, _, _ in ends if end.startswith("CheckpointError")]
    assert all(
        "could not be written ([Errno 28] No space left on device); those" in e for e in errors
    )
    others = {end for end, _, _ in ends} - set(errors)  # what is old is not removed: no matter
    assert len(errors) > 20 / every
    assert len(others) == 1
    assert not others.pop().startswith("OSError")


def test_a_trial_is_saved_and_loaded_with_what_had_names(data, tmp_path, network):
    trial = Trial(network, "adam", "cross_entropy", metrics=["accuracy"]).with_generators(data)
    trial.run(2, verbose=False)
    trial.save(tmp_path)
    trial.save(tmp_path)
    fresh = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 3))
    loaded = Trial.load(tmp_path, fresh)
    assert loaded.history == trial.history
    assert loaded.evaluate(data) == trial.evaluate(data)
    assert loaded.with_generators(data).run(3, verbose=False)[-1]["epoch"] == 3


def damage_bytes(path):
    data = bytearray((path / "network.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "network.safetensors").write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (damage_bytes, "network.safetensors as it was written ("),
        (lambda path: (path / "state.safetensors").unlink(), "expected state.safetensors in"),
        (lambda path: (path / "state.json").unlink(), "expected state.json in"),
        (lambda path: (path / "state.json").write_text("{"), "state.json as it was written"),
        (lambda path: (path / "manifest.json").unlink(), "expected the manifest of a checkpoint"),
        (lambda path: (path / "manifest.json").write_text("{"), "expected a manifest in"),
        (lambda path: (path / "manifest.json").write_text("{}"), "expected a manifest in"),
    ],
)
def test_a_damaged_checkpoint_is_refused(data, tmp_path, damage, sentence):
    made(network_with_dropout(), data, tmp_path).run(1, verbose=False)
    damage(max(tmp_path.iterdir()))
    with pytest.raises(CheckpointError) as caught:
        made(network_with_dropout(), data, tmp_path).run(2, verbose=False)
    assert sentence in str(caught.value)


def test_a_checkpoint_of_another_network_is_refused(data, tmp_path):
    made(network_with_dropout(), data, tmp_path).run(1, verbose=False)
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(CheckpointError, match=r"where 0.weight is \[8, 4\], got one of another"):
        made(other, data, tmp_path).run(2, verbose=False)


def test_a_folder_of_something_else_is_refused(network, tmp_path):
    folder = tmp_path / "checkpoint-000001"
    folder.mkdir()
    save_file({"x": torch.ones(1)}, folder / "network.safetensors")
    with pytest.raises(CheckpointError, match="without a readable"):
        Trial.load(tmp_path, network)
