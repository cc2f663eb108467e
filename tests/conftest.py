"""Fixtures that more than one folder uses: a real API server per session, a namespace per test."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from e2e.localcluster import ApiError, Cluster, KubeApi, local_cluster_sync
from e2e.localcluster.build import ensure_binaries

REPOSITORY = Path(__file__).parent.parent
GRACE_SECONDS = 5

# The same examples in every run, so that what was green once is red only by a change. `--hypothesis-profile=fresh`
# looks for new ones. How long one example takes says more about the machine than about the planner: no deadlines.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what needs the API server, keep users of one control plane in one process, and begin with what takes long.

    The mark lets `-m "not apiserver"` leave out all of it.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "cluster" in fixtures:
            item.add_marker("apiserver")
        for shared in ("cluster", "chaos_cluster"):
            if shared in fixtures:
                item.add_marker(pytest.mark.xdist_group(shared))
    yield
    items.sort(key=_takes_long, reverse=True)  # stable: within both parts the drawn order stays


def _takes_long(item: pytest.Item) -> tuple[bool, bool]:
    return "chaos_cluster" in getattr(item, "fixturenames", ()), item.get_closest_marker("timeout") is not None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the control plane before the first test, whose time limit it would exceed."""
    if not session.config.option.collectonly and any(
        "cluster" in getattr(i, "fixturenames", ()) for i in session.items
    ):
        asyncio.run(ensure_binaries())


class _TestsFailed(Exception):  # noqa: N818 - not an error of its own, it keeps the cluster's logs
    """Ends the cluster's block as a failure, so that its logs are kept."""


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A control plane with Bayplan's definitions, shared by the session; its nodes count as lost after 5 s of silence.

    Cluster-wide objects (nodes, priority classes) are shared too: give them names of your own and remove them.
    """
    try:
        with local_cluster_sync(provider="embedded", name="pytest", node_monitor_grace_seconds=GRACE_SECONDS) as found:
            asyncio.run(found.apply(REPOSITORY / "crds"))
            yield found
            if request.session.testsfailed:
                raise _TestsFailed  # noqa: TRY301
    except _TestsFailed:
        pass


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[KubeApi]:
    """A client session as the cluster's administrator."""
    async with cluster.api() as session:
        yield session


@pytest.fixture
async def namespace(api: KubeApi) -> AsyncIterator[str]:
    """A namespace of the test's own in which pods can be created; emptied at once afterwards."""
    name = f"test-{secrets.token_hex(4)}"
    await api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    async def has_default_account() -> bool:
        try:
            await api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    await api.wait_until(has_default_account, what=f"the default ServiceAccount of {name}")
    yield name
    # Bound pods without a kubelet would stay Terminating, and the namespace with them.
    await api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds="0")
    await api.delete(f"/api/v1/namespaces/{name}")
