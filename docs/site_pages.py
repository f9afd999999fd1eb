"""Adapt the pages to the documentation site. mkdocs calls the functions `on_...` (mkdocs.yml).

Files outside of docs/ become pages of the site. Links to these files are changed into links to the
pages.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
import textwrap

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = pathlib.Path(__file__).resolve().parent
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "bench/README.md": "benchmarks.md",
    "bench/start.svg": "start.svg",
    "examples/agent.py": "agent.py",
}
"""The names that files outside of docs/ have in the site."""
INSIDE = {name: source for source, name in OUTSIDE.items()}
DECISIONS = "decisions/README.md"
OPTIONAL = ["hosts.md"]
ANCHOR = re.compile(r"(?<!`)\s*<!-- claim: [a-z0-9-]+ -->")
UNREAD = re.compile(r"<p>(?:(?!</p>).)*\n(?:- |\| )((?:(?!</p>).){0,60})", re.DOTALL)
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*=.?(?:https?:)?//[^>]*>")
FOLDER = re.compile(r"\[([^\]]+)\]\([^):]+/\)")
LONG_HEADING = re.compile(r"^#{2,3} (.{56,})$", re.MULTILINE)
LABEL_LENGTH = 44
"""The maximum length of a heading in the table of contents. Some headings quote a whole message,
which would be too long there.
"""
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=[)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace folders of the nav with their pages, and leave out optional pages that are absent."""
    absent = [name for name in OPTIONAL if not (DOCS / name).exists()]

    def expand(pages: list[object]) -> list[object]:
        found: list[object] = []
        for page in pages:
            if isinstance(page, dict):
                [(title, inner)] = page.items()
                if inner not in absent:
                    found.append({title: expand(inner) if isinstance(inner, list) else inner})
            elif str(page).endswith("/"):
                found += _pages_of(str(page))
            else:
                found.append(page)
        return found

    config.nav = expand(config.nav or [])
    return config


def _pages_of(folder: str) -> list[str]:
    names = sorted({"README.md", *(path.name for path in (DOCS / folder).glob("*.md"))})
    names.sort(key=lambda name: name != "README.md")
    return [folder + name for name in names]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for source, name in OUTSIDE.items():
        content = (DOCS.parent / source).read_bytes()
        files.append(File.generated(config, name, content=content))
    files.append(File.generated(config, DECISIONS, content=_list_decisions()))
    return files


def _list_decisions() -> str:
    """Return a page with the titles of all decisions, because the site has no page for a folder."""
    lines = ["# Decisions", "", "What was decided, and why. A number stays with its decision.", ""]
    for path in sorted((DOCS / DECISIONS).parent.glob("0*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        number, _, text = title.partition(". ")
        lines.append(f"- [{number}: {text}]({path.name})")
    return "\n".join(lines)


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Adapt links for the site, and remove the comments `<!-- claim: ... -->`, because Python's
    Markdown would show them as paragraphs.

    Turn links to folders into plain text, because the site has no page for a folder.
    """
    source = INSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        in_site = OUTSIDE.get(target, target.removeprefix("docs/"))
        if in_site == posixpath.dirname(DECISIONS):
            in_site = DECISIONS
        return posixpath.relpath(in_site, posixpath.dirname(page.file.src_uri) or ".")

    adapted = LINK.sub(lead, FOLDER.sub(r"\1", ANCHOR.sub("", markdown)))
    return LONG_HEADING.sub(_label_heading, adapted)


def _label_heading(heading: re.Match[str]) -> str:
    """Give a long heading a short label in the table of contents: its text up to `;` or `(`."""
    text = re.split(r"; | \(", heading[1].replace("`", ""))[0].replace('"', "'")
    label = textwrap.shorten(text, LABEL_LENGTH, placeholder=" …")
    return f'{heading[0]} {{: data-toc-label="{label}" }}'


def on_page_content(html: str, *, page: Page, **_: object) -> str:
    """Refuse a page on which Python's Markdown shows a list or table as plain text. GitHub may show
    the same source correctly, so the mistake is not visible there.
    """
    if unread := UNREAD.search(html):
        raise PluginError(f"{page.file.src_uri}: a list or table is shown as text: {unread[1]}")
    return html


def on_post_page(output: str, *, page: Page, **_: object) -> str:
    """Refuse a page that makes a browser load something from another host."""
    if loaded := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} would load from another host: {loaded[0]}")
    return output
