import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osscl.data.images import Labeled
from osscl.errors import SpecError
from osscl.learn import linear_head as heads
from osscl.learn.batches import Balanced, Shuffled, with_draws
from osscl.learn.linear_head import SCALES, HeadConfig, HeadFit, calibration, fit_head, weighted_ridge
from osscl.learn.memory import Memory, choose, quotas
from osscl.learn.optimiser import Descent, OptimiserConfig, rate_at
from osscl.seeding import seeded
from osscl.storage import read_state, write_state
from osscl.vision.augment import DRAWS, Augmentation
from osscl.vision.encoder import Encoder, EncoderConfig, ImageFormat, new_encoder

CPU = torch.device("cpu")


# ----- sampling


def shuffled(pool: int, size: int, seed: int = 0, *names: str) -> Shuffled:
    return Shuffled(pool, size, seed, names or ("test",), CPU)


def batches(source: Shuffled | Balanced, n: int, start: int = 0) -> list[Tensor]:
    return list(itertools.islice(source.starting(start), n))


POOLS = [(12, 4), (10, 4), (7, 5), (5, 5), (3, 8), (1, 1), (101, 7)]


@pytest.mark.parametrize(("pool", "size"), POOLS)
def test_a_pass_meets_every_row_and_fills_its_last_batch_from_its_own_beginning(pool, size):
    source = shuffled(pool, size)
    for start in (0, source.per_epoch, 5 * source.per_epoch):
        rows = torch.cat(batches(source, source.per_epoch, start))
        assert sorted(rows[:pool].tolist()) == list(range(pool))
        assert torch.equal(rows[pool:], rows[: len(rows) - pool])


@pytest.mark.parametrize(("pool", "size"), POOLS)
def test_no_row_stands_twice_in_a_batch(pool, size):
    assert all(len(set(rows.tolist())) == len(rows) for rows in batches(shuffled(pool, size), 60))


@pytest.mark.parametrize(("pool", "size"), POOLS)
def test_dropping_the_last_batch_leaves_a_pass_of_whole_ones(pool, size):
    source = replace(shuffled(pool, size), drop_last=True)
    assert source.per_epoch == pool // min(pool, size)
    rows = torch.cat(batches(source, source.per_epoch)).tolist()
    assert len(set(rows)) == len(rows) == source.per_epoch * source.rows
    assert torch.equal(batches(source, 1)[0], batches(shuffled(pool, size), 1)[0])


def test_over_many_passes_every_row_is_met_about_equally_often():
    counts = torch.bincount(torch.cat(batches(shuffled(10, 4), 3 * 400)))  # 400 passes of 12 rows
    assert counts.sum() == 4800
    assert counts.min() > 440 and counts.max() < 520


def test_passes_are_shuffled_each_in_its_own_way():
    rows = torch.cat(batches(shuffled(20, 5), 12)).view(3, 20)
    assert len({tuple(order.tolist()) for order in rows} | {tuple(range(20))}) == 4


@pytest.mark.parametrize("start", [0, 1, 2, 3, 7, 50])
@pytest.mark.parametrize(("pool", "size"), [(10, 4), (12, 4), (3, 8)])
def test_a_batch_is_the_same_by_walking_and_by_starting_there(pool, size, start):
    walked = batches(shuffled(pool, size), start + 5)[start:]
    assert all(map(torch.equal, walked, batches(shuffled(pool, size), 5, start)))


@pytest.mark.parametrize(("pool", "size"), [(10, 4), (7, 5), (101, 7)])
def test_all_batches_have_one_shape(pool, size):
    assert {len(rows) for rows in batches(shuffled(pool, size), 40)} == {size}


def test_a_pool_smaller_than_a_batch_shrinks_the_batch():
    source = shuffled(5, 512)
    assert (source.rows, source.per_epoch) == (5, 1)
    assert [sorted(rows.tolist()) for rows in batches(source, 3)] == [[0, 1, 2, 3, 4]] * 3


def test_an_epoch_is_as_many_batches_as_a_pass_needs():
    assert [shuffled(pool, 4).per_epoch for pool in (4, 5, 8, 9)] == [1, 2, 2, 3]


def test_batches_depend_on_seed_and_purpose():
    kinds = [shuffled(50, 50), shuffled(50, 50, 1), shuffled(50, 50, 0, "other")]
    assert len({tuple(batches(source, 1)[0].tolist()) for source in kinds}) == 3


