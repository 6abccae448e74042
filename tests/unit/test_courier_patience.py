"""A receiver that answers letter by letter is given up on after a while, counted over the whole delivery."""

import socket
import threading

import pytest

from vitrina.observe import notifications


def test_a_delivery_has_a_limit_as_a_whole() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip() -> None:
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\n")
            while not ended.wait(0.05):
                try:
                    peer.sendall(b"X-Slow: 1\r\n")
                except OSError:
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    try:
        with pytest.raises(notifications.TooSlow, match=r"within 0\.5 s"):
            notifications.post_in_time(url, b"{}", {}, seconds=0.5)
    finally:
        ended.set()
        thread.join(30)
        server.close()


def test_a_refusal_is_told_as_before() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    with pytest.raises(notifications.Undelivered, match="cannot be reached"):
        notifications.post_in_time(url, b"{}", {})
