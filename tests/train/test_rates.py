"""Learning rates, averages of weights, softer targets: what with_options and callbacks offer."""

import copy
import math

import pytest
import torch
from torch import nn

import anydevice as ad
from anydevice.errors import UsageError
from anydevice.train.callbacks import EMA, SWA, Best, Callback, Schedule
from anydevice.train.history import History
from anydevice.train.questions.finder import FoundRate
from anydevice.train.trial import Trial

BATCHES = 13  # of ten of the 130 samples


def a_trial(network, data, *callbacks, optimizer="sgd", **options):
    trial = Trial(network, optimizer, "cross_entropy", callbacks=callbacks)
    return trial.with_options(**options).with_generators(data, data, batch_size=10)


class Rates(Callback):
    def __init__(self):
        self.seen = []

    def on_step(self, trial):
        self.seen.append([group["lr"] for group in trial.optimizer.param_groups])


# ---- what makes no sense is refused ----


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule": "cosin"}, r"a schedule by name, got 'cosin': did you mean cosine"),
        ({"warmup": -1}, "a warmup of so many steps"),
        ({"warmup": 1.5}, "a share of the run below 1"),
        ({"clip_value": 0}, "a clip_value above 0"),
        ({"clip_value": 1.0, "clip_norm": 1.0}, "clip_norm or clip_value, got both"),
        ({"label_smoothing": 1.0}, "label_smoothing from 0 to 1"),
        ({"mixup": -0.1}, "mixup of 0 or more"),
        ({"freeze": "encoder*"}, "a pattern that matches layers, got 'encoder"),
        ({"freeze": "*"}, "leave parameters that train"),
        ({"freeze": 3}, "freeze as a pattern"),
        ({"rates": [0.1]}, "rates as a dictionary"),
    ],
)
def test_options_that_make_no_sense_are_a_sentence_and_change_nothing(network, data, options, said):
    trial = a_trial(network, data)
    before = trial.options
    with pytest.raises(UsageError, match=said):
        trial.with_options(**options)
    assert trial.options == before
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_what_fits_no_loss_or_no_optimizer_is_refused(network, data):
    with pytest.raises(UsageError, match='the loss "cross_entropy" for label_smoothing'):
        Trial(network, "sgd", "mse").with_options(label_smoothing=0.1)
    with pytest.raises(UsageError, match="do it in the step"):
        Trial(network, "sgd", step=lambda n, b: n(b).sum()).with_options(mixup=0.2)
    own = torch.optim.SGD(network.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="groups of parameters with their own lr"):
        _ = a_trial(network, data, optimizer=own, rates={"0": 0.1}).optimizer
    with pytest.raises(UsageError, match="one schedule of the learning rates"):
        a_trial(network, data, Schedule("cosine"), schedule="linear")
    with pytest.raises(UsageError, match="got one for a function"):
        Schedule(lambda optimizer: None, warmup=3)
    endless = Trial(network, "sgd", "cross_entropy").with_options(schedule="cosine")
    endless.with_generators(batch for batch in [data] * 3)
    with pytest.raises(UsageError, match="data with a length"):
        endless.run(1, verbose=False)
    for wrong in (EMA, SWA):
        with pytest.raises(UsageError, match="expected"):
            wrong(1.5)
    tokens = torch.randint(4, (20, 4)), torch.randint(3, (20,))
    embeds = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(UsageError, match="floating-point numbers for mixup"):
        a_trial(embeds, tokens, mixup=0.3).run(1, verbose=False)


# ---- learning rates ----


@pytest.mark.parametrize(("warmup", "first"), [(5, 5), (0.2, 8)])
def test_warm_up_and_cosine_go_over_the_whole_run(network, data, warmup, first):
    rates = Rates()
    trial = a_trial(network, data, rates, schedule="cosine", warmup=warmup)
    trial.run(3, verbose=False)
    seen = [lr for (lr,) in rates.seen]
    top, total = 1e-3, 3 * BATCHES
    # The rate of each step is set after the step before it; callbacks see the one that was used.
    assert seen[:first] == pytest.approx([top * (s + 1) / (first + 1) for s in range(first)])
    assert seen[first] == pytest.approx(top)
    half = first + (total - first) // 2
    done = (half - first) / (total - first)
    assert seen[half] == pytest.approx(top * (1 + math.cos(math.pi * done)) / 2)
    assert seen[-1] < 0.01 * top
    assert trial.history[0]["learning_rate"] > trial.history[-1]["learning_rate"]