def test_balanced_batches_have_equal_shares_of_every_part():
    source = Balanced.over([100, 10, 50], shuffled(160, 30))
    seen = torch.cat(batches(source, 20))
    assert source.rows == 30
    for rows in batches(source, 20):
        part = torch.bucketize(rows, torch.tensor([100, 110]), right=True)
        assert torch.bincount(part).tolist() == [10, 10, 10]
    assert torch.bincount(seen)[:100].tolist() == [2] * 100  # 200 draws of 100 rows
    assert torch.bincount(seen)[100:110].tolist() == [20] * 10


def test_an_empty_part_gives_its_share_to_the_others():
    source = Balanced.over([20, 0, 30], shuffled(50, 10))
    rows = torch.cat(batches(source, 4))
    assert source.rows == 10
    assert [int((rows < 20).sum()), int((rows >= 20).sum())] == [20, 20]
    assert rows.max() < 50


def test_the_expected_rows_of_a_kind_are_what_batches_hold_on_average():
    mask = torch.arange(38) % 3 == 0
    for source in (
        shuffled(38, 19),
        Balanced.over([9, 4, 25], shuffled(38, 12)),
        Balanced.over([9, 0, 29], shuffled(38, 12)),
    ):
        found = [int(mask[rows].sum()) for rows in batches(source, 900)]
        assert source.expected(mask) == pytest.approx(np.mean(found), rel=0.02)


def test_a_part_smaller_than_its_share_shrinks_the_batch():
    source = Balanced.over([2, 40], shuffled(42, 20))
    assert source.rows == 12
    assert {len(rows) for rows in batches(source, 5)} == {12}


def test_balanced_batches_are_the_same_by_walking_and_by_starting_there():
    source = Balanced.over([9, 4, 25], shuffled(38, 12))
    assert all(map(torch.equal, batches(source, 9)[6:], batches(source, 3, 6)))


def test_draws_come_two_a_row_and_belong_to_the_number_of_the_batch():
    source = shuffled(10, 4)
    walked = list(itertools.islice(with_draws(source, ("views",), 0, 0, CPU), 6))
    jumped = list(itertools.islice(with_draws(source, ("views",), 0, 3, CPU), 3))
    for (rows, u), (rows_again, u_again) in zip(walked[3:], jumped, strict=True):
        assert torch.equal(rows, rows_again)
        assert torch.equal(u, u_again)
    assert walked[0][1].shape == (8, DRAWS)
    assert not torch.equal(walked[0][1], walked[1][1])
    assert not torch.equal(walked[0][1][:4], walked[0][1][4:])


# ----- descent

PLAIN = OptimiserConfig(rate=1.0, min_rate=0.2)


def test_the_rate_goes_from_its_height_to_its_minimum_as_a_cosine():
    assert rate_at(PLAIN, 0, 100) == 1.0
    assert rate_at(PLAIN, 50, 100) == pytest.approx(0.6)
    assert rate_at(PLAIN, 25, 100) == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert rate_at(PLAIN, 75, 100) == pytest.approx(0.2 + 0.8 * (1 - math.sqrt(0.5)) / 2)
    assert rate_at(PLAIN, 100, 100) == pytest.approx(0.2)


def test_a_minimum_as_high_as_the_rate_is_a_constant_rate():
    flat = replace(PLAIN, min_rate=1.0)
    assert {rate_at(flat, update, 10) for update in range(10)} == {1.0}


def test_warm_up_is_a_straight_line_and_the_cosine_starts_after_it():
    warm = replace(PLAIN, warmup=0.1)
    rates = [rate_at(warm, update, 100) for update in range(100)]
    assert rates[:10] == pytest.approx([(update + 1) / 11 for update in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.6)  # halfway between 10 and 100
    assert all(a < b for a, b in itertools.pairwise(rates[:11]))
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))


