"""The templates, the revision and the check, in a project as `alembic init` makes it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import pytest
from sqlalchemy import create_engine, inspect, text

from sqla_jobs.cli.templates import templates_folder
from sqla_jobs.models import SCHEMA_VERSION, metadata
from tests.support.tree import ROOT

MODELS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

class Base(DeclarativeBase): ...

class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
"""


class Project:
    """A folder with models and migrations, and its commands."""

    def __init__(self, folder, url, async_url):
        self.folder, self.url, self.async_url = folder, url, async_url
        (folder / "models.py").write_text(MODELS)
        (folder / "pyproject.toml").write_text("")

    def start(self, *command, **streams):
        env = os.environ | {
            "SQLA_JOBS_DATABASE_URL": self.url,
            "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",
            "PYTHONWARNINGS": "error",
        }
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=streams.get("stderr", subprocess.STDOUT),
            text=True,
        )

    def call(self, *command, code=0, **streams):
        process = self.start(*command, **streams)
        out, err = process.communicate()
        assert process.returncode == code, f"{out}{err or ''}"
        return out

    def alembic(self, *arguments, code=0):
        return self.call("alembic", *arguments, code=code)

    def jobs(self, *arguments, code=0):
        return self.call("sqla_jobs", *arguments, code=code)

    def init(self, kind, metadata="Base.metadata"):
        self.alembic("init", "-t", str(templates_folder() / kind), "migrations")
        url = self.async_url if kind == "async" else self.url
        self._edit("alembic.ini", "driver://user:pass@localhost/dbname", url)
        self._edit(
            "migrations/env.py",
            "target_metadata = None",
            f"import sqla_jobs\nfrom models import Base\ntarget_metadata = {metadata}",
        )

    def _edit(self, name, old, new):
        path = self.folder / name
        source = path.read_text()
        assert source.count(old) == 1
        path.write_text(source.replace(old, new.replace("%", "%%")))


@pytest.fixture
def project(tmp_path, empty_url, async_url):
    url = empty_url.render_as_string(hide_password=False)
    driver = async_url.drivername
    return Project(
        tmp_path, url, empty_url.set(drivername=driver).render_as_string(False)
    )


@pytest.mark.each_kind
@pytest.mark.covers("C91")
@pytest.mark.parametrize("kind", ["generic", "async"])
def test_c91_autogenerate_leaves_our_tables_alone(project, kind):
    """From an empty folder to a checked database, by the commands of the docs."""
    project.init(kind)
    project.alembic("revision", "--autogenerate", "-m", "users")
    written = project.jobs("db", "revision")
    assert f"sqla_jobs_tables_{SCHEMA_VERSION}.py" in written
    assert "nothing to do" in project.jobs("db", "revision")
    project.alembic("upgrade", "head")
    assert "No new upgrade operations" in project.alembic("check")
    assert f"version {SCHEMA_VERSION}" in project.jobs("db", "check")
    project.alembic("downgrade", "base")
    engine = create_engine(project.url)
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    engine.dispose()


@pytest.mark.each_kind
@pytest.mark.covers("C91")
def test_c91_nothing_is_generated_where_our_metadata_is_included(project):
    project.init("generic", metadata="[Base.metadata, sqla_jobs.metadata]")
    env = project.folder / "migrations" / "env.py"
    source = env.read_text()
    env.write_text(source.replace('    "include_name": include_name,\n', ""))
    project.jobs("db", "revision")
    project.alembic("upgrade", "head")
    project.alembic("revision", "--autogenerate", "-m", "users")
    project.alembic("upgrade", "head")
    assert "No new upgrade operations" in project.alembic("check")


@pytest.mark.each_kind
def test_sql_that_is_only_printed_makes_the_tables(project):
    project.init("generic")
    project.jobs("db", "revision")
    upgrade = ("alembic", "upgrade", "head", "--sql")
    sql = project.call(*upgrade, stderr=subprocess.PIPE)
    engine = create_engine(project.url)
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.connection.dbapi_connection.executescript(sql)
        else:
            # It brings its own BEGIN and COMMIT.
            alone = sql.replace("BEGIN;", "").replace("COMMIT;", "")
            connection.exec_driver_sql(alone)
    assert "version" in project.jobs("db", "check")
    engine.dispose()


@pytest.mark.each_kind
def test_the_check_names_what_differs(project):
    engine = create_engine(project.url)
    metadata.create_all(engine)
    assert "as version" in project.jobs("db", "check")
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX sqla_job_dead"))
        connection.execute(text("DROP INDEX sqla_job_owned"))
        connection.execute(text("CREATE INDEX sqla_job_owned ON sqla_job (worker_id)"))
        if engine.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE sqla_worker RESET (fillfactor)"))
    said = project.jobs("db", "check", code=1)
    assert "index sqla_job_dead is missing" in said
    assert "index sqla_job_owned is not limited to: state = 'running'" in said
    storage = "table sqla_worker has other storage parameters"
    assert (storage in said) == (engine.dialect.name == "postgresql")
    engine.dispose()


def test_two_upgrades_at_once_wait_for_each_other(project):
    project.init("generic")
    project.jobs("db", "revision")
    every = [project.start("alembic", "upgrade", "head") for _ in range(3)]
    said = [each.communicate()[0] for each in every]
    assert [each.returncode for each in every] == [0, 0, 0], said
    assert sum("Running upgrade" in each for each in said) == 1
    assert "as version" in project.jobs("db", "check")


def test_the_wheel_holds_the_templates(tmp_path):
    script = "from hatchling.build import build_wheel; build_wheel({!r})"
    subprocess.run(
        [sys.executable, "-c", script.format(str(tmp_path))],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for kind in ("generic", "async"):
        for name in ("env.py", "script.py.mako", "alembic.ini.mako", "README"):
            assert f"sqla_jobs/alembic_templates/{kind}/{name}" in names
