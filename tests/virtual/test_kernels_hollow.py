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
    "each op's results lie in memory as those of the CPU": """
def forms(dtype):
    rows = (torch.rand(4, 6, 5) + 0.1).to(dtype)
    image = torch.rand(2, 3, 8, 8).to(dtype)
    yield rows, rows[:1].clone()
    yield rows.transpose(0, 1), rows.transpose(0, 1)
    yield image.contiguous(memory_format=torch.channels_last), image
    yield rows[:, ::2], rows[:, ::2].clone()

def of(x, y):
    zeros = torch.zeros(2, dtype=torch.long, device=x.device)
    for name in "exp sqrt log neg abs floor sign mish reciprocal cos std var".split():
        yield getattr(torch.ops.aten, name)(x)
    for name in "eq gt maximum minimum".split():
        yield getattr(torch.ops.aten, name)(x, y)
    yield from (x.lt(1), x.clamp(0, 1), x.clamp_min(0), x.addcmul(y, y))
    yield from (x.where(x > 1, y), x.masked_fill(y > 1, 0), x.clone().mul_(y), x.clone().zero_())
    yield from (F.elu(x), F.leaky_relu(x), F.softplus(x))
    yield from (x.softmax(1), x.log_softmax(-1))
    yield from (x.amax(1), x.argmax(0), *x.topk(1, 1), x.cumsum(1), x.norm(dim=1))
    yield from (x.var(1, keepdim=True), *torch.std_mean(x, 0), x[zeros], x[:, zeros])
    yield x.gather(0, zeros.view((2,) + (1,) * (x.dim() - 1)))
    if x.dim() == 4:
        yield from (*F.max_pool2d(x, 2, return_indices=True), F.avg_pool2d(x, 2))
        yield from (F.interpolate(x, scale_factor=2, mode=mode) for mode in ("nearest", "bilinear"))

def lies(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype

for dtype in (torch.float32, torch.float16):
    for x, y in forms(dtype):
        there = [torch.empty_strided(t.shape, t.stride(), dtype=dtype).cuda() for t in (x, y)]
        for at, (here, hollow) in enumerate(zip(of(x, y), of(*there), strict=True)):
            assert lies(here) == lies(hollow), at
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
