"""The options of a dashboard hold on every page, and wherever something can be done or fetched."""

import re
from pathlib import Path
from typing import Any

import pytest

from taskmanager import ConfigurationError, TaskManager, Workflow, current_task
from taskmanager.web import dashboard
from taskmanager.web.app import ANSWERS
from tests.web.pages import elements_of, walk
from tests.web.visitor import manager_on, visit

pytestmark = pytest.mark.anyio
SECRET = "kept-to-itself"


async def work(manager: TaskManager) -> None:
    """Leave a task of each kind, with a secret in what goes in and comes out."""

    @manager.task(persist=True, retries=0)
    async def keeps(text: str, *, is_failing: bool = False) -> Any:
        current_task().progress(1, 2, text)
        if is_failing:
            raise ValueError
        return [text]

    @manager.schedule(every=3600, args=(SECRET,))
    @manager.task(persist=True)
    async def scheduled(text: str) -> None: ...

    async with manager:
        for is_failing in (False, True):
            await keeps.enqueue(SECRET, is_failing=is_failing).result()
        workflow = Workflow("flow")
        workflow.add(keeps, SECRET)
        await (await manager.start_workflow(workflow)).result()
        await keeps.with_options(delay=3600).enqueue(SECRET).saved()


@pytest.mark.parametrize("level", ["read", "act"])
async def test_read_only_leaves_no_form_and_takes_none(tmp_path: Path, level: str) -> None:
    """On no page, whoever looks; and who sends one all the same is refused."""
    manager = manager_on(tmp_path)
    await work(manager)
    count = 0
    async with visit(manager, level, read_only=True) as visitor:
        async for address, answer in walk(visitor):
            count += 1
            assert answer.status_code in (200, 303, 307, 403), address
            forms = [each for each in elements_of(answer.text) if each.attributes.get("method", "").lower() == "post"]
            assert forms == [], address
        for address, _, method in ANSWERS:
            if method == "POST":
                path = re.sub(r"\{[^}]+\}", "some-id", address).lstrip("/")
                assert (await visitor.post(path, {"queue": "default"})).status_code == 403, address
    assert count > 20


async def test_viewer_who_may_act_finds_forms(tmp_path: Path) -> None:
    """The check of the check: without the option they are there."""
    manager = manager_on(tmp_path)
    await work(manager)
    async with visit(manager) as visitor:
        forms = [
            address
            async for address, answer in walk(visitor)
            if any(each.attributes.get("method", "").lower() == "post" for each in elements_of(answer.text))
        ]
    assert len(forms) > 3


async def test_hidden_arguments_are_on_no_page_and_in_no_export(tmp_path: Path) -> None:
    """Nor does a search tell whether they are there."""
    manager = manager_on(tmp_path)
    await work(manager)
    async with visit(manager, hide_arguments=True) as hidden:
        async for address, answer in walk(hidden):
            assert SECRET not in answer.text, address
        for address in ("tasks/export.csv", "tasks/export.json"):
            assert SECRET not in (await hidden.get(address)).text
        assert "keeps" not in (await hidden.get(f"tasks/export.csv?text={SECRET}")).text
    async with visit(manager) as visitor:
        assert [address async for address, answer in walk(visitor) if SECRET in answer.text]


async def test_search_does_not_look_behind_the_text_that_the_application_shows(tmp_path: Path) -> None:
    """Whoever sees four stars for a number could find it out, figure by figure."""
    manager = manager_on(tmp_path)
    await work(manager)
    async with visit(manager) as visitor:
        assert "keeps" in await visitor.text(f"tasks/export.csv?text={SECRET}")
    async with visit(manager, format_arguments=lambda *_: "****") as visitor:
        for address in (f"tasks/export.csv?text={SECRET}", f"tasks?text={SECRET}", f"bulk/retry?text={SECRET}"):
            assert "keeps" not in await visitor.text(address)
            assert "bulk/retry?" not in await visitor.text(address)


async def test_title_stands_on_every_page(tmp_path: Path) -> None:
    """In the page, and in the tab; also for whoever is refused."""
    manager = manager_on(tmp_path)
    await work(manager)
    for level, title in (("act", "Shop & <mail>"), (None, "Shop & <mail>")):
        async with visit(manager, level, title=title) as visitor:
            async for address, answer in walk(visitor):
                if answer.headers.get("content-type", "").startswith("text/html") and answer.status_code != 307:
                    assert answer.text.count("Shop &amp; &lt;mail&gt;") >= 2, address


@pytest.mark.parametrize(
    "wrong", [{"title": 5}, {"title": None}, {"hide_arguments": "no"}, {"read_only": 1}, {"format_arguments": "json"}]
)
async def test_option_of_the_wrong_kind_is_refused_at_once(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """`read_only="no"` would mean yes."""
    with pytest.raises(ConfigurationError, match=f"dashboard: {next(iter(wrong))} must be"):
        dashboard(manager_on(tmp_path), auth=lambda _request: "act", **wrong)
