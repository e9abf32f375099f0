"""Data, models and programs of others: what they bring is taken as it is."""

import importlib.util
from collections import OrderedDict, UserDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import anydevice as ad
from anydevice.errors import UsageError
from anydevice.train.trial import Trial


class Output(OrderedDict):
    """As a ModelOutput of Hugging Face: a dictionary with attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Model(nn.Module):
    """As a model of Hugging Face: takes the labels, and gives loss and logits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, points, labels=None):
        logits = self.layer(points)
        if labels is None:
            return Output(logits=logits)
        return Output(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def rows(data):
    return [{"points": x.tolist(), "labels": int(y)} for x, y in zip(*data, strict=True)]


@pytest.mark.parametrize("loss", [None, "cross_entropy"])
def test_a_model_with_its_own_loss_has_an_accuracy(data, loss, device):
    model = Model()
    trial = Trial(model, "adam", loss, metrics=["loss", "accuracy", "confusion"]).to(device)
    trial.with_generators(rows(data), rows(data), batch_size=65)
    record = trial.run(1, verbose=False)[0]
    answers = model.layer(data[0].to(device)).argmax(1).cpu()
    assert record["val_accuracy"] == pytest.approx((answers == data[1]).float().mean().item())
    assert trial.predict([{"points": [0.0] * 4}])["logits"].shape == (1, 3)


def test_tokens_have_their_classes_last(data):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, points):
            return SimpleNamespace(logits=self.layer(points))

    network = Tagger()
    x, y = torch.randn(10, 7, 4), torch.randint(3, (10, 7))
    trial = Trial(network, "sgd", "cross_entropy", metrics=["loss", "accuracy"])
    found = trial.evaluate([{"points": x, "labels": y}])
    right = (network.layer(x).argmax(-1) == y).float().mean().item()
    assert found["accuracy"] == pytest.approx(right)


def test_batches_of_a_tokenizer_are_looked_into(data, device):
    batches = [UserDict({"points": x, "labels": y}) for x, y in [data, data]]
    trial = Trial(Model(), "sgd", metrics=["loss", "accuracy"]).to(device)
    trial.with_generators(batches, batches)
    assert trial.run(1, verbose=False)[0]["val_accuracy"] > 0


def test_a_list_of_batches_stays_one(data):
    batches = [{"points": x, "labels": y} for x, y in [data, data]]
    trial = Trial(Model(), "sgd").with_generators(batches)
    trial.run(1, verbose=False)
    assert trial.job.step == 2


def test_outputs_that_have_no_accuracy_say_so(data):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, points, labels):
            return {"loss": self.layer(points).mean(), "classes": self.layer(points)}

    trial = Trial(Odd(), "sgd", metrics=["accuracy"]).with_generators(rows(data))
    with pytest.raises(UsageError, match=r"outputs of dict .*with \.logits"):
        trial.run(1, verbose=False)


def test_samples_of_different_lengths_are_a_sentence():
    odd = [{"points": [1.0] * n, "labels": 0} for n in (4, 5)]
    with pytest.raises(UsageError, match=r"whose points has one length, got lengths \[4, 5\]"):
        Trial(Model(), "sgd").with_generators(odd, batch_size=2).run(1, verbose=False)


def test_a_stream_of_samples_is_batched(data):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(*data, strict=True))

    network = nn.Linear(4, 3)
    trial = Trial(network, "sgd", "cross_entropy").with_generators(Stream(), batch_size=40)
    trial.run(2, verbose=True)
    assert trial.job.step == 8
    trial.with_generators(DataLoader(Stream(), batch_size=130)).run(3, verbose=False)
    assert trial.job.step == 9


def test_a_stream_of_dictionaries_has_lists_of_numbers_as_tensors(data):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(rows(data))

    trial = Trial(Model(), "sgd").with_generators(Stream(), batch_size=65)
    trial.run(1, verbose=False)
    assert (trial.job.step, trial.history[0]["loss"] > 0) == (2, True)


def test_a_stream_that_makes_its_batches_is_left_alone(data):
    def _batched():
        """As the function of WebDataset's stage."""

    class Stream(IterableDataset):
        def __init__(self, *stages):
            self.pipeline = list(stages)

        def __iter__(self):
            return iter([data, data])

    stage, loader = SimpleNamespace(f=_batched), DataLoader([1], batch_size=2)
    for stream in (Stream(stage), Stream(loader), Stream(DataLoader(Stream(stage), None))):
        trial = Trial(nn.Linear(4, 3), "sgd", "cross_entropy").with_generators(stream)
        trial.run(1, verbose=False)
        assert trial.job.step == 2


