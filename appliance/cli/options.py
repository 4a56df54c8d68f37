"""Flags that several commands share, and how their texts are read."""

from __future__ import annotations

from typing import Final

import click

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

bootstrap_option = click.option(
    "--bootstrap",
    "-b",
    metavar="HOST:PORT",
    default=DEFAULT_BOOTSTRAP,
    envvar="APPLIANCE_BOOTSTRAP",
    show_default=True,
    help="A broker to begin with; several with commas. Also $APPLIANCE_BOOTSTRAP.",
)

data_dirs_option = click.option(
    "--data-dir",
    "data_dirs",
    metavar="DIR",
    multiple=True,
    help="The broker's data; repeatable for log directories of several slots.  [default: ./data]",
)


def data_paths(data_dirs: tuple[str, ...]) -> tuple[str, ...]:
    """What `--data-dir` named, or the directory that a broker without settings keeps."""
    # Other commands that take their flags from here need no settings.
    from appliance.config import load_settings

    return data_dirs or (str(load_settings(None, {}).data_dir),)


def name_and_value(flag: str, text: str) -> tuple[str, str]:
    """`NAME=VALUE` split at the first equals sign.

    Raises:
        click.UsageError: there is none, or no name before it.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.UsageError(f"{flag} {text!r}: wants NAME=VALUE")
    return name.strip(), value
