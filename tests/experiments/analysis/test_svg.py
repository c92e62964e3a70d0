"""Shorter path data draw the same."""

import re

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from experiments.analysis import svg

#: Numbers that each command takes.
TAKES = {"M": 2, "L": 2, "Q": 4, "C": 6, "z": 0}


def segments(data):
    """Every command of path data with its numbers, those that are implied written out."""
    words, found, command = data.split(), [], ""
    while words:
        if words[0] in TAKES:
            command = words.pop(0)
        elif command == "M":
            command = "L"  # so says the standard (SVG 1.1, 8.3.2)
        count = TAKES[command]
        found.append((command, [float(word) for word in words[:count]]))
        words = words[count:]
    return found


def paths(text):
    return [segments(data) for data in re.findall(r' d="([^"]*)"', text)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A figure with long lines, gaps, markers, curves, bands and letters."""
    path = tmp_path_factory.mktemp("svg") / "f.svg"
    with matplotlib.rc_context({"svg.fonttype": "path", "path.simplify": False}):
        panel = Figure().subplots()
        values = np.random.default_rng(0).standard_normal(500).cumsum()
        values[100:110] = np.nan
        panel.plot(values)
        panel.plot(values[:20], "o", label="a label: Qjg8")
        panel.fill_between(range(30), values[:30], values[:30] + 1)
        panel.add_patch(Circle((250, 0), 5))
        panel.legend()
        panel.figure.savefig(path)
    return path.read_text()


def test_paths_have_the_same_commands_and_the_same_places(drawn):
    before, after = paths(drawn), paths(svg.compact(drawn))
    assert len(before) == len(after) > 20
    assert {command for path in before for command, _ in path} == set(TAKES)
    for one, other in zip(before, after, strict=True):
        assert [command for command, _ in one] == [command for command, _ in other]
        for (_, numbers), (_, rounded) in zip(one, other, strict=True):
            assert numbers == pytest.approx(rounded, abs=0.0051)


def test_it_is_much_shorter_and_has_all_elements(drawn):
    made = svg.compact(drawn)
    assert len(made) < 0.8 * len(drawn) and svg.compact(made) == made
    tags = re.findall(r"<[^ >]+", drawn)
    assert re.findall(r"<[^ >]+", made) == tags


@pytest.mark.parametrize(
    ("data", "shorter"),
    [
        ("M 1.23456 -0.001 L 2 3.999 L 4 5", "M 1.23 0 2 4 4 5"),
        ("M 1 2 L 3 4 z L 5 6", "M 1 2 3 4 z L 5 6"),
        ("M 1 2 C 1 2 3 4 5 6 L 7 8", "M 1 2 C 1 2 3 4 5 6 L 7 8"),
        ("M 1 2 L 3 4 M 5 6 L 7 8", "M 1 2 3 4 M 5 6 7 8"),
        ("", ""),
    ],
)
def test_only_implied_letters_go(data, shorter):
    assert svg.compact(f'<path d="{data}"/>') == f'<path d="{shorter}"/>'
