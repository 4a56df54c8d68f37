"""What commands do without the packages of an extra (decision 0090)."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from appliance.extras import EXTRA_OF, is_installed, missing

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

WITHOUT = """
import sys
for name in {absent!r}:
    sys.modules[name] = None  # as if it were not installed: each import of it raises ModuleNotFoundError
from appliance.cli.program import main
raise SystemExit(main({arguments!r}))
"""


def without(absent: tuple[str, ...], *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a Python in which the modules `absent` cannot be imported."""
    code = WITHOUT.format(absent=absent, arguments=[str(each) for each in arguments])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", each, maxsplit=1)[0].lower() for each in requirements}


def test_each_module_of_an_extra_belongs_to_a_package_that_the_extra_installs() -> None:
    distributions = packages_distributions()
    for module, extra in EXTRA_OF.items():
        if module in distributions:
            assert {each.lower() for each in distributions[module]} & names(
                PROJECT["optional-dependencies"][extra]
            )


def test_the_broker_alone_installs_no_package_of_an_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    of_users = set().union(
        *(
            names(extras[each])
            for each in ("cli", "console", "zookeeper", "oauth", "schemas", "telemetry", "spark")
        )
    )
    assert not names(PROJECT["dependencies"]) & of_users
    assert names(extras["all"]) == of_users


@pytest.mark.parametrize(
    "command", [("produce", "t"), ("consume", "t"), ("topics", "list"), ("groups", "list")]
)
def test_a_command_without_its_package_names_the_extra(command: tuple[str, ...]) -> None:
    done = without(("confluent_kafka",), *command)
    assert done.returncode == 1
    assert done.stderr == (
        "appliance: this command needs the package confluent_kafka, which is not installed. It belongs to the extra"
        " `cli`; in a clone of the appliance run: pip install '.[cli]'\n"
    )


def test_a_store_in_zookeeper_without_its_package_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    settings = ("--set", "metadata.store=zookeeper", "--set", "zookeeper.connect=127.0.0.1:1")
    done = without(("kazoo",), "serve", "--data-dir", tmp_path / "data", *settings)
    assert done.returncode == 2
    assert "metadata.store = zookeeper needs the package kazoo" in done.stderr
    assert "pip install '.[zookeeper]'" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_console_without_its_package_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    settings = ("--set", "console.listener=127.0.0.1:9645")
    done = without(("jinja2",), "serve", "--data-dir", tmp_path / "data", *settings)
    assert done.returncode == 2
    assert "console.listener needs the package jinja2" in done.stderr
    assert "pip install '.[console]'" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("package", ["jwt", "cryptography"])
def test_tokens_without_their_packages_are_refused_before_anything_is_written(
    tmp_path: Path, package: str
) -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "https://identity.example/keys",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    done = without((package,), "serve", "--data-dir", tmp_path / "data", *words)
    assert done.returncode == 2
    assert f"sasl.enabled.mechanisms = OAUTHBEARER needs the package {package}" in done.stderr
    assert "pip install '.[oauth]'" in done.stderr
    assert not (tmp_path / "data").exists()


def test_an_export_without_pyarrow_names_the_extra(tmp_path: Path) -> None:
    done = without(("pyarrow",), "export", "parquet", "t", "--to", tmp_path / "out", "--data-dir", tmp_path)
    assert done.returncode == 1
    assert "export parquet needs the package pyarrow" in done.stderr
    assert "pip install '.[spark]'" in done.stderr


TABLE = """
import sys
{absent}
from appliance.cli.output import print_table
print_table(("NAME", "SIZE"), [("orders", 7), ("a-longer-name", None)], right=("SIZE",))
"""


def test_a_table_has_the_same_cells_with_and_without_rich() -> None:
    shown = [
        subprocess.run(
            [sys.executable, "-c", TABLE.format(absent=absent)],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for absent in ("", "sys.modules['rich'] = None")
    ]
    assert [line.split() for line in shown[0].splitlines()] == [
        line.split() for line in shown[1].splitlines()
    ]
    assert shown[1] == "NAME           SIZE\norders            7\na-longer-name     -\n"


def test_a_module_of_no_extra_is_not_explained_away() -> None:
    assert missing("appliance.no_such_module", needed_by="this command") is None
    assert is_installed("json")
