"""The style and the scripts: kept by the browser as long as they are the same, and no longer."""

import hashlib
import re
from pathlib import Path

import pytest

from tests.web.pages import links_of
from tests.web.visitor import manager_on, visit

pytestmark = pytest.mark.anyio
STATIC = Path(__file__).parents[2] / "taskmanager" / "web" / "static"


async def test_asset_has_its_version_in_its_address(tmp_path: Path) -> None:
    """A browser never asks for it again, and an upgrade has another address."""
    async with visit(manager_on(tmp_path)) as visitor:
        links = [each for each in links_of((await visitor.get("no-such")).text) if "static/" in each]
        assert len(links) == 4
        for link in links:
            answer = await visitor.get(link)
            assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True), link
            assert "private" in answer.headers["cache-control"]
            assert "set-cookie" not in answer.headers
            version = hashlib.blake2b(answer.content, digest_size=6).hexdigest()
            assert link.endswith(f"?v={version}")


async def test_asset_of_another_version_is_not_kept(tmp_path: Path) -> None:
    """While a deploy replaces one worker after the other, a page of the new one asks the old one for its style."""
    async with visit(manager_on(tmp_path)) as visitor:
        for address in ("static/dashboard.css?v=0123456789ab", "static/dashboard.css"):
            answer = await visitor.get(address)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
            again = await visitor.get(address, **{"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        for name in ("VENDORED.md", "..%2Fguard.py", "../guard.py", "no-such.css", ""):
            assert (await visitor.get(f"static/{name}")).status_code in (307, 404), name


def test_assets_load_nothing_from_other_hosts() -> None:
    """No font, script or picture of somebody else, who would see who looks when."""
    for path in STATIC.glob("dashboard.*"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"https?://(?!www\.w3\.org/)|@import|//cdn", text), path.name
