"""An exported network runs with PyTorch alone, for batches of any size."""

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
network = torch.export.load(sys.argv[1]).module()
print(network(torch.ones(5, 4)).tolist())
"""


def test_it_runs_in_a_process_without_anydevice(network, data, device, tmp_path):
    network = nn.Sequential(nn.Dropout(0.5), network)
    trial = Trial(network, "adam", "cross_entropy").to(device).with_generators(data)
    trial.run(1, verbose=False)
    path = trial.export(tmp_path / "network.pt2")
    assert trial.network.training
    command = [sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = trial.predict(torch.ones(5, 4))
    torch.testing.assert_close(torch.tensor(eval(done.stdout)), expected)


def test_an_example_without_samples_is_refused(network, tmp_path):
    with pytest.raises(UsageError, match="expected an example of tensors"):
        Trial(network).export(tmp_path / "network.pt2", example="x")
    assert not list(tmp_path.iterdir())