def test_by_epoch_the_rate_stays_within_an_epoch():
    stepped = replace(PLAIN, rate_per="epoch")
    rates = [rate_at(stepped, update, 12, per_epoch=4) for update in range(12)]
    assert rates == [rate_at(PLAIN, update // 4 * 4, 12) for update in range(12)]
    assert len(set(rates)) == 3


def net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
        return made.to(memory_format=torch.channels_last)


def descend(model: nn.Module, descent: Descent, until: int) -> None:
    """Updates on a loss that depends on the number of the update alone."""
    while descent.done < until:
        x = torch.randn(6, 2, 4, 4, generator=seeded(descent.done, "x"))
        descent.set_rate()
        descent.step(model(x).square().mean())
        descent.done += 1


OPTIMISERS = [
    OptimiserConfig("adam", rate=0.05, warmup=0.2),
    OptimiserConfig("adamw", rate=0.05, decay=0.1),
    OptimiserConfig("sgd", rate=0.05),
    OptimiserConfig("sgd", rate=0.05, momentum=0.0),
]


@pytest.mark.parametrize("config", OPTIMISERS, ids=["adam", "adamw", "sgd", "sgd without momentum"])
@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_phase_goes_on_from_its_saved_state_to_the_same_bits(config, stop, tmp_path):
    straight = net()
    descend(straight, Descent([straight], config, 12), 12)
    first = net()
    descent = Descent([first], config, 12)
    descend(first, descent, stop)
    write_state(tmp_path / "state", {"descent": descent.state(), "net": first.state_dict()})
    state = read_state(tmp_path / "state")
    second = net(1)
    second.load_state_dict(state["net"])
    again = Descent([second], config, 12)
    again.load_state(state["descent"])
    assert again.done == stop
    descend(second, again, 12)
    assert all(map(torch.equal, straight.state_dict().values(), second.state_dict().values()))


@pytest.mark.parametrize("config", OPTIMISERS[:3], ids=["adam", "adamw", "sgd"])
def test_without_its_moments_a_phase_goes_elsewhere(config):
    straight, forgetful = net(), net()
    descend(straight, Descent([straight], config, 12), 12)
    descent = Descent([forgetful], config, 12)
    descend(forgetful, descent, 7)
    again = Descent([forgetful], config, 12)
    again.load_state({"done": 7, "moments": {}})
    descend(forgetful, again, 12)
    assert not torch.equal(straight[3].weight, forgetful[3].weight)


def test_loaded_moments_are_copies():
    model = net()
    descent = Descent([model], OPTIMISERS[0], 12)
    descend(model, descent, 2)
    saved = descent.moments()
    other = Descent([net()], OPTIMISERS[0], 12)
    other.load_moments(saved)
    held = {key: value.clone() for key, value in other.moments()["0"].items()}
    assert set(held) == {"step", "exp_avg", "exp_avg_sq"}
    descend(model, descent, 4)
    assert all(torch.equal(other.moments()["0"][key], value) for key, value in held.items())


def idle(config: OptimiserConfig) -> dict[str, bool]:
    """Which parameters move when the loss has no slope: those that decay."""
    model = net()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
    descent = Descent([model], config, 10)
    descent.set_rate()
    descent.step(sum((p * 0).sum() for p in model.parameters()))
    return {name: not torch.equal(p, torch.ones_like(p)) for name, p in model.named_parameters()}


def test_adamw_decays_weights_and_neither_biases_nor_norms():
    moved = idle(OptimiserConfig("adamw", rate=0.1, decay=0.5))
    assert moved == {
        "0.weight": True, "0.bias": False, "1.weight": False, "1.bias": False, "3.weight": True, "3.bias": False
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_adam_and_sgd_decay_everything(kind):
    assert all(idle(OptimiserConfig(kind, rate=0.1, decay=0.5)).values())
    assert not any(idle(OptimiserConfig(kind, rate=0.1, decay=0.0)).values())


def test_adamw_decay_is_decoupled():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(2.0)
    descent = Descent([model], OptimiserConfig("adamw", rate=0.1, decay=0.5), 10)
    descent.set_rate()
    descent.step((model.weight * 0).sum())
    assert model.weight.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5))


def test_the_optimiser_is_given_the_rate_of_its_update():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    config = OptimiserConfig("sgd", rate=1.0, min_rate=0.0, decay=0.0, momentum=0.0)
    descent = Descent([model], config, 4)
    for update in range(4):
        descent.set_rate()
        before = model.weight.item()
        descent.step(-model.weight.sum())  # a slope of -1: the step is the rate
        descent.done += 1
        assert model.weight.item() - before == pytest.approx(rate_at(config, update, 4))


def test_sgd_has_nesterov_momentum():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    descent = Descent([model], OptimiserConfig("sgd", rate=1.0, min_rate=1.0, decay=0.0, momentum=0.5), 4)
    for expected in (1.5, 1.5 + 1.75):  # the slope, and half of the momentum that already holds it
        descent.step(-model.weight.sum())
        assert model.weight.item() == pytest.approx(expected)


def test_parameters_that_do_not_learn_stay_as_they_are():
    model = net()
    model[0].requires_grad_(False)
    before = model[0].weight.clone(), model[3].weight.clone()
    descend(model, Descent([model], OptimiserConfig(decay=0.5), 3), 3)
    assert torch.equal(model[0].weight, before[0])
    assert not torch.equal(model[3].weight, before[1])


@pytest.mark.parametrize(
    "wrong",
    [{"rate": 0.0}, {"min_rate": 1.0}, {"min_rate": -1.0}, {"decay": -1.0}, {"warmup": 1.0}, {"momentum": 1.0},
     {"kind": "adagrad"}, {"rate_per": "step"}],
)  # fmt: skip
def test_an_optimiser_that_cannot_be_is_refused_by_field(wrong):
    with pytest.raises(SpecError, match=next(iter(wrong))):
        OptimiserConfig(**wrong)


# ----- memory


@pytest.mark.parametrize("budget", [0, 3, 10, 11, 500])
@pytest.mark.parametrize("classes", [1, 2, 3, 7, 10])
def test_quotas_use_the_whole_budget_and_differ_by_one_at_most_the_newest_having_more(budget, classes):
    shares = quotas(budget, classes)
    assert sum(shares) == budget and len(shares) == classes
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares)


