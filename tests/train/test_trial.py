"""A trial trains as the loop written by hand does, and says what it was given wrong."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from anydevice.errors import UsageError
from anydevice.train.callbacks import Callback
from anydevice.train.metrics.metrics import accuracy
from anydevice.train.trial import Trial


def by_hand(network, x, y, batch_size, epochs=1, **options):
    """The loop that everybody writes; samples in order."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, **options)
    for _ in range(epochs):
        for start in range(0, len(x), batch_size):
            optimizer.zero_grad()
            rows = slice(start, start + batch_size)
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    return network


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def weights(network):
    return [parameter.detach().cpu() for parameter in network.parameters()]


def test_the_weights_are_those_of_the_loop_by_hand(network, data, device):
    x, y = (tensor.to(device) for tensor in data)
    expected = by_hand(copy.deepcopy(network).to(device), x, y, batch_size=50, epochs=3)
    trial = Trial(network, sgd, "cross_entropy").to(device)
    trial.with_generators(data, batch_size=50, shuffle=False).run(3, verbose=False)
    assert all(map(torch.equal, weights(network), weights(expected)))


def test_a_trial_learns_and_keeps_a_record_of_each_epoch(network, data, device):
    trial = Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"]).to(device)
    history = trial.with_generators(data, data, batch_size=20).run(8, verbose=False)
    assert [record["epoch"] for record in history] == list(range(1, 9))
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert 0 <= history[-1]["accuracy"] <= 1
    on_a_gpu = ["peak_bytes"] if str(device) != "cpu" else []
    assert list(history[0]) == [
        "epoch", "loss", "accuracy", "val_loss", "val_accuracy",
        "learning_rate", "grad_norm", "samples_per_second", *on_a_gpu, "seconds",
    ]  # fmt: skip


def test_a_second_run_goes_on_from_the_first(network, data):
    trial = Trial(copy.deepcopy(network), sgd, "cross_entropy").with_options(seed=3)
    trial.with_generators(data).run(1, verbose=False)
    trial.run(3, verbose=False)
    whole = Trial(network, sgd, "cross_entropy").with_options(seed=3)
    whole.with_generators(data).run(3, verbose=False)
    assert all(map(torch.equal, weights(trial.network), weights(whole.network)))
    assert [r["loss"] for r in trial.history] == [r["loss"] for r in whole.history]


