"""What is known about programs, as tables. A program that stands nowhere here is unknown, and asks.

`READERS` lists programs that only read when none of their named options is given; `option` letters and names that make
them write, run programs or leave the workspace are what the tables are about. GNU programs take every unambiguous
beginning of a long option, so a beginning of a listed name counts as the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


def names(text: str) -> frozenset[str]:
    """Return the words of `text`."""
    return frozenset(text.split())


EVERY = 10_000
"""More operands than a command has."""
CODE_NAMES = re.compile(
    r"(?:\*\*/|[\w-]+/)*[\w*-]*\.(?:py|pyi|ts|tsx|js|jsx|mjs|go|rs|java|c|h|cc|cpp|hpp|rb|md|rst|html|css|scss)"
    r"|py|python|js|ts|rust|go|java|c|cpp|ruby|md|markdown|html|css"
)
"""Patterns (`*.py`) and ripgrep's names of types that no file with a secret has."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A program that reads what its operands name."""

    short: str = ""
    """Letters of options that do more than read."""
    long: tuple[str, ...] = ()
    """Names of such options, without dashes."""
    pattern: str = ""
    """The first operand is a pattern, unless one of these letters gives it."""
    pattern_long: tuple[str, ...] = ()
    tree: str = ""
    """Letters that make it read all that lies beneath a folder."""
    tree_long: tuple[str, ...] = ()
    flags: str = ""
    """Letters of options that never take a value. Needed where the first operand is a pattern."""
    clusters: bool = True
    """Letters may be joined: `-rn`."""
    values: str = ""
    """Letters of options with a value that is no path, attached or the next word, in every version of the program."""
    long_values: tuple[str, ...] = ()
    """Names of such options."""
    picks: tuple[str, ...] = ()
    """Those of them whose value is a pattern of the files to read."""
    picks_widen: bool = False
    """The patterns let it read files that it would leave out (hidden ones); else they only narrow."""
    writes: tuple[str, ...] = ()
    """Those of them whose value is a file that it writes."""
    most: int = EVERY
    """Operands beyond this number are written to."""
    glob_options: bool = False
    """An option of it runs programs or writes, so a glob must not be able to become one."""


_PLAIN = Reader()
_LISTED = Reader("c", ("check", "files0-from"))
"""A file names the files that are read."""
_GREP = Reader(
    pattern="ef",
    pattern_long=("regexp", "file"),
    tree="rRd",
    tree_long=("recursive", "dereference-recursive", "directories"),
    flags="nivclLoqswxHhrREFGPIaUzZbTy",
    values="ABCmdD",
    long_values=("after-context", "before-context", "context", "max-count", "include", "exclude", "exclude-dir"),
    picks=("include",),
)
_FD = Reader("xX", ("exec", "exec-batch"), pattern="-", values="edtE", glob_options=True)
_LINES = Reader(values="nc", long_values=("lines", "bytes"))

READERS: Mapping[str, Reader] = dict.fromkeys(
    names(
        "ls dir vdir cat tac comm cmp unexpand tsort rev hexdump hd "
        "base32 sum realpath readlink pwd numfmt zcat dirs pr look df bc"
    ),
    _PLAIN,
) | {
    **dict.fromkeys(names("sha1sum sha224sum sha256sum sha384sum sha512sum b2sum md5sum cksum"), _LISTED),
    **dict.fromkeys(names("grep egrep fgrep"), _GREP),
    **dict.fromkeys(names("fd fdfind"), _FD),
    **dict.fromkeys(names("head tail"), _LINES),
    **dict.fromkeys(names("bzcat xzcat lzcat"), Reader("", ("files", "files0"))),
    **dict.fromkeys(names("fold fmt"), Reader(values="w")),
    "cut": Reader(values="bcdf", long_values=("bytes", "characters", "delimiter", "fields", "output-delimiter")),
    "paste": Reader(values="d", long_values=("delimiters",)),
    "join": Reader(values="tev12aj"),
    "nl": Reader(values="bdfhilnsvw"),
    "expand": Reader(values="t"),
    "od": Reader(values="AjNt"),
    "base64": Reader(values="wo", writes=("o",)),
    "stat": Reader(values="c", long_values=("format", "printf")),
    "strings": Reader(values="nte"),
    "column": Reader(values="sco", long_values=("separator", "output-separator")),
    "wc": Reader("", ("files0-from",)),
    "du": Reader("", ("files0-from",), values="dt", long_values=("max-depth", "threshold", "exclude")),
    "shuf": Reader(
        "", ("random-source", "output"), values="oni", long_values=("output",), writes=("o",), glob_options=True
    ),
    "sort": Reader(
        "T",
        ("output", "compress-program", "temporary-directory", "files0-from"),
        values="oktS",
        long_values=("output", "key", "field-separator", "buffer-size", "parallel"),
        writes=("o", "output"),
        glob_options=True,
    ),
    "uniq": Reader(values="fsw", long_values=("skip-fields", "skip-chars", "check-chars"), most=1, glob_options=True),
    "xxd": Reader("r", ("revert",), clusters=False, values="clsogn", most=1, glob_options=True),
    "diff": Reader("l", ("paginate",), tree="r", tree_long=("recursive",), values="UCxI"),
    "tree": Reader("R", ("output", "fromfile"), values="oLIPHT", writes=("o",), glob_options=True),
    "file": Reader("CzZf", ("compile", "uncompress", "files-from"), glob_options=True),
    "iconv": Reader("", ("output",), values="oft", writes=("o",), glob_options=True),
    "rg": Reader(
        "z",
        ("pre", "hostname-bin", "search-zip"),
        pattern="ef",
        pattern_long=("regexp", "file", "files", "type-list"),
        tree=".uL",
        tree_long=("hidden", "unrestricted", "follow", "no-ignore", "no-ignore-vcs", "no-ignore-dot"),
        flags="nilcwvxoFPSsUHINpq0uLah.",
        values="ABCmMjrEdtTg",
        long_values=(
            *("after-context", "before-context", "context", "max-count", "max-columns", "max-depth", "replace"),
            *("glob", "iglob", "type", "type-add", "type-not", "sort", "sortr"),
        ),
        picks=("g", "glob", "iglob", "t", "type", "type-add"),
        picks_widen=True,
        glob_options=True,
    ),
    "jq": Reader("fL", ("from-file", "library-path"), pattern="f"),
}

