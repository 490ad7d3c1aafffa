"""Tables of facts about programs. A program that is in none of them is unknown and needs approval.

`READERS` lists programs that only read unless one of their listed options is given: letters and names of options that
make them write, run programs or leave the workspace. GNU programs accept every unambiguous prefix of a long option, so
a prefix of a listed name counts as the name.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass


def names(text: str) -> frozenset[str]:
    """Return the words of `text`."""
    return frozenset(text.split())


EVERY = 10_000
"""A number larger than the operands of any command."""
CODE_NAMES = late_pattern(
    r"(?:\*\*/|[\w-]+/)*[\w*-]*\.(?:py|pyi|ts|tsx|js|jsx|mjs|go|rs|java|c|h|cc|cpp|hpp|rb|md|rst|html|css|scss)"
    r"|py|python|js|ts|rust|go|java|c|cpp|ruby|md|markdown|html|css"
)
"""Patterns (`*.py`) and ripgrep's type names that match no file with a secret."""


@dataclass(frozen=True, slots=True)
class ReadingProgram:
    """A program that reads its operands."""

    short: str = ""
    """Letters of options that do more than read."""
    long: tuple[str, ...] = ()
    """Names of options that do more than read, without dashes."""
    pattern: str = ""
    """Letters of options that give a pattern. Without one of them the first operand is the pattern."""
    pattern_long: tuple[str, ...] = ()
    tree: str = ""
    """Letters that make it read a folder recursively."""
    tree_long: tuple[str, ...] = ()
    flags: str = ""
    """Letters of options that never take a value. Needed if the first operand is a pattern."""
    clusters: bool = True
    """True if letters may be joined: `-rn`."""
    values: str = ""
    """Letters of options with a value that is not a path, attached or the next word, in every version of the
    program."""
    long_values: tuple[str, ...] = ()
    """Names of options with a value that is not a path."""
    picks: tuple[str, ...] = ()
    """Those of `long_values` whose value is a pattern of the files to read."""
    picks_widen: bool = False
    """True if the patterns make it read files that it would skip (hidden ones); otherwise they only narrow."""
    widens: tuple[str, ...] = ()
    """Those of `long_values` that exclude files. If one comes before the first of `picks`, the patterns of `picks` only
    add files."""
    writes: tuple[str, ...] = ()
    """Those of `long_values` whose value is a file that it writes."""
    files: str = ""
    """Short options whose value is a file that it reads."""
    every: bool = False
    """True if it reads a folder recursively without an option."""
    ignores: bool = False
    """True if it reads a folder recursively without an option, except hidden files and files listed in ignore files."""
    listers: tuple[str, ...] = ()
    """Names of options that make it show only names of files."""
    most: int = EVERY
    """Maximum number of operands to read; it writes to further ones."""
    glob_options: bool = False
    """True if one of its options runs programs or writes, so that a glob must not be able to become an option."""


_PLAIN = ReadingProgram()
_LISTED = ReadingProgram("c", ("check", "files0-from"))
"""A program that can take the names of the files to read from a file."""
_GREP = ReadingProgram(
    pattern="ef",
    pattern_long=("regexp", "file"),
    tree="rRd",
    tree_long=("recursive", "dereference-recursive", "directories"),
    flags="nivclLoqswxHhrREFGPIaUzZbTy",
    values="ABCmdD",
    long_values=(
        *("after-context", "before-context", "context", "max-count", "include"),
        *("exclude", "exclude-dir", "exclude-from"),
    ),
    picks=("include",),
    widens=("exclude", "exclude-from"),
)
_FD = ReadingProgram("xX", ("exec", "exec-batch"), pattern="-", values="edtE", glob_options=True)
_LINES = ReadingProgram(values="nc", long_values=("lines", "bytes"))

