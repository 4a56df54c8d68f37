"""Find words of the old house dialect in texts that users read: `python scripts/prose.py`, part of `make lint`.

Texts that users read:

    pages          every Markdown page outside NOT_READ
    descriptions   string literals of appliance/cli and appliance/config
    log lines      the string arguments of calls on loggers, in all of appliance and spark_connector
    errors         the string arguments of exceptions that are raised there
    figures        benchmarks/*.toml, which the result pages quote

Each rule is a pattern and what to write instead. Code in Markdown (fences and backticks), comments and docstrings are
not read, except docstrings of commands, which are their help.

A sentence of a page that readers see first (FIRST_PAGES) has at most SENTENCE_WORDS_MAX words, because longer ones
hold more than one fact. Tables, code and generated blocks are not counted. Exits with 1 if anything is found. Standard
library only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

RULES: tuple[tuple[str, str], ...] = (
    (r"anew", "again, from the start"),
    (r"whoever|whosoever", "name the actor: a client, a process, a user"),
    (r"dear(?:er|est|ly)?", "expensive, slow"),
    (r"cheap(?:er)? of", "inexpensive"),
    (r"seldom", "rarely, or give the number"),
    (r"is told|are told|was told|were told|be told|told of", "gets, receives, is notified"),
    (r"hears?(?= of| nothing| from)", "receives, is notified"),
    (r"obeys?", "follows"),
    (r"owes?|owed", "must still send"),
    (r"nobody's|somebody's|everybody's", "name the owner"),
    (r"lies (?:in|on|at|beside|above|below|past|beyond|behind|before|there|down)", "is in, is at"),
    (r"lie (?:in|on|at|beside|above|below|past|beyond|behind|before|there)", "are in, are at"),
    (r"stands (?:in|on|at|still|for itself|alone|beside)", "is in, hangs"),
    (r"hither|thither|whence|thence|hence", "from here, therefore"),
    (r"in vain", "without success"),
    (r"goes on|go on|went on|gone on", "continue"),
    (r"so many", "this number of, at most"),
    (r"a life before|of a life|its life", "an earlier process"),
    (r"met? a defect|a defect of ours", "internal error"),
    (r"look-?outs?", "spin-wait"),
    (r"takes? back|took back|taken back", "undo, remove"),
    (r"house(?! of cards)", "project, source tree"),
    (r"straight off the disk|off the disk", "from the disk"),
    (r"(?:^|(?<=[.;:] ))Who (?:\w+ ){1,4}(?:is|are|gets|has|may|must)\b(?!.*\?)", "a client that …"),
    (r"to and fro|there and back", "back and forth, round trip"),
    (r"betimes|erewhile|ere", "early, before"),
    (r"as it were|in truth|verily", "leave it out"),
    (r"(?:for|to|by|of|from|with|than) who", "name the actor: a client, a process, a user"),
    (r"(?:bears?|bore|borne) (?:it|them|this|that) out", "confirms"),
    (r"askers?", "the client or process that asks"),
    (r"of its own accord", "by itself"),
    (r"comes? to nothing|it is of no use", "has no effect"),
    (r"by turns|turn about", "alternately, in turns"),
)
"""Pattern of whole words → what to write instead."""

NOT_READ: tuple[tuple[str, str], ...] = (
    ("docs/lab/", "lab notebooks: kept as they were written, for their figures"),
    ("benchmarks/results/", "generated from kept runs and benchmarks/*.toml, which are read"),
    ("appliance/", "room READMEs: for people who change the code, rewritten with their rooms"),
    ("spark_connector/", "room READMEs: for people who change the code, rewritten with their rooms"),
    ("tests/", "room READMEs: for people who change the tests, rewritten with their rooms"),
    (
        "ARCHITECTURE.md",
        "for people who change the code, rewritten together with the rooms that it describes",
    ),
    ("CHANGELOG.md", "written by hand when branches are merged, and history afterwards"),
    ("scripts/", "for people who change the build"),
)
"""Beginning of a page's path → why the page is not read."""

FIRST_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md")
"""Pages whose sentences are counted. Decision records and notebooks hold figures and are not among them."""

SENTENCE_WORDS_MAX = 30
"""Strangers read longer sentences twice. A piece of code counts as one word."""

LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})


