"""Write the manual pages: appliance(1), one page for each command, and appliance.toml(5).

usage: man_pages.py DIRECTORY

The pages are made from the commands' own help and from the declarations of the options, so they cannot say anything
else. Source of the format: man(7) of groff.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from appliance.cli.program import program
from appliance.config.declaration import Declaration, Effect, text_of
from appliance.config.settings import option_declarations
from appliance.config.topic_defaults import BROKER_WIDE
from appliance.version import VERSION

NAME = "appliance"
EXIT_STATUS = (
    ("0", "The command succeeded."),
    ("1", "It failed."),
    ("2", "A flag, an option or an argument is wrong."),
    ("130", "It was interrupted."),
)
EFFECTS = {
    Effect.AT_ONCE: "Takes effect at once.",
    Effect.AT_RESTART: "Takes effect at restart.",
    Effect.NONE: "Has no effect; it is stored and shown only.",
}


def escaped(text: str) -> str:
    """Return `text` as roff shows it: backslashes, hyphens, and dots and quotes at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    """Return the lines of help text: paragraphs are filled, those after click's \\b are kept as they are."""
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith("\b"):
            yield from (".PP", ".nf", escaped(block.removeprefix("\b").strip("\n")), ".fi")
        else:
            yield from (".PP", escaped(re.sub(r"\s*\n\s*", " ", block.strip())))


def head(name: str, section: int, summary: str) -> list[str]:
    return [
        f'.TH "{name.upper()}" "{section}" "" "{NAME} {VERSION}" "the appliance"',
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(summary.rstrip('.'))}",
    ]


def page_of(command: click.Command, words: tuple[str, ...], context: click.Context) -> str:
    """Return the manual page of one command."""
    called = " ".join(words)
    lines = head("-".join(words), 1, command.get_short_help_str(200))
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [".SH SYNOPSIS", f"\\fB{escaped(called)}\\fP {escaped(usage)}"]
    lines += [".SH DESCRIPTION", *paragraphs(command.help or command.get_short_help_str(200))]
    records = [
        found
        for param in command.get_params(context)
        if (found := param.get_help_record(context)) is not None
    ]
    if records:
        lines.append(".SH OPTIONS")
        for flags, text in records:
            lines += [".TP", f"\\fB{escaped(flags)}\\fP", escaped(text.replace("\n", " "))]
    subcommands = list(named_commands(command, context))
    if subcommands:
        lines.append(".SH COMMANDS")
        for name, each in subcommands:
            reference = f"\\fB{escaped('-'.join((*words, name)))}\\fP(1)"
            lines += [".TP", reference, escaped(each.get_short_help_str(200))]
    lines.append(".SH EXIT STATUS")
    for code, text in EXIT_STATUS:
        lines += [".TP", code, text]
    lines.append(".SH SEE ALSO")
    above = f"\\fB{escaped('-'.join(words[:-1]))}\\fP(1), " if len(words) > 1 else ""
    lines.append(f"{above}\\fBappliance.toml\\fP(5)")
    return "\n".join(lines) + "\n"


def named_commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Return the visible commands of a group."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield name, found


def pages(
    command: click.Command, words: tuple[str, ...], parent: click.Context | None
) -> Iterator[tuple[str, str]]:
    """Return file name and content of the page of a command and of all below it."""
    context = click.Context(command, info_name=words[-1], parent=parent, **program.context_settings)
    yield f"{'-'.join(words)}.1", page_of(command, words, context)
    for name, each in named_commands(command, context):
        yield from pages(each, (*words, name), context)


def option_entries(declarations: Iterable[Declaration]) -> Iterator[str]:
    """Return the lines of one list of options, in the order of their names."""
    for each in sorted(declarations, key=lambda declaration: declaration.name):
        default = text_of(each.default)
        yield ".TP"
        yield f"\\fB{escaped(each.name)}\\fP = {escaped(default) if default else '(none)'}"
        yield escaped(f"{each.doc} Must be {each.allowed()}. {EFFECTS[each.effect]}")


def options_page(declarations: Iterable[Declaration], of_topics: Iterable[Declaration]) -> str:
    """Return appliance.toml(5): the options, and the defaults of topics under their broker-wide names."""
    lines = head("appliance.toml", 5, "options of the appliance")
    lines += [
        ".SH DESCRIPTION",
        "The file is in TOML. Names with dots are quoted:",
        ".PP",
        ".nf",
        'slots = 3\n"max.connections" = 500\n"log.retention.ms" = "7 d"',
        ".fi",
        ".PP",
        escaped(
            "Sizes may have a unit (kB, MB, GB, KiB, MiB, GiB), and times, too (ms, s, min, h, d). "
            "`appliance serve --set NAME=VALUE` sets an option for one start."
        ),
        ".SH OPTIONS",
        *option_entries(declarations),
        ".SH DEFAULTS OF TOPICS",
        "These apply to every topic that has no value of its own for the setting.",
        *option_entries(of_topics),
    ]
    lines += [".SH FILES", "/etc/appliance/appliance.toml", ".SH SEE ALSO", "\\fBappliance\\-serve\\fP(1)"]
    return "\n".join(lines) + "\n"


def write(directory: Path) -> list[Path]:
    """Write all pages; return their paths."""
    found = dict(pages(program, (NAME,), None))
    found["appliance.toml.5"] = options_page(
        (declaration for _, _, declaration in option_declarations().values()),
        (declaration for declaration, _, _ in BROKER_WIDE.values()),
    )
    written = []
    for name, text in found.items():
        path = directory / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    write(directory)


if __name__ == "__main__":
    main()
