"""Folders, lists of files and tables are what they say: the same images and labels as arrays."""

import numpy as np
import pytest
import torch

from exportable import labelled, pictures, small_encoder
from osscl import ContinualClassifier
from osscl.errors import DataError
from refusals import naming


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    for c in range(2):
        (tmp_path / "photos" / f"kind {c}").mkdir(parents=True)
        for i, image in enumerate(pictures(c, 6)):
            image.save(tmp_path / "photos" / f"kind {c}" / f"{i}.png")
    return tmp_path / "photos"


def agent():
    return ContinualClassifier(encoder=small_encoder(), device="cpu")


def rows(folder):
    files = sorted(folder.rglob("*.png"))
    return [str(file) for file in files], [file.parent.name for file in files]


def as_pandas(**columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def as_polars(**columns):
    return pytest.importorskip("polars").DataFrame(columns)


def test_a_folder_a_list_and_arrays_teach_the_same(folder):
    files, labels = rows(folder)
    images, _ = labelled(0, 1, count=6)
    stacked = np.stack([np.asarray(image) for image in images]).transpose(0, 3, 1, 2)
    expected = agent().fit(files, labels)
    tests = pictures(0, 4, seed=5) + pictures(1, 4, seed=5)
    for given in ((folder,), (str(folder),), (images, labels), (stacked, labels), (torch.from_numpy(stacked), labels),
                  (np.array(files), np.array(labels))):  # fmt: skip
        assert np.array_equal(agent().fit(*given).predict_proba(tests), expected.predict_proba(tests))
    assert expected.score(folder) == expected.score(files, labels) == 1
    assert expected.predict(folder).tolist() == labels  # all images below it, in order
    assert len(agent().fit(folder, unlabeled=folder).learner.pile_digests) == 12


@pytest.mark.parametrize("table", [as_pandas, as_polars])
def test_a_table_with_a_path_and_a_label_column(folder, table):
    files, labels = rows(folder)
    whole = table(path=files, label=labels)
    made = agent().fit(whole)
    assert made.predict(whole).tolist() == labels and made.score(whole) == 1
    assert made.test(table(file=files, size=[1] * 12), labels).accuracy == 1
    apart = agent().fit(whole["path"], whole["label"], unlabeled=table(filename=files))
    assert apart.class_names == made.class_names and apart.score(table(image=files, **{"class": labels})) == 1
    for wrong, about in ((table(name=files, label=labels), "filename"), (table(path=files), "class")):
        with pytest.raises(DataError, match=naming(about)):
            agent().fit(wrong)


@pytest.mark.parametrize("table", [as_pandas, as_polars])
def test_integers_in_a_table_come_back_as_integers(folder, table):
    files, labels = rows(folder)
    whole = table(path=files, label=[int(label[-1]) for label in labels])
    assert agent().fit(whole).predict(files).tolist() == [0] * 6 + [1] * 6


def test_tables_are_cross_validated(folder):
    from sklearn.model_selection import cross_val_score

    files, labels = rows(folder)
    table = as_pandas(path=files, label=labels)
    assert cross_val_score(agent(), table, table["label"], cv=3, error_score="raise").mean() > 0.9


@pytest.mark.parametrize(
    "given, about",
    [
        ((["a.png"],), ("label", "table")),
        (("folder", ["cat"]), ("folder", "labels")),
        (("nowhere",), ("nowhere",)),
        ((["a.png"], ["x", "y"]), ("a.png",)),  # images are read before labels are checked
        ((["a.png"], [0.5]), ("a.png",)),
    ],
)
def test_wrong_input_is_refused_in_one_line(given, about):
    with pytest.raises(DataError, match=naming(*about)) as error:
        agent().fit(*given)
    assert "\n" not in str(error.value)


def test_networks_from_scratch_need_arrays(folder):
    with pytest.raises(DataError, match=naming("uint8", "osscl.load_folder")):
        ContinualClassifier("labels-only", "smoke", device="cpu").fit(folder)


def test_a_single_picture_can_be_predicted(folder):
    made = agent().fit(folder)
    (picture,) = pictures(0, 1, seed=5)
    assert made.predict(picture).tolist() == made.predict([picture]).tolist()
