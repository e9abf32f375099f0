"""Storages on virtual GPUs: made, changed, copied, saved and loaded as on a card."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from torch import nn

from anydevice import virtual

from .own_process import run

Storage = torch.UntypedStorage


@pytest.fixture(autouse=True, scope="module")
def two_gpus():
    virtual.enable(gpus=2, gpu="t4")
    yield
    virtual.disable()


def saved(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file, **options)
    file.seek(0)
    return file


# ---- made and changed


@pytest.mark.parametrize("device", ["cuda:1", 1, torch.device("cuda", 1)])
def test_a_storage_is_made_where_it_is_asked_for(device):
    before = torch.cuda.memory_allocated(1)
    storage = Storage(1000, device=device)
    assert (storage.device, storage.nbytes()) == (torch.device("cuda:1"), 1000)
    assert torch.cuda.memory_allocated(1) - before == 1024


@pytest.mark.parametrize("values", [[1, 2, 3], b"\1\2\3", bytearray(b"\1\2\3")])
def test_a_storage_is_made_of_values(values):
    assert Storage(values, device="cuda").tolist() == [1, 2, 3]


def test_a_subclass_of_storages_stays_one():
    class Mine(Storage):
        pass

    assert type(Mine(3, device="cuda")) is Mine
    assert Storage(device="cuda").nbytes() == 0


def test_typed_storages_of_old_programs():
    assert torch.cuda.FloatStorage([1, 2]).tolist() == [1, 2]
    assert torch.cuda.LongStorage(3).device == torch.device("cuda:0")
    typed = torch.TypedStorage([1.0, 2.0], dtype=torch.float64, device="cuda:1")
    assert (typed.device.index, typed.tolist()) == (1, [1, 2])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            lambda: Storage([1.5], device="cuda"),
            "one of the items was of type float instead of int",
        ),
        (lambda: Storage(-1, device="cuda"), "CUDA out of memory"),
        (lambda: Storage(1, device="cuda:7"), "CUDA error: invalid device ordinal"),
        (lambda: Storage(1, device="cuda").resize_(-1), "cannot be represented as a size_t"),
        (lambda: Storage(1, device="cuda").resize_("a"), "resize_ expects an int, but got str"),
        (lambda: Storage(1, device="cuda").copy_(Storage(2)), "size does not match"),
        (lambda: Storage(1, device="cuda")._share_fd_cpu_(), "only available on CPU"),
        (lambda: Storage(1)._share_cuda_(), "_share_cuda_: only available on CUDA"),
        (
            lambda: torch.empty(0, device="cuda").set_(Storage(4, device="cuda:1")),
            'a tensor on device "cuda:0" to a storage on different device "cuda:1"',
        ),
    ],
)
def test_what_cannot_be_says_so_in_pytorchs_words(wrong, text):
    with pytest.raises(RuntimeError, match=text):
        wrong()


def test_only_host_memory_can_be_pinned():
    with pytest.raises(TypeError, match="only CPU memory can be pinned"):
        Storage(1, device="cuda").pin_memory()


def test_a_storage_is_read_written_and_resized():
    storage = Storage([1, 2, 3], device="cuda")
    storage[0] = 9
    storage[1:] = 7
    assert storage.tolist() == [9, 7, 7]
    assert storage[1:].tolist() == [7, 7]
    assert storage[-1] == 7
    assert storage.resize_(5) is storage
    assert (storage.nbytes(), storage[0]) == (5, 9)
    assert storage.fill_(4).cpu().tolist() == [4] * 5


def test_a_storage_resized_to_nothing_gives_its_memory_back():
    before = torch.cuda.memory_allocated()
    tensor = torch.ones(1 << 20, device="cuda")
    tensor.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(torch.AcceleratorError, match="an illegal memory access was encountered"):
        tensor + 1
    tensor.untyped_storage().resize_(4 << 20)
    assert tensor.fill_(2).sum() == 2 << 20


def test_a_storage_moves_between_devices():
    storage = Storage([1, 2])
    there = storage.cuda(1)
    assert there.device == torch.device("cuda:1")
    assert there.to(device="cuda:0").cpu().tolist() == [1, 2]
    assert there.clone().copy_(Storage([3, 4])).tolist() == [3, 4]
    assert there.is_shared()
    assert there.share_memory_() is there


def test_views_share_one_storage_and_set_makes_more_of_them():
    base = torch.zeros(6, device="cuda")
    other = torch.empty(0, device="cuda").set_(base.untyped_storage(), 2, (2, 2), (1, 2))
    other += 1
    assert base.tolist() == [0, 0, 1, 1, 1, 1]
    assert other.untyped_storage()._cdata == base[1:].untyped_storage()._cdata


def test_memory_that_was_sent_is_free_again_once_it_is_let_go_of_and_more_is_sent():
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        storage = torch.ones(1000, device="cuda").untyped_storage()
        received = Storage._new_shared_cuda(*storage._share_cuda_())
        part = storage[4:8]
        assert torch.cuda.memory_allocated() - before == 4096
        part.fill_(0)
        assert received[:12].tolist() == [0, 0, 128, 63, 0, 0, 0, 0, 0, 0, 128, 63]
        del part, storage
        assert torch.cuda.memory_allocated() - before == 4096
        del received
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before


def test_an_event_may_be_sent_to_another_process():
    event = torch.cuda.Event(interprocess=True)
    event.record()
    sent = pickle.loads(ForkingPickler.dumps(event))
    assert type(sent) is torch.cuda.Event
    assert sent.query()


def test_a_slice_of_a_storage_stays_its_memory_when_that_is_sent():
    storage = Storage([1, 2, 3], device="cuda")
    part = storage[1:]
    storage._share_cuda_()
    storage[1] = 9
    assert part.tolist() == [9, 3]


def test_data_can_be_swapped_under_a_tensor():
    tensor = torch.ones(3)
    tensor.data = torch.zeros(2, device="cuda")
    assert (tensor.device.type, tensor.tolist()) == ("cuda", [0, 0])
    one, other = torch.ones(1, device="cuda"), torch.zeros(2)
    torch.utils.swap_tensors(one, other)
    assert (one.device.type, other.device.type) == ("cpu", "cuda")


def test_a_lazy_clone_shares_its_bytes_until_one_of_the_two_is_written_to():
    address, shares = torch._C._data_address, torch._C._is_cow_tensor
    before = torch.cuda.memory_allocated()
    tensor = torch.arange(4.0, device="cuda")
    here, view = address(tensor), tensor[1:]
    clone = tensor._lazy_clone()
    assert (address(clone), torch.cuda.memory_allocated() - before) == (here, 512)
    assert (tensor + clone.clone()).sum().item() == 12
    assert [shares(tensor), shares(clone)] == [True, True]
    clone += 1
    assert (shares(clone), torch.cuda.memory_allocated() - before) == (False, 1024)
    view[0] = 7
    assert (tensor.tolist(), clone.tolist()) == ([0, 7, 2, 3], [1, 2, 3, 4])
    assert (shares(tensor), address(tensor)) == (False, here)
    tensor.resize_(200)
    del tensor, view, clone
    assert torch.cuda.memory_allocated() == before


def test_a_lazy_clone_may_be_empty():
    clone = torch.empty(0, device="cuda")._lazy_clone()
    assert (clone + 1).numel() == 0
    assert clone.resize_(2).fill_(1).tolist() == [1, 1]


def test_a_lazy_clone_may_be_written_to_while_it_is_read():
    tensor = torch.arange(4.0, device="cuda")
    clone = tensor._lazy_clone()
    torch.add(clone, clone, out=clone)
    other = tensor._lazy_clone()
    torch._foreach_add_([other], [tensor])
    assert (tensor.tolist(), clone.tolist(), other.tolist()) == (
        [0, 1, 2, 3],
        [0, 2, 4, 6],
        [0, 2, 4, 6],
    )


# ---- copied


def test_deepcopy_keeps_devices_views_and_what_requires_a_gradient():
    base = torch.arange(4.0, device="cuda:1")
    parameter = nn.Parameter(base[2:])
    copied, view, learned = copy.deepcopy((base, base[1:], parameter))
    assert copied.untyped_storage()._cdata == view.untyped_storage()._cdata
    assert type(learned) is nn.Parameter
    assert learned.requires_grad
    assert learned.tolist() == [2, 3]
    assert learned.device == torch.device("cuda:1")
    assert learned.untyped_storage()._cdata != base.untyped_storage()._cdata


def test_deepcopy_of_what_has_a_history_is_refused():
    tensor = torch.ones(2, device="cuda", requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(tensor)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_network_and_its_optimizer_are_copied_together(make):
    network = nn.Linear(2, 2, device="cuda:1")
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(1, 2, device="cuda:1")).sum().backward()
    optimizer.step()
    other, theirs = make((network, optimizer))
    assert theirs.param_groups[0]["params"][0] is other.weight
    assert theirs.state[other.weight]["exp_avg"].device == torch.device("cuda:1")
    before = network.weight.clone()
    theirs.step()
    assert network.weight.equal(before)


# ---- saved and loaded


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("location", "devices"),
    [
        (None, "cuda:1 cuda:1 cuda:0 cpu"),
        ("cpu", "cpu cpu cpu cpu"),
        ("cuda:1", "cuda:1 cuda:1 cuda:1 cuda:1"),
        (torch.device("cuda"), "cuda:0 cuda:0 cuda:0 cuda:0"),
        ({"cuda:1": "cuda:0"}, "cuda:0 cuda:0 cuda:0 cpu"),
        (lambda storage, where: storage.cuda(1) if where == "cpu" else None, "1 1 0 1"),
        ("meta", "meta meta meta meta"),
    ],
)
def test_load_puts_each_tensor_where_it_is_told(zipped, weights_only, location, devices):
    base = torch.arange(4.0, device="cuda:1")
    things = [base, base[1:], nn.Parameter(torch.ones(1, device="cuda")), torch.ones(2)]
    file = saved(things, _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, map_location=location, weights_only=weights_only)
    found = [str(tensor.device) for tensor in loaded]
    assert found == [f"cuda:{word}" if word.isdecimal() else word for word in devices.split()]
    assert loaded[2].requires_grad
    if location != "meta":
        loaded[0].add_(1)
        assert loaded[1].tolist() == [2, 3, 4]


def test_load_from_a_mapped_file(tmp_path):
    torch.save([torch.ones(3, device="cuda:1")], tmp_path / "saved")
    (loaded,) = torch.load(tmp_path / "saved", mmap=True)
    assert (loaded.device.index, loaded.tolist()) == (1, [1, 1, 1])
    (there,) = torch.load(tmp_path / "saved", mmap=True, map_location="cuda:0")
    assert there.device.index == 0


@pytest.mark.parametrize(
    "thing",
    [
        lambda: torch.eye(3, device="cuda:1").to_sparse(),
        lambda: torch.eye(3, device="cuda:1").to_sparse_csr(),
        lambda: torch.ones(2, dtype=torch.complex64, device="cuda:1").conj(),
        lambda: torch.quantize_per_tensor(torch.ones(3, device="cuda:1"), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda:1"),
    ],
    ids=["coo", "csr", "conjugate", "quantized", "nested"],
)
def test_tensors_of_any_layout_are_saved(thing):
    tensor = thing()
    loaded = torch.load(saved(tensor), weights_only=not tensor.is_nested)  # so asks torch 2.15
    assert (loaded.device, loaded.layout) == (torch.device("cuda:1"), tensor.layout)
    assert str(loaded) == str(tensor)


def test_a_file_of_a_larger_machine_is_refused_in_pytorchs_words(tmp_path):
    torch.save(torch.ones(1, device="cuda:1"), tmp_path / "saved")
    program = f"""
