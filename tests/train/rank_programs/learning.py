"""Several ranks learn and measure what one process does."""

import copy
import itertools
import tempfile
from importlib.util import find_spec

import pytest
import torch
from checks import DEVICE, RANK, RANKS, check, close, equal, run_all, weights
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from anydevice.errors import UsageError
from anydevice.train.callbacks import Best, Callback
from anydevice.train.history import SPEED
from anydevice.train.ranks import Ranks
from anydevice.train.trial import Trial

GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(130, 4, generator=GENERATOR)
Y = (X @ torch.randn(4, 3, generator=GENERATOR)).argmax(1)
TOGETHER = ("ddp", "fsdp")


def network(*more):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), *more, nn.Linear(16, 3))


def made(strategy, net=None, loss="cross_entropy", metrics=("loss", "accuracy"), **options):
    trial = Trial(copy.deepcopy(net) or network(), "adam", loss, metrics=list(metrics)).to(DEVICE)
    return trial.with_options(strategy=strategy, seed=3, **options)


def learnt(strategy, data, val=None, epochs=2, batch_size=16, shuffle=True, **options):
    """The figures of each epoch, and the weights."""
    trial = made(strategy, **options)
    trial.with_generators(data, val, batch_size=batch_size, shuffle=shuffle)
    history = trial.run(epochs, verbose=False)
    equal(trial.device.index, None if DEVICE == "cpu" else RANK)
    return [v for r in history for name, v in r.items() if name not in SPEED], weights(trial)


def as_alone(data, strategies=TOGETHER, tolerance=1e-5, **options):
    expected = learnt("alone", data(), **options)
    for strategy in strategies:
        for found, wanted in zip(learnt(strategy, data(), **options), expected, strict=True):
            close(found, wanted, tolerance)


@check
def losses_and_weights():
    # 130 samples in 16s: the last batch has 2, which is less than one for each of 4 ranks
    as_alone(lambda: (X, Y), val=(X[:33], Y[:33]))


@check
def options_of_the_step():
    as_alone(lambda: (X, Y), accumulate=3, clip_norm=0.1)
    as_alone(lambda: (X, Y), loss=nn.CrossEntropyLoss(reduction="sum"), accumulate=2)


@check
def every_kind_of_data():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(X)

        def __getitem__(self, row):
            return X[row], Y[row]

    class Stream(IterableDataset):
        def __iter__(self):
            return zip(X, Y, strict=True)

    def shuffled():
        generator = torch.Generator().manual_seed(5)
        return DataLoader(TensorDataset(X, Y), 16, shuffle=True, generator=generator)

    for data in (
        Rows,
        lambda: DataLoader(Rows(), 16),
        shuffled,
        lambda: DataLoader(Stream(), 16),
        Stream,
        lambda: [(X[i : i + 26], Y[i : i + 26]) for i in range(0, 130, 26)],
    ):
        as_alone(data, strategies=["ddp"])
    batches = ((X[i : i + 26], Y[i : i + 26]) for i in range(0, 130, 26))
    expected, _ = learnt(
        "alone", [(X[i : i + 26], Y[i : i + 26]) for i in range(0, 130, 26)], epochs=1
    )
    close(learnt("ddp", batches, epochs=1)[0], expected)


@check
def a_shuffled_loader_gives_each_sample_once():
    seen = []

    def step(network, batch):
        seen.extend(batch[1].tolist())
        return network(batch[0]).square().mean()

    rows = torch.arange(128)
    loader = DataLoader(TensorDataset(torch.randn(128, 4), rows), 16, shuffle=True)
    trial = Trial(network(), "sgd", step=step).to(DEVICE).with_generators(loader)
    orders = []
    for epoch in (1, 2):
        seen.clear()
        trial.run(epoch, verbose=False)
        orders.append(trial.ranks.gather(list(seen)))
        equal(sorted(itertools.chain(*orders[-1])), rows.tolist())
    assert orders[0] != orders[1]


