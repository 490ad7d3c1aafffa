"""What xdist starts in place of `python -u -c ...`: it asks `workers.py` for a copy that takes over its streams, and
waits for the end of that. Where it gets none, it becomes the Python that xdist wanted."""

import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as asking:
    try:
        asking.connect(sys.argv[1])
        socket.send_fds(asking, [b"+"], [0, 1, 2])
        copied = bool(asking.recv(1))
    except OSError:
        copied = False
    if not copied:
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)  # what is left open here, xdist would not see end
    asking.recv(1)
