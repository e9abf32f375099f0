"""Every metric of torchmetrics that plain numbers can be given to: python torchmetrics_all.py cuda.

Half of the data is measured at a time; in between, the metric is pickled and cloned.
"""

import inspect
import json
import pickle
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torchmetrics import (
    Accuracy,
    F1Score,
    Metric,
    MetricCollection,
    aggregation,
    classification,
    clustering,
    nominal,
    regression,
    retrieval,
)

warnings.filterwarnings("ignore")
device = sys.argv[1]
N = 200
torch.manual_seed(0)
scores, answers, groups = torch.rand(N), torch.randint(2, (N,)), torch.randint(4, (N,))
of_four, class_of_four = torch.rand(N, 4).softmax(-1), torch.randint(4, (N,))
labels_of_four, ratings = torch.randint(2, (N, 4)), torch.ones(N, 4, dtype=torch.long)
distribution, values = torch.rand(N, 4).softmax(-1), torch.randn(N)

OPTIONS = {"num_classes": 4, "num_labels": 4, "num_groups": 2, "beta": 0.5}
OPTIONS |= {f"min_{of}": 0.5 for of in ("recall", "precision", "sensitivity", "specificity")}
OPTIONS |= {"p": 3, "threshold": 0.5}
ON_ROWS = {"KLDivergence", "JensenShannonDivergence", "CosineSimilarity"}
ON_POINTS = {"CalinskiHarabaszScore", "DaviesBouldinScore", "DunnIndex"}
LEFT_OUT = {"BaseAggregator", "Running", "ClusterAccuracy"}  # the last wants one more package


def data(module: Any, name: str) -> tuple[Tensor, ...] | None:
    """What a metric measures."""
    if name in LEFT_OUT:
        return None
    if module is classification:
        fair = (answers.flip(0),) if "Group" in name or "Fairness" in name else ()
        kinds = {
            "Binary": (scores, answers, *fair),
            "Multiclass": (of_four, class_of_four),
            "Multilabel": (of_four, labels_of_four),
        }
        return next((kinds[kind] for kind in kinds if name.startswith(kind)), None)
    if module is regression:
        if name == "ContinuousRankedProbabilityScore":
            return (of_four, values)
        return (of_four, distribution) if name in ON_ROWS else (scores, scores.roll(1))
    if module is retrieval:
        return (scores, answers, groups)
    if module is aggregation:
        return (values,)
    if name == "FleissKappa":
        return (ratings,)
    return (of_four, class_of_four) if name in ON_POINTS else (class_of_four, groups)


def cases() -> Iterator[tuple[str, Metric, tuple[Tensor, ...]]]:
    """Each metric and what it measures."""
    for module in (classification, regression, retrieval, aggregation, clustering, nominal):
        for name, kind in sorted(vars(module).items()):
            if not inspect.isclass(kind) or not issubclass(kind, Metric) or kind is Metric:
                continue
            if measured := data(module, name):
                parameters = inspect.signature(kind).parameters.values()
                wanted = {it.name for it in parameters if it.default in (it.empty, None)}
                options = {key: OPTIONS[key] for key in OPTIONS if key in wanted}
                yield name, kind(**options), measured


def numbers(result: Any) -> Any:
    """Tensors as lists, whatever they are in."""
    if isinstance(result, Tensor):
        assert result.device.type == device, result.device
        return result.tolist()
    if isinstance(result, dict):
        return {key: numbers(value) for key, value in result.items()}
    return [numbers(value) for value in result]


measures = {}
for name, metric, measured in cases():
    metric = metric.to(device)
    metric.update(*[tensor[: N // 2].to(device) for tensor in measured])
    metric = pickle.loads(pickle.dumps(metric)).clone()
    metric.update(*[tensor[N // 2 :].to(device) for tensor in measured])
    measures[name] = numbers(metric.compute())

both = [Accuracy("multiclass", num_classes=4), F1Score("multiclass", num_classes=4)]
collection = MetricCollection(both).to(device)
chunks = zip(of_four.to(device).chunk(4), class_of_four.to(device).chunk(4), strict=True)
steps = [numbers(collection(*chunk)) for chunk in chunks]
print(json.dumps({"measures": measures, "steps": steps, "whole": numbers(collection.compute())}))
