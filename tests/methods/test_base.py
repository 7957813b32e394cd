"""A schedule scales epochs and updates."""

import pytest

from osscl.config import override
from osscl.errors import SpecError
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import PAPER, SHORT, Schedule
from refusals import naming


def test_a_schedule_scales_epochs_and_floors_and_caps_updates():
    assert (PAPER.epochs(200), SHORT.epochs(200), SHORT.epochs(1)) == (200, 50, 1)
    assert PAPER.updates(2, 5) == 10 and SHORT.updates(8, 5) == 10
    assert PAPER.updates(2, 5, min_updates=12) == 12 and SHORT.updates(2, 5, min_updates=48) == 12
    assert Schedule("capped", max_updates=7).updates(2, 5, min_updates=12) == 7


@pytest.mark.parametrize("name", ["dm", "gd", "gem", "icarl", "supervised"])
def test_an_optimiser_is_not_kept_where_the_head_grows(name):
    with pytest.raises(SpecError, match=naming("fresh")):
        override(CONFIGURATIONS[name], ["optimiser.fresh=false"])
