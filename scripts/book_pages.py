#!/usr/bin/env python3
"""A preprocessor of mdBook for docs/book.toml.

A page that is only `{{#include ../../NAME.md}}` becomes that file of the repository's root. Links are then rewritten: to a
page of the book, if the target is one; otherwise the link becomes its text and the path of the target."""

import json
import posixpath
import re
import sys
from itertools import zip_longest
from pathlib import Path

INCLUDE = re.compile(r"\s*\{\{#include ([^}]+)\}\}\s*")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
ROOT = Path(__file__).resolve().parent.parent


def chapters(items):
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def source(chapter):
    """The path from the repository's root of the file that a chapter shows."""
    page = posixpath.join("docs", chapter["source_path"])
    include = INCLUDE.fullmatch(chapter["content"])
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), include[1])) if include else page


def rewrite(text, file, page, pages):
    """`text` of `file`, shown at `page`, with links that work in the book."""

    def link(match):
        label, target, fragment = match[1], match[2], match[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
        if path in pages:
            relative = posixpath.relpath(pages[path], posixpath.dirname(page) or ".")
            return f"[{label}]({relative}{fragment})"
        if path in ("docs/decisions", "docs/experiments"):
            return f"[{label}]({posixpath.relpath(path[5:] + '/index.md', posixpath.dirname(page) or '.')})"
        return label if label == path else f"{label} (`{path}`)"

    parts = re.split(r"(^```.*?^```[^\n]*$|`[^`\n]*`)", text, flags=re.M | re.S)
    # mdBook's highlighter does not know GLSL.
    code = (re.sub("^```glsl", "```cpp", part) for part in parts[1::2])
    prose = (LINK.sub(link, part) for part in parts[::2])
    return "".join(part for pair in zip_longest(prose, code, fillvalue="") for part in pair)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "supports":
        sys.exit(0)
    _, book = json.load(sys.stdin)
    found = list(chapters(book.get("items", book.get("sections"))))
    # A page may be linked by its file in docs/ or by the file that it includes.
    pages = {f: c["path"] for c in found if c["path"] for f in ("docs/" + c["source_path"], source(c))}
    for chapter in (c for c in found if c["path"]):
        file = source(chapter)
        text = (ROOT / file).read_text(encoding="utf-8") if INCLUDE.fullmatch(chapter["content"]) else chapter["content"]
        chapter["content"] = rewrite(text, file, chapter["path"], pages)
    json.dump(book, sys.stdout)


main()
