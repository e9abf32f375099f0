import json

import torch
from torch import nn

import anydevice as ad


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def test_each_parameter_and_buffer_is_listed_with_its_bytes() -> None:
    found = ad.placement(network())
    rows = {r.name: r for r in found.residents}
    assert rows["0.weight"].shape == (3, 4)
    assert rows["0.weight"].bytes == 48
    assert rows["0.weight"].kind == "parameter"
    assert rows["1.running_mean"].kind == "buffer"
    assert rows["1.num_batches_tracked"].dtype == "int64"
    assert found.bytes == {"cpu": sum(r.bytes for r in found.residents)}
    assert not found.is_split
    assert found.summary == "all on cpu 148 B"


def test_a_split_module_is_called_so_in_the_first_line(elsewhere: torch.device) -> None:
    split = network()
    split[2].to(elsewhere)
    found = ad.placement(split)
    assert found.is_split
    assert found.bytes[str(elsewhere)] == 4 * (6 + 2)
    assert repr(found).splitlines()[0] == f"split over cpu 116 B, {elsewhere} 32 B"


def test_a_shared_tensor_counts_once() -> None:
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    found = ad.placement(tied)
    assert [r.name for r in found.residents] == ["0.weight", "1.weight"]
    assert found.residents[1].shared_with == "0.weight"
    assert found.bytes == {"cpu": 36}
    assert "= 0.weight" in repr(found)


def test_lazy_parameters_have_no_shape_yet() -> None:
    found = ad.placement(nn.LazyLinear(3))
    assert found.residents[0].shape is None
    assert "not yet known" in repr(found)


def test_a_module_without_tensors() -> None:
    assert ad.placement(nn.ReLU()).summary == "no parameters or buffers"


def test_plain_tensor_attributes_are_pointed_out() -> None:
    net = network()
    net[0].scale = torch.ones(3)  # type: ignore[assignment]
    found = ad.placement(net)
    assert found.unregistered == ("0.scale",)
    assert "0.scale is a plain tensor attribute" in repr(found)


def test_it_shows_itself_in_a_notebook_and_as_json() -> None:
    found = ad.placement(network())
    assert "<td" in found._repr_html_()
    data = json.loads(found.to_json())
    assert data["bytes"] == {"cpu": 148}
    assert data["residents"][0]["shape"] == [3, 4]


def test_the_public_name_stays_a_function() -> None:
    """`anydevice.devices.placement` is also the file's name; the face gives the function."""
    assert callable(ad.placement)
    assert callable(ad.move)
    assert callable(ad.place)
