"""Adapt the pages to the documentation site. mkdocs calls the functions `on_...` (mkdocs.yml).

Files outside of docs/ become pages of the site. Links to these files are changed into links to the
pages.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
import textwrap
import urllib.parse
from html import escape, unescape

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
HOME_TITLE = "Run MCP servers in a sandbox"
"""The title of the first page in a browser's tab and in shared links."""
BOOSTS = {"troubleshooting.md": 2.5, "quick-start.md": 2, "index.md": 2}
"""The boosts of pages for users. The search shows them before others with the same words."""
INNER = re.compile(r"(?:decisions/|changelog|contributing|architecture|adding-|benchmarks|hosts)")
INNER_BOOST = 0.0005
"""The boost of pages for developers, which the search shows last. A word in a title counts a
thousand times as much as in a text, so the boost is below a thousandth.
"""
NOT_FOUND = """<h1>This page does not exist</h1>
<p>Use the search (key <kbd>/</kbd>) or the menu, or go to the <a href="{home}">first page</a>.</p>
"""
ANCHOR = re.compile(r"(?<!`)\s*<!-- claim: [a-z0-9-]+ -->")
UNREAD = re.compile(r"<p>(?:(?!</p>).)*\n(?:- |\| )((?:(?!</p>).){0,60})", re.DOTALL)
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*=.?(?:https?:)?//[^>]*>")
FOLDER = re.compile(r"\[([^\]]+)\]\([^):]+/\)")
LONG_HEADING = re.compile(r"^#{2,3} (.{56,})$", re.MULTILINE)
LABEL_LENGTH = 44
"""The maximum length of a heading in the table of contents. Some headings quote a whole message,
which would be too long there.
"""
BEGINNING = re.compile(r"<h1[^>]*>(.*?)</h1>\s*<p>(.*?)</p>", re.DOTALL)
PERMALINK = re.compile(r'<a class="headerlink".*?</a>', re.DOTALL)
TAG = re.compile(r"<[^>]+>")
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEADING_CELL = re.compile(r"<th>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
NARROW_COLUMNS = 2
HEADING = re.compile(r"<h1>.*?</h1>", re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=[)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder in the menu with its pages, and leave out the pages in OPTIONAL that do
    not exist.
    """
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
    """Return a page with the titles of all decisions. Links to the folder of the decisions lead to
    this page, because the site has no page for a folder itself.
    """
    lines = ["# Decisions", "", "Each decision has a page with its reasons.", ""]
    for path in sorted((DOCS / DECISIONS).parent.glob("0*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        number, _, text = title.partition(". ")
        lines.append(f"- [{number}: {text}]({path.name})")
    return "\n".join(lines)


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Adapt links for the site, and remove the comments `<!-- claim: ... -->`, because Python's
    Markdown would show them as paragraphs.

    Turn links whose target ends in a slash into plain text, because they lead to folders, and the
    site has no pages for folders.
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
    """Give a long heading a short label in the table of contents: its text up to the first `;` or
    `(`, shortened to LABEL_LENGTH.
    """
    text = re.split(r"; | \(", heading[1].replace("`", ""))[0].replace('"', "'")
    label = textwrap.shorten(text, LABEL_LENGTH, placeholder=" …")
    return f'{heading[0]} {{: data-toc-label="{label}" }}'


def on_page_content(html: str, *, page: Page, **_: object) -> str:
    """Set the title and the description that search engines and shared links show, and how early
    the site's own search lists the page. Label the cells of its tables.

    Refuse a page without a sentence below its heading, because this sentence is the description.
    Refuse a page on which Python's Markdown shows a list or table as plain text. GitHub may show
    the same source correctly, so the mistake is not visible there.
    """
    name = page.file.src_uri
    if unread := UNREAD.search(html):
        raise PluginError(f"{name}: a list or table is shown as text: {unread[1]}")
    if not (beginning := BEGINNING.search(html)):
        raise PluginError(f"{name}: no sentence below the heading says what the page is for")
    heading, introduction = map(_text_of, beginning.groups())
    page.meta["title"] = HOME_TITLE if name == "index.md" else heading
    page.meta["description"] = textwrap.shorten(introduction, 200, placeholder=" …")
    page.meta["search"] = {"boost": INNER_BOOST if INNER.match(name) else BOOSTS.get(name, 1)}
    return TABLE.sub(_label_cells, html)


def _text_of(content: str) -> str:
    """Return the text of an HTML fragment, escaped for an attribute. Leave apostrophes as they are,
    because the theme escapes some titles a second time.
    """
    text = unescape(TAG.sub("", PERMALINK.sub("", content)))
    return escape(text, quote=False).replace('"', "&quot;")


def _label_cells(table: re.Match[str]) -> str:
    """Repeat the heading of a column in each of its cells, because a narrow screen shows the cells
    of a row below each other (site.css). Tables with two columns fit on such a screen, so they do
    not need this.
    """
    head, mark, body = table[0].partition("</thead>")
    titles = [_text_of(title) for title in HEADING_CELL.findall(head)]

    def label(row: re.Match[str]) -> str:
        rest = iter(titles)
        return re.sub("<td>", lambda _: f'<td data-column="{next(rest)}">', row[0])

    if len(titles) > NARROW_COLUMNS:
        body = ROW.sub(label, body)
    # A heading without text confuses screen readers, so make it an ordinary cell.
    return head.replace("<th></th>", "<td></td>") + mark + body


def on_post_page(output: str, *, page: Page, **_: object) -> str:
    """Refuse a page that makes a browser load something from another host. Add what the theme
    leaves out: a name for the search dialog, and the title and description for shared links.
    """
    if loaded := LOADED.search(output):
        raise PluginError(
            f"{page.file.src_uri} would load something from another host: {loaded[0]}"
        )
    shared = "".join(
        f'<meta property="og:{name}" content="{page.meta[name]}">'
        for name in ("title", "description")
    )
    return _name_search(output).replace("</head>", shared + "</head>", 1)


def on_post_template(output: str, *, template_name: str, config: MkDocsConfig) -> str:
    """Write our text into 404.html, the page that the site shows for a wrong address."""
    if template_name != "404.html":
        return output
    home = urllib.parse.urlsplit(config.site_url or "/").path
    return _name_search(HEADING.sub(NOT_FOUND.format(home=home), output))


def _name_search(page: str) -> str:
    return page.replace('role="dialog"', 'role="dialog" aria-label="Search"')
