"""The exported network computes what the agent computes, pixel by pixel and row by row."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import t as student

from exportable import pictures, pile, small_agent, small_encoder
from osscl.agent.exported_graph import PhotoGraph, View, exported_size, student_cdf
from osscl.errors import UserError
from osscl.learn.embedded import DISCRIMINANTS, MEANS, Voice
from osscl.vision.preprocessing import VIEWS, Preprocessing
from refusals import naming


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))


def as_pixels(images):
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize("degrees", range(1, 39))
def test_the_finite_sum_is_students_distribution(degrees):
    points = torch.linspace(-40, 40, 801, dtype=torch.float64)
    np.testing.assert_allclose(student_cdf(points, degrees), student.cdf(points, degrees), atol=1e-7)


@pytest.mark.parametrize("edge", [36, None, 47])
@pytest.mark.parametrize("resample", [0, 1, 2, 3])
@pytest.mark.parametrize("view", range(6))
def test_a_view_has_the_pixels_that_pillow_makes(view, resample, edge):
    preprocessing = Preprocessing((32, 32), edge, resample, (0.0,) * 3, (1.0,) * 3)
    size = exported_size(preprocessing, 6)
    images = [image.resize((size, size)) for image in pictures(0, 3)]
    expected = torch.stack([preprocessing.apply(image, 6)[view] for image in images])
    found = View(preprocessing, size, *VIEWS[view])(as_pixels(images).float())
    off = (found - expected.float()).abs()
    assert float(off.max()) <= 1 and float((off > 0).float().mean()) < 1e-3


def test_the_closest_view_needs_no_enlargement():
    cropped = Preprocessing((224, 224), 256, 3, (0.0,) * 3, (1.0,) * 3)
    assert [exported_size(cropped, views) for views in (1, 2, 6)] == [256, 320, 320]
    left, _, right, _ = cropped.kept((320, 320), 0.8)
    assert right - left == pytest.approx(224)


def agreement(made, images):
    """The largest differences of probabilities and shares between the graph and the agent, on the same squares."""
    model = made.model
    size = exported_size(model.learner.encoder.encoder.preprocessing, model.learner.encoder.views)
    squares = [image.resize((size, size)) for image in images]
    graph = PhotoGraph(model.learner.encoder, model.knowledge, model.reject, size).eval()
    with torch.inference_mode():
        probabilities, share, known = graph(as_pixels(squares))
    expected = model.predict(squares)
    assert torch.equal(known, expected.known)
    apart = float((probabilities - expected.class_probabilities).abs().max())
    return apart, float((share - expected.scores).abs().max())


@pytest.mark.parametrize("views", [1, 2, 3, 6])
@pytest.mark.parametrize("count", [14, 6])  # 42 and 18 known scores: counted, and Student's t
def test_the_graph_answers_as_the_agent(views, count):
    made = small_agent(count=count, views=views)
    images = [image for c in range(5) for image in pictures(c, 8, seed=3)]
    probability, share = agreement(made, images)
    assert probability < 1e-5 and share < 1e-5
    assert 0 < int(made.model.predict(images).known.sum()) < len(images)  # both kinds of decision


@pytest.mark.parametrize("chosen", [MEANS, DISCRIMINANTS])
def test_every_kind_of_head_is_exported(chosen):
    from dataclasses import replace

    made = small_agent()
    made.model.knowledge.__dict__["head"] = replace(made.model.knowledge.head, voices=(Voice(chosen, 1.0, 0.5),))
    probability, _ = agreement(made, pile(4))
    assert probability < 1e-5


def test_pictures_of_the_pile_are_recognised():
    made = small_agent()
    size = exported_size(made.learner.encoder.encoder.preprocessing, 2)
    squares = [image.resize((size, size)) for image in pictures(7, 6, seed=5)]
    before = made.model.predict(squares).scores
    made.update(unlabeled=squares)
    graph = PhotoGraph(made.learner.encoder, made.learner.knowledge, 0.05, size).eval()
    with torch.inference_mode():
        rows = graph.embedding(as_pixels(squares)).double()
        assert graph.known_share.copies(rows).tolist() == [1.0] * 6
        _, share, _ = graph(as_pixels(squares))
    torch.testing.assert_close(share, made.model.predict(squares).scores, atol=1e-5, rtol=0)
    assert before.shape == share.shape


@pytest.mark.parametrize("images, labels", [(1, 1), (1, 2), (2, 1)])
def test_a_handful_of_images_is_enough(images, labels):
    made = small_agent(*range(labels), count=images)
    probability, share = agreement(made, pile(2))
    assert probability < 1e-5 and share < 1e-5


def test_an_encoder_without_a_network_and_oblong_letterboxes_are_refused():
    made = small_agent()
    made.learner.encoder.encoder = object()
    with pytest.raises(UserError, match=naming("small", "network")):
        PhotoGraph(made.learner.encoder, made.learner.knowledge, 0.05, 40)
    oblong = small_encoder(shape=(32, 24)).preprocessing
    View(oblong, 45, 1.0, False)
    with pytest.raises(UserError, match=naming(5, 6)):
        View(oblong, 45, None, False)


def test_pillow_resamples_rows_before_columns_and_rounds_each():
    """What the graph relies on: the weights of an identity matrix, and rounding after each direction."""
    image = pictures(3, 1)[0].convert("L").resize((40, 40))
    rows = image.resize((32, 40), Image.Resampling.BICUBIC)
    both = rows.resize((32, 32), Image.Resampling.BICUBIC)
    assert np.array_equal(np.asarray(both), np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC)))
