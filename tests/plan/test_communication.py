"""Times of collectives against values computed by hand, and which algorithm is the fastest where."""

from __future__ import annotations

import pytest

from tpcompile.plan import communication
from tpcompile.plan.communication import Group, Timed, group_of
from tpcompile.plan.topology import Device, Level, Topology

LINKS = Level("links", 8, start_us=5.0, hop_us=2.0, bytes_per_us=300_000.0)
NETWORK = Level("network", 4, start_us=9.0, hop_us=3.0, bytes_per_us=50_000.0)
DEVICE = Device("a device", 80e9, 2_000_000.0, {"float16": 312e6}, 2.0, True)
TWO_LEVELS = Topology("made up", "4 nodes of 8", DEVICE, (LINKS, NETWORK), ("nowhere",))
MIB = 2**20


def on(*parts: tuple[Level, int]) -> Group:
    return Group(tuple(parts))


def test_a_ring_sends_each_part_twice_around() -> None:
    # 16 MiB on 4 ranks: 5 + 6·2 + 2·3/4·16777216/300000 = 5 + 12 + 83.88608
    assert communication.ring_all_reduce(LINKS, 4, 16 * MIB) == pytest.approx(100.88608)


def test_a_tree_has_few_steps_and_sends_all_bytes_up_and_down() -> None:
    # 4 KiB on 8 ranks: 5 + 2·3·2 + 2·4096/300000
    assert communication.tree_all_reduce(LINKS, 8, 4096) == pytest.approx(17.0273067)


def test_small_sums_go_by_tree_large_ones_by_ring_and_they_cross_where_said() -> None:
    crossing = communication.crossing_bytes(LINKS, 8)
    assert crossing == 2.0 * 300_000 * 8 * (7 - 3)  # αβN(N−1−⌈log₂N⌉)
    below, above = (communication.all_reduce(on((LINKS, 8)), crossing * factor) for factor in (0.9, 1.1))
    assert (below.algorithm, above.algorithm) == ("tree", "ring")
    assert communication.ring_all_reduce(LINKS, 8, crossing) == pytest.approx(
        communication.tree_all_reduce(LINKS, 8, crossing)
    )


def test_two_ranks_have_no_use_for_a_tree() -> None:
    assert communication.crossing_bytes(LINKS, 2) == 0
    assert communication.all_reduce(on((LINKS, 2)), 4096).algorithm == "ring"


def test_a_gather_is_half_of_a_sum() -> None:
    # to 1 MiB on 4 ranks: 5 + 3·2 + 3/4·1048576/300000
    timed = communication.all_gather(on((LINKS, 4)), MIB)
    assert timed == Timed(pytest.approx(13.62144), "ring")
    assert communication.reduce_scatter(on((LINKS, 4)), MIB) == timed


def test_an_exchange_sends_each_of_the_others_its_part() -> None:
    # 1 MiB of all 4 ranks: 5 + 3·2 + 3/16·1048576/300000
    assert communication.all_to_all(on((LINKS, 4)), MIB) == Timed(pytest.approx(11.65536), "pairwise")


def test_a_broadcast_goes_down_a_tree() -> None:
    assert communication.broadcast(on((LINKS, 8)), MIB) == Timed(pytest.approx(5 + 3 * 2 + MIB / 300_000), "tree")


def test_between_nodes_large_sums_go_level_by_level() -> None:
    # 64 MiB on 4 nodes of 8. Scatter and gather within: 2·(5 + 7·2 + 7/8·64Mi/300000) = 429.468032;
    # 8 MiB between 4 nodes by ring: 9 + 6·3 + 2·3/4·8Mi/50000 = 278.65824; together 708.126272.
    timed = communication.all_reduce(on((LINKS, 8), (NETWORK, 4)), 64 * MIB)
    assert timed == Timed(pytest.approx(708.126272), "hierarchical")
    assert timed.us < communication.ring_all_reduce(NETWORK, 32, 64 * MIB)


def test_between_nodes_a_few_bytes_go_by_tree() -> None:
    assert communication.all_reduce(on((LINKS, 8), (NETWORK, 4)), 64).algorithm == "tree"


def test_one_rank_alone_takes_no_time() -> None:
    for timed in communication.TIMES.values():
        assert timed(on(), 4096) == Timed(0.0, "none")


@pytest.mark.parametrize(
    ("ranks", "counts"),
    [
        ((0, 1, 2, 3), [("links", 4)]),
        ((0, 4), [("links", 2)]),
        (tuple(range(16)), [("links", 8), ("network", 2)]),
        ((0, 8, 16, 24), [("network", 4)]),
        ((5, 6, 7, 8), [("links", 3), ("network", 2)]),
        ((3,), []),
    ],
)
def test_a_group_crosses_the_links_that_its_ranks_lie_on(ranks: tuple[int, ...], counts: list[tuple[str, int]]) -> None:
    assert [(level.name, count) for level, count in group_of(TWO_LEVELS, ranks).parts] == counts