def test_quotas_of_the_papers_cifar100_memory():
    assert quotas(500, 30) == [16] * 10 + [17] * 20
    assert quotas(500, 90) == [5] * 40 + [6] * 50


def marked(counts: dict[int, int], first: int = 0) -> Labeled:
    """Images that carry their own number as pixel 0."""
    labels = torch.cat([torch.full((n,), c) for c, n in counts.items()])
    images = torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(first, first + len(labels)).to(torch.uint8)
    return Labeled(images, labels)


def numbers(data: Labeled) -> list[tuple[int, int]]:
    return list(zip(data.labels.tolist(), data.images[:, 0, 0, 0].tolist(), strict=True))


def empty_memory(budget: int) -> Memory:
    return Memory(budget, Labeled(torch.empty(0, 1, 8, 8, dtype=torch.uint8), torch.empty(0, dtype=torch.long)))


def brightness(rows: Labeled) -> Tensor:
    """A confidence that is read off the image: its number, turned round."""
    return -rows.images[:, 0, 0, 0].float()


def test_memory_stays_balanced_within_its_budget_and_free_of_repetitions():
    memory = empty_memory(20)
    tasks = [(4, 1), (0, 3), (2, 5)]
    for t, task in enumerate(tasks):
        classes = [c for earlier in tasks[: t + 1] for c in earlier]
        memory.update(marked(dict.fromkeys(task, 30), 60 * t), classes, "random", seeded(0, "memory", t))
        counts = Counter(memory.labeled.labels.tolist())
        assert [counts[c] for c in classes] == quotas(20, len(classes))
        assert len(set(numbers(memory.labeled))) == 20


def test_a_class_cannot_give_more_than_it_has():
    memory = empty_memory(20)
    memory.update(marked({0: 3, 1: 30}), [0, 1], "random", seeded(0, "memory"))
    assert Counter(memory.labeled.labels.tolist()) == {0: 3, 1: 10}


@pytest.mark.parametrize("policy", ["random", "low", "high", "rainbow"])
def test_shrinking_keeps_some_of_what_was_stored(policy):
    memory = empty_memory(12)
    memory.update(marked({0: 30, 1: 30}), [0, 1], policy, seeded(0, "memory", 0), brightness)
    before = set(numbers(memory.labeled))
    memory.update(marked({2: 30, 3: 30}, 60), [0, 1, 2, 3], policy, seeded(0, "memory", 1), brightness)
    old = {(c, number) for c, number in numbers(memory.labeled) if c < 2}
    assert old < before
    assert len(old) == 6


