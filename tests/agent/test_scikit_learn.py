"""ContinualClassifier keeps scikit-learn's manners: parameters, clones, arrays in and out, its checks and tools."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, get_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from exportable import labelled, pictures, pile, small_agent, small_encoder
from osscl import ContinualClassifier
from osscl.agent import classifier
from osscl.errors import SpecError, UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(classifier, "load_encoder", lambda *_: small_encoder())


def agent(**fields):
    return ContinualClassifier(encoder=small_encoder(), device="cpu", **fields)


def arrays(*kinds, count=10, seed=0):
    """Images (n, 3, 40, 48) and integer labels."""
    images = [np.asarray(image).transpose(2, 0, 1) for c in kinds for image in pictures(c, count, seed)]
    return np.stack(images), np.repeat(kinds, count)


# ----- scikit-learn's own checks


OF_PARAMETERS = (
    "check_do_not_raise_errors_in_init_or_set_params", "check_estimator_cloneable", "check_estimator_repr",
    "check_estimator_tags_renamed", "check_estimators_unfitted", "check_get_params_invariance", "check_mixin_order",
    "check_no_attributes_set_in_init", "check_non_transformer_estimators_n_iter",
    "check_parameters_default_constructible", "check_set_params", "check_valid_tag_types",
)  # fmt: skip


@pytest.mark.parametrize("check", [name for name in OF_PARAMETERS if hasattr(estimator_checks, name)])
def test_scikit_learns_checks_of_parameters_hold(check):
    getattr(estimator_checks, check)("ContinualClassifier", agent())


class OnTables(ContinualClassifier):
    """Draws each row of a table as a picture, so that scikit-learn's checks on tables can be run."""

    def fit(self, X, y=None):
        return super().fit(self._drawn(X), y)

    def predict_detailed(self, images, threshold=None):
        return super().predict_detailed(self._drawn(images), threshold)

    def _drawn(self, table):
        raw = np.asarray(table, float)
        values = 128 + 80 * np.arctan(raw / 2)
        fine, finer = (64 + (factor * raw) % 128 for factor in (37, 811))  # different rows are different pictures
        channels = np.stack((values, fine, finer), 1).astype(np.uint8)  # (n, 3, columns)
        stripes = np.repeat(channels[..., np.arange(8) % values.shape[1]], 6, axis=2)
        return np.ascontiguousarray(np.broadcast_to(stripes[:, :, None], (len(values), 3, 40, 48)))


OF_BEHAVIOUR = (
    "check_classifiers_classes", "check_dict_unchanged", "check_estimators_dtypes",
    "check_estimators_fit_returns_self", "check_estimators_overwrite_params", "check_estimators_pickle",
    "check_f_contiguous_array_estimator", "check_fit2d_1feature", "check_fit_check_is_fitted", "check_fit_idempotent",
    "check_methods_sample_order_invariance", "check_methods_subset_invariance",
    "check_pipeline_consistency", "check_readonly_memmap_input", "check_classifiers_train",
)  # fmt: skip


@pytest.mark.parametrize("check", [name for name in OF_BEHAVIOUR if hasattr(estimator_checks, name)])
def test_scikit_learns_checks_of_behaviour_hold_on_drawn_tables(check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(estimator_checks, check)("OnTables", OnTables(encoder="small", device="cpu"))


# ----- parameters


def test_the_constructor_stores_its_arguments_and_fit_checks_them():
    made = ContinualClassifier(encoder="eficientnet-lite0", memory=-1, device="no such device")
    assert made.get_params()["memory"] == -1 and vars(made) == made.get_params()
    with pytest.raises(UserError):
        made.fit(["nowhere.jpg"], ["a"])


def test_clones_and_copies_are_independent():
    made = small_agent(memory=7, views=1)
    other = clone(made)
    assert other.get_params() != {} and other.memory == 7 and other.views == 1 and not other.history
    for one in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert np.array_equal(one.predict(pile()), made.predict(pile()))
        one.update(*labelled(4))
        assert len(made.classes_) == 3 and len(one.classes_) == 4


def test_set_params_takes_effect_at_the_next_fit():
    made = small_agent(memory=7)
    before = made.predict_proba(pile())
    made.set_params(memory=0, views=1)
    assert made.learner.settings.memory == 7 and np.array_equal(made.predict_proba(pile()), before)
    made.update(*labelled(3))
    assert made.learner.settings.memory == 7
    made.set_params(views=9)
    with pytest.raises(SpecError, match="views"):
        made.fit(*labelled(0, 1))
    assert len(made.classes_) == 4 and made.learner.settings.views == 2  # the failed call changed nothing
    made.set_params(views=1).fit(*labelled(0, 1), pile())
    assert made.learner.settings.memory == 0 and made.learner.settings.views == 1 and len(made.classes_) == 2
    unfitted = agent(memory=-1).set_params(memory=3)
    assert unfitted.fit(*labelled(0, 1)).learner.settings.memory == 3


def test_a_loaded_agent_has_the_parameters_it_was_made_with(tmp_path, monkeypatch):
    from osscl.agent import photos

    monkeypatch.setattr(photos, "load_encoder", lambda *_: small_encoder())
    made = ContinualClassifier(encoder="small", memory=9, reject=0.1, views=1, device="cpu").fit(*labelled(0, 1))
    made.save(tmp_path / "agent")
    again = ContinualClassifier.load(tmp_path / "agent", "cpu")
    assert again.get_params() == made.get_params() and clone(again).get_params() == made.get_params()
    images = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8)
    scratch = ContinualClassifier("labels-only", "smoke", memory=6, device="cpu").fit(images, [0, 1] * 4)
    scratch.save(tmp_path / "scratch")
    loaded = ContinualClassifier.load(tmp_path / "scratch", "cpu")
    assert clone(loaded).learner.recipe == loaded.learner.recipe == scratch.learner.recipe
    assert loaded.n_features_in_ == 3 * 8 * 8 and loaded.integer_labels


