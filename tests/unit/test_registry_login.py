"""Accounts in Secrets for registries, valid or not."""

import json

import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.sources.registry_login import login

HOST = "registry.example.com:5000"
NO_CONFIGURATION = "the key .dockerconfigjson of the Secret is no Docker configuration"
INVALID = "an account without a valid user name and password"


def config(auths: object) -> Secret:
    return Secret({".dockerconfigjson": json.dumps({"auths": auths})})


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": "YTpiOmM="}, "Basic YTpiOmM="),
        ({"username": "a", "password": "b:c"}, "Basic YTpiOmM="),
        ({"username": "名", "password": "x"}, "Basic 5ZCNOng="),
    ],
)
def test_an_account(entry: object, expected: str) -> None:
    credentials = login(config({"https://[bad": {}, HOST: entry}), HOST)
    assert credentials.header() == {"Authorization": expected}


@pytest.mark.parametrize(
    "entry",
    [
        "x", None, 5, [], {}, {"auth": "é"}, {"auth": 5}, {"auth": "a"}, {"auth": "/w=="},
        {"username": "a:b", "password": "c"}, {"username": 5, "password": "c"},
    ],
)  # fmt: skip
def test_invalid_account_is_refused(entry: object) -> None:
    with pytest.raises(StageFailure, match=INVALID) as caught:
        login(config({HOST: entry}), HOST)
    assert caught.value.reason is Reason.SOURCE_UNREACHABLE


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"auths": 5}', "[" * 100_000, "\0"])
def test_invalid_configuration_is_refused(text: str) -> None:
    with pytest.raises(StageFailure, match=NO_CONFIGURATION):
        login(Secret({".dockerconfigjson": text}), HOST)


def test_only_other_hosts() -> None:
    with pytest.raises(StageFailure, match=rf"no account for {HOST}, only for https://\[bad"):
        login(config({"https://[bad": {}}), HOST)


def test_a_user_name_has_no_colon() -> None:
    with pytest.raises(StageFailure, match="the key username of the Secret has a colon"):
        login(Secret({"username": "a:b", "password": "c"}), HOST)