try:
    torch.load({str(tmp_path / "saved")!r})
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    assert run("virtual.enable()" + program).startswith(
        "Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1."
    )
    assert run(program).startswith(
        "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False."
    )


def test_a_program_may_name_places_of_its_own():
    registered = torch.serialization._package_registry
    before = list(registered)
    torch.serialization.register_package(
        1,
        lambda storage: "mine" if storage.device.type == "cuda" else None,
        lambda storage, where: storage.cuda(1) if where == "mine" else None,
    )
    try:
        assert torch.load(saved(torch.ones(1, device="cuda"))).device.index == 1
    finally:
        registered[:] = before


def test_scripted_networks_are_saved_and_loaded():
    network = torch.jit.script(nn.Linear(2, 3, device="cuda:1"))
    file = io.BytesIO()
    torch.jit.save(network, file)
    for location, device in ((None, "cuda:1"), ("cpu", "cpu"), ("cuda:0", "cuda:0")):
        file.seek(0)
        loaded = torch.jit.load(file, map_location=location)
        assert loaded.weight.device == torch.device(device)
        assert loaded(torch.ones(1, 2, device=device)).shape == (1, 3)


def test_safetensors_go_straight_to_the_gpu(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, load_model, save_file, save_model

    file = tmp_path / "weights"
    base = torch.arange(4.0, device="cuda:1")
    save_file({"a": base, "b": torch.ones(2, dtype=torch.bfloat16, device="cuda")}, file)
    loaded = load_file(file, device="cuda:1")
    assert {tensor.device.index for tensor in loaded.values()} == {1}
    assert loaded["a"].tolist() == [0, 1, 2, 3]
    with safe_open(file, "pt", device="cuda:0") as opened:
        assert opened.get_slice("a")[2:].tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="share memory"):
        save_file({"a": base, "b": base[1:]}, file)
    tied = nn.ModuleList([nn.Linear(2, 2, device="cuda")] * 2)
    save_model(tied, file)
    assert load_model(tied, file, device="cuda") == (set(), [])


