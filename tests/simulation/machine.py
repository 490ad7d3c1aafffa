"""Become a machine: `machine.py NAME COMMAND...`, in new namespaces. Sets the name, and starts the loopback network."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # <linux/sockios.h>, <linux/if.h>

name, *command = sys.argv[1:]
socket.sethostname(name)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
os.execvp(command[0], command)
