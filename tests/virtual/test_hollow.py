"""Hollow GPUs: what is copied, saved and read of tensors that have sizes and no values."""

from pathlib import Path

import pytest

from ..forked import python
from .own_process import run

HOLLOW = "import copy, io, pickle\nvirtual.enable(gpus=2, hollow=True)\n"


def hollow(program):
    return run(HOLLOW + program)


def test_each_tensor_has_an_address_of_its_own_as_the_allocator_lays_them_out():
    assert hollow("""
a, b, c = (torch.ones(3, 4, device=f"cuda:{index}") for index in (0, 0, 1))
there = {segment["address"] for segment in torch.cuda.memory_snapshot()}
print(json.dumps([
    b.data_ptr() - a.data_ptr(), a[1].data_ptr() - a.data_ptr(), a.data_ptr() in there,
    a.untyped_storage().data_ptr() == a.data_ptr(), c.data_ptr() in there,
    len({a.data_ptr(), b.data_ptr(), c.data_ptr()}), torch.empty(0, device="cuda").data_ptr(),
]))
""") == [512, 16, True, True, True, 3, 0]


def test_copies_are_counted_and_take_no_memory_of_the_host():
    before, after, resident, kept, values = hollow("""
network = torch.nn.Linear(20_000, 20_000, device="cuda")
optimizer = torch.optim.AdamW(network.parameters())
network(torch.ones(1, 20_000, device="cuda")).sum().backward()
optimizer.step()
before = torch.cuda.memory_allocated()
copied, theirs = copy.deepcopy((network, optimizer))
after = torch.cuda.memory_allocated()
host = network.weight.detach().cpu()
resident = most_resident()
print(json.dumps([before, after, resident, theirs.state[copied.weight]["exp_avg"].is_cuda,
                  host[[0, 1, -1]].sum().item()]))
""")
    assert after - before == before * 3 // 4  # the weights and AdamW's moments; no gradients
    assert resident < 20_000 * 20_000 * 4
    assert kept
    assert values == 0


def test_what_is_saved_loads_as_zeros_of_its_size(tmp_path):
    assert hollow(f"""
network = torch.nn.Linear(3, 4).cuda()
path = {str(tmp_path / "weights.pt")!r}
torch.save(network.state_dict(), path)
torch.save(network.state_dict(), path)
loaded = torch.load(path, map_location="cpu")
network.load_state_dict(torch.load(path))
again = pickle.loads(pickle.dumps(network))
print(json.dumps([loaded["weight"].tolist(), str(again.weight.device), list(again.weight.shape)]))
""") == [[[0] * 3] * 4, "cuda:0", [4, 3]]


def test_a_file_from_before_is_left_as_it_is(tmp_path):
    best = tmp_path / "best.pt"
    best.write_bytes(b"trained for a week")
    done = python(
        "-c",
        "import torch\nfrom anydevice import virtual\nvirtual.enable(hollow=True)\n"
        f"torch.save(torch.ones(3, device='cuda'), {str(best)!r})",
    )
    assert done.returncode == 0, done.stderr
    assert best.read_bytes() == b"trained for a week"
    assert done.stderr.splitlines() == [
        f"{best} is left as it is: a hollow GPU has no values to save."
    ]


def test_tied_weights_are_found_by_their_addresses(tmp_path):
    assert hollow(f"""
from safetensors.torch import load_file, save_model
linear = torch.nn.Linear(2, 2, device="cuda")
save_model(torch.nn.ModuleList([linear, linear, torch.nn.Linear(2, 2, device="cuda")]),
           {str(tmp_path / "weights")!r})
loaded = load_file({str(tmp_path / "weights")!r}, device="cuda:1")
print(json.dumps([len(loaded), loaded["2.weight"].device.index]))
""") == [4, 1]


def test_what_is_read_is_zero_and_what_is_asked_is_answered_with_no():
    assert hollow("""
x = torch.ones(2, 3, device="cuda")
print(json.dumps([
    x.sum().item(), x.tolist(), bool((x > 0).any()), torch.equal(x, x), torch.allclose(x, x),
    x.cpu().numpy().tolist(), x.untyped_storage().tolist()[:2], f"{x.mean():.1f}",
]))
""") == [0, [[0] * 3] * 2, False, False, False, [[0] * 3] * 2, [0, 0], "0.0"]


