"""Each mistake is made for real; the note has to name the variables, the devices and the fix."""

import ast
import asyncio
import runpy
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anydevice as ad


def note_of(mistake: Callable[[torch.device], Any], device: torch.device) -> str:
    with pytest.raises((RuntimeError, TypeError)) as caught, ad.explain():
        mistake(device)
    notes = getattr(caught.value, "__notes__", [])
    assert len(notes) == 1
    return str(notes[0])


def two_tensors(gpu: torch.device) -> None:
    x = torch.ones(3).to(gpu)
    y = torch.arange(3.0).clone()
    x + y


def test_two_tensors(elsewhere: torch.device) -> None:
    note = note_of(two_tensors, elsewhere)
    assert f"x is on {elsewhere}, y is on cpu." in note
    assert f'Fix: y = y.to("{elsewhere}")' in note
    assert f"test_explain.py:{two_tensors.__code__.co_firstlineno + 3}:" in note


def in_a_batch(gpu: torch.device) -> None:
    weight = torch.ones(3).to(gpu)
    batch = {"x": torch.ones(3)}
    weight * batch["x"]


def test_a_tensor_in_a_container_is_named_as_the_code_names_it(elsewhere: torch.device) -> None:
    note = note_of(in_a_batch, elsewhere)
    assert "batch['x'] is on cpu" in note
    assert f'Fix: batch = anydevice.move(batch, "{elsewhere}")' in note


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, 4)
        self.fc2 = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x))  # type: ignore[no-any-return]


def input_on_the_cpu(gpu: torch.device) -> None:
    network = Net().to(gpu)
    images = torch.ones(2, 3).clone()
    for _ in range(1):
        network(images)


def test_network_on_the_gpu_and_input_on_the_cpu(elsewhere: torch.device) -> None:
    note = note_of(input_on_the_cpu, elsewhere)
    assert f"network is on {elsewhere}, images is on cpu." in note
    assert f'Fix: images = images.to("{elsewhere}")' in note


def network_on_the_cpu(gpu: torch.device) -> None:
    network = Net()
    images = torch.ones(2, 3).to(gpu)
    network(images)


def test_network_on_the_cpu_and_input_on_the_gpu(elsewhere: torch.device) -> None:
    note = note_of(network_on_the_cpu, elsewhere)
    assert f"images is on {elsewhere}, network is on cpu." in note
    assert f'Fix: network.to("{elsewhere}")' in note


def dropped(gpu: torch.device) -> None:
    network = Net().to(gpu)
    images = torch.ones(2, 3)
    images.to(gpu)
    network(images)


def test_a_dropped_result_of_to(elsewhere: torch.device) -> None:
    note = note_of(dropped, elsewhere)
    assert f"network is on {elsewhere}, images is on cpu." in note
    assert "moves images, but drops the result." in note
    assert "Fix: images = images.to(gpu)" in note


def to_numpy(gpu: torch.device) -> None:
    x = torch.ones(3).to(gpu).requires_grad_()
    x.numpy()


def to_array(gpu: torch.device) -> None:
    losses = [torch.ones(()).to(gpu)]
    np.asarray(losses[0])


