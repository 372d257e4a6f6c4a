"""What the units set, and why: the one place from which units, drop-ins and explanations are made."""

from __future__ import annotations

from typing import NamedTuple

from swarmd.errors import ExitCode

PERMANENT = tuple(
    sorted(
        code
        for name, code in vars(ExitCode).items()
        if name.isupper() and ExitCode.USAGE <= code < ExitCode.INTERRUPTED and code != ExitCode.IN_USE
    )
)  # exit codes that no restart can mend; docs/OPERATING.md says what each means
REFUSED_CALLS = "@clock @cpu-emulation @debug @module @mount @obsolete @privileged @raw-io @reboot @swap"
LANDLOCK = "landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp"
STOP_S = 45  # TimeoutStopSec for the default of workers.stop_s
STOP_MARGIN_S = 20  # beyond the daemon's own limit, for what systemd then kills
PROGRAM_KINDS = ("code", "proposer-solver")  # kinds of swarm that run programs which models wrote


class Setting(NamedTuple):
    """One line of a unit."""

    key: str
    value: str
    why: str = ""  # empty: as for the line before
    user: bool = True  # whether the service manager of a user, who is not root, can do it


ORDER = (
    Setting("Wants", "network-online.target", "Peers are asked for at once.", user=False),
    Setting("After", "network-online.target", user=False),
    Setting("After", "time-sync.target", "Peers refuse the records of a node whose clock is off by 3 s.", user=False),
    Setting("PartOf", "swarmd.target", "`systemctl stop swarmd.target` stops all nodes, `start` starts those enabled."),
    Setting(
        "StartLimitIntervalSec", "600", "A node that fails again and again is left alone after 10 starts in 10 minutes."
    ),
    Setting("StartLimitBurst", "10"),
)

LIFE = (
    Setting(
        "TimeoutStartSec", "120", "Ready is told when the log is open and the first event of this life is on disk."
    ),
    Setting("WatchdogSec", "60", "Fed by the daemon's loop alone: ends a stuck daemon, never a long training step."),
    Setting("TimeoutAbortSec", "5", "The daemon then says where it hung (SIGABRT) and is killed."),
    Setting("Restart", "on-failure", "After a crash, the codes below 64, and 75 (another daemon has the data)."),
    Setting("RestartSec", "5"),
    Setting("RestartPreventExitStatus", " ".join(map(str, PERMANENT)), "Codes that no restart can mend."),
    Setting("KillMode", "mixed", "SIGTERM goes to the daemon, which ends its workers; what is left then is killed."),
    Setting("TimeoutStopSec", str(STOP_S), "Longer than the daemon takes: twice workers.stop_s (10 s) and 5 s."),
    Setting("OOMPolicy", "continue", "The kernel takes the trainer first, and the daemon starts it again."),
    Setting("OOMScoreAdjust", "-500", "The daemon goes last: no peer that fills a worker uses up its starts.", False),
    Setting("MemoryMax", "95%", "Of the machine's: what is over is taken from the node, and from nobody beside it."),
    Setting("TasksMax", "16384", "Threads and processes; a trainer has some for each core."),
    Setting("LimitNOFILE", "16384", "Sockets of peers."),
    Setting("LimitCORE", "0", "No image of the memory, with the keys in it, on the disk."),
    Setting("LogRateLimitIntervalSec", "30s", "A node under stress explains itself; journald would drop it.", False),
    Setting("LogRateLimitBurst", "20000", user=False),
)

HARDENING = (
    Setting("UMask", "0077", "What the node writes is its own."),
    Setting("NoNewPrivileges", "yes", "No set-user-id program gives a worker more than it has."),
    Setting("CapabilityBoundingSet", "", "No privilege of root, not even after a hole.", False),
    Setting("AmbientCapabilities", "", user=False),
    Setting("ProtectSystem", "strict", "Everything but the node's own directories is read-only.", False),
    Setting("ProtectHome", "yes", "Home directories are empty.", False),
    Setting("PrivateTmp", "yes", "Temporary directories of its own.", False),
    Setting("PrivateIPC", "yes", "Shared memory of its own.", False),
    Setting("RemoveIPC", "yes", user=False),
    Setting("ProtectControlGroups", "yes", "The kernel's settings, modules, log and names are out of reach.", False),
    Setting("ProtectHostname", "yes", user=False),
    Setting("ProtectKernelLogs", "yes", user=False),
    Setting("ProtectKernelModules", "yes", user=False),
    Setting("ProtectKernelTunables", "yes", user=False),
    Setting("ProtectProc", "invisible", "Other users' processes are not seen.", False),
    Setting("LockPersonality", "yes", "Ways into the kernel that a node does not use."),
    Setting("RestrictNamespaces", "yes"),
    Setting("RestrictRealtime", "yes"),
    Setting("RestrictSUIDSGID", "yes"),
    Setting("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK", "p2pd asks netlink for its addresses."),
    Setting("SystemCallArchitectures", "native", "System calls of ordinary services, refused ones with an error."),
    Setting("SystemCallFilter", "@system-service"),
    Setting("SystemCallFilter", LANDLOCK, "With these the workers confine themselves further."),
    Setting("SystemCallFilter", f"~{REFUSED_CALLS}"),
    Setting("SystemCallErrorNumber", "EPERM"),
)

CPU = (
    Setting("PrivateDevices", "yes", "No device but /dev/null and its like; an accelerator would be gone."),
    Setting("DevicePolicy", "closed"),
    Setting("ProtectClock", "yes"),
    Setting("PrivateUsers", "yes", "Users of the machine do not exist in here."),
    Setting("SystemCallFilter", "~@resources", "Nobody's priorities or limits are changed; drivers may need to."),
)

PROGRAMS = (
    Setting("RestrictNamespaces", "no", "The sandbox for programs puts each into namespaces of its own."),
    Setting("SystemCallFilter", "@mount"),
    Setting("SystemCallFilter", "capset chroot pivot_root sethostname", "bubblewrap, if installed, needs these."),
    Setting("ProtectHostname", "no", user=False),
)

# Not set, and why; docs/SYSTEMD.md has it too.
ABSENT = (
    ("MemoryDenyWriteExecute", "p2pd, which is packed, unpacks itself into memory and does not start; torch compiles"),
    ("ProcSubset", "the trainer reads /proc/meminfo"),
    ("RootDirectory", "the interpreter and its libraries are the machine's"),
    ("IPAddressDeny", "peers are anywhere"),
)
