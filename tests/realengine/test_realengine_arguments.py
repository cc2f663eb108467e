"""What becomes of a container's arguments on this machine."""

from pathlib import Path

import pytest

from e2e.realengine import NotInstalledError, UnsupportedArgumentsError, argv, is_real_engine_image
from e2e.realengine.arguments import Flag, local_model, parse, translate
from e2e.realengine.environment import Installation

TINY = Path("/cache/tiny")
OPERATOR_ARGS = [
    *("--model", "hf://org/model", "--served-model-name", "org/model", "--revision", "abc"),
    *("--max-model-len", "1024", "--max-num-seqs", "4", "--gpu-memory-utilization", "0.9"),
    *("--kv-cache-dtype", "auto", "--tensor-parallel-size", "1", "--shutdown-timeout", "300"),
    *("--host", "0.0.0.0", "--port", "8000"),
]


def flags_of(words):
    return {flag.name: flag.value for flag in parse(words[1:])}


def translated(*args, tiny=TINY):
    return translate(list(args), host="127.0.9.1", port=8000, tiny_model=tiny)


def test_operators_flags_stay_and_only_model_and_address_are_replaced():
    words = translated(*OPERATOR_ARGS)
    assert words[0] == str(TINY)
    flags = flags_of(words)
    for name, value in (
        ("--served-model-name", "org/model"),
        ("--max-model-len", "1024"),
        ("--max-num-seqs", "4"),
        ("--gpu-memory-utilization", "0.9"),
        ("--kv-cache-dtype", "auto"),
        ("--tensor-parallel-size", "1"),
        ("--shutdown-timeout", "300"),
    ):
        assert flags[name] == value
    assert (flags["--host"], flags["--port"]) == ("127.0.9.1", "8000")
    assert not {"--model", "--revision"} & flags.keys()
    assert words.count("--host") == words.count("--port") == 1


def test_what_the_cpu_build_needs_is_added():
    flags = flags_of(translated("model"))
    assert (flags["--dtype"], flags["--block-size"]) == ("bfloat16", "32")
    assert "--enforce-eager" in flags


def test_what_the_container_says_about_dtype_and_blocks_wins():
    words = translated("model", "--dtype=float32", "--block-size", "64", "--enforce-eager")
    flags = flags_of(words)
    assert (flags["--dtype"], flags["--block-size"]) == ("float32", "64")
    assert words.count("--enforce-eager") == 1


@pytest.mark.parametrize("prefix", [[], ["serve"], ["vllm", "serve"], ["/usr/bin/vllm", "serve"]])
def test_the_engines_own_command_may_stand_in_front(prefix):
    assert translated(*prefix, "model", "--max-model-len", "64")[0] == str(TINY)


@pytest.mark.parametrize("source", [["some/model"], ["--model", "some/model"], ["--model=some/model"]])
def test_without_a_served_name_clients_still_use_the_containers_model(source):
    assert flags_of(translated(*source))["--served-model-name"] == "some/model"


def test_a_model_folder_on_this_machine_is_served(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert local_model(f"file://{tmp_path}", tiny=TINY) == tmp_path
    assert local_model(str(tmp_path), tiny=TINY) == tmp_path


@pytest.mark.parametrize("source", [None, "hf://org/model", "org/model", "file:///no/such/folder", "/", "s3://a/b"])
def test_every_other_model_becomes_the_tiny_one(source):
    assert local_model(source, tiny=TINY) == TINY


@pytest.mark.parametrize(
    "flag", ["--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--nnodes", "--data-parallel-size"]
)
def test_more_than_one_rank_is_refused_by_flag(flag):
    assert translated("model", flag, "1")
    with pytest.raises(UnsupportedArgumentsError, match=f"^{flag} is 2; .* one rank"):
        translated("model", flag, "2")


@pytest.mark.parametrize("size", ["16", "31", "33", "0", "-32", "x", ""])
def test_a_block_size_that_the_kernels_lack_is_refused(size):
    with pytest.raises(UnsupportedArgumentsError, match="--block-size is"):
        translated("model", f"--block-size={size}")


def test_a_flag_without_a_value_is_not_given_the_next_flag():
    assert parse(["--a", "--b", "1", "-tp=2", "--c", "-5", "x"]) == [
        Flag("--a", None),
        Flag("--b", "1"),
        Flag("-tp", "2"),
        Flag("--c", "-5"),
        Flag("", "x"),
    ]


@pytest.mark.parametrize(
    ("image", "is_real"),
    [
        ("vllm-cpu", True),
        ("registry.example:5000/team/vllm-cpu:0.32.0", True),
        ("team/my-vllm-cpu@sha256:" + "a" * 64, True),
        ("team/vllm-cpu:v1@sha256:" + "a" * 64, True),
        ("team/vllm-openai:cpu", False),
        ("vllm-cpu/engine:1", False),
        ("team/vllm-cpu-extra", False),
    ],
)
def test_only_the_repositorys_last_part_names_the_real_engine(image, is_real):
    assert is_real_engine_image(image) is is_real


def test_argv_runs_the_installed_engine_offline_and_on_loopback():
    installation = Installation(environment=Path("/cache/env"), model=TINY)
    command, environment = argv(
        host="127.0.9.1",
        port=8000,
        container_args=OPERATOR_ARGS,
        env={"PATH": "/bin", "VLLM_CPU_KVCACHE_SPACE": "2"},
        installation=installation,
    )
    assert command[:5] == ["/cache/env/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", str(TINY)]
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_HOST_IP"] == "127.0.0.1"
    assert environment["PATH"] == "/bin"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_argv_says_how_to_install_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotInstalledError, match="make real-engine"):
        argv(host="127.0.9.1", port=8000, container_args=["model"], env={})
