"""Tables and other outputs of records that are already there."""

import csv
import json
import math
from pathlib import Path

import pytest

import anydevice as ad
from anydevice import UsageError
from anydevice.sweep.grid import Run
from anydevice.sweep.ranking import more_is_better
from anydevice.sweep.records.records import Record, Sheet, enter, write
from anydevice.tables import MANY, plain_text


def a_folder(folder: Path, count: int = 0) -> Path:
    rows = [
        (0.1, "cuda", [0.5, 0.7], "done"),
        (0.01, "cuda", [0.6, 0.9], "done"),
        (0.001, "cuda", [0.2], "failed"),
        (0.1, "cpu", [0.5, 0.8], "done"),
        (0.01, "cpu", [math.nan], "done"),
    ]
    rows += [(float(i), "cpu", [i / count], "done") for i in range(1, count)]
    keys = []
    for lr, device, accuracies, state in rows:
        run = Run({"lr": lr, "device": device})
        keys.append(run.key)
        epochs = [
            {"epoch": n, "loss": 1 - a, "accuracy": a, "seconds": 0.5}
            for n, a in enumerate(accuracies, 1)
        ]
        error = "Traceback …\n  File …\nValueError: <b>" if state == "failed" else None
        (folder / "runs" / run.key).mkdir(parents=True)
        write(folder, Record(run.key, run.parameters, state, error, epochs, seconds=2.0))
    enter_after(folder, keys)
    return folder


def enter_after(folder: Path, keys: list[str]) -> None:
    (folder / "sweep.json").write_text(
        json.dumps({"format": "anydevice sweep 1", "parameters": [], "experiment": None})
    )
    enter(folder, Sheet([], None, keys))


def test_a_table_has_the_runs_in_order_and_the_best_of_each_device_marked(tmp_path: Path) -> None:
    assert plain_text(ad.Results.of(a_folder(tmp_path)).table()).splitlines() == [
        " run  state   epoch  loss  accuracy  epoch duration  run duration     lr  device",
        " ───────────────────────────────────────────────────────────────────────────────",
        "   1  done        2   0.3       0.7          500 ms           2 s    0.1  cuda",
        "   2  done        2   0.1      0.9*          500 ms           2 s   0.01  cuda",
        "   3  failed      1   0.8       0.2          500 ms           2 s  0.001  cuda",
        "   4  done        2   0.2      0.8*          500 ms           2 s    0.1  cpu",
        "   5  done        1   nan       nan          500 ms           2 s   0.01  cpu",
    ]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("accuracy", [2, 4, 1, 3, 5]),  # the best first, what is no number last
        ("-accuracy", [3, 1, 4, 2, 5]),
        ("loss", [2, 4, 1, 3, 5]),
        ("lr", [3, 2, 5, 1, 4]),
        ("-lr", [1, 4, 2, 5, 3]),
        ("device", [4, 5, 1, 2, 3]),
        ("epoch", [3, 5, 1, 2, 4]),
    ],
)
def test_a_table_is_sorted_by_any_column(tmp_path: Path, sort: str, order: list[int]) -> None:
    assert [row["run"] for row in ad.Results.of(a_folder(tmp_path)).rows(sort)] == order


def test_an_unknown_column_is_told(tmp_path: Path) -> None:
    results = ad.Results.of(a_folder(tmp_path))
    with pytest.raises(UsageError, match="got 'acuracy': did you mean accuracy"):
        results.table(sort="acuracy")
    with pytest.raises(UsageError, match="expected a figure, got 'lr': known are loss, accuracy"):
        results.best("lr")


def test_many_rows_look_alike_but_quicker(tmp_path: Path) -> None:
    table = ad.Results.of(a_folder(tmp_path, count=MANY + 10)).table()
    assert len(table.rows) > MANY
    many = plain_text(table).splitlines()
    table.rows = table.rows[:MANY]
    few = plain_text(table).splitlines()
    assert many[0].split() == few[0].split()
    assert [line.split() for line in many[2 : MANY + 2]] == [line.split() for line in few[2:]]


def test_the_best_run_and_the_failed_ones(tmp_path: Path) -> None:
    results = ad.Results.of(a_folder(tmp_path))
    assert results.best().parameters == {"lr": 0.01, "device": "cuda"}
    assert results.best("loss") == results[1]
    assert [record.parameters["lr"] for record in results.failed] == [0.001]
    assert "run 3 failed: ValueError: <b>" in str(results)


def test_html_escapes_what_users_wrote(tmp_path: Path) -> None:
    run = Run({"name": "<script>"})
    write(tmp_path, Record(run.key, run.parameters, "done"))
    enter_after(tmp_path, [run.key])
    page = ad.Results.of(tmp_path)._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    failed = ad.Results.of(a_folder(tmp_path / "failed"))._repr_html_()
    assert "<p>run 3 failed: ValueError: &lt;b&gt;</p>" in failed