def test_a_write_through_a_mask_keeps_the_shape():
    assert hollow("""
x = torch.ones(2, 3, device="cuda")
x[x > 0] = 5
x[x > 0] = torch.ones(4, device="cuda")
print(json.dumps(list(x.shape)))
""") == [2, 3]


@pytest.mark.parametrize(
    ("line", "op"),
    [("x[x > 0]", "index"), ("x.nonzero()", "nonzero"), ("torch.unique(x)", "_unique2")],
)
def test_a_size_that_depends_on_values_is_refused_with_the_users_line(line, op, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\nfrom anydevice import virtual\nvirtual.enable(hollow=True)\n"
        f"x = torch.ones(2, device='cuda')\n{line}\n"
    )
    done = python(program)
    assert f"and aten::{op} needs them at train.py:5: expected" in done.stderr


def test_a_weighted_and_smoothed_cross_entropy_of_any_shape_trains():
    program = """
import torch.nn.functional as F
torch.manual_seed(0)
seen = []
for shape in ((5,), (4, 5), (2, 5, 3)):
    for reduction in ("mean", "sum", "none"):
        x = torch.randn(shape).cuda().requires_grad_()
        y = torch.randint(5, shape[:1] * (len(shape) > 1) + shape[2:]).cuda()
        y.view(-1)[0] = 1 if len(shape) == 1 else -100
        w = torch.rand(5).cuda()
        loss = F.cross_entropy(x, y, w, reduction=reduction, label_smoothing=0.2)
        loss.sum().backward()
        seen.append([list(loss.shape), str(loss.dtype), x.grad.shape == x.shape])
print(json.dumps(seen))
"""
    assert hollow(program) == run("virtual.enable()\n" + program)


def test_a_smoothed_cross_entropy_is_the_one_of_pytorch():
    """The way it goes on hollow GPUs, on GPUs that have values."""
    for mine, theirs in run("""
import torch.nn.functional as F
from anydevice.virtual.surface.hollow import _cross_entropy
virtual.enable()
torch.manual_seed(0)
pytorchs, seen = torch._C._nn.cross_entropy_loss, []
for shape in ((5,), (4, 5), (2, 5, 3)):
    for reduction in ("mean", "sum", "none"):
        x, w = torch.randn(shape).cuda(), torch.rand(5).cuda()
        y = torch.randint(5, shape[:1] * (len(shape) > 1) + shape[2:]).cuda()
        y.view(-1)[0] = 1 if len(shape) == 1 else -100
        both = []
        for torch._C._nn.cross_entropy_loss in (_cross_entropy(pytorchs), pytorchs):
            loss = F.cross_entropy(x, y, w, reduction=reduction, label_smoothing=0.2)
            both.append(loss.flatten().tolist())
        seen.append(both)
print(json.dumps(seen))
"""):
        assert mine == pytest.approx(theirs, rel=1e-6)


def test_sparse_tensors_give_dense_results_whose_shape_is_known():
    assert hollow("""
where = torch.zeros(2, 5, dtype=torch.long, device="cuda")
coo = torch.sparse_coo_tensor(where, torch.ones(5, device="cuda"), (3, 4))
rows = torch.zeros(4, dtype=torch.long, device="cuda")
csr = torch.sparse_csr_tensor(rows, where[0], torch.ones(5, device="cuda"), size=(3, 4))
dense = torch.ones(3, 4, device="cuda")
right = torch.ones(4, 2, device="cuda", requires_grad=True)
torch.sparse.mm(coo, right).sum().backward()
words = torch.nn.Embedding(10, 3, sparse=True, device="cuda")
optimizer = torch.optim.SGD(words.parameters(), lr=0.1)
words(rows).sum().backward()
optimizer.step()
kept = dense.add_(coo)
print(json.dumps([list(x.shape) for x in (
    coo.to_dense(), coo @ right, csr @ right, dense + coo, dense - coo, right.grad)]
    + [kept is dense]))
""") == [[3, 4], [3, 2], [3, 2], [3, 4], [3, 4], [4, 2], True]


