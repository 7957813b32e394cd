import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.data.images import Labeled
from osscl.errors import SpecError
from osscl.learn.linear_head import class_sums
from osscl.methods.gate import (
    Gate,
    GateConfig,
    Look,
    cosines,
    leave_one_out_scores,
    open_gate,
    thresholds,
)
from osscl.seeding import seeded
from osscl.vision.augment import Augmentation, augment, draws
from osscl.vision.encoder import Encoder, EncoderConfig, ImageFormat, new_encoder

VIEWS = Augmentation(scale=(0.4, 1.0), ratio=(0.75, 4 / 3), flip=0.5, jitter=0.0, grey=0.0)
CLASSES = [7, 2, 4]  # in the order in which they were met
NAMES = ("gate", 1)


def unit_rows(m: int, d: int = 6, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(m, d, generator=seeded(seed, "rows")), dim=1)


def pictures(n: int, seed: int = 0) -> Tensor:
    """Patches of light and dark, unlike one another."""
    patches = torch.randint(0, 256, (n, 1, 3, 3), generator=seeded(seed, "pixels")).float()
    return F.interpolate(patches, 8, mode="bilinear").to(torch.uint8)


@torch.no_grad()
def reference() -> Encoder:
    """A network whose embeddings point everywhere, as a trained one's do: random ones point one way."""
    config, images = EncoderConfig("small", dim=6), ImageFormat(1, 8, (0.5,), (0.3,))
    net = new_encoder(config, images, seeded(0, "init"), torch.device("cpu"), torch.float32).eval()
    net.projector[-1].bias.sub_(net.project(pictures(200, seed=9)).mean(0))
    return net


def labeled(counts: tuple[int, ...] = (4, 1, 6)) -> Labeled:
    labels = torch.cat([torch.full((n,), c) for c, n in zip(CLASSES, counts, strict=True)])
    return Labeled(pictures(len(labels)), labels[torch.randperm(len(labels), generator=seeded(0, "order"))])


def look(config: GateConfig, net: Encoder | None = None) -> Look:
    return Look(config, net or reference(), VIEWS, 0, NAMES)


def gate_of(config: GateConfig, data: Labeled | None = None, net: Encoder | None = None) -> Gate:
    with torch.no_grad():
        return open_gate(look(config, net), data or labeled(), CLASSES)


def view(net: Encoder, data: Labeled, a: int) -> Tensor:
    """The images of augmentation `a` of the labelled rows."""
    return augment(data.images, draws(len(data), seeded(0, *NAMES, "prototype", a)), VIEWS)


def slow_prototypes(net: Encoder, data: Labeled, views: int, embed) -> list[Tensor]:
    """Eq. 2, term by term: over the samples of a class, over A, divided by both counts, put on the sphere."""
    images = [view(net, data, a) for a in range(views)] or [data.images.float() / 255]
    found = []
    for c in CLASSES:
        total, count = torch.zeros(6), 0
        for i in range(len(data)):
            if data.labels[i] == c:
                for x in images:
                    total = total + embed(x[i : i + 1])[0]
                    count += 1
        found.append(total / count / (total / count).norm())
    return found


