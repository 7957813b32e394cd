"""Labels that M no longer holds, carried from step to step for the heads on both networks."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from osscl.learn.carried import Carried
from osscl.learn.linear_head import Head, HeadConfig, HeadFit, carried_on, placed
from osscl.methods.base import State, on_device
from osscl.stream.step import Step
from osscl.vision.encoder import Encoder, in_chunks


class Carrier:
    """A head's space is centred on U_t; from step to step, U_t's rows show how the network has moved."""

    def __init__(self) -> None:
        self.now: dict[str, Carried] = {}  # by network
        self.before: dict[str, Carried] = {}  # as the step found it
        self.places: dict[str, Tensor] = {}  # of U_t's rows, as the step found them; half precision

    def open(self, unlabeled: Tensor, networks: Mapping[str, Encoder], heads: Mapping[str, Head]) -> None:
        """Look at U_t before the step's training."""
        self.before, self.places = self.now, {}
        if len(unlabeled) > 1:
            self.places = {
                name: head.placed(in_chunks(networks[name].features, unlabeled)).half() for name, head in heads.items()
            }

    def spaced(self, name: str, config: HeadConfig, fit: HeadFit, step: Step) -> HeadFit:
        """A fit in a space that is centred on U_t, with the labels that were, moved as its rows have moved.

        Without unlabelled images nothing shows how the network has moved: what was carried is dropped.
        """
        if len(step.unlabeled) < 2:
            return fit
        features = in_chunks(fit.encoder.features, step.unlabeled)
        centre = features.mean(0)
        carried = None
        if name in self.before and name in self.places:
            carried = self.before[name].moved(self.places[name], placed(features, centre))
            if step.further is not None:
                more = replace(fit, data=step.further)
                views = placed(torch.cat(more.all_views(config)), centre).double()
                carried = carried.joined(views, more.targets(), more.copies(config) + 1)
        return replace(fit, centre=centre, carried=carried)

    def keep(self, config: HeadConfig, fits: Mapping[str, HeadFit], views: Mapping[str, Tensor]) -> None:
        """What this step's labels add, by all views of them in each head's space."""
        self.now = {name: carried_on(config, fits[name], x) for name, x in views.items()}

    def state(self) -> State:
        return {
            "now": {name: vars(carried) for name, carried in self.now.items()},
            "before": {name: vars(carried) for name, carried in self.before.items()},
            "places": dict(self.places),
        }

    def load_state(self, state: State, device: torch.device) -> None:
        self.now = {name: Carried(**on_device(device, fields)) for name, fields in state["now"].items()}
        self.before = {name: Carried(**on_device(device, fields)) for name, fields in state["before"].items()}
        self.places = on_device(device, state["places"])