# ----- arrays in, arrays out


def test_labels_come_back_as_they_were_given():
    images, labels = arrays(2, 10, 1)
    made = agent().fit(images, labels)
    assert made.classes_.tolist() == [1, 2, 10] and made.class_names == ["1", "10", "2"]
    assert made.predict(images).dtype == labels.dtype and accuracy_score(labels, made.predict(images)) > 0.9
    chances = made.predict_proba(images)
    assert chances.shape == (30, 3) and np.allclose(chances.sum(1), 1, atol=1e-5)
    assert np.array_equal(made.classes_[chances.argmax(1)], made.predict(images))
    made.update(*labelled(4))
    assert made.classes_.tolist() == ["1", "10", "2", "kind 4"]  # names and numbers together are names
    named = agent().fit(*labelled(0, 1))
    assert named.predict(pictures(0, 2)).tolist() == ["kind 0", "kind 0"]
    assert is_classifier(named) and not hasattr(named, "n_features_in_")


def test_integer_labels_survive_saving(tmp_path, monkeypatch):
    from osscl.agent import photos

    monkeypatch.setattr(photos, "load_encoder", lambda *_: small_encoder())
    images, labels = arrays(0, 1)
    agent().fit(images, labels).save(tmp_path)
    again = ContinualClassifier.load(tmp_path, "cpu")
    assert again.predict(images[:2]).tolist() == [0, 0]
    assert again.rename("1", "one").predict(images[:2]).tolist() == ["0", "0"]


def test_before_the_first_step_there_is_scikit_learns_error():
    made = agent()
    images, labels = arrays(0, 1)
    for call in (
        lambda: made.predict(images), lambda: made.predict_proba(images), lambda: made.score(images, labels),
        lambda: made.update(images, labels), lambda: made.classes_, lambda: check_is_fitted(made),
    ):  # fmt: skip
        with pytest.raises(NotFittedError):
            call()
    with pytest.raises(classifier.NotLearnedError, match="fit"):
        made.predict(images)
    check_is_fitted(made.fit(images, labels))


def test_partial_fit_is_fit_and_then_update():
    images, labels = arrays(0, 1)
    one = agent().partial_fit(images, labels, classes=[0, 1, 2]).partial_fit(*arrays(2), unlabeled=pile())
    other = agent().fit(images, labels).update(*arrays(2), unlabeled=pile())
    assert np.array_equal(one.predict_proba(images), other.predict_proba(images)) and len(one.history) == 2


# ----- scikit-learn's tools


@pytest.mark.parametrize("scoring", [None, "accuracy", "neg_log_loss", "balanced_accuracy"])
def test_cross_validation_on_arrays(scoring):
    images, labels = arrays(0, 1, 2, count=9)
    found = cross_val_score(agent(), images, labels, cv=3, scoring=scoring, error_score="raise")
    assert found.shape == (3,) and (found > (-0.5 if scoring == "neg_log_loss" else 0.9)).all()


def test_it_works_inside_a_pipeline_and_a_grid():
    images, labels = arrays(0, 1, 2, count=9)
    flat = images.reshape(len(images), -1)
    made = make_pipeline(FunctionTransformer(lambda x: x.reshape(-1, 3, 40, 48)), agent())
    assert made.fit(flat, labels).score(flat, labels) > 0.9 and made.predict(flat).dtype == labels.dtype
    assert np.array_equal(made.classes_, [0, 1, 2]) and get_scorer("roc_auc_ovr")(made, flat, labels) > 0.95
    names = np.array(["a", "b", "c"])[labels]
    found = GridSearchCV(agent(), {"views": [1, 2]}, cv=3, error_score="raise").fit(images, names)
    assert found.best_score_ > 0.9 and set(found.predict(images)) == {"a", "b", "c"}


def test_a_scratch_agent_is_cross_validated_too():
    rng = np.random.default_rng(0)
    images = (rng.integers(0, 60, (24, 1, 8, 8)) + np.repeat([0, 150], 12)[:, None, None, None]).astype(np.uint8)
    made = ContinualClassifier("labels-only", "smoke", device="cpu")
    assert cross_val_score(made, images, np.repeat([0, 1], 12), cv=2, error_score="raise").shape == (2,)
