"""Build the package, with the hot modules compiled by mypyc where a C compiler works (decision 0080).

The environment variable APPLIANCE_BUILD chooses:

    unset      Compile. Where that is impossible, say why and build pure Python. An editable installation is not
               compiled, because a changed source would have no effect until the next compilation.
    compiled   Compile, editable installations too. Fail where that is impossible.
    pure       Do not compile.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError
from setuptools.extension import Extension

# The modules that handle a request, from the socket to the segment and back. A module is listed only if a measurement
# showed that compiling it pays. It must behave the same when it is not compiled.
HOT_MODULES = (
    "appliance/channels/partition_table.py",
    "appliance/channels/replica_channel.py",
    "appliance/control/coordinator/agent.py",
    "appliance/control/coordinator/coordinator.py",
    "appliance/control/coordinator/group_machines.py",
    "appliance/control/coordinator/offset_requests.py",
    "appliance/control/coordinator/offsets/offset_book.py",
    "appliance/control/coordinator/offsets/offset_commit.py",
    "appliance/control/coordinator/offsets/packed_offsets.py",
    "appliance/control/coordinator/offsets/pending_offsets.py",
    "appliance/control/coordinator/request_lines.py",
    "appliance/control/coordinator/request_queue.py",
    "appliance/control/coordinator/runtime/loading.py",
    "appliance/control/coordinator/runtime/runtime.py",
    "appliance/control/coordinator/runtime/shard.py",
    "appliance/control/coordinator/topics.py",
    "appliance/delayed/held_answers.py",
    "appliance/delivery/arriving.py",
    "appliance/delivery/division.py",
    "appliance/delivery/due.py",
    "appliance/delivery/levels.py",
    "appliance/delivery/stored.py",
    "appliance/delivery/waiting.py",
    "appliance/gateway/doors.py",
    "appliance/gateway/frames.py",
    "appliance/gateway/gateway.py",
    "appliance/gateway/outgoing.py",
    "appliance/gateway/parts.py",
    "appliance/gateway/pushing.py",
    "appliance/gateway/received.py",
    "appliance/gateway/session.py",
    "appliance/gateway/session_numbers.py",
    "appliance/gateway/subscription.py",
    "appliance/gateway/window.py",
    "appliance/lane/lanes.py",
    "appliance/lane/session.py",
    "appliance/ipc/agent.py",
    "appliance/ipc/brief_wait.py",
    "appliance/ipc/buffer_pool.py",
    "appliance/ipc/doorbell.py",
    "appliance/ipc/fence.py",
    "appliance/ipc/ring.py",
    "appliance/ipc/while_it_pays.py",
    "appliance/ioproc/answer_rings.py",
    "appliance/ioproc/costly_requests.py",
    "appliance/ioproc/followed.py",
    "appliance/ioproc/follower_bells.py",
    "appliance/ioproc/handlers/fetch.py",
    "appliance/ioproc/handlers/produce.py",
    "appliance/ioproc/held_produces.py",
    "appliance/ioproc/partition.py",
    "appliance/ioproc/pokes.py",
    "appliance/ioproc/replication.py",
    "appliance/ioproc/request_rings.py",
    "appliance/ioproc/worker.py",
    "appliance/log/index_file.py",
    "appliance/log/local_log.py",
    "appliance/log/log_producers.py",
    "appliance/log/offset_index.py",
    "appliance/log/open_transactions.py",
    "appliance/log/partition_log.py",
    "appliance/log/producer_limits.py",
    "appliance/log/producer_state.py",
    "appliance/log/readable_log.py",
    "appliance/log/segment.py",
    "appliance/log/segment_file.py",
    "appliance/log/segmented_log.py",
    "appliance/log/time_index.py",
    "appliance/log/validator.py",
    "appliance/message_audit/header_values.py",
    "appliance/message_trace/candidates.py",
    "appliance/netproc/arrivals.py",
    "appliance/netproc/connection.py",
    "appliance/netproc/connections.py",
    "appliance/netproc/fan_out.py",
    "appliance/netproc/intake.py",
    "appliance/netproc/memory_relief.py",
    "appliance/netproc/outlet.py",
    "appliance/netproc/processor.py",
    "appliance/netproc/read_ahead.py",
    "appliance/netproc/sockets.py",
    "appliance/partition_access/access.py",
    "appliance/partition_access/places.py",
    "appliance/partition_host/checkpoints.py",
    "appliance/protocol/fetch_request.py",
    "appliance/protocol/fetch_response.py",
    "appliance/protocol/framing.py",
    "appliance/protocol/headers.py",
    "appliance/protocol/leader_epoch.py",
    "appliance/protocol/offset_commit.py",
    "appliance/protocol/primitives.py",
    "appliance/protocol/produce.py",
    "appliance/protocol/records/keyed_batch.py",
    "appliance/protocol/records/offset_records.py",
    "appliance/protocol/records/record.py",
    "appliance/protocol/records/varint.py",
    "appliance/protocol/records/walk.py",
    "appliance/protocol/records/walk_fields.py",
    "appliance/protocol/records/walk_together.py",
    "appliance/replicas/agent.py",
    "appliance/replicas/durable_copies.py",
    "appliance/replicas/fetcher.py",
    "appliance/replicas/follower.py",
    "appliance/replicas/leader_lines.py",
    "appliance/replicas/leader_log.py",
    "appliance/replicas/throttle.py",
    "appliance/requests/answer.py",
    "appliance/requests/apis.py",
    "appliance/requests/coordinator_line.py",
    "appliance/requests/coordinator_lines.py",
    "appliance/requests/cursors.py",
    "appliance/requests/fetch_session.py",
    "appliance/requests/log_handlers/fetch.py",
    "appliance/requests/log_handlers/fetch_item.py",
    "appliance/requests/log_handlers/fetch_responder.py",
    "appliance/requests/log_handlers/produce.py",
    "appliance/requests/purgatory_line.py",
    "appliance/requests/segment_files.py",
    "appliance/requests/session.py",
    "appliance/requests/topic_routes.py",
    "appliance/requests/traffic.py",
    "appliance/requests/worker_lines.py",
    "appliance/services/batches.py",
    "appliance/services/deliveries.py",
    "appliance/services/exact_lane.py",
    "appliance/services/forwarder.py",
    "appliance/services/lane.py",
    "appliance/services/lane_reader.py",
)

GROUP = "appliance.compiled"
"""mypyc puts the code of all hot modules into one library, `appliance/compiled__mypyc.*.so`. It lies inside the package
because an editable installation maps packages only; a library at the top level would not be found."""

CHOICE = os.environ.get("APPLIANCE_BUILD", "")
JOBS = len(os.sched_getaffinity(0))


class CannotCompile(BaseError):
    """The hot modules cannot be compiled on this machine. The text is the reason."""


def say(text: str) -> None:
    """Print a line of progress. `scripts/build.py` shows these lines, `pip install` only with --verbose."""
    print(f"appliance: {text}", flush=True)


@cache
def obstacle() -> str | None:
    """Return why this machine cannot compile a Python extension, or None when it can."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return PY_VERSION_HEX != 0; }\n")
        include = sysconfig.get_paths()["include"]
        command = [
            *compiler.split(),
            "-shared",
            "-fPIC",
            f"-I{include}",
            str(source),
            "-o",
            f"{place}/probe.so",
        ]
        try:
            tried = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as fault:
            return f"the C compiler `{compiler}` cannot be started ({fault.strerror})"
    if tried.returncode == 0:
        return None
    if "Python.h" in tried.stderr:
        return "Python.h is missing (the package python3-dev or python3-devel has it)"
    return f"the C compiler `{compiler}` does not work"