def test_images_stay_with_their_labels():
    new = marked({0: 10, 1: 10, 2: 10})
    memory = empty_memory(9)
    memory.update(new, [2, 0, 1], "random", seeded(0, "memory"))
    assert set(numbers(memory.labeled)) <= set(numbers(new))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("low", {7, 8, 9}), ("high", {0, 1, 2}), ("rainbow", {9, 6, 3})],  # numbers count down as confidence rises
)
def test_policies_choose_by_confidence_class_by_class(policy, expected):
    memory = empty_memory(6)
    memory.update(marked({0: 10, 1: 10}), [0, 1], policy, seeded(0, "memory"), brightness)
    kept = numbers(memory.labeled)
    assert {number for c, number in kept if c == 0} == expected
    assert {number - 10 for c, number in kept if c == 1} == expected


def test_choosing_by_hand():
    sure = torch.tensor([0.5, 0.1, 0.9, 0.3, 0.7])
    assert set(choose("low", 2, 5, sure, seeded(0)).tolist()) == {1, 3}
    assert set(choose("high", 2, 5, sure, seeded(0)).tolist()) == {2, 4}
    assert choose("rainbow", 2, 5, sure, seeded(0)).tolist() == [1, 0]  # ranks 0 and 2
    assert choose("rainbow", 4, 5, sure, seeded(0)).tolist() == [1, 3, 0, 4]  # ranks 0 to 3 of 5: 0, 1.25, 2.5, 3.75
    assert choose("rainbow", 3, 5, sure, seeded(0)).tolist() == [1, 3, 4]  # not the three least sure
    for policy in ("random", "low", "high", "rainbow"):
        assert choose(policy, 5, 5, sure, seeded(0)).tolist() == [0, 1, 2, 3, 4]
        assert choose(policy, 9, 5, sure, seeded(0)).tolist() == [0, 1, 2, 3, 4]
        assert len(choose(policy, 0, 5, sure, seeded(0))) == 0


def test_random_choice_is_even_and_follows_the_seed():
    counts = Counter(row for seed in range(300) for row in choose("random", 3, 10, None, seeded(seed)).tolist())
    assert all(60 < counts[row] < 120 for row in range(10))
    assert choose("random", 3, 10, None, seeded(1)).tolist() == choose("random", 3, 10, None, seeded(1)).tolist()


@pytest.mark.parametrize("policy", ["random", "low", "rainbow"])
def test_a_memory_of_nothing_keeps_nothing_and_asks_nobody(policy):
    def must_have_rows(rows: Labeled) -> Tensor:
        assert len(rows)
        return brightness(rows)

    memory = empty_memory(0)
    memory.update(marked({0: 5}), [0], policy, seeded(0), must_have_rows)
    memory.update(marked({1: 5}), [0, 1], policy, seeded(0), must_have_rows)
    assert len(memory.labeled) == 0
    assert memory.labeled.images.shape == (0, 1, 8, 8)


def test_without_leaves_classes_out():
    memory = empty_memory(9)
    memory.update(marked({0: 5, 1: 5, 2: 5}), [0, 1, 2], "random", seeded(0))
    assert set(memory.without([1]).labels.tolist()) == {0, 2}
    assert len(memory.without([1])) == 6
    assert len(memory.without([0, 1, 2])) == 0
    assert len(memory.labeled) == 9


# ----- heads

FORMAT = ImageFormat(1, 8, (0.5,), (0.3,))
STILL = Augmentation(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter=0.0, grey=0.0)
GLYPHS = Augmentation(scale=(0.6, 1.0), flip=0.0, jitter=0.0, grey=0.0)


def encoder() -> Encoder:
    made = new_encoder(EncoderConfig("small", dim=8), FORMAT, seeded(0, "init"), CPU, torch.float32)
    return made.learning(True)


def stripes(counts: dict[int, int], seed: int = 0) -> Labeled:
    """Class c is a bright row c on dark noise: separable."""
    labels = torch.cat([torch.full((n,), c) for c, n in counts.items()])
    images = torch.randint(0, 90, (len(labels), 1, 8, 8), generator=seeded(seed, "noise")).to(torch.uint8)
    images[torch.arange(len(labels)), 0, labels % 8] = 230
    return Labeled(images, labels)


def fit(config: HeadConfig, data: Labeled, classes: list[int], augmentation: Augmentation = STILL, **more):
    task = HeadFit(encoder(), data, classes, augmentation, 0, ("head",), **more)
    return fit_head(config, task), task.encoder


def features(net: Encoder, images: Tensor) -> Tensor:
    with torch.no_grad():
        return net.eval().features(images)


