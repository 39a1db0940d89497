"""Notices over apprise, to a server of our own; and nothing of an address anywhere."""

import logging
import sys

import pytest

from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.sink import Notice, NoticeKind, NotSentError
from foreshock.recipes import standard
from foreshock.sinks.apprise import Apprise
from tests.sinks.receiving import SECRET, serving

NOTICE = Notice(kind=NoticeKind.HALTED, title="it halted", body="look\nhere")


def test_a_notice_arrives_as_it_is() -> None:
    with serving() as service:
        (channel,) = Apprise(urls=(service.url(),)).channels()
        channel.send(NOTICE)
        (got,) = service.received
    assert (got["title"], got["message"], got["type"]) == ("it halted", "look\nhere", "failure")
    assert channel.label == "json (URL 1)"


@pytest.mark.parametrize("mood", ["refuse", "drop"])
def test_a_service_that_fails_is_told_of_without_its_address(
    mood: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(mood) as service, caplog.at_level(logging.DEBUG):
        (channel,) = Apprise(urls=(service.url(),)).channels()
        with pytest.raises(NotSentError) as caught:
            channel.send(NOTICE)
    printed = capfd.readouterr()
    for said in (str(caught.value), caplog.text, printed.out, printed.err, channel.label):
        assert SECRET not in said
        assert "127.0.0.1" not in said


def test_a_service_that_hangs_is_given_up_after_its_own_time() -> None:
    with serving("hang") as service:
        (channel,) = Apprise(urls=(service.url(rto=0.2),)).channels()
        with pytest.raises(NotSentError):
            channel.send(NOTICE)


def test_each_url_is_a_channel_of_its_own() -> None:
    with serving() as one, serving() as other:
        channels = Apprise(urls=(one.url(), other.url())).channels()
        channels[1].send(NOTICE)
        assert [channel.label for channel in channels] == ["json (URL 1)", "json (URL 2)"]
        assert (len(one.received), len(other.received)) == (0, 1)


@pytest.mark.parametrize(
    "url", [f"nosuch://{SECRET}", SECRET, f"slack://{SECRET}", f"json://me:{SECRET}@", ""]
)
def test_an_address_that_cannot_be_used_is_refused_by_its_number(
    url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    sink = Apprise(urls=("json://127.0.0.1", url))
    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError, match="URL number 2") as caught:
        sink.channels()
    printed = capfd.readouterr()
    for said in (str(caught.value), caplog.text, printed.out, printed.err):
        assert SECRET not in said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"urls": f"json://{SECRET}"}, "sinks.apprise: urls is not a list of names"),
        ({"urls": [3, SECRET]}, "sinks.apprise: urls is not a list of names"),
        ({"urls": []}, "has no urls"),
        ({}, "has no urls"),
        ({"urls": [f"json://{SECRET}"], "on": ["halts"]}, "no kind 'halts'; did you mean 'halted'"),
        ({"urls": [f"json://{SECRET}"], "url": 1}, "no setting 'url'; did you mean 'urls'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_and_no_secret_told(settings, says) -> None:
    with pytest.raises(ConfigError) as caught:
        standard({"sinks": {"apprise": settings}})
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def test_no_repr_tells_an_address() -> None:
    recipe = standard({"sinks": {"apprise": {"urls": [f"json://{SECRET}"]}}})
    assert recipe.sinks == (Apprise(urls=(f"json://{SECRET}",)),)
    assert SECRET not in repr(recipe)
    assert standard().sinks == ()
    assert standard({"sinks": {"apprise": False}}).sinks == ()


def test_a_sink_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="sinks has no 'aprise'; did you mean 'apprise'"):
        standard({"sinks": {"aprise": {}}})
    with pytest.raises(ConfigError) as caught:
        standard({"sinks": f"json://{SECRET}"})
    assert SECRET not in str(caught.value)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(MissingExtra, match="foreshock\\[notify\\]"):
        Apprise(urls=("json://127.0.0.1",)).channels()
