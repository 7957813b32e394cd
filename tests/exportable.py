"""A photo agent with a small random network as its encoder, which can be exported in seconds."""

import hashlib

import numpy as np
import torch
from PIL import Image
from torch import nn

from osscl.agent.classifier import ContinualClassifier
from osscl.vision.preprocessing import Preprocessing
from osscl.vision.pretrained import FrozenEncoder


class TwoLayers(nn.Module):
    """Means of two depths of a random convolutional network, (n, 12 + 16)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 12, 5, 2), nn.Conv2d(12, 16, 3, 2)

    def forward(self, x):
        inner = self.first(x).relu()
        return torch.cat((inner.mean((2, 3)), self.second(inner).relu().mean((2, 3))), 1)


def small_encoder(name="small", *, edge=36, shape=(32, 32), seed_text="0"):
    pixels = Preprocessing(shape, edge, Image.Resampling.BICUBIC.value, (0.5,) * 3, (0.3,) * 3)
    net = TwoLayers().eval().requires_grad_(False)
    digest = hashlib.sha256(seed_text.encode()).hexdigest()
    return FrozenEncoder(name, pixels, net, digest, torch.device("cpu"), (12, 16))


def pictures(c, count, seed=0, size=(48, 40)):
    """Pictures of a kind: a pattern of its own, and noise."""
    pattern = np.random.default_rng(100 + c).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    base = np.asarray(Image.fromarray(pattern).resize(size, Image.Resampling.NEAREST), float)
    rng = np.random.default_rng([seed, c])
    made = base + rng.normal(0, 40, (count, *base.shape))
    return [Image.fromarray(image) for image in np.clip(made, 0, 255).astype(np.uint8)]


def labelled(*kinds, count=14, seed=0):
    images = [image for c in kinds for image in pictures(c, count, seed)]
    return images, [f"kind {c}" for c in kinds for _ in range(count)]


def pile(count=12):
    return [image for c in range(6) for image in pictures(c, count, seed=1)]


def small_agent(*kinds, count=14, **fields):
    made = ContinualClassifier(encoder=small_encoder(), device="cpu", **fields)
    return made.fit(*labelled(*(kinds or (0, 1, 2)), count=count), pile())


def tiny_model(folder, kind="vit"):
    """A small random model in Hugging Face layout, with a model card of its own."""
    import json

    import transformers

    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes = size | {"image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    made = {
        "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**sizes)),
        "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**sizes)),
        "siglip": lambda: transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes)),
        "convnext": lambda: transformers.ConvNextModel(
            transformers.ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1])
        ),
    }[kind]()
    made.eval().save_pretrained(folder)
    pixels = {"size": {"height": 32, "width": 32}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    (folder / "README.md").write_text("---\nlicense: mit\n---\nA random model.\n")
    return folder
