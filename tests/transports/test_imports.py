"""What a daemon without webhooks does not pay for."""

from __future__ import annotations

import subprocess
import sys


def test_the_http_client_is_imported_only_where_a_webhook_step_is() -> None:
    code = "import sys, tpfd.daemon; sys.exit('httpcore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
