"""Losses against slow definitions, closed-form limits and invariances."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from osscl.losses.contrastive import asymmetric_supcon, nt_xent, similarity_logits
from osscl.losses.distillation import (
    byol_regression,
    distance_from_even,
    fixmatch,
    logit_distillation,
    relation_distillation,
    sigmoid_distillation,
)

LABELS = torch.tensor([0, 1, 2, 0, 3, 2]).repeat(2)
SOME = torch.isin(LABELS, torch.tensor([0, 3]))
ALL = torch.ones(12, dtype=torch.bool)
NONE = ~ALL


def unit_rows(m: int, d: int = 8, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(m, d, generator=torch.Generator().manual_seed(seed)), dim=1)


def rotation(d: int = 8) -> Tensor:
    q: Tensor = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(9)))[0]
    return q


def choice(z: Tensor, i: int, j: int, tau: float) -> float:
    """log p_ij of Eq. 4 by its definition, in double precision."""
    rows = z.double()
    total = sum(math.exp(float(rows[i] @ rows[k]) / tau) for k in range(len(z)) if k != i)
    return float(rows[i] @ rows[j]) / tau - math.log(total)


def slow_supcon(z: Tensor, labels: Tensor, anchors: Tensor, tau: float) -> float:
    total = 0.0
    for i in range(len(z)):
        same = [j for j in range(len(z)) if j != i and labels[j] == labels[i]]
        if anchors[i] and same:
            total -= sum(choice(z, i, j, tau) for j in same) / len(same)
    return total / len(z)


def slow_relation(student: Tensor, teacher: Tensor, tau_student: float, tau_teacher: float) -> float:
    total = 0.0
    for i in range(len(student)):
        for j in range(len(student)):
            if j != i:
                total -= math.exp(choice(teacher, i, j, tau_teacher)) * choice(student, i, j, tau_student)
    return total / len(student)


def gradient(loss: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    leaf = z.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "nt_xent": partial(nt_xent, tau=0.1),
    "supcon": partial(asymmetric_supcon, labels=LABELS, anchors=SOME, tau=0.1),
    "relation": partial(relation_distillation, teacher=unit_rows(12, seed=1), tau_student=0.2, tau_teacher=0.01),
    "byol": partial(byol_regression, target=unit_rows(12, seed=1)),
}


def test_no_row_can_choose_itself():
    assert similarity_logits(unit_rows(6), 0.01).softmax(1).diagonal().eq(0).all()


def test_nt_xent_is_equation_1_written_out():
    z = unit_rows(12)
    slow = -sum(choice(z, i, (i + 6) % 12, 0.1) for i in range(12)) / 12
    assert nt_xent(z, 0.1).item() == pytest.approx(slow, rel=1e-5)


def test_identical_embeddings_cost_the_log_of_the_choices():
    z = torch.ones(8, 4) / 2
    labels = torch.zeros(8, dtype=torch.long)
    assert nt_xent(z, tau=0.1).item() == pytest.approx(math.log(7))
    assert asymmetric_supcon(z, labels, labels == 0, tau=0.1).item() == pytest.approx(math.log(7))
    assert relation_distillation(z, z, 0.2, 0.01).item() == pytest.approx(math.log(7))


def test_nt_xent_is_the_log_of_the_choices_at_a_large_temperature_and_0_for_separated_pairs():
    assert nt_xent(unit_rows(256, d=512), tau=100.0).item() == pytest.approx(math.log(255), abs=1e-2)
    assert nt_xent(torch.eye(8).repeat(2, 1), tau=0.01).item() == pytest.approx(0, abs=1e-6)


def test_losses_ignore_the_order_of_rows():
    z, order = unit_rows(12), torch.tensor([3, 1, 5, 0, 2, 4])
    pairs = torch.cat([order + 6, order])
    assert torch.allclose(nt_xent(z[pairs], 0.1), nt_xent(z, 0.1))
    mixed = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    shuffled = asymmetric_supcon(z[mixed], LABELS[mixed], SOME[mixed], 0.1)
    assert torch.allclose(shuffled, asymmetric_supcon(z, LABELS, SOME, 0.1))


@pytest.mark.parametrize("anchors", [SOME, ALL])
def test_supcon_is_equation_3_written_out(anchors: Tensor):
    z = unit_rows(12)
    assert asymmetric_supcon(z, LABELS, anchors, 0.1).item() == pytest.approx(
        slow_supcon(z, LABELS, anchors, 0.1), rel=1e-5
    )


def test_supcon_with_one_image_per_class_is_nt_xent():
    z = unit_rows(12)
    assert torch.allclose(asymmetric_supcon(z, torch.arange(6).repeat(2), ALL, 0.1), nt_xent(z, 0.1))


def test_supcon_without_anchors_or_partners_is_zero_with_a_finite_gradient():
    without_anchors = partial(asymmetric_supcon, labels=LABELS, anchors=NONE, tau=0.01)
    without_partners = partial(asymmetric_supcon, labels=torch.arange(12), anchors=ALL, tau=0.1)
    assert without_anchors(unit_rows(12)).item() == without_partners(unit_rows(12)).item() == 0
    assert gradient(without_anchors, unit_rows(12)).eq(0).all()
    assert gradient(without_partners, unit_rows(12)).isfinite().all()


def test_supcon_ignores_the_labels_of_rows_that_are_not_anchors():
    z = unit_rows(12)
    relabeled = torch.where(SOME, LABELS, 7)
    assert torch.equal(asymmetric_supcon(z, relabeled, SOME, 0.1), asymmetric_supcon(z, LABELS, SOME, 0.1))


def test_base_temperature_scales_supcon_by_tau_over_it():
    z = unit_rows(12)
    scaled = asymmetric_supcon(z, LABELS, SOME, 0.5, base_temperature=0.07)
    assert torch.allclose(scaled, asymmetric_supcon(z, LABELS, SOME, 0.5) * (0.5 / 0.07))


def test_relation_distillation_is_equation_5_written_out():
    student, teacher = unit_rows(12), unit_rows(12, d=5, seed=1)
    loss = relation_distillation(student, teacher, tau_student=0.2, tau_teacher=0.05)
    assert loss.item() == pytest.approx(slow_relation(student, teacher, 0.2, 0.05), rel=1e-5)


def test_distilling_a_net_into_itself_costs_its_entropy_and_has_no_gradient():
    z = unit_rows(12)
    p = similarity_logits(z, 0.1).softmax(1)
    loss = partial(relation_distillation, teacher=z, tau_student=0.1, tau_teacher=0.1)
    assert torch.allclose(loss(z), torch.special.entr(p).sum(1).mean(), rtol=1e-5)
    assert gradient(loss, z).abs().max() < 1e-5


def test_relation_distillation_depends_on_relations_and_not_on_coordinates():
    student, teacher = unit_rows(12), unit_rows(12, seed=1)
    turned = relation_distillation(student, teacher @ rotation(), 0.2, 0.1)
    assert torch.allclose(turned, relation_distillation(student, teacher, 0.2, 0.1), rtol=1e-4)


def test_relation_distillation_is_finite_at_temperatures_where_exp_overflows():
    z = torch.cat([unit_rows(6), unit_rows(6)])
    loss = partial(relation_distillation, teacher=-z, tau_student=0.01, tau_teacher=0.01)
    assert loss(z).isfinite()
    assert gradient(loss, z).isfinite().all()


def test_byol_is_the_squared_distance_of_unit_rows_whatever_their_length():
    prediction, target = unit_rows(12), unit_rows(12, seed=1)
    slow = (prediction - target).square().sum(1).mean().item()
    assert byol_regression(3 * prediction, 0.2 * target).item() == pytest.approx(slow, rel=1e-5)
    assert byol_regression(target, target).item() == pytest.approx(0, abs=1e-6)
    assert byol_regression(target, -target).item() == pytest.approx(4)


@pytest.mark.parametrize("loss", [partial(relation_distillation, tau_student=0.2, tau_teacher=0.1), byol_regression])
def test_teachers_and_targets_get_no_gradient(loss: Callable[[Tensor, Tensor], Tensor]):
    student, teacher = unit_rows(12).requires_grad_(), unit_rows(12, seed=1).requires_grad_()
    loss(student, teacher).backward()
    assert student.grad is not None
    assert teacher.grad is None


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_logit_distillation_is_a_divergence_at_a_temperature():
    student, teacher = drawn(5, 4), drawn(5, 4, seed=1)
    for row, value in enumerate(logit_distillation(student, teacher, 2.0)):
        p, q = (teacher[row] / 2).softmax(0), (student[row] / 2).softmax(0)
        assert value.item() == pytest.approx(sum(float(a * (a / b).log()) for a, b in zip(p, q, strict=True)), abs=1e-6)
    assert logit_distillation(student, student, 3.0).abs().max() < 1e-6


def test_sigmoid_distillation_takes_old_columns_from_the_old_network():
    logits, old, labels = drawn(3, 4), drawn(3, 2, seed=1), torch.tensor([0, 2, 3])
    targets = F.one_hot(labels, 4).float()
    alone = F.binary_cross_entropy_with_logits(logits, targets)
    targets[:, :2] = old.sigmoid()
    slow = -(targets * logits.sigmoid().log() + (1 - targets) * (1 - logits.sigmoid()).log()).mean()
    assert sigmoid_distillation(logits, old, labels).item() == pytest.approx(slow.item(), abs=1e-6)
    assert sigmoid_distillation(logits, old[:, :0], labels).item() == pytest.approx(alone.item())


def test_fixmatch_ignores_rows_below_the_threshold_and_divides_by_all():
    weak, strong = torch.tensor([[9.0, 0.0], [0.1, 0.0], [0.0, 9.0]]), drawn(3, 2).requires_grad_()
    loss = fixmatch(weak, strong, 0.95)
    sure = F.cross_entropy(strong[[0, 2]], torch.tensor([0, 1]), reduction="sum") / 3
    assert loss.item() == pytest.approx(sure.item())
    loss.backward()
    assert not strong.grad[1].any() and strong.grad[[0, 2]].any(1).all()
    assert fixmatch(weak.requires_grad_(), strong, 0.99999).item() == 0
    assert not fixmatch(weak, strong.detach(), 0.5).requires_grad  # the weak view is the teacher


def test_distance_from_even_is_zero_for_even_rows_and_grows_with_confidence():
    rows = distance_from_even(torch.tensor([[1.0, 1.0, 1.0], [3.0, 0.0, 0.0], [9.0, 0.0, 0.0]]))
    p = torch.tensor([3.0, 0.0, 0.0]).softmax(0)
    assert rows[0].item() == pytest.approx(0, abs=1e-6)
    assert rows[1].item() == pytest.approx(sum(math.log((1 / 3) / float(q)) / 3 for q in p), abs=1e-6)
    assert rows[2] > rows[1] > 0


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_finite_for_collapsed_and_spread_rows(name: str):
    for z in (unit_rows(12), unit_rows(1).repeat(12, 1)):
        assert gradient(LOSSES[name], z).isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_float32_under_autocast_and_for_half_precision_rows(name: str):
    z = unit_rows(12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = LOSSES[name](z)
    assert cast.dtype == LOSSES[name](z.bfloat16()).dtype == torch.float32
    assert torch.equal(cast, LOSSES[name](z))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_trace_as_one_graph(name: str):
    traced = torch.compile(LOSSES[name], backend="eager", fullgraph=True)
    assert torch.allclose(traced(unit_rows(12)), LOSSES[name](unit_rows(12)))


class NoReadBack(TorchDispatchMode):
    """Refuses the operators that make the host wait for a value of the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal"), name
        if name in ("index", "index_put", "index_put_"):
            assert all(index is None or index.dtype != torch.bool for index in args[1]), "boolean mask"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_do_not_synchronise_with_the_host(name: str):
    with NoReadBack():
        gradient(LOSSES[name], unit_rows(12))
