import copy
import io
import pickle

import pytest
import torch
from torch import nn

import anydevice as ad

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.conv2 = nn.Conv2d(2, 2, 3)
        self.act = nn.ReLU()
        self.fc1 = nn.Linear(2 * 4 * 4, 5)
        self.fc2 = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        x = self.act(self.conv2(self.act(self.conv1(x))))
        return self.fc2(self.act(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


def images() -> torch.Tensor:
    return torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_layers_go_where_the_patterns_say(elsewhere: torch.device) -> None:
    net = Net()
    assert ad.place(net, {"conv*": "cpu", "fc*": elsewhere}) is net
    assert net.conv2.weight.device == CPU
    assert net.fc1.weight.device == net.fc2.bias.device == elsewhere
    assert ad.placement(net).is_split


def test_activations_follow_without_a_change_to_the_program(elsewhere: torch.device) -> None:
    net = ad.place(Net(), {"conv*": "cpu", "fc*": elsewhere})
    assert net(images()).device == elsewhere


def test_layers_that_no_pattern_names_fetch_their_inputs_too(elsewhere: torch.device) -> None:
    net = ad.place(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), {"0": elsewhere})
    if elsewhere.type == "meta":  # nothing can come back from there
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            net(torch.ones(1, 2))
    else:
        assert net(torch.ones(1, 2)).device == CPU


def test_keyword_inputs_and_nested_inputs_move(elsewhere: torch.device) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(2))

        def forward(self, batch: dict[str, torch.Tensor], *, more: torch.Tensor) -> torch.Tensor:
            return batch["x"] + more + self.bias

    net = ad.place(nn.ModuleDict({"sum": Sum()}), {"sum": elsewhere})
    assert net["sum"]({"x": torch.ones(2)}, more=torch.ones(2)).device == elsewhere


def test_the_state_dict_is_unchanged() -> None:
    net = Net()
    before = list(net.state_dict())
    ad.place(net, {"*": "cpu"})
    assert list(net.state_dict()) == before
    Net().load_state_dict(net.state_dict())


def test_parameters_stay_the_same_objects_so_an_optimizer_made_before_still_works() -> None:
    net = Net()
    weight = net.fc1.weight
    ad.place(net, {"fc*": "cpu"})
    assert net.fc1.weight is weight


def test_the_last_pattern_counts(elsewhere: torch.device) -> None:
    net = ad.place(Net(), {"*": "cpu", "fc2": elsewhere})
    assert net.fc1.weight.device == CPU
    assert net.fc2.weight.device == elsewhere


def test_a_pattern_takes_the_children_along(elsewhere: torch.device) -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    ad.place(net, {"0": elsewhere, "0.1": "cpu"})
    assert net[0][0].weight.device == elsewhere  # type: ignore[index]
    assert net[0][1].weight.device == CPU  # type: ignore[index]


def test_placing_again_replaces_the_hooks() -> None:
    net = Net()
    for _ in range(3):
        ad.place(net, {"conv*": "meta", "fc*": "meta"})
    hooks = [len(layer._forward_pre_hooks) for layer in net.modules()]
    assert max(hooks) == 1


def test_only_whole_layers_fetch_so_that_inner_ones_cost_nothing() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    ad.place(net, {"0": "cpu", "1": "meta"})
    hooked = [name for name, layer in net.named_modules() if layer._forward_pre_hooks]
    assert hooked == ["0", "1"]


def test_moving_everything_to_one_device_afterwards_just_works(elsewhere: torch.device) -> None:
    net = ad.place(Net(), {"conv*": "cpu", "fc*": elsewhere}).to(elsewhere)
    assert net(images()).device == elsewhere


def test_a_placed_network_can_be_copied_and_pickled(elsewhere: torch.device) -> None:
    net = ad.place(Net(), {"conv*": "cpu", "fc*": elsewhere})
    saved = io.BytesIO()
    torch.save(net, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), loaded):
        assert twin(images()).device == elsewhere
        ad.place(twin, {"*": "meta"})
        assert sum(len(layer._forward_pre_hooks) for layer in twin.modules()) == 1
    assert net(images()).device == elsewhere


def test_a_pattern_without_a_match_is_refused_and_nothing_moves() -> None:
    net = Net()
    with pytest.raises(ad.UsageError, match=r"got 'dense\*'; the layers are: conv1, conv2, act"):
        ad.place(net, {"conv*": "meta", "dense*": "cpu"})
    assert not ad.placement(net).is_split


def test_a_pattern_that_later_ones_cover_is_refused() -> None:
    with pytest.raises(ad.UsageError, match="name the general pattern first"):
        ad.place(Net(), {"fc1": "meta", "fc*": "cpu"})


def test_a_device_that_is_not_here_is_refused_and_nothing_moves() -> None:
    net = Net()
    with pytest.raises(ad.DeviceNotFound):
        ad.place(net, {"conv*": "meta", "fc*": "cuda:99"})
    assert not ad.placement(net).is_split


def test_one_tensor_cannot_be_in_two_places() -> None:
    net = Net()
    net.fc2.bias = nn.Parameter(torch.zeros(3))
    net.conv1.bias = net.conv2.bias
    with pytest.raises(ad.UsageError, match=r"conv1\.bias and conv2\.bias, which are one tensor"):
        ad.place(net, {"conv1": "meta", "conv2": "cpu"})
    assert not ad.placement(net).is_split


def test_tied_weights_may_go_to_one_device_however_it_is_spelled() -> None:
    net = Net()
    net.conv1.bias = net.conv2.bias
    ad.place(net, {"conv1": "cpu", "conv2": torch.device("cpu", 0)})


def test_a_layer_with_two_names_is_placed_by_either(elsewhere: torch.device) -> None:
    shared = nn.Linear(2, 2)
    net = nn.ModuleDict({"first": shared, "again": shared})
    ad.place(net, {"again": elsewhere})
    assert shared.weight.device == elsewhere


@pytest.mark.parametrize("wrong", ["cuda", ["fc1"], {0: "cpu"}])
def test_anything_but_patterns_with_devices_is_refused(wrong: object) -> None:
    with pytest.raises(ad.UsageError, match="expected patterns with devices"):
        ad.place(Net(), wrong)  # type: ignore[arg-type]


def test_anything_but_a_module_is_refused() -> None:
    with pytest.raises(ad.UsageError, match=r"expected a torch\.nn\.Module"):
        ad.place("net", {"*": "cpu"})  # type: ignore[type-var]


@pytest.mark.gpu
def test_a_cpu_layer_waits_for_what_the_gpu_still_computes() -> None:
    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(2048))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(20):
                x = x @ self.weight
            return x

    net = ad.place(nn.Sequential(Slow(), nn.Identity()), {"0": ad.gpu(), "1": "cpu"})
    x = torch.arange(2048.0 * 2048).reshape(2048, 2048).fmod(7)
    for _ in range(2):
        assert torch.equal(net(x), x)


@pytest.mark.gpu
def test_forward_and_backward_give_what_one_device_gives() -> None:
    torch.manual_seed(0)
    whole = Net()
    split = ad.place(copy.deepcopy(whole), {"conv1": ad.gpu(), "conv2": "cpu", "fc*": ad.gpu()})
    expected, got = whole(images()), split(images())
    assert got.device == ad.gpu()
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.sum().backward()
    got.sum().backward()
    for (name, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
        assert b.grad is not None
        assert b.grad.device == b.device
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-5, msg=name)
