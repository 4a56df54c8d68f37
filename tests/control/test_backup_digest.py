"""The digest of a stream is that of its bytes, also when their buffer is used again and when the writer fails."""

import hashlib
import threading

import pytest

from appliance.control.backup.digest import StreamDigest

LENGTHS = [0, 1, 65_535, 65_536, 1 << 20, 3, (4 << 20) + 1]


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("backup-digest")]


def test_a_buffer_that_is_used_again_is_counted_as_it_was_in_each_chunk() -> None:
    expected, buffer = hashlib.sha256(), memoryview(bytearray(max(LENGTHS)))
    with StreamDigest() as digest:
        for number, length in enumerate(LENGTHS):
            chunk = buffer[:length]
            chunk[:] = bytes([number + 1]) * length
            expected.update(chunk)
            with digest.beside(chunk):
                pass
            chunk[:] = bytes(length)
        assert digest.length_bytes == sum(LENGTHS)
        assert digest.hexdigest() == expected.hexdigest()


def test_no_thread_stays() -> None:
    with StreamDigest() as digest, digest.beside(bytes(1 << 20)):
        assert names_of_threads()
    assert not names_of_threads()


def test_a_writer_that_fails_leaves_no_thread_and_its_error_passes() -> None:
    with pytest.raises(OSError, match="disk"), StreamDigest() as digest, digest.beside(bytes(1 << 20)):
        raise OSError("disk")
    assert not names_of_threads()
