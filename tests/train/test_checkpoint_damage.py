"""A checkpoint that is damaged or was made by an attacker: said so, nothing run, nothing lost."""

import json
import logging
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from anydevice.notices import say_once
from anydevice.train.checkpoint.checkpoints import CheckpointError, Checkpoints
from anydevice.train.checkpoint.manifest import check, seal
from anydevice.train.checkpoint.resume import of_all_ranks
from anydevice.train.checkpoint.shards import Shards
from anydevice.train.trial import Trial
from tests.train import fuzz


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def small_trial(network=None, optimizer="adam"):
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    y = torch.arange(32) % 3
    trial = Trial(network or linear(), optimizer, "cross_entropy")
    return trial.with_generators((x, y), batch_size=8)


def save_in_shards(folder, optimizer="adam"):
    """As the ranks of FSDP write it, here by one process; the checkpoint's folder."""
    trial = small_trial(optimizer=optimizer)
    trial.run(1, verbose=False)
    shards = Shards(trial.network, None, trial.optimizer, None)
    state = of_all_ranks(trial.state(), {}, None)
    state |= {"groups": shards.groups(), "optimizer": None}
    return Checkpoints(folder).add(state, shards.write), trial


@pytest.fixture(scope="module")
def in_shards(tmp_path_factory):
    return save_in_shards(tmp_path_factory.mktemp("shards"))[0]


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adagrad"])
def test_shards_are_read_by_one_process(tmp_path, optimizer):
    path, trial = save_in_shards(tmp_path, optimizer)
    loaded = Trial.load(tmp_path, linear())
    assert torch.equal(loaded.network.weight, trial.network.weight)
    data = (torch.ones(8, 4), torch.zeros(8, dtype=torch.long))
    for each in (loaded, trial):
        each.with_generators(data).run(2, verbose=False)
    assert torch.equal(loaded.network.weight, trial.network.weight)
    assert {file.suffix for file in path.rglob("*") if file.is_file()} == {".safetensors", ".json"}


class Evil:
    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return os.system, (f"touch {self.flag}",)


# Changes to the index of shards: of the whole, its tensors, and the first part of one of them.
ATTACKS = {
    "bytes entry": lambda index, tensors, part: tensors.update({"optimizer.x": {"type": "bytes"}}),
    "pickle file": lambda index, tensors, part: part.update(file="evil.distcp"),
    "absolute path": lambda index, tensors, part: part.update(file="OUTSIDE"),
    "parent folder": lambda index, tensors, part: part.update(file="../../outside.safetensors"),
    "no such file": lambda index, tensors, part: part.update(file="00001.safetensors"),
    "index as a file": lambda index, tensors, part: part.update(file="index.json"),
    "another key": lambda index, tensors, part: part.update(key="network.bias 0"),
    "key as a number": lambda index, tensors, part: part.update(key=7),
    "path as a list": lambda index, tensors, part: part.update(file=["00000.safetensors"]),
    "huge": lambda index, tensors, part: part.update(shape=[2**70, 4]),
    "negative": lambda index, tensors, part: part.update(offset=[-3, 0]),
    "beyond": lambda index, tensors, part: part.update(offset=[1, 0]),
    "missing rows": lambda index, tensors, part: part.update(shape=[2, 4]),
    "no parts": lambda index, tensors, part: tensors["network.weight"].update(parts=[]),
    "parts twice": lambda index, tensors, part: tensors["network.weight"]["parts"].append(part),
    "no type": lambda index, tensors, part: tensors["network.weight"].update(dtype="torch.load"),
    "another type": lambda index, tensors, part: tensors["network.weight"].update(dtype="int8"),
    "no tensors": lambda index, tensors, part: index.update(tensors={}),
    "tensors as a list": lambda index, tensors, part: index.update(tensors=[1]),
    "no optimizer": lambda index, tensors, part: tensors.pop("optimizer.network.weight.exp_avg"),
    "another format": lambda index, tensors, part: index.update(format="anydevice shards 9"),
}