def test_what_goes_by_the_values_of_other_layouts_is_refused_with_op_and_reason():
    sparse, nested = (
        "since the indices of a sparse tensor are values, too",
        "use layout=torch.jagged",
    )
    expected = {
        "coo.coalesce()": ("aten::_coalesce", sparse),
        "coo @ coo.t()": ("aten::mm", sparse),
        "csr.to_sparse_csc()": ("aten::_to_sparse_csc", sparse),
        "nested + nested": ("aten::add", nested),
        "nested.cpu()": ("aten::_to_copy", nested),
    }
    said = hollow(f"""
where = torch.zeros(2, 5, dtype=torch.long, device="cuda")
coo = torch.sparse_coo_tensor(where, torch.ones(5, device="cuda"), (3, 4))
csr = torch.sparse_csr_tensor(where[0, :4], where[0], torch.ones(5, device="cuda"), size=(3, 4))
nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device="cuda")
said = dict()
for line in {list(expected)}:
    try:
        eval(line)
    except NotImplementedError as error:
        said[line] = str(error)
print(json.dumps(said))
""")
    for line, (op, reason) in expected.items():
        assert op in said[line]
        assert reason in said[line]


TRAIN = """
import sys
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
sys.path.insert(0, {folder!r})
import networks

def rand(*shape):
    return torch.rand(shape, device="cuda")

def label(classes, *shape):
    return torch.randint(classes, shape, device="cuda")

class Checkpointed(nn.Module):
    def __init__(self, network, reentrant):
        super().__init__()
        self.network, self.reentrant = network, reentrant

    def forward(self, x):
        return checkpoint(self.network, x, use_reentrant=self.reentrant)

def train(network, inputs, labels, precision=torch.float16):
    optimizer = torch.optim.AdamW(network.cuda().parameters())
    schedulers = (torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
                  torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
    scaler = torch.amp.GradScaler("cuda", enabled=precision == torch.float16)
    average = copy.deepcopy(network).eval()
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", precision, enabled=precision != torch.float32):
            outputs = network(*inputs)
            outputs = outputs[0] if isinstance(outputs, tuple) else outputs
            loss = F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), ignore_index=-100)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedulers[0].step()
        schedulers[1].step(loss.item())
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), network.parameters()):
                mine.lerp_(theirs, 0.1)
    file = io.BytesIO()
    torch.save([network.state_dict(), optimizer.state_dict(), scaler.state_dict()], file)
    file.seek(0)
    weights, state, scale = torch.load(file, map_location="cpu")
    network.load_state_dict(weights)
    optimizer.load_state_dict(state)
    scaler.load_state_dict(scale)
    with torch.inference_mode():
        network.eval()(*inputs)

image, sequence = rand(2, 3, 32, 32), rand(2, 5, 32)
padding = torch.zeros(2, 5, dtype=torch.bool, device="cuda")
layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
text = label(99, 2, 16)
block = networks.Block(64, 4)
pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
half, whole = torch.bfloat16, torch.float32
train(networks.resnet50(), [image], label(1000, 2), half)
train(networks.GPT2(64, 2, 4, vocabulary=99), [text], text)
train(Checkpointed(networks.GPT2(64, 2, 4, vocabulary=99), False), [text], text, half)
train(nn.Sequential(nn.Embedding(99, 64), Checkpointed(block, True)), [text], label(64, 2, 16))
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    train(kind(32, 8, 2, batch_first=True, dropout=0.1, bidirectional=True), [sequence],
          label(16, 2, 5))
train(nn.Transformer(32, 4, 2, 2, 64, batch_first=True), [sequence, rand(2, 6, 32)],
      label(32, 2, 6))
train(nn.TransformerEncoder(layer, 2), [sequence, None, padding], label(32, 2, 5))
train(nn.Sequential(nn.ConvTranspose2d(3, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.LeakyReLU(), *pooled),
      [image], label(8, 2), whole)
train(nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.GroupNorm(3, 3), nn.Upsample(scale_factor=2),
                    *pooled, nn.Dropout(), nn.Linear(3, 4)), [image], label(4, 2))
train(nn.Sequential(nn.EmbeddingBag(50, 8), nn.RMSNorm(8), nn.Linear(8, 4)), [label(50, 3, 5)],
      label(4, 3))
print(json.dumps("trained"))
"""


def test_networks_of_all_kinds_train_average_save_and_load():
    assert hollow(TRAIN.format(folder=str(Path(__file__).parent))) == "trained"
