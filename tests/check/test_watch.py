"""What a check looks at between two steps."""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import anydevice as ad
from anydevice.check.watch import kept_graphs


class Refusing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} was called")


def test_tensors_of_a_compiler_are_passed_over_while_graphs_are_looked_for():
    with ad.virtual_gpus(hollow=True):
        with FakeTensorMode():
            fake = torch.ones(3, device="cuda", requires_grad=True)
        graph = torch.ones(3, device="cuda", requires_grad=True) * 2
        with Refusing():
            assert graph.untyped_storage().data_ptr() in kept_graphs()
        assert type(fake) is FakeTensor
