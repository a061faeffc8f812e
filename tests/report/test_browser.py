"""report.html in a browser: loads without complaint, can be searched, sorted and walked by keys, at any width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import CHROMIUM, MISSING, Page, browser
from tests.report.summaries import decoder, hostile, uncut
from tpcompile.report_page.page import report_page

pytestmark = pytest.mark.skipif(not CHROMIUM, reason=MISSING)

Written = Callable[[str], Path]
SHOWN = "[...document.querySelectorAll('#weights tbody tr:not([hidden])')].map(row => row.cells[0].textContent)"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("pages")
    for name, plan in {"decoder": decoder(layers=12), "uncut": uncut(), "hostile": hostile()}.items():
        (folder / f"{name}.html").write_text(report_page(plan), encoding="utf-8")
    return lambda name: folder / f"{name}.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def found_counts(page: Page) -> Any:
    return page.run("[...document.querySelectorAll('.found')].map(one => one.textContent)")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 400])
@pytest.mark.parametrize("name", ["decoder", "uncut", "hostile"])
def test_it_loads_without_complaint(page: Page, written: Written, name: str, width: int, dark: bool) -> None:
    page.open(written(name), width=width, dark=dark)
    assert page.complaints == []
    assert page.requested == [written(name).as_uri()]
    assert page.run("document.documentElement.scrollWidth") <= width
    assert len(page.picture()) > 20_000


def test_a_script_in_a_name_does_not_run(page: Page, written: Written) -> None:
    page.open(written("hostile"))
    assert page.run("document.scripts.length") == 1
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.querySelector('#weights tbody th').textContent").startswith("</script><script>alert(1)")


def test_the_policy_lets_nothing_else_run_or_load(page: Page, written: Written, tmp_path: Path) -> None:
    """Were anything to slip through after all, it would stay dead."""
    more = "<script>window.ran = 1</script><img src=http://127.0.0.1:9/x onerror='window.ran = 2'></body>"
    (tmp_path / "worse.html").write_text(written("decoder").read_text(encoding="utf-8").replace("</body>", more))
    page.open(tmp_path / "worse.html")
    assert page.run("window.ran") is None
    refused = [text for text in page.complaints if "Content Security Policy" in text]
    assert len(refused) >= 2
    page.complaints.clear()


def test_search_by_typing(page: Page, written: Written) -> None:
    page.open(written("decoder"))
    assert found_counts(page) == ["2", "2", "98", "26"]
    page.run("document.getElementById('search').focus()")
    page.type("LAYERS.1*down row")
    assert page.run(SHOWN) == [f"model.layers.{layer}.down_proj.weight" for layer in (1, 10, 11)]
    assert found_counts(page) == ["0 of 2", "0 of 2", "3 of 98", "0 of 26"]
    assert page.run("location.hash") == "#search=LAYERS.1*down+row"


def test_search_takes_every_character_as_it_is(page: Page, written: Written) -> None:
    page.open(written("decoder"), "#search=.*%5B(")
    assert found_counts(page) == ["0 of 2", "0 of 2", "0 of 98", "0 of 26"]
    assert page.complaints == []


def test_an_address_holds_what_is_searched_and_sorted(page: Page, written: Written) -> None:
    page.open(written("decoder"), "#search=layers.3&how=row&sort=weights%3Abytes%3Adown")
    assert page.run(SHOWN) == ["model.layers.3.down_proj.weight", "model.layers.3.o_proj.weight"]
    assert page.run("document.getElementById('search').value") == "layers.3"
    assert page.run("document.getElementById('how').value") == "row"
    page.run("location.hash = '#search=embed'")
    page.run("new Promise(done => setTimeout(done, 50))")
    page.open(written("decoder"), "#search=embed")
    assert page.run(SHOWN) == ["embed.weight"]


def test_an_address_may_hold_nonsense(page: Page, written: Written) -> None:
    page.open(written("decoder"), "#how=nothing&sort=nowhere:at:all&more=1")
    assert len(page.run(SHOWN)) == 98
    assert page.complaints == []


def test_weights_by_how_they_lie(page: Page, written: Written) -> None:
    page.open(written("decoder"))
    choices = page.run("[...document.querySelectorAll('#how option')].map(one => one.textContent)")
    assert choices == ["in any way", "column", "row", "vocab", "whole"]
    page.run("how.value = 'vocab'; how.dispatchEvent(new Event('change'))")
    assert page.run(SHOWN) == ["embed.weight"]


def test_tables_sort_numbers_and_names(page: Page, written: Written) -> None:
    page.open(written("decoder"))
    click = "document.querySelector('#weights th[data-key={}] button').click()"
    page.run(click.format("bytes"))
    assert page.run(SHOWN)[:3] == ["embed.weight", "lm_head.weight", "model.layers.0.gate_proj.weight"]
    state = "document.querySelector('#weights th[data-key=bytes]').getAttribute('aria-sort')"
    assert page.run(state) == "descending"
    page.run(click.format("bytes"))
    assert page.run(state) == "ascending"
    assert page.run(SHOWN)[0] == "model.layers.0.norm.weight"
    page.run(click.format("name"))
    assert page.run(state) is None
    shown = [name for name in page.run(SHOWN) if "norm" in name]
    assert shown == [f"model.layers.{layer}.norm.weight" for layer in range(12)]
    assert page.run("location.hash") == "#sort=weights%3Aname%3Aup"


def test_bars_are_walked_by_keys(page: Page, written: Written) -> None:
    page.open(written("decoder"))
    assert page.run("document.querySelectorAll('.timeline [tabindex=\"0\"]').length") == 2
    page.run("document.querySelector('.timeline [tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    told = "document.querySelector('#time .told-here').textContent"
    assert page.run(told) == (
        "MatMul /model.layers.6.v_proj/MatMul · 10 µs, bound by memory · column cut · "
        "reads model.layers.6.v_proj.weight"
    )
    page.press("ArrowLeft")
    assert "k_proj" in page.run(told)
    page.press("Tab")
    assert page.run("document.activeElement.className") == "bar communication"


def test_a_box_finds_its_weight(page: Page, written: Written) -> None:
    page.open(written("decoder"))
    page.run("[...document.querySelectorAll('#graph .box.row')][0].click()")
    assert page.run(SHOWN) == ["model.layers.6.o_proj.weight"]


def test_light_and_dark_can_be_read(page: Page, written: Written) -> None:
    """Texts stand out from what is behind them by 4.5 to 1 at least, and patterns by 3 to 1 (WCAG 2.2, AA)."""
    for dark in (False, True):
        page.open(written("decoder"), dark=dark)
        colour = {
            name: page.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
            for name in ("ground", "card", "faint", "ink", "soft", "link", "good", "bad", "column", "row", "vocab",
                         "expert", "gathered", "part", "whole", "communication", "memory", "compute", "starts")
        }  # fmt: skip
        for name in ("ink", "soft", "link", "good", "bad"):
            assert min(contrast(colour[name], colour[behind]) for behind in ("ground", "card", "faint")) >= 4.5, name
        for name in list(colour)[8:]:
            assert contrast(colour[name], colour["card"]) >= 3, name


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG counts it."""

    def light(colour: str) -> float:
        digits = colour.lstrip("#")
        digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_without_scripts_all_of_it_is_there(written: Written, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        page.without_scripts()
        page.open(written("decoder"))
        assert page.complaints == []
        assert page.run("document.querySelectorAll('#weights tbody tr').length") == 98
        assert page.run("getComputedStyle(document.querySelector('.search')).display") == "none"
        assert page.run("document.querySelector('.bar').title").startswith("MatMul")
