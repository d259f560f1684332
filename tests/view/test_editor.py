"""The extension in the real workbench of VS Code, in a real browser.

``make test ARGS="-m browser tests/view"``; needs Chromium, and npm for the workbench.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from chromium import PROGRAM, Chromium
from editor import EXTENSION, Workbench, workbench_folder

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not PROGRAM, reason="no Chromium here (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def workbench(tmp_path_factory):
    folder = workbench_folder() or pytest.skip("the workbench cannot be installed here (npm)")
    with Workbench(folder, tmp_path_factory.mktemp("editor") / "dist") as opened:
        yield opened


def serve(run_folder, port):
    origins = f'embed_from=["http://localhost:{port}", "http://*.localhost:{port}"]'
    command = "from repairgym.cli.main import main; main()"
    arguments = [sys.executable, "-c", command, "view", str(run_folder.parent), "--port", "0", origins]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[0]


def choose_command(browser, name):
    """Choose a command of the palette, which knows those of an extension a moment after the workbench is there."""
    rows = "[...document.querySelectorAll('.quick-input-list .monaco-list-row')].map(row => row.textContent)"
    for _ in range(20):
        browser.press("F1")
        with suppress(AssertionError):
            browser.wait_for("document.querySelector('.quick-input-widget:not([style*=\"display: none\"]) input')", 30)
            browser.call("Input.insertText", text=name)
            time.sleep(1)
            if any(name in row for row in browser.evaluate(rows)):
                browser.press("Enter")
                return
        browser.press("Escape")
    raise AssertionError(f"the palette has no command {name!r}")


def test_the_panel_shows_the_runs(workbench, run_folder, tmp_path):
    process, address = serve(run_folder, workbench.port)
    try:
        with Chromium(tmp_path) as browser:
            browser.open(workbench.page(address))
            browser.wait_for("document.querySelector('.monaco-workbench .statusbar')", 600)
            choose_command(browser, "RepairGym: Show runs")
            title = browser.wait_for_frame(address, "document.querySelector('h1')?.textContent")
            assert title == "Runs"
            assert not browser.evaluate("document.querySelector('.notification-toast')")
    finally:
        process.send_signal(2)
        assert process.wait(30) == 0


def test_the_extension_starts_the_viewer(run_folder, tmp_path):
    """On a desktop the extension starts the viewer itself: with Node and the functions of the editor that it uses."""
    node = shutil.which("node") or pytest.skip("no node here")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from repairgym.cli.main import main; main()' \"$@\"\n")
    program.chmod(0o755)
    driver = tmp_path / "driver.js"
    driver.write_text(
        f"""
const Module = require("module");
let command;
const panel = {{ webview: {{}} }};
const vscode = {{
  workspace: {{
    getConfiguration: () => ({{ get: (name) => (name === "command" ? {str(program)!r} : "") }}),
    workspaceFolders: undefined,
  }},
  Uri: {{ parse: (text) => ({{ toString: () => text }}) }},
  env: {{ asExternalUri: async (uri) => uri }},
  ViewColumn: {{ Active: 1 }},
  window: {{ createWebviewPanel: () => panel, showErrorMessage: (text) => console.log("error: " + text) }},
  commands: {{ registerCommand: (name, run) => {{ command = run; return {{}}; }} }},
}};
const load = Module._load;
Module._load = (name, ...rest) => (name === "vscode" ? vscode : load(name, ...rest));
const extension = require({str(EXTENSION / "extension.js")!r});
extension.activate({{ subscriptions: [] }});
(async () => {{
  await command({{ fsPath: process.argv[2] }});
  if (!panel.webview.html) return;
  const address = panel.webview.html.match(/src="([^"]+)"/)[1];
  const answer = await fetch(address);
  console.log(answer.status, answer.headers.get("content-security-policy").match(/frame-ancestors [^;]+/)[0]);
  await extension.deactivate();
}})();
"""
    )

    def run(folder):
        done = subprocess.run([node, str(driver), str(folder)], capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.strip()

    assert run(run_folder.parent) == "200 frame-ancestors vscode-file://vscode-app vscode-webview://*"
    assert "is not a folder" in run(tmp_path / "nowhere")
