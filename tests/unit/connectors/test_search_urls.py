"""The URL of a named search cluster says everything that ELASTICSEARCH_URL and the variables beside it say."""

from pathlib import Path

import pytest

from vitrina.connectors.search import urls
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.settings import Settings
from vitrina.store import kept_connections


def test_everything_is_in_the_url() -> None:
    found = ConnectionOptions.of_cluster(
        "elasticsearch+https://ada:p%40ss@a:9200,b:9201?fingerprint=ab&ca_file=/ca.pem&api_key=k%26"
    )
    assert found == ConnectionOptions(
        hosts=("https://a:9200", "https://b:9201"),
        username="ada",
        password="p@ss",
        api_key="k&",
        ca_file=Path("/ca.pem"),
        fingerprint="ab",
    )


def test_no_login_and_one_host() -> None:
    assert ConnectionOptions.of_cluster("opensearch+http://search:9200") == ConnectionOptions(
        hosts=("http://search:9200",)
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("elasticsearch://host:9200", "it is not the URL of a search cluster"),
        ("elasticsearch+https://host:nine", "an invalid address"),
        ("elasticsearch+https://a:1,,b:2", "an invalid address"),
        ("elasticsearch+https://", "an invalid address"),
        ("elasticsearch+https://host?sniff=1", "must not set sniff"),
        ("elasticsearch+https://user:se#cret@host", "an invalid address"),
    ],
)
def test_what_is_wrong_is_said_without_a_value(url: str, said: str) -> None:
    problem = urls.problem(url)
    assert problem
    assert said in problem
    assert "cret" not in problem


def test_a_url_that_a_user_sends_names_no_file_of_the_machine() -> None:
    url = "elasticsearch+https://ada:pw@host:9200?ca_file=/etc/shadow"
    assert urls.problem(url) is None
    assert "must not set ca_file" in str(kept_connections.problem(url))
    assert kept_connections.problem("elasticsearch+https://ada:pw@host:9200?fingerprint=ab") is None
    assert "no connector for URLs of this kind" in str(kept_connections.problem("mysql://ada:pw@host/db"))


def test_the_settings_take_it_and_refuse_a_wrong_one() -> None:
    connections = {"logs": "elasticsearch+http://host:9200"}
    settings = Settings.model_validate({"connections": connections, "elasticsearch_url": "http://main:9200"})
    assert settings.connector_of("logs") == "search"
    assert settings.target_url("search", "logs") == "elasticsearch+http://host:9200"
    assert settings.target_url("search", None) == "http://main:9200"
    with pytest.raises(ValueError, match="VITRINA_CONN_LOGS: the URL must not set sniff"):
        Settings.model_validate({"connections": {"logs": "elasticsearch+http://host?sniff=1"}})
