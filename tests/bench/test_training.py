from pathlib import Path

import pytest

from anydevice.bench.training import training


@pytest.mark.long
def test_the_small_network_is_trained_with_each_setting(tmp_path: Path) -> None:
    results = training(["cpu"], tmp_path, batch_sizes=[1000], workers=[0, 1], images=500)
    assert [r.parameters["num_workers"] for r in results.records] == [0, 1]
    assert {r.state for r in results.records} == {"done"}
    assert "epoch duration" in results.table().columns
