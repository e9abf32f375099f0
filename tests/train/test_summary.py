"""What a trial and a network say about themselves, without being run."""

import pytest
import torch
from torch import nn

import anydevice as ad
from anydevice.errors import UsageError
from anydevice.train.callbacks import Callback


def small():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    )


def test_shapes_parameters_and_flops_are_those_of_the_real_run():
    network = small()
    network[0].requires_grad_(False)
    found = ad.summary(network, torch.randn(4, 3, 8, 8))
    rows = {layer.name: layer for layer in found.layers}
    assert [layer.kind for layer in found.layers[1:4]] == ["Conv2d", "BatchNorm2d", "ReLU"]
    assert rows["0"].output == [4, 8, 6, 6]
    assert rows[""].output == rows["4"].output == [4, 10]
    assert found.parameters == sum(p.numel() for p in network.parameters())
    assert found.trainable == found.parameters - 8 * 28
    assert rows["0"].flops == 2 * 4 * 8 * 36 * 27
    assert found.flops == rows["0"].flops + 2 * 4 * 8 * 36 * 10


def test_kept_memory_is_that_of_a_real_forward_pass():
    network, x, kept = small(), torch.randn(4, 3, 8, 8), {}
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor
        return tensor

    found = ad.summary(network, x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = network(x)
    assert found.kept_bytes == sum(t.untyped_storage().nbytes() for t in kept.values())
    assert output.shape == (4, 10)


@pytest.mark.parametrize(("name", "copies"), [("sgd", 0), ("adam", 2), ("rmsprop", 1)])
def test_the_optimizers_state_is_counted(name, copies):
    network = small()
    size = sum(p.nbytes for p in network.parameters())
    found = ad.summary(network, torch.randn(4, 3, 8, 8), optimizer=name)
    steps = 0 if name == "sgd" else 4 * len(list(network.parameters()))
    assert found.optimizer_bytes == copies * size + steps
    total = found.weight_bytes + size + found.kept_bytes + found.optimizer_bytes
    assert found.training_bytes == total


def test_a_summary_leaves_network_trial_and_random_numbers_as_they_are():
    network = nn.Sequential(nn.LazyLinear(8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    data = torch.randn(20, 5), torch.randint(3, (20,))
    trial = ad.Trial(network, "adam", "cross_entropy").with_generators(data, batch_size=7)
    before = torch.get_rng_state()
    found = trial.summary()
    assert torch.equal(torch.get_rng_state(), before)
    assert trial.sets.seed is None
    assert trial._job is None
    assert isinstance(network[0], nn.LazyLinear)
    assert not network[1].num_batches_tracked
    assert found.layers[1].output == [7, 8]
    assert found.parameters == 6 * 8 + 16 + 27


def test_a_network_larger_than_the_memory_has_a_summary():
    with torch.device("meta"):
        network = nn.Sequential(*[nn.Linear(30000, 30000) for _ in range(40)])
    found = ad.summary(network, torch.randn(2, 30000, device="meta"))
    assert found.weight_bytes > 130 * 2**30
    assert found.layers[40].output == [2, 30000]


def test_a_layer_that_is_called_twice_says_so_and_hidden_layers_are_left_out():
    shared = nn.Linear(4, 4)
    network = nn.Sequential(nn.Sequential(shared, nn.ReLU(), shared), nn.Linear(4, 2))
    found = ad.summary(network, torch.randn(3, 4), depth=1)
    assert found.parameters == 20 + 10
    assert next(layer for layer in found.layers if layer.name == "0.0").calls == 2
    assert len(found.table().rows) == 3
    assert "×2" in str(ad.summary(network, torch.randn(3, 4)))


def test_a_summary_on_a_virtual_gpu_names_it(virtual_gpu, network, data):
    trial = ad.Trial(network, "adam", "cross_entropy").to("cuda", "bf16").with_generators(data)
    found = trial.summary()
    assert {layer.device for layer in found.layers if layer.parameters} == {"cuda:0"}
    assert repr(trial) in str(found)


def test_shapes_that_depend_on_values_are_a_sentence():
    class Peeks(nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    with pytest.raises(UsageError, match=r"that needs values .*leave the example out"):
        ad.summary(Peeks(), torch.randn(3))
    with pytest.raises(UsageError, match=r"depth of 1 or more, got 0"):
        ad.summary(small(), depth=0)
    with pytest.raises(UsageError, match=r"an nn.Module, got list"):
        ad.summary([small()])


def test_looking_at_a_generator_would_spend_it(network, data):
    trial = ad.Trial(network, "adam", "cross_entropy").with_generators(iter([data]))
    with pytest.raises(UsageError, match="give an example batch"):
        trial.summary()
    assert trial.summary(data).batch == len(data[0])


def test_a_trial_prints_as_one_line(network, data):
    trial = ad.Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"])
    assert repr(trial) == (
        "Trial(Sequential with 131 parameters, adam, cross_entropy, cpu, 0 epochs)"
    )
    trial.with_generators(data).run(1, verbose=False)
    figures = trial.history[-1]
    end = f"Adam, cross_entropy, cpu, 1 epoch, loss {figures['loss']:.4g}"
    assert f"{end}, accuracy {figures['accuracy']:.4g})" in repr(trial)


def test_a_networks_own_step_is_used_for_the_summary(network, data):
    def step(network, batch):
        return network(batch["points"]).sum()

    trial = ad.Trial(network, "sgd", step=step, callbacks=[Callback()])
    assert trial.summary({"points": data[0]}).layers[0].output == [130, 3]


def test_an_example_of_another_shape_is_a_sentence(caplog):
    with pytest.raises(UsageError, match=r"that Linear takes, got \[2, 5\] torch.float32, with"):
        ad.summary(nn.Linear(4, 3), torch.randn(2, 5))
    assert not caplog.records
