"""Each kind of installation serves from another directory than the tree, and is the build that it says it is."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from scripts.hot_modules import hot_modules
from tests.installation.environment import INSTALL_S, Installation, cached_wheel, copy_of_the_tree


def test_a_wheel_serves_compiled(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    installation.pip_install(cached_wheel())
    assert "compiled build" in installation.appliance("--version")
    assert installation.serve_one_record() == "compiled"


def test_a_wheel_has_every_hot_module_compiled_and_puts_nothing_beside_its_packages() -> None:
    with zipfile.ZipFile(cached_wheel()) as wheel:
        names = wheel.namelist()
    compiled = {name.split(".", 1)[0] for name in names if name.endswith(".so")}
    assert compiled == {name.removesuffix(".py") for name in hot_modules()} | {"appliance/compiled__mypyc"}
    top = {name.split("/", 1)[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "appliance",
        "spark_connector",
        "pyspark_appliance",
    }


def test_without_a_compiler_the_installation_is_pure_says_why_and_serves(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    said = installation.pip_install(copy_of_the_tree(tmp_path / "tree"), CC="/bin/false")
    assert said.count("pure Python build") == 1
    assert "the C compiler `/bin/false` does not work" in said
    assert "py3-none-any.whl" in said
    assert "pure Python build" in installation.appliance("--version")
    assert installation.serve_one_record() == "pure"


def test_an_editable_installation_runs_the_sources_as_they_are(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    tree = copy_of_the_tree(tmp_path / "tree")
    said = installation.pip_install("--editable", tree)
    assert "an editable installation is compiled only with APPLIANCE_BUILD=compiled" in said
    assert installation.serve_one_record() == "pure"
    version = tree / "appliance" / "version.py"
    version.write_text(version.read_text().replace('VERSION: Final = "', 'VERSION: Final = "changed '))
    assert "changed" in installation.appliance("--version")


ALL = pytest.param(None, marks=pytest.mark.slow, id="all")
FEW = pytest.param(("appliance/ipc/ring.py", "appliance/ipc/buffer_pool.py"), id="few")
"""The gate compiles two of the hot modules: what pip does with them is the same, in a tenth of the time."""


def keep_hot_modules(tree: Path, kept: tuple[str, ...] | None) -> None:
    if kept is not None:
        setup = tree / "setup.py"
        left_out = {f'    "{name}",' for name in hot_modules() if name not in kept}
        setup.write_text("\n".join(line for line in setup.read_text().splitlines() if line not in left_out))


@pytest.mark.timeout(INSTALL_S)
@pytest.mark.parametrize("kept", [FEW, ALL])
def test_an_editable_installation_that_is_asked_to_be_compiled_serves_compiled(
    tmp_path: Path, kept: tuple[str, ...] | None
) -> None:
    installation = Installation(tmp_path)
    tree = copy_of_the_tree(tmp_path / "tree")
    keep_hot_modules(tree, kept)
    installation.pip_install("--editable", tree, APPLIANCE_BUILD="compiled")
    assert {path.parent for path in tree.glob("**/*__mypyc*.so") if "build" not in path.parts} == {
        tree / "appliance"
    }
    assert installation.serve_one_record() == "compiled"


@pytest.mark.timeout(INSTALL_S)
@pytest.mark.parametrize("kept", [FEW, ALL])
def test_a_source_distribution_serves_compiled(tmp_path: Path, kept: tuple[str, ...] | None) -> None:
    installation = Installation(tmp_path)
    tree = copy_of_the_tree(tmp_path / "tree")
    keep_hot_modules(tree, kept)
    installation.pip_install(installation.source_distribution(tree, tmp_path))
    assert installation.serve_one_record() == "compiled"


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S)
def test_a_compiled_build_that_is_asked_for_fails_without_a_compiler(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    tree = copy_of_the_tree(tmp_path / "tree")
    with pytest.raises(AssertionError, match="the C compiler `/bin/false` does not work"):
        installation.pip_install(tree, CC="/bin/false", APPLIANCE_BUILD="compiled")
