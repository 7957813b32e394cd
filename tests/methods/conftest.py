import pytest

from osscl.tools.battery import toy_stream


@pytest.fixture(scope="session")
def stream():
    """Steps are copied out of it: one for all tests."""
    return toy_stream()
