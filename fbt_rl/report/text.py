"""How a report is written: its templates, its forms of numbers, and untrusted text made safe to look at."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from pathlib import Path
from typing import Any

import jinja2

TEMPLATES = Path(__file__).parent / "report_templates"
SHOWN_CHARACTERS = 4000  # of one completion


def render(template: str, view: dict[str, Any]) -> str:
    """A template filled in; what goes into one of HTML is escaped."""
    return _environment(".html" in template).get_template(template).render(view)


def page_script() -> dict[str, str]:
    """The one script of the page, and the hash by which the page allows it."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    return {"script": script, "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}


def visible(text: str | None) -> str:
    """Untrusted text with control and direction-changing characters spelled out, cut to a readable length."""
    text = text or ""
    shown = text[:SHOWN_CHARACTERS]
    if not shown.replace("\n", "").replace("\t", "").isprintable():  # going through it takes a while
        shown = "".join(map(_visible_character, shown))
    return shown + (f" … ({len(text) - SHOWN_CHARACTERS:,} more characters)" if len(text) > SHOWN_CHARACTERS else "")


def _visible_character(char: str) -> str:
    hidden = char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Cn")
    return f"⟨U+{ord(char):04X}⟩" if hidden else char


def one_line(text: str | None) -> str:
    """Untrusted text, such as a name, on one line."""
    return " ".join(visible(text).split())


def width(text: str) -> int:
    """In characters, those of Chinese, Japanese and Korean being two wide."""
    return sum(1 + (unicodedata.east_asian_width(character) in "FW") for character in text)


def shortened(text: str, room: int) -> str:
    """The text cut to a width of ``room`` characters."""
    if width(text) <= room:
        return text
    start = text[:room]
    while width(start) >= room:
        start = start[:-1]
    return start + "…"


def literal(text: str) -> str:
    """A line of text as Markdown that shows it as it is, in a table's cell too."""
    return re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", text)


def fenced(text: str | None) -> str:
    """Untrusted text as a Markdown code block that it cannot close."""
    text = visible(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _environment(html: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    known = {
        "percent": lambda share: f"{100 * share:.1f}%",
        "points": lambda share: f"{100 * share:+.1f}".replace("-", "−"),
        "p": lambda value: "< 0.001" if value < 0.001 else f"{value:.3f}",
        "whole": lambda value: f"{value:,.0f}",
        "one": lambda value: f"{value:,.1f}",
        "two": lambda value: f"{value:.2f}",
        "three": lambda value: f"{value:.3f}",
        "plain": lambda value: f"{value:,g}" if isinstance(value, float) else f"{value:,}",
        "minutes": lambda value: f"{int(value) // 60}:{int(value) % 60:02d}",
        "tiny": lambda value: f"{value:.1e}",
    }
    for name, form in known.items():
        environment.filters[name] = lambda value, form=form: "–" if value is None else form(value)
    environment.filters |= {"visible": visible, "fenced": fenced, "literal": literal}
    return environment
