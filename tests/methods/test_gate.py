"""The gate: Eq. 2 term by term, thresholds, scores, and what is selected."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.data.images import Labeled
from osscl.errors import SpecError
from osscl.methods.base import Schedule, Setting
from osscl.methods.gate import Gate, GateConfig, fit_gate, prototype_cosines, thresholds
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.augment import Augmentation, augment, draws
from osscl.vision.encoder import Encoder, EncoderConfig, ImageFormat, new_encoder
from refusals import naming

IMAGES = ImageFormat(1, 8, (0.5,), (0.3,))
VIEWS = Augmentation(scale=(0.4, 1.0), ratio=(0.75, 4 / 3), flip=0.5, jitter=0.0, grey=0.0)
SETTING = Setting(IMAGES, VIEWS, 0, 0, Schedule("toy"))
CLASSES = [7, 2, 4]  # in the order in which they were seen


def unit_rows(m: int, d: int = 6) -> Tensor:
    return F.normalize(torch.randn(m, d, generator=seeded(0, "rows")), dim=1)


def pictures(n: int, seed: int = 0) -> Tensor:
    """Different patches of light and dark."""
    patches = torch.randint(0, 256, (n, 1, 3, 3), generator=seeded(seed, "pixels")).float()
    return F.interpolate(patches, 8, mode="bilinear").to(torch.uint8)


@torch.no_grad()
def reference() -> Encoder:
    """A network whose embeddings point everywhere, like a trained one's: random ones point in one direction."""
    config = EncoderConfig("small", dim=6)
    net = new_encoder(config, IMAGES, seeded(0, "init"), torch.device("cpu"), torch.float32).eval()
    net.projector[-1].bias.sub_(net.projector(net.features(pictures(200, seed=9))).mean(0))
    return net


def labeled(counts: tuple[int, ...] = (4, 1, 6)) -> Labeled:
    labels = torch.cat([torch.full((n,), c) for c, n in zip(CLASSES, counts, strict=True)])
    return Labeled(pictures(len(labels)), labels[torch.randperm(len(labels), generator=seeded(0, "order"))])


def gate_of(config: GateConfig, data: Labeled | None = None, net: Encoder | None = None) -> Gate:
    return fit_gate(config, net or reference(), data or labeled(), CLASSES, SETTING, 1)


@torch.no_grad()
@pytest.mark.parametrize("views", [0, 1, 10])
def test_prototypes_are_equation_2_with_columns_in_the_order_of_the_classes(views):
    """Term by term: over the samples of a class, over A, divided by both counts, projected to the sphere."""
    net, data = reference(), labeled()
    u = [draws(len(data), seeded(0, "gate", 1, "prototype", a)) for a in range(views)]
    images = [augment(data.images, each, VIEWS) for each in u] or [data.images.float() / 255]
    expected = []
    for c in CLASSES:
        rows = [net(x[i : i + 1])[0] for i in range(len(data)) if data.labels[i] == c for x in images]
        mean = sum(rows, torch.zeros(6)) / len(rows)
        expected.append(mean / mean.norm())
    found = gate_of(GateConfig(prototype_views=views)).prototypes
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-4)


def test_prototypes_do_not_depend_on_the_order_of_the_rows():
    data, config = labeled(), GateConfig(prototype_views=0)
    turned = data.rows(torch.randperm(len(data), generator=seeded(1, "turn")))
    torch.testing.assert_close(gate_of(config, data).prototypes, gate_of(config, turned).prototypes)


@pytest.mark.parametrize(
    ("config", "low", "high"),
    [
        (GateConfig(eta=(-4.0, -2.0)), 0.5 - 4 * 0.2 / 3, 0.5 - 2 * 0.2 / 3),
        (GateConfig(eta=(-1.5, 1.0), spread="std"), 0.5 - 1.5 * math.sqrt(0.2 / 3), 0.5 + math.sqrt(0.2 / 3)),
    ],
)
def test_thresholds_are_the_mean_plus_eta_times_variance_or_standard_deviation(config, low, high):
    scores = torch.tensor([0.2, 0.4, 0.6, 0.8])  # mean .5, variance .2 / 3
    assert thresholds(scores, config) == pytest.approx((low, high))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("spread", ["var", "std"])
