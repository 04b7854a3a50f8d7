"""How willingly this process gives way to other programs. Light."""

import contextlib
import os
from pathlib import Path

_WINDOWS_IDLE_FROM = 10
_AUTOGROUP = Path("/proc/self/autogroup")


def give_way(niceness: int) -> None:
    """Lower the process's priority; 0 leaves it alone. On Windows, which has classes: below normal, from 10 on idle.

    Call it before any thread is started: on Linux each has its own, taken over from the one that starts it.
    """
    if not niceness:
        return
    if os.name != "nt":
        os.nice(niceness)
        if os.getsid(0) == os.getpid():
            # Linux divides the time among sessions first, as a whole each; niceness alone only counts within one
            with contextlib.suppress(OSError):
                _AUTOGROUP.write_text(str(niceness))
        return
    import psutil

    name = "IDLE_PRIORITY_CLASS" if niceness >= _WINDOWS_IDLE_FROM else "BELOW_NORMAL_PRIORITY_CLASS"
    psutil.Process().nice(getattr(psutil, name))