def test_numpy_of_a_gpu_tensor(elsewhere: torch.device) -> None:
    note = note_of(to_numpy, elsewhere)
    assert f"x is on {elsewhere}, and NumPy arrays live on the CPU." in note
    assert "Fix: x.detach().cpu().numpy()" in note
    assert "Fix: losses[0].cpu()" in note_of(to_array, elsewhere)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.scale = torch.full((3,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.scale  # type: ignore[no-any-return]


def plain_attribute(gpu: torch.device) -> None:
    network = Scaled().to(gpu)
    network(torch.ones(2, 3).to(gpu))


def test_a_plain_tensor_attribute_that_should_be_a_buffer(elsewhere: torch.device) -> None:
    note = note_of(plain_attribute, elsewhere)
    assert "self.scale is on cpu" in note
    assert "scale is a plain attribute" in note
    assert 'Fix: self.register_buffer("scale", torch.full((3,), 2.0))' in note


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(3, 3), nn.Linear(3, 3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def plain_list(gpu: torch.device) -> None:
    network = Listed().to(gpu)
    network(torch.ones(2, 3).to(gpu))


def test_layers_in_a_plain_list(elsewhere: torch.device) -> None:
    note = note_of(plain_list, elsewhere)
    assert "layers is a plain list" in note
    assert "Fix: self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])" in note


def made_without_a_device(gpu: torch.device) -> None:
    x = torch.ones(3).to(gpu)
    hidden = torch.zeros(3)
    x + hidden


def made_inline(gpu: torch.device) -> None:
    x = torch.ones(3).to(gpu)
    x + torch.zeros(3)


def test_a_tensor_made_without_a_device(elsewhere: torch.device) -> None:
    note = note_of(made_without_a_device, elsewhere)
    assert "makes it without a device." in note
    assert "Fix: hidden = torch.zeros(3, device=x.device)" in note
    assert "Fix: torch.zeros(3, device=x.device)" in note_of(made_inline, elsewhere)


def split(gpu: torch.device) -> None:
    network = Net()
    network.fc1.to(gpu)
    network(torch.ones(2, 3).to(gpu))


def test_a_network_that_is_split(elsewhere: torch.device) -> None:
    note = note_of(split, elsewhere)
    assert f"network is split over {elsewhere} 64 B, cpu 40 B; it stopped in layer fc2." in note
    assert "anydevice.place(network" in note


def squared(predicted: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (predicted - wanted) ** 2


def in_a_helper(gpu: torch.device) -> None:
    output = torch.ones(3).to(gpu)
    labels = torch.ones(3)
    squared(output, labels)


def test_a_mistake_that_shows_in_a_helper_is_fixed_where_it_was_made(
    elsewhere: torch.device,
) -> None:
    note = note_of(in_a_helper, elsewhere)
    assert f"output is on {elsewhere}, labels is on cpu." in note


def loss_weights(gpu: torch.device) -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
    output = torch.ones(2, 3).to(gpu)
    labels = torch.zeros(2, dtype=torch.int64).to(gpu)
    criterion(output, labels)


@pytest.mark.gpu
def test_a_loss_with_weights_left_behind() -> None:
    note = note_of(loss_weights, torch.device("cuda:0"))
    assert 'Fix: criterion.to("cuda:0")' in note


def eager_state(gpu: torch.device) -> None:
    network = nn.Linear(3, 1)
    optimizer = torch.optim.Adagrad(network.parameters())
    network.to(gpu)
    network(torch.ones(2, 3).to(gpu)).sum().backward()
    optimizer.step()


@pytest.mark.gpu
def test_an_optimizer_whose_state_was_left_behind() -> None:
    note = note_of(eager_state, torch.device("cuda:0"))
    assert "optimizer keeps its sum on cpu, and its parameters are on cuda:0." in note
    assert 'Fix: anydevice.move(optimizer, "cuda:0")' in note


def two_gpus(gpu: torch.device) -> None:
    a = torch.ones(3, device="cuda:0")
    b = torch.ones(3, device="cuda:1")
    a * b


@pytest.mark.gpu(2)
def test_two_gpus() -> None:
    note = note_of(two_gpus, torch.device("cuda:0"))
    assert "a is on cuda:0, b is on cuda:1." in note
    assert 'Fix: b = b.to("cuda:0")' in note


@pytest.mark.skipif(torch.accelerator.device_count() > 0, reason="there is a GPU here")
def test_a_gpu_that_is_not_here() -> None:
    with pytest.raises((AssertionError, RuntimeError)) as caught, ad.explain():
        torch.ones(3, device="cuda")
    assert "there is no GPU, because" in caught.value.__notes__[0]
    assert "Fix: device = anydevice.try_gpu()" in caught.value.__notes__[0]


def test_a_file_with_tensors_of_a_gpu_that_is_not_here() -> None:
    with pytest.raises(RuntimeError) as caught, ad.explain():
        raise RuntimeError("Attempting to deserialize object on a CUDA device but …")
    assert "map_location=anydevice.try_gpu()" in caught.value.__notes__[0]


def test_other_errors_are_left_alone() -> None:
    for error in (ValueError("wrong"), RuntimeError("shape '[2]' is invalid"), KeyError("x")):
        with pytest.raises(type(error)) as caught, ad.explain():
            raise error
        assert not hasattr(caught.value, "__notes__")


def test_the_error_itself_is_unchanged_and_annotated_once(elsewhere: torch.device) -> None:
    with pytest.raises(RuntimeError) as plain:
        two_tensors(elsewhere)
    with pytest.raises(RuntimeError) as caught, ad.explain(), ad.explain():
        two_tensors(elsewhere)
    assert str(caught.value) == str(plain.value)
    assert len(caught.value.__notes__) == 1


def test_it_decorates_a_function_too(elsewhere: torch.device) -> None:
    with pytest.raises(RuntimeError) as caught:
        ad.explain()(two_tensors)(elsewhere)
    assert "y is on cpu" in caught.value.__notes__[0]


def raised_anew(gpu: torch.device) -> None:
    try:
        two_tensors(gpu)
    except RuntimeError as error:
        raise TypeError("in my wrapper") from error


def test_the_error_it_came_from_is_annotated_too(elsewhere: torch.device) -> None:
    with pytest.raises(TypeError) as caught, ad.explain():
        raised_anew(elsewhere)
    assert "y is on cpu" in caught.value.__cause__.__notes__[0]  # type: ignore[union-attr]


def test_it_decorates_without_brackets_and_coroutines_and_generators(
    elsewhere: torch.device,
) -> None:
    @ad.explain
    async def later(gpu: torch.device) -> None:
        two_tensors(gpu)

    @ad.explain
    def one_by_one(gpu: torch.device) -> Iterator[int]:
        yield 1
        two_tensors(gpu)

    with pytest.raises(RuntimeError) as first:
        asyncio.run(later(elsewhere))
    with pytest.raises(RuntimeError) as second:
        list(one_by_one(elsewhere))
    for caught in (first, second):
        assert "y is on cpu" in caught.value.__notes__[0]
    assert later.__name__ == "later"


def test_explaining_keeps_nothing_alive(elsewhere: torch.device) -> None:
    x, y = torch.ones(3).to(elsewhere), torch.ones(3)
    alive = weakref.ref(y)
    try:
        with ad.explain():
            x + y
    except RuntimeError:
        pass
    del y
    assert alive() is None


def test_explaining_takes_no_time_in_a_long_file(
    tmp_path: Path, elsewhere: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the functions on the way are read, however long their file is and deep the stack."""
    filler = "".join(f"def unused_{i}(a, b):\n    return a * {i} + b\n" for i in range(5000))
    deep = (
        "def deep(n, x, y):\n    return deep(n - 1, x, y) if n else x + y\n"
        "def mistake(gpu):\n    y = torch.ones(3).clone()\n"
        "    with ad.explain():\n        deep(50, torch.ones(3).to(gpu), y)\n"
    )
    (tmp_path / "long_file.py").write_text("import torch, anydevice as ad\n" + filler + deep)
    namespace = runpy.run_path(str(tmp_path / "long_file.py"))
    parsed: list[int] = []
    parse = ast.parse

    def counting(source: str, **options: Any) -> ast.AST:
        parsed.append(len(source))
        return parse(source, **options)

    monkeypatch.setattr(ast, "parse", counting)
    with pytest.raises(RuntimeError) as caught:
        namespace["mistake"](elsewhere)
    assert "y is on cpu" in caught.value.__notes__[0]
    assert sum(parsed) < 20_000


def test_without_source_the_variables_are_still_named(elsewhere: torch.device) -> None:
    code = "x = torch.ones(3).to(gpu)\ny = torch.ones(3)\nx + y\n"
    with pytest.raises(RuntimeError) as caught, ad.explain():
        exec(compile(code, "<typed in>", "exec"), {"torch": torch, "gpu": elsewhere})
    assert f"x is on {elsewhere}, y is on cpu" in caught.value.__notes__[0]


def test_nothing_of_the_users_runs_while_explaining(elsewhere: torch.device) -> None:
    ran = []

    class Holder:
        @property
        def tensor(self) -> torch.Tensor:
            ran.append(1)
            return torch.ones(3)

    def mistake(gpu: torch.device) -> None:
        holder, x = Holder(), torch.ones(3).to(gpu)
        x + holder.tensor

    with pytest.raises(RuntimeError), ad.explain():
        mistake(elsewhere)
    assert ran == [1]
