"""What is sent to another process as bytes arrives there, PyTorch's unusual modules too."""

import pickle
from types import ModuleType

import pytest
import torch
from torch.nn.attention import SDPBackend

from anydevice.pickling import by_value

pytest.importorskip("cloudpickle")


def test_a_function_may_set_pytorchs_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)

    def experiment() -> SDPBackend:
        torch.backends.cudnn.benchmark = True
        assert isinstance(torch.backends.cuda.matmul.allow_tf32, bool)
        assert torch.ops.aten.add.Tensor
        return SDPBackend.MATH

    assert pickle.loads(by_value(experiment))() == SDPBackend.MATH
    assert torch.backends.cudnn.benchmark


def test_what_has_no_name_is_sent_whole() -> None:
    module = ModuleType("not_imported")
    module.number = 3  # type: ignore[attr-defined]

    class Local:
        def double(self) -> int:
            return 2 * int(module.number)

    again = pickle.loads(by_value(lambda: Local().double()))
    assert again() == 6
