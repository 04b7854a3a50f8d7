import math
from pathlib import Path

import pytest

from engine.machine.cgroup import cpu_quota, free_memory_bytes

_LIMIT = 8 * 2**30


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3.0),  # the parent's counts too
        ("0::/../../host/c\n", {"cpu.max": "200000 100000\n"}, 2.0),  # a path from outside the container
        ("4:cpu,x:/d\n", {"cpu,x/d/cpu.cfs_quota_us": "50000", "cpu,x/d/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("4:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "100000"}, math.inf),
        ("0::/\n", {"cpu.max": "nonsense\n"}, math.inf),
        ("0::/\n", {"cpu.max": "0 0\n"}, math.inf),
        ("nonsense\n", {}, math.inf),
    ],
)  # fmt: skip
def test_cpu_quota(tmp_path: Path, membership: str, files: dict[str, str], quota: float) -> None:
    _write(tmp_path / "fs", files)
    _write(tmp_path, {"self": membership})
    assert cpu_quota(tmp_path / "fs", tmp_path / "self") == quota


@pytest.mark.parametrize(
    ("membership", "files", "free_bytes"),
    [
        ("0::/\n", {"memory.max": f"{_LIMIT}", "memory.current": f"{2**30}"}, _LIMIT - 2**30),
        (
            "0::/\n",
            {"memory.max": f"{_LIMIT}", "memory.current": f"{2**30}", "memory.stat": "anon 1\ninactive_file 1000\n"},
            _LIMIT - 2**30 + 1000,
        ),
        ("0::/\n", {"memory.max": "max", "memory.current": "1"}, math.inf),
        ("0::/\n", {"memory.max": "5", "memory.current": "9"}, 0.0),
        ("2:memory:/x\n", {"memory/memory.limit_in_bytes": "100", "memory/memory.usage_in_bytes": "40"}, 60.0),
        ("0::/\n", {}, math.inf),
    ],
)
def test_free_memory(tmp_path: Path, membership: str, files: dict[str, str], free_bytes: float) -> None:
    _write(tmp_path / "fs", files)
    _write(tmp_path, {"self": membership})
    assert free_memory_bytes(tmp_path / "fs", tmp_path / "self") == free_bytes


def test_a_system_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "none") == free_memory_bytes(tmp_path, tmp_path / "none") == math.inf