def test_csv_has_a_line_an_epoch_and_json_everything(tmp_path: Path) -> None:
    results = ad.Results.of(a_folder(tmp_path / "s"))
    with results.to_csv(tmp_path / "t.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["run"] for line in lines] == ["1", "1", "2", "2", "3", "4", "4", "5"]
    assert lines[1] == {
        "run": "1",
        "state": "done",
        "epoch": "2",
        "loss": str(1 - 0.7),
        "accuracy": "0.7",
        "epoch duration": "0.5",
        "run duration": "2.0",
        "lr": "0.1",
        "device": "cuda",
    }
    everything = json.loads(results.to_json(), parse_constant=pytest.fail)
    assert [run["state"] for run in everything["runs"]] == [
        "done",
        "done",
        "failed",
        "done",
        "done",
    ]
    assert everything["runs"][4]["epochs"][0]["loss"] == "NaN"


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames(tmp_path: Path, package: str) -> None:
    results = ad.Results.of(a_folder(tmp_path))
    make = getattr(results, f"to_{package}")
    try:
        __import__(package)
    except ImportError:
        with pytest.raises(UsageError, match=f"pip install {package}"):
            make()
        return
    assert make().shape == (5, 9)
    assert make(every_epoch=True).shape == (8, 9)


def test_tensorboard_has_one_run_for_each_run_with_its_hyperparameters(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = ad.Results.of(a_folder(tmp_path / "s")).to_tensorboard(tmp_path / "t")
    runs = sorted(folder.iterdir())
    assert len(runs) == 5
    assert not [path for run in runs for path in run.iterdir() if path.is_dir()]
    events = EventAccumulator(str(runs[0])).Reload()
    assert [event.value for event in events.Scalars("accuracy")] == pytest.approx([0.5, 0.7])
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_a_parameter_named_like_a_figure_stands_beside_it(tmp_path: Path) -> None:
    run = Run({"loss": "mse"})
    write(tmp_path, Record(run.key, run.parameters, "done", epochs=[{"epoch": 1, "loss": 0.5}]))
    enter_after(tmp_path, [run.key])
    assert ad.Results.of(tmp_path).rows()[0].items() >= {"loss": 0.5, "loss (given)": "mse"}.items()


@pytest.mark.parametrize("name", ["accuracy", "val_acc", "top5", "f1", "samples_per_second"])
def test_more_of_these_is_better(name: str) -> None:
    assert more_is_better(name)


@pytest.mark.parametrize(
    "name",
    ["loss", "val_loss", "mse", "error", "seconds", "perplexity", "top5_error", "accumulated_loss"],
)
def test_less_of_these_is_better(name: str) -> None:
    assert not more_is_better(name)


def with_records(folder: Path, *records: Record) -> ad.Results:
    for record in records:
        (folder / "runs" / record.key).mkdir(parents=True)
        write(folder, record)
    enter_after(folder, [record.key for record in records])
    return ad.Results.of(folder)


def test_a_run_on_a_virtual_gpu_says_so(tmp_path: Path) -> None:
    gpu = Record("a" * 16, {"device": "cuda"}, "done", device="cuda:0", virtual=True)
    cpu = Record("b" * 16, {"device": "cpu"}, "done", device="cpu")
    rows = with_records(tmp_path, gpu, cpu).rows()
    assert {row["ran on"] for row in rows} == {"cuda:0 (virtual)", "cpu"}


def test_without_a_virtual_gpu_no_column_says_where(tmp_path: Path) -> None:
    results = with_records(tmp_path, Record("a" * 16, {}, "done", device="cpu"))
    assert "ran on" not in results.rows()[0]


def test_what_compares_runs_leaves_out_how_each_was_doing(tmp_path: Path) -> None:
    epoch = {"epoch": 1, "loss": 1.0, "learning_rate": 0.1, "grad_norm": 2.0, "seconds": 1.0}
    record = Record("a" * 16, {"learning_rate": 0.3}, "done", epochs=[epoch])
    results = with_records(tmp_path, record)
    assert results.rows()[0]["learning_rate"] == 0.3  # as it was given
    assert "grad_norm" not in results.rows()[0]
    (row,) = results.rows(every_epoch=True)
    assert (row["learning_rate"], row["learning_rate (measured)"], row["grad_norm"]) == (
        0.3,
        0.1,
        2,
    )


def test_that_all_runs_failed_is_said_with_the_reason(tmp_path: Path) -> None:
    error = "Traceback\nValueError: no data"
    failed = [Record(key * 16, {}, "failed", error) for key in "ab"]
    with pytest.raises(UsageError, match="got all 2 failed, the first with: ValueError: no data"):
        with_records(tmp_path, *failed).best()
