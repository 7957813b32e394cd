import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny tensors: more threads cost more than they bring, ten times over on a busy machine."""
    torch.set_num_threads(1)