def brute_ridge(x: np.ndarray, y: np.ndarray, weights: np.ndarray, penalty: float) -> np.ndarray:
    """Weighted least squares with a penalty on all but the intercept (the last row), as one tall problem."""
    d = x.shape[1]
    root = np.sqrt(weights)[:, None]
    tall = np.block([[root * x, root], [math.sqrt(penalty) * np.eye(d), np.zeros((d, 1))]])
    return np.linalg.lstsq(tall, np.vstack([root * y, np.zeros((d, y.shape[1]))]), rcond=None)[0]


@pytest.mark.parametrize("k", [3, 4], ids=["all classes present", "a class without rows"])
def test_weighted_ridge_is_the_brute_force_solution_with_classes_of_equal_weight(k):
    x = torch.randn(40, 7, generator=seeded(0, "x"), dtype=torch.float64)
    targets = torch.cat([torch.full((n,), c) for c, n in ((0, 4), (1, 25), (k - 1, 11))])
    weight, bias = weighted_ridge(x, targets, k, penalty=2.0)
    equal = np.array([40 / k / (targets == c).sum().item() for c in targets])
    solution = brute_ridge(x.numpy(), np.eye(k)[targets.numpy()], equal, 2.0)
    np.testing.assert_allclose(weight.numpy(), solution[:-1].T, atol=1e-6)
    np.testing.assert_allclose(bias.numpy(), solution[-1], atol=1e-6)


