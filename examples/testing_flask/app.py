"""The application: somebody signs up and is welcomed by mail."""

import os
from typing import TypedDict

import flask_sqlalchemy.session
from flask import Flask, current_app, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_jobs import NO_TENANT, JobContext, Jobs, JobSession, Retry, enqueue


class Base(DeclarativeBase): ...


# In the order of the MRO: JobSession first.
class Session(JobSession, flask_sqlalchemy.session.Session): ...


class User(Base):
    __tablename__ = "example_user"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    welcomed: Mapped[bool] = mapped_column(default=False)


app = Flask("shop")
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ.get(
    "SHOP_DATABASE_URL", "postgresql+psycopg:///shop"
)
app.config["SENDER"] = "shop@example.org"
db = SQLAlchemy(app, model_class=Base, session_options={"class_": Session})
jobs = Jobs(around=lambda job: app.app_context())
outbox: list[tuple[str, str]] = []
"""Where a real application would talk to a mail server."""


class Welcome(TypedDict):
    user_id: int


@jobs.job(
    "mail.welcome",
    input=Welcome,
    idempotency_key=lambda i: f"welcome:{i['user_id']}",
    tenant=NO_TENANT,
    retry=Retry(attempts=2),
)
def welcome(ctx: JobContext, job: Welcome) -> None:
    user = ctx.session.get_one(User, job["user_id"])
    outbox.append((current_app.config["SENDER"], user.email))
    user.welcomed = True


@app.post("/users")
def sign_up() -> tuple[dict[str, int], int]:
    user = User(email=request.form["email"])
    db.session.add(user)
    db.session.flush()
    enqueue(db.session, welcome, Welcome(user_id=user.id))
    db.session.commit()
    return {"id": user.id}, 201
