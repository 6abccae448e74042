"""A sealed URL opens with its own key, under its own name, and in no other way."""

import base64
import os

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrina import dsn, sealing, settings
from vitrina.errors import ConfigError
from vitrina.observe import logs
from vitrina.sealing import Sealed
from vitrina.store import kept_connections
from vitrina.unsealing import Keyring

URL = "postgresql://shop:canary-9d1f@db.example:5432/shop?sslmode=verify-full"
SECRET, OTHER = os.urandom(32), os.urandom(32)
RING = Keyring([SECRET])


def sealed(name: str = "shop", secret: bytes = SECRET) -> Sealed:
    return sealing.seal(Keyring([secret]).public_keys[0], name, URL)


@hypothesis.settings(deadline=None)  # a busy machine is no failure
@given(url=st.text(max_size=300))
def test_what_was_sealed_opens(url: str) -> None:
    box = sealing.seal(RING.public_keys[0], "shop", url)
    assert RING.open("shop", box) == url


def test_the_same_url_is_never_sealed_alike() -> None:
    assert sealed().box != sealed().box


def test_nothing_of_the_url_is_in_the_box() -> None:
    assert b"canary" not in sealed().box
    assert b"shop" not in sealed().box


def test_a_box_that_was_moved_to_another_name_does_not_open() -> None:
    with pytest.raises(ConfigError, match=r"connection 'warehouse' cannot be opened.* belongs to another name"):
        RING.open("warehouse", sealed("shop"))


@pytest.mark.parametrize("length", [0, 1, 31, 32, 43, 44, 59, 60])
def test_a_box_that_was_cut_does_not_open(length: int) -> None:
    whole = sealed()
    with pytest.raises(ConfigError, match="cannot be opened"):
        RING.open("shop", Sealed(whole.key_id, whole.box[:length]))


def test_a_box_in_which_one_bit_was_changed_does_not_open() -> None:
    whole = sealed()
    for place in range(len(whole.box)):
        changed = bytearray(whole.box)
        # The highest bit of a public key is ignored by X25519; it is bound to the key all the same.
        changed[place] ^= 0x80
        with pytest.raises(ConfigError, match="cannot be opened"):
            RING.open("shop", Sealed(whole.key_id, bytes(changed)))


def test_a_box_of_another_key_names_the_key_that_is_needed() -> None:
    box = sealed(secret=OTHER)
    with pytest.raises(ConfigError, match=f"sealed with the key {box.key_id}, which VITRINA_SECRET_KEY") as refused:
        RING.open("shop", box)
    assert "canary" not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be opened"):
        RING.open("shop", Sealed(sealed().key_id, box.box))


def test_without_a_key_the_sentence_says_so() -> None:
    with pytest.raises(ConfigError, match=r"VITRINA_SECRET_KEY of this process does not have \(it is not set\)"):
        Keyring([]).open("shop", sealed())


def test_old_keys_open_what_they_sealed_and_the_first_one_seals() -> None:
    ring = Keyring([OTHER, SECRET])
    assert ring.open("shop", sealed(secret=SECRET)) == URL
    assert ring.open("shop", sealed(secret=OTHER)) == URL
    assert ring.public_keys[0] == Keyring([OTHER]).public_keys[0]


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_keys_are_read_in_either_alphabet(encode: object) -> None:
    assert callable(encode)
    value = f"{encode(SECRET).decode()}, {encode(OTHER).decode()}"
    assert settings.load({"VITRINA_SECRET_KEY": value}, dotenv=None).secret_keys == [SECRET, OTHER]


@pytest.mark.parametrize("value", ["canary-9d1f", base64.b64encode(b"canary-9d1f").decode(), "="])
def test_what_is_no_key_is_refused_without_being_repeated(value: str) -> None:
    with pytest.raises(ConfigError, match=r"VITRINA_SECRET_KEY: key 1 is not 32 bytes in base64") as refused:
        settings.load({"VITRINA_SECRET_KEY": value}, dotenv=None)
    assert value not in str(refused.value).replace("=`", "")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://u:p@h/d", None),
        ("postgres://u:p@h:5432/d?sslmode=require&sslrootcert=system", None),
        ("postgresql://u:p@[::1]:5432/d", None),
        ("postgresql://u:p@h1:1,h2:2/d?target_session_attrs=primary", None),
        ("host=h user=u password=p dbname=d", "not a valid"),
        (" postgresql://u:p@h/d", "not a valid"),
        ("POSTGRESQL://u:p@h/d", "not a valid"),
        ("https://u:p@h/d", "not a valid"),
        ("postgresql://u:p@h/d\n", "not a valid"),
        ("postgresql://u:p%00@h/d", "not a valid"),
        ("postgresql://u:p@h", "has no dbname"),
        ("postgresql://h/d", "has no user"),
        ("postgresql://u@h/d", "has no password"),
        ("postgresql:///d?user=u&password=p", "has no host"),
        ("postgresql://u:p@h,/d", "has no host"),
        ("postgresql://u:p@%2Fvar%2Frun/d", "must name a host"),
        ("postgresql://u:p@h,%2Fvar%2Frun/d", "must name a host"),
        ("postgresql://u:p@/d?host=/var/run", "must name a host"),
        ("postgresql://u:p@h/d?host=x&host=/var/run", "must name a host"),
        ("postgresql://u:p@%40abstract/d", "more than one @"),
        ("postgresql://u:p@ss@h/d", "more than one @"),
        ("postgresql://u:p@h/d?passfile=/root/.pgpass", "must not set passfile"),
        ("postgresql://u:p@h/d#?passfile=/root/.pgpass", "must not set passfile"),
        ("postgresql://u:p@h/d?hostaddr=10.0.0.1", "must not set hostaddr"),
        ("postgresql://u:p@h/d?options=-c%20a%3Db", "must not set options"),
        ("postgresql://u:p@h/d#?options=-c%20a%3Db", "must not set options"),
        ("postgresql://u:p@h/d?service=x", "must not set service"),
    ],
)
def test_a_url_that_is_kept_says_everything_itself_and_names_nothing_of_the_runner_s_machine(
    url: str, why: str | None
) -> None:
    found = kept_connections.problem(url)
    assert (found is None) if why is None else (found is not None and why in found)


def test_what_stands_behind_a_number_sign_is_judged_in_the_environment_too() -> None:
    """libpq reads it as parameters like any other."""
    assert "options" in str(dsn.problem("postgresql://u:p@h/d#?options=-c%20statement_timeout=0"))


def test_a_password_that_a_process_learns_later_is_masked_in_what_it_writes() -> None:
    redact = logs.Redactor(["known-from-the-start"])
    assert "canary-9d1f" in redact("login with canary-9d1f")
    logs.learn(URL)
    assert redact("login with canary-9d1f and known-from-the-start") == "login with *** and ***"


def test_each_of_several_keys_is_masked() -> None:
    keys = [base64.b64encode(secret).decode() for secret in (SECRET, OTHER)]
    found = logs.secrets_of(settings.load({"VITRINA_SECRET_KEY": ",".join(keys)}, dotenv=None))
    assert set(keys) <= found
