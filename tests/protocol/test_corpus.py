"""Raw frames of real clients and of nobody's friends, each read as the file beside it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol.reading import from_hex, reading

CORPUS = Path(__file__).parent / "corpus"


def frames(folder: str) -> list[Path]:
    return sorted((CORPUS / folder).glob("*.hex"))


@pytest.mark.parametrize("file", frames("valid"), ids=lambda file: file.stem)
def test_valid_frame_is_read_as_written_beside_it(file: Path) -> None:
    said = reading(from_hex(file.read_text()))
    assert said == file.with_suffix(".txt").read_text()
    assert not said.startswith(("closed", "refused"))


@pytest.mark.parametrize("file", frames("invalid"), ids=lambda file: file.stem)
def test_invalid_frame_is_refused_in_the_words_beside_it(file: Path) -> None:
    said = reading(from_hex(file.read_text()))
    assert said == file.with_suffix(".txt").read_text()
    assert said.startswith(("closed", "refused"))


def test_corpus_is_there() -> None:
    assert len(frames("valid")) >= 50
    assert len(frames("invalid")) >= 60


@pytest.mark.parametrize("file", frames("valid"), ids=lambda file: file.stem)
def test_every_frame_cut_short_is_refused_without_a_traceback(file: Path) -> None:
    whole = from_hex(file.read_text())
    for length in range(4, len(whole)):
        cut = (length - 4).to_bytes(4, "big") + whole[4:length]
        reading(cut)
