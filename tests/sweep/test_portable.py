"""Sweeps where a process that has PyTorch cannot be forked: each run is a new Python."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import anydevice as ad
from anydevice import system


def share_with_itself() -> dict[str, Any]:
    """A tensor's bytes move to a file that another process could open, and one opens it."""
    with ad.virtual_gpus():
        whole = torch.arange(4, dtype=torch.uint8, device="cuda")
        sent = whole.untyped_storage()._share_cuda_()
        name = sent[1].decode()
        mode = os.stat(name).st_mode & 0o777
        received = torch.UntypedStorage._new_shared_cuda(*sent)
        whole += 1
        got = received.tolist()
    return {"name": name, "mode": mode, "got": got}


def experiment(run: ad.Run) -> dict[str, float]:
    seen = {
        "parent": os.getppid(),
        "leads": os.getpgid(0) == os.getpid(),
        "linux": system.LINUX,
        **share_with_itself(),
    }
    (run.folder / "seen.json").write_text(json.dumps(seen))
    return {"loss": run.lr}


@pytest.mark.fresh
def test_a_run_is_a_new_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(system.PORTABLE, "1")
    results = ad.Sweep(experiment, ad.grid(lr=[0.1])).run(tmp_path / "runs")
    (record,) = results.records
    assert record.state == "done", record.error
    (written,) = tmp_path.glob("runs/**/seen.json")
    seen = json.loads(written.read_text())
    assert seen["parent"] != os.getpid()  # the server's
    assert seen["leads"]
    assert not seen["linux"]
    assert seen["mode"] == 0o600
    assert seen["got"] == [1, 2, 3, 4]
    assert os.path.basename(seen["name"]).startswith("anydevice-shared-")
    assert not os.path.exists(seen["name"])