def test_a_row_of_twice_the_mass_stands_for_two():
    rng = torch.Generator().manual_seed(0)
    x, targets = torch.randn(6, 3, generator=rng, dtype=torch.double), torch.tensor([0, 1, 2, 0, 1, 2])
    mass = torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, 1.0], dtype=torch.double) * 6 / 9
    heavy = weighted_ridge(x, targets, 3, 6.0, mass)
    twice = weighted_ridge(torch.cat((x, x[:3])), torch.cat((targets, targets[:3])), 3, 9.0)
    for one, other in zip(heavy, twice, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize("classes", [[3, 0, 5], [5, 3, 0]])
def test_the_ridge_head_is_weighted_ridge_regression_on_the_sphere_times_a_scale(copies, classes):
    data = stripes({0: 4, 3: 25, 5: 11})
    head, net = fit(HeadConfig("ridge", penalty=2.0, copies=copies), data, classes)
    raw = features(net, data.images).repeat(copies + 1, 1).double().numpy()  # a still augmentation: copies are equal
    x = raw - raw.mean(0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = data.labels.repeat(copies + 1).numpy()
    y = np.stack([labels == c for c in classes], 1).astype(float)
    solution = brute_ridge(x, y, np.array([len(labels) / 3 / (labels == c).sum() for c in labels]), 2.0)
    expected = x[: len(data)] @ solution[:-1] + solution[-1]
    logits = head(features(net, data.images)).numpy()
    scale = float((logits * expected).sum() / (expected * expected).sum())
    nearest = min(SCALES, key=lambda candidate: abs(candidate - scale))
    assert scale == pytest.approx(nearest, rel=1e-3)
    np.testing.assert_allclose(logits / nearest, expected, atol=5e-4)


def test_believed_rows_enter_a_ridge_once_and_as_they_are():
    data, believed = stripes({0: 4, 3: 5}), stripes({3: 6, 5: 7}, seed=1)
    head, net = fit(HeadConfig("ridge", penalty=2.0, copies=2), data, [0, 3, 5], believed=believed)
    raw = torch.cat((features(net, data.images).repeat(3, 1), features(net, believed.images))).double().numpy()
    x = raw - raw.mean(0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = torch.cat((data.labels.repeat(3), believed.labels)).numpy()
    y = np.stack([labels == c for c in (0, 3, 5)], 1).astype(float)
    solution = brute_ridge(x, y, np.array([len(labels) / 3 / (labels == c).sum() for c in labels]), 2.0)
    expected = x @ solution[:-1] + solution[-1]
    np.testing.assert_allclose(head(torch.tensor(raw).float()).numpy() / head.scale, expected, atol=5e-4)


def test_believed_rows_do_not_stand_apart_for_the_temperature(monkeypatch):
    asked = []
    monkeypatch.setattr(heads, "calibration", lambda x, targets, apart, *_: asked.append(apart.tolist()) or 1.0)
    fit(HeadConfig("ridge", copies=1), stripes({0: 2}), [0, 3], believed=stripes({3: 3}))
    assert asked == [[False, True, False, True, False, False, False]]


def test_believed_rows_are_as_good_as_any_for_sgd():
    data, believed = stripes({0: 8}), stripes({3: 8})
    both = Labeled(torch.cat((data.images, believed.images)), torch.cat((data.labels, believed.labels)))
    apart, _ = fit(HeadConfig("sgd", epochs=3), data, [0, 3], believed=believed)
    together, _ = fit(HeadConfig("sgd", epochs=3), both, [0, 3])
    assert torch.equal(apart.weight, together.weight)


def test_features_may_be_centred_on_the_mean_of_the_classes_means():
    data = stripes({0: 4, 3: 25, 5: 11})
    head, net = fit(HeadConfig("ridge", copies=2, centre="classes"), data, [3, 0, 5])
    raw = features(net, data.images)
    means = torch.stack([raw[data.labels == c].mean(0) for c in (0, 3, 5)])
    torch.testing.assert_close(head.centre, means.mean(0), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(head.centre, raw.mean(0), atol=1e-4)
    without, _ = fit(HeadConfig("ridge", copies=2, centre="classes"), data, [3, 0, 7, 5])
    torch.testing.assert_close(without.centre, head.centre)  # a class without a row has no mean


def test_the_scale_is_the_one_that_suits_rows_the_ridge_has_not_seen():
    x = F.normalize(torch.randn(60, 5, generator=seeded(0, "x"), dtype=torch.float64), dim=1)
    targets = (x[:, :3] + 0.3 * torch.randn(60, 3, generator=seeded(0, "noise"), dtype=torch.float64)).argmax(1)
    apart = torch.arange(60) % 2 == 1
    weight, bias = weighted_ridge(x[~apart], targets[~apart], 3, 1.0)
    losses = [F.cross_entropy(s * (x[apart] @ weight.T + bias), targets[apart]).item() for s in SCALES]
    assert calibration(x, targets, apart, 3, 1.0) == SCALES[losses.index(min(losses))]
    assert min(losses) not in (losses[0], losses[-1])  # neither end of the candidates: a choice


def test_images_that_stand_apart_do_so_with_all_their_copies_and_are_never_all_of_a_class(monkeypatch):
    asked = []
    monkeypatch.setattr(heads, "calibration", lambda x, targets, apart, *_: asked.append(apart.tolist()) or 1.0)
    data = stripes({5: 3, 0: 1, 2: 2})
    fit(HeadConfig("ridge", copies=2), data.rows(torch.tensor([0, 3, 1, 4, 2, 5])), [0, 2, 5], GLYPHS)
    assert asked == [[False, False, True, False, False, True] * 3]  # labels 5, 0, 5, 2, 5, 2


def test_a_scale_changes_no_prediction_and_without_rows_to_spare_is_one():
    data = stripes({0: 1, 2: 1, 5: 1})
    head, net = fit(HeadConfig("ridge", copies=0), data, [0, 2, 5])
    x = F.normalize(features(net, data.images) - head.centre, dim=1).double()
    weight, bias = weighted_ridge(x, torch.arange(3), 3, HeadConfig().penalty)
    torch.testing.assert_close(head.weight, weight.float(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(head.bias, bias.float(), atol=1e-6, rtol=1e-4)
    assert head(features(net, data.images)).argmax(1).tolist() == [0, 1, 2]


def test_the_ridge_head_sees_augmented_copies_each_unlike_the_others():
    data = stripes({0: 10, 1: 10})
    task = HeadFit(encoder().eval(), data, [0, 1], GLYPHS, 0, ("head",))
    seen = [features(task.encoder, data.images), task.view(0), task.view(1)]
    assert not torch.allclose(seen[0], seen[1]) and not torch.allclose(seen[1], seen[2])
    head = fit_head(HeadConfig("ridge", copies=2), task)
    torch.testing.assert_close(head.centre, torch.cat(seen).mean(0))


@pytest.mark.parametrize("config", [HeadConfig("ridge", copies=2), HeadConfig("sgd", epochs=40)], ids=["ridge", "sgd"])
@pytest.mark.parametrize("classes", [[0, 2, 5], [5, 0, 2], [2, 5, 0]])
def test_heads_separate_what_is_separable_with_columns_in_the_order_of_the_classes(config, classes):
    head, net = fit(config, stripes({0: 20, 2: 20, 5: 20}), classes)
    test = stripes({0: 15, 2: 15, 5: 15}, seed=1)
    logits = head(features(net, test.images))
    assert logits.shape == (45, 3)
    predicted = torch.tensor(classes)[logits.argmax(1)]
    assert (predicted == test.labels).float().mean().item() > 0.95


@pytest.mark.parametrize("config", [HeadConfig("ridge", copies=1), HeadConfig("sgd", epochs=3)], ids=["ridge", "sgd"])
def test_a_class_without_rows_has_a_column_and_is_not_predicted(config):
    head, net = fit(config, stripes({0: 20, 2: 20}), [7, 0, 2])
    logits = head(features(net, stripes({0: 10, 2: 10}, seed=1).images))
    assert logits.shape == (20, 3) and bool(logits.isfinite().all())
    assert 0 not in logits.argmax(1)


def test_the_sgd_head_draws_rare_classes_as_often_as_frequent_ones():
    """On features that say nothing the best logits are the log of the class shares: equal, if drawn equally."""
    labels = torch.cat((torch.zeros(180, dtype=torch.long), torch.ones(20, dtype=torch.long)))
    blank = Labeled(torch.full((200, 1, 8, 8), 128, dtype=torch.uint8), labels)
    head, net = fit(HeadConfig("sgd", epochs=60, batch=50), blank, [0, 1])
    share = head(features(net, blank.images[:1])).softmax(1)[0, 1].item()
    assert 0.4 < share < 0.6


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("solver", ["ridge", "sgd"])
def test_fitting_a_head_leaves_the_encoder_as_it_was(solver, training):
    net = encoder().train(training)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    fit_head(
        HeadConfig(solver, epochs=2, copies=2),
        HeadFit(net, stripes({0: 9, 1: 9}), [0, 1], GLYPHS, 0, ("head",)),
    )
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net.training is training
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("solver", ["ridge", "sgd"])
def test_a_head_follows_its_seed_and_not_the_global_generator(solver):
    config, data = HeadConfig(solver, epochs=3, copies=2), stripes({0: 9, 1: 9})
    torch.manual_seed(1)
    one = fit(config, data, [0, 1], GLYPHS)[0]
    torch.manual_seed(2)
    two = fit(config, data, [0, 1], GLYPHS)[0]
    other = fit_head(config, HeadFit(encoder(), data, [0, 1], GLYPHS, 1, ("head",)))
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)
    assert not torch.equal(one.weight, other.weight)


def test_a_cap_on_updates_shortens_the_fit():
    data = stripes({0: 9, 1: 9})
    capped = fit(HeadConfig("sgd", epochs=50), data, [0, 1], cap=2)[0]
    decayed_later = fit(HeadConfig("sgd", epochs=2), data, [0, 1])[0]
    assert not torch.allclose(capped.weight, fit(HeadConfig("sgd", epochs=50), data, [0, 1])[0].weight)
    assert capped.weight.norm() >= decayed_later.weight.norm() > 0
    ridge = [fit(HeadConfig("ridge", copies=n), data, [0, 1], GLYPHS, cap=m)[0] for n, m in ((9, 2), (2, None))]
    assert torch.equal(ridge[0].weight, ridge[1].weight)


@pytest.mark.parametrize(
    "wrong", [{"solver": "svm"}, {"epochs": 0}, {"batch": 0}, {"rate": 0.0}, {"penalty": 0.0}, {"copies": -1}]
)
def test_a_head_that_cannot_be_is_refused_by_field(wrong):
    with pytest.raises(SpecError, match=next(iter(wrong))):
        HeadConfig(**wrong)


def test_a_gradient_is_cut_to_the_longest_that_is_allowed():
    config = OptimiserConfig("sgd", rate=1.0, min_rate=1.0, decay=0.0, momentum=0.0, nesterov=False)
    moved = {}
    for longest in (None, 0.5, 100.0):
        layer = torch.nn.Linear(4, 1, bias=False)
        torch.nn.init.zeros_(layer.weight)
        Descent([layer], config, 1).step(layer(torch.full((1, 4), 3.0)).sum(), longest)
        moved[longest] = float(layer.weight.detach().norm())
    assert moved[None] == moved[100.0] == pytest.approx(6.0) and moved[0.5] == pytest.approx(0.5, rel=1e-4)