@pytest.fixture
def attacked(in_shards, tmp_path):
    """A checkpoint in which pickles lie that would leave a file named `ran`, and its index."""
    folder = tmp_path / "checkpoint-000001"
    shutil.copytree(in_shards, folder)
    save_file({"network.weight 0,0": torch.ones(3, 4)}, tmp_path / "outside.safetensors")
    for name in ("evil.distcp", ".metadata"):
        (folder / "shards" / name).write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    return folder, json.loads((folder / "shards" / "index.json").read_text())


def refused(path, index):
    """The attacker has sealed the changed checkpoint anew; what the victim is told."""
    text = json.dumps(index).replace("OUTSIDE", str(path.parent / "outside.safetensors"))
    (path / "shards" / "index.json").write_text(text)
    (path / "manifest.json").unlink()
    seal(path, {})
    check(path)
    with pytest.raises(CheckpointError) as caught:
        Trial.load(path.parent, linear())
    assert not (path.parent / "ran").exists()
    return str(caught.value)


@pytest.mark.parametrize("kind", ATTACKS)
def test_shards_of_an_attacker_run_nothing_and_lead_nowhere(attacked, kind):
    path, index = attacked
    ATTACKS[kind](index, index["tensors"], index["tensors"]["network.weight"]["parts"][0])
    assert "expected" in refused(path, index)


@pytest.mark.parametrize("name", ["link.safetensors", "00000.safetensors", "../state.json"])
def test_links_in_a_checkpoint_are_refused(attacked, name):
    path = attacked[0]
    (path / "shards" / name).unlink(missing_ok=True)
    (path / "shards" / name).symlink_to(path.parent / "outside.safetensors")
    with pytest.raises(CheckpointError, match="which is a link or a device"):
        Trial.load(path.parent, linear())


def test_shards_of_an_earlier_version_are_pickles_and_refused(in_shards, tmp_path):
    folder, flag = tmp_path / "checkpoint-000001", tmp_path / "ran"
    shutil.copytree(in_shards, folder)
    (folder / "manifest.json").unlink()
    record = json.loads((folder / "state.json").read_text())
    record.update(format="anydevice checkpoint 1", checksums={})
    (folder / "state.json").write_text(json.dumps(record))
    (folder / "shards" / ".metadata").write_bytes(pickle.dumps(Evil(flag)))
    with pytest.raises(CheckpointError, match="pickles run code"):
        Trial.load(tmp_path, linear())
    assert not flag.exists()


