import dataclasses
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import anydevice as ad

Pair = namedtuple("Pair", "left right")
CPU = torch.device("cpu")


@dataclasses.dataclass
class Batch:
    images: torch.Tensor
    labels: Any
    count: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.count += 1


@dataclasses.dataclass(frozen=True)
class Sealed:
    value: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    value: torch.Tensor
    name: str


class Row(Mapping[str, torch.Tensor]):
    def __init__(self, columns: Mapping[str, torch.Tensor]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._columns[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class Encoding(UserDict[str, torch.Tensor]):
    """Moves itself in place, as tokenizers' batches do."""

    def to(self, device: torch.device) -> "Encoding":
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class Table(MutableMapping[str, torch.Tensor]):
    """Its copy.copy shares the columns."""

    def __init__(self, columns: Mapping[str, torch.Tensor]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._columns[key]

    def __setitem__(self, key: str, value: torch.Tensor) -> None:
        self._columns[key] = value

    def __delitem__(self, key: str) -> None:
        del self._columns[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class Attributes(dict[str, Any]):
    """Its items are its attributes."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


class Output(OrderedDict[str, Any]):
    """Its attributes mirror its items, as those of model outputs do."""

    def __init__(self, *items: Any, **more: Any) -> None:
        super().__init__(*items, **more)
        for key, value in self.items():
            setattr(self, key, value)


class Frozen(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("frozen")


class Graph:
    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> "Graph":
        return Graph(self.nodes.to(device))


def leaf() -> torch.Tensor:
    return torch.ones(2)


CONTAINERS: list[tuple[Any, Any]] = [
    ([leaf(), 1], lambda c: c[0]),
    ((leaf(), "a"), lambda c: c[0]),
    (Pair(1, leaf()), lambda c: c.right),
    ({"x": leaf(), 3: None}, lambda c: c["x"]),
    (OrderedDict(x=leaf()), lambda c: c["x"]),
    (defaultdict(list, x=leaf()), lambda c: c["x"]),
    (UserDict(x=leaf()), lambda c: c["x"]),
    (MappingProxyType({"x": leaf()}), lambda c: c["x"]),
    (Row({"x": leaf()}), lambda c: c["x"]),
    (Encoding(x=leaf()), lambda c: c["x"]),
    (Table({"x": leaf()}), lambda c: c["x"]),
    (Attributes(x=leaf()), lambda c: c.x),
    (Output(x=leaf()), lambda c: c.x),
    (Output(x=leaf()), lambda c: c["x"]),
    (Attributes(x=leaf(), to="a key of this name"), lambda c: c["x"]),
    (deque([leaf()], maxlen=3), lambda c: c[0]),
    ({leaf()}, lambda c: next(iter(c))),
    (frozenset([leaf()]), lambda c: next(iter(c))),
    (Batch(leaf(), [leaf()]), lambda c: c.labels[0]),
    (Sealed(leaf()), lambda c: c.value),
    (Slotted(leaf(), "s"), lambda c: c.value),
    (Graph(leaf()), lambda c: c.nodes),
    (torch.ones(3, 2).max(dim=0), lambda c: c.indices),
    (nn.Parameter(torch.ones(2)), lambda c: c),
]


@pytest.mark.parametrize(("container", "inside"), CONTAINERS, ids=lambda c: type(c).__name__)
def test_whatever_holds_a_tensor_moves_and_keeps_its_type(
    container: Any, inside: Any, elsewhere: torch.device
) -> None:
    moved = ad.move(container, elsewhere)
    assert inside(moved).device == elsewhere
    assert inside(container).device == CPU, "the input was changed"
    if not isinstance(container, nn.Parameter):
        assert type(moved) is type(container)


@pytest.mark.parametrize(("container", "inside"), CONTAINERS, ids=lambda c: type(c).__name__)
def test_where_nothing_moves_the_same_object_comes_back(container: Any, inside: Any) -> None:
    if not isinstance(container, Graph):  # its own .to gives a new one
        assert ad.move(container, "cpu") is container


def test_what_belongs_to_a_container_stays_with_it() -> None:
    assert ad.move(deque([leaf()], maxlen=3), "meta").maxlen == 3
    assert ad.move(defaultdict(list, x=leaf()), "meta")["new"] == []
    moved = ad.move(Batch(leaf(), None), "meta")
    assert moved.count == 1, "__post_init__ ran again"
    assert list(ad.move(OrderedDict(b=leaf(), a=1), "meta")) == ["b", "a"]


def test_parts_that_do_not_move_are_the_same_objects() -> None:
    names = ["a", "b"]
    moved = ad.move({"x": leaf(), "names": names}, "meta")
    assert moved["names"] is names


def test_packed_sequences_keep_their_lengths_on_the_cpu(elsewhere: torch.device) -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = ad.move({"p": packed}, elsewhere)["p"]
    assert moved.data.device == elsewhere
    assert moved.batch_sizes.device == CPU
    assert torch.equal(moved.batch_sizes, packed.batch_sizes)


def test_a_module_moves_in_place_and_keeps_its_parameters(elsewhere: torch.device) -> None:
    network = nn.Linear(2, 2)
    parameter = network.weight
    assert ad.move([network], elsewhere)[0] is network
    if elsewhere.type != "meta":  # PyTorch makes new parameters for the meta device
        assert network.weight is parameter
    assert network.weight.device == elsewhere


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.LBFGS])
def test_an_optimizers_state_moves_and_its_step_counter_stays(
    make: Any, elsewhere: torch.device
) -> None:
    network = nn.Linear(2, 1)
    options = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(network.parameters(), lr=0.1, **options)
    optimizer.step(lambda: _backward(network))
    assert ad.move(optimizer, elsewhere) is optimizer
    state = optimizer.state[next(iter(optimizer.state))]
    tensors = [
        (key, tensor)
        for key, value in state.items()
        for tensor in (value if isinstance(value, list) else [value])
        if isinstance(tensor, torch.Tensor)
    ]
    assert any(key != "step" for key, _ in tensors)
    for key, tensor in tensors:
        assert tensor.device == (CPU if key == "step" else elsewhere)


def _backward(network: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = (network(torch.ones(1, 2)) ** 2).sum()
    loss.backward()
    return loss


@pytest.mark.gpu
def test_training_goes_on_after_network_and_optimizer_moved() -> None:
    network = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(network.parameters())
    _backward(network)
    optimizer.step()
    network, optimizer = ad.move((network, optimizer), ad.gpu())
    optimizer.zero_grad()
    network(torch.ones(1, 2, device=ad.gpu())).sum().backward()
    optimizer.step()


def test_non_blocking_reaches_those_who_know_it() -> None:
    asked = []

    class Knows:
        def to(self, device: torch.device, non_blocking: bool = False) -> "Knows":
            asked.append(non_blocking)
            return self

    ad.move([Knows(), Graph(leaf()), leaf()], "meta", non_blocking=True)
    assert asked == [True]


def test_one_that_moves_in_place_and_returns_nothing_is_kept() -> None:
    class InPlace:
        def to(self, device: torch.device) -> None:
            self.device = device

    thing = InPlace()
    assert ad.move([thing], "meta")[0] is thing
    assert thing.device == torch.device("meta")


def test_a_mapping_that_cannot_be_made_anew_is_refused_in_one_sentence() -> None:
    with pytest.raises(ad.UsageError, match=r"got Frozen, which refuses \(frozen\)"):
        ad.move(Frozen(x=leaf()), "meta")


@pytest.mark.gpu
def test_storages_move() -> None:
    assert ad.move([leaf().untyped_storage()], ad.gpu())[0].device == ad.gpu()


def test_a_torch_device_that_is_not_here_is_named_as_well_as_a_string() -> None:
    for wrong in (torch.device("cuda:99"), torch.device("cpu:5")):
        with pytest.raises(ad.DeviceNotFound):
            ad.move(leaf(), wrong)


def test_classes_and_other_things_with_no_device_are_left_alone() -> None:
    things = [torch.Tensor, nn.Linear, torch.float32, "cuda", b"x", 1 + 2j, object(), None, len]
    assert ad.move(things, "meta") is things


def test_a_container_that_contains_itself_is_refused() -> None:
    loop: list[Any] = [leaf()]
    loop.append(loop)
    with pytest.raises(ad.UsageError, match="list that contains itself"):
        ad.move(loop, "meta")


@pytest.mark.parametrize("wrong", ["cuuda", "cuda:99"])
def test_a_device_that_is_not_here_is_refused(wrong: str) -> None:
    with pytest.raises(ad.DeviceNotFound):
        ad.move(leaf(), wrong)


POOL = [torch.full((2,), float(value)) for value in range(4)]  # few, so that nestings share them
ATOMS = st.none() | st.integers() | st.text(max_size=3) | st.sampled_from([torch.float16, int])
NESTINGS = st.recursive(
    st.sampled_from(POOL) | ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=4)
        | st.builds(Pair, inner, inner)
        | st.builds(Batch, st.sampled_from(POOL), inner)
        | inner.map(lambda shared: [shared, {"again": shared}])
    ),
    max_leaves=20,
)


def _walk(obj: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, obj
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        obj = {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
    items = obj.items() if isinstance(obj, dict) else enumerate(obj) if _is_list(obj) else ()
    for key, value in items:
        yield from _walk(value, f"{path}/{key!r}")


def _is_list(obj: Any) -> bool:
    return isinstance(obj, list | tuple)


def _sharing(parts: dict[str, Any]) -> set[frozenset[str]]:
    """Which paths lead to the same object, for objects that move or hold what moves."""
    groups: dict[int, set[str]] = {}
    for path, obj in parts.items():
        if any(isinstance(part, torch.Tensor) for _, part in _walk(obj)):
            groups.setdefault(id(obj), set()).add(path)
    return {frozenset(paths) for paths in groups.values()}


@settings(max_examples=100, deadline=None)
@given(NESTINGS)
def test_any_nesting_keeps_its_shape_its_sharing_and_its_input(nesting: Any) -> None:
    before = dict(_walk(nesting))
    moved = dict(_walk(ad.move(nesting, "meta")))
    after = dict(_walk(nesting))
    assert {path: id(obj) for path, obj in before.items()} == {p: id(o) for p, o in after.items()}
    assert moved.keys() == before.keys()
    assert _sharing(moved) == _sharing(before)
    for path, obj in before.items():
        assert type(moved[path]) is type(obj)
        if isinstance(obj, torch.Tensor):
            assert obj.device == CPU
            assert moved[path].device == torch.device("meta")
            assert moved[path].shape == obj.shape
        elif not _is_list(obj) and not isinstance(obj, dict | Batch):
            assert moved[path] is obj


@settings(max_examples=100, deadline=None)
@given(NESTINGS)
def test_any_nesting_that_is_already_there_comes_back_as_it_is(nesting: Any) -> None:
    assert ad.move(nesting, "cpu") is nesting


@pytest.mark.gpu
@settings(max_examples=100, deadline=None)
@given(NESTINGS)
def test_any_nesting_goes_to_the_gpu_and_back(nesting: Any) -> None:
    there = ad.move(nesting, ad.gpu())
    back = dict(_walk(ad.move(there, "cpu")))
    for path, obj in _walk(nesting):
        if isinstance(obj, torch.Tensor):
            assert torch.equal(back[path], obj)
