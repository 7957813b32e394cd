"""The endpoints on the page of the docs are those of the server."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_docs_list_every_endpoint_with_its_description(client):
    page = (ROOT / "docs" / "own-images.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+) (\S+)` \| (.*) \|$", page.partition("<!-- endpoints -->")[2], re.MULTILINE)
    paths = client.get("/openapi.json").json()["paths"]
    served = [(name.upper(), path, one["description"]) for path, ways in paths.items() for name, one in ways.items()]
    assert listed == served


def test_the_page_of_the_endpoints_loads_nothing_from_elsewhere(client):
    page = client.get("/docs").text
    assert "http" not in page.replace("http-equiv", "") and "/static/docs.js" in page


def test_the_limits_in_the_docs_are_those_of_the_code():
    from osscl.serve import decoding, guard

    words = " ".join((ROOT / "docs" / "security.md").read_text(encoding="utf-8").split())
    assert f"at most {decoding.MOST_PICTURES} pictures and {guard.MOST_UPLOADED >> 20} MB per request" in words
    assert f"{decoding.MOST_BYTES >> 20} MB and {decoding.MOST_PIXELS // 10**6} million pixels each" in words
    assert f"other requests {guard.MOST_JSON >> 20} MB" in words and decoding.MEMORY == 1.5 * 2**30
