"""YAML documents: the place of every key, every fault at its place, and bounded effort."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.diagnostics import Location
from builder.documents import MAX_DOCUMENTS, MAX_NODES, Yaml, edited, parse_yaml, scan_yaml
from builder.errors import BadInput
from builder.files import read_text
from tests.tables import by_table

TEXT = """\
a: 1
b:
  c: [x, y]
  "d e":
  - f: 2
    g: 3
  - h
"""


def only(text: str) -> Yaml:
    (document,) = scan_yaml(text)
    return document


def fault(text: str) -> tuple[Location, str]:
    """Location and words of the one fault of a text."""
    (found,) = (fault for document in scan_yaml(text) for fault in document.diagnostics)
    return found.location, found.message


@by_table
def test_every_path_has_its_place(path: str, place: list[int]) -> None:
    assert only(TEXT).places[path] == tuple(place)


def test_an_unknown_path_lies_where_the_nearest_one_above_it_does() -> None:
    assert only(TEXT).locate("b.c.7.z") == (3, 3)
    assert only(TEXT).locate("z") == (1, 1)


def test_keys_have_the_name_that_the_data_gives_them() -> None:
    document = only("on: 1\n12: 2\n~: 3\n")
    assert document.data == {True: 1, 12: 2, None: 3}
    assert {"True", "12", "None"} < set(document.places)


def test_merged_keys_are_found_where_they_were_written() -> None:
    document = only("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n")
    assert document.data["use"] == {"x": 1, "y": 3}
    assert (document.places["use.x"], document.places["use.y"]) == ((1, 11), (4, 3))


def test_duplicate_keys_are_faults_at_any_depth_and_leave_the_data() -> None:
    document = only("a:\n  b:\n  - {c: 1, c: 2}\na: 3\n")
    assert [(f.location, f.path, f.message) for f in document.diagnostics] == [
        ((3, 12), "a.b.0.c", "is given twice, first in line 3"),
        ((4, 1), "a", "is given twice, first in line 1"),
    ]
    assert document.data == {"a": 3}


def test_a_literal_block_tells_where_its_text_begins() -> None:
    document = only("data:\n  f.yaml: |\n\n      x: 1\n")
    assert document.blocks == {"data.f.yaml": (3, 7)}
    inner = scan_yaml(document.data["data"]["f.yaml"], document.blocks["data.f.yaml"])[0]
    assert inner.places["x"] == (4, 7)


def test_several_documents_are_read_up_to_the_one_that_cannot_be() -> None:
    first, second = scan_yaml("a: 1\n---\nb: [1\n")
    assert first.data == {"a": 1}
    assert not second.readable
    assert second.diagnostics[0].location.line == 4


def test_one_document_is_expected_of_a_file() -> None:
    with pytest.raises(BadInput, match="f:3: begins a second document"):
        parse_yaml("a: 1\n---\nb: 1\n", "f")


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("a:\n\tb: 1\n", (2, 1), "is not YAML: found a tab character"),
        ("a: *b\n", (1, 4), "names the alias b, which nothing above defines"),
        ("a: &a [*a]\n", (1, 8), "would contain itself"),
        ("? [a]\n: b\n", (1, 3), "is not YAML: found unhashable key"),
        ("a: 1\nb: x\0\n", (2, 5), "is not YAML: control characters are not allowed"),
        ("a: !!binary aGk=\n", (1, 4), "holds a value that no option can have"),
        ("a: {b: !!set {c}}\n", (1, 8), "holds a value that no option can have"),
        (f"a: {'9' * 5000}\n", (1, 4), "a number of 5000 digits"),
        ("a: " + "[" * 5000, (1, 104), "is nested too deeply"),
        ("\n".join(f"{' ' * i}a:" for i in range(500)), (101, 101), "is nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_one_fault_at_its_place(
    text: str, place: tuple[int, int], what: str
) -> None:
    found, words = fault(text)
    assert what in words
    assert found == place


RUN_ON = "b has no colon with a space behind it, so that it is no key; write b: and a space"
UNEVEN = "indent a and the line below it alike: a has a value"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        *(("a: 1\nb:2\nc: 3\n", RUN_ON), ("a: 1\nb=2\n", RUN_ON)),
        *(("a: 1\n  b: 2\nc: 3\n", UNEVEN), ("- a: 1\n   b: 2\n", UNEVEN)),
        # An open bracket or quote, or a text: only its author knows.
        *((f"args: [a,\n  b{sign}c\n", "correct this line") for sign in ":="),
        *(('name: "x\nFOO=bar\n', "correct this line"), ("a: [\nC:\\foo\n", "correct this line")),
        ("image: {\n  nvcr:1.3\n", "correct this line"),
        ("note: this is\n  a text: oops\n", "correct this line"),
    ],
)
def test_a_remedy_is_given_where_the_fault_is_certain(text: str, remedy: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_yaml(text, "f")
    assert str(caught.value).endswith(remedy)


@pytest.mark.parametrize(
    "text",
    [
        "- a\n" * 2_000_000,
        "a: &a0 [x, x]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)),
        "<<: &a0 {k: 1}\n"
        + "\n".join(f"k{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)),
    ],
    ids=["a long list", "a bomb of aliases", "a bomb of merges"],
)
def test_too_many_values_are_refused_before_they_take_memory(text: str) -> None:
    assert f"has more than {MAX_NODES} values" in fault(text)[1]


def test_too_many_documents_are_refused_where_the_first_of_them_begins() -> None:
    documents = scan_yaml("--- {}\n" * (2 * MAX_DOCUMENTS))
    [found] = [row for document in documents for row in document.diagnostics]
    assert found.message == f"has more than {MAX_DOCUMENTS} documents"
    assert (found.location.line, len(documents)) == (MAX_DOCUMENTS + 1, MAX_DOCUMENTS + 1)


def test_text_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert only(read_text(tmp_path / "f")).places["b"] == (2, 1)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="is a device, pipe or socket"):
        read_text(tmp_path / "pipe")


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match="too many levels of symbolic links"):
        read_text(tmp_path / "loop")


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, ""])
def test_a_name_that_no_file_has_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be read|is a folder"):
        read_text(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("a: 1\nb:\n  # of c\n  c: old  # why\n", "a: 1\nb:\n  # of c\n  c: x:1@y  # why\n"),
        ("b:\n  # of d\n  d: 1\n", "b:\n  c: x:1@y\n  # of d\n  d: 1\n"),
        ("b: {d: 1, c: 'old'}  # why\n", 'b: {d: 1, c: "x:1@y"}  # why\n'),
        ("b: {d: 1}\n", 'b: {"c": "x:1@y", d: 1}\n'),
        ("b:  # nothing yet\na: 1\n", 'b: {"c": "x:1@y"}  # nothing yet\na: 1\n'),
        ("a: 1", "a: 1\nb:\n  c: x:1@y\n"),
        ("b: [c]\n", None),
        ("b: text\n", None),
        ("a: 1\n---\nb: 2\n", None),
    ],
)
def test_an_edit_keeps_comments_and_layout_or_is_refused(text: str, new: str | None) -> None:
    assert edited(text, {"b.c": "x:1@y"}) == new
