import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small models are faster on one thread, and the machine is shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