class CompilingDistribution(Distribution):  # type: ignore[misc]
    """A distribution whose extensions are known only when `build_ext` has run."""

    def has_ext_modules(self) -> bool:
        return CHOICE != "pure"


class Wheel(bdist_wheel):  # type: ignore[misc]
    """Name the wheel for every platform when nothing in it is compiled."""

    def get_tag(self) -> tuple[str, str, str]:
        self.root_is_pure = not self.distribution.ext_modules
        tag: tuple[str, str, str] = super().get_tag()
        return tag


class CompileHotModules(build_ext):  # type: ignore[misc]
    """Translate the hot modules to C and compile the files in parallel.

    mypyc runs here and not when `setup.py` is read, because pip reads it several times for one installation.
    """

    def run(self) -> None:
        if self.editable_mode and CHOICE != "compiled":
            say("pure Python build: an editable installation is compiled only with APPLIANCE_BUILD=compiled")
            return
        try:
            if (reason := obstacle()) is not None:
                raise CannotCompile(reason)
            self._compile()
        except (BaseError, SystemExit, ImportError, OSError) as fault:
            if CHOICE == "compiled":
                raise
            self._remove_compiled()
            say(f"pure Python build, because the hot modules cannot be compiled: {str(fault).strip()[-300:]}")

    def _compile(self) -> None:
        began = time.monotonic()
        say(f"compiling {len(HOT_MODULES)} modules, once; one to two minutes on two cores")
        self.parallel = JOBS
        self.extensions = self.distribution.ext_modules = translated(Path(self.build_temp) / "mypyc")
        self.swig_opts = None  # its state before the first finalize_options, which ran without extensions
        self.finalize_options()
        super().run()
        say(f"compiled {len(HOT_MODULES)} modules in {time.monotonic() - began:.0f} s")

    def build_extensions(self) -> None:
        compile_in_turn = self.compiler.compile

        def compile_in_parallel(sources: list[str], **options: Any) -> list[str]:
            """Compile each source by itself, the largest first. Return the object files."""
            done = Progress(sources)

            def compile_one(source: str) -> list[str]:
                objects: list[str] = compile_in_turn([source], **options)
                done.count(source)
                return objects

            by_size = sorted(sources, key=os.path.getsize, reverse=True)
            with ThreadPoolExecutor(JOBS) as pool:
                return [each for objects in pool.map(compile_one, by_size) for each in objects]

        self.compiler.compile = compile_in_parallel
        super().build_extensions()

    def _remove_compiled(self) -> None:
        """Leave no half of a compiled build behind: the pure modules work only without it."""
        for extension in self.extensions or []:
            Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        self.extensions = self.distribution.ext_modules = []


