"""System call numbers that the filter names, per machine. Source: the Linux ABI tables."""

X86_64 = {
    "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "clone": 56, "clone3": 435,
    "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
    "setsid": 112, "setpgid": 109, "socket": 41, "ptrace": 101, "process_vm_readv": 310,
    "process_vm_writev": 311, "pidfd_open": 434, "pidfd_getfd": 438, "pidfd_send_signal": 424,
    "process_madvise": 440, "kcmp": 312, "mount": 165, "umount2": 166, "pivot_root": 155,
    "chroot": 161, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "fspick": 433, "mount_setattr": 442, "unshare": 272, "setns": 308,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
    "io_uring_enter": 426, "io_uring_register": 427, "add_key": 248, "request_key": 249,
    "keyctl": 250, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "kexec_load": 246, "kexec_file_load": 320, "reboot": 169, "swapon": 167, "swapoff": 168,
    "syslog": 103, "acct": 163, "quotactl": 179, "settimeofday": 164, "clock_settime": 227,
    "adjtimex": 159, "sethostname": 170, "setdomainname": 171, "memfd_create": 319,
    "memfd_secret": 447, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
    "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "personality": 135,
    "modify_ldt": 154, "iopl": 172, "ioperm": 173, "vmsplice": 278, "move_pages": 279,
    "migrate_pages": 256, "mbind": 237, "set_mempolicy": 238, "lookup_dcookie": 212,
    "mknod": 133, "mknodat": 259,
}  # fmt: skip
AARCH64 = {
    "execve": 221, "execveat": 281, "clone": 220, "clone3": 435, "kill": 129, "tkill": 130,
    "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "setsid": 157, "setpgid": 154,
    "socket": 198, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271,
    "pidfd_open": 434, "pidfd_getfd": 438, "pidfd_send_signal": 424, "process_madvise": 440,
    "kcmp": 272, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "unshare": 97, "setns": 268, "bpf": 280, "perf_event_open": 241,
    "userfaultfd": 282, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "add_key": 217, "request_key": 218, "keyctl": 219, "init_module": 105, "finit_module": 273,
    "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294, "reboot": 142, "swapon": 224,
    "swapoff": 225, "syslog": 116, "acct": 89, "quotactl": 60, "settimeofday": 170,
    "clock_settime": 112, "adjtimex": 171, "sethostname": 161, "setdomainname": 162,
    "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "semget": 190, "msgget": 186,
    "mq_open": 180, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265,
    "personality": 92, "vmsplice": 75, "move_pages": 239, "migrate_pages": 238, "mbind": 235,
    "set_mempolicy": 237, "lookup_dcookie": 18, "mknodat": 33,
}  # fmt: skip
# audit architecture number and system calls by ``platform.machine()``
MACHINES = {"x86_64": (0xC000003E, X86_64), "aarch64": (0xC00000B7, AARCH64)}
