import os
import subprocess
import sys

import pytest

_SHOW = "import os; from engine.machine.priority import give_way; give_way(%d); print(os.nice(0))"


@pytest.mark.skipif(os.name == "nt", reason="has classes instead")
@pytest.mark.parametrize("niceness", [0, 3, 19])
def test_a_process_gives_way_from_where_it_was_started(niceness: int) -> None:
    done = subprocess.run([sys.executable, "-c", _SHOW % niceness], capture_output=True, text=True, check=True)
    assert int(done.stdout) == min(19, os.nice(0) + niceness)
