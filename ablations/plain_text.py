"""Conversion of documentation, books and encyclopaedic articles to plain text: prose stays, markup, code and tables go.

The rules depend on nothing but Python's standard library, so that the same file gives the same text on every machine.
Each conversion returns the texts of one file, one paragraph a line.
"""

import bz2
import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from xml.etree import ElementTree

_ENGLISH = frozenset(
    [
        "the",
        "of",
        "and",
        "to",
        "is",
        "that",
        "for",
        "it",
        "with",
        "are",
        "be",
        "this",
        "you",
        "was",
        "his",
        "her",
        "he",
        "she",
    ]
)
ENGLISH_SHARE = 0.12
"""Smallest share of the most frequent English words among all words of an English text."""

_WORD = re.compile(r"[^\W\d_]+")


def is_english(text: str) -> bool:
    """Return whether frequent English words are frequent in the text."""
    words = _WORD.findall(text.lower())
    return sum(word in _ENGLISH for word in words) >= ENGLISH_SHARE * max(1, len(words))


def normalize(paragraphs: Iterable[str]) -> str:
    """Return paragraphs as a text in Unicode's form C: one a line, single blanks, none without a letter."""
    lines = (" ".join(paragraph.split()) for paragraph in paragraphs)
    return unicodedata.normalize("NFC", "\n".join(line for line in lines if _WORD.search(line)))


WRAPPED_CHARACTERS = 120
"""Lines of a wrapped text are shorter."""


def from_lines(content: str) -> list[str]:
    """Convert a book. Its paragraphs are lines, or are wrapped and separated by empty or before indented lines, or
    wrapped and end with a line that is clearly shorter than others."""
    lines = [line.rstrip() for line in content.split("\n")]
    if sum(len(line) for line in lines if len(line) > WRAPPED_CHARACTERS) > len(content) / 2:
        return [normalize(lines)]
    if sum(not line or line[0] in " \t" for line in lines) < len(lines) / 50:
        width = sorted(map(len, lines))[len(lines) * 9 // 10]
        lines = [line if len(line) > 0.75 * width else f"{line}\n" for line in lines]
    return [normalize(re.split(r"\n\s*\n|\n(?=[ \t]+\S)", "\n".join(lines)))]


_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\n.*?\n\1[ \t]*\n", re.DOTALL)
_HIDDEN = re.compile(
    r"<!--.*?-->|<(script|style|pre|table|svg)\b.*?</\1\s*>|\{%.*?%\}|\{\{.*?\}\}|^:::.*?$", re.DOTALL | re.MULTILINE
)
_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})")
_NO_PROSE = re.compile(
    r"\s*(\||[-+]{3,}[-+| ]*$|={3,}\s*$|\*{3,}\s*$|\[[^\]]+\]:\s|import\s.+\sfrom\s|export\s(default|const)\s)"
)
_ITEM = re.compile(r"^\s*([-*+]|\d+[.)])\s+")
_BLOCK = re.compile(r"^\s*(#{1,6}\s+|([-*+]|\d+[.)])\s+)")
_TRAILING_HASHES = re.compile(r"(\s+#+|\s*\{[#:.][^}]*\})\s*$")
_INLINE = (
    (re.compile(r"!\[[^\]]*\]\([^)]*\)|!\[[^\]]*\]\[[^\]]*\]|\[\^[^\]]+\]|\[!\w+\]"), ""),
    (re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^()\s]*(?:\([^()]*\)[^()]*)*(?:\s[^)]*)?\)|\[[^\]]*\])"), r"\1"),
    (re.compile(r"<https?://[^>]*>|https?://[^\s)\]>]+"), ""),
    (re.compile(r"</?[A-Za-z][^<>]*>"), " "),
    (re.compile(r"`+([^`]*)`+"), r"\1"),
    (re.compile(r"\*{1,3}(?=\S)([^*]+?)(?<=\S)\*{1,3}"), r"\1"),
    (re.compile(r"(?<!\w)_{1,3}(?=\S)([^_]+?)(?<=\S)_{1,3}(?!\w)"), r"\1"),
    (re.compile(r"\\([!-/:-@\[-`{-~])"), r"\1"),
)


