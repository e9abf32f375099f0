"""Modules that say how they are trained are trained as they are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR

from anydevice.errors import UsageError
from anydevice.train.trial import Trial


class Module(nn.Module):
    """Of Lightning's shape: logging needs a trainer that is not there."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)

    def log(self, *_, **__):
        raise RuntimeError("no trainer")

    log_dict = log

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        output = self.net(x)
        right = (output.argmax(1) == y).float().mean()
        self.log_dict({"val_loss": F.cross_entropy(output, y), "val_acc": right})

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": ExponentialLR(optimizer, 0.5)}


class ShortModule(nn.Module):
    """Of d2l's shape."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def training_step(self, batch):
        loss = F.cross_entropy(self.net(*batch[:-1]), batch[-1])
        self.plot("loss", loss, train=True)
        return loss

    def validation_step(self, batch):
        self.plot("loss", F.cross_entropy(self.net(*batch[:-1]), batch[-1]), train=False)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_a_module_of_lightnings_shape(data, device):
    module = Module()
    trial = Trial.of(module).to(device).with_generators(data, data, batch_size=50)
    history = trial.run(2, verbose=False)
    assert history[-1]["loss"] == pytest.approx(history[-1]["train_loss"])
    module.cpu()
    with torch.no_grad():
        output = module.net(data[0])
    assert history[-1]["val_loss"] == pytest.approx(F.cross_entropy(output, data[1]).item())
    right = (output.argmax(1) == data[1]).float().mean().item()
    assert history[-1]["val_acc"] == pytest.approx(right)
    assert trial.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)
    with pytest.raises(RuntimeError, match="no trainer"):
        module.log("x", 1)


def test_a_module_of_d2ls_shape(data):
    history = Trial.of(ShortModule()).with_generators(data, data).run(3, verbose=False)
    assert history[-1]["val_loss"] < history[0]["val_loss"]


def test_a_module_that_does_not_say_is_refused():
    with pytest.raises(UsageError, match="expected a module with training_step and configure_opt"):
        Trial.of(nn.Linear(1, 1))


def test_several_optimizers_are_refused(data):
    class Several(ShortModule):
        def configure_optimizers(self):
            return [super().configure_optimizers()] * 2

    with pytest.raises(UsageError, match="expected configure_optimizers to give one optimizer"):
        Trial.of(Several())

    class Pair(ShortModule):
        def configure_optimizers(self):
            return super().configure_optimizers(), super().configure_optimizers()

    with pytest.raises(UsageError, match="expected configure_optimizers to give one optimizer"):
        Trial.of(Pair())


def test_what_is_logged_is_weighed_by_batch_when_batches_are_accumulated(data):
    indices = []

    class Indexed(Module):
        def training_step(self, batch, batch_idx):
            indices.append(batch_idx)
            self.log("size", float(len(batch[1])))
            return F.cross_entropy(self.net(batch[0]), batch[1])

    trial = Trial.of(Indexed()).with_options(accumulate=2).with_generators(data, batch_size=50)
    history = trial.run(2, verbose=False)
    assert history[0]["size"] == pytest.approx((50 * 50 * 2 + 30 * 30) / 130)
    assert indices == [0, 1, 2] * 2


def test_compiling_a_module_that_steps_by_itself_is_refused(data):
    trial = Trial.of(Module()).with_options(compile=True).with_generators(data)
    with pytest.raises(UsageError, match="expected a module that compiles its own parts"):
        trial.run(1, verbose=False)
