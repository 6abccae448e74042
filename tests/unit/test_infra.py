"""What can be proved about the containers without a container engine."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrina import __version__, settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "infra" / "docker-compose.yml"
COMPOSE_TEXT = COMPOSE_FILE.read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("etl_migrate", "etl_api", "etl_runner")
LONG_LIVED = ("etl_db", "etl_api", "etl_runner", "elasticsearch")


def test_the_stand_has_the_services_of_the_requirements() -> None:
    assert {"etl_db", "etl_api", "etl_runner", "elasticsearch"} <= SERVICES.keys()


def test_images_are_named_after_the_version() -> None:
    """So that two versions can be told apart on one machine, and a rollback names what it goes back to."""
    manifests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "infra/kubernetes").glob("*.yml"))
    images = {SERVICES[name]["image"] for name in OURS} | set(re.findall(r"image: (vitrina\S*)", manifests))
    assert images == {f"vitrina:{__version__}"}


def test_the_demo_script_finds_its_database() -> None:
    database = SERVICES["etl_db"]
    assert database["container_name"] == "diploma_postgres"
    assert database["image"] == "postgres:15"
    assert database["environment"]["POSTGRES_USER"] == "cinema"
    assert database["environment"]["POSTGRES_DB"] == "cinema"
    assert "${ETL_DB_PORT:-5432}:5432" in database["ports"][0]


def test_the_runner_finds_the_search_server_where_the_requirements_put_it() -> None:
    assert SERVICES["etl_runner"]["environment"]["ELASTICSEARCH_URL"] == "http://elasticsearch:9200"


@pytest.mark.parametrize("name", LONG_LIVED)
def test_a_long_lived_service_tells_whether_it_is_healthy(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", ["etl_api", "etl_runner"])
def test_nothing_starts_before_the_migration_has_ended(name: str) -> None:
    assert SERVICES[name]["depends_on"]["etl_migrate"]["condition"] == "service_completed_successfully"
    assert SERVICES["etl_migrate"]["depends_on"]["etl_db"]["condition"] == "service_healthy"


def test_data_survives_the_containers() -> None:
    named = COMPOSE["volumes"].keys()
    for service, path in [("etl_db", "/var/lib/postgresql/data"), ("elasticsearch", "/usr/share/elasticsearch/data")]:
        mounted = {target: source for source, target, *_ in (v.split(":") for v in SERVICES[service]["volumes"])}
        assert mounted[path] in named


@pytest.mark.parametrize("name", OURS)
def test_every_variable_given_to_vitrina_is_a_setting(name: str) -> None:
    unknown = {variable.removesuffix("_FILE") for variable in SERVICES[name]["environment"]} - setting_names()
    assert not unknown, f"{name} is given {sorted(unknown)}, which vitrina.settings does not read"


def test_every_variable_a_user_may_set_is_explained_in_the_sample() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", COMPOSE_TEXT))
    assert used <= sampled_names(), f"not in .env.sample: {sorted(used - sampled_names())}"


def test_the_sample_explains_every_setting_and_invents_none() -> None:
    sampled = {name for name in sampled_names() if name.startswith(("VITRINA_", "ELASTICSEARCH_"))}
    named_connections = {name for name in sampled if name.startswith("VITRINA_CONN_")}
    assert named_connections, ".env.sample does not show how a named connection is configured"
    collected = {f"VITRINA_{name}" for name in ("CONNECTIONS", "CONNECTION_LIMITS", "FEEDS", "SHUT_CONNECTIONS")}
    assert sampled - named_connections == setting_names() - collected


def test_the_sample_shows_the_real_defaults() -> None:
    sample = settings.load({name: value for name, value in sampled_values().items() if value}, dotenv=None)
    assert sample.model_dump(exclude={"connections"}) == settings.load({}, dotenv=None).model_dump(
        exclude={"connections"}
    )


def test_no_secret_stands_in_the_compose_file() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|KEY|SECRET|_URL", variable):
                assert variable.endswith("_FILE") or value in ("http://elasticsearch:9200", f"${{{variable}:-}}"), (
                    f"{name}: {variable} has the literal value {value!r}"
                )
    assert not re.search(r"://[^/\s:]+:[^@\s]+@", COMPOSE_TEXT), "a URL with a password in it"


def test_only_the_migration_and_the_server_see_the_admin_password() -> None:
    holders = {name for name, s in SERVICES.items() if any("admin_secrets" in v for v in s.get("volumes", []))}
    assert holders == {"etl_secrets", "etl_db", "etl_migrate"}


def test_only_runners_see_the_key_of_kept_connections() -> None:
    holders = {name for name, s in SERVICES.items() if any("runner_secrets" in v for v in s.get("volumes", []))}
    assert holders == {"etl_secrets", "etl_runner"}
    told = {name for name, s in SERVICES.items() if any("SECRET_KEY" in v for v in s.get("environment", {}))}
    assert told == {"etl_runner"}


def test_ports_are_published_on_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_invented_passwords_stay_the_same_and_chosen_ones_win(tmp_path: Path) -> None:
    script = (ROOT / "infra" / "make-secrets").read_text(encoding="utf-8").replace("/secrets/", f"{tmp_path}/")
    (tmp_path / "admin").mkdir()
    (tmp_path / "app").mkdir()
    (tmp_path / "runner").mkdir()

    def make_secrets(**environ: str) -> str:
        subprocess.run(["sh", "-c", script], check=True, env={"PATH": "/usr/bin:/bin"} | environ, capture_output=True)
        return (tmp_path / "app" / "database_url").read_text()

    first = make_secrets()
    assert re.fullmatch(r"postgresql://vitrina_app:[0-9a-f]{48}@etl_db:5432/cinema", first)
    key = (tmp_path / "runner" / "secret_key").read_text()
    assert make_secrets() == first
    assert (tmp_path / "runner" / "secret_key").read_text() == key
    assert len(settings.load({"VITRINA_SECRET_KEY": key}, dotenv=None).secret_keys) == 1
    assert make_secrets(VITRINA_APP_PASSWORD="chosen") == "postgresql://vitrina_app:chosen@etl_db:5432/cinema"
    with pytest.raises(subprocess.CalledProcessError) as refused:
        make_secrets(VITRINA_APP_PASSWORD="p@ss/word")
    assert b"app/app_password" in refused.value.stderr
    assert b"p@ss" not in refused.value.stderr


def test_the_image_runs_without_root_and_checks_its_health() -> None:
    instructions = [line.split() for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines() if line]
    final_stage = instructions[max(i for i, line in enumerate(instructions) if line[0] == "FROM") :]
    users = [line[1] for line in final_stage if line[0] == "USER"]
    assert users == ["vitrina"]
    assert any(line[0] == "HEALTHCHECK" for line in final_stage)


def test_the_image_installs_locked_packages_only() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for command in re.findall(r"pip install (.*)", dockerfile):
        assert command.startswith(("--require-hashes ", "--no-deps ")), command


def test_compose_accepts_its_file() -> None:
    compose = ["docker", "compose"]
    if not shutil.which("docker") or subprocess.run([*compose, "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker compose is not installed")
    subprocess.run([*compose, "-f", str(COMPOSE_FILE), "config", "--quiet"], check=True)


def setting_names() -> set[str]:
    fields = settings.Settings.model_fields
    return {name.upper() if name.startswith("elasticsearch") else f"VITRINA_{name.upper()}" for name in fields}


def sampled_names() -> set[str]:
    return set(sampled_values())


def sampled_values() -> dict[str, str]:
    sample = (ROOT / ".env.sample").read_text(encoding="utf-8")
    return dict(re.findall(r"^#?([A-Z][A-Z0-9_]*)=(.*)$", sample, re.MULTILINE))


UNITS = sorted((ROOT / "infra/systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists_without_rights(unit: Path) -> None:
    from configparser import RawConfigParser

    from typer.main import get_command

    from vitrina.cli.app import make_app

    read = RawConfigParser(strict=True)
    read.read(unit)
    service = read["Service"]
    program, command, *_ = service["ExecStart"].split()
    assert Path(program).name == "vitrina"
    assert command in get_command(make_app()).commands  # type: ignore[attr-defined]
    assert service["User"] != "root"
    assert service["NoNewPrivileges"] == "yes"
    assert Path(service["EnvironmentFile"]) == Path(service["WorkingDirectory"]) / ".env"
    assert int(service["TimeoutStopSec"]) >= (60 if command == "runner" else 10)


def test_there_is_a_unit_for_each_process_that_stays() -> None:
    assert [unit.name for unit in UNITS] == ["vitrina-api.service", "vitrina-runner@.service"]


def test_systemd_accepts_the_units() -> None:
    program = shutil.which("systemd-analyze")
    if not program:
        pytest.skip("systemd-analyze is not installed")
    # What it misses here is the program and the user, which an installation has.
    done = subprocess.run([program, "verify", *UNITS], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "Unknown" in line or "Failed to parse" in line]
    assert not said
