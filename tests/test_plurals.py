"""Counts in sentences."""

import pytest

from labkit.plurals import counted, without_secrets


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (0, "checkpoint", "0 checkpoints"),
        (1, "checkpoint", "1 checkpoint"),
        (2, "asynchronous worker", "2 asynchronous workers"),
        (12345, "damaged line", "12,345 damaged lines"),
    ],
)
def test_number_and_noun_agree(number, noun, expected):
    assert counted(number, noun) == expected


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("https://ada:hidden@host/x?token=hidden&b=1", "https://***@host/x?***"),
        ("git+https://hidden@host/a", "git+https://***@host/a"),
        ("https://ada:hid@den@host:80/x", "https://***@host:80/x"),
        ("https://host/x#access_token=hidden", "https://host/x#***"),
        ("https://host/a/b", "https://host/a/b"),
        ("see file:///data/x;v=1", "see file:///data/x;***"),
        ("--api-key=hidden", "--api-key=***"),
        ("WANDB_API_KEY=hidden", "WANDB_API_KEY=***"),
        ("--keep-checkpoints=3", "--keep-checkpoints=3"),
        ("monkey=3", "monkey=3"),
        ("/data/a@b/train_steps=3", "/data/a@b/train_steps=3"),
    ],
)
def test_passwords_and_tokens_are_blanked(word, shown):
    assert without_secrets([word]) == [shown]


def test_the_value_after_a_flag_is_blanked_too():
    words = ["train", "--password", "hidden", "--pass", "-h", "--tokens", "--train-steps", "7"]
    shown = ["train", "--password", "***", "--pass", "***", "--tokens", "--train-steps", "7"]
    assert without_secrets(words) == shown
