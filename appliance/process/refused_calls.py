"""System calls that a process never makes, refused by the kernel for the rest of its life (seccomp).

Landlock refuses access to files, programs and processes. This list refuses the parts of the kernel in which its own
defects were found most often, and which a network process has no use for. It also stands in for a part of Landlock
where the kernel has none: no program, no tracing, no memory of other processes.

A refused call returns EPERM. `clone3` returns ENOSYS, because its flags are not in registers: the C library then calls
`clone`, whose flags the filter sees. A list of allowed calls would be stricter, but it would depend on the versions of
Python, OpenSSL, ZeroMQ and the C library; the systemd unit has such a list for the whole service.

Source: seccomp(2), linux/filter.h; the numbers are those of x86-64. libseccomp would need a package of the system, and
its binding on PyPI had its last release in 2021, so the 40 instructions are made here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

_SECCOMP: Final = 317
_SET_MODE_FILTER: Final = 1
_SPEC_ALLOW: Final = 4
"""Before Linux 5.16 a filter also turned on a protection against speculation that slows Python down. It is for programs
that run other people's code."""

_INSTRUCTION: Final = struct.Struct("=HBBI")
_LOAD_WORD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_IF_BITS: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

# struct seccomp_data: nr, arch, instruction_pointer, args[6]. The lower half of a word of x86-64 comes first.
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16

_X86_64: Final = 0xC000003E
_X32_BIT: Final = 0x40000000
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_REFUSE: Final = 0x00050000 | errno.EPERM
_NOT_THERE: Final = 0x00050000 | errno.ENOSYS

_SOCKET: Final = 41
_CLONE: Final = 56
_CLONE3: Final = 435
_NEW_NAMESPACES: Final = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_FAMILIES: Final = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6; AF_NETLINK, with which the C library asks for addresses."""

REFUSED: Final = {
    "execve": 59,
    "ptrace": 101,
    "syslog": 103,
    "ustat": 136,
    "personality": 135,
    "pivot_root": 155,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "clock_settime": 227,
    "mbind": 237,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "vmsplice": 278,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "execveat": 322,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "kexec_load": 246,
}
"""Name → number."""


def refuse_calls() -> None:
    """Refuse this process, and all threads that it will have, the calls above. There is no way back.

    The process must have given up new privileges (`capabilities.give_up_new_privileges`).

    Raises:
        OSError: the kernel has no seccomp, or a container forbids it.
    """
    program = _program()
    memory = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("=HxxxxxxQ", len(program) // _INSTRUCTION.size, ctypes.addressof(memory))
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_SECCOMP, _SET_MODE_FILTER, _SPEC_ALLOW, described) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")


def _program() -> bytes:
    """The filter: one comparison for each call, then those of two calls by their first argument."""
    instructions = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_IF_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
        # The other set of numbers, for programs with 32-bit pointers, would go round the list.
        (_JUMP_IF_BITS, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for number in REFUSED.values():
        instructions += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    instructions += [
        (_JUMP_IF_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _NOT_THERE),
        (_JUMP_IF_EQUAL, 0, 4, _CLONE),
        (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_AT),
        (_JUMP_IF_BITS, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_IF_EQUAL, 1, 0, _SOCKET),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_AT),
    ]
    for family in _FAMILIES:
        instructions += [(_JUMP_IF_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    instructions.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(_INSTRUCTION.pack(*each) for each in instructions)
