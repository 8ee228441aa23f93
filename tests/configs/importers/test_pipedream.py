"""The importer of PipeDream's profiles: units, what is left out, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.importers.pipedream import load_pipedream, parse_pipedream

NUMBERS = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"


def node(name: str, description: str, *values: object, rest: str = "") -> str:
    """One line of the format."""
    return f"{name} -- {description} -- {NUMBERS.format(*values)}{rest}"


SMALL = "\n".join(
    [
        node("node1", "Input0", 600, 0, 64, 0),
        node(
            "node2", "Conv2d(3, 64, kernel=(3, 3)): a", 2, 3, "[16; 8]", 100, rest=" -- stage_id=1"
        ),
        node("node3", "ReLU()", 1, "1.5", 24.0, 0),
        node("node4", "__getitem__(1)", 0, 0, 24, 0),
        "\tnode1 -- node2",
        "\tnode2 -- node3",
        "\tnode2 -- node4",
        "",
    ]
)


def test_inputs_and_picked_items_are_left_out_and_milliseconds_become_seconds(
    tmp_path: Path,
) -> None:
    path = tmp_path / "small.txt"
    path.write_text(SMALL)
    graph = load_pipedream(path, num_accelerators=4)
    assert (graph.name, graph.num_accelerators, graph.num_cpus) == ("small", 4, 0)
    convolution, relu = graph.nodes
    assert convolution.name == "Conv2d(3, 64, kernel=(3, 3)): a"
    assert convolution.accelerator_s == pytest.approx(0.005)
    assert (convolution.output_bytes, convolution.parameter_bytes) == (24, 100)
    assert convolution.memory_bytes == 124
    assert relu.accelerator_s == pytest.approx(0.0025)
    assert graph.edges == ((0, 1),)


def test_an_input_that_something_feeds_and_an_item_that_is_used_stay() -> None:
    lines = [
        node("a", "Linear", 1, 1, 1, 1),
        node("b", "InputNorm", 1, 1, 1, 1),
        node("c", "__getitem__(0)", 0, 0, 1, 0),
        node("d", "Linear", 1, 1, 1, 1),
        "\ta -- b",
        "\tb -- c",
        "\tc -- d",
    ]
    assert len(parse_pipedream("\n".join(lines)).nodes) == 4


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("node5 -- no numbers", "line 8: a node is '<id> -- <description> -- <numbers>'"),
        ("\tnode3", "line 8: an edge is '<source> -- <destination>'"),
        ("\tnode3 -- node9", "line 8: 'node9' is no node"),
        (node("node3", "x", 1, 1, 1, 1), "line 8: the node 'node3' stands twice"),
        ("node5 -- x -- forward_compute_time=1", "line 8: backward_compute_time is missing"),
        (
            node("node5", "x", 1, 1, 1, 1, rest=", parameter_size=2"),
            "line 8: parameter_size stands twice",
        ),
        (
            node("node5", "x", "fast", 1, 1, 1),
            "line 8: forward_compute_time: 'fast' is not a number of 0 or more, or a list of them",
        ),
        (
            node("node5", "x", 1, 1, "[1; -2]", 1),
            "line 8: activation_size: '[1; -2]' is not a number of 0 or more, or a list of them",
        ),
        ("\tnode3 -- node2", "edges: they close a circle"),
    ],
)
def test_a_malformed_line_is_named(line: str, problem: str) -> None:
    with pytest.raises(DocumentError) as error:
        parse_pipedream(SMALL + line)
    assert error.value.problems[0] == problem


def test_files_without_nodes_and_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="nodes"):
        parse_pipedream("")
    with pytest.raises(HeterpsError, match="cannot be read"):
        load_pipedream(tmp_path / "missing.txt")
