"""What ``sqla-jobs worker`` writes to its log."""

from __future__ import annotations

import json
import logging

import pytest

from sqla_jobs.cli.logs import TEXT, JsonFormatter, TextFormatter

FACTS = {"job_id": "0190", "job_name": "shop.charge", "attempt": 2}


@pytest.fixture
def record():
    def record(message="charged %s", *arguments, exc_info=None, **facts):
        made = logging.LogRecord(
            "sqla_jobs.job",
            logging.INFO,
            __file__,
            1,
            message,
            arguments or ("7",),
            exc_info,
        )
        vars(made).update(facts)
        return made

    return record


def test_a_line_names_the_job_it_is_about(record):
    text = TextFormatter(TEXT)
    assert text.format(record(**FACTS)).endswith(
        "INFO sqla_jobs.job: charged 7 [job_name=shop.charge job_id=0190 attempt=2]"
    )
    assert text.format(record()).endswith("INFO sqla_jobs.job: charged 7")


def test_an_object_is_one_line_whatever_the_message_holds(record):
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        made = record("a\nb %s", "7", exc_info=(ValueError, error, None), **FACTS)
    line = JsonFormatter().format(made)
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == "a\nb 7"
    assert told["error"].endswith("ValueError: two\nlines")
    assert told.items() >= FACTS.items()
