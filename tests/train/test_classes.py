"""Metrics of classes: confusion matrices, shares by class, ROC curves, the worst samples."""

import pytest
import torch
from torch import nn

from anydevice.errors import UsageError
from anydevice.sweep.page.data import page_data
from anydevice.sweep.records.records import Record
from anydevice.train.callbacks import EarlyStopping
from anydevice.train.callbacks.progress import line_of
from anydevice.train.trial import Trial


def of_classes(network, data, *metrics, device="cpu", **options):
    trial = Trial(network, "adam", "cross_entropy", metrics=["loss", *metrics], **options)
    return trial.to(device).with_generators(data, data, batch_size=40)


def by_hand(network, data):
    answers = network(data[0]).argmax(1)
    matrix = torch.zeros(3, 3, dtype=torch.int64)
    for target, answer in zip(data[1], answers, strict=True):
        matrix[target, answer] += 1
    return matrix


def test_the_matrix_is_in_the_history_and_not_in_the_line(network, data, device):
    trial = of_classes(network, data, "confusion", "per_class", device=device)
    record = trial.run(2, verbose=False)[-1]
    matrix = by_hand(network.cpu(), data)
    assert record["val_confusion"] == matrix.tolist()
    assert record["val_per_class"] == pytest.approx((matrix.diagonal() / matrix.sum(1)).tolist())
    assert "confusion" not in line_of(record)
    assert "confusion" not in trial.history.table().columns


def test_the_roc_curve_is_that_of_the_ranks(data):
    torch.manual_seed(0)
    target = torch.randint(2, (500,))
    scores = torch.randn(500) + 1.3 * target
    network = nn.Linear(1, 1)
    nn.init.ones_(network.weight)
    nn.init.zeros_(network.bias)
    bce = "binary_cross_entropy_with_logits"
    trial = Trial(network, None, bce, metrics=["roc", "auc"])
    found = trial.evaluate((scores.unsqueeze(1), target.float().unsqueeze(1)), batch_size=64)
    positive, negative = scores[target == 1], scores[target == 0]
    exact = (positive.unsqueeze(1) > negative).float().mean()
    assert found["auc"] == pytest.approx(exact.item(), abs=0.01)
    false, true = found["roc"]
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert true[100] == pytest.approx((positive > 0).float().mean().item())


def test_each_class_has_a_curve(network, data):
    found = of_classes(network, data, "roc", "auc").evaluate(data)
    assert torch.tensor(found["roc"]).shape == (3, 2, 201)
    assert 0 < found["auc"] < 1


def test_a_curve_cannot_be_watched(network, data):
    trial = of_classes(network, data, "confusion", callbacks=[EarlyStopping("confusion")])
    with pytest.raises(UsageError, match="a figure that is one number, got 'confusion'"):
        trial.run(1, verbose=False)


def test_outputs_that_are_no_classes_are_refused():
    trial = Trial(nn.Linear(4, 2), None, "mse", metrics=["confusion"])
    with pytest.raises(UsageError, match=r"one dimension more than the targets"):
        trial.evaluate((torch.randn(5, 4), torch.randn(5, 1)))


def test_a_confusion_table_names_the_classes(network, data):
    trial = of_classes(network, data)
    found = trial.confusion(names=["cat", "dog", "owl"])
    assert torch.equal(found.matrix, by_hand(network, data))
    assert found.table().columns == ["target", "cat", "dog", "owl", "recall", "precision"]
    assert f"accuracy {found.accuracy:.4g}" in str(found)
    with pytest.raises(UsageError, match="expected 3 names of classes, got 2"):
        trial.confusion(names=["cat", "dog"])


@pytest.mark.parametrize("kind", ["name", "module", "function"])
def test_the_worst_samples_have_the_largest_losses(network, data, kind):
    own = nn.functional.cross_entropy
    losses = {"name": "cross_entropy", "module": nn.CrossEntropyLoss()}
    loss = losses.get(kind, lambda output, target: own(output, target))
    trial = Trial(network, "adam", loss).with_generators(data, data)
    found = trial.worst(number=7, batch_size=50)
    each = own(network(data[0]), data[1], reduction="none")
    assert [answer.index for answer in found] == each.topk(7).indices.tolist()
    first = found[0]
    assert first.loss == pytest.approx(each.max().item())
    assert first.target == data[1][first.index].item()
    assert torch.equal(first.inputs[0], data[0][first.index])
    assert len(found.table().rows) == 7


def test_worst_says_what_it_cannot_do(network, data):
    with pytest.raises(UsageError, match="1 or more samples, got 0"):
        of_classes(network, data).worst(number=0)
    with pytest.raises(UsageError, match="a trial with its own loss"):
        Trial(network, step=lambda n, batch: n(batch[0]).sum()).worst(data)


def test_the_report_draws_the_best_runs_matrices():
    matrix, curve = [[5, 1], [2, 4]], [[0.0, 0.5, 1.0], [0.0, 0.9, 1.0]]
    runs = [
        Record(f"k{n}", {"lr": n}, "done", epochs=[{"epoch": 1, "loss": loss, **more}])
        for n, (loss, more) in enumerate(
            [(0.5, {"val_confusion": [[9, 9], [9, 9]]}), (0.1, {"val_confusion": matrix})]
        )
    ]
    runs[1].epochs[0]["roc"] = curve
    found = page_data(runs)["pictures"]
    assert [(each["run"], each["name"], each["kind"]) for each in found] == [
        (1, "val_confusion", "matrix"),
        (1, "roc", "curves"),
    ]
    assert found[0]["rows"] == matrix
    assert found[1]["rows"] == [curve]
    bad = [[1, 2], [3]], [["<script>", 1], [2, 3]], [[1] * 500] * 2, "x", {"a": 1}
    for value in bad:
        odd = Record("k", {}, "done", epochs=[{"epoch": 1, "loss": 1.0, "confusion": value}])
        assert page_data([odd])["pictures"] == []
