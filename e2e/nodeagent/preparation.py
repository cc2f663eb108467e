"""What comes before a container starts: pull its image, build its environment, find the names it mentions."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from e2e.localcluster.client import ApiError
from e2e.nodeagent.dns import pod_names, substitute
from e2e.nodeagent.environment import ConfigError, Sources, expand_all, references, resolve
from e2e.nodeagent.images import ContainerRequest, ImageError, build_launch
from e2e.nodeagent.kubeapi import Object
from e2e.nodeagent.probes import UnsupportedProbeError, container_probes
from e2e.nodeagent.processes import Launch
from e2e.nodeagent.services import Services
from e2e.nodeagent.settings import backoff

_CONFIG_RETRY_CAP_SECONDS = 10.0
_FAILURE_SHOWN_SHARE = 0.2
"""Part of the wait between two pulls during which the status shows the failure itself, not the back-off."""

ReportWaiting = Callable[[str, str], None]
"""Called with reason and message of the container's waiting state."""


async def pull(image: str, services: Services, waiting: ReportWaiting) -> None:
    """Return once the image can be pulled; failing pulls are tried again with backoff, or when pulls are healed."""
    attempt = 0
    while services.image_fails(image):
        problem = f'failed to pull and unpack image "{image}": not found'
        waiting("ErrImagePull", problem)
        delay = backoff(services.settings.image_backoff_seconds, services.settings.image_backoff_cap_seconds, attempt)
        await _until_healed(image, services, delay * _FAILURE_SHOWN_SHARE)
        waiting("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {problem}')
        await _until_healed(image, services, delay * (1 - _FAILURE_SHOWN_SHARE))
        attempt += 1


async def _until_healed(image: str, services: Services, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while services.image_fails(image):
                await services.pulse.after(services.pulse.revision)


async def configure(
    container: Mapping[str, Any],
    *,
    pod: Callable[[], Object],
    pod_ip: str,
    host_ip: str,
    directory: Path,
    services: Services,
    waiting: ReportWaiting,
) -> Launch:
    """Return what to launch; missing secrets, unusable commands and unsupported probes are reported and tried again."""
    attempt = 0
    while True:
        try:
            container_probes(container)
            sources = await _sources(container, pod=pod(), pod_ip=pod_ip, host_ip=host_ip, services=services)
            environment = resolve(container, sources)
            command, args, environment = await _resolve_names(container, environment, pod(), services)
            request = ContainerRequest(
                image=container["image"],
                command=command,
                args=args,
                environment=environment,
                pod_ip=pod_ip,
                hostname=pod()["spec"].get("hostname") or pod()["metadata"]["name"],
                directory=directory,
            )
            return build_launch(services.rules, request)
        except (ConfigError, UnsupportedProbeError) as error:
            waiting("CreateContainerConfigError", str(error))
        except ImageError as error:
            waiting("CreateContainerError", str(error))
        await asyncio.sleep(backoff(services.settings.config_retry_seconds, _CONFIG_RETRY_CAP_SECONDS, attempt))
        attempt += 1


async def _sources(
    container: Mapping[str, Any], *, pod: Object, pod_ip: str, host_ip: str, services: Services
) -> Sources:
    needed = references(container)
    namespace = pod["metadata"]["namespace"]

    async def read(plural: str, names: frozenset[str]) -> dict[str, Object]:
        found = {}
        for name in sorted(names):
            try:
                found[name] = await services.api.request("GET", f"/api/v1/namespaces/{namespace}/{plural}/{name}")
            except ApiError as error:
                if error.status != 404:
                    raise ConfigError(f"{plural} {name}: {error}") from None
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise ConfigError(f"{plural} {name}: {error}") from None
        return found

    return Sources(
        pod=pod,
        pod_ip=pod_ip,
        host_ip=host_ip,
        secrets=await read("secrets", needed.secrets),
        config_maps=await read("configmaps", needed.config_maps),
    )


async def _resolve_names(
    container: Mapping[str, Any], environment: Mapping[str, str], pod: Object, services: Services
) -> tuple[list[str], list[str], dict[str, str]]:
    """Return command, args and environment with pod names replaced, once every named pod has an address."""
    namespace = pod["metadata"]["namespace"]
    command = expand_all(container.get("command"), environment)
    args = expand_all(container.get("args"), environment)
    while True:
        revision = services.pulse.revision
        subdomains = services.directory.subdomains()
        named = {
            name
            for text in [*command, *args, *environment.values()]
            for name in pod_names(text, namespace=namespace, subdomains=subdomains)
        }
        addresses = services.directory.addresses() if named else {}
        if named <= addresses.keys():
            break
        # A resolver inside the container would ask again and again.
        await services.pulse.after(revision)

    def replaced(text: str) -> str:
        return substitute(text, namespace=namespace, addresses=addresses) if named else text

    return (
        [replaced(text) for text in command],
        [replaced(text) for text in args],
        {key: replaced(value) for key, value in environment.items()},
    )