def test_a_schedule_by_name_resumes_to_the_same_bits(network, data, tmp_path):
    def trained(epochs, folder):
        torch.manual_seed(0)
        trial = a_trial(copy.deepcopy(network), data, optimizer="adam", schedule="linear", seed=1)
        trial.callbacks.append(EMA(0.9))
        trial.checkpoint(folder)
        if epochs < 4:

            class Stops(Callback):
                def on_end_epoch(self, trial):
                    if trial.epoch == epochs:
                        raise KeyboardInterrupt

            trial.callbacks.append(Stops())
            with pytest.raises(KeyboardInterrupt):
                trial.run(4, verbose=False)
            trial.callbacks.pop()
        else:
            trial.run(4, verbose=False)
        return trial

    whole = trained(4, tmp_path / "whole")
    trained(3, tmp_path / "part")
    rest = trained(4, tmp_path / "part")
    for one, other in zip(whole.network.parameters(), rest.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [r["val_loss"] for r in whole.history] == [r["val_loss"] for r in rest.history]


def test_layers_have_rates_of_their_own(network, data):
    trial = a_trial(network, data, optimizer="adam", rates={"0": 1e-5, "*.bias": 1e-2})
    groups = {group["name"]: group for group in trial.optimizer.param_groups}
    assert {name: group["lr"] for name, group in groups.items()} == {
        "0": 1e-5,
        "*.bias": 1e-2,
        "others": 1e-3,
    }
    assert groups["0"]["params"] == [network[0].weight, network[0].bias]
    assert groups["*.bias"]["params"] == [network[2].bias]
    record = trial.run(1, verbose=False)[0]
    assert record["learning_rate/0"] == 1e-5


def test_frozen_layers_stay_until_they_are_thawed(network, data):
    before = copy.deepcopy(network.state_dict())
    trial = a_trial(network, data, optimizer="adamw", freeze="0*")
    trial.run(1, verbose=False)
    assert torch.equal(network[0].weight, before["0.weight"])
    assert not torch.equal(network[2].weight, before["2.weight"])
    trial.with_options(freeze=[]).run(2, verbose=False)
    assert not torch.equal(network[0].weight, before["0.weight"])


def test_gradients_are_clipped_by_value(network, data):
    class Sees(Callback):
        def on_step(self, trial):
            self.largest = max(p.grad.abs().max() for p in trial.network.parameters())

    sees = Sees()
    a_trial(network, data, sees, clip_value=1e-3).run(1, verbose=False)
    assert sees.largest == pytest.approx(1e-3)


# ---- the learning rate finder ----


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_rate_is_found_and_the_trial_is_as_it_was(network, data, optimizer):
    network = nn.Sequential(network, nn.Dropout(), nn.BatchNorm1d(3))
    trial = a_trial(network, data, optimizer=optimizer, seed=3)
    other = a_trial(copy.deepcopy(network), data, optimizer=optimizer, seed=3)
    numbers = torch.get_rng_state()
    found = trial.find_lr(steps=60)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert found.rates[0] == 1e-7
    assert 1e-5 < found.rate < 10
    trial.run(2, verbose=False)
    other.run(2, verbose=False)
    assert [r["loss"] for r in trial.history] == [r["loss"] for r in other.history]
    numbers = torch.get_rng_state()
    trial.find_lr(steps=20)
    trial.run(3, verbose=False)
    torch.set_rng_state(numbers)
    assert trial.history[2]["loss"] == other.run(3, verbose=False)[2]["loss"]


def test_the_finder_ends_where_the_loss_diverges(data):
    network = nn.Linear(4, 3)
    trial = Trial(network, "sgd", "mse").with_generators(
        (data[0], torch.randn(130, 3)), batch_size=10
    )
    found = trial.find_lr(1e-4, 1e6, steps=100)
    assert len(found.rates) < 90
    assert found.rate < 1
    assert f"{found.rate:.2g}" in str(found)


def test_a_finder_that_cannot_work_says_why(network, data):
    trial = a_trial(network, data)
    for wrong, said in [
        ({"start": 1.0, "end": 0.1}, "rates that rise"),
        ({"steps": 3}, "10 steps or more"),
    ]:
        with pytest.raises(UsageError, match=said):
            trial.find_lr(**wrong)


def test_plots_show_the_rate_and_the_history(network, data):
    pytest.importorskip("matplotlib").use("Agg")
    trial = a_trial(network, data)
    found = trial.find_lr(steps=40)
    panel = found.plot().axes[0]
    assert panel.get_xscale() == "log"
    assert list(panel.lines[0].get_xdata()) == list(found.rates)
    trial.run(2, verbose=False)
    assert trial.history.plot(["loss"]).axes[0].get_xlabel() == "epoch"
    shown = trial.confusion().plot().axes[0].texts
    assert sum(int(text.get_text()) for text in shown) == len(data[1])


def test_a_loss_that_diverged_does_not_flatten_the_picture():
    pytest.importorskip("matplotlib").use("Agg")
    losses = [1.1, 1.0, 0.5, 0.7, 90.0]
    panel = FoundRate(0.1, [0.001, 0.01, 0.1, 1.0, 10.0], losses).plot().axes[0]
    low, high = panel.get_ylim()
    assert low < 0.5
    assert 1.1 < high < 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("loss", r"write plot\(\['loss'\]\)"),
        (["los"], "did you mean loss"),
        (["confusion"], r"trial.confusion\(\).plot\(\)"),
    ],
)
def test_a_plot_of_what_is_no_figure_is_refused(names, said):
    history = History([{"epoch": 1, "loss": 0.5, "confusion": [[1, 0], [0, 1]]}])
    with pytest.raises(UsageError, match=said):
        history.plot(names)