@torch.no_grad()
@pytest.mark.parametrize("views", [0, 1, 10])
def test_prototypes_are_those_of_equation_2(views):
    net, data = reference(), labeled()
    expected = torch.stack(slow_prototypes(net, data, views, net))
    torch.testing.assert_close(gate_of(GateConfig(prototype_views=views)).prototypes, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_prototypes_of_no_views_are_those_of_the_plain_images():
    net, data = reference(), labeled()
    found, z = gate_of(GateConfig(prototype_views=0)).prototypes, net(data.images)
    means = torch.stack([z[data.labels == c].mean(0) for c in CLASSES])
    torch.testing.assert_close(found, torch.nn.functional.normalize(means, dim=1))
    assert not torch.allclose(found, gate_of(GateConfig(prototype_views=1)).prototypes, atol=1e-3)


@torch.no_grad()
def test_prototypes_can_be_means_of_raw_projections():
    net, data = reference(), labeled()
    raw = gate_of(GateConfig(prototype_views=3, unit_first=False), data, net).prototypes
    unit = gate_of(GateConfig(prototype_views=3, unit_first=True), data, net).prototypes
    torch.testing.assert_close(raw, torch.stack(slow_prototypes(net, data, 3, net.project)), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(raw, unit, atol=1e-2)
    torch.testing.assert_close(raw.norm(dim=1), torch.ones(3))


@torch.no_grad()
def test_prototypes_do_not_depend_on_the_order_of_the_rows():
    data, config = labeled(), GateConfig(prototype_views=0)
    turned = data.rows(torch.randperm(len(data), generator=seeded(1, "turn")))
    torch.testing.assert_close(gate_of(config, data).prototypes, gate_of(config, turned).prototypes)


def test_class_sums_by_hand():
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    assert class_sums(z, torch.tensor([1, 0, 1]), 3).tolist() == [[0, 2], [4, 1], [0, 0]]


SCORES = torch.tensor([0.2, 0.4, 0.6, 0.8])  # mean .5, variance .2 / 3


def test_thresholds_are_the_mean_and_so_many_variances():
    low, high = thresholds(SCORES, GateConfig(eta=(-4.0, -2.0)))
    assert low == pytest.approx(0.5 - 4 * 0.2 / 3)
    assert high == pytest.approx(0.5 - 2 * 0.2 / 3)


def test_thresholds_can_go_by_the_standard_deviation():
    low, high = thresholds(SCORES, GateConfig(eta=(-1.5, 1.0), spread="std"))
    assert low == pytest.approx(0.5 - 1.5 * math.sqrt(0.2 / 3))
    assert high == pytest.approx(0.5 + math.sqrt(0.2 / 3))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("spread", ["var", "std"])
def test_one_score_has_no_spread(spread):
    assert thresholds(torch.tensor([0.3]), GateConfig(spread=spread)) == pytest.approx((0.3, 0.3))


@torch.no_grad()
@pytest.mark.parametrize("spread", ["var", "std"])
def test_a_gates_thresholds_come_from_the_plain_scores_of_the_labelled_rows(spread):
    net, data = reference(), labeled()
    config = GateConfig(prototype_views=4, spread=spread, eta=(-1.0, 0.5))
    gate = gate_of(config)
    cosines = [max(float(z @ p) for p in gate.prototypes) for z in net(data.images)]
    assert gate.labeled_scores.tolist() == pytest.approx(cosines, abs=1e-5)
    assert (gate.threshold, gate.pseudo_threshold) == pytest.approx(thresholds(torch.tensor(cosines), config), abs=1e-5)


@torch.no_grad()
def test_scores_of_labelled_rows_can_be_of_their_views():
    net, data = reference(), labeled()
    gate = gate_of(GateConfig(prototype_views=3, score_views="augmented"))
    alike = [draws(1, seeded(0, *NAMES, "prototype", a)).expand(len(data), -1) for a in range(3)]
    mean = F.normalize(torch.stack([net(augment(data.images, u, VIEWS)) for u in alike]).mean(0), dim=1)
    torch.testing.assert_close(gate.labeled_scores, (mean @ gate.prototypes.T).max(1).values, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("unit_first", [True, False])
def test_unlabelled_images_are_looked_at_as_the_labelled_ones_are(unit_first):
    net, x = reference(), pictures(9, seed=4)
    views = GateConfig(prototype_views=3, score_views="augmented", unit_first=unit_first)
    embed = net if unit_first else net.project
    seen = [embed(augment(x, draws(9, seeded(0, *NAMES, "prototype", a)), VIEWS)) for a in range(3)]
    torch.testing.assert_close(look(views).mean_view(x), torch.stack(seen).mean(0), atol=1e-5, rtol=1e-4)
    alike = [draws(1, seeded(0, *NAMES, "prototype", a)).expand(9, -1) for a in range(3)]
    expected = F.normalize(torch.stack([embed(augment(x, u, VIEWS)) for u in alike]).mean(0), dim=1)
    torch.testing.assert_close(look(views).for_scores(x), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(look(replace(views, score_views="plain")).for_scores(x), net(x))


@torch.no_grad()
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_nothing_is_near_a_class_without_a_labelled_image(leave_one_out):
    data = labeled()
    others = data.rows((data.labels != CLASSES[0]).nonzero().squeeze(1))
    gate = gate_of(GateConfig(prototype_views=2, leave_one_out=leave_one_out), others)
    scores, columns = gate.score(unit_rows(300))
    assert set(columns.tolist()) == {1, 2}
    assert scores.min() < 0  # below the cosine of 0 that no prototype would give
    torch.testing.assert_close(scores, (unit_rows(300) @ gate.prototypes[1:].T).max(1).values)
    assert gate.labeled_scores.isfinite().all()


def test_cosines_by_hand():
    found = cosines(torch.tensor([[0.6, 0.8], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.6, -2.0, 0.8], [-1.0, -2.0, 0.0]]))


def test_the_score_is_the_largest_cosine_and_the_column_says_whose():
    gate = Gate(torch.eye(3), 0.0, 0.5, torch.zeros(1))
    z = F.normalize(torch.tensor([[1.0, 2.0, 0.0], [-1.0, -2.0, -3.0], [0.0, 0.0, 5.0]]), dim=1)
    scores, columns = gate.score(z)
    assert columns.tolist() == [1, 0, 2]
    assert scores.tolist() == pytest.approx([2 / math.sqrt(5), -1 / math.sqrt(14), 1.0])


@torch.no_grad()
@pytest.mark.parametrize(
    "config", [GateConfig(), GateConfig(spread="std", eta=(-2.0, 1.0)), GateConfig(eta=(-4.0, -4.0))]
)
def test_confident_rows_are_among_the_related_ones(config):
    gate = gate_of(config)
    assert gate.threshold <= gate.pseudo_threshold
    scores, _ = gate.score(reference()(pictures(400, seed=3)))
    related, confident = scores > gate.threshold, scores > gate.pseudo_threshold
    assert not (confident & ~related).any()
    assert confident.any() and not related.all()  # both say something here
    assert torch.equal(related, confident) is (config.eta[0] == config.eta[1])


def test_thresholds_the_wrong_way_round_are_refused():
    with pytest.raises(SpecError, match="eta_id <= eta_pl"):
        GateConfig(eta=(-2.0, -4.0))


@pytest.mark.parametrize("wrong", [{"prototype_views": -1}, {"spread": "iqr"}, {"pseudo": "past"}])
def test_a_gate_that_cannot_be_is_refused_by_field(wrong):
    with pytest.raises(SpecError, match=next(iter(wrong))):
        GateConfig(**wrong)


def slow_leave_one_out(own: Tensor, columns: Tensor, plain: Tensor, k: int) -> list[float]:
    scores = []
    for i in range(len(own)):
        best = -math.inf
        for c in range(k):
            members = [j for j in range(len(own)) if columns[j] == c and (j != i or (columns == c).sum() == 1)]
            centre = sum((own[j] for j in members), torch.zeros(own.shape[1]))
            best = max(best, float(plain[i] @ (centre / centre.norm())))
        scores.append(best)
    return scores


def test_leaving_one_out_is_a_prototype_without_the_row():
    own, plain = unit_rows(15), unit_rows(15, seed=1)
    columns = torch.tensor([0] * 6 + [1] * 8 + [2])  # a lone row keeps itself
    found = leave_one_out_scores(own, class_sums(own, columns, 3), columns, plain)
    assert found.tolist() == pytest.approx(slow_leave_one_out(own, columns, plain, 3), abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("unit_first", [True, False])
def test_a_gate_that_leaves_one_out_scores_by_brute_force_and_keeps_its_prototypes(unit_first):
    net, data = reference(), labeled()
    config = GateConfig(prototype_views=2, leave_one_out=True, unit_first=unit_first)
    gate, plain_gate = gate_of(config), gate_of(replace(config, leave_one_out=False))
    embed = net if unit_first else net.project
    own = torch.stack([embed(view(net, data, a)) for a in range(2)]).mean(0)
    columns = torch.tensor([CLASSES.index(c) for c in data.labels.tolist()])
    expected = slow_leave_one_out(own, columns, net(data.images), 3)
    assert gate.labeled_scores.tolist() == pytest.approx(expected, abs=1e-5)
    assert torch.equal(gate.prototypes, plain_gate.prototypes)
    assert gate.labeled_scores.mean() < plain_gate.labeled_scores.mean()  # a row no longer flatters itself


@torch.no_grad()
def test_a_gate_is_the_same_again_and_leaves_the_reference_as_it_was():
    net = reference()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(1)
    one = gate_of(GateConfig(), net=net)
    torch.manual_seed(2)
    two = gate_of(GateConfig(), net=net)
    assert torch.equal(one.prototypes, two.prototypes)
    assert (one.threshold, one.pseudo_threshold) == (two.threshold, two.pseudo_threshold)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@torch.no_grad()
def test_columns_follow_the_order_in_which_classes_were_met():
    net, data = reference(), labeled()
    gate = gate_of(GateConfig(prototype_views=0))
    for column, c in enumerate(CLASSES):
        alone = data.rows((data.labels == c).nonzero().squeeze(1))
        torch.testing.assert_close(gate.prototypes[column], F.normalize(net(alone.images).sum(0), dim=0))
