"""`uv tool install` and `pipx install` of the wheel: the command serves, and is gone after the removal."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.installation.environment import INSTALL_S, InstalledCommand, cached_wheel, clean

TOOLS = Path(sysconfig.get_path("scripts"))


def use(words: list[str], place: Path) -> None:
    """Run uv or pipx with all its directories below `place`."""
    environment = clean(
        {
            "HOME": str(place),
            "UV_TOOL_DIR": str(place / "tools"),
            "UV_TOOL_BIN_DIR": str(place / "commands"),
            "PIPX_HOME": str(place / "tools"),
            "PIPX_BIN_DIR": str(place / "commands"),
            # uv has authorities of its own; a host behind a proxy trusts others.
            "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
        }
    )
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment, timeout=INSTALL_S, cwd=place
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(2 * INSTALL_S)
@pytest.mark.parametrize(
    "installer", [(str(TOOLS / "uv"), "tool"), (str(TOOLS / "pipx"),)], ids=("uv", "pipx")
)
def test_the_wheel_is_a_command_of_its_own(installer: tuple[str, ...], tmp_path: Path) -> None:
    python = str(Path(sys.executable).resolve())
    use([*installer, "install", "--python", python, f"{cached_wheel()}[cli]"], tmp_path)
    command = InstalledCommand(tmp_path / "commands", tmp_path / "elsewhere")
    assert "compiled build" in command.appliance("--version")
    assert command.serve_one_record() == "compiled"
    use([*installer, "uninstall", "log-appliance"], tmp_path)
    assert not (tmp_path / "commands" / "appliance").exists()
