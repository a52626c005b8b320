"""Resume on a page, of a run that names a file of code."""

import pytest
from streamlit.testing.v1 import AppTest

from app.acting import buttons, launches
from labkit.config.recorded import recorded_config
from labkit.errors import InputError
from labkit.parts.trust import files_of, is_accepted
from tests.parts.test_trust import FILE, foreign


def test_the_page_shows_the_code_before_its_button_works(tmp_path, monkeypatch):
    code = tmp_path / "mine.py"
    code.write_text(FILE)
    run = foreign(tmp_path, callbacks=str(code))
    started = []
    monkeypatch.setattr(launches, "_launched", lambda arguments, run, **_: started.append(arguments))
    with pytest.raises(InputError, match="--trust"):
        launches.resume(run)
    assert not started

    def page(path):
        from app.acting import buttons
        from labkit.run_directory import RunDirectory

        run = RunDirectory(path)
        buttons.draw(run, None, "interrupted")

    shown = AppTest.from_function(page, args=(run.path,)).run(timeout=30)
    assert not shown.exception
    assert any(FILE.strip() in one.value.strip() for one in shown.code)
    [button] = [one for one in shown.button if one.label == "I trust it: resume"]
    button.click().run(timeout=30)
    assert started == [["resume", str(run.path)]]
    assert is_accepted(recorded_config(run), files_of(recorded_config(run)))
    assert buttons.failure_of(run) == ""
