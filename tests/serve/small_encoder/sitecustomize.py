"""On the path of test processes: the real encoder with short embeddings, so that a step takes a moment."""

import os

if os.environ.get("OSSCL_TEST_SMALL_ENCODER") == "1":
    import torch

    from osscl.vision import pretrained

    class Short:
        """Each layer of an encoder projected to a few numbers, always the same way."""

        def __init__(self, encoder):
            self.encoder, self.name, self.size, self.batch_size = (
                encoder,
                encoder.name,
                encoder.size,
                encoder.batch_size,
            )
            self.widths = tuple(min(96, width) for width in encoder.widths)
            self.dim, self.content_hash = sum(self.widths), "5407" + encoder.content_hash[4:]
            seed = torch.Generator().manual_seed(0)
            self.ways = [torch.randn(a, b, generator=seed) for a, b in zip(encoder.widths, self.widths, strict=True)]

        def preprocess(self, picture, views=1):
            return self.encoder.preprocess(picture, views)

        def embed(self, pixels):
            parts = self.encoder.embed(pixels).split(list(self.encoder.widths), dim=1)
            return torch.cat([part @ way for part, way in zip(parts, self.ways, strict=True)], 1)

    real = pretrained._efficientnet
    pretrained._efficientnet = lambda place, weights: Short(real(place, weights))