@dataclass(frozen=True, slots=True)
class Text:
    """A text that users read, and where it is."""

    path: Path
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A word of the dialect in a text."""

    text: Text
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.text.path}:{self.text.line}: {self.word!r}: {self.instead}"


def page_texts(path: Path, content: str) -> Iterator[Text]:
    """Yield the lines of a Markdown page without fenced code, inline code and addresses of links."""
    fenced = False
    for number, line in enumerate(content.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield Text(path, number, re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", line))


def code_texts(path: Path, content: str, *, all_strings: bool) -> Iterator[Text]:
    """Yield the strings of log lines and errors of a module; with `all_strings` every string that is not a docstring.

    The docstring of a function with decorators that name a command is its help, and read.
    """
    tree = ast.parse(content)
    if all_strings:
        docstrings = {id(node) for node in _docstrings(tree)}
        calls: list[ast.AST] = [tree]
    else:
        docstrings = set()
        calls = [node for node in ast.walk(tree) if _is_log_line(node) or isinstance(node, ast.Raise)]
    seen: set[int] = set()
    for call in calls:
        for node in ast.walk(call):
            if (
                not isinstance(node, ast.Constant)
                or not isinstance(node.value, str)
                or id(node) in seen | docstrings
            ):
                continue
            seen.add(id(node))
            yield Text(path, node.lineno, node.value)


def _is_log_line(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in LOG_METHODS and "log" in ast.unparse(node.func.value).lower()


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield docstrings, and the texts under attributes, but not those that are the help of a command."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            re.search(r"command|group", ast.unparse(each)) for each in node.decorator_list
        ):
            continue
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value


def findings(text: Text) -> Iterator[Finding]:
    """Yield each word of the dialect in `text`."""
    for pattern, instead in RULES:
        for found in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", text.text, re.IGNORECASE):
            yield Finding(text, found[0], instead)


def long_sentences(path: Path, content: str) -> Iterator[Finding]:
    """Yield each sentence of a Markdown page that has more than SENTENCE_WORDS_MAX words."""
    plain = content
    for not_prose in (
        r"^ *```.*?^ *```$",
        r"<!-- (\w+): begin -->.*?<!-- \1: end -->",
        r"^ *\|.*?$",
        r"^ *#.*?$",
    ):
        plain = re.sub(not_prose, _blank, plain, flags=re.DOTALL | re.MULTILINE)
    for block in re.finditer(r"(?:(?!\n\s*\n|\n\s*(?:[-*]|\d+\.) ).)+", plain, re.DOTALL):
        words = re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", block[0]))
        line = plain.count("\n", 0, block.start() + len(block[0]) - len(block[0].lstrip())) + 1
        for sentence in re.split(r"(?<=[.!?])[*_)\"]*\s+", words):
            count = len(re.findall(r"\w\S*", sentence))
            if count > SENTENCE_WORDS_MAX:
                begin = " ".join(sentence.split()[:6])
                yield Finding(Text(path, line, sentence), begin, f"{count} words: write one fact a sentence")


def _blank(found: re.Match[str]) -> str:
    """Return the line ends of what is not prose, so that lines keep their numbers and sentences end there."""
    return "\n" * found[0].count("\n")


def texts(root: Path) -> Iterator[Text]:
    """Yield every text under `root` that users read."""
    for page in sorted([*root.glob("*.md"), *root.glob("[a-z]*/**/*.md")]):
        name = page.relative_to(root).as_posix()
        if not name.startswith((".", "build/", "dist/", "data/")) and not name.startswith(
            tuple(start for start, _ in NOT_READ)
        ):
            yield from page_texts(page.relative_to(root), page.read_text(encoding="utf-8"))
    for figures in sorted((root / "benchmarks").glob("*.toml")):
        yield from page_texts(figures.relative_to(root), figures.read_text(encoding="utf-8"))
    for package in ("appliance", "spark_connector"):
        for module in sorted((root / package).rglob("*.py")):
            path = module.relative_to(root)
            is_users = path.as_posix().startswith(("appliance/cli/", "appliance/config/"))
            yield from code_texts(path, module.read_text(encoding="utf-8"), all_strings=is_users)


def main() -> int:
    found = [finding for text in texts(ROOT) for finding in findings(text)]
    for pattern in FIRST_PAGES:
        for page in sorted(ROOT.glob(pattern)):
            found += long_sentences(page.relative_to(ROOT), page.read_text(encoding="utf-8"))
    for finding in found:
        print(finding)
    if found:
        print(f"{len(found)} places to write plainly; docs/glossary.md has the words to use", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
