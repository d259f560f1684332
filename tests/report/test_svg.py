from __future__ import annotations

from xml.etree import ElementTree

import pytest

from repairgym.report.svg import Plot, Range, nice_ticks, padded, standalone


@pytest.mark.parametrize(
    ("span", "expected"),
    [((0, 1), [0, 0.5, 1]), ((0, 0.34), [0, 0.1, 0.2, 0.3]), ((3, 47), [20, 40]), ((-0.05, 0.2), [0, 0.1, 0.2])],
)
def test_ticks_are_round_and_within(span, expected):
    assert nice_ticks(Range(*span)) == pytest.approx(expected)


def test_ticks_and_ranges_of_a_single_value():
    assert nice_ticks(Range(2, 2)) == [2]
    assert padded([2.0, 2.0]).low < 2 < padded([2.0, 2.0]).high
    assert padded([1.0, 2.0], floor=0.0).low == 0


def test_plot_places_and_escapes():
    plot = Plot((100, 100), Range(0, 10), Range(0, 1))
    assert plot.x(0) == 44
    assert plot.x(10) == 88
    assert plot.y(0) > plot.y(1)
    plot.dot(5, 0.5, 'a "<b>"', "dot")
    root = ElementTree.fromstring(plot.render('say "<x>"'))
    assert root.attrib["aria-label"] == 'say "<x>"'
    assert root[0][0].text == 'a "<b>"'


def test_a_plot_without_a_view_box_is_rejected():
    with pytest.raises(ValueError, match="no viewBox"):
        standalone("<svg></svg>")
