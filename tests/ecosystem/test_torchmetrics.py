"""torchmetrics, each metric that plain numbers can be given to."""

import pytest

from tests.ecosystem.running import both

pytest.importorskip("torchmetrics")


@pytest.mark.long
def test_every_metric_measures_what_it_measures_on_the_cpu() -> None:
    there, here = both("torchmetrics_all.py")
    assert len(there["measures"]) > 120
    assert there == here
