"""A sweep on a Ray cluster: `make test-ray`, since Ray is large."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import anydevice as ad
from anydevice.sweep.records.records import read_all

needs_ray = pytest.mark.skipif(not find_spec("ray"), reason="ray is not installed: make test-ray")


def experiment(run: Any) -> Any:
    x = torch.randn(32, 4)
    trial = ad.Trial(torch.nn.Linear(4, 2), lambda p: torch.optim.SGD(p, lr=run.lr), "mse")
    return trial.with_generators((x, x[:, :2]), batch_size=8).run(2)


def fails(run: Any) -> Any:
    if run.lr == 0.1:
        raise ValueError("a bad learning rate")
    return {"loss": run.lr}


def killed_once(run: Any) -> Iterator[dict[str, float]]:
    yield {"loss": 1.0}
    if run.lr == 0.1 and not (run.folder / "killed").exists():
        (run.folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield {"loss": 0.5}


def killed_always(run: Any) -> Iterator[dict[str, float]]:
    yield {"loss": 1.0}
    if run.lr == 0.1:
        os.kill(os.getpid(), signal.SIGKILL)


def shares(run: Any) -> Any:
    import ray

    return {"gpus": ray.get_runtime_context().get_assigned_resources().get("GPU", 0.0)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    here = str(Path(__file__).parents[2])
    path = os.pathsep.join([here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {"env_vars": {"PYTHONPATH": path}}
    ray.init(
        num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False,
        runtime_env=environment,
    )  # fmt: skip
    yield
    ray.shutdown()


def done(folder: Path, what: Any, **how: Any) -> dict[float, Any]:
    runs = ad.grid(lr=[0.1, 0.2], **how.pop("more", {}))
    ad.Sweep(what, runs).run(folder, engine="ray", verbose=False, **how)
    records, damaged = read_all(folder)
    assert not damaged
    return {record.parameters["lr"]: record for record in records}


@needs_ray
@pytest.mark.usefixtures("cluster")
class TestRay:
    def test_runs_end_as_they_do_here(self, tmp_path: Path) -> None:
        there = done(tmp_path / "ray", experiment)
        ad.Sweep(experiment, ad.grid(lr=[0.1, 0.2])).run(tmp_path / "here", verbose=False)
        for record in read_all(tmp_path / "here")[0]:
            other = there[record.parameters["lr"]]
            assert other.state == record.state == "done"
            assert [e["loss"] for e in other.epochs] == pytest.approx(
                [e["loss"] for e in record.epochs]
            )

    def test_a_run_that_fails_is_one_failed_row(self, tmp_path: Path) -> None:
        records = done(tmp_path, fails)
        assert records[0.1].state == "failed"
        assert "a bad learning rate" in records[0.1].error
        assert records[0.2].state == "done"

    def test_a_run_whose_process_is_killed_is_begun_again(self, tmp_path: Path) -> None:
        records = done(tmp_path, killed_once)
        assert [e["loss"] for e in records[0.1].epochs] == [1.0, 0.5]
        assert {record.state for record in records.values()} == {"done"}

    def test_a_run_that_is_always_killed_fails_and_the_others_do_not(self, tmp_path: Path) -> None:
        records = done(tmp_path, killed_always)
        assert records[0.1].state == "failed"
        assert records[0.2].state == "done"

    def test_what_is_done_is_kept(self, tmp_path: Path) -> None:
        first, again = done(tmp_path, experiment), done(tmp_path, experiment)
        assert first[0.1].started == again[0.1].started

    def test_a_share_of_a_gpu_is_a_resource_of_ray(self, tmp_path: Path) -> None:
        records = done(tmp_path / "share", shares, gpus=0.5)
        assert records[0.1].last["gpus"] == 0.5
        records = done(tmp_path / "none", shares, more={"device": ["cpu"]})
        assert records[0.1].last["gpus"] == 0


@pytest.mark.skipif(bool(find_spec("ray")), reason="ray is installed")
def test_without_ray_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ad.UsageError, match=r"anydevice\[ray\]"):
        done(tmp_path, experiment)


def test_another_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ad.UsageError, match="expected engine='ray'"):
        ad.Sweep(experiment, ad.grid(lr=[0.1])).run(tmp_path, engine="dask")
