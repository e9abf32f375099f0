"""What a record says about the training itself, and the line about a loss that diverges."""

import math

import pytest
import torch
from torch import nn

from anydevice.train.loop.health import NOTED, Noted
from anydevice.train.trial import Trial

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def trained(optimizer, epochs=1, x=X, y=Y, **options):
    torch.manual_seed(0)
    trial = Trial(nn.Linear(4, 1), optimizer, "mse").with_options(**options)
    trial.with_generators((x, y), batch_size=20, shuffle=False).run(epochs, verbose=False)
    return trial


def sgd(lr):
    return lambda parameters: torch.optim.SGD(parameters, lr)


def test_the_norm_is_that_of_the_last_steps_gradients():
    trial = trained(sgd(0.01))
    weights = trial.network
    expected = math.hypot(*(p.grad.norm().item() for p in weights.parameters()))
    assert trial.history[0]["grad_norm"] == pytest.approx(expected)


def test_the_norm_is_the_one_before_clipping():
    clipped, plain = trained(sgd(1e-9), clip_norm=1e-3), trained(sgd(1e-9))
    assert clipped.history[0]["grad_norm"] == pytest.approx(plain.history[0]["grad_norm"], rel=1e-3)


def test_a_network_that_learned_nothing_has_no_norm():
    class Still(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["params"][0].grad = self.param_groups[0]["params"][1].grad = None

    assert trained(lambda p: Still(p, 0.1)).history[0]["grad_norm"] is None


def test_each_group_has_its_rate():
    network = nn.Linear(4, 1)
    groups = [
        {"params": [network.weight], "lr": 0.1, "name": "weights"},
        {"params": [network.bias], "lr": 0.2},
    ]
    trial = Trial(network, torch.optim.SGD(groups), "mse").with_generators((X, Y))
    record = trial.run(1, verbose=False)[0]
    assert (record["learning_rate/weights"], record["learning_rate/1"]) == (0.1, 0.2)


def test_a_rate_is_that_of_its_own_epoch():
    network = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    halving = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    trial = Trial(network, optimizer, "mse", callbacks=[halving]).with_generators((X, Y))
    rates = [record["learning_rate"] for record in trial.run(3, verbose=False)]
    assert rates == [1e-3, 5e-4, 2.5e-4]


def test_a_loss_that_becomes_nan_is_announced_once_with_step_and_rate(caplog):
    x = X.clone()
    x[25] = math.nan  # in the second batch
    trained(sgd(0.5), epochs=3, x=x)
    (line,) = [r.getMessage() for r in caplog.records if "The loss" in r.getMessage()]
    assert line.startswith("The loss became nan in epoch 1, at step 2 with learning rate 0.5. Fix:")


def test_a_loss_that_explodes_is_announced_once(caplog):
    trained(sgd(2.0), epochs=6)
    (line,) = [r.getMessage() for r in caplog.records if "The loss" in r.getMessage()]
    assert line.startswith("The loss went from ")
    assert "in epoch 2 with learning rate 2." in line


def test_a_loss_that_falls_is_not_announced(caplog):
    trained(sgd(0.01), epochs=6)
    assert "The loss" not in caplog.text


def test_few_losses_are_kept_of_a_long_epoch():
    noted = Noted()
    for step in range(1, 1000):
        if step % noted.every == 0:
            noted.note(step, torch.tensor(math.nan if step > 700 else 1.0))
    assert len(noted.losses) < NOTED
    assert 700 < noted.first_not_finite() <= 700 + noted.every


def test_a_loss_that_explodes_within_the_first_epoch_is_announced_once(caplog):
    trial = trained(sgd(100.0))
    trial.run(4, verbose=False)
    (said,) = [line for line in caplog.messages if line.startswith("The loss")]
    assert "The loss went from" in said
    assert "in epoch 1 with learning rate 100. Fix: a lower learning rate" in said


def test_a_loss_that_is_large_from_the_start_is_not_announced(caplog):
    trained(sgd(1e-9), x=X, y=Y * 1000)
    assert "The loss" not in caplog.text