def _inline(text: str) -> str:
    for pattern, kept in _INLINE:
        text = pattern.sub(kept, text)
    return html.unescape(text)


def from_markdown(content: str) -> list[str]:
    """Convert a page of Markdown without its front matter, fenced and indented code, tables and templates."""
    content = _HIDDEN.sub("", _FRONT_MATTER.sub("", content))
    return [normalize(map(_inline, _markdown_paragraphs(content.split("\n"))))]


def _markdown_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    paragraph: list[str] = []
    fence = ""
    after_blank, in_list = True, False
    for written in lines:
        if opened := _FENCE.match(written):
            if not fence:
                fence = opened[1]
            elif opened[1].startswith(fence):
                fence = ""
            continue
        line = re.sub(r"^[ \t]*(>[ \t]?)+", "", written)
        starts = bool(_BLOCK.match(line))
        is_code = after_blank and not in_list and re.match(r" {4}|\t", line)
        is_blank = not line.strip()
        if starts or is_blank:
            yield " ".join(paragraph)
            paragraph = []
        in_list = bool(_ITEM.match(line)) or (in_list and (is_blank or line[:1] in " \t"))
        if not (fence or is_code or _NO_PROSE.match(line)):
            paragraph.append(_TRAILING_HASHES.sub("", _BLOCK.sub("", line)))
            after_blank = is_blank
    yield " ".join(paragraph)


_PEP_HEADER = re.compile(r"\APEP:.*?\n\n", re.DOTALL)
_FIELD = re.compile(r"\s*:[^:`]+:(\s|$)")
_TEXT_DIRECTIVES = ("note", "tip", "hint", "important", "warning", "caution", "attention", "danger", "seealso")
_DIRECTIVE = re.compile(r"(\s*)\.\.(\s|$)\s*(?:([\w:-]+)::)?")
_RST_TABLE = re.compile(r"\s*(\+[-=+]|\||(={2,}\s+)+={2,}\s*$)")
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*$")
_RST_INLINE: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r":(pep|rfc):`(\d+)`"), lambda found: f"{found[1].upper()} {found[2]}"),
    (re.compile(r":[\w:+-]+:`([^`<]*?)\s*(?:<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]*?)\s*<[^`>]*>`__?"), r"\1"),
    (re.compile(r"\[[#*\w.-]+\]_|\|[^|\s][^|]*\|_{0,2}|https?://[^\s)>]+"), ""),
    (re.compile(r"`+([^`]*)`+_{0,2}"), r"\1"),
    (re.compile(r"\*{1,2}(?=\S)([^*]+?)(?<=\S)\*{1,2}"), r"\1"),
    (re.compile(r"(?<!\w)([A-Za-z0-9][\w-]*?)__?(?=[\s.,;:!?)]|$)"), r"\1"),
    (re.compile(r"\\(.)"), r"\1"),
)


def from_rst(content: str) -> list[str]:
    """Convert a page of reStructuredText without directives other than notes, literal blocks, fields and tables."""
    paragraphs = _rst_paragraphs(_PEP_HEADER.sub("", content).expandtabs().split("\n"))
    return [normalize(map(_rst_inline, paragraphs))]


def _rst_inline(text: str) -> str:
    for pattern, kept in _RST_INLINE:
        text = pattern.sub(kept, text)
    return text


def _rst_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    paragraph: list[str] = []
    hidden_below: int | None = None  # lines with a larger indent belong to what is left out
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            yield " ".join(paragraph)
            paragraph = []
            continue
        if hidden_below is not None and indent > hidden_below:
            continue
        hidden_below = None
        if directive := _DIRECTIVE.match(line):
            hidden_below = None if directive[3] in _TEXT_DIRECTIVES else indent
            continue
        if _FIELD.match(line) and not paragraph:
            hidden_below = indent
            continue
        if _ADORNMENT.match(line) or _RST_TABLE.match(line):
            yield " ".join(paragraph)
            paragraph = []
            continue
        if line.rstrip().endswith("::"):
            hidden_below = indent
        if _ITEM.match(line):
            yield " ".join(paragraph)
            paragraph = []
        paragraph.append(re.sub(r"::\s*$", ":", _ITEM.sub("", line)))
    yield " ".join(paragraph)


