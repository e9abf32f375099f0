"""What callbacks do beside the training."""

import copy
import csv
import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from rich.text import Text
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, ReduceLROnPlateau

from anydevice.errors import UsageError
from anydevice.train.callbacks import (
    CSV,
    Best,
    Callback,
    EarlyStopping,
    NanGuard,
    NotFiniteError,
    Profile,
    Progress,
    Schedule,
    TensorBoard,
    progress,
)
from anydevice.train.trial import Trial
from anydevice.virtual import events


def trained(network, data, *callbacks, epochs=3, optimizer="sgd", **options):
    trial = Trial(network, optimizer, "cross_entropy", callbacks=callbacks)
    trial.with_generators(data, data, batch_size=65, **options).run(epochs, verbose=False)
    return trial


def test_a_line_an_epoch_says_what_was_measured(network, data, capsys):
    trial = Trial(network, "adam", "cross_entropy", metrics=["loss"]).with_generators(data)
    trial.run(2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert f"loss {trial.history[1]['loss']:.4g}" in lines[1]


def test_a_terminal_shows_a_bar_that_goes_away(network, data, tmp_path):
    with (tmp_path / "page").open("w+") as page:
        console = Console(file=page, force_terminal=True, width=80)
        trained(network, data, Progress(console), epochs=1)
        page.seek(0)
        shown = page.read()
    assert "epoch 1/1" in shown
    assert "0/2" in shown
    assert shown.rstrip().endswith("\x1b[2K")


@pytest.mark.parametrize(("width", "drawn"), [(100, "━{10} {10} "), (60, "━{2} {2} "), (55, "")])
def test_the_bar_says_loss_speed_and_the_time_that_is_left(
    network, data, tmp_path, monkeypatch, width, drawn
):
    monkeypatch.setattr(progress, "BETWEEN", 0.0)
    with (tmp_path / "page").open("w+") as page:
        console = Console(file=page, force_terminal=True, width=width)
        trained(network, data, Progress(console), epochs=2)
        page.seek(0)
        shown = Text.from_ansi(page.read()).plain
    line = re.search(rf"epoch 2/2 {drawn}1/2 loss ([\d.]+) it/s [\d.]+ eta 0:00", shown)
    assert line
    assert 0 < float(line[1]) < 10


def test_the_time_that_is_left_is_that_of_all_epochs():
    assert progress.clock(25) == "0:25"
    assert progress.clock(3725) == "1:02:05"
    trial = SimpleNamespace(epochs=10, epoch=2, history=[{"seconds": 3.0}])
    shown = Progress()
    shown._total = 40
    assert shown._left(trial, 27, 13.0) == 1.0 + 7 * 3.0


def test_a_notebook_gets_one_output_that_changes(network, data, monkeypatch):
    shown = []

    class Handle:
        def update(self, data, raw):
            shown.append(data["text/plain"])

    fake = SimpleNamespace(display=lambda *_, **__: Handle())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=fake))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(progress, "BETWEEN", 0.0)
    trained(network, data, Progress(Console(force_jupyter=True)), epochs=1)
    assert shown[0].startswith("epoch 1/1")
    assert "loss" in shown[1]
    assert shown[-1] == ""


def test_the_bars_loss_does_not_wait_for_the_gpu(virtual_gpu, network, data, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "BETWEEN", 0.0)
    heard, losses = [], []

    class Sees(Callback):
        def on_step(self, trial):
            losses.append(shown._glimpse.loss)

    with (tmp_path / "page").open("w") as page:
        shown = Progress(Console(file=page, force_terminal=True))
        trial = Trial(network, "sgd", "cross_entropy", metrics=[], callbacks=[shown, Sees()])
        trial.to("cuda").with_generators(data, batch_size=10).run(1, verbose=False)
        with events.listening(heard.append):
            trial.run(2, verbose=False)
    assert losses[-1] is not None
    assert sum(event.kind == "synchronise" for event in heard) == 1  # the record's


