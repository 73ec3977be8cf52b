"""Service links, the variables of each Kubernetes Service, are not taken for settings with the same prefix."""

from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from server.settings import Settings, load_settings
from tests.support.kubelet import service_links

MODEL = ["-m", "model.gguf"]
SERVICE = Path(__file__).resolve().parents[3] / "deploy/kubernetes/base/service.yaml"
label = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
names = st.builds(
    lambda start, rest: start + rest,
    st.sampled_from(
        ["llamapool", "llama-arg", "llama-arg-no", "llama-arg-reuse", "llamapool-server--admin", "llamapool-models--m"]
    ),
    st.just("") | label.map(lambda rest: f"-{rest}"),
)
ports = st.lists(
    st.fixed_dictionaries(
        {"port": st.integers(1, 65535), "protocol": st.sampled_from(["TCP", "UDP", "SCTP"])},
        optional={"name": label},
    ),
    min_size=1,
    max_size=3,
)
addresses = st.ip_addresses().map(str)


def settings(env: dict[str, str]) -> Settings:
    return load_settings(MODEL, env)


def test_service_links_of_the_base_layer_change_no_setting() -> None:
    links = service_links(yaml.safe_load(SERVICE.read_text(encoding="utf-8")), "10.96.0.7")
    assert links == {
        "LLAMAPOOL_SERVICE_HOST": "10.96.0.7",
        "LLAMAPOOL_SERVICE_PORT": "80",
        "LLAMAPOOL_SERVICE_PORT_HTTP": "80",
        "LLAMAPOOL_PORT": "tcp://10.96.0.7:80",
        "LLAMAPOOL_PORT_80_TCP": "tcp://10.96.0.7:80",
        "LLAMAPOOL_PORT_80_TCP_PROTO": "tcp",
        "LLAMAPOOL_PORT_80_TCP_PORT": "80",
        "LLAMAPOOL_PORT_80_TCP_ADDR": "10.96.0.7",
    }
    assert settings(links) == settings({})


@given(names, ports, addresses)
def test_links_of_random_services_change_no_setting(name: str, ports: list[dict[str, object]], address: str) -> None:
    links = service_links({"metadata": {"name": name}, "spec": {"ports": ports}}, address)
    assert settings(links) == settings({})


def test_settings_are_read_next_to_service_links() -> None:
    links = service_links({"metadata": {"name": "llamapool"}, "spec": {"ports": [{"port": 80}]}}, "fd00::7")
    env = {**links, "LLAMAPOOL_SERVER__PORT": "1234", "LLAMA_ARG_REUSE_PORT": "1"}
    assert (settings(env).server.port, settings(env).server.reuse_port) == (1234, True)


def test_fields_of_a_model_named_like_a_service_link_are_settings(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("models: {my-service-port-x: {path: m.gguf}}", encoding="utf-8")
    found = load_settings([], {"LLAMAPOOL_MODELS__MY_SERVICE_PORT_X__N_CTX": "512"}, config)
    assert found.models["my-service-port-x"].n_ctx == 512
