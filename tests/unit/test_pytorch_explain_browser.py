"""The page of a model in a real browser: it loads without network and script, and clicks lead where they should."""

from __future__ import annotations

import browser
import pytest

pytest.importorskip("torch")

from explained_models import explained

pytestmark = pytest.mark.skipif(
    browser.program() is None, reason="no Chromium here: apt install chromium (Debian, Ubuntu)"
)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    with browser.opened(explained().save(folder / "page.html"), folder / "profile") as tab:
        yield tab


def test_it_loads_alone(tab):
    asked = [each["params"] for each in tab.events if each.get("method") == "Network.requestWillBeSent"]
    assert [each["request"]["url"].partition(":")[0] for each in asked] == ["file"]
    assert not [each for each in tab.events if each.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert tab.value("document.title") == "Everything" and tab.value("typeof evil") == "undefined"


def test_a_region_of_the_graph_leads_to_its_article(tab):
    tab.click("svg a[href='#region-pycutlass_2']")
    assert tab.value("location.hash") == "#region-pycutlass_2"
    top = tab.value("document.getElementById('region-pycutlass_2').getBoundingClientRect().top")
    assert -1 < top < 900


def test_what_was_left_leads_to_its_reason(tab):
    tab.click("svg .left")
    assert tab.value("location.hash").startswith("#left-")
    assert tab.value("document.querySelector(':target').tagName") == "TR"


def test_one_click_opens_the_code(tab):
    details = "#region-pycutlass_0 details:last-of-type"
    pre = f"document.querySelector('{details} pre')"
    assert tab.value(f"{pre}.checkVisibility()") is False
    tab.click(f"{details} summary")
    assert tab.value(f"document.querySelector('{details}').open") is True
    assert tab.value(f"{pre}.checkVisibility()") is True
    assert "struct " in tab.value(f"{pre}.textContent")


def test_nothing_is_wider_than_the_window(tab):
    assert tab.value("document.documentElement.scrollWidth <= innerWidth") is True


def test_boxes_have_the_colours_of_their_kinds(tab):
    colour = "getComputedStyle(document.querySelector('svg .{} rect')).fill"
    colours = [tab.value(colour.format(kind)) for kind in ("mm", "bmm", "conv2d", "left", "operator")]
    assert len(set(colours)) == len(colours)


def test_texts_are_within_their_boxes(tab):
    widths = """[...document.querySelectorAll('svg .box')].map(box => [
        box.querySelector('rect').getBBox().width,
        Math.max(...[...box.querySelectorAll('text')].map(text => text.getComputedTextLength())),
    ])"""
    found = tab.value(widths)
    assert len(found) >= 10 and all(text < box for box, text in found), found