def test_a_plot_before_the_run_is_refused():
    with pytest.raises(UsageError, match="run the trial first"):
        History().plot()


# ---- averages ----


def test_ema_is_measured_and_kept(network, data):
    seen = []

    class Notes(Callback):
        def on_step(self, trial):
            seen.append(trial.network[0].weight.detach().clone())

    average = EMA(0.9)
    trial = a_trial(network, data, average, Notes())
    trial.run(2, verbose=False)
    expected, count = seen[0], 1
    for weights in seen[1:]:
        decay = min(0.9, (1 + count) / (10 + count))
        expected = torch.lerp(expected, weights, 1 - decay)
        count += 1
    torch.testing.assert_close(network[0].weight.detach(), expected)
    assert trial.history[-1]["val_loss"] == pytest.approx(trial.evaluate(data)["loss"])
    last = seen[-1]
    trial.run(3, verbose=False)
    step = seen[2 * BATCHES] - last  # training goes on from the weights themselves
    assert step.norm() < (seen[2 * BATCHES] - expected).norm()


def test_swa_is_the_mean_of_the_last_epochs(network, data):
    seen = []

    class Notes(Callback):
        def on_end_epoch(self, trial):
            seen.append(trial.network[0].weight.detach().clone())

    a_trial(network, data, Notes(), SWA(start=0.5)).run(4, verbose=False)
    expected = torch.stack(seen[2:]).mean(0)
    torch.testing.assert_close(network[0].weight.detach(), expected)


def test_best_keeps_the_average_that_was_measured(network, data, tmp_path):
    best = Best(tmp_path / "best.safetensors", "val_loss")
    trial = a_trial(network, data, EMA(0.99), best, optimizer="adam")
    trial.run(3, verbose=False)
    assert trial.evaluate(data)["loss"] == pytest.approx(best.best)


# ---- softer targets ----


def test_targets_are_smoothed_while_training_only(network, data):
    trial = Trial(network, "sgd", "cross_entropy").with_options(label_smoothing=0.2)
    trial.with_generators(data, data, batch_size=130).run(1, verbose=False)
    start = copy.deepcopy(network)
    trial.run(2, verbose=False)
    smooth = nn.functional.cross_entropy(start(data[0]), data[1], label_smoothing=0.2)
    assert trial.history[1]["loss"] == pytest.approx(smooth.item())
    plain = nn.functional.cross_entropy(network(data[0]), data[1])
    assert trial.history[1]["val_loss"] == pytest.approx(plain.item())


def test_mixup_gives_the_loss_of_both_targets(network, data):
    seen = []

    network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    trial = Trial(network, torch.optim.SGD(network.parameters(), lr=0.0), "cross_entropy")
    trial.with_options(mixup=0.4, seed=2).with_generators(data, data, batch_size=130, shuffle=False)
    record = trial.run(1, verbose=False)[0]
    plain = nn.functional.cross_entropy(network(data[0]), data[1]).item()
    assert record["val_loss"] == pytest.approx(plain)
    assert torch.equal(seen[1], data[0])
    assert not torch.equal(seen[0], data[0])
    assert record["loss"] != pytest.approx(plain)


def test_the_public_face_has_the_averages():
    assert ad.callbacks.EMA is EMA
    assert ad.callbacks.SWA is SWA
