"""User 2: Flask-SQLAlchemy and SQLModel; a light web image that declares only."""

from __future__ import annotations

from datetime import date
from typing import TypedDict, assert_type

import attrs
import flask_sqlalchemy.session
import sqlmodel
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Connection
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqla_jobs import (
    NO_TENANT,
    Declared,
    JobContext,
    Jobs,
    JobSession,
    JobSpec,
    Snooze,
    Worker,
    enqueue,
    enqueue_many,
)
from sqla_jobs.asyncio import AsyncJobContext


class Base(DeclarativeBase): ...


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    email_lower: Mapped[str | None]


# In the order of the MRO: JobSession first.
class FlaskJobSession(JobSession, flask_sqlalchemy.session.Session): ...


class ModelSession(JobSession, sqlmodel.Session): ...


app = Flask("shop")
db = SQLAlchemy(model_class=Base, session_options={"class_": FlaskJobSession})
jobs = Jobs(around=lambda ctx: app.app_context())  # every attempt in the app context


class Mail(TypedDict):
    user_id: int


@jobs.job(
    "mail.welcome",
    input=Mail,
    idempotency_key=lambda i: f"welcome:{i['user_id']}",
    tenant=NO_TENANT,
)
def welcome(ctx: JobContext, input: Mail) -> None: ...


@attrs.frozen
class Cleanup:
    day: date


@jobs.job(
    "cleanup", input=Cleanup, idempotency_key=lambda i: f"{i.day}", tenant=NO_TENANT
)
def cleanup(ctx: JobContext[ModelSession], input: Cleanup) -> None:
    # SQLModel's own Session method, typed.
    users = ctx.session.exec(sqlmodel.select(sqlmodel.func.count())).one()
    if ctx.tenant is None and users > 10_000:
        raise Snooze("1h")
    ctx.log.info("users: %s", users)


# Declared in the image that enqueues, handled in the image of the workers.
counts = Jobs(retain="1d")
jobs.include(counts)
count_users = counts.declare(
    "users.count",
    input=Cleanup,
    output=int,
    idempotency_key=lambda i: f"{i.day}",
    tenant=NO_TENANT,
    queue="slow",
    timeout="10m",
)
count_mails = counts.declare(
    "mails.count",
    input=Mail,
    output=int,
    idempotency_key=lambda i: f"{i['user_id']}",
    tenant=lambda i: i["user_id"],
)
assert_type(count_users, Declared[Cleanup, int])


@count_users.handler
def count_users_handler(ctx: JobContext[ModelSession], input: Cleanup) -> int:
    return ctx.session.exec(sqlmodel.select(sqlmodel.func.count())).one()


@count_mails.handler
async def count_mails_handler(ctx: AsyncJobContext, input: Mail) -> int:
    return await ctx.session.scalar(sqlmodel.select(sqlmodel.func.count())) or 0


assert_type(count_users_handler, JobSpec[Cleanup, int])
assert_type(count_mails_handler, JobSpec[Mail, int])


def view(user_id: int) -> None:
    db.session.add(User(id=user_id, email="a@b", email_lower=None))
    # A scoped_session, as Flask users have it.
    enqueue(db.session, welcome, Mail(user_id=user_id))
    enqueue(db.session, count_users, Cleanup(date(2030, 1, 1)), delay="1h", priority=9)
    db.session.commit()


def without_a_session(connection: Connection) -> None:
    enqueue_many(connection, welcome, [Mail(user_id=1), Mail(user_id=2)])


def work(factory: sessionmaker[ModelSession]) -> None:
    with Worker(jobs, session=factory, queues={"slow": 1}, grace="1m"):
        pass