def test_a_label_is_given_as_the_labels_that_a_model_takes(data):
    named = [{"points": row["points"], "label": row["labels"]} for row in rows(data)]
    trial = Trial(Model(), "sgd", metrics=["accuracy"]).with_generators(named)
    assert trial.run(1, verbose=False)[0]["accuracy"] > 0


def test_a_dictionary_of_sets_is_all_of_them(data):
    trial = Trial(Model(), "sgd").with_generators(
        {"train": rows(data), "validation": rows(data)[:50], "test": rows(data)[:7]}
    )
    assert "val_loss" in trial.run(1, verbose=False)[0]
    assert len(trial.predict()["logits"]) == 7


@pytest.mark.parametrize("kind", ["pairs", "lists", "table"])
def test_samples_in_plain_python_and_in_tables(data, kind):
    x, y = data
    given = {
        "pairs": [(row, int(label)) for row, label in zip(x, y, strict=True)],
        "lists": (x.tolist(), y.tolist()),
        "table": (SimpleNamespace(to_numpy=x.numpy), SimpleNamespace(to_numpy=y.numpy)),
    }[kind]
    network = nn.Linear(4, 3)
    found = Trial(network, None, "cross_entropy").evaluate(given)
    expected = nn.functional.cross_entropy(network(x), y).item()
    assert found["loss"] == pytest.approx(expected)


def test_numbers_of_numpys_own_type_say_what_to_do(data):
    trial = Trial(nn.Linear(4, 3), "sgd", "cross_entropy")
    with pytest.raises(RuntimeError) as caught:
        trial.with_generators((data[0].double().numpy(), data[1])).run(1, verbose=False)
    assert any("x.astype('float32')" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("target", "loss", "fix"),
    [
        (lambda y: y.float(), "cross_entropy", "y.long()"),
        (lambda y: y[:, None], "nll", "y.squeeze(1)"),
        (lambda y: nn.functional.one_hot(y, 3), "nll", "y.argmax(1)"),
    ],
)
def test_targets_that_are_no_classes_say_what_to_do(data, target, loss, fix):
    trial = Trial(nn.Linear(4, 3), "sgd", loss).with_generators((data[0], target(data[1])))
    with pytest.raises(RuntimeError) as caught:
        trial.run(1, verbose=False)
    assert any(f"Fix: y = {fix}" in note for note in caught.value.__notes__)


def test_entries_that_the_network_does_not_take_are_named():
    trial = Trial(nn.Linear(4, 2), "sgd", "cross_entropy")
    trial.with_generators([{"points": [1.0] * 4, "labels": 0}], batch_size=1)
    with pytest.raises(TypeError) as caught:
        trial.run(1, verbose=False)
    (note,) = caught.value.__notes__
    assert "by name, here points, labels; the network's forward takes input." in note


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((nn.Linear, "sgd", "mse"), r"write Linear\(…\)"),
        ((None, "sgd", "mse"), "a network that is an nn.Module, got NoneType"),
        ((nn.Linear(1, 1), "adm", "mse"), "did you mean adam?"),
        ((nn.Linear(1, 1), "mse", "sgd"), r"got the loss 'mse': its place is after"),
        ((nn.Linear(1, 1), "sgd", nn.MSELoss), r"write MSELoss\(\)"),
    ],
)
def test_what_is_no_network_optimizer_or_loss_is_refused_at_once(given, said):
    with pytest.raises(UsageError, match=said):
        Trial(*given)


# ---- torchbearer ----


def test_torchbearers_trial_runs_as_it_is(network, data):
    x, y = data
    trial = Trial(network, "sgd", "cross_entropy", metrics=["acc", "loss"])
    trial.with_train_data(x, y, batch_size=10).with_val_data(x, y, batch_size=10)
    trial.with_test_data(x, batch_size=10)
    trial.for_steps(5, 3)
    trial.run(2, verbose=False)
    assert trial.job.step == 10
    first = trial.evaluate(data_key="val")
    assert first["loss"] == pytest.approx(trial.evaluate((x[:30], y[:30]))["loss"])
    assert trial.evaluate(data_key="validation_data") == first
    assert trial.predict().shape == (130, 3)
    trial.for_train_steps(20).run(3, verbose=False)  # more than there are: some again
    assert trial.job.step == 30
    other = Trial(
        nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)),
        "sgd",
        "cross_entropy",
        metrics=["acc", "loss"],
    )
    other.with_generators(data, data).load_state_dict(trial.state_dict())
    assert other.history == trial.history
    assert torch.equal(other.predict(x), trial.predict(x))
    fresh = Trial(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), verbose=0)
    fresh.load_state_dict(trial.state_dict(), resume=False)
    assert (fresh.epoch, torch.equal(fresh.predict(x), trial.predict(x))) == (0, True)


