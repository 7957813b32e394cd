"""A small network in place of the pretrained encoder, here and in the processes that we start."""

import os
from pathlib import Path

from exportable import small_encoder
from osscl.vision import pretrained

TESTS = Path(__file__).parents[1]
SRC = TESTS.parent / "src"


real_efficientnet = pretrained._efficientnet


def install() -> None:
    """Bundled weights are still read and verified; the embeddings are those of the small network."""

    def efficientnet(device, path):
        if path is not None and path.suffix == ".safetensors":
            pretrained._lite0_state(path)
        return small_encoder(pretrained.LITE0)

    pretrained._efficientnet = efficientnet
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (Path(__file__).parent / "site", SRC, TESTS)))
    os.environ["OSSCL_TORTURE"] = "1"