def test_a_bar_does_without_a_length(network, data, tmp_path):
    class Endless:
        def __iter__(self):
            return iter([data])

    with (tmp_path / "page").open("w") as page:
        bar = Progress(Console(file=page, force_terminal=True))
        trained(network, Endless(), bar, epochs=1)


def test_a_stopped_run_stays_stopped_when_its_program_runs_again(network, data, tmp_path):
    for _ in range(2):
        trial = Trial(network, "sgd", "cross_entropy", callbacks=[EarlyStopping("loss", 1, 1e9)])
        trial.with_generators(data).checkpoint(tmp_path).run(9, verbose=False)
        assert trial.epoch == 2


@pytest.mark.parametrize("ask", ["evaluate", "predict"])
def test_asking_in_the_middle_of_an_epoch_leaves_it_as_it_was(network, data, ask):
    modes = []

    class Asks(Callback):
        def on_step(self, trial):
            getattr(trial, ask)(data)
            modes.append([module.training for module in trial.network.modules()])

    still = nn.Sequential(network, nn.Dropout(0.0).eval())
    trial = Trial(copy.deepcopy(still), "sgd", "cross_entropy", callbacks=[Asks()])
    trial.with_generators(data, batch_size=50, shuffle=False).run(1, verbose=False)
    alone = Trial(still, "sgd", "cross_entropy").with_generators(data, batch_size=50, shuffle=False)
    alone.run(1, verbose=False)
    assert all(all(mode) for mode in modes)
    assert trial.history[0]["loss"] == alone.history[0]["loss"]


@pytest.mark.parametrize(("each", "expected"), [("epoch", 0.1 * 0.5**3), ("step", 0.1 * 0.5**6)])
def test_a_schedule_changes_the_rate(network, data, each, expected):
    schedule = Schedule(lambda optimizer: ExponentialLR(optimizer, 0.5), each)
    sgd = torch.optim.SGD(network.parameters(), lr=0.1)
    trial = trained(network, data, schedule, optimizer=sgd)
    assert trial.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


def test_a_schedule_that_waits_for_a_plateau_sees_the_figure(network, data):
    schedule = Schedule(lambda o: ReduceLROnPlateau(o, patience=0, threshold=10.0))
    trial = trained(network, data, schedule, epochs=3)
    assert trial.optimizer.param_groups[0]["lr"] < 1e-3
    with pytest.raises(UsageError, match="expected a schedule each 'epoch' or each 'step'"):
        Schedule(lambda o: None, each="batch")


def test_an_interrupted_schedule_goes_on(network, data, tmp_path):
    def made():
        schedule = Schedule(lambda o: LambdaLR(o, lambda epoch: 0.5**epoch))
        trial = Trial(network, "sgd", "cross_entropy", callbacks=[schedule])
        return trial.with_generators(data).checkpoint(tmp_path)

    made().run(2, verbose=False)
    again = made()
    again.run(3, verbose=False)
    assert again.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.5**3)


def test_a_run_ends_when_nothing_gets_better(network, data):
    trial = trained(network, data, EarlyStopping(patience=2, by=1e9), epochs=10)
    assert trial.epoch == 3  # the first is the best so far, and two are waited for
    with pytest.raises(UsageError, match=r"to watch a figure among epoch, loss.*got 'acuracy'"):
        trained(network, data, EarlyStopping("acuracy"))