# ---- NumPy and other libraries


@pytest.mark.parametrize("read", [lambda x: x.numpy(), np.asarray, np.array])
def test_numpy_cannot_see_a_gpus_memory(read):
    with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
        read(torch.ones(2, device="cuda:1"))
    assert torch.ones(2, device="cuda:1").numpy(force=True).tolist() == [1, 1]


def test_numbers_come_from_numpy():
    array = np.arange(3.0)
    for there in (
        torch.as_tensor(array, device="cuda:1"),
        torch.from_numpy(array).to("cuda:1"),
        torch.frombuffer(array, dtype=torch.float64).to("cuda:1"),
        torch.from_dlpack(array).to("cuda:1"),
    ):
        assert (there.device.index, there.tolist()) == (1, [0, 1, 2])


def test_dlpack_is_the_same_memory():
    tensor = torch.ones(3, device="cuda")
    other = torch.from_dlpack(tensor)
    other += 1
    assert tensor.tolist() == [2, 2, 2]
    assert other.data_ptr() == tensor.data_ptr()
    assert torch.ones(1, device="cuda:1").__dlpack_device__() == (2, 1)  # kDLCUDA
    assert torch.from_dlpack(tensor, device="cpu").device.type == "cpu"
    capsule = torch.utils.dlpack.to_dlpack(torch.ones(1, device="cuda:1"))
    assert torch.from_dlpack(capsule).device.index == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda x: np.from_dlpack(x), "Unsupported device in DLTensor"),
        (lambda x: x.__dlpack__(stream=0), "unsupported stream on CUDA: 0"),
        (lambda x: x.__dlpack__(stream="a"), "stream must be ``int`` or ``none``"),
        (lambda x: torch.from_dlpack(x.requires_grad_()), "tensors that require gradient"),
        (lambda x: torch.from_dlpack(x.to("cuda:1")), "different CUDA device index"),
    ],
)
def test_dlpack_says_what_it_cannot_hand_out(wrong, error):
    with pytest.raises((RuntimeError, TypeError, BufferError, AssertionError), match=error):
        wrong(torch.ones(1, device="cuda"))


def test_the_array_interface_says_where_the_numbers_are():
    tensor = torch.ones(2, 3, device="cuda").t()
    interface = tensor.__cuda_array_interface__
    assert interface["data"] == (tensor.data_ptr(), False)
    assert (interface["shape"], interface["strides"]) == ((3, 2), (4, 12))
    with pytest.raises(AttributeError, match="on non-CUDA tensor type"):
        torch.ones(1).__cuda_array_interface__  # noqa: B018
