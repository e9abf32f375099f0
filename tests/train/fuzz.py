"""Checkpoints with anything in them: read as they were written, or refused in a sentence.

python -m tests.train.fuzz --count 2000

Each checkpoint is mutated in one of three ways. Bytes of its files are changed, and the manifest is
not: that is damage, and has to be found. Or its JSON is changed and sealed anew, as an attacker
would: loading it may succeed or be refused, but with no other exception; an optimizer may be given
state with which PyTorch cannot take a step, which is counted. Or it is made into one
from before manifests and changed. In no case may anything be unpickled or a program be started.
"""

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anydevice.errors import UsageError
from anydevice.train.checkpoint.checkpoints import CheckpointError, Checkpoints
from anydevice.train.checkpoint.manifest import seal
from anydevice.train.checkpoint.resume import of_all_ranks
from anydevice.train.checkpoint.shards import Shards
from anydevice.train.history import SPEED
from anydevice.train.trial import Trial

RUNS_CODE = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")
ODD: list[Any] = [
    None, True, -1, 0, 10**30, 1e300, float("nan"), "", "x", "../../x", "/etc/passwd", "os.system",
    [], {}, [[]], {"$tensor": "x"}, {"$tuple": 1}, {"$items": [1]}, {"$array": ["x", "O", [1]]},
]  # fmt: skip


def trial() -> Trial:
    torch.manual_seed(0)
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
    made = Trial(nn.Linear(3, 2), "adam", "cross_entropy", metrics=["loss", "accuracy"])
    return made.with_generators((x, torch.arange(16) % 2), batch_size=8)


def written(folder: Path) -> list[Path]:
    """Two good checkpoints, a whole one and one in shards."""
    one = trial().checkpoint(folder / "whole")
    one.run(1, verbose=False)
    shards = Shards(one.network, None, one.optimizer, None)
    state = {**of_all_ranks(one.state(), {}, None), "groups": shards.groups(), "optimizer": None}
    Checkpoints(folder / "shards").add(state, shards.write)
    return [folder / "whole", folder / "shards"]


def outcome(folder: Path) -> Any:
    """What there is after loading, and after another epoch from there."""
    loaded = Trial.load(folder, nn.Linear(3, 2))
    first = [p.tolist() for p in loaded.network.parameters()]
    again = trial()
    if not (next(folder.glob("checkpoint-*")) / "shards").exists():
        try:
            again.checkpoint(folder).run(2, verbose=False)
        except Exception as error:
            if isinstance(error, UsageError) or not again.job.step:
                raise
            return "it was taken up, and then PyTorch could not train with it"
    figures = [{k: v for k, v in epoch.items() if k not in SPEED} for epoch in again.history]
    return first, loaded.job.step, figures, [p.tolist() for p in again.network.parameters()]


def change_bytes(path: Path, chance: random.Random) -> None:
    """A flipped bit, other bytes, a piece that is missing or there twice, or the end cut off."""
    file = chance.choice([each for each in sorted(path.rglob("*")) if each.is_file()])
    data = bytearray(file.read_bytes())
    at = chance.randrange(len(data))
    match chance.randrange(5):
        case 0:
            data[at] ^= 1 << chance.randrange(8)
        case 1:
            data[at : at + 4] = chance.randbytes(4)
        case 2:
            del data[at : at + chance.randint(1, 9)]
        case 3:
            data[at:at] = data[at : at + 9] + b"9"
        case 4:
            del data[at:]
    file.write_bytes(data)


def change_json(path: Path, chance: random.Random) -> None:
    """One value of a file of JSON is another, or gone."""
    files = [each for each in sorted(path.rglob("*.json")) if each.name != "manifest.json"]
    file = chance.choice(files)
    tree = json.loads(file.read_text())
    node, key = chance.choice(list(places(tree)))
    if chance.random() < 0.2:
        del node[key]
    else:
        node[key] = chance.choice(ODD)
    file.write_text(json.dumps(tree))


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a tree, but of a long list, such as a random state, the first few."""
    if isinstance(node, (dict, list)):
        for key in list(node)[:30] if isinstance(node, dict) else range(min(len(node), 5)):
            yield node, key
            yield from places(node[key])


def damaged(path: Path, chance: random.Random) -> None:
    change_bytes(path, chance)


def attacked(path: Path, chance: random.Random) -> None:
    change_json(path, chance)
    (path / "manifest.json").unlink()
    seal(path, {})


def old(path: Path, chance: random.Random) -> None:
    sums = json.loads((path / "manifest.json").read_text())["files"]
    (path / "manifest.json").unlink()
    record = json.loads((path / "state.json").read_text())
    record["format"] = "anydevice checkpoint 1"
    record["checksums"] = {name: pair[1] for name, pair in sums.items() if name != "state.json"}
    (path / "state.json").write_text(json.dumps(record))
    chance.choice([change_bytes, change_json])(path, chance)


WAYS: list[Callable[[Path, random.Random], None]] = [damaged, attacked, old]
ran: list[str] = []


def watched(event: str, arguments: tuple[Any, ...]) -> None:
    if event in RUNS_CODE:
        ran.append(f"{event} {arguments}")


def fuzzed(count: int, seed: int) -> Counter[str]:
    """How many ended how; what must not happen is an AssertionError."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        good = written(Path(name))
        copies = [Path(name) / "expected" / each.name for each in good]
        for each, copy in zip(good, copies, strict=True):
            shutil.copytree(each, copy)
        expected = [outcome(copy) for copy in copies]
        sys.addaudithook(watched)
        for number in range(count):
            chance = random.Random(f"{seed} {number}")
            which, way = chance.randrange(2), chance.choice(WAYS)
            folder = Path(name) / "mutated"
            shutil.copytree(good[which], folder)
            way(next(folder.glob("checkpoint-*")), chance)
            ran.clear()
            try:
                found = outcome(folder)
                ended = "loaded, another" if found != expected[which] else "loaded, the same"
                ended = "loaded, no training" if isinstance(found, str) else ended
            except CheckpointError:
                ended = "refused"
            except UsageError as error:
                ended = f"refused as {type(error).__name__}"
            except Exception as error:
                raise AssertionError(f"mutation {number} of seed {seed}: {error!r}") from error
            assert not ran, (number, ran)
            assert way is not damaged or ended in ("refused", "loaded, the same"), number
            counts[f"{way.__name__}: {ended}"] += 1
            shutil.rmtree(folder)
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("anydevice").setLevel(logging.CRITICAL)
    for ended, times in sorted(fuzzed(given.count, given.seed).items()):
        print(f"{times:6} {ended}")
