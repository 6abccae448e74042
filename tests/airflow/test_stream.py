"""News for triggers, from the stream of a real API."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from tests.integration.api import create, serving
from tests.support.http_fault_proxy import HttpFaultProxy
from tests.support.waiting import until
from vitrina.settings import Settings
from vitrina_airflow import stream
from vitrina_airflow.stream import News


def news_of(api: httpx.Client) -> News:
    return News({"base_url": f"{api.base_url}/api/v1", "timeout": 60.0, "trust_env": False})


async def soon(true: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, true)


async def move(api: httpx.Client, pipeline: str) -> None:
    """Bring about news of it."""
    for verb in ("run", "cancel"):
        (await asyncio.to_thread(api.post, f"/api/v1/pipelines/{pipeline}/{verb}")).raise_for_status()


async def first_line(api: httpx.Client, news: News) -> None:
    while not news.arrive:
        await move(api, "others")


def test_whoever_waits_for_a_pipeline_is_woken_by_what_happens_to_it_and_by_nothing_else(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_SPREAD_SECONDS", 0)

    async def follow() -> None:
        news = news_of(api)
        with news.about("films") as films, news.about("others") as others:
            await first_line(api, news)
            await soon(films.is_set)  # what happened before the first line is looked for
            films.clear()
            others.clear()
            await move(api, "others")
            await soon(others.is_set)
            assert not films.is_set()
            await move(api, "films")
            await soon(films.is_set)
        assert not news.arrive

    create(api)
    create(api, name="others")
    asyncio.run(follow())


def test_a_stream_that_ends_wakes_everybody_and_the_next_one_is_followed(
    api: httpx.Client, api_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_SPREAD_SECONDS", 0)
    monkeypatch.setattr(stream, "_RECONNECT_SECONDS", 0.1)

    async def follow(proxy: HttpFaultProxy) -> None:
        news = News({"base_url": f"{proxy.url}/api/v1", "timeout": 60.0, "trust_env": False})
        with news.about("films") as films:
            for _ in range(2):
                with serving(api_settings) as served:
                    proxy.server_port = served.base_url.port or 0
                    await first_line(api, news)
                    await soon(films.is_set)
                    films.clear()
                await soon(lambda: films.is_set() and not news.arrive)

    create(api, name="others")
    with HttpFaultProxy(1) as proxy:
        asyncio.run(follow(proxy))