def test_an_optimizer_forgets_gradients_in_its_own_way(network, data):
    class Halving(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = None if p.grad is None else p.grad / 2

    expected = copy.deepcopy(network)
    optimizer = Halving(expected.parameters(), lr=0.1)
    for x, y in zip(data[0].split(50), data[1].split(50), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(expected(x), y).backward()
        optimizer.step()
    trial = Trial(network, lambda p: Halving(p, lr=0.1), "cross_entropy")
    trial.with_generators(data, batch_size=50, shuffle=False).run(1, verbose=False)
    assert all(map(torch.equal, weights(network), weights(expected)))


def test_gradients_are_accumulated_as_those_of_one_batch(network, data, device):
    expected = by_hand(copy.deepcopy(network), *data, batch_size=80)
    trial = Trial(network, sgd, "cross_entropy").to(device).with_options(accumulate=4)
    trial.with_generators(data, batch_size=20, shuffle=False).run(1, verbose=False)
    # 130 samples: steps of 80 and 50, the last batch of the second has 10
    assert trial.job.step == 2
    for found, wanted in zip(weights(network), weights(expected), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_loss_that_is_a_sum_is_summed_over_the_batches_of_a_step(network, data):
    whole, parts = copy.deepcopy(network), network
    for trained, options, size in ((whole, {}, 80), (parts, {"accumulate": 4}, 20)):
        loss = nn.CrossEntropyLoss(reduction="sum")
        trial = Trial(trained, lambda p: torch.optim.SGD(p, lr=1e-3), loss).with_options(**options)
        trial.with_generators(data, batch_size=size, shuffle=False).run(1, verbose=False)
    for found, wanted in zip(weights(parts), weights(whole), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_are_clipped_after_they_are_unscaled(network, data, virtual_gpu, precision):
    before = weights(copy.deepcopy(network))
    trial = Trial(network, sgd, "cross_entropy").to("cuda:0", precision)
    trial.with_options(clip_norm=1e-3).with_generators(data, batch_size=130).run(1, verbose=False)
    moved = torch.cat([(a - b).flatten() for a, b in zip(weights(network), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.1 * 1e-3, rel=0.02)


def test_only_what_the_optimizer_trains_is_clipped(network, data):
    head = torch.optim.SGD(network[2].parameters(), lr=1.0)
    trial = Trial(network, head, "cross_entropy").with_options(clip_norm=1e-3)
    for _ in range(3):  # the rest of the network gathers gradients that nobody clears
        before = weights(copy.deepcopy(network))
        trial.with_generators(data, batch_size=130).run(trial.epoch + 1, verbose=False)
        moved = [(a - b).flatten() for a, b in zip(weights(network), before, strict=True)]
        assert torch.cat(moved).norm().item() == pytest.approx(1e-3, rel=0.02)


def test_a_setting_of_float32_products_is_let_alone(network, data):
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        for precision in ("fp32", "tf32"):
            trial = Trial(network, "adam", "cross_entropy").to("cpu", precision)
            trial.with_generators(data).run(1, verbose=False)
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


class Scaled(nn.Module):
    """A loss that learns, too."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output, target):
        return F.cross_entropy(output * self.scale, target)


def test_a_loss_that_learns_goes_to_the_device_and_into_the_checkpoint(
    network, data, device, tmp_path
):
    trial = Trial(network, "adam", Scaled()).to(device).with_generators(data)
    trial.run(2, verbose=False)
    trial.save(tmp_path)
    loaded = Trial.load(tmp_path, copy.deepcopy(network), loss=Scaled()).to(device)
    assert loaded.loss.scale.item() == trial.loss.scale.item() != 1


def test_one_tensor_is_its_own_target(data):
    trial = Trial(nn.Linear(4, 4), "adam", "mse").with_generators(data[0])
    history = trial.run(3, verbose=False)
    assert history[-1]["loss"] < history[0]["loss"]


def test_yes_and_no_are_one_logit_each():
    output, target = torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 1, 0])
    assert accuracy(output, target).tolist() == [True, False, False]
    assert accuracy(output.squeeze(1), target.float()).tolist() == [True, False, False]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_precision_trains(network, data, virtual_gpu, precision):
    trial = Trial(network, "adam", "cross_entropy").to("cuda:0", precision)
    history = trial.with_generators(data, batch_size=10).run(5, verbose=False)
    assert history[-1]["loss"] < history[0]["loss"]


def test_steps_that_half_precision_skips_are_counted(network, data, virtual_gpu):
    trial = Trial(network, sgd, "cross_entropy").to("cuda:0", "fp16").with_generators(data)
    trial.job.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    before = weights(copy.deepcopy(network))
    history = trial.run(1, verbose=False)
    assert history[0]["skipped"] == 2
    assert all(map(torch.equal, weights(network), before))


def test_evaluate_measures_all_samples_alike(network, data, device):
    x, y = data
    figures = Trial(network, None, "cross_entropy", metrics=["loss", "accuracy"]).to(device)
    found = figures.evaluate(data, batch_size=50)
    output = network.cpu()(x)
    assert found["loss"] == pytest.approx(F.cross_entropy(output, y).item(), rel=1e-6)
    assert found["accuracy"] == pytest.approx((output.argmax(1) == y).float().mean().item())


def test_a_metric_that_only_counts_is_read_beside_validation(network, data):
    class Samples:
        def reset(self):
            self.seen = 0

        def update(self, output, target):
            self.seen += len(target)

        def compute(self):
            return self.seen

    trial = Trial(network, "adam", "cross_entropy", metrics=[("seen", Samples())])
    record = trial.with_generators(data, (data[0][:7], data[1][:7])).run(1, verbose=False)[0]
    assert (record["seen"], record["val_seen"]) == (130, 7)


def test_predict_gives_the_outputs_on_the_cpu_and_ignores_targets(network, data, device):
    trial = Trial(network, "adam", "cross_entropy").to(device)
    found, alone = trial.predict(data, batch_size=50), trial.predict(data[0])
    expected = network.cpu().eval()(data[0])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(alone, expected)


def test_lazy_modules_take_their_sizes_from_the_first_batch(data, device):
    network = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(3))
    trial = Trial(network, "adam", "cross_entropy").to(device).with_generators(data)
    assert trial.run(1, verbose=False)[0]["loss"] > 0
    assert network[0].in_features == 4
    assert network[1].num_batches_tracked.item() == 2


def test_a_step_of_the_users_own(network, data):
    def step(network, batch):
        x, y = batch
        output = network(x)
        return {"loss": F.cross_entropy(output, y, label_smoothing=0.1), "output": output}

    trial = Trial(network, "adam", metrics=["loss", "accuracy"], step=step)
    history = trial.with_generators(data).run(10, verbose=False)
    assert history[-1]["accuracy"] > history[0]["accuracy"]


def test_a_network_with_a_loss_of_its_own_takes_dictionaries(data):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x, labels=None):
            logits = self.inner(x)
            loss = None if labels is None else F.cross_entropy(logits, labels)
            return {"loss": loss, "logits": logits}

    batches = [{"x": data[0][i : i + 26], "labels": data[1][i : i + 26]} for i in range(0, 130, 26)]
    trial = Trial(Own(), "adam").with_generators(batches)
    history = trial.run(5, verbose=False)
    assert history[-1]["loss"] < history[0]["loss"]
    assert trial.predict(batches)["logits"].shape == (130, 3)


def test_the_program_of_a_torchbearer_user(network, data):
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*data), batch_size=32, shuffle=True
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss()
    trial = Trial(network, optimizer, criterion=loss, metrics=["acc", "loss"]).to("cpu")
    trial.with_generators(train_generator=loader, val_generator=loader, test_generator=loader)
    history = trial.run(epochs=3, verbose=0)
    assert {"acc", "val_acc", "loss", "val_loss"} <= history[-1].keys()


# ---- callbacks ----


def test_callbacks_see_each_moment(network, data):
    seen = []

    class Watch(Callback):
        def on_start(self, trial):
            seen.append("start")

        def on_step(self, trial):
            seen.append("step")

        def on_end_epoch(self, trial):
            seen.append(trial.history[-1]["epoch"])
            trial.stop()

        def on_end(self, trial):
            seen.append("end")

    trial = Trial(network, "adam", "cross_entropy", callbacks=[Watch()])
    trial.with_generators(data, batch_size=65).run(5, verbose=False)
    assert seen == ["start", "step", "step", 1, "end"]


def test_an_error_in_a_callback_names_it(network, data):
    class Broken(Callback):
        def on_step(self, trial):
            raise KeyError("x")

    trial = Trial(network, "adam", "cross_entropy", callbacks=[Broken()]).with_generators(data)
    with pytest.raises(KeyError) as caught:
        trial.run(1, verbose=False)
    assert caught.value.__notes__ == ["raised in the callback Broken.on_step, epoch 1"]


def test_the_outputs_of_a_step_are_gone_before_the_next_one(network, data, device):
    outputs = []

    def step(network, batch):
        assert all(reference() is None for reference in outputs)
        output = network(batch[0])
        outputs.append(weakref.ref(output))
        return nn.functional.cross_entropy(output, batch[1]), output

    trial = Trial(network, "sgd", step=step, metrics=["loss", "accuracy"]).to(device)
    trial.with_generators(data, batch_size=50).run(2, verbose=False)
    assert len(outputs) == 6


def test_an_epoch_that_was_broken_off_is_begun_anew(network, data):
    class BreaksOff(Callback):
        broken = False

        def on_step(self, trial):
            if not self.broken:
                self.broken = True
                raise InterruptedError

    trial = Trial(network, "adam", "cross_entropy", metrics=["loss"], callbacks=[BreaksOff()])
    trial.with_generators(data, batch_size=10)
    with pytest.raises(InterruptedError):
        trial.run(1, verbose=False)
    trial.run(1, verbose=False)
    assert trial.metrics.measures["loss"].samples == 130
    assert trial.job.step == 1 + 13


# ---- wrong use ----


def wrong(network, data=None, optimizer="adam", loss="cross_entropy", **options):
    trial = Trial(network, optimizer, loss, **options)
    trial.with_generators(data).run(1, verbose=False)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda n, d: wrong(n, d, "adma"), "expected the name of an optimizer, got 'adma': did"),
        (lambda n, d: wrong(n, d, loss="crossentropy"), "got 'crossentropy': did you mean cross_"),
        (lambda n, d: wrong(n, d, metrics=["los"]), "got 'los': did you mean loss?"),
        (lambda n, d: wrong(n, d, loss=None), "expected a loss, since this network returns Tensor"),
        (
            lambda n, d: wrong(n, d, loss=nn.CrossEntropyLoss(reduction="none")),
            "got a tensor of",
        ),
        (lambda n, d: wrong(n, d, optimizer=sgd([nn.Parameter(d[0])])), "over 1 of 1 tensors that"),
        (lambda n, d: wrong(nn.ReLU(), d), "got a network without parameters to train"),
        (lambda n, d: wrong(n, None), "expected train data, got none"),
        (lambda n, d: wrong(n, []), "expected batches to train on in epoch 1, got none"),
        (lambda n, d: wrong(n, (d[0][:0], d[1][:0])), "expected samples to train on or evaluate"),
        (lambda n, d: wrong(n, (d[0], d[1][:5])), "expected tensors of one length, got lengths"),
        (lambda n, d: wrong(n, 5), "expected data as a tuple of tensors"),
        (lambda n, d: wrong(n, ["word"]), "expected a batch with samples along dimension 0"),
        (
            lambda n, d: Trial(n).with_options(acumulate=2),
            "got acumulate: did you mean accum",
        ),
        (lambda n, d: Trial(n).with_options(clip=2), "got clip: did you mean clip_norm?"),
        (lambda n, d: Trial(n).with_options(accumulate="2"), "expected accumulate of 1 or more"),
        (lambda n, d: Trial(n).with_options(compile=1), "expected compile of True or False, got 1"),
        (lambda n, d: Trial(n, metric=["loss"]), "arguments of Trial, got metric: did you mean m"),
        (lambda n, d: Trial(n, metrics="accuracy"), "got 'accuracy': write metrics=['accuracy']"),
        (lambda n, d: Trial(n, metrics=nn.L1Loss()), "got a L1Loss: write metrics=[…]"),
        (lambda n, d: Trial(n, loss="mse", criterion="mse"), "got loss= and criterion=: leave"),
        (lambda n, d: Trial(n).with_generators(training=d), "got training: did you mean train?"),
        (lambda n, d: Trial(n).with_generators(d, train=d), "got train_generator= and train="),
        (lambda n, d: Trial(n).with_generators(d, batch_size=0), "expected a batch_size of 1 or"),
        (lambda n, d: Trial(n).run("2"), "expected a whole number of epochs, got '2'"),
        (lambda n, d: Trial(n).run(epoch=2), "arguments of Trial.run, got epoch: did you mean ep"),
        (lambda n, d: Trial(n).with_options(accumulate=0), "expected accumulate of 1 or more"),
        (
            lambda n, d: wrong(n, d, metrics=["loss", "loss"]),
            "of different names, got 'loss' twice",
        ),
        (lambda n, d: Trial(n, None, "mse").evaluate([]), "expected batches to measure with, got"),
        (lambda n, d: Trial(n).to("cpu", "fp8"), "expected a precision among fp32, tf32"),
    ],
)
def test_wrong_use_is_one_sentence(network, data, mistake, sentence):
    with pytest.raises(UsageError) as caught:
        mistake(network, data)
    assert sentence in str(caught.value)


def test_data_may_be_given_as_train_and_val(network, data):
    trial = Trial(network, "adam", "cross_entropy").with_generators(train=data, val=data)
    assert "val_loss" in trial.run(1, verbose=False)[0]


def test_data_without_targets_is_named(network, data):
    trial = Trial(network, "adam", "cross_entropy").with_generators(data[0])
    with pytest.raises(RuntimeError) as caught:
        trial.run(1, verbose=False)
    assert "Fix: give pairs, with_generators((inputs, targets))." in caught.value.__notes__[-1]


@pytest.mark.parametrize(
    ("x", "y", "where"),
    [((10, 5), (10,), "the network"), ((10, 4), (9,), "the loss, after the network")],
)
def test_a_batch_of_the_wrong_shape_is_named(network, x, y, where):
    batch = (torch.zeros(x), torch.zeros(y, dtype=torch.int64))
    trial = Trial(network, "adam", "cross_entropy").with_generators([batch])
    with pytest.raises((RuntimeError, ValueError)) as caught:
        trial.run(1, verbose=False)
    (note,) = caught.value.__notes__
    assert note.startswith(f"raised in {where}, which got a batch of ('{list(x)} torch.float32', ")


def test_a_stream_of_samples_is_taken_in_batches(network, data):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return zip(*data, strict=True)

    trial = Trial(network, "adam", "cross_entropy").with_generators(Stream(), batch_size=50)
    trial.run(1, verbose=False)
    assert trial.job.step == 3


def test_a_generator_that_is_spent_is_named(network, data):
    trial = Trial(network, "adam", "cross_entropy").with_generators(iter([data]))
    with pytest.raises(UsageError, match="in epoch 2, got none: is the data empty, or a generator"):
        trial.run(2, verbose=False)


def test_some_options_may_change_between_runs_and_the_rest_may_not(network, data):
    trial = Trial(network, "sgd", "cross_entropy").with_generators(data, batch_size=50)
    trial.run(1, verbose=False)
    assert trial.job.step == 3
    trial.with_options(accumulate=2, clip_norm=1e-9).run(2, verbose=False)
    assert trial.job.step == 5
    before = copy.deepcopy(network.state_dict())
    trial.run(3, verbose=False)
    assert all(torch.allclose(now, before[k]) for k, now in network.state_dict().items())
    with pytest.raises(UsageError, match="expected seed before the first step, got it after 7"):
        trial.with_options(seed=1, accumulate=1)


def test_criterion_is_another_name_for_the_loss_and_not_a_second_one(network):
    assert Trial(network, criterion="mse").loss is F.mse_loss
    with pytest.raises(UsageError, match="expected one loss, got loss= and criterion="):
        Trial(network, "adam", "mse", criterion="mse")


def test_a_copy_is_a_trial_not_yet_trained(network, data):
    trial = Trial(network, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "cross_entropy")
    trial.with_options(clip_norm=1.0).with_generators(data).run(1, verbose=False)
    before = weights(copy.deepcopy(network))
    other = trial.copied(precision="bf16")
    assert (other.epoch, other.precision.name, other.options.clip_norm) == (0, "bf16", 1.0)
    assert other.optimizer.defaults["momentum"] == 0.9
    assert not other.optimizer.state
    other.run(1, verbose=False)
    assert all(map(torch.equal, weights(network), before))
    assert not all(map(torch.equal, weights(other.network), before))


def test_the_optimizer_can_be_another_before_the_first_step_alone(network, data):
    trial = Trial(network, "adam", "cross_entropy").with_generators(data)
    trial.optimizer = mine = torch.optim.SGD(network.parameters(), lr=0.1)
    trial.run(1, verbose=False)
    assert trial.optimizer is mine
    with pytest.raises(UsageError, match="expected another optimizer before the first step"):
        trial.optimizer = mine
