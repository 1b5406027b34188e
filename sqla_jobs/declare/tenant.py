"""Tenants: how a str, int or UUID becomes the text that identity and views use."""

from __future__ import annotations

from typing import Final, TypeAlias
from uuid import UUID

from sqla_jobs.declare.text import bad_character
from sqla_jobs.exc import PayloadError, TenantRequiredError

TenantId: TypeAlias = str | int | UUID
"""What names a tenant. ``1`` and ``"1"`` are the same one: tenants are stored as text."""

MAX_TENANT_BYTES: Final = 200
"""The longest tenant, in bytes of UTF-8."""

NO_TENANT_TEXT: Final = ""
"""How :data:`.NO_TENANT` is stored: a value of its own, since empty tenants are refused."""


class NoTenant:
    """The type of :data:`.NO_TENANT`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_TENANT"

    def __reduce__(self) -> str:
        return "NO_TENANT"


NO_TENANT: Final = NoTenant()
"""Says that a job belongs to no tenant."""


def tenant_text(value: object, *, job: str) -> str:
    """Return the stored text of the tenant *value* that *job* was given.

    A str is kept as it is, an int in decimal, a UUID in its usual lower-case form, and
    :data:`.NO_TENANT` is the empty text. ``None`` and ``""`` raise
    :exc:`.TenantRequiredError`, other types too (a bool is no int here); NUL, lone
    surrogates and more than 200 bytes raise :exc:`.PayloadError`.
    """
    if isinstance(value, NoTenant):
        return NO_TENANT_TEXT
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise TenantRequiredError(job, f"is a {type(value).__name__}")
    if isinstance(value, str):
        text = str.__str__(value)  # a StrEnum's value, whatever its own __str__ says
    elif isinstance(value, int):
        text = int.__repr__(value)
    else:
        text = str(value)
    if not text:
        raise TenantRequiredError(job, "is an empty string")
    bad = bad_character(text)
    if bad is not None:
        raise PayloadError("tenant", f"contains {bad}")
    if len(text.encode()) > MAX_TENANT_BYTES:
        raise PayloadError("tenant", f"is longer than {MAX_TENANT_BYTES} bytes")
    return text
