"""Bulk completion from an editor, with a scripted engine: what is found, filled, shown, refused, applied."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from lsp_server.bulk.journal import Journal, default_path
from lsp_server.documents import PositionEncoding
from tests.support.bulk_editor import PLAIN_EDITOR, BulkEditor, bulk_editor
from tests.support.lsp_session import INLINE_CLIENT, until
from tests.support.scripted_backend import ScriptedBackend

INVALID_PARAMS, REQUEST_FAILED = -32602, -32803
STUB = 'def area(r):\n    """Of a circle."""\n    raise NotImplementedError\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    (folder / "a.py").write_text(f"{STUB}\n\nname = <FILL>\n")
    (folder / "b.py").write_text("other = <FILL>\n")
    return folder


def _many(root: Path, num_files: int = 4, num_holes: int = 5) -> None:
    for number in range(num_files):
        (root / f"m{number}.py").write_text("".join(f"x{number}_{i} = <FILL>\n" for i in range(num_holes)))


async def _filled(editor: BulkEditor, **arguments: Any) -> Any:
    """The review of a run from start to end."""
    await editor.command("start", **arguments)
    return await editor.command("review")


async def test_the_commands_are_advertised(root: Path) -> None:
    async with bulk_editor(root) as (editor, _):
        result = await editor.initialize()
        names = result["capabilities"]["executeCommandProvider"]["commands"]
        wanted = [f"midline.server.bulk.{name}" for name in ("select", "start", "cancel", "review", "apply")]
        assert [name for name in names if ".bulk." in name] == wanted


class TestSelect:
    async def test_holes_are_plain_data(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            found = await editor.command("select")
        assert (found["root"], found["num_files"], found["skipped"]) == (str(root), 2, [])
        assert found["num_by_kind"] == {"markers": 2, "stubs": 1}
        places = [(hole["file"], hole["kind"], hole["name"], hole["range"]["start"]) for hole in found["holes"]]
        assert places == [
            ("a.py", "stubs", "area", {"line": 2, "character": 4}),
            ("a.py", "markers", "<FILL>", {"line": 5, "character": 7}),
            ("b.py", "markers", "<FILL>", {"line": 0, "character": 8}),
        ]
        assert found["holes"][1]["range"]["end"] == {"line": 5, "character": 13}
        assert found["holes"][2]["uri"] == (root / "b.py").as_uri()

    @pytest.mark.parametrize("path", ["b.py", "uri", "absolute"])
    async def test_a_path_may_be_named_in_each_way(self, root: Path, path: str) -> None:
        named = {"uri": (root / "b.py").as_uri(), "absolute": str(root / "b.py")}.get(path, path)
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            found = await editor.command("select", paths=[named], kinds=["markers"])
        assert [hole["file"] for hole in found["holes"]] == ["b.py"]

    async def test_an_open_document_counts_as_it_is_shown(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            uri = editor.open(root / "b.py", "# nothing here\n")
            assert (await editor.command("select", paths=[uri]))["holes"] == []
            editor.type(uri, "é = '\U0001f600' or <FILL>\n")
            (hole,) = (await editor.command("select", paths=[uri]))["holes"]
        assert hole["range"]["start"] == {"line": 0, "character": 12}  # in UTF-16 units

    async def test_folders(self, root: Path, tmp_path: Path) -> None:
        second = tmp_path / "second"
        second.mkdir()
        (second / "c.py").write_text("z = <FILL>\n")
        async with bulk_editor(root, second) as (editor, _):
            await editor.initialize()
            assert await editor.error("select") == (
                INVALID_PARAMS,
                f"root must be one of the folders that are open: {root}, {second}",
            )
            for place in ({"root": str(second)}, {"root": second.as_uri()}, {"paths": [(second / "c.py").as_uri()]}):
                found = await editor.command("select", **place)
                assert [hole["file"] for hole in found["holes"]] == ["c.py"]
            assert (await editor.error("select", root=str(tmp_path)))[0] == INVALID_PARAMS

    async def test_a_folder_that_is_opened_by_a_link_is_called_by_it(self, root: Path, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(root)
        async with bulk_editor(link) as (editor, _):
            await editor.initialize()
            editor.open(link / "a.py", "mine = <FILL>\n")
            assert (await editor.command("select", root=str(root)))["root"] == str(link)
            review = await _filled(editor)
            uris = [(link / name).as_uri() for name in ("a.py", "b.py")]
            assert [fill["uri"] for fill in review["fills"]] == uris
            assert (await editor.command("apply", review=False))["conflicts"] == []
            assert [change["textDocument"]["uri"] for change in editor.edits[0]["documentChanges"]] == uris
            assert editor.texts[uris[0]][0] == f"mine = {review['fills'][0]['text']}\n"

    async def test_no_folder(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize(workspaceFolders=None)
            message = "no folder is open; open the one whose holes are to be filled"
            assert await editor.error("select") == (INVALID_PARAMS, message)

    async def test_the_root_of_an_old_client_is_a_folder(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize(workspaceFolders=None, rootUri=root.as_uri())
            assert len((await editor.command("select"))["holes"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pahts": []}, "unknown argument 'pahts'; known here: root, paths, kinds, include, exclude, languages, max_"),
        ({"paths": "b.py"}, "paths is 'b.py'; it must be a list of strings"),
        ({"kinds": [3]}, "kinds is [3]; it must be a list of strings"),
        ({"kinds": ["holes"]}, "unknown kind of holes 'holes'; known are "),
        ({"kinds": ["cursors"]}, "holes at cursors come from a file; run: midline bulk --cursors FILE"),
        ({"max_holes": -1}, "max_holes is -1; it must be a whole number from 0 on"),
        ({"max_holes": True}, "max_holes is True; it must be a whole number from 0 on"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be 1 or more"),
        ({"paths": ["untitled:Untitled-1"]}, "untitled:Untitled-1 is no file on this machine; save it first"),
        ({"paths": ["c.py"]}, "no such file or folder: "),
        ({"paths": [".."]}, ".. is outside the workspace "),
        ({"languages": ["klingon"]}, "unknown language"),
    ],
)
async def test_what_cannot_be_meant_is_one_line(root: Path, arguments: dict[str, Any], message: str) -> None:
    async with bulk_editor(root) as (editor, _):
        await editor.initialize()
        for command in ("select", "start"):
            code, text = await editor.error(command, **arguments)
            assert (code, message in text) == (INVALID_PARAMS, True), text


async def test_arguments_that_are_no_object(root: Path) -> None:
    async with bulk_editor(root) as (editor, _):
        await editor.initialize()
        for arguments in (["a.py"], [{}, {}], [None]):
            params = {"command": "midline.server.bulk.select", "arguments": arguments}
            error = (await editor.session.request("workspace/executeCommand", params))["error"]
            assert error == {"code": INVALID_PARAMS, "message": "the arguments must be one object at most"}


class TestRun:
    async def test_from_start_to_the_files(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            started = await editor.command("start")
            assert (started["run"], started["num_holes"]) == (1, 3)
            review = await editor.command("review", run=1)
            assert (review["state"], review["num_filled"], review["num_failed"]) == ("done", 3, 0)
            assert all(fill["text"] and fill["state"] == "filled" and not fill["reason"] for fill in review["fills"])
            applied = await editor.command("apply", review=False)
            assert applied == {"applied": True, "num_fills": 3, "num_files": 2, "reason": "", "conflicts": []}
            stub, name, other = (fill["text"] for fill in review["fills"])
            assert (root / "a.py").read_text() == STUB.replace(
                "raise NotImplementedError", stub
            ) + f"\n\nname = {name}\n"
            assert (root / "b.py").read_text() == f"other = {other}\n"

    async def test_progress_up_to_its_end(self, root: Path) -> None:
        _many(root)
        async with bulk_editor(root, mode="slow:30") as (editor, _):
            await editor.initialize()
            await _filled(editor)
            await until(lambda: editor.progress() and editor.progress()[-1]["kind"] == "end")
        first, *reports, last = editor.progress()
        assert first == {"kind": "begin", "title": "Midline: filling holes", "cancellable": True, "percentage": 0}
        percentages = [report["percentage"] for report in reports]
        assert percentages == sorted(percentages)
        assert len({*percentages}) > 3
        assert any(report["message"].endswith(" of 23 holes") for report in reports)
        assert last["message"] == "23 of 23 holes filled"

    async def test_the_button_cancels_and_what_is_filled_is_kept(self, root: Path) -> None:
        _many(root)
        async with bulk_editor(root, mode="slow:100") as (editor, _):
            await editor.initialize()
            await editor.command("start")
            await until(lambda: editor.progress()[-1:] and editor.progress()[-1]["percentage"] > 0)
            await editor.cancel_progress()
            review = await editor.command("review")
            assert review["state"] == "cancelled"
            assert 0 < review["num_filled"] == len(review["fills"]) < 23
            applied = await editor.command("apply", review=False)
            assert (applied["applied"], applied["num_fills"]) == (True, review["num_filled"])
            with Journal.open(default_path(root)) as journal:
                assert len(journal) >= review["num_filled"]

    async def test_the_status_tells_of_a_run_until_its_fills_are_applied(self, root: Path) -> None:
        _many(root)
        async with bulk_editor(root, mode="slow:100") as (editor, _):
            await editor.initialize()

            async def line() -> str:
                params = {"command": "midline.server.showStatus"}
                status = await editor.session.result("workspace/executeCommand", params)
                assert isinstance(status["bulk"], str)
                return str(status["bulk"])

            assert await line() == ""
            await editor.command("start")
            deadline_s = time.monotonic() + 30
            while re.fullmatch(r"bulk: [1-9]\d* of 23 holes(, \d+ failed)?", said := await line()) is None:
                assert re.fullmatch(r"bulk: (loading \S*tiny.gguf|0 of 23 holes)", said)
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.01)
            filled = (await editor.command("cancel"))["num_filled"]
            waiting = f"bulk: {filled} of 23 holes filled; not applied yet"
            assert await line() == waiting
            editor.accepts = False
            await editor.command("apply")
            assert await line() == waiting
            editor.accepts = True
            await editor.command("apply")
            assert await line() == ""

    async def test_the_status_says_nothing_of_a_run_without_fills(self, root: Path) -> None:
        async with bulk_editor(root, mode="length") as (editor, _):
            await editor.initialize()
            assert (await _filled(editor))["num_failed"] == 3
            status = await editor.session.result("workspace/executeCommand", {"command": "midline.server.showStatus"})
            assert status["bulk"] == ""

    async def test_cancel_is_a_command_too(self, root: Path) -> None:
        async with bulk_editor(root, mode="silent") as (editor, _):
            await editor.initialize()
            assert await editor.error("cancel") == (REQUEST_FAILED, "no bulk run is going on")
            await editor.command("start")
            assert (await editor.command("cancel"))["state"] == "cancelled"
            assert await editor.error("cancel") == (REQUEST_FAILED, "no bulk run is going on")

    async def test_there_is_one_run_at_a_time_and_the_last_is_kept(self, root: Path) -> None:
        async with bulk_editor(root, mode="silent") as (editor, _):
            await editor.initialize()
            assert await editor.error("review") == (REQUEST_FAILED, "there was no bulk run yet; start one first")
            await editor.command("start")
            busy = "a bulk run is going on; wait for its end or cancel it first"
            assert await editor.error("start") == (REQUEST_FAILED, busy)
            assert (await editor.error("apply"))[0] == REQUEST_FAILED
            await editor.command("cancel")
            assert (await editor.command("start"))["run"] == 2
            await editor.command("cancel")
            message = "run is 1; only the last one is kept, 2"
            assert await editor.error("review", run=1) == (INVALID_PARAMS, message)

    async def test_the_command_line_s_run_is_not_disturbed(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            with Journal.open(default_path(root)):
                message = "another bulk run works on this workspace; wait for its end"
                assert await editor.error("start") == (REQUEST_FAILED, message)
            await editor.command("start")

    async def test_no_holes(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            message = "no docstrings in 1 file of ws"
            assert await editor.error("start", kinds=["docstrings"], paths=["b.py"]) == (INVALID_PARAMS, message)

    @pytest.mark.parametrize(
        ("mode", "message"),
        [
            ("cannot", "model tiny is damaged; run: midline models pull tiny"),
            ("exit:1", "the bulk engine ended with code 3 (MemoryError: no room for 8 tensors); run the same command "),
        ],
    )
    async def test_an_engine_that_cannot_is_one_line(self, root: Path, mode: str, message: str) -> None:
        async with bulk_editor(root, mode=mode) as (editor, _):
            await editor.initialize()
            await editor.command("start")
            code, text = await editor.error("review")
            assert (code, text.startswith(message)) == (REQUEST_FAILED, True), text
            await until(lambda: editor.progress()[-1]["kind"] == "end")
            assert editor.progress()[-1]["message"] == text

    async def test_an_engine_that_is_not_installed(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            await editor.command("start")
            message = "the engine is not installed; in Midline's folder run: pip install '.[local]'"
            assert await editor.error("review") == (REQUEST_FAILED, message)

    async def test_a_model_that_is_not_there(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            settings = {"midline": {"engine": {"model": "qwen2.5-coder-0.5b"}}}
            editor.session.notify("workspace/didChangeConfiguration", {"settings": settings})
            code, text = await editor.error("start")
            assert (code, "midline models pull qwen2.5-coder-0.5b" in text) == (REQUEST_FAILED, True)

    async def test_off_means_nothing_is_started(self, root: Path) -> None:
        async with bulk_editor(root, enabled=False) as (editor, _):
            await editor.initialize()
            message = "Midline is switched off in the settings; switch it on first"
            assert await editor.error("start") == (REQUEST_FAILED, message)

    async def test_an_editor_that_shows_no_progress_is_filled_for_all_the_same(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize(initializationOptions=None)
            editor.shows_progress = False
            assert (await _filled(editor))["num_filled"] == 3
            await editor.session.wait_for_notification("window/showMessage")
            assert editor.progress() == []

    async def test_an_editor_without_a_client_of_ours_is_told_in_a_message(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize(PLAIN_EDITOR, initializationOptions=None)
            await editor.command("start")
            shown = await editor.session.wait_for_notification("window/showMessage")
            what_next = "midline.server.bulk.apply puts them into the files"
            assert shown == {"type": 3, "message": f"Midline: 3 of 3 holes filled; {what_next}"}

    async def test_the_server_answers_while_it_runs(self, root: Path) -> None:
        _many(root, num_files=60, num_holes=20)
        backend = ScriptedBackend(("1",))
        async with bulk_editor(root, backend=backend) as (editor, _):
            await editor.initialize()
            uri = editor.open(root / "b.py")
            started = editor.start_command("start")
            waits_s = []
            while not (started.done() and editor.progress() and editor.progress()[-1]["kind"] == "end"):
                asked_s = time.monotonic()
                reply = await asyncio.wait_for(editor.session.inline(0, 8, uri), 10)
                waits_s.append(time.monotonic() - asked_s)
                assert len(reply["result"]["items"]) == 1
                await asyncio.sleep(0.01)
            assert len(waits_s) > 20
            assert sorted(waits_s)[len(waits_s) // 2] < 0.5

    async def test_shutting_down_ends_the_engine(self, root: Path) -> None:
        async with bulk_editor(root, mode="silent") as (editor, running):
            await editor.initialize()
            await editor.command("start")
            waiting = editor.start_command("review")
            await editor.session.shut_down()
            assert (await asyncio.wait_for(waiting, 10))["result"]["state"] == "cancelled"
            assert await asyncio.wait_for(running.ended, 10) == 0


class TestApply:
    async def test_an_open_document_is_changed_at_its_version(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            text = "é = '\U0001f600' or <FILL>\r\nlast = <FILL>\r\n"
            uri = editor.open(root / "b.py", text, version=7)
            review = await _filled(editor, paths=[uri])
            assert (await editor.command("apply"))["applied"] is True
            first, last = (fill["text"] for fill in review["fills"])
            assert editor.texts[uri] == (f"é = '\U0001f600' or {first}\r\nlast = {last}\r\n", 8)
            assert (root / "b.py").read_text() == "other = <FILL>\n"

    @pytest.mark.parametrize("eol", ["\n", "\r\n"])
    async def test_lines_end_as_in_the_document(self, root: Path, eol: str) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            uri = editor.open(root / "b.py", eol.join(["def area(r):", "    return r * r", ""]))
            review = await _filled(editor, paths=[uri], kinds=["docstrings"])
            await editor.command("apply")
            text = review["fills"][0]["text"].strip()
            assert editor.texts[uri][0] == eol.join(["def area(r):", f"    {text}", "    return r * r", ""])

    async def test_the_edit_asks_for_confirmation(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            await _filled(editor)
            editor.accepts = False
            applied = await editor.command("apply")
            assert (applied["applied"], applied["num_fills"]) == (False, 3)
            (edit,) = editor.edits
            assert {name: note["needsConfirmation"] for name, note in edit["changeAnnotations"].items()} == {
                "markers": True,
                "stubs": True,
            }
            used = [change["annotationId"] for document in edit["documentChanges"] for change in document["edits"]]
            assert used == ["stubs", "markers", "markers"]
            assert "<FILL>" in (root / "b.py").read_text()

    async def test_without_review_nothing_asks(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            await _filled(editor)
            await editor.command("apply", review=False)
            (edit,) = editor.edits
            assert "changeAnnotations" not in edit
            assert not any("annotationId" in change for change in edit["documentChanges"][0]["edits"])

    async def test_an_editor_that_knows_no_versions_gets_plain_changes(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize(PLAIN_EDITOR)
            review = await _filled(editor)
            assert (await editor.command("apply"))["applied"] is True
            assert {*editor.edits[0]} == {"changes"}
            assert (root / "b.py").read_text() == f"other = {review['fills'][2]['text']}\n"

    async def test_an_editor_that_lets_nobody_edit(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize(INLINE_CLIENT)
            await _filled(editor)
            message = "this editor lets no server change documents; run: midline bulk --apply"
            assert await editor.error("apply") == (REQUEST_FAILED, message)

    async def test_what_has_changed_is_a_conflict_and_the_rest_is_applied(self, root: Path) -> None:
        (root / "c.py").write_text("third = <FILL>\n")
        (root / "d.py").write_text("fourth = <FILL>\n")
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            typed = editor.open(root / "a.py")
            review = await _filled(editor)
            editor.type(typed, "# new\n")
            (root / "b.py").write_text("other = 3  # <FILL>\n")
            (root / "c.py").unlink()
            applied = await editor.command("apply")
            changed = "has changed since its holes were selected; fill it again"
            assert applied["conflicts"][:2] == [f"a.py {changed}", f"b.py {changed}"]
            assert applied["conflicts"][2].startswith("c.py cannot be read")
            assert (applied["applied"], applied["num_fills"], applied["num_files"]) == (True, 1, 1)
            assert (root / "d.py").read_text() == f"fourth = {review['fills'][-1]['text']}\n"
            assert editor.texts[typed][0].startswith("# new\ndef area")
            assert (root / "b.py").read_text() == "other = 3  # <FILL>\n"

    async def test_nothing_is_left_to_apply_a_second_time(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            await _filled(editor)
            await editor.command("apply")
            again = await editor.command("apply")
            assert (again["applied"], len(again["conflicts"]), len(editor.edits)) == (False, 2, 1)

    async def test_what_was_not_saved_and_closed_is_a_conflict(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            uri = editor.open(root / "b.py", "mine = <FILL>\n")
            await _filled(editor, paths=[uri])
            editor.session.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
            assert len((await editor.command("apply"))["conflicts"]) == 1

    async def test_a_change_that_was_undone_is_none(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            uri = editor.open(root / "b.py")
            await _filled(editor, paths=[uri])
            editor.type(uri, "x")
            editor.session.change("other = <FILL>\n", 3, uri)
            editor.texts[uri] = ("other = <FILL>\n", 3)
            applied = await editor.command("apply")
            assert (applied["applied"], applied["conflicts"]) == (True, [])

    async def test_a_file_that_was_opened_and_closed_unchanged_is_none(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            uri = editor.open(root / "b.py")
            await _filled(editor, paths=[uri])
            editor.session.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
            del editor.texts[uri]
            assert (await editor.command("apply"))["conflicts"] == []
            assert "<FILL>" not in (root / "b.py").read_text()

    async def test_what_is_typed_while_the_user_reviews_makes_the_editor_refuse(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            uri = editor.open(root / "b.py")
            await _filled(editor, paths=[uri])
            editor.texts[uri] = ("newer", 2)  # and the server has not heard of it yet
            applied = await editor.command("apply")
            assert (applied["applied"], editor.texts[uri]) == (False, ("newer", 2))

    async def test_some_of_the_fills(self, root: Path) -> None:
        async with bulk_editor(root) as (editor, _):
            await editor.initialize()
            await _filled(editor)
            message = "holes names 3; the run has 3 fills, counted from 0"
            assert await editor.error("apply", holes=[0, 3]) == (INVALID_PARAMS, message)
            assert (await editor.command("apply", holes=[2]))["num_files"] == 1
            assert "<FILL>" in (root / "a.py").read_text()
            assert "<FILL>" not in (root / "b.py").read_text()

    async def test_failed_holes_are_told_and_not_applied(self, root: Path) -> None:
        async with bulk_editor(root, mode="refuse:0") as (editor, _):
            await editor.initialize()
            review = await _filled(editor)
            assert (review["num_filled"], review["num_failed"]) == (2, 1)
            (failed,) = (fill for fill in review["fills"] if fill["state"] == "failed")
            assert (failed["text"], failed["reason"]) == ("", "max_tokens is 9000; there is no room")
            assert (await editor.command("apply"))["num_fills"] == 2

    @pytest.mark.parametrize("is_open", [False, True])
    async def test_a_byte_order_mark_stays_where_it_is(self, root: Path, is_open: bool) -> None:
        (root / "b.py").write_bytes("\ufeffother = <FILL>\r\n".encode())
        async with bulk_editor(root) as (editor, running):
            await editor.initialize()
            assert running.server.session.documents.encoding is PositionEncoding.UTF16
            uri = editor.open(root / "b.py") if is_open else ""
            review = await _filled(editor, paths=["b.py"])
            await editor.command("apply")
            text = review["fills"][0]["text"]
            if is_open:
                assert editor.texts[uri][0] == f"\ufeffother = {text}\r\n"
            else:
                assert (root / "b.py").read_bytes() == f"other = {text}\r\n".encode()  # the editor keeps the mark
