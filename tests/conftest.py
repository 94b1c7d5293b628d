"""What every test shares: asyncio is the backend of `@pytest.mark.anyio`, and Hypothesis repeats itself in CI."""

import os

import pytest
from hypothesis import HealthCheck, settings

# A shared machine is slow in bursts; a deadline per example would fail for that and for nothing else.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("brief", settings.get_profile("default"), max_examples=25)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def anyio_backend() -> str:
    """The only event loop this library runs on."""
    return "asyncio"
