"""Where settings come from."""

from pathlib import Path

import pytest

from vitrina import settings
from vitrina.errors import ConfigError


def test_everything_about_the_search_server_may_stand_in_files(tmp_path: Path) -> None:
    """As orchestrators hand out secrets; the CA is a file in any case."""
    wanted = {"URL": "https://user:secret@search:9200", "API_KEY": "key", "FINGERPRINT": "ab" * 32}
    environment = {"ELASTICSEARCH_CA_FILE": "/etc/ssl/search-ca.pem"}
    for name, value in wanted.items():
        (tmp_path / name).write_text(f"{value}\n")
        environment[f"ELASTICSEARCH_{name}_FILE"] = str(tmp_path / name)

    found = settings.load(environment, dotenv=None)

    assert found.elasticsearch_url is not None
    assert found.elasticsearch_url.get_secret_value() == wanted["URL"]
    assert found.elasticsearch_api_key is not None
    assert found.elasticsearch_api_key.get_secret_value() == wanted["API_KEY"]
    assert found.elasticsearch_fingerprint == wanted["FINGERPRINT"]
    assert found.elasticsearch_ca_file == Path("/etc/ssl/search-ca.pem")
    assert "user:secret" not in repr(found)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ELASTICSEARCH_API_KEY_FILE=.*missing cannot be read: No such file"):
        settings.load({"ELASTICSEARCH_API_KEY_FILE": str(tmp_path / "missing")}, dotenv=None)
