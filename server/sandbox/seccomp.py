"""A seccomp filter for sandbox processes that refuses system calls with effects outside the process.

| action of a sandbox process | |
|---|---|
| compute, allocate up to its limit, start threads, read its input, write its output | permitted |
| get the size and times of a file whose path it knows | permitted |
| open a file or a connection | refused by ``RLIMIT_NOFILE`` 0, ``RLIMIT_FSIZE`` 0 (`worker`) |
| start a process or program | refused by this filter |
| delete, rename, link or change a file, also the inherited log | refused by this filter |
| send a signal; read, trace or limit another process; raise its limits | refused by this filter |
| use sockets, terminals, shared memory, namespaces, mounts, keys, eBPF, io_uring, perf | refused by this filter |

The filter needs Linux on x86-64 or ARM64; on other systems only the limits apply. It lists refused calls, because a
list of permitted calls would break with the next version of a C library. The list is complete up to Linux 5.0. Newer
calls return ENOSYS, so that the C library uses older ones.
"""

import ctypes
import errno
import os
import re
import sys
from ctypes import POINTER, Structure, c_long, c_uint8, c_uint16, c_uint32

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
_FIRST_NEW = 424  # from here on, both machines have the same numbers, besides x86-64's calls with short pointers (x32)
_CLONE_THREAD, _NEW_NAMESPACES = 0x10000, 0x7E020000  # linux/sched.h
_NO_NEW_PRIVILEGES = 38  # linux/prctl.h
_SET_FILTER, _ALL_THREADS = 1, 1  # linux/seccomp.h
_LOAD, _RETURN, _EQUAL, _AT_LEAST, _HAS_BITS = 0x20, 0x06, 0x15, 0x35, 0x45  # linux/bpf_common.h
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST_ARGUMENT, _NEW_LIMIT = 0, 4, 16, 32  # offsets in struct seccomp_data

# Numbers on x86-64 and ARM64 (asm/unistd_64.h, asm-generic/unistd.h); -: does not exist.
_SECCOMP, _CLONE, _PRLIMIT = (317, 277), (56, 220), (302, 261)
_REFUSED = """
execve 59 221, execveat 322 281, uselib 134 -, fork 57 -, vfork 58 -, setpgid 109 154,
kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
fcntl 72 25 (names the process that gets a signal), ioctl 16 29 (types into a terminal), vhangup 153 58,
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, get_robust_list 274 100,
move_pages 279 239, migrate_pages 256 238, perf_event_open 298 241, syslog 103 116,
setrlimit 160 164, setpriority 141 140, ioprio_set 251 30, prctl 157 167, sched_setaffinity 203 122,
sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274,
rename 82 -, renameat 264 38, renameat2 316 276, unlink 87 -, unlinkat 263 35, rmdir 84 -, mkdir 83 -, mkdirat 258 34,
mknod 133 -, mknodat 259 33, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, truncate 76 45, ftruncate 77 46,
fallocate 285 47, flock 73 32, chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, lchown 94 -, fchown 93 55,
fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, setxattr 188 5, lsetxattr 189 6,
fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, readlink 89 -, readlinkat 267 78,
open_by_handle_at 304 265, quotactl 179 60, acct 163 89, swapon 167 224, swapoff 168 225, sync 162 81,
socket 41 198, connect 42 203, accept 43 202, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212,
shutdown 48 210, bind 49 200, listen 50 201, socketpair 53 199, setsockopt 54 208, accept4 288 242, recvmmsg 299 243,
sendmmsg 307 269, shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, semctl 66 191,
semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180, mq_unlink 241 181,
mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268, add_key 248 217,
request_key 249 218, keyctl 250 219, bpf 321 280, userfaultfd 323 282, init_module 175 105, finit_module 313 273,
delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294, reboot 169 142, iopl 172 -, ioperm 173 -,
modify_ldt 154 -, sethostname 170 161, setdomainname 171 162, settimeofday 164 170, adjtimex 159 171,
clock_settime 227 112, clock_adjtime 305 266
"""


class _Instruction(Structure):
    _fields_ = (("code", c_uint16), ("if_true", c_uint8), ("if_false", c_uint8), ("k", c_uint32))


class _Program(Structure):
    _fields_ = (("n", c_uint16), ("instructions", POINTER(_Instruction)))


def problem() -> str:
    """Return a warning if this system cannot install the filter, otherwise ""."""
    system = f"{sys.platform} on {os.uname().machine}"
    if sys.platform == "linux" and os.uname().machine in _ARCHES and sys.maxsize > 1 << 32:
        _seccomp(None)
        if ctypes.get_errno() == errno.EFAULT:  # the kernel knows the call and its flag, and tried to read the filter
            return ""
        system = "this kernel"
    return f"{system} has no system call filter: a fault in a media decoder may delete files and end processes"


def install_filter() -> None:
    """Install the filter permanently for all threads of this process, if the system supports it. Raises OSError."""
    if problem():
        return
    code = _program(os.uname().machine)
    instructions = (_Instruction * len(code))(*(_Instruction(*each) for each in code))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or _seccomp(_Program(len(code), instructions)):
        raise OSError(ctypes.get_errno(), "the seccomp filter cannot be installed")


def _seccomp(program: _Program | None) -> int:
    number = _SECCOMP[list(_ARCHES).index(os.uname().machine)]
    call = ctypes.CDLL(None, use_errno=True).syscall
    at = None if program is None else ctypes.byref(program)
    return int(call(c_long(number), c_long(_SET_FILTER), c_long(_ALL_THREADS), at))


def _program(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the filter's instructions: code, number of instructions to skip if true and if false, value."""
    column = list(_ARCHES).index(machine)
    refuse, allow = (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, _ARCHES[machine]), refuse, (_LOAD, 0, 0, _NUMBER)]
    code += [(_AT_LEAST, 0, 1, _FIRST_NEW), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for numbers in re.findall(r"\w+ (\d+) (\d+|-)", _REFUSED):
        if numbers[column] != "-":
            code += [(_EQUAL, 0, 1, int(numbers[column])), refuse]
    code += [(_EQUAL, 0, 5, _CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    code += [(_HAS_BITS, 0, 2, _CLONE_THREAD), (_HAS_BITS, 1, 0, _NEW_NAMESPACES), allow, refuse]
    # prlimit may only read limits of this process, because root could raise them
    code += [(_EQUAL, 0, 7, _PRLIMIT[column])]
    code += [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 0, 4, 0), (_LOAD, 0, 0, _NEW_LIMIT), (_EQUAL, 0, 2, 0)]
    code += [(_LOAD, 0, 0, _NEW_LIMIT + 4), (_EQUAL, 1, 0, 0), refuse]
    return [*code, allow]
