"""`appliance`: the commands by name, and what becomes of their errors.

Exit codes: 0 done, 1 failed, 2 asked for wrongly (a flag, an option, an argument), 130 interrupted. A reader
of our output that goes away (`| head`) ends the command with 1 and without a word, as click does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import click

from appliance.build import NAMES, build
from appliance.cli.aliases import ALIASES
from appliance.cli.output import plain_lines
from appliance.errors import ApplianceError, ConfigurationError, OperatorFault
from appliance.extras import missing
from appliance.version import VERSION

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

COMPLETE_VARIABLE: Final = "_APPLIANCE_COMPLETE"
"""Set in the environment while a shell asks what may come next."""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command lives, and its line in the help, which is shown without importing it."""

    module: str
    attribute: str
    summary: str
    is_hidden: bool = False


class LazyGroup(click.Group):
    """A group that imports a command when it is run: `appliance --version` loads none of them."""

    def __init__(self, *, lazy: Mapping[str, LazyCommand], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name) or self._lazy.get(ALIASES.get(cmd_name, ""))
        if lazy is None:
            return None
        command = getattr(import_module(lazy.module), lazy.attribute)
        assert isinstance(command, click.Command)
        if COMPLETE_VARIABLE in os.environ:
            from appliance.cli.completing import complete_names

            complete_names(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # click suggests only commands that are imported.
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            close = get_close_matches(name, self._lazy, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, lazy.summary) for name, lazy in self._lazy.items() if not lazy.is_hidden]
            )


COMMANDS: Final[Mapping[str, LazyCommand]] = {
    "serve": LazyCommand("appliance.cli.serve", "serve", "Run the broker until it is stopped."),
    "topics": LazyCommand(
        "appliance.cli.topics", "topics", "Create, list, describe, grow and delete topics."
    ),
    "configs": LazyCommand(
        "appliance.cli.configs", "configs", "Show and change settings of topics, brokers and groups."
    ),
    "produce": LazyCommand("appliance.cli.produce", "produce", "Send lines or files to a topic."),
    "consume": LazyCommand("appliance.cli.consume", "consume", "Print the records of a topic."),
    "groups": LazyCommand("appliance.cli.groups", "groups", "Show, delete and reset consumer groups."),
    "retries": LazyCommand(
        "appliance.cli.retries", "retries", "Deliver records again that the consumers of a group hand back."
    ),
    "dead-letters": LazyCommand(
        "appliance.cli.dead_letters",
        "dead_letters",
        "Show, replay and purge records that a group could not process.",
    ),
    "transactions": LazyCommand(
        "appliance.cli.transactions", "transactions", "Show transactions; find and abort hanging ones."
    ),
    "delayed": LazyCommand("appliance.cli.delayed", "delayed", "List, show and cancel delayed records."),
    "acls": LazyCommand("appliance.cli.acls", "acls", "Show and change ACLs: who may do what."),
    "users": LazyCommand("appliance.cli.users", "users", "Show and change the users that log in with SCRAM."),
    "tokens": LazyCommand("appliance.cli.tokens", "tokens", "Create, list, renew and end delegation tokens."),
    "audit": LazyCommand(
        "appliance.cli.message_audit",
        "audit",
        "Show what came into a topic and what went out, by time bucket.",
    ),
    "trace": LazyCommand(
        "appliance.cli.message_trace",
        "trace",
        "Show the way of one record: produced, stored, fetched, consumed.",
    ),
    "audit-log": LazyCommand("appliance.cli.audit_log", "audit_log", "Show the audit journal: who did what."),
    "quotas": LazyCommand(
        "appliance.cli.quotas", "quotas", "Show and change quotas of users, client ids and addresses."
    ),
    "offsets": LazyCommand(
        "appliance.cli.offsets", "offsets", "Show first, last stable and end offsets of partitions."
    ),
    "log": LazyCommand("appliance.cli.log_dump", "log", "Show the contents of log files."),
    "log-dirs": LazyCommand(
        "appliance.cli.log_dirs", "log_dirs", "Show log directories; move partitions between them."
    ),
    "slots": LazyCommand("appliance.cli.slots", "slots", "Show, stop, start and restart broker slots."),
    "partitions": LazyCommand(
        "appliance.cli.partitions", "partitions", "Show partitions and their leaders; elect leaders."
    ),
    "reassign": LazyCommand(
        "appliance.cli.reassign",
        "reassign",
        "Move partitions to other slots, or change the number of replicas.",
    ),
    "adopt": LazyCommand("appliance.cli.adopt", "adopt", "Take over log directories of Apache Kafka."),
    "backup": LazyCommand(
        "appliance.cli.backup", "backup", "Back up an appliance; list, verify and prune backups."
    ),
    "restore": LazyCommand("appliance.cli.backup", "restore", "Write a backup into a new data directory."),
    "export": LazyCommand("appliance.cli.export", "export", "Export topics to files."),
    "status": LazyCommand(
        "appliance.cli.status", "status", "Show a running appliance: address, disks, topics, processes."
    ),
    "doctor": LazyCommand(
        "appliance.cli.doctor",
        "doctor",
        "Look at this host and the configuration; say what to change and why.",
    ),
    "top": LazyCommand("appliance.cli.top", "top", "Watch a running appliance: processes, topics, groups."),
    "cluster": LazyCommand(
        "appliance.cli.cluster", "cluster", "Show the cluster: its brokers and topics, and what is wrong."
    ),
    "perf": LazyCommand("appliance.cli.perf", "perf", "Measure throughput and latency of a broker."),
    "bench": LazyCommand(
        "appliance.cli.bench", "bench", "Measure a broker for a minute; print a table for an issue."
    ),
    "completion": LazyCommand(
        "appliance.cli.completion", "completion", "Let the shell complete commands and names."
    ),
    "help": LazyCommand("appliance.cli.meta", "show_help", "Show the help of a command."),
    "version": LazyCommand("appliance.cli.meta", "version", "Show the version."),
    "ls": LazyCommand("appliance.cli.meta", "ls", "List the topics.", is_hidden=True),
}

program = LazyGroup(
    name="appliance",
    lazy=COMMANDS,
    help="A log broker for one host, with Kafka's protocol and Kafka's file format.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def version_text() -> str:
    """Return the version, and which build this is."""
    return f"appliance {VERSION} ({NAMES[build()]})"


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(version_text())
        context.exit()


program = click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and whether this build is compiled, and exit.",
)(program)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command in `arguments` (default: the process's) and returns its exit code.

    Prints no traceback for what a person or the machine did wrong; only for a mistake of ours.
    """
    return _exit_code(lambda: program.main(args=arguments, prog_name="appliance", standalone_mode=False))


def _exit_code(command: Callable[[], object]) -> int:
    try:
        code = command()
        sys.stdout.flush()
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.ClickException as fault:  # usage, a bad parameter, a file that cannot be opened
        fault.show()
        return USAGE
    except ConfigurationError as fault:
        return _say(fault, USAGE)
    except ApplianceError as fault:
        return _say(fault, FAILED)
    except ModuleNotFoundError as fault:
        if (absent := missing(fault.name or "", needed_by="this command")) is None:
            raise
        return _say(absent, FAILED)
    except PermissionError as fault:
        where = f"{fault.filename}: " if fault.filename is not None else ""
        return _say(OperatorFault(f"{where}{fault.strerror or fault}"), FAILED)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code if isinstance(code, int) else 0


def _say(fault: Exception, code: int) -> int:
    click.echo(f"appliance: {plain_lines(str(fault))}", err=True)
    return code
