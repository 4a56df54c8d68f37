"""Build the client's own distribution: `pip install ./appliance_client` (decision 0102).

The wheel holds this package and a copy of what it uses of the appliance, `appliance/errors.py` and
`appliance/protocol/`, as `appliance_client._appliance`, with their imports renamed. So it needs no broker, and no file
of it belongs to another distribution where both are installed.

APPLIANCE_BUILD chooses as for the appliance: unset compiles the hot modules where that is possible, `compiled` fails
where it is not, `pure` does not compile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
PACKAGE = "appliance_client"
BUNDLE = f"{PACKAGE}._appliance"
OURS = re.compile(r"\bappliance\.(errors|protocol)\b")
LEFT_OUT = ("setup.py",)
HOT_MODULES = ("appliance_client/kernel.py", "appliance_client/accumulator.py", "appliance_client/intake.py")
CHOICE = os.environ.get("APPLIANCE_BUILD", "")


def sources() -> Iterator[tuple[Path, str]]:
    """Each file of the wheel, and its path in there."""
    for path in sorted(HERE.iterdir()):
        if (path.suffix == ".py" and path.name not in LEFT_OUT) or path.name == "py.typed":
            yield path, f"{PACKAGE}/{path.name}"
    broker = HERE.parent / "appliance"
    for path in [broker / "errors.py", *sorted((broker / "protocol").rglob("*.py"))]:
        yield path, f"{BUNDLE.replace('.', '/')}/{path.relative_to(broker)}"


class Bundle(build_py):
    """Copy the sources, with the imports of the appliance renamed."""

    def run(self) -> None:
        target = Path(self.build_lib)
        for source, name in sources():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(OURS.sub(rf"{BUNDLE}.\1", source.read_text()))
        (target / BUNDLE.replace(".", "/") / "__init__.py").write_text('"""A copy; see setup.py."""\n')

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [str(Path(self.build_lib) / name) for _, name in sources()]

    def get_source_files(self) -> list[str]:
        return []


class CompileHotModules(build_ext):
    """Compile the copies that lie in the build directory, whose imports are those of the wheel."""

    def run(self) -> None:
        if CHOICE == "pure" or self.editable_mode:
            return
        try:
            self._compile()
        except (Exception, SystemExit) as fault:
            if CHOICE == "compiled":
                raise
            self.extensions = self.distribution.ext_modules = []
            print(f"{PACKAGE}: pure Python build, because the hot modules cannot be compiled: {fault}")

    def _compile(self) -> None:
        from mypyc.build import mypycify

        self.run_command("build_py")
        place, back = Path(self.build_lib).resolve(), Path.cwd()
        output, temporary = Path(self.build_lib).resolve(), Path(self.build_temp).resolve()
        os.chdir(place)
        try:
            self.extensions = self.distribution.ext_modules = mypycify(
                [
                    "--config-file=",
                    "--ignore-missing-imports",
                    f"--cache-dir={temporary / 'mypy'}",
                    *HOT_MODULES,
                ],
                opt_level="3",
                group_name=f"{PACKAGE}.compiled",
                target_dir=str(temporary / "mypyc"),
            )
            for each in self.extensions:
                each.include_dirs.append(str(temporary / "mypyc" / PACKAGE))
                each.extra_compile_args.append("-fvisibility=hidden")
            self.swig_opts = None
            self.finalize_options()
            self.build_lib, self.build_temp, self.inplace = str(output), str(temporary), False
            super().run()
        finally:
            os.chdir(back)


class WithExtensions(Distribution):
    """A distribution whose extensions are known only when `build_ext` has run."""

    def has_ext_modules(self) -> bool:
        return CHOICE != "pure"


class Wheel(bdist_wheel):
    """Name the wheel for every platform when nothing in it is compiled."""

    def get_tag(self) -> tuple[str, str, str]:
        self.root_is_pure = not self.distribution.ext_modules
        tag: tuple[str, str, str] = super().get_tag()
        return tag


commands: dict[str, Any] = {"build_py": Bundle, "build_ext": CompileHotModules, "bdist_wheel": Wheel}
setup(
    packages=[PACKAGE],
    package_dir={PACKAGE: "."},
    cmdclass=commands,
    distclass=WithExtensions,
)
