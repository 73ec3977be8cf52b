import pytest

from server.errors import ConfigError
from server.listen import check_reach
from server.settings import ServerSettings


@pytest.mark.parametrize("host", [("127.0.0.1",), ("localhost", "::1"), ("/run/llamapool.sock",)])
@pytest.mark.parametrize("closed", [False, True])
def test_what_only_this_machine_reaches_needs_no_key(host, closed):
    assert check_reach(ServerSettings(host=host, closed=closed)) == []


@pytest.mark.parametrize("host", [("0.0.0.0",), ("127.0.0.1", "::"), ("llm.example",)])
def test_an_open_address_without_a_key_is_warned_of_or_refused(host):
    (warning,) = check_reach(ServerSettings(host=host, port=9000))
    assert warning.startswith(f"WHOEVER REACHES {host[-1]} PORT 9000 MAY USE THIS SERVER")
    with pytest.raises(ConfigError, match=r"others can reach .*, and there is no key; give LLAMA_API_KEY"):
        check_reach(ServerSettings(host=host, closed=True))
    assert check_reach(ServerSettings(host=host, closed=True, api_keys=("secret",))) == []
