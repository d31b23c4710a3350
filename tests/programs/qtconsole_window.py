"""Runs qtconsole's widget without a screen: reads commands from stdin, writes its text to stdout.

A command is a line of JSON: `["run", code]`, `["answer", text]`, `["interrupt"]`, `["end"]`. The
whole text of the window is written, between two marks, each time it has changed.
"""

# Run by the Python of qtconsole's environment: its modules are not in the tests' own.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import sys
import threading
from typing import Any

from qtconsole.manager import QtKernelManager
from qtconsole.rich_jupyter_widget import RichJupyterWidget
from qtpy import QtCore
from qtpy.QtTest import QTest
from qtpy.QtWidgets import QApplication

BEGIN, END = "<<<<", ">>>>"
app = QApplication(sys.argv)
manager = QtKernelManager(kernel_name="python3")
manager.start_kernel()
client = manager.client()
client.start_channels()
window: Any = RichJupyterWidget()
window.kernel_manager, window.kernel_client = manager, client
window.show()
commands: list[list[str]] = []
written = ""


def read_commands() -> None:
    """Read stdin in a thread of its own."""
    for line in sys.stdin:
        commands.append(json.loads(line))
    commands.append(["end"])


def step() -> None:
    """Carry out one command, and write the text of the window if it has changed."""
    global written
    text = window._control.toPlainText()
    if text != written:
        written = text
        print(f"{BEGIN}{text}{END}", flush=True)
    if not commands:
        return
    name, *rest = commands.pop(0)
    if name == "run":
        window.execute(rest[0])
    elif name == "answer":
        QTest.keyClicks(window._control, rest[0])
        QTest.keyClick(window._control, QtCore.Qt.Key.Key_Return)
    elif name == "interrupt":
        manager.interrupt_kernel()
    else:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        app.quit()


threading.Thread(target=read_commands, daemon=True).start()
timer = QtCore.QTimer()
timer.timeout.connect(step)
timer.start(20)
app.exec()
