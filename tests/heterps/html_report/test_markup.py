"""Names out of documents stay text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from heterps.html_report.markup import section, table, tag


class Reader(HTMLParser):
    """The tags and the text of some HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.words = list[str](), ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"])))
def test_any_text_stays_text(words: str) -> None:
    found = Reader(tag("p", words, title=words))
    assert found.tags == ["p"]
    assert found.words == words


def test_control_characters_are_shown_escaped() -> None:
    assert "\x1b" not in tag("b", "\x1b[31mred")


def test_a_part_without_content_is_left_out() -> None:
    assert section("Loss", None, "", note="of a run") == ""
    assert "<h2>Loss</h2>" in section("Loss", tag("p", "0.5"))


def test_columns_of_numbers_are_aligned() -> None:
    html = table(("name", "step"), [("a", "1 s")], (1,))
    assert '<td class="number">1 s</td>' in html
    assert "<td>a</td>" in html
