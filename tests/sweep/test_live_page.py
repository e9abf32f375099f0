"""The report that follows a sweep: on this machine alone."""

import threading
import urllib.error
import urllib.request

import pytest

from anydevice.errors import UsageError
from anydevice.sweep.grid import Run, grid
from anydevice.sweep.page.live import live_server, stamp
from anydevice.sweep.page.page import report
from tests.sweep.synthetic import make_record, make_sweep


def asked(server, path, host=None):
    address = f"http://127.0.0.1:{server.server_address[1]}{path}"
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


@pytest.fixture
def server(tmp_path):
    make_sweep(tmp_path, grid(lr=[0.1, 0.01], seed=[0, 1]), epochs=2)
    with live_server(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_page_is_made_anew_and_its_stamp_says_so(server, tmp_path):
    from anydevice.sweep.records.records import write

    assert "/report" in asked(server, "/")
    before, page = asked(server, "/stamp"), asked(server, "/report")
    assert before == asked(server, "/stamp") == stamp(tmp_path)
    run = Run({"lr": 0.5, "seed": 0})
    write(tmp_path, make_record(run.parameters, 2))
    assert asked(server, "/stamp") != before
    assert run.key in asked(server, "/report")
    assert run.key not in page


def test_other_machines_and_other_sites_get_nothing(server):
    assert server.server_address[0] == "127.0.0.1"
    for path, host, code in [
        ("/report", "evil.example", 403),
        ("/runs/x/record.json", None, 404),
        ("/../../etc/passwd", None, 404),
    ]:
        with pytest.raises(urllib.error.HTTPError) as caught:
            asked(server, path, host)
        assert caught.value.code == code


def test_what_is_no_sweep_or_no_port_is_refused(server, tmp_path):
    with pytest.raises(UsageError, match="the folder of a sweep"):
        live_server(tmp_path / "absent")
    with pytest.raises(UsageError, match="a port that is free"):
        live_server(tmp_path, server.server_address[1])


def test_a_notebook_shows_the_page_itself(tmp_path):
    make_sweep(tmp_path, grid(lr=[0.1, 0.01]), epochs=2)
    path = report(tmp_path)
    shown = path._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "<script" not in shown
    assert str(path) == str(tmp_path / "report.html")


def test_every_script_of_the_page_is_in_it():
    from importlib.resources import files

    from anydevice.sweep.page.page import SCRIPTS

    folder = files("anydevice.sweep.page")
    assert {each.name for each in folder.iterdir() if each.name.endswith(".js")} == set(SCRIPTS)