READERS: Mapping[str, ReadingProgram] = dict.fromkeys(
    names("ls dir vdir cat tac comm cmp unexpand tsort rev base32 sum realpath readlink pwd numfmt dirs pr look df bc"),
    _PLAIN,
) | {
    **dict.fromkeys(names("sha1sum sha224sum sha256sum sha384sum sha512sum b2sum md5sum cksum"), _LISTED),
    **dict.fromkeys(names("hexdump hd"), ReadingProgram(files="f")),
    **dict.fromkeys(names("grep egrep fgrep"), _GREP),
    **dict.fromkeys(names("fd fdfind"), _FD),
    **dict.fromkeys(names("head tail"), _LINES),
    **dict.fromkeys(names("bzcat xzcat lzcat"), ReadingProgram("", ("files", "files0"))),
    "zcat": ReadingProgram(tree="r", tree_long=("recursive",)),
    **dict.fromkeys(names("fold fmt"), ReadingProgram(values="w")),
    "cut": ReadingProgram(
        values="bcdf", long_values=("bytes", "characters", "delimiter", "fields", "output-delimiter")
    ),
    "paste": ReadingProgram(values="d", long_values=("delimiters",)),
    "join": ReadingProgram(values="tev12aj"),
    "nl": ReadingProgram(values="bdfhilnsvw"),
    "expand": ReadingProgram(values="t"),
    "od": ReadingProgram(values="AjNt"),
    "base64": ReadingProgram("", ("output",), values="wo", long_values=("output",), writes=("o", "output"), files="i"),
    "stat": ReadingProgram(values="c", long_values=("format", "printf")),
    "strings": ReadingProgram(values="nte"),
    "column": ReadingProgram(values="sco", long_values=("separator", "output-separator")),
    "wc": ReadingProgram("", ("files0-from",)),
    "du": ReadingProgram("", ("files0-from",), values="dt", long_values=("max-depth", "threshold", "exclude")),
    "shuf": ReadingProgram(
        "", ("random-source", "output"), values="oni", long_values=("output",), writes=("o",), glob_options=True
    ),
    "sort": ReadingProgram(
        "T",
        ("output", "compress-program", "temporary-directory", "files0-from"),
        values="oktS",
        long_values=("output", "key", "field-separator", "buffer-size", "parallel"),
        writes=("o", "output"),
        glob_options=True,
    ),
    "uniq": ReadingProgram(
        values="fsw", long_values=("skip-fields", "skip-chars", "check-chars"), most=1, glob_options=True
    ),
    "xxd": ReadingProgram("r", ("revert",), clusters=False, values="clsogn", most=1, glob_options=True),
    "diff": ReadingProgram("l", ("paginate",), values="UCxI", every=True),
    "tree": ReadingProgram("R", ("output", "fromfile"), values="oLIPHT", writes=("o",), glob_options=True),
    "file": ReadingProgram(
        "CzZfm", ("compile", "uncompress", "files-from", "magic-file"), files="fm", glob_options=True
    ),
    "iconv": ReadingProgram("", ("output",), values="oft", writes=("o",), glob_options=True),
    "rg": ReadingProgram(
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
        ignores=True,
        listers=("files", "type-list"),
    ),
    "jq": ReadingProgram("fL", ("from-file", "library-path", "run-tests"), pattern="f", flags="nrcsSeajCMRh"),
}

DELETING = names("rm rmdir unlink trash trash-put rimraf")

TEXT_ONLY = names(
    "echo printf : true false basename dirname seq expr yes sleep exit return break continue shift "
    "factor cal [[ tr help times clear"
)
"""Programs whose arguments are text, never paths."""

FIXED = names("whoami id groups uname nproc tty logname locale uptime free lscpu")
"""Programs that print facts about the machine without secrets."""

NAMES_ONLY = names("which type whereis")

VERSIONED = names(
    "python python3 node npm npx pip pip3 uv ruff git cargo rustc go gcc g++ clang make cmake java javac "
    "ruby gem perl php bash sh zsh docker kubectl rg grep sed awk gawk curl wget tar jq deno bun tsc "
    "mypy black psql sqlite3 ssh find gh helm aws lua dotnet swift ghc zig rustup"
)
"""Programs that print their version or help, and do nothing else. Not `pytest`, `terraform`, `yarn`, `pnpm`, `gradle`,
`mvn` or `bundle`: before they print, they load the project's plug-ins or run the program that the project names."""

_TOOLCHAIN = ("rust-toolchain", "rust-toolchain.toml", ".cargo/config", ".cargo/config.toml")
_SHIMS = (".tool-versions", ".mise.toml", "mise.toml")
"""Files by which a version manager selects the program: they can name a folder of the workspace."""
OBEYED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(VERSIONED, _SHIMS),
    **dict.fromkeys(names("cargo rustc rustup"), (*_TOOLCHAIN, *_SHIMS)),
    "go": ("go.mod", "go.work", *_SHIMS),
    "dotnet": ("global.json", *_SHIMS),
    **dict.fromkeys(names("node npm npx tsc"), (".npmrc", ".pnp.cjs", *_SHIMS)),
}
"""Files that such programs obey before they print: because of one, they may run a program that the workspace names."""

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
"""Programs for disks, with the subcommands that create or erase file systems."""
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
"""Top-level folders of a machine. Deleting them recursively is always denied."""