_BLOCKS = frozenset(
    [
        "p",
        "para",
        "head",
        "title",
        "item",
        "l",
        "ab",
        "li",
        "blockquote",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "caption",
        "td",
        "div",
        "section",
    ]
)
_EPUB_TYPE = "{http://www.idpf.org/2007/ops}type"
_LEFT_OUT = frozenset(
    [
        "teiHeader",
        "front",
        "back",
        "note",
        "gap",
        "figure",
        "metadata",
        "math",
        "table",
        "media",
        "code",
        "equation",
        "script",
        "style",
        "nav",
    ]
)


def from_xml(content: str) -> list[str]:
    """Convert a text in TEI, CNXML or XHTML without notes, tables, figures, formulas and front matter."""
    paragraphs = [""]

    def read(element: ElementTree.Element) -> None:
        name = element.tag.rsplit("}", 1)[-1] if isinstance(element.tag, str) else "note"
        if name in _LEFT_OUT or element.get("class") == "references" or element.get(_EPUB_TYPE) == "noteref":
            return
        if name in _BLOCKS:
            paragraphs.append("")
        paragraphs[-1] += element.text or ""
        for child in element:
            read(child)
            paragraphs[-1] += child.tail or ""
        if name in _BLOCKS:
            paragraphs.append("")

    # A byte order mark or blanks before the XML declaration are not allowed but occur.
    read(ElementTree.fromstring(re.sub(r"^\s*<\?xml.*?\?>", "", content, flags=re.DOTALL).strip()))
    return [normalize(paragraphs)]


_WIKI_HIDDEN = re.compile(
    r"<!--.*?-->|<(ref|math|gallery|timeline|table|source|code)\b[^>/]*>.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE
)
_WIKI_APPENDIX = re.compile(
    r"^==+\s*(see also|notes?|references|further reading|external links|bibliography|sources|footnotes)\b.*",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
_WIKI_INLINE = (
    (re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]"), r"\1"),
    (re.compile(r"\[(?:https?:)?//[^\s\]]*\s*([^\]]*)\]"), r"\1"),
    (re.compile(r"'{2,}|__[A-Z]+__"), ""),
    (re.compile(r"^=+\s*(.*?)\s*=+\s*$", re.MULTILINE), r"\1"),
    (re.compile(r"^[*#:;]+\s*", re.MULTILINE), ""),
)


def from_wikipedia_dump(content: bytes) -> list[str]:
    """Convert the articles of a bz2 dump of MediaWiki, up to their references, without templates and tables."""
    root = ElementTree.fromstring(bz2.decompress(content))
    texts = []
    for page in root.iter():
        if page.tag.rsplit("}", 1)[-1] != "page":
            continue
        fields = {element.tag.rsplit("}", 1)[-1]: element.text or "" for element in page.iter()}
        if fields.get("ns", "0") == "0" and not fields.get("text", "").lower().startswith("#redirect"):
            texts.append(normalize([fields["title"], *_wiki_prose(fields["text"]).split("\n")]))
    return texts


def _wiki_prose(text: str) -> str:
    text = _WIKI_APPENDIX.sub("", _WIKI_HIDDEN.sub("", html.unescape(text)))
    for innermost in (r"\{\{[^{}]*\}\}", r"\{\|(?:(?!\{\||\|\}).)*\|\}", r"\[\[(?:File|Image|Category):[^\[\]]*\]\]"):
        links = re.compile(r"\[\[(?!File:|Image:|Category:)(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
        before = None
        while before != text:
            before, text = text, re.sub(innermost, "", text, flags=re.DOTALL)
            text = links.sub(r"\1", text) if "File" in innermost else text
    for pattern, kept in _WIKI_INLINE:
        text = pattern.sub(kept, text)
    return text


def _of_text(convert: Callable[[str], list[str]]) -> Callable[[bytes], list[str]]:
    return lambda content: convert(content.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n"))


CONVERSIONS: Mapping[str, Callable[[bytes], list[str]]] = {
    "lines": _of_text(from_lines),
    "markdown": _of_text(from_markdown),
    "rst": _of_text(from_rst),
    "xml": _of_text(from_xml),
    "wikipedia": from_wikipedia_dump,
}
