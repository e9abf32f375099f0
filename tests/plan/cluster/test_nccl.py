"""How long collectives take, and by which algorithm: NCCL's published rules."""

from itertools import pairwise
from pathlib import Path

import pytest

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.plan.cluster import nccl
from anydevice.plan.cluster.networks import Network, catalogue, network
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.work import Exchange

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send")


def ranks(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def choice(net: Network, kind: str, size: int, count: int) -> nccl.Choice:
    return nccl.choice(kind, size, net.path(ranks(count)))


@pytest.fixture
def h100() -> Network:
    return network(card("h100"), 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["h100", "a100-80gb", "v100-32gb", "t4", "b200", "rtx-4090"])
@pytest.mark.parametrize("count", [2, 8, 16, 256])
def test_more_bytes_take_longer(kind: str, name: str, count: int) -> None:
    net = network(card(name), 8)
    times = [choice(net, kind, 1 << power, count).seconds for power in range(8, 34, 2)]
    assert times[0] > 0
    assert all(a <= b * 1.001 for a, b in pairwise(times))


def test_small_messages_go_by_low_latency_and_large_ones_by_bandwidth(h100: Network) -> None:
    assert choice(h100, "all_gather", 1 << 10, 8).protocol == nccl.LL
    assert choice(h100, "all_gather", 1 << 30, 8).protocol == nccl.SIMPLE
    assert choice(h100, "all_reduce", 1 << 10, 64).algorithm == "tree"


def test_switches_that_reduce_are_used_from_hopper_on(h100: Network) -> None:
    assert choice(h100, "all_reduce", 1 << 30, 8).algorithm == "nvls"
    assert choice(network(card("a100-80gb"), 8), "all_reduce", 1 << 30, 8).algorithm == "ring"


def test_one_rank_waits_for_nobody(h100: Network) -> None:
    assert choice(h100, "all_reduce", 1 << 30, 1).seconds == 0


def test_a_group_with_one_rank_on_each_node_has_one_network_card(h100: Network) -> None:
    spread, packed = tuple(range(0, 64, 8)), ranks(16)
    slow, fast = (nccl.choice("all_gather", 1 << 30, h100.path(each)) for each in (spread, packed))
    assert slow.seconds > 4 * fast.seconds


def test_one_switch_for_72_gpus_leaves_the_network_out() -> None:
    joined = network(card("b200"), 4, "gb200-nvl72")
    assert joined.sides(ranks(72))[0] == 1
    assert joined.sides(ranks(80))[0] == 2
    assert network(card("b200"), 4).sides(ranks(72))[0] == 18


def test_bytes_over_links_and_network(h100: Network) -> None:
    def carried(name: str, count: int) -> tuple[float, float]:
        return h100.carried(Exchange(name, 0, 0.0, ranks=ranks(count), size=1600))

    assert carried("all_gather", 8) == (1400, 0)
    assert carried("all_reduce", 16) == (3000, 375)
    near, far = carried("all_to_all", 16)
    assert near + far == 1500
    assert far == 800


def test_the_range_moves_with_the_links_alone(h100: Network) -> None:
    exchange = Exchange("all_gather", 0, 0.0, ranks=ranks(8), size=1 << 30)
    usual, slow = (Rates(card("h100"), side, {}, "links") for side in ("value", "slow"))
    assert h100.seconds(exchange, slow) > 1.1 * h100.seconds(exchange, usual)


# ---- the catalogue ----


def test_every_network_has_a_source() -> None:
    for side in ("inside", "between"):
        assert all(entry.source for entry in catalogue()[side].values())


def test_names_replace_what_is_usual_for_a_card() -> None:
    net = network(card("h100"), 8, "pcie5, efa-p5")
    assert (net.inside.name, net.between.name) == ("pcie5", "efa-p5")


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(UsageError, match=r"got 'infiniband-ndx': did you mean infiniband-ndr"):
        network(card("h100"), 8, "infiniband-ndx")


def test_a_file_has_networks_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text('inside = "nvlink3"\n[between]\nnic = 1e9\nnics = 2\n')
    net = network(card("h100"), 8, str(file))
    assert net.inside.name == "nvlink3"
    assert (net.between.name, net.between.nic, net.between.nics) == ("ours", 1e9, 2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[between]\nspeed = 1", r"got speed: \[between\] may have .*nic"),
        ("[among]\nnic = 1", "inside and between in .*, got among"),
        ("nonsense", "a network in .*, got"),
    ],
)
def test_an_odd_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        network(card("h100"), 8, str(file))
    with pytest.raises(UsageError, match="No such file"):
        network(card("h100"), 8, str(tmp_path / "none.toml"))
