"""Markdown → nodes: no HTML, no image, no address but http, https and mailto. Never fails.

Formulas are typeset by the front end's MathJax, and only those of a closed list of commands: all
else stays text. Code of a few known languages is highlighted here. `Blocks` draws a text that is
still being written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.tree import SyntaxTreeNode

from nbagent.view.node import Node, h, named

MAX_CHARS = 60_000
"""A longer text is shown as it is, in one block."""
_MAX_LINES = 4_000
_MAX_NODES = 20_000
_MAX_EFFORT = 16_000_000
"""Sum over the paragraphs of (brackets, stars, backticks, …)²: what the parser is slow with."""
_TEXTS = ("text", "text_special", "html_inline", "html_block")
_TAGS = named("p h3 h4 h5 h6 ul ol li blockquote em strong s a table thead tbody tr")
_LOWER = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6"}
"""A heading in an answer stands below those of the notebook."""
INLINE = named("em strong s a code span b i small sub sup")


def nodes_of(text: str) -> list[Node]:
    """The nodes of a Markdown text; hostile input comes back as one `pre`."""
    return list(_nodes_of(text)) if text.strip() else []


@lru_cache(maxsize=64)
def _nodes_of(text: str) -> Sequence[Node]:
    # A picture is drawn more than once while its run is at work, always of the same texts.
    if not is_costly(text):
        try:
            tree = SyntaxTreeNode(_parser().parse(text))
            if sum(1 for _ in tree.walk()) <= _MAX_NODES:
                return tuple(node for child in tree.children for node in _nodes(child))
        except (RecursionError, ValueError, IndexError):
            pass
    return (h("pre", "", text),)


def is_costly(text: str) -> bool:
    """Whether the parser would hold up the loop it runs on (a tenth of a second or so)."""
    if len(text) > MAX_CHARS or text.count("\n") > _MAX_LINES:
        return True
    effort = 0
    for paragraph in text.split("\n\n"):
        effort += sum(paragraph.count(mark) for mark in "[]*_`~<&\\|>#$") ** 2
    return effort > _MAX_EFFORT


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": 24})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = _is_link  # pyright: ignore[reportAttributeAccessIssue]
    parser.inline.ruler.before("escape", "math", _math_rule)
    return parser


def _is_link(address: str) -> bool:
    try:
        return urlsplit(address).scheme.lower() in ("http", "https", "mailto")
    except ValueError:
        return False


def _nodes(it: SyntaxTreeNode) -> list[Node]:
    if it.type in _TEXTS:
        return [it.content]
    if it.type in ("softbreak", "hardbreak", "hr"):
        return ["\n" if it.type == "softbreak" else h("br" if it.type == "hardbreak" else "hr")]
    if it.type == "code_inline":
        return [h("code", "", it.content)]
    if it.type == "math":
        return [h("span", "nba-math mathjax_process tex2jax_process", it.content)]
    if it.type in ("fence", "code_block"):
        return [code_node(it.content, it.info.split()[0] if it.info.strip() else "")]
    if it.type == "image":
        return [f"[image: {it.content} — {it.attrs.get('src', '')}]"]
    if it.type == "table":
        _align(it)
    children = [node for child in it.children for node in _nodes(child)]
    tag = _LOWER.get(it.tag, it.tag)
    if it.type in ("td", "th"):
        side = str(it.attrs.get("style", "")).removeprefix("text-align:")
        return [cell(tag, children, right=side == "right")]
    if it.type == "inline" or it.hidden or tag not in _TAGS:
        return children
    kept = {name: str(it.attrs[name]) for name in ("href", "start") if name in it.attrs}
    return [h(tag, "", *children, **kept)]


def _align(table: SyntaxTreeNode) -> None:
    """Numbers right, in columns of which the text does not say it."""
    rows = [row.children for part in table.children for row in part.children]
    for head, *cells in zip(*rows, strict=False):
        texts = [it.children[0].content.strip("*_`") for it in cells if it.children]
        if "style" not in head.attrs and are_numbers(texts):
            for it in (head, *cells):
                it.attrs["style"] = "text-align:right"


_NUMBER = re.compile(r"\s*(?:[-+−]?[\d,.]+(?:e[-+]?\d+)?%?|nan|NaN|null|)\s*")


def are_numbers(texts: Sequence[str]) -> bool:
    """Whether the cells of a column of a table are numbers or missing."""
    return all(map(_NUMBER.fullmatch, texts)) and any(map(str.strip, texts))


def cell(tag: str, children: Sequence[Node], *, right: bool = False) -> Node:
    """A cell of a table: numbers right, all else left, also where a page's own sheet differs."""
    side = "right" if right else None
    return h(tag, "nba-r" if right else "nba-l", *children, align=side)


# Formulas

