"""Whatever the keys, the sizes and the trouble: changed is what was chosen, once each."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    BigInteger,
    Date,
    DateTime,
    Numeric,
    String,
    Uuid,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_jobs import Jobs, backfills, clock
from sqla_jobs.exc import BackfillFailedError, BackfillLostError
from sqla_jobs.models import Backfill, BackfillEvent

pytestmark = pytest.mark.each_kind


class Base(DeclarativeBase):
    pass


def keyed(name, *types):
    """Make a mapped class whose primary key has these column types."""
    keys = {
        f"k{n}": mapped_column(kind, primary_key=True) for n, kind in enumerate(types)
    }
    body = {
        "__tablename__": name,
        "__annotations__": {
            "chosen": Mapped[bool],
            "changes": Mapped[int],
            "done": Mapped[bool],
        },
        **keys,
    }
    return type(name, (Base,), body)


words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
moments = st.datetimes(datetime.fromisoformat("1970-01-01"))
KINDS = {
    "int": (keyed("k_int", BigInteger), [st.integers(-(2**62), 2**62)]),
    "text": (keyed("k_text", String), [words]),
    "uuid": (keyed("k_uuid", Uuid), [st.uuids()]),
    "date": (keyed("k_date", Date), [st.dates(date(1, 1, 1))]),
    "moment": (
        keyed("k_moment", DateTime),
        [moments],
    ),
    "decimal": (
        keyed("k_decimal", Numeric(9, 3)),
        [st.integers(-99_999, 99_999).map(lambda n: Decimal(n) / 8)],
    ),
    "composite": (keyed("k_composite", String, BigInteger), [words, st.integers(0, 9)]),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_is_what_was_chosen_once_each(kind, Session, engine, data):
    entity, parts = KINDS[kind]
    Base.metadata.create_all(engine, tables=[entity.__table__])
    keys = data.draw(st.lists(st.tuples(*parts), unique=True, max_size=30), "keys")
    chosen = data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys)))
    size = data.draw(st.integers(1, 12), "batch size")
    trouble = data.draw(
        st.lists(st.sampled_from(["fail", "lose", "pause", None]), max_size=12),
        "trouble",
    )
    with Session.begin() as session:
        for table in (entity, Backfill, BackfillEvent):
            session.execute(delete(table))
        for key, wanted in zip(keys, chosen, strict=True):
            named = {f"k{n}": value for n, value in enumerate(key)}
            session.execute(
                insert(entity).values(chosen=wanted, changes=0, done=False, **named)
            )

    def change(session, rows):
        for row in rows:
            row.changes += 1
            row.done = True
        session.flush()
        match trouble.pop(0) if trouble else None:
            case "fail":
                raise RuntimeError("as drawn")
            case "pause":
                backfills.pause_backfill(session, "x")
            case "lose":
                # Another run takes over while this batch is in hand.
                taken = update(Backfill).values(
                    fence=Backfill.fence + 1, holder=uuid4()
                )
                session.execute(taken)

    rows = select(entity).where(entity.chosen, ~entity.done)
    spec = Jobs().backfill("x", after="b", rows=rows, batch_size=size)(change)
    for _ in range(20):
        try:
            result = backfills.run_backfill(Session, spec, by="me")
        except BackfillFailedError:
            continue
        except BackfillLostError:
            with Session.begin() as session:
                past = clock.shifted(timedelta(seconds=-1))
                session.execute(update(Backfill).values(lease_until=past))
            continue
        if result.status == "done":
            break

    with Session() as session:
        assert session.get_one(Backfill, "x").status == "done"
        assert session.get_one(Backfill, "x").rows_done == sum(chosen)
        found = session.scalars(select(entity)).all()
        assert [row.changes for row in found if row.chosen] == [1] * sum(chosen)
        assert all(row.changes == 0 for row in found if not row.chosen)


@pytest.mark.parametrize(
    "key",
    [
        (1,),
        ("a", -5),
        (UUID(int=7),),
        (date(2026, 1, 31),),
        (datetime.fromisoformat("2026-01-31T05:06:07.000008"),),
        (datetime(2026, 1, 31, tzinfo=UTC),),
        (Decimal("1.50"), "ü"),
    ],
)
def test_a_stored_key_is_the_same_again(key):
    from sqla_jobs.backfills.keys import dump_key, load_key

    assert load_key(dump_key(key)) == key
    assert [type(part) for part in load_key(dump_key(key))] == [type(p) for p in key]


def test_a_key_of_another_type_is_refused():
    from sqla_jobs.backfills.keys import dump_key

    with pytest.raises(TypeError, match="bytes"):
        dump_key((b"x",))
