"""HTTP/1.1 as bytes: what is written, and answers that are read however they are cut."""

from __future__ import annotations

import pytest

from tokenstore.serve.wire import MAX_HEAD_BYTES, BrokenError, Reading, written

OK = b"HTTP/1.1 200 OK\r\n"
BY_LENGTH = OK + b"Content-Length: 4\r\nX-Name: a, b\r\n\r\nbody"
IN_CHUNKS = OK + b"transfer-encoding: chunked\r\n\r\n1\r\nb\r\n3;x=y\r\nody\r\n0\r\nx-trailer: t\r\n\r\n"
AFTER_HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + BY_LENGTH
TO_THE_END = OK + b"content-type: text/plain\r\n\r\nbody"


def read(answer: bytes, size: int, *, method: str = "GET") -> tuple[Reading, bytes]:
    """Read an answer that comes in pieces of a size, and not the end of its connection."""
    reading = Reading(method)
    return reading, b"".join(reading.feed(answer[at : at + size]) for at in range(0, len(answer), size))


def test_a_request_says_its_host_and_its_length() -> None:
    """The head has the line, the host, the headers in their order and the length, and the body follows."""
    sent = written("POST", "/v1/x?a=b", b"h:1", [(b"b", b"1"), (b"a", b"2")], b"{}")

    assert sent == b"POST /v1/x?a=b HTTP/1.1\r\nhost: h:1\r\nb: 1\r\na: 2\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize(("method", "says"), [("POST", True), ("PUT", True), ("GET", False), ("DELETE", False)])
def test_a_request_without_a_body(method: str, says: bool) -> None:
    """Only methods that usually have a body say that it is empty."""
    assert (b"content-length: 0\r\n" in written(method, "/", b"h")) is says


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/a?b=%20[c]", b"/a?b=%20[c]"),
        ("/a b\r\nx: y", b"/a%20b%0D%0Ax:%20y"),
        ("/\xff", b"/%FF"),
        ("/a#b", b"/a%23b"),
    ],
)
def test_a_target_cannot_break_out(target: str, sent: bytes) -> None:
    """What is encoded stays as it is, and bytes that do not belong into a target are encoded."""
    assert written("GET", target, b"h").split(b" HTTP/1.1\r\n")[0] == b"GET " + sent


@pytest.mark.parametrize("pair", [(b"a", b"b\r\nc: d"), (b"a\nb", b"c"), (b"a", b"b\rc"), (b"a", b"\0")])
def test_a_header_cannot_break_out(pair: tuple[bytes, bytes]) -> None:
    """A line break or a NUL in a header is refused, so that it makes no header of its own."""
    with pytest.raises(ValueError, match="line break"):
        written("GET", "/", b"h", [pair])


@pytest.mark.parametrize("answer", [BY_LENGTH, IN_CHUNKS, AFTER_HINTS], ids=["length", "chunks", "after hints"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_an_answer_is_read_however_it_is_cut(answer: bytes, size: int) -> None:
    """Status, headers and body are the same whatever pieces they come in, and the connection may be used again."""
    reading, body = read(answer, size)

    assert (reading.status, body, reading.done, reading.reusable) == (200, b"body", True, True)
    assert reading.headers in (
        [(b"content-length", b"4"), (b"x-name", b"a, b")],
        [(b"transfer-encoding", b"chunked")],
    )


@pytest.mark.parametrize("status", [b"000", b"099", b"600", b"999"])
def test_a_status_that_http_has_not(status: bytes) -> None:
    """An answer that no server could pass on is broken, and is not waited behind as if it were provisional."""
    with pytest.raises(BrokenError):
        read(BY_LENGTH.replace(b"200", status), 1000)


@pytest.mark.parametrize("size", [1, 1000])
def test_a_body_may_go_to_the_end_of_the_connection(size: int) -> None:
    """A body without length and chunks is whole when the connection ends, which cannot be used again."""
    reading, body = read(TO_THE_END, size)

    assert (body, reading.done) == (b"body", False)
    reading.end()
    assert (reading.done, reading.reusable) == (True, False)


@pytest.mark.parametrize("answer", [BY_LENGTH, IN_CHUNKS, AFTER_HINTS], ids=["length", "chunks", "after hints"])
def test_an_answer_that_was_cut_is_broken(answer: bytes) -> None:
    """Wherever the connection ends before the answer does, that is an error."""
    for length in range(len(answer)):
        reading, _ = read(answer[:length], 1000)

        with pytest.raises(BrokenError):
            reading.end()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        OK + b"content-length: 4\r\ncontent-length: 5\r\n\r\nbody",
        OK + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\nbody",
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        OK + b"a header: x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h3\r\n\r\nbody",
        OK + b"x: " + b"y" * MAX_HEAD_BYTES,
    ],
    ids=["ssh", "two lengths", "length and chunks", "no chunks", "no header", "another protocol", "a large head"],
)
def test_what_is_no_http_is_broken(answer: bytes) -> None:
    """What does not follow the protocol raises, and its connection is not used again."""
    reading = Reading("GET")

    with pytest.raises(BrokenError):
        reading.feed(answer)
    assert not reading.reusable


def test_trailers_without_end_are_broken_off() -> None:
    """What comes beside the body is bounded wherever it comes."""
    reading, _ = read(OK + b"transfer-encoding: chunked\r\n\r\n1\r\nb\r\n0\r\n", 1000)

    with pytest.raises(BrokenError, match="HeadTooLarge"):
        reading.feed(b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 1))


@pytest.mark.parametrize("more", [BY_LENGTH, b"noise"])
def test_what_follows_an_answer_is_nobodys(more: bytes) -> None:
    """Bytes behind a whole answer are left out, and its connection is not used again."""
    reading, body = read(BY_LENGTH + more, 1000)

    assert (reading.status, body, reading.done, reading.reusable) == (200, b"body", True, False)


@pytest.mark.parametrize("head", [b"content-length: 4\r\n", b"transfer-encoding: chunked\r\n", b""])
def test_the_answer_to_head_has_no_body(head: bytes) -> None:
    """It is whole with its head, whatever length that names."""
    reading, body = read(OK + head + b"\r\n", 1000, method="HEAD")

    assert (reading.status, body, reading.done) == (200, b"", True)


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body(status: int) -> None:
    """No content and not modified are whole with their head."""
    reading, body = read(b"HTTP/1.1 %d X\r\n\r\n" % status, 1000)

    assert (reading.status, body, reading.done, reading.reusable) == (status, b"", True, True)


def test_a_server_that_closes_is_believed() -> None:
    """A connection that the server is about to close is not used again."""
    reading, body = read(OK + b"connection: close\r\ncontent-length: 4\r\n\r\nbody", 1000)

    assert (body, reading.done, reading.reusable) == (b"body", True, False)
