"""From an engine container's arguments, as Bayplan's operator writes them, to the command that runs here.

Only what the CPU build or this machine needs is changed; everything else reaches the engine as it stands in the pod,
so a flag that the engine refuses is refused here too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.realengine.environment import Installation, installed

IMAGE_SUFFIX: Final = "vllm-cpu"
BLOCK_SIZE_MULTIPLE: Final = 32
KV_CACHE_SPACE_GIB: Final = 1

_REPLACED: Final = frozenset({"--host", "--port", "--model", "--revision", "--tokenizer", "--tokenizer-revision"})
"""Flags with a value that are set anew: addresses are the caller's, and nothing but the tiny model is here."""
_ONE_RANK: Final = (
    *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"),
    *("--data-parallel-size", "-dp", "--nnodes"),
)

ENGINE_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_SPACE_GIB),
    # Ranks and the front end find each other by address; the machine's own could be a public one.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}
"""No hub, no usage report, a KV cache that fits a small machine, loopback only. The pod's own values win."""


class UnsupportedArgumentsError(ValueError):
    """The container asks for something that one CPU engine process cannot be; the message names the flag."""


@dataclass(frozen=True)
class Flag:
    """One command-line item: a flag with its value, a flag alone, or (`name` empty) a positional argument."""

    name: str
    value: str | None

    def words(self) -> list[str]:
        """The words that say this on a command line."""
        if not self.name:
            return [self.value or ""]
        return [self.name] if self.value is None else [self.name, self.value]


def is_real_engine_image(image: str) -> bool:
    """Whether an image reference names the CPU engine: its repository's last part ends with `vllm-cpu`."""
    last_part = image.split("@", 1)[0].rsplit("/", 1)[-1]
    return last_part.split(":", 1)[0].endswith(IMAGE_SUFFIX)


def parse(words: Sequence[str]) -> list[Flag]:
    """Split arguments into flags and positionals. A word after a flag is its value unless it begins with a dash."""
    flags: list[Flag] = []
    position = 0
    while position < len(words):
        word = words[position]
        following = words[position + 1] if position + 1 < len(words) else None
        if not word.startswith("-"):
            flags.append(Flag("", word))
        elif "=" in word:
            name, _, value = word.partition("=")
            flags.append(Flag(name, value))
        elif following is not None and (not following.startswith("-") or following.lstrip("-")[:1].isdigit()):
            flags.append(Flag(word, following))
            position += 1
        else:
            flags.append(Flag(word, None))
        position += 1
    return flags


def local_model(source: str | None, *, tiny: Path) -> Path:
    """Return the folder to serve: the one that `source` names when it is a model folder here, else the tiny model."""
    if source is not None:
        path = Path(source.removeprefix("file://"))
        if path.is_absolute() and (path / "config.json").is_file():
            return path
    return tiny


def translate(container_args: Sequence[str], *, host: str, port: int, tiny_model: Path) -> list[str]:
    """Return the engine's arguments (without the program) for a container's.

    Args:
        container_args: `command` and `args` of the container, with or without a leading `vllm serve`.
        host: address to listen on.
        port: port to listen on.
        tiny_model: folder that stands for every model that is not a folder on this machine.

    Raises:
        UnsupportedArgumentsError: more than one rank, or a block size that the CPU kernels do not have.
    """
    words = list(container_args)
    if words and Path(words[0]).name == "vllm":
        words.pop(0)
    if words and words[0] == "serve":
        words.pop(0)
    flags = parse(words)
    given: dict[str, str | None] = {flag.name: flag.value for flag in flags if flag.name}
    for name in _ONE_RANK:
        if given.get(name, "1") != "1":
            raise UnsupportedArgumentsError(f"{name} is {given[name]}; the real engine runs one rank here: 1")
    block_size = given.get("--block-size", str(BLOCK_SIZE_MULTIPLE)) or ""
    if not block_size.isdigit() or int(block_size) == 0 or int(block_size) % BLOCK_SIZE_MULTIPLE:
        raise UnsupportedArgumentsError(
            f"--block-size is {block_size or 'empty'}; the CPU kernels need a multiple of {BLOCK_SIZE_MULTIPLE}"
        )
    positional = next((flag.value for flag in flags if not flag.name), None)
    source = given.get("--model") or positional
    model = local_model(source, tiny=tiny_model)
    kept = [flag for flag in flags if flag.name and flag.name not in _REPLACED]
    added = [Flag("--host", host), Flag("--port", str(port))]
    if "--served-model-name" not in given and source is not None:
        # The engine would otherwise serve under the folder's path, which is another name than the client asks for.
        added.append(Flag("--served-model-name", source))
    for name, value in (("--dtype", "bfloat16"), ("--block-size", str(BLOCK_SIZE_MULTIPLE)), ("--enforce-eager", None)):
        if name not in given:
            added.append(Flag(name, value))
    return [str(model), *(word for flag in (*kept, *added) for word in flag.words())]


def argv(
    *,
    host: str,
    port: int,
    container_args: Sequence[str],
    env: Mapping[str, str],
    installation: Installation | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return command line and environment of a real engine that stands for a container.

    Args:
        host: address to listen on, inside 127.0.0.0/8.
        port: port to listen on.
        container_args: the container's `command` and `args`.
        env: the environment to run in: the pod's variables over what the caller passes on (PATH, HOME).
        installation: where the engine is; found in this process's cache when omitted.

    Raises:
        NotInstalledError: the engine is not installed; the message says how.
        UnsupportedArgumentsError: the container asks for more than one CPU engine process can be.
    """
    found = installation or installed()
    arguments = translate(container_args, host=host, port=port, tiny_model=found.model)
    # What the engine finds out about model classes is kept: finding it out again takes half a minute at each start.
    cache = {"VLLM_CACHE_ROOT": str(found.environment.parent / "engine-cache")}
    environment = {**ENGINE_ENVIRONMENT, **cache, **env}
    return [str(found.python), "-m", "vllm.entrypoints.cli.main", "serve", *arguments], environment
