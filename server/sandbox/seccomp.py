"""A seccomp filter for sandbox processes: system calls that reach beyond the process fail with EPERM.

| a sandbox process | by |
|---|---|
| computes, allocates up to its limit, starts threads, reads its input and writes its output | allowed |
| opens no file and no connection | ``RLIMIT_NOFILE`` 0, ``RLIMIT_FSIZE`` 0 (`worker`) |
| starts no process or program | this filter |
| deletes, renames, links or changes no file | this filter |
| sends no signal; reads, traces or limits no other process; raises no limit of its own | this filter |
| uses no sockets, namespaces, mounts, keys, eBPF, io_uring, perf events or user faults | this filter |

On Linux on x86-64 and ARM64, where the kernel has it; elsewhere only the limits hold. It is a list of what is refused,
because a list of what is allowed would break with the next version of a C library.
"""

import ctypes
import errno
import os
import sys
from ctypes import POINTER, Structure, c_uint8, c_uint16, c_uint32

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
_X32 = 0x40000000  # system calls of x86-64's ABI with short pointers
_CLONE_THREAD = 0x10000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
_LOAD, _RETURN, _EQUAL, _AT_LEAST, _HAS_BITS = 0x20, 0x06, 0x15, 0x35, 0x45  # linux/bpf_common.h
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST_ARGUMENT, _NEW_LIMIT = 0, 4, 16, 32  # offsets in struct seccomp_data

# Numbers on x86-64 and ARM64 (asm/unistd_64.h, asm-generic/unistd.h); -1: not there.
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_REFUSED = {
    **{"execve": (59, 221), "execveat": (322, 281), "fork": (57, -1), "vfork": (58, -1)},
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138)},
    **{"rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "ptrace": (101, 117)},
    **{"process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440)},
    **{
        "setrlimit": (160, 164),
        "setpriority": (141, 140),
        "sched_setaffinity": (203, 122),
        "sched_setscheduler": (144, 119),
    },
    **{"rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276), "unlink": (87, -1), "unlinkat": (263, 35)},
    **{"rmdir": (84, -1), "mkdir": (83, -1), "mkdirat": (258, 34), "mknod": (133, -1), "mknodat": (259, 33)},
    **{"link": (86, -1), "linkat": (265, 37), "symlink": (88, -1), "symlinkat": (266, 36), "truncate": (76, 45)},
    **{"chmod": (90, -1), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1), "lchown": (94, -1)},
    **{"fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88)},
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "removexattr": (197, 14), "lremovexattr": (198, 15)},
    **{"socket": (41, 198), "socketpair": (53, 199), "mount": (165, 40), "umount2": (166, 39), "chroot": (161, 51)},
    **{"unshare": (272, 97), "setns": (308, 268), "add_key": (248, 217), "request_key": (249, 218)},
    **{"keyctl": (250, 219), "bpf": (321, 280), "io_uring_setup": (425, 425), "perf_event_open": (298, 241)},
    **{"userfaultfd": (323, 282), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190)},
}


class _Instruction(Structure):
    _fields_ = (("code", c_uint16), ("if_true", c_uint8), ("if_false", c_uint8), ("k", c_uint32))


class _Program(Structure):
    _fields_ = (("n", c_uint16), ("instructions", POINTER(_Instruction)))


def confine() -> bool:
    """Install the filter for this process and its threads, for ever. Return whether the system could."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _ARCHES or sys.maxsize < 1 << 32:
        return False
    code = _program(machine)
    made = (_Instruction * len(code))(*(_Instruction(*each) for each in code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    program = ctypes.byref(_Program(len(code), made))
    return not prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) and not prctl(_SET_SECCOMP, _MODE_FILTER, program, 0, 0)


def _program(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the filter's instructions: code, jumps over so many instructions if true and false, value."""
    which = list(_ARCHES).index(machine)
    refuse, allow = (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, _ARCHES[machine]), refuse, (_LOAD, 0, 0, _NUMBER)]
    code += [(_AT_LEAST, 0, 1, _X32), refuse] if machine == "x86_64" else []
    for numbers in _REFUSED.values():
        if numbers[which] >= 0:
            code += [(_EQUAL, 0, 1, numbers[which]), refuse]
    # the C library then uses clone, whose flags can be read
    code += [(_EQUAL, 0, 1, _CLONE3[which]), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    code += [(_EQUAL, 0, 4, _CLONE[which]), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_HAS_BITS, 0, 1, _CLONE_THREAD), allow]
    # a limit may be read, of this process: root could raise it again
    code += [refuse, (_EQUAL, 0, 7, _PRLIMIT[which])]
    code += [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 0, 4, 0), (_LOAD, 0, 0, _NEW_LIMIT), (_EQUAL, 0, 2, 0)]
    code += [(_LOAD, 0, 0, _NEW_LIMIT + 4), (_EQUAL, 1, 0, 0), refuse]
    return [*code, allow]
