"""Fixtures of the tests of holding."""

import pytest
from held import network
from zoo import random_masks


@pytest.fixture
def model():
    return network()


@pytest.fixture
def masks():
    return random_masks(network(), 0.3)
