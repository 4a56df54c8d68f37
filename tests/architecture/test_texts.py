"""Texts that users read: generated pages are not stale, and the prose check finds what it is there to find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.protocol.api_versions import ApiKey
from scripts import decisions, left_out, prose

ROOT = Path(__file__).parents[2]


def test_the_page_of_what_is_left_out_is_what_the_heads_of_the_handlers_say() -> None:
    stale = "run: python -m scripts.left_out docs/left-out.md"
    assert (ROOT / "docs" / "left-out.md").read_text(encoding="utf-8") == left_out.page(), stale


def test_each_served_api_has_a_handler_whose_head_begins_with_its_name_and_versions() -> None:
    found = left_out.heads()
    assert [api.title for api in ApiKey if api.served and api not in found] == []
    for api, head in found.items():
        assert re.search(rf"\b{left_out.versions(api)}\b", head.partition("\n")[0]), api.title


def test_no_head_says_what_is_left_out_where_the_page_does_not_find_it() -> None:
    for api, head in left_out.heads().items():
        assert head.lower().count("left out:") == len(list(left_out.left_out(head))), api.title


PLANTED = {
    "page.md": "Plain.\n\nThe log is begun anew.\n",
    "fenced.md": "```\nThe log is begun anew.\n```\nUse `whoever` and [this](anew.md).\n",
    "appliance/ioproc/worker.py": (
        '"""Whoever reads this is no user."""\n'
        '_logger.warning("%s: the client is told of it", name)\n'
        'raise OperatorFault(f"{path} lies in the way")\n'
        'NOT_SHOWN = "anew"\n'
    ),
    "appliance/cli/say.py": (
        '@click.command()\ndef say() -> None:\n    """Begins anew."""\n\n\n'
        'def other() -> None:\n    """Begins anew."""\n'
    ),
    "appliance/config/one.py": 'ONE = option(1, "one", doc="Seldom more.")\n',
    "benchmarks/goals.toml": 'why = "A miss is dear."\n',
    "docs/lab/notebook.md": "Begun anew.\n",
}


def planted(root: Path) -> list[str]:
    for name, text in PLANTED.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [
        f"{finding.text.path}:{finding.text.line} {finding.word}"
        for text in prose.texts(root)
        for finding in prose.findings(text)
    ]


def test_planted_words_are_found_in_each_kind_of_text_and_nowhere_else(tmp_path: Path) -> None:
    assert sorted(planted(tmp_path)) == [
        "appliance/cli/say.py:3 anew",
        "appliance/config/one.py:1 Seldom",
        "appliance/ioproc/worker.py:2 is told",
        "appliance/ioproc/worker.py:3 lies in",
        "benchmarks/goals.toml:1 dear",
        "page.md:3 anew",
    ]


def test_the_prose_check_fails_when_it_finds_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert prose.main() == 0
    planted(tmp_path)
    assert prose.main() == 1
    assert "page.md:3: 'anew': again, from the start" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "Who is it?",
        "The broker lists the directories that are below it.",
        "A warehouse is no problem.",
        "The gatekeeper is in Dearborn.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert list(prose.findings(prose.Text(Path("page.md"), 1, text))) == []


LONG = "word " * prose.SENTENCE_WORDS_MAX + "more."
LONG_ENOUGH = LONG.removeprefix("word ")


def test_a_sentence_of_too_many_words_is_found_at_the_line_of_its_paragraph() -> None:
    page = f"# Head\n\n{LONG_ENOUGH} {LONG_ENOUGH}\n\n- Short.\n- **Short.** {LONG}\n"
    (found,) = prose.long_sentences(Path("page.md"), page)
    assert (found.text.line, found.instead) == (
        6,
        f"{prose.SENTENCE_WORDS_MAX + 1} words: write one fact a sentence",
    )


@pytest.mark.parametrize(
    "page",
    [
        f"```\n{LONG}\n```\n",
        f"| a cell |\n|---|\n| {LONG} |\n",
        f"<!-- figures: begin -->\n{LONG}\n<!-- figures: end -->\n",
        f"`{LONG}` is one word.\n",
        f"{LONG_ENOUGH}\n\n1. {LONG_ENOUGH}\n",
    ],
)
def test_code_tables_and_generated_blocks_are_not_counted(page: str) -> None:
    assert list(prose.long_sentences(Path("page.md"), page)) == []


def test_the_prose_check_fails_for_a_long_sentence_on_a_first_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(LONG)
    assert prose.main() == 1
    assert (
        f"docs/page.md:1: 'word word word word word word': {prose.SENTENCE_WORDS_MAX + 1} words"
        in capsys.readouterr().out
    )


def test_every_page_that_is_not_read_has_a_reason_and_exists() -> None:
    for start, reason in prose.NOT_READ:
        assert len(reason.split()) > 2, start
        assert (ROOT / start).exists(), start


def test_the_index_of_decisions_is_what_the_records_say() -> None:
    found = decisions.records()
    assert len({each.number for each in found}) == len(found) > 60
    assert decisions.INDEX.read_text(encoding="utf-8") == decisions.index(found), (
        "run: python scripts/decisions.py"
    )


RECORD = "# 0099: Do this\n\nDate: 2026-11-24. Status: accepted.\n\nWe do this.\n\n## Why\n\nBecause.\n"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("0099-do-this.md", "Date: 2026-11-24. ", ""),
        ("0099-do-this.md", "Status: accepted.", ""),
        ("0099-do-this.md", "We do this.\n\n", ""),
        ("0098-do-this.md", "", ""),
        ("0099-do-this.md", "Because.", "Because. " * 500),
    ],
)
def test_a_record_of_another_form_is_refused(name: str, old: str, new: str) -> None:
    assert decisions.record("0099-do-this.md", RECORD).title == "Do this"
    with pytest.raises(decisions.WrongForm, match=name):
        decisions.record(name, RECORD.replace(old, new, 1) if old else RECORD)


LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")


def test_links_between_pages_lead_to_files_that_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_changelog_has_the_headings_of_keep_a_changelog_once_a_version() -> None:
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    _, *versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert versions[0].startswith("Unreleased\n")
    for version in versions:
        headings = re.findall(r"^### (.*)", version, flags=re.MULTILINE)
        assert headings == [kind for kind in kinds if kind in headings], (
            "a topic is a bold line below its heading"
        )
