import os
import subprocess
import sys
from pathlib import Path

import pytest

_SHOW = "import os; from engine.machine.priority import give_way; give_way(%d); print(os.nice(0))"


@pytest.mark.skipif(os.name == "nt", reason="has classes instead")
@pytest.mark.parametrize("niceness", [0, 3, 19])
def test_a_process_gives_way_from_where_it_was_started(niceness: int) -> None:
    done = subprocess.run([sys.executable, "-c", _SHOW % niceness], capture_output=True, text=True, check=True)
    assert int(done.stdout) == min(19, os.nice(0) + niceness)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="Linux divides the time among sessions")
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_process_gives_way_to_other_sessions_only_with_one_of_its_own(is_alone: bool) -> None:
    code = _SHOW % 3 + "; print(open('/proc/self/autogroup').read())"
    command = [sys.executable, "-c", code]
    if not is_alone:  # in the session of another process, which must not give way too
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({command!r}, check=True)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    assert done.stdout.split()[-2:] == ["nice", "3" if is_alone else "0"]
