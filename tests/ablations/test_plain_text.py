"""Conversion to plain text: what is kept and what is left out, rule by rule."""

import bz2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.plain_text import CONVERSIONS, from_lines, from_markdown, from_rst, from_xml, is_english, normalize

PAGE = """\
---
title: A page
---
# Install the *driver* {#install}

Before you **start**, read [the guide](guide.md "A guide") and
run `setup_all` with _care_ on snake_case names[^1]. ![a picture](p.png)

> [!NOTE]
> It needs <b>two</b> disks &amp; 2 * 3 GB, see <https://example.org/x>.

```sh
sudo rm secret
```

    indented code

- First [item][ref]
  goes on
- Second **item**

| a | table |
|---|-------|
| x | y |

{{< shortcode >}}
<!-- a comment
over lines -->
[ref]: https://example.org
:::image type="content" alt-text="hidden":::
The end.
"""


def test_markdown_keeps_prose_and_leaves_out_code_tables_and_templates() -> None:
    assert from_markdown(PAGE) == [
        "Install the driver\n"
        "Before you start, read the guide and run setup_all with care on snake_case names.\n"
        "It needs two disks & 2 * 3 GB, see .\n"
        "First item goes on\n"
        "Second item\n"
        "The end."
    ]


def test_a_fence_ends_with_as_many_marks_as_it_began() -> None:
    assert from_markdown("a\n\n````\n```\ncode\n```\n````\n\nb\n\n~~~\n```\n~~~\nc") == ["a\nb\nc"]


RST = """\
PEP: 1
Title: Purpose

Abstract
========

See :pep:`8` and :ref:`the index <index>`, or `Python <https://python.org>`__ with ``__init__`` and a link_.
It is *very* **clear**::

    not_this()

.. note::

   A note stays.

.. code-block:: python

   nor_this()

:field: value

+---+---+
| a | b |
+---+---+

* First
* Second [1]_

.. [1] A footnote.
"""


def test_rst_keeps_prose_and_notes_and_leaves_out_code_fields_and_tables() -> None:
    assert from_rst(RST) == [
        "Abstract\n"
        "See PEP 8 and the index, or Python with __init__ and a link. It is very clear:\n"
        "A note stays.\n"
        "First\n"
        "Second"
    ]


def test_xml_keeps_paragraphs_of_the_body() -> None:
    book = (
        '\n<?xml version="1.0"?><TEI xmlns="http://t"><teiHeader><p>header</p></teiHeader><text><front><p>x</p></front>'
        "<body><head>One</head><p>A <hi>fine</hi> day<note>a note</note>.</p><table><p>y</p></table><p>Two</p></body>"
        "</text></TEI>"
    )
    assert from_xml(book) == ["One\nA fine day.\nTwo"]


@pytest.mark.parametrize(
    "book",
    [
        "\n".join(["A first paragraph " + "of long words " * 20, "A second " + "of long words " * 20]),
        "A first paragraph of\nmany lines.\n\nA second\nof more.",
        "   A first paragraph of\nmany lines.\n   A second of\nmore lines.\n",
        "\n".join(
            [
                *["A line that is as long as the page is wide."] * 30,
                "Its end.",
                "And another, which is as long as the page is.",
            ]
        ),
    ],
)
def test_the_paragraphs_of_a_book_are_found_however_they_are_set(book: str) -> None:
    assert len(from_lines(book)[0].split("\n")) == 2


def test_articles_of_a_dump_end_before_their_references() -> None:
    article = (
        "{{Infobox|a={{b}}}}'''Ada''' was a [[writer|woman of letters]].<ref>no</ref> [[File:x.jpg|thumb|a [[cat]]]]\n"
        "== Life ==\n* [https://x.org born] in [[London]]\n{| class=x\n| cell\n|}\n== References ==\nhidden"
    )
    pages = [("Ada", "0", article), ("Talk", "1", "talk"), ("Eve", "0", "#REDIRECT [[Ada]]")]
    page = "".join(f"<page><title>{t}</title><ns>{n}</ns><text>{_escape(x)}</text></page>" for t, n, x in pages)
    dump = bz2.compress(f'<mediawiki xmlns="http://m">{page}</mediawiki>'.encode())
    assert CONVERSIONS["wikipedia"](dump) == ["Ada\nAda was a woman of letters.\nLife\nborn in London"]


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def test_english_is_told_from_other_languages() -> None:
    assert is_english("It was the best of times, it was the worst of times, and that is all.")
    assert not is_english("Es war die beste und die schlimmste aller Zeiten, und das ist alles in allem.")
    assert not is_english("Era el mejor de los tiempos, era el peor de los tiempos, a la vez.") and not is_english("")


@given(st.lists(st.text()))
def test_normalizing_again_changes_nothing(paragraphs: list[str]) -> None:
    once = normalize(paragraphs)
    assert normalize(once.split("\n")) == once


@given(st.sampled_from(["lines", "markdown", "rst"]), st.binary(max_size=300))
def test_any_bytes_convert_to_the_same_text_whatever_ends_their_lines(rule: str, content: bytes) -> None:
    lines = content.replace(b"\r", b"\n")
    assert CONVERSIONS[rule](lines) == CONVERSIONS[rule](lines.replace(b"\n", b"\r\n"))
