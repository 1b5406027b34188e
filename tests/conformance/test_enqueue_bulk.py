"""Many jobs in one call: no limit of parameters, no lost duplicate, no mixed result."""

from __future__ import annotations

import pytest
from sqlalchemy import event, func, select, text

from sqla_jobs.models import Job, JobBody
from tests.support.enqueuing import Work, keys, work

pytestmark = pytest.mark.conformance

MANY = 30_000


@pytest.mark.covers("C10")
@pytest.mark.timeout(240)
def test_thirty_thousand_jobs_in_one_call(Session, second_engine):
    """A tenth are duplicates inside the call, a tenth of what is committed."""
    tenth = MANY // 10
    with Session.begin() as session:
        old = session.enqueue_many(work, [Work(f"old:{n}") for n in range(tenth)])
    inputs = [
        Work(f"old:{n // 10}", n)
        if n % 10 == 0
        else Work(f"new:{n - 1 if n % 10 == 5 else n}", n)
        for n in range(MANY)
    ]
    with Session() as session:
        handles = session.enqueue_many(work, inputs)
        session.commit()
    assert [h.key for h in handles] == [i.key for i in inputs]
    committed = {h.key: h.id for h in old}
    first = {}
    for n, (handle, input_) in enumerate(zip(handles, inputs, strict=True)):
        if n % 10 == 0:
            expected = ("kept", committed[input_.key])
        elif n % 10 == 5:
            expected = ("kept", first[input_.key].id)
        else:
            first[input_.key] = handle
            expected = ("created", handle.id)
        assert (handle.outcome, handle.id) == expected
    with second_engine.connect() as connection:
        rows = connection.execute(
            select(Job.id, Job.key, JobBody.input).join(
                JobBody, JobBody.job_id == Job.id
            )
        ).all()
    assert len(rows) == tenth + MANY * 8 // 10
    by_key = {i.key: i.n for i in reversed(inputs)}
    for job_id, key, input_ in rows:
        if key.startswith("new:"):
            assert (job_id, input_["n"]) == (first[key].id, by_key[key])


@pytest.mark.covers("C10")
def test_a_rolled_back_call_of_thousands_leaves_nothing(Session, second_engine):
    with Session() as session:
        handles = session.enqueue_many(work, [Work(f"{n}") for n in range(6_000)])
        session.write_jobs()
        assert {h.outcome for h in handles} == {"created"}
        session.rollback()
    assert keys(second_engine) == []


def test_many_enqueues_of_one_transaction_are_one_insert(Session, engine):
    statements = []

    def note(connection, cursor, statement, parameters, context, executemany):
        if "insert into sqla_job (" in statement:
            statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    with Session.begin() as session:
        for n in range(20):
            session.enqueue(work, Work(f"{n}"))
    assert len(statements) == 1


def test_large_inputs_are_written_in_bounded_statements(Session, second_engine):
    statements = []

    def note(connection, cursor, statement, parameters, context, executemany):
        if "insert into sqla_job (" in statement:
            statements.append(len(str(parameters)))

    big = "x" * 200
    with Session() as session:
        event.listen(session.get_bind(), "before_cursor_execute", note)
        session.enqueue_many(work, [Work(f"{n:05}{big[:150]}") for n in range(11_000)])
        session.commit()
    assert len(statements) == 3
    with second_engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Job)) == 11_000


@pytest.mark.covers("T25")
@pytest.mark.needs("server")
def test_t25_duplicates_leave_nothing_in_tables_and_indexes(Session, second_engine):
    """Ids are made by the client, so no sequence is used up either."""
    inputs = [Work(f"k:{n}") for n in range(500)]

    def sizes() -> dict[str, int]:
        query = text(
            "select relname, pg_relation_size(oid) from pg_class"
            " where relname like 'sqla\\_job%'"
        )
        with second_engine.connect() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    with Session.begin() as session:
        session.enqueue_many(work, inputs)
    before = sizes()
    for _ in range(40):
        with Session.begin() as session:
            handles = session.enqueue_many(work, inputs)
        assert {h.outcome for h in handles} == {"kept"}

    assert sizes() == before
    with second_engine.connect() as connection:
        query = text(
            "select count(*) from pg_sequences where sequencename like 'sqla%'"
        )
        assert connection.scalar(query) == 0
