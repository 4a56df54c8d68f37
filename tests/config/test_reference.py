"""The page in docs/ is what the declarations say."""

from __future__ import annotations

from pathlib import Path

from appliance.config.loading import broker_declarations
from appliance.config.reference import reference_page

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_page_in_docs_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), (
        "run: python -m appliance.config.reference docs/configuration.md"
    )


def test_page_names_every_option() -> None:
    page = reference_page()
    assert [name for name in broker_declarations() if f"`{name}`" not in page] == []


def test_example_of_the_page_is_a_configuration(tmp_path: Path) -> None:
    from appliance.config import load_settings

    example = reference_page().split("```toml\n")[1].split("```")[0]
    path = tmp_path / "example.toml"
    path.write_text(example, encoding="utf-8")
    assert load_settings(path).network.pool_bytes == 256 * 2**20
