"""Topologies: those that come along are whole and tell their sources, and a user's own is read with care."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpcompile.errors import Refused
from tpcompile.plan.topology import find_topology, topology_names

OWN = """
title = "two boards"
[device]
name = "board"
memory_gb = 16
bandwidth_gb_s = 100
step_us = 1.5
fuses = false
source = "measured"
[device.tera_operations_s]
float32 = 2
float16 = 8.5
[[level]]
name = "cable"
ranks = 2
start_us = 10
hop_us = 4
bandwidth_gb_s = 12.5
source = "measured"
"""


@pytest.mark.parametrize("name", topology_names())
def test_what_comes_along_is_whole_and_says_where_its_numbers_are_from(name: str) -> None:
    found = find_topology(name)
    assert found.name == name
    assert len(found.sources) == 1 + len(found.levels)
    assert all(len(source) > 20 for source in found.sources)
    assert "float32" in found.device.operations_per_us


def test_nvlink_pcie_and_nodes_are_among_them() -> None:
    assert {"a100x8", "h100x8", "h200x8", "b200x8", "pcie4x4", "pcie5x8"} <= set(topology_names())
    assert find_topology("h100x8x4-400g").ranks == 32


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "boards.toml"
    path.write_text(OWN)
    found = find_topology(str(path))
    assert (found.name, found.title, found.ranks) == ("boards", "two boards", 2)
    assert found.device.memory_bytes == 16e9
    assert found.device.bytes_per_us == 100_000
    assert found.device.operations("float16") == 8.5e6
    assert found.device.operations("int4") == 2e6  # not listed: as slow as the slowest
    assert found.levels[0].bytes_per_us == 12_500


def test_all_faults_of_a_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    text = (
        OWN.replace("memory_gb = 16\n", "").replace("ranks = 2", 'ranks = "two"').replace("hop_us = 4", "hop_us = -4")
    )
    path.write_text(text + "colour = 3\n")
    with pytest.raises(Refused) as refusal:
        find_topology(str(path))
    where, remedy = f"--topology {path}", "See recipes/topologies/h100x8.toml for one that is right"
    assert str(refusal.value).splitlines() == [
        f"TP131 {where}: device.memory_gb is missing. {remedy}",
        f"TP131 {where}: level[0].ranks is 'two', not a whole number. {remedy}",
        f"TP131 {where}: level[0].hop_us is -4, which no machine has. {remedy}",
        f"TP131 {where}: level[0].colour is no key of a topology. {remedy}",
    ]


def test_no_such_topology(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refusal:
        find_topology("h900")
    known = ", ".join(topology_names())
    assert str(refusal.value) == (
        f"TP130 --topology h900: there is no such topology and no such file. Use {known}, or a TOML file"
    )


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("title = ")
    with pytest.raises(Refused, match=r"^TP131 .*: is no TOML \("):
        find_topology(str(path))
