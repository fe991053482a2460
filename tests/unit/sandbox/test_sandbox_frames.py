"""The parser of what guests send: exact on what is right, strict on what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.sandbox.wire.frames import (
    FROM_GUEST,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameKind,
    FrameParser,
    PayloadReader,
    ProtocolError,
    encode,
    string,
    strings,
)

frames = st.builds(
    Frame, st.sampled_from(sorted(FROM_GUEST)), st.integers(0, 2**32 - 1), st.binary(max_size=300)
)


@given(st.lists(frames, max_size=8), st.data())
def test_frames_survive_any_cutting(sent, data):
    stream = b"".join(encode(frame.kind, frame.channel, frame.payload) for frame in sent)
    parser, got, at = FrameParser(), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, 64))
        got += parser.feed(stream[at : at + size])
        at += size
    assert got == sent


@given(st.binary(max_size=2000))
def test_rubbish_gives_frames_or_a_protocol_error_and_nothing_else(stream):
    try:
        parsed = FrameParser().feed(stream)
    except ProtocolError:
        return
    for frame in parsed:
        assert frame.kind in FROM_GUEST
        assert len(frame.payload) <= MAX_PAYLOAD_BYTES


def test_an_announced_length_over_the_limit_is_refused_before_it_is_waited_for():
    header = (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little") + bytes([FrameKind.OK, 1, 0, 0, 0])
    with pytest.raises(ProtocolError, match="1048577 bytes"):
        FrameParser().feed(header)


def test_a_guest_may_not_send_what_only_hosts_send():
    with pytest.raises(ProtocolError, match="kind 3"):
        FrameParser().feed(encode(FrameKind.EXEC, 1))


@given(st.binary(max_size=40))
def test_reading_past_a_payload_is_a_protocol_error(payload):
    reader = PayloadReader(payload)
    with pytest.raises(ProtocolError):
        for _ in range(50):
            reader.string()
            reader.u8()


def test_nul_is_refused_where_c_strings_go():
    with pytest.raises(ValueError, match="NUL"):
        strings([b"fine", b"not\0fine"])
    assert string(b"ab") == b"\x02\0\0\0ab"
