import pytest

from server.errors import ConfigError
from server.listen import check_reach, open_listeners
from server.options.server import ServerSettings
from tests.support.real_server import free_port


@pytest.mark.parametrize("host", [("127.0.0.1",), ("localhost", "::1"), ("/run/llamapool.sock",)])
@pytest.mark.parametrize("closed", [False, True])
def test_what_only_this_machine_reaches_needs_no_key(host: tuple[str, ...], closed: bool) -> None:
    assert check_reach(ServerSettings(host=host, closed=closed)) == []


@pytest.mark.parametrize("host", [("0.0.0.0",), ("127.0.0.1", "::"), ("llm.example",)])
def test_an_open_address_without_a_key_is_warned_of_or_refused(host: tuple[str, ...]) -> None:
    (warning,) = check_reach(ServerSettings(host=host, port=9000))
    assert warning.startswith(f"ANYONE WHO REACHES {host[-1]} PORT 9000 MAY USE THIS SERVER")
    with pytest.raises(ConfigError, match=r"others can reach .*, and there is no key; give LLAMA_API_KEY"):
        check_reach(ServerSettings(host=host, closed=True))
    assert check_reach(ServerSettings(host=host, closed=True, api_keys=("secret",))) == []


def test_the_administrations_address_counts_where_there_is_one() -> None:
    assert check_reach(ServerSettings(admin_host="0.0.0.0")) == []
    (warning,) = check_reach(ServerSettings(admin_host="0.0.0.0", admin_port=9000))
    assert "ANYONE WHO REACHES 0.0.0.0" in warning


def test_the_administration_has_a_socket_of_its_own() -> None:
    port = free_port()
    listeners = open_listeners(ServerSettings(port=0, admin_port=port))
    try:
        assert [listener.url.rpartition(":")[2] == str(port) for listener in listeners] == [False, True]
    finally:
        for listener in listeners:
            listener.close()
    with pytest.raises(ValueError, match="admin_port and port must differ"):
        ServerSettings(port=port, admin_port=port)
