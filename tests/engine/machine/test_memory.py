import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.machine.memory import (
    PRECISIONS,
    WORK_BYTES,
    allowed_bytes,
    available_bytes,
    budget,
    choose_precision,
    give_back_unused,
    peak_bytes,
    resident_bytes,
)

GB = 10**9
SIZES = {"exact": 3 * GB, "int8": 1_200_000_000, "int4": 700_000_000}


def test_what_fits_is_loaded_as_wanted() -> None:
    assert choose_precision("int8", SIZES, 1_200_000_000) == ("int8", "")


def test_too_little_memory_means_a_smaller_precision_and_one_line() -> None:
    message = "engine.precision int8 needs 1.2 GB, 0.9 GB are allowed: int4 is used"
    assert choose_precision("int8", SIZES, 900_000_000) == ("int4", message)
    assert choose_precision("exact", SIZES, 2 * GB)[0] == "int8"
    assert choose_precision("exact", {"exact": 3 * GB, "int4": GB}, 2 * GB)[0] == "int4"  # no int8 on this machine


def test_a_larger_precision_than_the_wanted_one_is_never_taken() -> None:
    with pytest.raises(ConfigError):
        choose_precision("int4", {"exact": 1, "int4": 10}, 5)


def test_a_model_that_fits_in_no_precision_is_an_error_of_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"needs 0\.7 GB of memory, 0\.5 GB are allowed \(engine\.max_memory_mb.*set it to 700,"
    ) as caught:
        choose_precision("exact", SIZES, GB // 2)
    assert "\n" not in str(caught.value)


@given(
    st.sampled_from(PRECISIONS), st.dictionaries(st.sampled_from(PRECISIONS), st.integers(1, 100)), st.integers(0, 100)
)
@settings(derandomize=True, max_examples=300)
def test_what_is_chosen_fits_and_is_the_first_that_does(wanted: str, sizes: dict[str, int], allowed: int) -> None:
    sizes = {wanted: 50, **sizes}
    order = PRECISIONS[PRECISIONS.index(wanted) :]
    fitting = [name for name in order if sizes.get(name, allowed + 1) <= allowed]
    if not fitting:
        with pytest.raises(ConfigError):
            choose_precision(wanted, sizes, allowed)
        return
    precision, message = choose_precision(wanted, sizes, allowed)
    assert precision == fitting[0]
    assert bool(message) == (precision != wanted)


def test_the_setting_is_the_limit_and_without_it_half_of_what_is_free() -> None:
    assert allowed_bytes(0, 8 * GB) == 4 * GB
    assert allowed_bytes(3, 8 * GB) == 3 * 2**20
    assert available_bytes() > 2**20


def test_room_is_what_the_process_and_its_work_leave() -> None:
    taken = 500 * 2**20
    assert budget(2000, 8 * GB, taken).room_bytes == 1500 * 2**20 - WORK_BYTES
    assert budget(2000, 8 * GB, taken, reserved_bytes=2**20).room_bytes == 1499 * 2**20 - WORK_BYTES
    assert budget(0, 8 * GB, 2 * GB).room_bytes == 3 * GB - WORK_BYTES  # half of what was free before it was there
    assert budget(400, 8 * GB, taken).room_bytes == 0
    now = resident_bytes()
    assert peak_bytes() >= 0.99 * now > 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory that is freed is given back, or kept, by itself")
def test_what_was_freed_is_given_back() -> None:
    pieces = [bytearray(100_000) for _ in range(1000)]
    last = bytearray(100_000)  # lies above: without asking, what is below stays
    pieces.clear()
    kept = resident_bytes()
    give_back_unused()
    assert kept - resident_bytes() > 50_000_000
    del last
