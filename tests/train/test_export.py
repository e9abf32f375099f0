"""An exported network runs with PyTorch alone, for batches of any size."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from anydevice.errors import UsageError
from anydevice.train.trial import Trial

PROGRAM = """
import sys
sys.modules["anydevice"] = None
import torch
for path in sys.argv[1:]:
    network = torch.export.load(path).module()
    print(network(torch.ones(5, 4)).tolist())
"""


@pytest.mark.long
def test_it_runs_in_a_process_without_anydevice(network, data, virtual_gpu, tmp_path):
    paths, expected = [], []
    for device in ("cpu", "cuda:0"):
        dropping = nn.Sequential(nn.Dropout(0.5), copy.deepcopy(network))
        trial = Trial(dropping, "adam", "cross_entropy").to(device).with_generators(data)
        trial.run(1, verbose=False)
        paths.append(trial.export(tmp_path / f"{len(paths)}.pt2"))
        assert trial.network.training
        expected.append(trial.predict(torch.ones(5, 4)))
    command = [sys.executable, "-c", PROGRAM, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line, there in zip(done.stdout.splitlines(), expected, strict=True):
        torch.testing.assert_close(torch.tensor(eval(line)), there)


def test_an_example_without_samples_is_refused(network, tmp_path):
    with pytest.raises(UsageError, match="expected an example of tensors"):
        Trial(network).export(tmp_path / "network.pt2", example="x")
    assert not list(tmp_path.iterdir())
