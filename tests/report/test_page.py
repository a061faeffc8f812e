"""report.html as text: needs nothing else, shows the plan's own numbers, holds no markup of a model's, stays small."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.summaries import HOSTILE, decoder, hostile, uncut
from tpcompile.plan.summary import PlanSummary, RankHolds
from tpcompile.plan.words import bytes_text, time_text
from tpcompile.report_page.page import report_page

PLANS = {"decoder": decoder(), "uncut": uncut(), "hostile": hostile()}
LARGEST = 1_500_000
"""Bytes of a page, whatever the plan."""


class Parsed(HTMLParser):
    """A page as a browser reads it: tags with their attributes, text, and the rows of tables by their id."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.rows: dict[str, list[list[str]]] = {}
        self.scripts: list[str] = []
        self._table, self._in = "", ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag == "table":
            self._table = dict(attrs).get("id") or ""
        if tag == "tr" and self._table:
            self.rows.setdefault(self._table, []).append([])
        if tag in ("td", "th") and self._table:
            self.rows[self._table][-1].append("")
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._table = ""
        self._in = "" if tag in ("script", "style") else self._in

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts.append(data)
        elif self._in != "style":
            self.text += data
            if self._table and self.rows.get(self._table) and self.rows[self._table][-1]:
                self.rows[self._table][-1][-1] += data

    def body(self, table: str) -> list[list[str]]:
        """The rows of a table without its head."""
        return [[cell.strip() for cell in row] for row in self.rows[table][1:]]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_page_needs_nothing_else(plan: PlanSummary) -> None:
    page = report_page(plan)
    found = Parsed(page)
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", page)
    leads = {value for _, attributes in found.tags for key, value in attributes.items() if key in ("href", "src")}
    assert leads and all(re.fullmatch(r"#[a-z-]+", lead) for lead in leads)
    ids = {attributes["id"] for _, attributes in found.tags if "id" in attributes}
    assert {lead[1:] for lead in leads} <= ids
    assert not {tag for tag, _ in found.tags} & {"link", "img", "iframe", "object", "embed", "form", "base"}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_only_the_script_that_comes_along_may_run(plan: PlanSummary) -> None:
    found = Parsed(report_page(plan))
    policies = [attributes["content"] for tag, attributes in found.tags
                if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"]  # fmt: skip
    script = "".join(found.scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policies == [
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    ]
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert not [key for _, attributes in found.tags for key in attributes if key.startswith("on")]


def test_what_a_model_says_is_text() -> None:
    page, harmless = report_page(hostile()), report_page(decoder())
    found = Parsed(page)
    assert {tag for tag, _ in found.tags} == {tag for tag, _ in Parsed(harmless).tags}
    shown = HOSTILE.replace("\u2028", "␤").replace("\u202e", "�").replace("\x00", "␀").replace("\x1b", "␛")
    assert shown in found.text
    assert any(shown in attributes.get("title", "") for _, attributes in found.tags)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u2028\u2029\u202a-\u202e\u2066-\u2069]", page)
    assert set(found.rows) == {"cut", "whole", "weights", "collectives", "layer", "list-0", "list-1"}


def test_a_name_that_is_no_unicode_can_be_written() -> None:
    report_page(decoder(source="half a \udce4 letter")).encode("utf-8")


def test_the_numbers_are_those_of_the_plan() -> None:
    plan = decoder(layers=3)
    estimate, found = plan.estimate, Parsed(report_page(plan))
    for told in (
        f"{plan.source} on 4 ranks",
        "2 kinds of dimension are cut over 4 ranks; 2 AllReduce in each of 3 layers. All ranks hold the same.",
        f"Weights a rank{bytes_text(estimate.rank.weights)}",
        f"of {bytes_text(estimate.whole.weights)}",
        f"Memory a rank{bytes_text(estimate.rank.total)}fits 80.0 GB · one device: {bytes_text(estimate.whole.total)}",
        "Collectives a step87 AllReduce, 1 AllGather",
        f"A step{time_text(estimate.step.total)}{estimate.speedup:.1f} × as fast as one device",
        estimate.topology.title,
        "batch 1, seq 1, past 2048",
        *plan.advice,
        *plan.notes,
        f"AllGather of logits: {plan.collectives[-1].cheaper}",
    ):
        assert told in found.text
    for spent in (estimate.step, estimate.alone):
        for part in (spent.memory, spent.compute, spent.starts, spent.communication):
            assert time_text(part) in found.text


def test_each_weight_has_a_row() -> None:
    plan = decoder(layers=3)
    rows = Parsed(report_page(plan)).body("weights")
    assert rows == [
        [row.name, row.dtype, " × ".join(map(str, row.shape)), " × ".join(map(str, row.local_shape)),
         bytes_text(row.nbytes), bytes_text(max(row.rank_bytes)), row.how, row.reason or row.dimensions[0]]
        for row in sorted(plan.weights, key=lambda row: -row.nbytes)
    ]  # fmt: skip


def test_scalars_are_no_weights() -> None:
    plan = decoder(layers=2)
    row = replace(plan.weights[-1], name="two", shape=(1,), local_shape=(1,), how="whole", nbytes=2, reason="scalar")
    few = replace(plan, weights=(*plan.weights, row, replace(row, name="cut", shape=(8,), how="column")))
    rows = Parsed(report_page(few)).body("weights")
    largest_first = sorted(plan.weights, key=lambda row: -row.nbytes)
    assert [found[0] for found in rows] == [*(row.name for row in largest_first), "cut"]
    assert "Left out: 1 stored tensors of at most 16 elements" in report_page(few)


def test_each_dimension_and_collective_has_a_row() -> None:
    plan = decoder(layers=3)
    found = Parsed(report_page(plan))
    assert [row[0] for row in found.body("cut")] == [
        "model.layers.0.up_proj.weight[1] × 3read by /model.layers.0.up_proj/MatMul",
        "model.layers.0.o_proj.weight[0] × 3read by /model.layers.0.o_proj/MatMul",
    ]
    assert found.body("cut")[0][1:] == [
        "column", "1,376", "4 × 344", "4.2 MB", "3.2 MB", "32 µs", "3 AllReduce", "37 µs",
    ]  # fmt: skip
    assert found.body("whole")[1] == [
        "rope.inv_freq[0]",
        "64",
        "256 B",
        "64 parts are too few for 5 ranks",
        "use --tp 4",
    ]
    sent = found.body("collectives")
    assert [row[2] for row in sent] == [row.value for row in plan.collectives]
    assert sent[0] == [
        "0",
        "AllReduce",
        "/embed/Gather_output_0",
        "before",
        "1.0 kB",
        "12 µs",
        "tree",
        "up_proj[1]",
        "—",
    ]
    assert sent[-1][3] == "after" and sent[-1][8] == plan.collectives[-1].cheaper


def test_the_timeline_is_that_of_the_middle_layer() -> None:
    plan = decoder(layers=5)
    entries = [entry for entry in plan.step if entry.layer == 2]
    found = Parsed(report_page(plan))
    assert [row[1] for row in found.body("layer")] == [entry.name for entry in entries]
    bars = [a for tag, a in found.tags if tag == "button" and a["class"].startswith("bar ")]
    lasting = [entry for entry in entries if entry.us]
    assert len(bars) == len(lasting)
    widths = [float(re.search(r"width:([\d.]+)%", bar["style"])[1]) for bar in bars]  # type: ignore[index]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    span = sum(entry.us for entry in lasting)
    assert sorted(widths) == pytest.approx(sorted(100 * entry.us / span for entry in lasting), abs=0.01)


def test_alike_layers_are_drawn_once() -> None:
    few, many = Parsed(report_page(decoder(2))), Parsed(report_page(decoder(40)))
    boxes = [[a["class"] for tag, a in page.tags if a.get("class", "").startswith("box ")] for page in (few, many)]
    assert boxes[0] == boxes[1]
    assert boxes[0].count("box communication") == 4
    assert "Layer 20, of 0 to 39 × 40" in many.text


def test_a_plan_that_cuts_nothing_says_so() -> None:
    found = Parsed(report_page(uncut()))
    assert "Nothing is cut: each of 2 ranks runs the whole model." in found.text
    assert "ranks send nothing" in found.text
    assert found.body("cut") == [] and found.body("collectives") == []


def test_what_does_not_fit_is_said() -> None:
    plan = decoder()
    estimate = plan.estimate
    small = replace(estimate.topology, device=replace(estimate.topology.device, memory_bytes=10e6))
    found = Parsed(report_page(replace(plan, estimate=replace(estimate, topology=small))))
    assert "does not fit 10.0 MB · one device: 49.9 MB, too much" in found.text
    assert found.text.count("too much") == 3
    bars = [a for _, a in found.tags if "bar-row over" in a.get("class", "")]
    assert len(bars) == 2


def test_ranks_that_hold_the_same_share_a_bar() -> None:
    plan = decoder()
    ranks = tuple(RankHolds(rank, 1000 if rank < 3 else 900, 10, 5) for rank in range(4))
    found = Parsed(report_page(replace(plan, ranks=ranks)))
    assert "ranks 0 to 2" in found.text and "rank 3" in found.text


def test_the_same_plan_is_the_same_page() -> None:
    code = (
        "import hashlib; from tests.report.summaries import decoder; from tpcompile.report_page import page;"
        "print(hashlib.sha256(page.report_page(decoder()).encode()).hexdigest())"
    )
    digests = {
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
                       capture_output=True, text=True, timeout=60, check=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


def test_the_files_of_the_page_are_shipped() -> None:
    root = Path(__file__).parents[2]
    shipped = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folder = root / "tpcompile" / "report_page"
    files = {path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".py"}
    assert set(shipped["tpcompile.report_page"]) == files


def test_a_large_plan_is_no_large_page() -> None:
    assert len(report_page(decoder(32)).encode()) < 200_000
    plan = decoder(layers=700, prefix="a/rather/long/prefix/before/the/name/of/every/layer.")
    alike = report_page(plan)
    assert len(alike.encode()) < LARGEST
    assert re.search(r"Left out: 3,602 weights, [\d.]+ .B together", alike)
    unlike = replace(plan, layers=1, step=tuple(replace(entry, layer=-1) for entry in plan.step))
    assert len(unlike.step) > 15_000
    started = time.perf_counter()
    page = report_page(unlike)
    assert time.perf_counter() - started < 5
    assert len(page.encode()) < LARGEST
    assert re.search(r"64 of 15,404 operators and collectives; \d,\d{3} more would follow", Parsed(page).text)