def files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def test_one_flipped_bit_anywhere_is_found(in_shards, tmp_path):
    whole = small_trial()
    whole.run(1, verbose=False)
    for path in (in_shards, whole.save(tmp_path / "whole")):
        for name in files(path):
            there = path / name
            good = there.read_bytes()
            for place in {0, 1, len(good) // 2, len(good) - 1}:
                for bit in range(8):
                    bad = bytearray(good)
                    bad[place] ^= 1 << bit
                    there.write_bytes(bad)
                    with pytest.raises(CheckpointError):
                        check(path)
            there.write_bytes(good)
        check(path)


def weights_after(folder, epochs):
    trial = small_trial().with_options(seed=3).checkpoint(folder)
    torch.manual_seed(7)
    trial.run(epochs, verbose=False)
    return trial.network.weight


def test_a_damaged_newest_is_skipped_for_the_one_before_with_the_same_end(tmp_path, caplog):
    expected = weights_after(tmp_path / "whole", 4)
    weights_after(tmp_path / "cut", 3)
    before, newest = sorted((tmp_path / "cut").iterdir())
    state = newest / "state.json"
    state.write_bytes(state.read_bytes().replace(b'"step": 12', b'"step": 13'))
    with caplog.at_level(logging.WARNING, "anydevice"):
        found = weights_after(tmp_path / "cut", 4)
    assert torch.equal(found, expected)
    said = [line for line in caplog.messages if newest.name in line]
    assert len(said) == 1
    assert "is damaged and is skipped: expected" in said[0]
    assert any(f"{before} (epoch 3" in line for line in caplog.messages)
    left = sorted(path.name for path in (tmp_path / "cut").iterdir())
    assert left == ["checkpoint-000003", "checkpoint-000004", "damaged-checkpoint-000003"]
    assert Trial.load(tmp_path / "cut", linear()).epoch == 4


def test_all_damaged_is_an_error_that_says_what_to_do(tmp_path):
    weights_after(tmp_path, 2)
    for path in tmp_path.iterdir():
        (path / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"No intact checkpoint is left in .*: remove it"):
        weights_after(tmp_path, 3)


def as_before_manifests(path):
    """The same checkpoint as version 1 of the format had it."""
    sums = json.loads((path / "manifest.json").read_text())["files"]
    (path / "manifest.json").unlink()
    record = json.loads((path / "state.json").read_text())
    record["format"] = "anydevice checkpoint 1"
    record["checksums"] = {name: s[1] for name, s in sums.items() if name != "state.json"}
    (path / "state.json").write_text(json.dumps(record))


def test_a_checkpoint_without_a_manifest_is_read_and_said_to_be_half_checked(tmp_path, caplog):
    expected = weights_after(tmp_path / "whole", 3)
    weights_after(tmp_path / "old", 2)
    for path in (tmp_path / "old").iterdir():
        as_before_manifests(path)
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "anydevice"):
        assert torch.equal(weights_after(tmp_path / "old", 3), expected)
    assert "its tensors are checked, its state.json" in caplog.text
    path = max((tmp_path / "whole").iterdir())
    as_before_manifests(path)
    (path / "network.safetensors").write_bytes(b"x" * 100)
    assert Trial.load(tmp_path / "whole", linear()).epoch == 2  # the one before


def change_state(path, change):
    record = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**record, "state": change(record["state"])}))
    (path / "manifest.json").unlink()
    seal(path, {})


@pytest.mark.parametrize(
    "change",
    [
        lambda state: None,
        lambda state: [],
        lambda state: {},
        lambda state: {"$tensor": "nowhere"},
        lambda state: {"$tensor": []},
        lambda state: {"$array": ["nowhere", "O", [1]]},
        lambda state: {**state, "history": 3},
        lambda state: {**state, "history": [3]},
        lambda state: {**state, "step": "many"},
        lambda state: {**state, "step": 1e400},
        lambda state: {**state, "batches": -1},
        lambda state: {**state, "names": {"step": "x"}},
        lambda state: {**state, "names": {"metrics": [7]}},
        lambda state: {**state, "optimizer": {"state": 1}},
        lambda state: {**state, "optimizer": [1]},
        lambda state: {**state, "ranks": 7},
        lambda state: {**state, "shards": "/tmp"},
        lambda state: {**state, "callbacks": 7},
    ],
)
def test_malformed_states_are_a_checkpoint_error(tmp_path, change):
    weights_after(tmp_path, 1)
    change_state(max(tmp_path.iterdir()), change)
    with pytest.raises(CheckpointError, match=r"name another folder|expected"):
        weights_after(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"name another folder|expected"):
        Trial.load(tmp_path, linear())


def test_malformed_random_states_are_a_checkpoint_error(tmp_path):
    weights_after(tmp_path, 1)
    random = {"python": [3, [7], None], "numpy": 1, "cpu": [], "data": []}
    change_state(
        max(tmp_path.iterdir()),
        lambda state: {**state, "random": random},
    )
    with pytest.raises(CheckpointError, match="cannot be taken up"):
        weights_after(tmp_path, 2)


def test_mutated_checkpoints_are_refused_or_the_same():
    counts = fuzz.fuzzed(40, seed=3)
    assert counts["damaged: refused"] > 5
    assert counts.total() == 40
