"""Keys and tenants: checked where they are computed, the same in every process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import uuid
from enum import IntEnum, StrEnum

import pytest

from sqla_jobs.declare.key import MAX_KEY_BYTES, key_text
from sqla_jobs.declare.tenant import NO_TENANT, tenant_text
from sqla_jobs.exc import (
    IdempotencyKeyRequiredError,
    PayloadError,
    TenantRequiredError,
)


class Plan(StrEnum):
    FREE = "free"

    def __str__(self) -> str:
        return "Plan.FREE"


class Org(IntEnum):
    ACME = 7


@pytest.mark.covers("C16")
def test_c16_a_key_is_kept_as_it_is_written():
    """Nothing is normalised: distinct texts are distinct keys."""
    keys = ["é", "e\N{COMBINING ACUTE ACCENT}", "1", "1.0", "True", " 1", "x" * 200]
    assert [key_text(key, job="j") for key in keys] == keys
    assert key_text(Plan.FREE, job="j") == "free"
    assert type(key_text(Plan.FREE, job="j")) is str


@pytest.mark.covers("C16")
@pytest.mark.parametrize(
    "key", [None, "", 1, 1.0, True, b"k", ["k"], {"a": 1}], ids=repr
)
def test_c16_what_is_no_text_is_no_key(key):
    with pytest.raises(IdempotencyKeyRequiredError) as refused:
        key_text(key, job="mail.welcome")
    assert refused.value.job == "mail.welcome"


def test_a_long_key_is_stored_as_its_beginning_and_a_digest():
    long = "order:" + "ä" * 300
    stored = key_text(long, job="j")
    assert len(stored.encode()) <= MAX_KEY_BYTES
    digest = hashlib.sha256(long.encode()).hexdigest()
    assert stored == "order:" + "ä" * 57 + "~sha256:" + digest
    assert key_text(long + "x", job="j") != stored
    assert key_text("x" * 201, job="j") != key_text("x" * 202, job="j")


def test_a_short_key_cannot_pose_as_the_digest_of_a_long_one():
    stored = key_text("x" * 1000, job="j")
    assert key_text(stored, job="j") != stored


@pytest.mark.covers("C18")
def test_c18_a_key_is_the_same_in_every_process():
    code = (
        "from sqla_jobs.declare.key import key_text\n"
        "print(key_text('order:' + 'x' * 1000, job='j'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {key_text("order:" + "x" * 1000, job="j")}


@pytest.mark.covers("C98")
@pytest.mark.parametrize("bad", ["a\x00b", "\ud800", "x" * 300 + "\x00"])
def test_c98_a_key_or_tenant_that_no_database_holds_is_refused(bad):
    with pytest.raises(PayloadError) as refused:
        key_text(bad, job="j")
    assert refused.value.path == "idempotency_key"
    with pytest.raises(PayloadError) as refused:
        tenant_text(bad, job="j")
    assert refused.value.path == "tenant"


@pytest.mark.parametrize(
    ("tenant", "stored"),
    [
        ("acme", "acme"),
        (7, "7"),
        ("7", "7"),
        (-1, "-1"),
        (2**70, str(2**70)),
        (Org.ACME, "7"),
        (Plan.FREE, "free"),
        (
            uuid.UUID("A8098C1A-F86E-11DA-BD1A-00112444BE1E"),
            "a8098c1a-f86e-11da-bd1a-00112444be1e",
        ),
        (NO_TENANT, ""),
    ],
    ids=repr,
)
def test_a_tenant_is_stored_as_text(tenant, stored):
    assert tenant_text(tenant, job="j") == stored


@pytest.mark.parametrize("tenant", [None, "", True, 1.0, b"acme", []], ids=repr)
def test_no_tenant_is_only_what_says_so(tenant):
    with pytest.raises(TenantRequiredError) as refused:
        tenant_text(tenant, job="mail.welcome")
    assert refused.value.job == "mail.welcome"


def test_a_tenant_longer_than_the_column_is_refused():
    assert tenant_text("ä" * 100, job="j") == "ä" * 100
    with pytest.raises(PayloadError, match="200 bytes"):
        tenant_text("ä" * 101, job="j")
