"""Tutorial 4: `alembic upgrade 5f1c`, and a shop that has customers."""

from alembic import command
from alembic.config import Config
from shop.db import Session
from sqlalchemy import text

command.upgrade(Config("alembic.ini"), "5f1c")
with Session.begin() as session:
    for number in range(2500):
        session.execute(
            text("INSERT INTO customer (id, email) VALUES (:id, :email)"),
            {"id": number, "email": f"Somebody.{number}@Example.org"},
        )
