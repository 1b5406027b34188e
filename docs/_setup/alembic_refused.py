"""Tutorial 4: `alembic upgrade head` stops at the gate."""

from alembic import command
from alembic.config import Config
from alembic.util import CommandError

try:
    command.upgrade(Config("alembic.ini"), "head")
except CommandError as error:
    assert "`sqla-jobs backfill run email_lower`" in str(error), error  # noqa: PT017 - no test
else:
    raise AssertionError("the gate was open")