@check
def a_sampler_for_ranks_is_taken_as_it_is():
    data = TensorDataset(X, Y)
    loader = DataLoader(data, 13, sampler=DistributedSampler(data, RANKS, RANK, shuffle=False))
    trial = made("ddp", metrics=["accuracy"]).with_generators(loader)
    own = X[RANK::RANKS]
    batch = next(iter(trial.sets.named("train")))
    assert torch.equal(batch[0].cpu(), own[:13])
    trial.run(1, verbose=False)
    equal(trial.metrics.measures["accuracy"].predictions, -(-130 // RANKS))


@check
def uneven_shares_are_measured_exactly():
    expected = made("alone")
    together = {strategy: made(strategy) for strategy in TOGETHER}
    for samples, batch_size in ((57, 8), (1, 8), (130, 1000), (9, 4)):
        data = (X[:samples], Y[:samples])
        wanted = expected.evaluate(data, batch_size=batch_size)
        for trial in together.values():
            found = trial.evaluate(data, batch_size=batch_size)
            equal(found["accuracy"], wanted["accuracy"])
            close([found["loss"]], [wanted["loss"]], 1e-6)


@check
def metrics_of_torchmetrics():
    if not find_spec("torchmetrics"):
        return
    import torchmetrics

    for strategy in TOGETHER:
        accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        trial = made(strategy, metrics=["accuracy", ("theirs", accuracy)])
        found = trial.evaluate((X[:57], Y[:57]), batch_size=8)
        close([found["theirs"]], [found["accuracy"]], 1e-6)


@check
def a_metric_that_cannot_be_gathered_is_refused():
    class Samples:
        def reset(self):
            self.seen = 0

        def update(self, output, target):
            self.seen += len(target)

        def compute(self):
            return self.seen

    with pytest.raises(UsageError, match="several ranks can measure together, got 'seen'"):
        made("ddp", metrics=[("seen", Samples())]).evaluate((X, Y))


@check
def ranks_whose_data_ends_early_are_an_error():
    number = 3 + RANK
    batches = ((X[:16], Y[:16]) for _ in range(number))
    for data in (batches, [(X[:16], Y[:16])] * number):
        with pytest.raises(UsageError, match="expected equally many batches on every rank"):
            made("ddp").with_generators(data).run(1, verbose=False)


@check
def running_statistics_and_predictions_are_the_same_on_all_ranks():
    for strategy in TOGETHER:
        trial = made(strategy, network(nn.BatchNorm1d(16), nn.Dropout(0.5)))
        trial.with_generators((X[:128], Y[:128]), (X, Y), batch_size=32).run(2, verbose=False)
        predicted = trial.predict(X)
        equal(predicted.shape, (130, 3))
        for other in trial.ranks.gather(predicted):
            assert torch.equal(other, predicted)


@check
def dropout_differs_from_rank_to_rank():
    trial = made("ddp", network(nn.Dropout(0.5)))
    trial.with_generators((X, Y)).run(1, verbose=False)
    drawn = torch.rand(4, device=DEVICE).tolist()
    equal(len(set(map(tuple, trial.ranks.gather(drawn)))), RANKS)


class Lit(nn.Module):
    """Knows how it is trained, without a forward of its own."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.inner(x), y)
        self.log("mine", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


@check
def a_module_with_a_training_step():
    def figures(strategy):
        trial = Trial.of(Lit()).to(DEVICE).with_options(strategy=strategy)
        history = trial.with_generators((X, Y), (X, Y), batch_size=16, shuffle=False).run(
            2, verbose=False
        )
        return [r[name] for r in history for name in ("loss", "mine", "val_mine")]

    for strategy in TOGETHER:
        close(figures(strategy), figures("alone"))


class Scaled(nn.Module):
    """A loss that learns, too."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, output, target):
        return nn.functional.cross_entropy(output * self.scale, target)


@check
def a_loss_that_learns():
    scales = {}
    for strategy in ("alone", *TOGETHER):
        loss = Scaled()
        learnt(strategy, (X, Y), loss=loss)
        scale = loss.scale
        scales[strategy] = (scale.full_tensor() if strategy == "fsdp" else scale).item()
    close([scales["ddp"], scales["fsdp"]], [scales["alone"]] * 2)
    assert scales["alone"] != 1


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = network(), nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x)


@check
def parameters_that_take_no_part():
    torch.manual_seed(1)
    as_alone(lambda: (X, Y), strategies=["ddp"], net=HalfUsed())


@check
def what_shards_have_saved_one_process_loads():
    box = [tempfile.mkdtemp() if RANK == 0 else None]
    for strategy in ("fsdp", "ddp"):
        trial = made(strategy).with_generators((X, Y), batch_size=16)
        trial.run(2, verbose=False)
        folder = f"{trial.ranks.told(box[0])}/{strategy}"
        equal(len({str(path) for path in trial.ranks.gather(trial.save(folder))}), 1)
        loaded = Trial.load(folder, network()).to(DEVICE)
        close(weights(loaded), weights(trial), 0)
        equal(loaded.history, trial.history)
        loaded.with_generators((X, Y), batch_size=16).run(3, verbose=False)
        trial.run(3, verbose=False)
        close(weights(loaded), weights(trial))


@check
def the_best_epoch_is_kept_and_taken_back():
    box = [tempfile.mkdtemp() if RANK == 0 else None]
    for strategy in TOGETHER:
        kept = []

        class Remembering(Best):
            def improved(self, trial, by=0.0, kept=kept):
                better = super().improved(trial, by)
                if better:
                    kept.append(weights(trial))
                return better

        trial = made(strategy)
        path = f"{Ranks.here(trial.device).told(box[0])}/{strategy}.safetensors"
        trial.callbacks.append(Remembering(path, "val_accuracy"))
        trial.with_generators((X, Y), (X[:33], Y[:33]), batch_size=16).run(4, verbose=False)
        equal(weights(trial), kept[-1])


@check
def only_the_first_rank_shows_and_writes():
    calls = []

    class Everywhere(Callback):
        def on_end_epoch(self, trial):
            calls.append("everywhere")

    class First(Callback):
        on_every_rank = False

        def on_end_epoch(self, trial):
            calls.append("first")

    trial = Trial(network(), "adam", "cross_entropy", callbacks=[Everywhere(), First()]).to(DEVICE)
    trial.with_generators((X, Y)).run(1, verbose=False)
    equal(calls, ["everywhere", "first"][: 2 - (RANK > 0)])


@check
def stopping_on_one_rank_stops_all():
    class Stops(Callback):
        def on_end_epoch(self, trial):
            if RANK == RANKS - 1:
                trial.stop()

    trial = Trial(network(), "adam", "cross_entropy", callbacks=[Stops()]).to(DEVICE)
    equal(len(trial.with_generators((X, Y)).run(5, verbose=False)), 1)


# ---- on GPUs ----


class Greedy(torch.autograd.Function):
    """Runs out of memory on the last rank, on the way there or back, for more than three rows."""

    @staticmethod
    def forward(context, x, when):
        context.when = when
        Greedy.take(x, "forward" in when)
        return x

    @staticmethod
    def backward(context, gradient):
        Greedy.take(gradient, "backward" in context.when)
        return gradient, None

    @staticmethod
    def take(x, wanted):
        if wanted and RANK == RANKS - 1 and len(x) > 3:
            torch.empty(2**42, device=x.device)


class Hungry(nn.Module):
    def __init__(self, when):
        super().__init__()
        self.when = when

    def forward(self, x):
        return Greedy.apply(x, self.when)


def out_of_memory_on_one_rank():
    for when, options in (
        ("forward", {}),
        ("backward", {}),
        ("forward, accumulating", {"accumulate": 2}),
        ("backward, accumulating", {"accumulate": 2}),
    ):
        data, alone = (X[:128], Y[:128]), network(nn.Identity())
        expected = learnt("alone", data, net=alone, batch_size=8 * RANKS, **options)
        trial = made("ddp", network(Hungry(when)), **options)
        trial.with_generators(data, batch_size=8 * RANKS)
        history = trial.run(2, verbose=False)
        close([v for r in history for name, v in r.items() if name not in SPEED], expected[0])
        close(weights(trial), expected[1])
        equal(trial.ranks.gather(trial.job.parts), [4] * RANKS)


def half_precision():
    for strategy in TOGETHER:
        for precision in ("fp16", "bf16"):
            trial = Trial(network(), "adam", "cross_entropy").to(DEVICE, precision)
            trial.with_options(strategy=strategy, clip_norm=1.0)
            history = trial.with_generators((X, Y), batch_size=16).run(4, verbose=False)
            assert history[-1]["loss"] < history[0]["loss"]


def a_step_of_ddp_waits_for_no_device():
    from anydevice.virtual import events

    trial = made("ddp").with_generators((X, Y), batch_size=16)
    trial.run(1, verbose=False)
    heard = []
    with events.listening(heard.append):
        trial.run(2, verbose=False)
    waits = [event for event in heard if event.kind == "synchronise"]
    assert len(waits) <= 6, waits  # 9 steps; the metrics at their end


if DEVICE != "cpu":
    for function in (
        out_of_memory_on_one_rank,
        half_precision,
        a_step_of_ddp_waits_for_no_device,
    ):
        check(function)

run_all()
