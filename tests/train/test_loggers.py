"""Histories in the trackers of others, read back from what they wrote without a network."""

import json
import struct
import zipfile

import pytest

from anydevice.errors import UsageError
from anydevice.train import callbacks
from anydevice.train.callbacks import Logger
from anydevice.train.trial import Trial


def trained(network, data, logger, epochs=2):
    trial = Trial(network, "adam", "cross_entropy", metrics=["loss", "confusion"])
    trial.callbacks.append(logger)
    trial.with_options(clip_norm=1.0).with_generators(data, data).run(epochs, verbose=False)
    return trial


def test_a_logger_gets_settings_and_figures_and_is_closed(network, data):
    heard = []

    class Hears(Logger):
        def begin(self, settings):
            heard.append(settings)

        def log(self, figures, epoch):
            heard.append((epoch, figures))

        def close(self):
            heard.append("closed")

    trial = trained(network, data, Hears())
    settings, (first, figures), (second, _), end = heard
    assert settings["optimizer"] == "Adam"
    assert settings["clip_norm"] == "1.0"
    assert "compile" not in settings
    assert (first, second, end) == (1, 2, "closed")
    assert figures["val_loss"] == trial.history[0]["val_loss"]
    assert "confusion" not in figures


@pytest.mark.parametrize("name", ["WandB", "MLflow", "Comet", "Aim"])
def test_a_package_that_is_missing_is_a_sentence(network, data, name, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("anydevice.train.callbacks.loggers.import_module", missing)
    with pytest.raises(UsageError, match=rf"pip install 'anydevice\[{name.lower()}\]'"):
        trained(network, data, getattr(callbacks, name)())


def records_of(path):
    """The records of a .wandb file, which is a log of LevelDB after a head of seven bytes."""
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield whole
            whole = b""


def test_wandb_offline(network, data, tmp_path):
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    trial = trained(network, data, callbacks.WandB("mine", mode="offline", folder=tmp_path))
    wandb.teardown()  # its service writes the last records as it ends
    (path,) = tmp_path.rglob("*.wandb")
    seen = []
    for found in records_of(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(found)
        for item in record.history.item:
            print(item)
            if (item.key or "/".join(item.nested_key)) == "val_loss":
                seen.append(json.loads(item.value_json))
    assert seen == pytest.approx([record["val_loss"] for record in trial.history])


def test_mlflow_in_a_file(network, data, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/runs.db"
    trial = trained(network, data, callbacks.MLflow("mine", "first", uri=uri))
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["optimizer"] == "Adam"
    seen = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "val_loss")}
    assert seen == {record["epoch"]: record["val_loss"] for record in trial.history}


def test_comet_offline(network, data, tmp_path):
    pytest.importorskip("comet_ml")
    trial = trained(network, data, callbacks.Comet("mine", "first", folder=tmp_path))
    (path,) = tmp_path.glob("*.zip")
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("messages.json").decode().splitlines()
    metrics = [m["payload"]["metric"] for m in map(json.loads, lines) if m["type"] == "metric_msg"]
    seen = [m["metricValue"] for m in metrics if m["metricName"] == "val_loss"]
    assert [float(value) for value in seen] == [r["val_loss"] for r in trial.history]


def test_aim_in_a_folder(network, data, tmp_path):
    aim = pytest.importorskip("aim")
    trial = trained(network, data, callbacks.Aim("mine", folder=tmp_path))
    (key,) = aim.Repo(str(tmp_path)).list_all_runs()
    run = aim.Run(key, repo=str(tmp_path))
    assert run["trial"]["optimizer"] == "Adam"
    (metric,) = (each for each in run.metrics() if each.name == "val_loss")
    assert metric.context.to_dict() == {"subset": "val"}
    assert list(metric.values.values_list()) == [r["val_loss"] for r in trial.history]
