"""`appliance serve`: settings from file and flags, a line to try, then the supervisor."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

import click

from appliance.build import COMPILED, NAMES, build
from appliance.cli.options import name_and_value
from appliance.config import Settings, load_settings
from appliance.config.sections.listeners import Listener, host_and_port
from appliance.errors import OperatorFault


@click.command(short_help="Run the broker until it is stopped.")
@click.option("--data-dir", metavar="DIR", help="The data directory.  [default: ./data]")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", metavar="PORT", help="Port of slot 0; slot n listens on PORT + n.  [default: 9092]")
@click.option(
    "--slots", metavar="N", help="Number of slots. Clients see each slot as one broker.  [default: 1]"
)
@click.option(
    "--config", "config_path", metavar="FILE", type=click.Path(path_type=Path), help="A TOML file of options."
)
@click.option(
    "--set", "overrides", metavar="NAME=VALUE", multiple=True, help="Set any option by its name; repeatable."
)
@click.option(
    "--secure",
    is_flag=True,
    help="Demonstration: make certificates, serve TLS only, and let in only the administrator's certificate.",
)
@click.option(
    "--ephemeral",
    is_flag=True,
    help="A broker for tests: on a free port, ends with the process that starts it, and throws its data away.",
)
@click.option("--json", "as_json", is_flag=True, help="With --ephemeral: print the address as JSON.")
@click.option("--scratch", type=click.Path(path_type=Path), hidden=True)
def serve(
    *,
    data_dir: str | None,
    host: str | None,
    port: str | None,
    slots: str | None,
    config_path: Path | None,
    overrides: tuple[str, ...],
    secure: bool,
    ephemeral: bool,
    as_json: bool,
    scratch: Path | None,
) -> int:
    """Run the broker until it is stopped (Ctrl-C, SIGTERM).

    Every option of docs/configuration.md can be set in FILE or with --set. Flags override the file.

    With --secure it makes an authority, a certificate for this host and one for an administrator in DIR/secure, and
    prints the settings for clients. docs/access.md shows how to set TLS up for production.

    With --ephemeral it prints its address alone, as one line on standard output, when clients can connect.
    docs/testing-with-it.md shows the fixture for pytest.
    """
    given = dict(name_and_value("--set", text) for text in overrides)
    flags = {"data.dir": data_dir, "host": host, "port": port, "slots": slots}
    given |= {name: text for name, text in flags.items() if text is not None}
    if ephemeral:
        if data_dir is not None or secure:
            raise click.UsageError(
                f"--ephemeral cannot be used with {'--secure' if secure else '--data-dir'}"
            )
        from appliance.cli.ephemeral import serve_ephemeral

        return serve_ephemeral(given, config_path, scratch=scratch, as_json=as_json)
    if as_json or scratch is not None:
        raise click.UsageError(f"{'--json' if as_json else '--scratch'} can be used with --ephemeral only")
    replaced: Collection[str] = ()
    settings = load_settings(config_path, given)
    if secure:
        from appliance.cli import secure as demonstration

        replaced = demonstration.REPLACED
        chosen = demonstration.options_of(settings)
        given = {name: text for name, text in given.items() if name not in replaced} | chosen
        settings = load_settings(config_path, given, without=replaced)

    def settings_now() -> Settings:
        return load_settings(config_path, given, without=replaced)

    from appliance.control.adoption.marker import refuse_unfinished
    from appliance.control.backup.marker import refuse_unfinished_restore
    from appliance.control.store.opening import refuse_other_store
    from appliance.control.supervisor.first_look import refuse_fewer_slots, refuse_foreign
    from appliance.control.supervisor.main import EXIT_REFUSED, run

    try:
        refuse_unfinished(settings.data_dir)
        refuse_unfinished_restore(settings.data_dir)
        refuse_foreign(settings)
        refuse_other_store(settings)
        refuse_fewer_slots(settings)
        certificates = demonstration.certificates_for(settings) if secure else None
    except OperatorFault as fault:
        click.echo(f"appliance: {fault}", err=True)
        return EXIT_REFUSED  # systemd starts it again after any other failure
    click.echo(start_text(settings))
    told = try_text(settings, own_command())
    if certificates is not None:
        for line in (demonstration.made_text(certificates), demonstration.expiry_text(certificates)):
            if line:
                click.echo(line)
        told = demonstration.client_text(certificates, settings, own_command())
    code: int = run(settings, when_ready=told, settings_now=settings_now if config_path is not None else None)
    return code


def start_text(settings: Settings) -> str:
    """What a person sees first. When it answers is for the supervisor to say, so no line here says it."""
    where = ", ".join(_where(settings, each) for each in settings.listeners)
    slots = "1 slot" if settings.slots == 1 else f"{settings.slots} slots"
    lines = [
        f"appliance: {slots} on {where}, data in {settings.data_dir}",
        build_text(build()),
    ]
    lines += [
        f"appliance: {alias} is accepted as {name} = {settings.configured[name]}"
        for alias, name in settings.aliases.items()
    ]
    return "\n".join(lines)


def _where(settings: Settings, listener: Listener) -> str:
    last = f" to {listener.port + settings.slots - 1}" if settings.slots > 1 else ""
    return (
        listener.text() if settings.listener.listeners else host_and_port(listener.host, listener.port)
    ) + last


def try_text(settings: Settings, command: str) -> str:
    """What a person may copy once it answers. With TLS alone it takes certificates, so there is nothing to copy."""
    if settings.main_listener.is_tls:
        return ""
    address = host_and_port(settings.client_host, settings.main_listener.client_port)
    bootstrap = "" if address == "127.0.0.1:9092" else f" --bootstrap {address}"
    return "\n".join(
        [
            "Try it from another terminal:",
            f"  printf 'hello\\n' | {command} produce demo{bootstrap}",
            f"  {command} consume demo{bootstrap}",
            "or with any Kafka client:",
            f"  printf 'hello\\n' | kcat -P -b {address} -t demo",
            f"  kcat -C -e -b {address} -t demo",
        ]
    )


def build_text(kind: str) -> str:
    """Return the line that names the build, and what an operator can do about the slower one."""
    if kind == COMPILED:
        return f"appliance: {NAMES[kind]}"
    return f"appliance: {NAMES[kind]}; the compiled build is 1.6 to 2 times as fast, and needs a C compiler"


def own_command() -> str:
    """How to call this program from the shell it was started from."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m appliance"
    found = shutil.which("appliance")
    if found is not None and Path(found).resolve() == started.resolve():
        return "appliance"
    absolute = started.absolute()
    here = Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))