def test_torchbearers_other_ways_to_say_the_same(network, data, capsys):
    x, y = data
    trial = Trial(network, "sgd", "cross_entropy", verbose=0)
    trial.with_data(x, y, x, y, x, batch_size=13, train_steps=3, shuffle=False)
    trial.run()
    trial.run(2, verbose=-1)
    assert (trial.job.step, capsys.readouterr().out) == (6, "")
    figures = trial.evaluate(verbose=2)
    assert f"loss {figures['loss']:.4g}" in capsys.readouterr().out
    trial.with_generators(data, train_steps=1).run(3)
    assert trial.job.step == 7
    assert trial.eval().network.training is False
    assert trial.train().network.training is True


def test_a_replay_goes_through_the_history_for_other_callbacks(network, data, capsys):
    heard = []

    class Hears(ad.callbacks.Callback):
        def on_end_epoch(self, trial):
            heard.append((trial.epoch, trial.history[-1]["loss"]))

        def on_end(self, trial):
            heard.append("end")

    trial = Trial(network, "sgd", "cross_entropy").with_generators(data)
    trial.run(2, verbose=False)
    assert trial.replay([Hears()]) is trial.history
    losses = [record["loss"] for record in trial.history]
    assert heard == [(1, losses[0]), (2, losses[1]), "end"]
    assert "epoch 2/2" in capsys.readouterr().out
    assert trial.callbacks == []


def test_torchbearers_forms_that_make_no_sense_are_refused(network, data):
    trial = Trial(network, "sgd", "cross_entropy").with_train_generator(data, steps=2)
    for wrong, said in [
        (lambda: trial.for_steps(0), "1 or more train steps, got 0"),
        (lambda: trial.for_val_steps(-1), "1 or more val steps, got -1"),
        (lambda: trial.evaluate(data_key="tests"), "a data_key of 'train', 'val' or 'test'"),
        (lambda: trial.evaluate(data, data_key="val"), "data or a data_key, got both"),
        (lambda: trial.predict(), r"expected test data, got none"),
        (lambda: trial.load_state_dict({"model": 1}), r"state_dict\(\) returned, got model"),
        (lambda: trial.fit(), "a number of epochs, got none"),
        (lambda: trial.with_closure(print), "step=function"),
        (lambda: trial.with_loader(print), r"with_generators\(train=…\)"),
        (lambda: trial.with_inf_train_loader(), r"for_steps\(train_steps=1000\)"),
    ]:
        with pytest.raises(UsageError, match=said):
            wrong()


# ---- Lightning and d2l ----


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Data:
    """As d2l's DataModule, whose base class has loaders for both sets."""

    def __init__(self, data):
        self.data = data

    def get_dataloader(self, train):
        return DataLoader(torch.utils.data.TensorDataset(*self.data), 65, shuffle=train)

    def train_dataloader(self):
        return self.get_dataloader(train=True)

    def val_dataloader(self):
        return self.get_dataloader(train=False)

    def test_dataloader(self):
        raise NotImplementedError


def test_a_module_fits_a_module_of_data(data):
    trial = ad.Trial.of(Module(), max_epochs=2, num_gpus=0, gradient_clip_val=1.0)
    history = trial.fit(Data(data), verbose=False)
    assert len(history) == 2
    assert "val_loss" in history[-1]
    assert trial.options.clip_norm == 1.0
    assert trial.job.step == 4
    with pytest.raises(UsageError, match="got max_epoch: did you mean max_epochs"):
        ad.Trial.of(Module(), max_epoch=2)
    with pytest.raises(UsageError, match="num_gpus of 0 or 1 in one process, got 2"):
        ad.Trial.of(Module(), num_gpus=2)


# ---- scikit-learn ----

needs_sklearn = pytest.mark.skipif(not importlib.util.find_spec("sklearn"), reason="scikit-learn")


@pytest.mark.skipif(bool(importlib.util.find_spec("sklearn")), reason="scikit-learn is here")
def test_the_classifier_says_what_it_needs():
    with pytest.raises(UsageError, match="pip install scikit-learn"):
        ad.Classifier()


@needs_sklearn
def test_the_classifier_is_one_of_scikit_learns(data):
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = data[0].numpy(), [["cat", "dog", "owl"][int(i)] for i in data[1]]
    own = ad.Classifier(lambda features, classes: nn.Linear(features, classes), device="cpu")
    own.set_params(epochs=30, random_state=0, batch_size=20)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), own), {"classifier__lr": [1e-5, 0.05]}, cv=2
    )
    search.fit(x, y)
    assert search.best_params_ == {"classifier__lr": 0.05}
    assert search.score(x, y) > 0.8


@needs_sklearn
@pytest.mark.long
def test_the_classifier_passes_the_estimator_checks():
    from sklearn.utils.estimator_checks import check_estimator

    check_estimator(ad.Classifier(epochs=20, lr=0.02, random_state=0, device="cpu"))