_MATH = re.compile(
    r"\\\((.{1,600}?)\\\)|\\\[(.{1,600}?)\\\]|\$\$([^$]{1,600})\$\$"
    # One dollar: no space inside it and no digit after it, so that prices stay prices.
    r"|\$(?![\s$])([^$\n]{1,600})(?<![\s\\])\$(?!\d)",
    re.DOTALL,
)
_TEX_TOKEN = re.compile(r"\\([A-Za-z]+|[,;:!{}|%&#_\\ ])|[^\\%$#]", re.DOTALL)
_MOST_BRACES = 12
_SPREADS = re.compile(r"\\\\\s*\[|'{4}")
"""A line's height in figures (`\\\\[9999em]`), and more primes than anybody writes."""
_TEX = named(
    "frac dfrac tfrac sqrt sum prod int iint oint lim min max sup inf log ln exp sin cos tan arcsin"
    " arccos arctan sinh cosh tanh det dim ker gcd arg deg Pr alpha beta gamma delta epsilon"
    " varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi"
    " varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega cdot times"
    " div pm mp ast star circ bullet oplus otimes le leq ge geq ne neq approx equiv sim simeq cong"
    " propto ll gg subset subseteq supset supseteq in notin ni cup cap setminus emptyset forall"
    " exists neg land lor to rightarrow leftarrow Rightarrow Leftarrow leftrightarrow"
    " Leftrightarrow mapsto implies iff infty partial nabla hbar ell Re Im angle perp parallel mid"
    " ldots cdots vdots ddots dots quad qquad left right big Big bigg Bigg langle rangle lvert"
    " rvert lVert rVert lfloor rfloor lceil rceil hat bar vec dot ddot tilde overline underline"
    " overbrace underbrace binom mathbb mathbf mathrm mathcal mathit mathsf text textbf"
    " operatorname boldsymbol displaystyle limits nolimits prime top bot not begin end pmod bmod"
)
_ENVIRONMENTS = re.compile(r"\\(?:begin|end)(?!\{(?:[pbvBV]?matrix|cases|aligned|array)\})")


def _math_rule(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "$\\":
        return False
    found = _MATH.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    is_formula = is_tex(found[found.lastindex or 0])
    if not is_formula and found[0].startswith("$"):
        return False
    if not silent:
        state.push("math" if is_formula else "text", "", 0).content = found[0]
    state.pos = found.end()
    return True


def is_tex(source: str) -> bool:
    """Whether a formula holds known commands only, with its braces in pairs."""
    at = depth = 0
    while at < len(source):
        token = _TEX_TOKEN.match(source, at)
        if token is None or (token[1] and token[1].isalpha() and token[1] not in _TEX):
            return False
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if not 0 <= depth <= _MOST_BRACES:
            return False
        at = token.end()
    is_ours = not _ENVIRONMENTS.search(source) and not _SPREADS.search(source)
    return depth == 0 and bool(source.strip()) and is_ours


# Code

_LANGUAGES = named(
    "python py python3 javascript js bash sh shell yaml json sql html css r julia toml diff rust rs"
)
"""Names that Pygments knows, each of a lexer whose time is bounded; all others are text."""
_ALIASES = {
    **dict.fromkeys(("typescript", "ts"), "javascript"),
    "console": "bash",
    "ipython": "python",
    "yml": "yaml",
}
_MAX_CODE = 6_000
"""Some lexers need the square of it for a hostile text: half a second. That of C, its cube."""
_LOOKS = {
    "nba-kc": ("Comment",),
    "nba-kk": ("Keyword", "Operator.Word"),
    "nba-ks": ("Literal.String",),
    "nba-kn": ("Literal.Number",),
    "nba-kf": ("Name.Function", "Name.Class", "Name.Decorator", "Name.Builtin"),
    "nba-minus": ("Generic.Deleted",),
    "nba-plus": ("Generic.Inserted",),
}


def code_node(text: str, language: str = "") -> Node:
    """A block of code with a button that copies it."""
    button = h("button", "nba-do", data_do="copy", title="Copy")
    return h("div", "nba-code", button, h("pre", "", *highlighted(text, language)))


def highlighted(text: str, language: str) -> list[Node]:
    """Code as spans with a class for each kind of word; text where the language is unknown."""
    name = _ALIASES.get(language.lower(), language.lower())
    if name not in _LANGUAGES or len(text) > _MAX_CODE:
        return [text]
    # Late, and untyped: most answers hold no code.
    lexers: Any = import_module("pygments.lexers")
    runs: list[list[str]] = []
    for kind, piece in lexers.get_lexer_by_name(name, stripnl=False).get_tokens(text):
        kinds = str(kind).removeprefix("Token.")
        look = next((look for look, starts in _LOOKS.items() if kinds.startswith(starts)), "")
        look = look if piece.strip() else ""
        if runs and runs[-1][0] == look:
            runs[-1][1] += piece
        else:
            runs.append([look, piece])
    return [h("span", look, piece) if look else piece for look, piece in runs]


# A text while it is written


class Blocks:
    """Which blocks of a growing text are closed: all of its top level but the last one."""

    def __init__(self) -> None:
        self.tail = ""
        """The open block, as text."""
        self._next = 0

    def feed(self, text: str) -> list[Node]:
        """Take more text; gives the blocks that it closed, drawn.

        The tail is parsed again when it has a new line and has grown by a quarter: the whole costs
        no more than a few parses of the whole text.
        """
        # The first character of a line tells that the block before it is over.
        new = self.tail[-1:] + text
        self.tail += text
        if "\n" not in new or len(self.tail) < self._next:
            return []
        start = self._start_of_last_block()
        closed, self.tail = self.tail[:start], self.tail[start:]
        self._next = len(self.tail) * 5 // 4 if len(self.tail) > 1_000 else 0
        return nodes_of(closed)

    def _start_of_last_block(self) -> int:
        if is_costly(self.tail):
            return 0
        tops = [it for it in _parser().parse(self.tail) if it.level == 0 and it.map]
        first = tops[-1].map[0] if tops and tops[-1].map else 0
        return sum(len(line) + 1 for line in self.tail.split("\n")[:first])


def words_of(nodes: Sequence[Node], skip: Sequence[str] = ("button",)) -> str:
    """The text in nodes but for some tags; blocks are separated by a space."""
    words: list[str] = []
    for node in nodes:
        if isinstance(node, str):
            words.append(node)
        elif node[0] not in skip:
            around = "" if node[0] in INLINE else " "
            words.append(f"{around}{words_of(node[2:], skip)}{around}")
    return "".join(words)
