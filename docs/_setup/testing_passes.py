"""How-to "Test your jobs": the suite that the page has written passes."""

from pathlib import Path

from tests.support.plugin import run_suite

suite = run_suite("-q", "test_orders.py", "test_mails.py", cwd=Path.cwd(), env={})
assert "7 passed" in suite.stdout, suite.stdout + suite.stderr