def test_a_single_score_has_no_spread_and_raises_no_warning(spread):
    assert thresholds(torch.tensor([0.3]), GateConfig(spread=spread)) == pytest.approx((0.3, 0.3))


@torch.no_grad()
def test_thresholds_come_from_the_plain_scores_of_the_labelled_rows():
    net, data = reference(), labeled()
    config = GateConfig(prototype_views=4, spread="std", eta=(-1.0, 0.5))
    gate = gate_of(config)
    scores = [max(float(z @ p) for p in gate.prototypes) for z in net(data.images)]
    assert gate.labeled_scores.tolist() == pytest.approx(scores, abs=1e-5)
    assert (gate.threshold, gate.pseudo_threshold) == pytest.approx(thresholds(torch.tensor(scores), config), abs=1e-5)


def test_no_row_is_nearest_to_a_class_without_a_labelled_image():
    data = labeled()
    gate = gate_of(GateConfig(prototype_views=2), data.rows((data.labels != CLASSES[0]).nonzero().squeeze(1)))
    scores, columns = gate.score(unit_rows(300))
    assert set(columns.tolist()) == {1, 2}
    assert scores.min() < 0  # below the cosine of 0 that a zero prototype would give
    torch.testing.assert_close(scores, (unit_rows(300) @ gate.prototypes[1:].T).max(1).values)
    assert gate.labeled_scores.isfinite().all()


def test_scores_by_hand():
    found = prototype_cosines(torch.tensor([[0.6, 0.8], [-1.0, 0.0]]), torch.tensor([[1.0, 0], [0, 0], [0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.6, -2.0, 0.8], [-1.0, -2.0, 0.0]]))
    z = F.normalize(torch.tensor([[1.0, 2.0, 0.0], [-1.0, -2.0, -3.0], [0.0, 0.0, 5.0]]), dim=1)
    scores, columns = Gate(torch.eye(3), 0.0, 0.5, torch.zeros(1)).score(z)
    assert columns.tolist() == [1, 0, 2]
    assert scores.tolist() == pytest.approx([2 / math.sqrt(5), -1 / math.sqrt(14), 1.0])


@pytest.mark.parametrize(
    ("config", "pseudo", "guide"),
    [
        (GateConfig(), [2], [1, 2, 3]),  # confident rows of past classes
        (GateConfig(pseudo="all"), [2, 3], [1, 2, 3]),
        (GateConfig(pseudo="all_but_no_anchor"), [2, 3], [1, 2, 3]),
        (GateConfig(pseudo="none"), [], [1, 2, 3]),
        (GateConfig(guide="all"), [2], [0, 1, 2, 3]),
    ],
)
def test_two_thresholds_select_pseudo_labels_and_rows_to_guide_by(config, pseudo, guide):
    images, labels = pictures(4), torch.tensor([7, 4, 2, 4])
    step = Step(1, (4,), labeled(), images)
    found = Gate(torch.eye(3), 0.1, 0.5, torch.zeros(1)).segregate(
        config, step, torch.tensor([0, 0.3, 0.6, 0.9]), labels
    )
    assert torch.equal(found.pseudo_labeled.images, images[pseudo]) and torch.equal(found.guide, images[guide])
    assert torch.equal(found.pseudo_labeled.labels, labels[pseudo]) and found.report.used == len(pseudo)
    assert found.report.passed.tolist() == [False, True, True, True]
    assert found.report.confident.tolist() == [False, False, True, True]


@torch.no_grad()
def test_a_gate_is_reproducible_and_does_not_change_the_reference():
    net = reference()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(1)
    one = gate_of(GateConfig(), net=net)
    torch.manual_seed(2)
    two = gate_of(GateConfig(), net=net)
    assert torch.equal(one.prototypes, two.prototypes)
    assert (one.threshold, one.pseudo_threshold) == (two.threshold, two.pseudo_threshold)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    "wrong", [{"prototype_views": -1}, {"spread": "iqr"}, {"pseudo": "past"}, {"eta": (-2.0, -4.0)}]
)
def test_invalid_gate_settings_are_refused_by_field(wrong):
    with pytest.raises(SpecError, match=naming(next(iter(wrong)))):
        GateConfig(**wrong)
