"""Tokens of clients: what a Secret may contain, who is known by it, and when its files are read again."""

from pathlib import Path

import pytest
from enginewright_serving.client_tokens import copies_token, read_tokens
from enginewright_serving.mounted_secret import MountedSecret

from tests.support.secret_volumes import write_secret

SECRET = {"shop": b"  s3cret-1 \n", "search": b"old=\r\nnew==\n\n"}


@pytest.mark.parametrize(
    ("authorization", "client"),
    [
        (b"Bearer s3cret-1", "shop"),
        (b"bearer  s3cret-1", "shop"),
        (b"BEARER old=", "search"),
        (b"Bearer new==", "search"),
        (b"Bearer s3cret", None),
        (b"Bearer s3cret-1 ", "shop"),
        (b"Bearer S3cret-1", None),
        (b"Bearer old=,Bearer new==", None),
        (b"Basic s3cret-1", None),
        (b"s3cret-1", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"", None),
    ],
)
def test_a_token_is_its_clients(authorization: bytes, client: str | None) -> None:
    assert read_tokens(SECRET).client(authorization) == client


def test_invalid_token_is_named_and_not_shown() -> None:
    tokens = read_tokens(
        {"empty": b" \n", "spaces": b"two words", "binary": b"\xff\xfe", "ok": b"a\nb c"}
    )
    assert set(tokens.clients.values()) == {"ok"}
    assert tokens.client(b"Bearer a") == "ok"
    assert tokens.client(b"Bearer two words") is None
    assert tokens.client(b"Bearer ") is None
    assert len(tokens.problems) == 4
    assert "key 'empty' is empty" in tokens.problems
    assert "two" not in " ".join(tokens.problems)


def test_tokens_are_not_kept_in_the_clear() -> None:
    assert "s3cret" not in repr(read_tokens(SECRET))


def test_copies_have_a_token_of_their_own_for_each_revision() -> None:
    token = copies_token(SECRET, "r1")
    assert token == copies_token(dict(reversed(SECRET.items())), "r1")
    assert read_tokens(SECRET).client(f"Bearer {token}".encode()) is None
    assert len({token, copies_token(SECRET, "r2"), copies_token({"shop": b"x"}, "r1")}) == 3
    assert copies_token({}, "r1") == copies_token({"shop": b" \n"}, "r1") == ""


def test_a_renewed_volume_is_noticed(tmp_path: Path) -> None:
    volume = tmp_path / "tokens"
    secret = MountedSecret(volume)
    assert secret.state() is None
    assert secret.read() == {}
    write_secret(volume, shop="1", search="2")
    first = secret.state()
    assert first is not None
    assert first == secret.state()
    assert secret.read() == {"shop": b"1", "search": b"2"}
    write_secret(volume, shop="1")
    assert secret.state() != first
    assert secret.read() == {"shop": b"1"}
    write_secret(volume)
    assert secret.read() == {}


def test_a_folder_outside_of_a_pod_is_read_too(tmp_path: Path) -> None:
    secret = MountedSecret(tmp_path)
    (tmp_path / "shop").write_text("1")
    before = secret.state()
    assert secret.read() == {"shop": b"1"}
    (tmp_path / "shop").write_text("22")
    assert secret.state() != before
