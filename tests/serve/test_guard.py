"""Who may ask `osscl serve`: this machine, the page itself, and whoever has the token."""

import pytest

from osscl.errors import UserError
from osscl.serve.app import address, required_token
from osscl.serve.guard import Access
from refusals import naming

OWN = {"host": "127.0.0.1:8765"}


def refused(access, method="GET", path="/api/agent", **headers):
    found = access.refusal(method, path, {name.replace("_", "-"): text for name, text in headers.items()})
    return None if found is None else found[0]


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "LOCALHOST"])
def test_own_hosts_are_answered(host):
    assert refused(Access("127.0.0.1"), host=host) is None
    assert (
        refused(Access("127.0.0.1"), "POST", host=host, origin=f"http://{host}", sec_fetch_site="same-origin") is None
    )


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example:8765", "10.0.0.1:8765", "localhost.evil.example"]
)
def test_foreign_hosts_are_refused(host):
    assert refused(Access("127.0.0.1"), host=host) == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://127.0.0.1:8765"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"},
    ],
)
def test_requests_of_other_pages_are_refused(headers):
    assert refused(Access("127.0.0.1"), **OWN, **headers) == 403
    assert refused(Access("127.0.0.1"), "POST", **OWN, **headers) == 403


def test_a_link_may_lead_to_the_page_but_to_nothing_else():
    visit = {**OWN, "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert refused(Access("127.0.0.1"), path="/", **visit) is None
    assert refused(Access("127.0.0.1"), path="/api/pile", **visit) == 403
    assert refused(Access("127.0.0.1"), "POST", path="/", **visit) == 403


def test_other_addresses_need_a_token_which_is_made_if_none_is_given():
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.5"):
        assert required_token(host, None) is None
    for host in ("0.0.0.0", "::", "192.168.1.5", "photos.example"):
        assert len(required_token(host, None)) == 32 != required_token(host, None)
        assert required_token(host, "abcdefgh12") == "abcdefgh12"
    for token in ("short", "with space 12345", "ünïcödé12345"):
        with pytest.raises(UserError, match=naming("--token")):
            required_token("0.0.0.0", token)
    assert address("0.0.0.0", 80, "secret12").endswith(":80/?token=secret12")
    assert address("::1", 80, None) == "http://[::1]:80/"


def test_without_the_token_nothing_is_answered():
    access = Access("0.0.0.0", "secret1234")
    host = {"host": "192.168.1.5:8765"}
    assert refused(access, **host) == 401
    assert refused(access, **host, authorization="Bearer wrong12345") == 401
    assert refused(access, **host, cookie="osscl-token=wrong12345") == 401
    assert refused(access, **host, cookie="a=b;;=;\x00") == 401
    assert refused(access, **host, authorization="Bearer secret1234") is None
    assert refused(access, **host, cookie="osscl-token=secret1234") is None
    assert refused(access, host="evil.example", authorization="Bearer secret1234") == 403


def test_the_token_in_the_address_becomes_a_cookie(server_state):
    from starlette.testclient import TestClient

    from osscl.serve.app import build_app

    app = build_app(server_state, Access("127.0.0.1", "secret1234"))
    client = TestClient(app, base_url="http://127.0.0.1:8765", follow_redirects=False)
    for path in ("/", "/docs", "/openapi.json", "/static/page.js", "/api/agent", "/?token=wrong"):
        answer = client.get(path)
        assert answer.status_code == 401 and "token" in answer.json()["error"], path
    assert client.get("/api/agent?token=secret1234").status_code == 401
    entered = client.get("/?token=secret1234")
    assert entered.status_code == 303 and entered.headers["location"] == "/"
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/api/agent").status_code == 200  # with the cookie


def test_every_answer_forbids_scripts_of_others_and_framing(client):
    for path in ("/", "/docs", "/api/agent", "/api/nowhere", "/static/page.css"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/api/agent").headers["cache-control"] == "no-store"
    assert client.get("/api/agent", headers={"host": "evil.example"}).status_code == 403
    answer = client.post("/api/teach", headers={"origin": "http://evil.example"})
    assert answer.status_code == 403 and "websites" in answer.json()["error"]


def test_the_pages_load_nothing_from_elsewhere():
    from osscl.serve.app import STATIC

    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/", "")
        assert "http://" not in text and "https://" not in text and "innerHTML" not in text, file.name
