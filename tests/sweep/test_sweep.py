"""Sweeps, each run in a process of its own, whatever becomes of it."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import anydevice as ad
from anydevice import UsageError, system
from anydevice.sweep.experiment import shipped
from anydevice.sweep.processes import worker
from anydevice.sweep.processes.messages import Ended, Job, Resources
from anydevice.sweep.processes.pool import Processes
from anydevice.sweep.records.records import Record, folder_of, read
from anydevice.train.callbacks import Callback
from anydevice.train.callbacks.callback import everywhere

from . import experiments


def figures(results: ad.Results, name: str) -> list:
    return [record.last.get(name) for record in results]


def test_runs_are_done_in_processes_of_their_own_and_recorded(tmp_path: Path, capfd) -> None:
    runs = ad.grid(lr=[1, 2], epochs=[1, 3])
    results = ad.Sweep(experiments.squares, runs).run(tmp_path / "s", workers=2)
    assert [(r.parameters["lr"], len(r.epochs), r.state) for r in results] == [
        (1, 1, "done"),
        (1, 3, "done"),
        (2, 1, "done"),
        (2, 3, "done"),
    ]
    record = results[1]
    assert [epoch["epoch"] for epoch in record.epochs] == [1, 2, 3]
    assert record.seconds >= sum(epoch["seconds"] for epoch in record.epochs)
    assert (record.device, record.virtual, record.seed) == ("cpu", False, 0)
    assert record.peak_bytes > 2**20
    assert record.versions["torch"] == torch.__version__
    assert results.complete
    said = capfd.readouterr().out.splitlines()
    assert said[0].startswith("4 runs in")
    assert said[4].startswith("4/4  lr=")
    assert said[5].startswith("4 runs done in")


def test_what_is_done_is_kept_and_random_numbers_are_the_same_again(tmp_path: Path) -> None:
    runs = ad.grid(lr=[1, 2, 3])
    first = ad.Sweep(experiments.squares, runs[:2]).run(tmp_path / "s", verbose=False)
    grown = ad.Sweep(experiments.squares, runs).run(tmp_path / "s", verbose=False)
    assert grown[:2] == first[:]
    afresh = ad.Sweep(experiments.squares, runs).run(tmp_path / "t", verbose=False)
    assert figures(afresh, "loss") == figures(grown, "loss")
    other = ad.Sweep(experiments.squares, runs, seed=1).run(tmp_path / "u", verbose=False)
    assert figures(other, "loss") != figures(grown, "loss")


def test_an_experiment_may_return_a_dictionary_or_a_trials_history(tmp_path: Path) -> None:
    results = ad.Sweep(experiments.dictionary, ad.grid(lr=[1])).run(tmp_path / "d", verbose=False)
    assert (results[0].last["loss"], results[0].last["accuracy"]) == (1, 0.5)
    results = ad.Sweep(experiments.trial, ad.grid(seed=[1, 2])).run(tmp_path / "t", verbose=False)
    assert [list(epoch) for epoch in results[0].epochs] == [
        ["epoch", "loss", "accuracy", "learning_rate", "grad_norm", "samples_per_second", "seconds"]
    ] * 2
    assert results[0].last["loss"] != results[1].last["loss"]


def test_a_run_trains_by_itself_where_torchrun_has_started_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    results = ad.Sweep(experiments.trial, ad.grid(device=["cpu"])).run(tmp_path / "s")
    assert results.complete, results


def test_a_run_that_fails_in_whatever_way_is_one_row(tmp_path: Path) -> None:
    kinds = ["raise", "kill", "segfault", "exit", "return", "yield", "memory", "nothing"]
    kinds += ["exit at once", "real-time signal"]
    sweep = ad.Sweep(experiments.trouble, ad.grid(what=kinds))
    results = sweep.run(tmp_path / "s", workers=2, verbose=False)
    error = {record.parameters["what"]: record.error for record in results}
    assert [r.parameters["what"] for r in results if r.state == "done"] == ["nothing"]
    assert "ValueError: the trouble that was asked for" in error["raise"]
    assert error["raise"].startswith("Traceback")
    assert "experiments.py" in error["raise"]
    assert "worker.py" not in error["raise"]
    assert error["kill"].startswith("the run's process was killed by SIGKILL")
    assert error["kill"].endswith("about to kill")
    assert "killed by SIGSEGV" in error["segfault"]
    assert "experiments.py" in error["segfault"]  # where it was, by faulthandler
    assert "exit code 3" in error["exit"]
    assert "exit code 64" in error["exit at once"]
    assert f"killed by signal {signal.SIGRTMIN + 1}" in error["real-time signal"]
    assert "returns a history or a dictionary" in error["return"]
    assert "records that are dictionaries, got 3.5" in error["yield"]
    assert "out of memory" in error["memory"]
    again = sweep.run(tmp_path / "s", verbose=False)
    assert again[:] == results[:]  # a failed run is not tried again unless that is asked for


def test_failed_runs_are_tried_again_when_asked(tmp_path: Path) -> None:
    sweep = ad.Sweep(experiments.checkpointed, [{"crash": True}, {"crash": False}])
    crashed = sweep.run(tmp_path / "s", verbose=False)
    assert [record.state for record in crashed] == ["failed", "done"]
    again = sweep.run(tmp_path / "s", retry_failed=True, verbose=False)
    assert again.complete
    assert figures(again, "loss")[0] == figures(again, "loss")[1]  # on from its checkpoint
    assert "resuming from" in (folder_of(tmp_path / "s", again[0].key) / "output.txt").read_text()


def test_each_run_has_a_folder_and_its_share_of_the_threads(tmp_path: Path) -> None:
    results = ad.Sweep(experiments.where, ad.grid(seed=[3, 4], device=["cpu"])).run(
        tmp_path / "s", workers=2, verbose=False
    )
    for record in results:
        mine = folder_of(tmp_path / "s", record.key) / "mine.txt"
        assert mine.read_text() == str(record.seed)
    assert figures(results, "threads") == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2
    pids = figures(results, "pid")
    assert len({os.getpid(), *pids}) == 3


def test_virtual_gpus_are_inherited_a_gpu_each_or_a_share(tmp_path: Path) -> None:
    with ad.virtual_gpus(2, "t4"):
        runs = ad.grid(n=[1, 2], device=["cuda"])
        each = ad.Sweep(experiments.where, runs).run(tmp_path / "each", verbose=False)
        shares = ad.Sweep(experiments.where, runs).run(
            tmp_path / "shares", workers=3, verbose=False
        )
    assert sorted(figures(each, "gpu")) == [0, 1]
    assert [r.device for r in each] == [f"cuda:{gpu}" for gpu in figures(each, "gpu")]
    assert {(r.device_name, r.virtual) for r in each} == {("Tesla T4", True)}
    assert all(record.peak_bytes for record in each)
    assert figures(each, "limit") == [1.0, 1.0]
    assert figures(shares, "limit") == [0.5, 0.5]


@pytest.mark.fresh
def test_a_new_python_has_the_virtual_gpus_too(tmp_path: Path) -> None:
    with ad.virtual_gpus(2, "t4"):
        named = ad.Sweep(experiments.where, [{"device": "cuda:1"}])
        (record,) = named.run(tmp_path, verbose=False)
    assert record.device == "cuda:1"


def test_weak_runs_stop_early_by_halving(tmp_path: Path) -> None:
    sweep = ad.Sweep(experiments.graded, ad.grid(quality=[9, 1, 2, 8, 10]))
    stop = ad.halving("accuracy", first=1, factor=3)
    results = sweep.run(tmp_path / "s", stop=stop, verbose=False)
    assert [(r.parameters["quality"], r.state, len(r.epochs)) for r in results] == [
        (9, "done", 9),
        (1, "stopped", 1),
        (2, "stopped", 1),
        (8, "stopped", 3),
        (10, "done", 9),
    ]
    assert all((folder_of(tmp_path / "s", r.key) / "closed").exists() for r in results)
    again = ad.Sweep(experiments.graded, ad.grid(quality=[1]))
    assert again.run(tmp_path / "t", stop=stop, verbose=False)[0].state == "done"


def test_halving_by_a_figure_that_is_not_there_is_told(tmp_path: Path) -> None:
    sweep = ad.Sweep(experiments.graded, ad.grid(quality=[9]))
    results = sweep.run(tmp_path / "s", stop=ad.halving("acuracy"), verbose=False)
    assert "expected the figure 'acuracy'" in results[0].error


@pytest.mark.fresh
@pytest.mark.skipif(not system.LINUX, reason="each run is a new Python there")
def test_from_the_third_run_on_what_optimizers_import_is_there_already(tmp_path: Path) -> None:
    results = ad.Sweep(experiments.imported, ad.grid(number=[1, 2, 3, 4])).run(tmp_path / "s")
    assert figures(results, "there") == [False, False, True, True]


def test_a_run_ordered_of_a_server_that_has_just_ended_is_a_failed_one(tmp_path: Path) -> None:
    runs = tuple(ad.grid(lr=[1]))
    job = Job(runs, tmp_path, shipped(experiments.squares), {}, seed=0, resources=Resources())
    processes = Processes("anydevice.sweep.processes.worker")
    processes._server.kill()
    processes._server.wait()
    number = processes.start(job)
    assert list(processes.reports(None)) == [(number, Ended(number, -signal.SIGKILL))]
    processes.close()


def test_a_device_that_is_not_here_is_told_before_the_first_run(tmp_path: Path) -> None:
    sweep = ad.Sweep(experiments.where, ad.grid(device=["cpu", "cuda:7"]))
    with pytest.raises(UsageError, match=r"the parameter device: .*cuda:7.* is not here"):
        sweep.run(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_damaged_record_is_left_and_the_other_runs_are_done(tmp_path: Path, caplog) -> None:
    sweep = ad.Sweep(experiments.dictionary, ad.grid(lr=[1, 2]))
    path = folder_of(tmp_path, sweep.runs[0].key) / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (tmp_path / "sweep.json").write_text(
        '{"format": "anydevice sweep 1", "parameters": ["lr"], "experiment": null}'
    )
    results = sweep.run(tmp_path, verbose=False)
    assert [record.parameters["lr"] for record in results] == [2]
    assert not results.complete
    assert path.read_text() == "{"
    assert f"Remove {path.parent}" in caplog.text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": 0}, "1 or more workers, got 0"),
        ({"gpus": 1.5}, "a share such as 0.5 or a whole number, got 1.5"),
    ],
)
def test_impossible_orders_are_told(tmp_path: Path, options: dict, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        ad.Sweep(experiments.dictionary, ad.grid(lr=[1])).run(tmp_path / "s", **options)


def test_a_local_function_needs_cloudpickle_and_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
    with pytest.raises(UsageError, match=r"that another process can import, got .*lambda"):
        ad.Sweep(lambda run: {"loss": 1.0}, ad.grid(lr=[1])).run(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_local_function_goes_by_cloudpickle(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    bias = 0.25
    sweep = ad.Sweep(lambda run: {"loss": run.lr + bias}, ad.grid(lr=[1]))
    assert figures(sweep.run(tmp_path / "s", verbose=False), "loss") == [1.25]


def test_a_loop_of_ones_own_is_tracked(tmp_path: Path) -> None:
    sweep = ad.Sweep(None, ad.grid(lr=[1.0, 2.0, 3.0]))
    for run in sweep.left(tmp_path):
        try:
            with sweep.track(run, tmp_path) as t:
                for _ in range(2):
                    for size in (3, 1):
                        loss = torch.tensor(run.lr * size, requires_grad=True)
                        t.batch(loss=loss, accuracy=size / 4, size=size)
                    if run.lr == 2:
                        raise ValueError("two")
                    t.epoch(extra=torch.tensor(7))
        except ValueError:
            pass
    first, second, third = sweep.results(tmp_path)
    assert [record.state for record in (first, second, third)] == ["done", "failed", "done"]
    assert "ValueError: two" in second.error
    assert (
        first.epochs[0].items()
        >= {
            "epoch": 1,
            "loss": (3 * 3 + 1) / 4,
            "accuracy": (0.75 * 3 + 0.25) / 4,
            "extra": 7,
        }.items()
    )
    assert third.last["loss"] == 3 * first.last["loss"]
    assert sweep.left(tmp_path) == []
    with (
        pytest.raises(UsageError, match="a record that is done"),
        sweep.track(first_run(sweep), tmp_path),
    ):
        pass


def first_run(sweep: ad.Sweep) -> ad.Run:
    return sweep.runs[0]


def test_a_run_that_somebody_has_is_refused_to_a_second_loop(tmp_path: Path) -> None:
    sweep = ad.Sweep(None, ad.grid(lr=[1]))
    with sweep.track(sweep.runs[0], tmp_path) as t:
        with pytest.raises(UsageError, match="got one under way"):
            sweep.track(sweep.runs[0], tmp_path).__enter__()
        t.epoch(loss=1)
    record = read(tmp_path, sweep.runs[0].key)
    assert isinstance(record, Record)
    assert record.state == "done"


def test_a_trial_that_the_program_has_elsewhere_is_not_in_a_runs_record(monkeypatch) -> None:
    seen = []

    class Recorder(Callback):
        stopped = False

        def on_end_epoch(self, trial):
            seen.append(trial.history[-1]["loss"])

        def begin(self):
            seen.append("begins")

        def take(self, result):
            everywhere.remove(self)

        def end(self, error):
            assert error is None

    def trained(run=None):
        x = torch.ones(4, 2)
        trial = ad.Trial(torch.nn.Linear(2, 1), "sgd", "mse").with_generators((x, x[:, :1]))
        return trial.run(1, verbose=False)

    def unpacked():  # which runs the program up to its sweep
        trained()
        return trained

    monkeypatch.setattr(worker, "take_resources", lambda resources: None)
    job: Any = SimpleNamespace(resources=None, experiment=SimpleNamespace(unpacked=unpacked))
    tracker: Any = Recorder()
    worker.carry_out(job, ad.grid(lr=[1])[0], tracker)
    del worker.trackers[ad.grid(lr=[1])[0].key]
    assert [type(each) for each in seen] == [str, float]
