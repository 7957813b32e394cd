import os
import pickle
import random
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osscl.data import pickles
from osscl.data.pickles import read_pickle
from osscl.errors import DataError
from refusals import naming


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


CASES = int(os.environ.get("OSSCL_FUZZ_CASES", "100"))

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
def test_every_protocol_of_python_3_is_read_with_keys_of_text_or_bytes(tmp_path: Path, protocol: int):
    path = tmp_path / "batch"
    for batch in (BATCH, {key.decode(): value for key, value in BATCH.items()}):
        path.write_bytes(pickle.dumps(batch, protocol=protocol))
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
    with pytest.raises(DataError, match=naming(path, "refused")) as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


def test_arrays_of_objects_are_refused(tmp_path: Path):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": np.array([{}, []], dtype=object)}, protocol=4))
    with pytest.raises(DataError, match=naming(path, "object")):
        read_pickle(path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path: Path, share: float):
    path, whole = tmp_path / "batch", pickle.dumps(BATCH, protocol=4)
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match=naming(path, "truncated")):
        read_pickle(path)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("more", [-1, 1, 300])
def test_an_array_with_too_few_or_too_many_bytes_is_refused(tmp_path: Path, protocol: int, more: int):
    """More bytes than the array has would shift its values: Python's own reader refuses them, too."""
    array = np.arange(600, dtype=np.uint8).reshape(2, 300)
    reconstruct, arguments, state = array.__reduce__()

    class Odd:
        def __reduce__(self) -> Any:
            raw = state[4] + bytes(more) if more > 0 else state[4][:more]
            return reconstruct, arguments, (*state[:4], raw)

    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": Odd()}, protocol))
    with pytest.raises(ValueError, match="buffer"):
        pickle.loads(path.read_bytes())
    with pytest.raises(DataError, match=naming(path, "bytes")):
        read_pickle(path)


def test_a_pickle_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match=naming(path, "list")):
        read_pickle(path)


def call(module: str, name: str, *arguments: bytes) -> bytes:
    return f"c{module}\n{name}\n(".encode() + b"".join(arguments) + b"tR"


TUPLES = b"\x8c\x01a" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(40))  # 2^40 leaves
U1 = call("numpy", "dtype", b"\x8c\x02u1")
TEXT = b"X\x10\x27\0\0" + b"x" * 10_000 + b"q\x00"

BOMBS = {
    "memo index": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "nested key": b"\x80\x04}" + TUPLES + b"Ns.",
    "nested type": b"\x80\x04}\x8c\x01k" + call("numpy", "dtype", TUPLES) + b"s.",
    "array without bytes": b"\x80\x04}\x8c\x01k"
    + call("numpy.core.numeric", "_frombuffer", b"N", U1, b"\x8a\x05\0\0\0\0\x10\x85", b"\x8c\x01C")
    + b"s.",
    "text copied again and again": b"\x80\x04]("
    + TEXT
    + 5000 * call("_codecs", "encode", b"h\x00", b"\x8c\x06latin1")
    + b"e.",
    "declared length": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "long type": b"\x80\x04}\x8c\x01k" + call("numpy", "dtype", b"X\0\x10\0\0" + b"(" * 4096) + b"s.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_seconds_and_a_few_megabytes(tmp_path: Path, name: str):
    path = tmp_path / "batch"
    path.write_bytes(BOMBS[name])
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_DATA, ({2**30}, {2**30}))\n"
    code = (
        f"{limit}from pathlib import Path\nfrom osscl.data.pickles import read_pickle\nread_pickle(Path({str(path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "osscl.errors.DataError" in done.stderr.splitlines()[-1]


def test_the_number_of_instructions_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pickles, "MOST_INSTRUCTIONS", 1000)
    (tmp_path / "batch").write_bytes(b"\x80\x04](" + b"}" * 1000 + b"e.")
    with pytest.raises(DataError, match=naming(tmp_path / "batch", "1,000")):
        read_pickle(tmp_path / "batch")


def test_a_deeply_nested_value_is_harmless(tmp_path: Path):
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x04}\x8c\x01k" + b"N" + b"\x85" * 100_000 + b"s.")
    assert list(read_pickle(path)) == [b"k"]


def mutated(whole: bytes, rng: random.Random) -> bytes:
    """A pickle with a few bytes changed, inserted, removed or repeated."""
    changed = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        place, kind = rng.randrange(len(changed)), rng.randrange(4)
        if kind == 0:
            changed[place] = rng.randrange(256)
        elif kind == 1:
            changed.insert(place, rng.choice(b"(.0123}]tRbc\x85\x86\x87\x94hjqrsu"))
        elif kind == 2:
            del changed[place]
        else:
            changed[place:place] = changed[max(0, place - 9) : place]
    return bytes(changed)


def test_a_mutated_pickle_is_data_or_a_data_error(tmp_path: Path):
    path, rng = tmp_path / "batch", random.Random(0)
    wholes = [pickle.dumps({b"labels": [1, 2, 3], b"data": np.zeros(4, np.uint8)}, protocol=p) for p in (2, 3, 4, 5)]
    wholes.append(b"\x80\x02" + python2(BATCH) + b".")
    for case in range(CASES):
        path.write_bytes(mutated(wholes[case % len(wholes)], rng))
        try:
            read_pickle(path)
        except DataError as error:
            assert str(path) in str(error) and "\n" not in str(error)
