"""Pictures of what the gate accepted and rejected: each once, all within a budget, each the row it claims to be."""

import base64
import io
from dataclasses import replace

import numpy as np
import torch

from osscl.config import override
from osscl.data.images import Labeled
from osscl.methods.base import SHORT
from osscl.report import thumbnails


def with_own_pictures(run, seed):
    """The same run at another seed, with other unlabelled rows."""
    shift = 100 * seed

    def moved(side):
        return tuple((name, (row + shift) % 50000) for name, row in side)

    steps = tuple(
        replace(s, gate=replace(s.gate, let_in=moved(s.gate.let_in), kept_out=moved(s.gate.kept_out)))
        for s in run.steps
    )
    spec = replace(run.spec, seed=seed)
    return replace(run, id=spec.id, spec=spec, steps=steps)


def shown_steps(strip):
    return [row.step for row in strip.rows if any(tile.sprite for tile in row.tiles)]


def test_all_pictures_together_stay_within_half_a_megabyte(ursl, banks):
    pictures = thumbnails.strips_of([with_own_pictures(ursl, seed) for seed in range(12)], banks)
    assert 400_000 < sum(len(sprite.uri) for sprite in pictures.sprites) <= 500_000
    assert len(pictures.strips) == 12 and all(strip.rows for strip in pictures.strips.values())


def test_a_picture_that_several_runs_show_is_stored_once(ursl, banks, at_seed):
    (one,) = thumbnails.strips_of([ursl], banks).sprites
    pictures = thumbnails.strips_of([at_seed(ursl, seed) for seed in range(40)], banks)
    assert pictures.sprites == (one,)
    assert all(shown_steps(strip) == list(range(len(ursl.steps))) for strip in pictures.strips.values())


def test_where_room_is_scarce_the_papers_schedule_and_named_methods_come_first(ursl, banks):
    short = replace(ursl, spec=replace(ursl.spec, schedule=SHORT))
    ablation = replace(ursl, spec=replace(ursl.spec, method=override(ursl.spec.method, ["learner.gamma=0"])))
    runs = [with_own_pictures(run, seed) for seed, run in enumerate([short, ablation, ursl])]
    assert [run.spec.seed for run in sorted(runs, key=thumbnails.importance)] == [2, 1, 0]
    for budget, steps in ((25_000, [0, 0, 3]), (45_000, [0, 3, 3]), (65_000, [3, 3, 3]), (10**9, [5, 5, 5])):
        pictures = thumbnails.strips_of(runs, banks, budget)
        assert [len(shown_steps(pictures.strips[run.id])) for run in runs] == steps
        assert [pictures.strips[run.id].left_out for run in runs] == [not some for some in steps]


def test_pictures_of_different_sizes_are_in_different_sprites(ursl, banks):
    small = banks["cifar100"]
    grey = replace(small, train=Labeled(small.train.images[:, :1, :16, :16], small.train.labels))
    pictures = thumbnails.strips_of([ursl], {**banks, "cifar100": grey})
    assert {sprite.uri[:15] for sprite in pictures.sprites} == {"data:image/jpeg", "data:image/png;"}


def test_a_picture_is_the_row_that_the_record_names(ursl, banks):
    from PIL import Image

    pictures = thumbnails.strips_of([ursl], banks, budget=10**9)
    first, step = pictures.strips[ursl.id].rows[0], ursl.steps[0]
    (sprite,) = pictures.sprites
    sheet = torch.tensor(np.array(Image.open(io.BytesIO(base64.b64decode(sprite.uri.partition(",")[2])))))
    for tile, (name, row) in zip(first.let_in, step.gate.let_in, strict=True):
        label = int(banks[name].train.labels[row])
        seen = label in step.new_classes
        kind = "foreign" if name != "cifar10" else "seen" if seen else "unseen"
        assert (tile.kind, tile.words) == (kind, f"{name}-{label} ({kind}; {name}, row {row})")
        down, across = divmod(tile.place, sprite.across)
        drawn = sheet[32 * down : 32 * down + 32, 32 * across : 32 * across + 32].permute(2, 0, 1).float()
        distance = [(drawn - banks[name].train.images[other].float()).abs().mean() for other in (row, row + 1)]
        assert distance[0] < distance[1] - 10  # as far as a JPEG of noise can be itself
    assert sprite.uri.startswith("data:image/jpeg;base64,") and len(pictures.strips[ursl.id].tiles) == 80


def test_other_data_under_the_same_name_gives_no_pictures(ursl, banks):
    other = {name: replace(bank, content="other") for name, bank in banks.items()}
    pictures = thumbnails.strips_of([ursl], other)
    strip = pictures.strips[ursl.id]
    assert pictures.sprites == () and all(tile.sprite is None for tile in strip.tiles) and strip.without_data
    assert {tile.kind for row in strip.rows for tile in row.let_in} == {"main", "foreign"}
