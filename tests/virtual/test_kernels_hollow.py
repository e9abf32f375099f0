"""The same kernels on a hollow GPU, in a process of its own: shapes and bytes, no numbers."""

import pytest

from ..forked import python

BEFORE = """
from anydevice import virtual
virtual.enable(hollow=True)
import torch
from torch import nn
from torch.nn import functional as F

def numbers(*shape, **options):
    return torch.randn(*shape, device="cuda", requires_grad=True, **options)

def learns(module, *inputs):
    result = module.cuda()(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    result.float().sum().backward()
    assert all(p.grad.shape == p.shape for p in module.parameters())
"""

PROGRAMS = {
    "recurrent networks": """
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    learns(kind(5, 7, 2, bidirectional=True, dropout=0.5), numbers(4, 3, 5))
for kind in (nn.LSTMCell, nn.GRUCell):
    learns(kind(5, 7), numbers(3, 5))
""",
    "attention": """
for dtype in (torch.float64, torch.float32, torch.float16):
    for options in ({}, {"is_causal": True}, {"dropout_p": 0.1}):
        q, k, v = (numbers(2, 4, 16, 8, dtype=dtype) for _ in range(3))
        F.scaled_dot_product_attention(q, k, v, **options).sum().backward()
        assert q.grad.shape == q.shape
""",
    "attention takes no memory for its weights": """
q, k, v = (numbers(4, 16, 4096, 64, dtype=torch.float16) for _ in range(3))
before = torch.cuda.max_memory_allocated()
F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
assert torch.cuda.max_memory_allocated() - before < 6 * q.nbytes
""",
    "normalisation and losses": """
learns(nn.BatchNorm2d(4), numbers(2, 4, 3, 3))
learns(nn.RMSNorm(4), numbers(2, 4))
F.softmax(numbers(3, 4, dtype=torch.float16), 1, dtype=torch.float32).sum().backward()
scores, targets = numbers(5, 2, 4), torch.ones(2, 2, dtype=torch.long, device="cuda")
lengths = torch.tensor([5, 5]), torch.tensor([2, 2])
F.ctc_loss(scores.log_softmax(-1), targets, *lengths).backward()
assert scores.grad.shape == scores.shape
""",
    "fused optimizers": """
for kind in ("Adam", "AdamW", "SGD", "Adagrad"):
    if kind == "Adagrad" and torch.__version__ < "2.13":
        continue
    network = nn.Linear(3, 3).cuda()
    optimizer = getattr(torch.optim, kind)(network.parameters(), fused=True)
    network(numbers(2, 3)).sum().backward()
    optimizer.step()
""",
    "what has no shapes in PyTorch": """
numbers(3, 4).logcumsumexp(1).sum().backward()
numbers(3, 4).cummax(1).values.sum().backward()
torch.fake_quantize_per_tensor_affine(numbers(3), 0.1, 0, 0, 255).sum().backward()
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_hollow_gpu_knows_the_shapes(program):
    done = python("-c", BEFORE + PROGRAMS[program])
    assert done.returncode == 0, done.stderr