class Progress:
    """Says at most every ten seconds how much of a library's C is compiled. A library of one file is done too soon."""

    def __init__(self, sources: list[str]) -> None:
        self._sizes = {source: os.path.getsize(source) for source in sources}
        self._compiled_bytes = 0
        self._next_s = time.monotonic() + 10

    def count(self, source: str) -> None:
        self._compiled_bytes += self._sizes[source]
        if len(self._sizes) > 1 and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + 10
            say(f"compiling: {self._compiled_bytes * 100 // sum(self._sizes.values())} %")


def translated(target: Path) -> list[Extension]:
    """Write the C of the hot modules to `target` and return the extensions to build from it.

    The type check does not read the project's configuration: the gate has checked the types, and most of
    what the broker imports is not installed where pip builds it.
    """
    from mypyc.build import mypycify

    flags = ["--config-file=", "--ignore-missing-imports"]
    extensions: list[Extension] = mypycify(
        [*flags, *HOT_MODULES], opt_level="3", multi_file=True, group_name=GROUP, target_dir=str(target)
    )
    for extension in extensions:
        # With a dotted group name mypyc writes the shared headers into a folder and includes them without its name.
        extension.include_dirs.append(str(target / "appliance"))
        extension.extra_compile_args.append("-fvisibility=hidden")
    return extensions


commands: dict[str, Callable[..., Any]] = {"bdist_wheel": Wheel, "build_ext": CompileHotModules}
setup(cmdclass=commands, distclass=CompilingDistribution)
