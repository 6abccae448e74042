"""The provider's calls against a real API: attach, ask again, cancel nobody else's run."""

from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from tests.integration.api import create
from tests.support.http_fault_proxy import Answer, DropConnection, Forward, HttpFault, HttpFaultProxy, Request
from vitrina.status import RunStatus
from vitrina.store import leases
from vitrina.store.database import Connection
from vitrina_airflow.api import Api, Target, VitrinaError, VitrinaUnreachable

PLAIN = {"trigger": "api", "since": None, "until": None}


@pytest.fixture
def vitrina(api: httpx.Client) -> Iterator[Api]:
    create(api)
    found = Api(Target(str(api.base_url).rstrip("/")), patience_seconds=0)
    yield found
    found.close()


def claimed(metastore: Connection) -> leases.Claim:
    claim = leases.claim_next(metastore, uuid4(), 30)
    assert claim
    leases.answer_request(metastore, claim)
    return claim


def test_the_same_key_finds_the_run_again_and_sees_how_it_ended(vitrina: Api, api_metastore: Connection) -> None:
    asked = vitrina.submit("films", "key", PLAIN)
    assert (asked.replayed, vitrina.look(asked).over) == (False, False)
    claim = claimed(api_metastore)
    found = vitrina.submit("films", "key", PLAIN)
    assert (found.replayed, found.requested_at) == (True, asked.requested_at)
    assert vitrina.look(found).run
    leases.conclude_run(api_metastore, claim)
    vitrina.submit("films", "another task's", PLAIN)
    leases.fail_run(api_metastore, claimed(api_metastore), "source_query_failed", "later, of somebody else")
    answer = vitrina.look(found)
    assert (answer.status, answer.run and answer.run["id"]) == (RunStatus.SUCCESS, str(claim.run_id))


class LoseFirst(HttpFault):
    """The API is not there for the first request of this kind; the next one arrives."""

    def __init__(self, ending: str) -> None:
        super().__init__(1)
        self._ending = ending

    def handle(self, request: Request, forward: Forward) -> Answer:
        if request.path.endswith(self._ending) and self._takes():
            raise DropConnection
        return forward(request)


class LoseFirstReply(LoseFirst):
    """The API does what it is asked for, and is gone before it says so."""

    def handle(self, request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        if request.path.endswith(self._ending) and self._takes():
            raise DropConnection
        return answer


def test_a_request_that_is_sent_twice_still_tells_an_older_run_from_its_own(
    vitrina: Api, api_metastore: Connection
) -> None:
    """A retry behind a run that failed asks for a new one, whatever the network does; its own request is not older."""
    vitrina.submit("films", "key", PLAIN)
    leases.fail_run(api_metastore, claimed(api_metastore), "source_query_failed", "the try before failed")
    with HttpFaultProxy(int(vitrina.target.url.rpartition(":")[2])) as proxy:
        api = Api(Target(proxy.url))
        before = api.get("/pipelines/films/status")
        proxy.fault = LoseFirst("/run")
        found = api.submit("films", "key", PLAIN, before)
        proxy.fault = LoseFirstReply("/run")
        own = api.submit("films", "another key", PLAIN, before)
        api.close()
    assert (found.replayed, vitrina.look(found).ended_badly, own.replayed) == (True, True, False)


def test_a_run_that_is_cancelled_is_its_own(vitrina: Api, api_metastore: Connection) -> None:
    mine = vitrina.submit("films", "mine", PLAIN)
    claim = claimed(api_metastore)
    theirs = vitrina.submit("films", "theirs", PLAIN)
    assert not vitrina.cancel(mine)  # it would take theirs with it
    leases.conclude_run(api_metastore, claim)
    assert not vitrina.cancel(mine)
    assert not vitrina.look(theirs).over
    assert vitrina.cancel(theirs)
    assert vitrina.look(theirs).status == RunStatus.CANCELLED
    assert vitrina.look(mine).status == RunStatus.SUCCESS


def test_a_clock_that_is_set_back_hides_no_run(vitrina: Api, api_metastore: Connection) -> None:
    asked = vitrina.submit("films", "key", PLAIN)
    claim = claimed(api_metastore)
    api_metastore.execute("UPDATE etl.etl_runs SET started_at = started_at - interval '5 minutes'")
    assert not vitrina.look(asked).over
    leases.conclude_run(api_metastore, claim)
    answer = vitrina.look(asked)
    assert (answer.status, answer.run and answer.run["id"]) == (RunStatus.SUCCESS, str(claim.run_id))


def test_a_refusal_is_told_in_the_words_of_the_api(vitrina: Api) -> None:
    with pytest.raises(VitrinaError, match="nobody") as refused:
        vitrina.submit("nobody", "key", PLAIN)
    assert refused.value.status == 404
    with pytest.raises(VitrinaUnreachable, match="check the host of the connection"):
        Api(Target("http://127.0.0.1:1"), patience_seconds=0).get("/me")
