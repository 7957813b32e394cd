import os
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osscl.data.pickles import read_pickle
from osscl.errors import DataError


def python2(value: Any) -> bytes:
    """The opcodes that Python 2 wrote in protocol 2: text is `str`, which Python 3 never writes."""
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(key) + python2(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(python2(item) for item in value) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, bytes) and len(value) < 256:
        return b"U" + bytes([len(value)]) + value
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    assert isinstance(value, np.ndarray)
    shape = b"".join(python2(size) for size in value.shape)
    dtype = b"cnumpy\ndtype\n" + b"U\x02u1K\x00K\x01\x87R" + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return empty + b"(K\x01(" + shape + b"t" + dtype + b"\x89" + python2(value.tobytes()) + b"tb"


BATCH = {
    b"batch_label": b"testing batch 1 of 1",
    b"labels": [3, 0, 7],
    b"data": np.arange(3 * 300, dtype=np.uint8).reshape(3, 300),
    b"filenames": [b"a.png", b"", b"\xe9.png"],
}


def same_as_batch(read: dict[bytes, Any]) -> bool:
    return set(read) == set(BATCH) and all(np.array_equal(read[key], BATCH[key]) for key in BATCH)


def test_a_pickle_of_python_2_is_read_without_a_warning(tmp_path: Path):
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02" + python2(BATCH) + b".")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same_as_batch(read_pickle(path))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_python_3_is_read(tmp_path: Path, protocol: int):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(BATCH, protocol=protocol))
    assert same_as_batch(read_pickle(path))


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", "?"])
def test_arrays_keep_type_shape_and_order_of_bytes(tmp_path: Path, dtype: str, protocol: int):
    path, array = tmp_path / "batch", np.arange(12).reshape(3, 4).astype(dtype)
    path.write_bytes(pickle.dumps({"c": array, "f": array.T, "one": array[1, 2], "none": array[:0]}, protocol=protocol))
    read = read_pickle(path)
    assert read[b"c"].dtype == array.dtype
    assert np.array_equal(read[b"c"], array)
    assert np.array_equal(read[b"f"], array.T)
    assert read[b"one"] == array[1, 2]
    assert read[b"none"].shape == (0, 4)


def test_text_keys_are_the_same_keys(tmp_path: Path):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({key.decode(): value for key, value in BATCH.items()}, protocol=4))
    assert same_as_batch(read_pickle(path))


class Attack:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("call", [os.system, eval, __import__, getattr])
def test_a_pickle_that_calls_a_function_is_refused_before_the_call(tmp_path: Path, protocol: int, call: Any):
    path, mark = tmp_path / "batch", tmp_path / "mark"
    path.write_bytes(pickle.dumps({b"data": Attack(call, f"touch {mark}")}, protocol=protocol))
    with pytest.raises(DataError, match="refused") as caught:
        read_pickle(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


def test_arrays_of_objects_are_refused(tmp_path: Path):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": np.array([{}, []], dtype=object)}, protocol=4))
    with pytest.raises(DataError, match="an array of object"):
        read_pickle(path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_file_cut_short_is_named(tmp_path: Path, share: float):
    path, whole = tmp_path / "batch", pickle.dumps(BATCH, protocol=4)
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match="damaged or cut short") as caught:
        read_pickle(path)
    assert str(path) in str(caught.value)


def test_any_damaged_byte_ends_in_data_or_in_a_data_error(tmp_path: Path):
    path, whole = tmp_path / "batch", pickle.dumps({b"labels": [1, 2, 3], b"data": np.zeros(4, np.uint8)}, protocol=2)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        try:
            read_pickle(path)
        except DataError as error:
            assert str(path) in str(error)


def test_a_pickle_that_is_no_dictionary_is_refused(tmp_path: Path):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match="expected a dictionary"):
        read_pickle(path)
