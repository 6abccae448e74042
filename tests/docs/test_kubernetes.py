"""The manifests for Kubernetes: well-formed, with commands and settings that exist, and no rights beyond need."""

from typing import Any

import pytest
import typer
import yaml

from tests.docs.blocks import ROOT
from vitrina.cli.app import make_app
from vitrina.settings import Settings

MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "infra/kubernetes/vitrina.yml").read_text()))
ONCE: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "infra/kubernetes/run-once.yml").read_text()))
# A CronJob holds the template of a Job.
ONCE_JOBS = [found["spec"].get("jobTemplate", found) for found in ONCE]
PODS = [found for found in MANIFESTS if found["kind"] in ("Job", "Deployment")]
NAMES = {
    f"{name.upper() if name.startswith('elasticsearch') else 'VITRINA_' + name.upper()}{suffix}"
    for name in Settings.model_fields
    for suffix in ("", "_FILE")
}


def test_there_is_a_migration_an_api_and_runners() -> None:
    commands = [container(pod)["args"][0] for pod in PODS]
    assert commands == ["migrate", "api", "runner"]
    known = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
    assert set(commands) <= set(known)


def test_every_variable_is_a_setting() -> None:
    [settings] = [found["data"] for found in MANIFESTS if found["kind"] == "ConfigMap"]
    given = set(settings) | {variable["name"] for pod in PODS for variable in container(pod).get("env", [])}
    assert given
    assert not given - NAMES


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod["metadata"]["name"])
def test_a_pod_has_no_rights_and_files_are_where_the_settings_look(pod: dict[str, Any]) -> None:
    context = container(pod)["securityContext"]
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    volumes = {volume["name"] for volume in pod["spec"]["template"]["spec"]["volumes"]}
    mounted = {mount["name"]: mount["mountPath"] for mount in container(pod)["volumeMounts"]}
    assert set(mounted) == volumes
    assert mounted["app"] == "/secrets/app"


@pytest.mark.parametrize("job", ONCE_JOBS, ids=[found["kind"] for found in ONCE])
def test_a_job_runs_one_pipeline_with_no_more_rights_than_a_runner(job: dict[str, Any]) -> None:
    [runner] = [pod for pod in PODS if container(pod)["args"] == ["runner"]]
    assert container(job)["args"] == ["runner", "--once", "--pipeline", "film_dim_full"]
    assert container(job)["securityContext"] == container(runner)["securityContext"]
    assert container(job)["volumeMounts"] == container(runner)["volumeMounts"]
    assert {variable["name"] for variable in container(job).get("env", [])} <= NAMES
    pod = job["spec"]["template"]["spec"]
    assert pod["volumes"] == runner["spec"]["template"]["spec"]["volumes"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"] >= 45) == ("Never", True)


def test_the_options_of_a_job_exist() -> None:
    runner = typer.main.get_command(make_app()).commands["runner"]  # type: ignore[attr-defined]
    known = {option for parameter in runner.params for option in parameter.opts}
    assert {"--once", "--pipeline"} <= known


def test_only_the_migration_sees_the_administrator() -> None:
    seen_by = [pod["metadata"]["name"] for pod in PODS if "vitrina-admin" in str(pod)]
    assert seen_by == ["vitrina-migrate"]


def test_a_runner_is_given_time_to_leave() -> None:
    [runner] = [pod for pod in PODS if container(pod)["args"] == ["runner"]]
    assert runner["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 45


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found
