from tests.api.conftest import GoLive, Serve

ORIGIN = {"Origin": "http://x.y"}


async def test_a_preflight_is_answered_without_a_key(serve: Serve) -> None:
    async with serve(server={"api_keys": ["secret"]}) as api:
        reply = await api.client.options("/v1/chat/completions", headers=ORIGIN)
        assert (reply.status_code, reply.content) == (200, b"")
        assert reply.headers["content-type"].startswith("text/html")
        assert reply.headers["access-control-allow-origin"] == "http://x.y"
        assert reply.headers["access-control-allow-credentials"] == "true"
        assert reply.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
        assert reply.headers["access-control-allow-headers"] == "*"


async def test_the_origin_is_echoed_on_replies_and_on_every_error(serve: Serve) -> None:
    async with serve(server={"api_keys": ["secret"]}) as api:
        for path in ("/health", "/v1/models", "/nope"):
            reply = await api.client.get(path, headers=ORIGIN)
            assert reply.headers["access-control-allow-origin"] == "http://x.y"


async def test_streams_carry_the_headers(live: GoLive) -> None:
    async with live() as server:
        body = {"prompt": "Hi", "max_tokens": 2, "stream": True}
        async with server.api.client.stream("POST", "/v1/completions", json=body, headers=ORIGIN) as reply:
            assert reply.headers["access-control-allow-origin"] == "http://x.y"
            await reply.aread()


async def test_only_configured_origins_get_them(serve: Serve) -> None:
    async with serve(server={"cors_origins": "https://a.example"}) as api:
        assert "access-control-allow-origin" not in (await api.client.get("/health", headers=ORIGIN)).headers
        reply = await api.client.get("/health", headers={"Origin": "https://a.example"})
        assert reply.headers["access-control-allow-origin"] == "https://a.example"
