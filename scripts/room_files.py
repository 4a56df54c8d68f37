"""Write the lists of files in the READMEs of rooms: `python -m scripts.room_files`.

A README of a room names each module of the room, so that a reader finds the file to change. Small rooms have a table
that people write. The README of a larger room ends with a generated list: the lines between the marks BEGIN and END. It
shows the first sentence of each module's docstring. A test fails when a module is missing from its README, or when a
list is stale. Standard library only.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
APPLIANCE = ROOT / "appliance"
PACKAGES = (APPLIANCE, ROOT / "appliance_client", ROOT / "spark_connector")

NO_CONTENT = frozenset({"__init__.py", "setup.py"})

BEGIN = "<!-- files: begin (written by `python -m scripts.room_files`) -->"
END = "<!-- files: end -->"

SENTENCE_END = re.compile(r"(?<=[^.\s]{2}[.?!])\s+(?=[A-Z`(\[])")


def readmes() -> list[Path]:
    """Return the READMEs of all rooms, of directories in rooms, and of the two packages beside the rooms."""
    return sorted(readme for package in PACKAGES for readme in package.rglob("README.md"))


def modules(readme: Path) -> Iterator[Path]:
    """Yield the modules that a README must name: all below its directory, except where a nearer README is."""
    others = {each.parent for each in readmes()} - {readme.parent}
    for module in sorted(readme.parent.rglob("*.py"), key=lambda path: (path.parent, path.name)):
        if module.name not in NO_CONTENT and not any(_is_nearer(other, module, readme) for other in others):
            yield module


def unnamed(readme: Path, text: str) -> list[str]:
    """Return the modules that a README does not name, as paths below its directory.

    A README names `pages/paging.py` by its path, or by `paging.py` alone if no other module below it has this name.
    """
    words = set(re.findall(r"[\w./-]+\.py", text))
    found = list(modules(readme))
    names = Counter(module.name for module in found)
    missing = []
    for module in found:
        path = module.relative_to(readme.parent).as_posix()
        if path not in words and (module.name not in words or names[module.name] > 1):
            missing.append(path)
    return missing


def with_list(readme: Path, text: str) -> str:
    """Return the text of a README with its generated list brought up to date, or unchanged if it has none."""
    if BEGIN not in text:
        return text
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    rows = [
        f"| `{module.relative_to(readme.parent).as_posix()}` | {first_sentence(module)} |"
        for module in modules(readme)
    ]
    table = "\n".join(("| file | what |", "|---|---|", *rows))
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def first_sentence(module: Path) -> str:
    """Return the first sentence of a module's docstring, fit for a cell of a table.

    Raises ValueError if the module has no docstring.
    """
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{module}: the module needs a docstring, whose first sentence says what it is for")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return SENTENCE_END.split(paragraph)[0].replace("|", "\\|")


def _is_nearer(other: Path, module: Path, readme: Path) -> bool:
    return readme.parent in other.parents and other in module.parents


def main() -> None:
    """Bring the lists of all READMEs up to date."""
    for readme in readmes():
        text = readme.read_text(encoding="utf-8")
        readme.write_text(with_list(readme, text), encoding="utf-8")


if __name__ == "__main__":
    main()
