"""Runs that Optuna suggests."""

import importlib.util

import pytest

import anydevice as ad
from anydevice.errors import UsageError

needs_optuna = pytest.mark.skipif(not importlib.util.find_spec("optuna"), reason="optuna")


def experiment(run):
    for epoch in range(1, 5):
        yield {"loss": (run.x - 0.3) ** 2 + 1 / epoch}


def test_suggestions_that_make_no_sense_are_refused():
    for wrong, said in [
        ({"count": 0, "x": [1]}, "1 or more runs to suggest, got 0"),
        ({"count": 3}, "expected parameters such as lr="),
        ({"count": 3, "best": "least", "x": [1]}, "best as 'min' or 'max'"),
        ({"count": 3, "epoch": [1]}, "another name than 'epoch'"),
    ]:
        with pytest.raises(UsageError, match=said):
            ad.suggest(**wrong)
    sweep = ad.Sweep(experiment, ad.suggest(2, x=[1]))
    with pytest.raises(UsageError, match="a sweep of known runs to plan"):
        sweep.plan()


@pytest.mark.skipif(bool(importlib.util.find_spec("optuna")), reason="optuna is here")
def test_without_optuna_it_says_what_to_install(tmp_path):
    sweep = ad.Sweep(experiment, ad.suggest(2, "loss", x=ad.uniform(0, 1)))
    with pytest.raises(UsageError, match="pip install optuna"):
        sweep.run(tmp_path / "runs", verbose=False)


@needs_optuna
def test_suggestions_come_close_to_the_best_and_go_on_where_they_were(tmp_path):
    space = {"x": ad.uniform(-5, 5), "kind": ["a", "b"]}
    first = ad.Sweep(experiment, ad.suggest(12, "loss", **space)).run(tmp_path, verbose=False)
    assert len(first) == 12
    assert first.complete
    more = ad.Sweep(experiment, ad.suggest(24, "loss", **space)).run(tmp_path, verbose=False)
    assert [record.key for record in more[:12]] == [record.key for record in first]
    assert abs(more.best("loss").parameters["x"] - 0.3) < 1


@needs_optuna
def test_a_pruner_stops_weak_runs(tmp_path):
    import optuna

    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=0)
    space = ad.suggest(10, "loss", pruner=pruner, x=ad.uniform(-5, 5))
    found = ad.Sweep(experiment, space).run(tmp_path, verbose=False)
    states = [record.state for record in found]
    assert "stopped" in states
    assert "done" in states
    assert min(found, key=lambda r: r.last["loss"]).state == "done"
