"""A control plane of its own for the chaos tests: its nodes send no heartbeats, so nothing may count them as lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from e2e.chaos.life import Patience, Reference, play_undisturbed
from e2e.chaos.story import STORIES
from e2e.chaos.world import Ground
from e2e.localcluster import Cluster, local_cluster_sync
from tests.chaos.inprocess import InProcess

REPOSITORY = Path(__file__).parents[2]
PATIENCE = Patience(converge=90.0)
References = dict[str, Reference]


@pytest.fixture(scope="session")
def chaos_cluster() -> Iterator[Cluster]:
    """The control plane; the definitions are there early, since the garbage collector takes a while to learn them."""
    with local_cluster_sync(provider="embedded", name="chaos", node_monitor_grace_seconds=86400) as cluster:
        asyncio.run(cluster.apply(REPOSITORY / "crds"))
        yield cluster


@pytest.fixture(scope="session")
def references() -> References:
    """Undisturbed lives that were played already, by story."""
    return {}


@pytest.fixture
async def ground(chaos_cluster: Cluster) -> AsyncIterator[Ground]:
    """Two worlds to play in."""
    async with Ground.on(chaos_cluster, worlds=2) as found:
        yield found


@asynccontextmanager
async def operators(ground: Ground, *, count: int = 2) -> AsyncIterator[list[InProcess]]:
    """In-process operators, one factory per world."""
    factories = [InProcess(ground.token) for _ in range(count)]
    try:
        yield factories
    finally:
        for factory in factories:
            await factory.close()


async def reference_of(name: str, ground: Ground, references: References) -> Reference:
    """Return the undisturbed life of a story; the first to ask plays it."""
    if name not in references:
        async with operators(ground, count=1) as (factory,), ground.world(0, factory) as world:
            references[name] = await play_undisturbed(world, STORIES[name], patience=PATIENCE)
    return references[name]
