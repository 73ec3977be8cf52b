from pathlib import Path

from tests.api.conftest import Serve

KEYS = {"server": {"api_keys": ["secret", "other"]}}
UNAUTHORIZED = {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}


async def test_without_a_key_nothing_is_told(serve: Serve) -> None:
    async with serve(**KEYS) as api:
        for path in ("/v1/models", "/models", "/props", "/slots", "/metrics", "/docs/nope", "/nope"):
            reply = await api.client.get(path)
            code = {"code": "invalid_api_key", "param": None} if path.startswith("/v1/") else {}
            assert (reply.status_code, reply.json()) == (401, {"error": {**UNAUTHORIZED["error"], **code}}), path
            assert reply.headers["www-authenticate"] == "Bearer"


async def test_a_refused_request_is_not_read(serve: Serve) -> None:
    async with serve(**KEYS) as api:
        reply = await api.client.post("/v1/completions", content=b"{not json")
        assert reply.status_code == 401


async def test_keys_come_from_a_file_too(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team\nfrom-file\n\n")
    async with serve(server={"api_keys": ["secret"], "api_key_file": str(file)}) as api:
        for key, status in (("from-file", 200), ("secret", 200), ("# team", 401), ("", 401)):
            reply = await api.client.get("/v1/models", headers={"X-Api-Key": key})
            assert reply.status_code == status
