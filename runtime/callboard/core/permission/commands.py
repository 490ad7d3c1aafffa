"""What is known about programs, as tables. A program that stands nowhere here is unknown, and asks.

`READERS` lists programs that only read when none of their named options is given; `option` letters and names that make
them write, run programs or leave the workspace are what the tables are about. GNU programs take every unambiguous
beginning of a long option, so a beginning of a listed name counts as the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


def names(text: str) -> frozenset[str]:
    """Return the words of `text`."""
    return frozenset(text.split())


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
    values: str = ""
    """Letters of options whose value is the next word and no operand. Needed where operands are counted."""
    most: int = 10_000
    """Operands beyond this number are written to."""
    glob_options: bool = False
    """An option of it runs programs or writes, so a glob must not be able to become one."""


_PLAIN = Reader()
_LISTED = Reader("c", ("check", "files0-from"))
"""A file names the files that are read."""
_GREP = Reader(
    pattern="ef", pattern_long=("regexp", "file"), tree="rR", tree_long=("recursive", "dereference-recursive")
)

READERS: Mapping[str, Reader] = dict.fromkeys(
    names(
        "ls dir vdir cat tac head tail cut paste comm cmp nl fold fmt expand unexpand join tsort rev od hexdump hd "
        "strings column base64 base32 sum stat "
        "realpath readlink pwd numfmt zcat dirs pr look"
    ),
    _PLAIN,
) | {
    **dict.fromkeys(names("sha1sum sha224sum sha256sum sha384sum sha512sum b2sum md5sum cksum"), _LISTED),
    "wc": Reader("", ("files0-from",)),
    "du": Reader("", ("files0-from",)),
    "shuf": Reader("o", ("output", "random-source")),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "sort": Reader("oT", ("output", "compress-program", "temporary-directory", "files0-from"), glob_options=True),
    "uniq": Reader(values="fsw", most=1),
    "xxd": Reader("r", ("revert",), values="clsog", most=1),
    "diff": Reader("l", ("paginate",), tree="r", tree_long=("recursive",)),
    "tree": Reader("oR", ("output", "fromfile")),
    "file": Reader("CzZf", ("compile", "uncompress", "files-from"), glob_options=True),
    "iconv": Reader("o", ("output",)),
    "rg": Reader(
        "z",
        ("pre", "hostname-bin", "search-zip"),
        pattern="ef",
        pattern_long=("regexp", "file", "files", "type-list"),
        tree=".uL",
        tree_long=("hidden", "unrestricted", "follow", "no-ignore"),
        glob_options=True,
    ),
    "fd": Reader("xX", ("exec", "exec-batch"), pattern="-", glob_options=True),
    "fdfind": Reader("xX", ("exec", "exec-batch"), pattern="-", glob_options=True),
    "jq": Reader("fL", ("from-file", "library-path"), pattern="f"),
}

TEXT_ONLY = names(
    "echo printf : true false basename dirname seq expr yes sleep exit return break continue shift wait "
    "factor cal [[ tr"
)
"""Programs whose words are text, never paths."""

FIXED = names("whoami id groups uname nproc arch tty logname date hostname locale")
"""Programs that print facts of the machine that hold no secret."""

NAMES_ONLY = names("which type whereis")

VERSIONED = names(
    "python python3 node npm npx pip pip3 uv ruff git cargo rustc go gcc g++ clang make cmake java javac "
    "ruby gem perl php bash sh zsh docker kubectl rg grep sed awk gawk curl wget tar jq deno bun tsc "
    "pytest mypy black psql sqlite3 ssh find gh helm terraform aws lua dotnet swift ghc zig"
)

NEVER_PRIVILEGE = names("sudo su doas pkexec runuser sudoedit run0 gosu su-exec visudo sudo-rs su-rs")
NEVER_POWER = names("shutdown reboot poweroff halt telinit kexec insmod modprobe rmmod")
NEVER_DISK = names(
    "mke2fs mkswap wipefs blkdiscard cfdisk sgdisk gdisk mkdosfs mkntfs newfs badblocks pvcreate vgremove "
    "lvremove pvremove vgreduce mkzftree"
)
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
