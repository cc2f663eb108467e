"""Names of pods behind headless Services."""

import pytest

from e2e.nodeagent.dns import PodName, pod_names, substitute

SUBDOMAINS = {("llama", "models"), ("other", "elsewhere")}
HEAD = PodName("head", "llama", "models")


@pytest.mark.parametrize(
    "text",
    [
        "head.llama",
        "head.llama.models",
        "head.llama.models.svc",
        "head.llama.models.svc.cluster.local",
        "head.llama.models.svc.cluster.local.",
        "http://head.llama:8000/v1",
        "--master-addr=head.llama.models.svc",
        "a,head.llama,b",
    ],
)
def test_every_form_of_a_pods_name_is_found_and_replaced(text: str) -> None:
    assert pod_names(text, namespace="models", subdomains=SUBDOMAINS) == {HEAD}
    replaced = substitute(text, namespace="models", addresses={HEAD: "127.20.1.5"})
    assert "127.20.1.5" in replaced
    assert "head" not in replaced


@pytest.mark.parametrize(
    "text",
    [
        "huggingface.co",
        "head.unknown",
        "head.llama.elsewhere",
        "head.llama.models.pod.cluster.local",
        "head.llama.models.svc.example.org",
        "llama",
        "Qwen2.5-7B",
        "xhead.llama.models.svc.cluster.local.com",
        "0.32.0",
    ],
)
def test_other_dotted_words_are_left_alone(text: str) -> None:
    assert pod_names(text, namespace="models", subdomains=SUBDOMAINS) == set()


def test_short_name_belongs_to_the_callers_namespace() -> None:
    assert pod_names("x.other", namespace="models", subdomains=SUBDOMAINS) == set()
    assert pod_names("x.other.elsewhere", namespace="models", subdomains=SUBDOMAINS) == {
        PodName("x", "other", "elsewhere")
    }


def test_longer_name_is_not_replaced_in_part() -> None:
    text = "head.llama-2 my-head.llama head.llama"
    assert substitute(text, namespace="models", addresses={HEAD: "127.20.1.5"}) == (
        "head.llama-2 my-head.llama 127.20.1.5"
    )