TEXT_ONLY = names(
    "echo printf : true false basename dirname seq expr yes sleep exit return break continue shift "
    "factor cal [[ tr help times clear"
)
"""Programs whose words are text, never paths."""

FIXED = names("whoami id groups uname nproc arch tty logname locale uptime free lscpu")
"""Programs that print facts of the machine that hold no secret."""

NAMES_ONLY = names("which type whereis")

VERSIONED = names(
    "python python3 node npm npx pip pip3 uv ruff git cargo rustc go gcc g++ clang make cmake java javac "
    "ruby gem perl php bash sh zsh docker kubectl rg grep sed awk gawk curl wget tar jq deno bun tsc "
    "pytest mypy black psql sqlite3 ssh find gh helm terraform aws lua dotnet swift ghc zig rustup"
)

NEVER_PRIVILEGE = names(
    "sudo su doas pkexec runuser sudoedit run0 gosu su-exec visudo sudo-rs su-rs gksu gksudo "
    "kdesu kdesudo dzdo pfexec please ksu beesu"
)
NEVER_POWER = names(
    "shutdown reboot poweroff halt telinit kexec insmod modprobe rmmod rtcwake "
    "pm-suspend pm-hibernate pm-suspend-hybrid s2ram s2disk zzz setenforce"
)
NEVER_DISK = names(
    "mke2fs mkswap wipefs blkdiscard cfdisk sgdisk gdisk mkdosfs mkntfs newfs badblocks pvcreate vgremove "
    "lvremove pvremove vgreduce mkzftree mkexfatfs mkfatfs mkudffs mkreiserfs nwipe"
)
WIPERS: Mapping[str, frozenset[str]] = {
    "cryptsetup": names("luksFormat luksErase erase reencrypt"),
    "nvme": names("format sanitize write-zeroes"),
    "zpool": names("destroy create labelclear"),
    "zfs": names("destroy"),
    "mdadm": names("--zero-superblock --create -C"),
    "dmsetup": names("remove wipe_table"),
}
"""Programs of disks, with the words by which they make or wipe file systems."""
LISTERS_OF_DISKS = names("fdisk sfdisk parted")

NETWORK = names(
    "curl wget ssh scp sftp nc ncat netcat telnet ftp ping dig nslookup host whois traceroute socat "
    "aria2c http https xh lynx links w3m rclone mosh tftp gh aws gcloud az kubectl helm docker podman apt "
    "apt-get dnf yum brew snap twine mail sendmail nmap"
)
PROCESSES = names("kill pkill killall ps top htop lsof fuser strace gdb renice pgrep")
ENVIRONMENT = names("printenv export declare typeset set compgen history")
VARIABLES = names(
    "export declare typeset local readonly unset read mapfile readarray getopts alias unalias shopt "
    "enable umask ulimit let set"
)
METADATA = names("chmod chown chgrp setfacl chattr setfattr chcon setcap")
ARCHIVES = names("tar bsdtar unzip cpio 7z 7za ar zip pax unrar patch install")
REPLACERS = names("gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd lzma compress")
MAKERS_OF_SPECIAL = names("ln link mknod mkfifo symlink")

SHELLS = names("sh bash dash zsh ksh ash rbash mksh fish")

HARMLESS_ASSIGNMENTS = names("LANG TZ NO_COLOR FORCE_COLOR CI TERM COLUMNS")
TOP_LEVEL = names(
    "bin boot dev etc home lib lib32 lib64 libx32 media mnt opt proc root run sbin srv sys tmp usr var "
    "Applications Library System Users Volumes private"
)
"""Top-level folders of a machine: their recursive deletion is never run."""