def test_the_best_weights_are_kept_and_taken_back(network, data, tmp_path):
    values = iter([0.3, 0.9, 0.1])
    kept = []

    class Best2(Best):
        def improved(self, trial, by=0.0):
            trial.history[-1]["val_accuracy"] = next(values)
            better = super().improved(trial, by)
            if better:
                kept.append([p.detach().clone() for p in trial.network.parameters()])
            return better

    trial = trained(network, data, Best2(tmp_path / "best.safetensors", "val_accuracy"))
    assert len(kept) == 2
    assert all(map(torch.equal, trial.network.parameters(), kept[-1]))


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_batch(network, data, tmp_path):
    x, y = data[0].clone(), data[1]
    x[70] = float("nan")
    trial = Trial(network, "sgd", "cross_entropy", callbacks=[NanGuard(4, tmp_path / "nan")])
    trial.with_generators((x, y), batch_size=10, shuffle=False)
    with pytest.raises(NotFiniteError, match="got NaN or infinity at batch 8 of epoch 1"):
        trial.run(1, verbose=False)
    assert json.loads((tmp_path / "nan").read_text()) == {"epoch": 1, "batch": 8}


def test_the_guard_does_not_wait_between_its_looks(network, data, virtual_gpu):
    trial = Trial(network, "sgd", "cross_entropy", callbacks=[NanGuard(every=5)]).to("cuda:0")
    trial.with_generators(data, batch_size=10).run(1, verbose=False)
    heard = []
    with events.listening(heard.append):
        trial.run(2, verbose=False)
    waits = sum(event.kind == "synchronise" for event in heard)
    assert waits == 3 + 1 + 1  # steps 15, 20 and 25; the guard and the record at the epoch's end


def test_records_are_a_csv_file(network, data, tmp_path):
    trial = trained(network, data, CSV(tmp_path / "history.csv"))
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_loss"]) for row in rows] == [r["val_loss"] for r in trial.history]


def test_tensorboard_gets_scalars_graph_images_and_histograms(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    images = torch.randint(0, 255, (64, 1, 8, 8), dtype=torch.uint8)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    trained(network, (images, torch.zeros(64, dtype=torch.int64)), TensorBoard(tmp_path), epochs=2)
    found = reader.EventAccumulator(str(tmp_path)).Reload().Tags()
    assert {"loss", "val_loss", "seconds"} <= set(found["scalars"])
    assert {"1.weight", "1.weight.grad"} <= set(found["histograms"])
    assert found["images"]
    assert found["graph"]


def test_a_profile_is_a_trace(network, data, tmp_path):
    trained(network, data, Profile(tmp_path / "trace.json", after=1, steps=2))
    written = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "aten::addmm" in {event.get("name") for event in written}


# ---- what would never be called


class Lightning:
    def on_train_epoch_end(self, trial):
        pass


class Misspelt(Callback):
    def on_end_epochs(self, trial):
        pass


class Silent:
    def state_dict(self):
        return {}


OTHER = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), 1.0), 1)


@pytest.mark.parametrize(
    ("callbacks", "sentence"),
    [
        ([EarlyStopping], "got the class EarlyStopping: write EarlyStopping(…)."),
        (EarlyStopping(), "as a list, got one EarlyStopping: write callbacks=[…]."),
        ([lambda trial: None], "with methods such as on_end_epoch(trial), got the function"),
        (
            [Lightning()],
            "got Lightning.on_train_epoch_end, which is never called: did you mean o",
        ),
        ([Misspelt()], "got Misspelt.on_end_epochs, which is never called: did you mean on_end_ep"),
        ([Silent()], "got an object of Silent, which has none."),
        (["early_stopping"], "got 'early_stopping', which has none."),
        ([OTHER], "of the trial's own optimizer, got StepLR of another one: write Schedule(lam"),
    ],
)
def test_a_callback_that_would_be_ignored_is_refused(callbacks, sentence):
    with pytest.raises(UsageError) as caught:
        Trial(nn.Linear(1, 1), "adam", "mse", callbacks=callbacks)
    assert sentence in str(caught.value)


def test_a_callback_that_is_added_later_is_looked_at_too():
    trial = Trial(nn.Linear(1, 1), "adam", "mse").with_generators((torch.ones(2, 1),) * 2)
    trial.callbacks.append(Lightning())
    with pytest.raises(UsageError, match="did you mean on_end_epoch"):
        trial.run(1, verbose=False)
