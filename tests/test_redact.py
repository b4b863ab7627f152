"""Secrets are told by their keys and masked wherever they stand."""

from __future__ import annotations

import json
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import _redact
from eventbus._redact import MASK, apply, default_redact, is_secret, mask_text, redact_text

SECRET = "hunter2canary"

NAMED = st.sampled_from(
    [
        "api_key",
        "API-KEY",
        "apikey",
        "apiKeys",
        "Authorization",
        "password",
        "Passwords",
        "db.passwd",
        "client_secret",
        "secrets",
        "access token",
        "token",
        "sessionToken",
        "set-cookie",
        "credentials",
        "PRIVATE_KEY",
        "privateKeys",
        "session_id",
        "sessionIDs",
    ]
)

# Texts rich in what the masking looks for.
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "password",
                "token",
                "api key",
                "Authorization",
                "cookie",
                "Bearer ",
                "basic ",
                "Basic+",
                "=",
                ":",
                "=>",
                "==",
                "://",
                "@",
                "/",
                "&",
                "?",
                " ",
                "\n",
                '"',
                "'",
                "\\",
                '\\"',
                "{",
                "}",
                "[",
                "]",
                "(",
                ")",
                "Box(",
                "[]",
                "[0]",
                "<",
                ">",
                ",",
                ";",
                "%70assword",
                "%20",
                MASK,
                "dXNlcjpwYXNz",
                "user",
                "Error",
                "b",
                "1",
                "é",
            ]
        ),
        st.text(max_size=3),
    ),
    max_size=25,
).map("".join)


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apikey",
        "APIKey",
        "APIKEY",
        "x-api-key",
        "api keys",
        "api.key",
        "Authorization",
        "proxy_authorization",
        "password",
        "PASSWORD",
        "passwd",
        "passWord",
        "user_passwords",
        "password1",
        "passwordhash",
        "secret",
        "clientSecret",
        "aws_secret_access_key",
        "secretkey",
        "token",
        "tokens",
        "Token",
        "accessToken",
        "accesstoken",
        "token_type",
        "cookie",
        "set-cookie",
        "Cookies",
        "credential",
        "credentials",
        "private_key",
        "privateKeys",
        "privatekey",
        "session_id",
        "user.sessionID",
        "sessionIDs",
        "sessionid",
        "größe_secret",
        "x" * 200 + "_token",
    ],
)
def test_a_key_names_a_secret(key: str) -> None:
    """Words are split at case, digits and punctuation; plurals and joined words count."""
    assert is_secret(key)


@pytest.mark.parametrize("name", _redact._NAMES)
def test_a_name_in_two_words_is_one(name: str) -> None:
    """Wherever it is parted, and whatever parts it."""
    for place in range(1, len(name)):
        for mark in ("_", "-", ".", " ", "0", "/"):
            assert is_secret(f"my{mark}{name[:place]}{mark}{name[place:]}s")
        assert is_secret(name[:place] + name[place:].capitalize())


@pytest.mark.parametrize(
    "key",
    [
        "",
        "0",
        "max_tokens",
        "input_tokens",
        "inputTokens",
        "maxtokens",
        "usage.total-tokens",
        "secretary",
        "tokenizer",
        "author",
        "key",
        "id",
        "api",
        "session",
        "private",
        "keyboard",
        "monkey",
        "user_id",
        "api_user_key",
        "secret_tokens",
    ],
)
def test_a_key_names_no_secret(key: str) -> None:
    """Counts of tokens and words that merely begin alike are left alone."""
    assert not is_secret(key)


@given(key=NAMED, value=st.text() | st.binary())
def test_texts_and_bytes_under_a_secret_key_are_masked(key: str, value: str | bytes) -> None:
    """A key anywhere in the path is enough."""
    assert default_redact(("a", key, "0", "b"), value) == MASK


@pytest.mark.parametrize("value", [0, 1.5, True, None, 2**70])
def test_numbers_bools_and_none_are_never_masked(value: object) -> None:
    """A token count under a secret's name stays readable."""
    assert default_redact(("token",), value) is value


def test_other_values_are_given_back() -> None:
    """Bytes under a harmless key are the same object."""
    value = b"data"
    assert default_redact(("body",), value) is value


def test_a_str_subclass_is_a_string() -> None:
    """Its own methods are not asked."""

    class Hostile(str):
        __slots__ = ()

        def lower(self) -> str:
            raise RuntimeError

        def __contains__(self, key: object) -> bool:
            raise RuntimeError

    assert default_redact(("a",), Hostile("password=x")) == f"password={MASK}"
    assert default_redact(("token",), Hostile("x")) == MASK


def test_a_redact_function_that_raises_masks() -> None:
    """Redaction fails closed."""

    def broken(path: tuple[str, ...], value: object) -> object:
        raise ValueError

    assert apply(broken, ("a",), "text") == MASK


def test_an_interrupt_in_a_redact_function_goes_through() -> None:
    """Only an Exception is turned into a mask."""

    def interrupted(path: tuple[str, ...], value: object) -> object:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(interrupted, (), "text")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password=§", "password=#"),
        ("a password = § b", "a password = # b"),
        ("PASSWORD => '§'", "PASSWORD => '#'"),
        ("token == §", "token == #"),
        ("the api key: §, next", "the api key: #, next"),
        ("f(token='§', user='x')", "f(token='#', user='x')"),
        ("f(token=§)", "f(token=#)"),
        ("{'password': '§', 'b': 1}", "{'password': '#', 'b': 1}"),
        ("{'password': b'§'}", "{'password': b'#'}"),
        (r"{'password': 'a\'§', 'b': 1}", "{'password': '#', 'b': 1}"),
        ('{"password": "§", "b": 1', '{"password": "#", "b": 1'),
        ('x["password"] = "§"', 'x["password"] = "#"'),
        (r"{\"password\": \"§\", \"b\": 1}", r"{\"password\": \"#\", \"b\": 1}"),
        (r"{\"password\": \"a\\\"§\", \"b\": 1}", r"{\"password\": \"#\", \"b\": 1}"),
        (r"\"password\": \"\" §", r"\"password\": \"#\" §"),
        (r"\"password\": \"§", r"\"password\": \"#"),
        ('password="§', 'password="#'),
        ("credentials={'a': {'b': '}§'}, 'c': \"§\"} tail", "credentials=# tail"),
        ("tokens: ['§', '§'", "tokens: #"),
        ("cookies=<Jar [<Cookie a=§>]> x", "cookies=# x"),
        ("secret=(§)x, y", "secret=#, y"),
        ("secret=[REDACTED]§ y", "secret=# y"),
        ("Config(secret=SecretStr('§'), user='x')", "Config(secret=#, user='x')"),
        ("Login(password=Secret(value='§'), x=1)", "Login(password=#, x=1)"),
        ("token=pkg.Box[str](a(')'), {'b': \"§\"}).get() c", "token=# c"),
        ("token=Box('§'", "token=#"),
        ("password: Secret( '§' ) b", "password: # b"),
        ("password=[REDACTED]('§') b", "password=# b"),
        ("token=Map{'a': '§'}, b", "token=#, b"),
        ("{'authorization': SecretStr('§')}\nb", "{'authorization': #\nb"),
        ("Bearer Box('§') b", "Bearer # b"),
        ("Basic dXNlcjpwYXNz('§') b", "Basic # b"),
        ("https://h/x?token[]=§&b=2", "https://h/x?token[]=#&b=2"),
        ("https://h/x?token[0]=§&b=2", "https://h/x?token[0]=#&b=2"),
        ("https://h/x?user[credentials][a][]=§&b=2", "https://h/x?user[credentials][a][]=#&b=2"),
        ("https://h/x?token[a]=§&b=2", "https://h/x?token[a]=#&b=2"),
        ("https://h/x?token%5B%5D=§&b=2", "https://h/x?token%5B%5D=#&b=2"),
        ("x['tokens'][0] = '§'", "x['tokens'][0] = '#'"),
        ("{'token[]': '§'}", "{'token[]': '#'}"),
        ("Bearer §", "Bearer #"),
        ("bearer  §, x", "bearer  #, x"),
        ("auth=Bearer%20§&a=1", "auth=Bearer%20#&a=1"),
        ("Bearer api_key: §", "Bearer # #"),
        ("token:: §", "token:: #"),
        ("://token:@§ x", "://token:#@§ x"),
        ("Bearer private key: §", "Bearer # key: #"),
        ("password: token:= §", "password: # #"),
        ("password: 'token': '§'", "password: '#': '#'"),
        ("token: Bearer § x", "token: # x"),
        ("token: Bearer '§' x", "token: #' x"),
        ('Authorization: Digest user="x", response="§" y\nnext', "Authorization: #\nnext"),
        ("-H 'Authorization: Token §' x", "-H 'Authorization: #' x"),
        ("Cookie: a=§; b=§\r\nnext", "Cookie: #\r\nnext"),
        ("Basic dXNlcjpwYXNz", "Basic #"),
        ("postgres://user:§@h/db", "postgres://user:#@h/db"),
        ("postgres://user:a@§@h/db", "postgres://user:#@h/db"),
        ("https://h/?a=1&token=§&b=2", "https://h/?a=1&token=#&b=2"),
        ("https://h/?%70assword=§&b=2", "https://h/?%70assword=#&b=2"),
        ("https://h/?api%5fkey=§", "https://h/?api%5fkey=#"),
    ],
)
def test_a_secret_in_a_text_is_masked(text: str, masked: str) -> None:
    """Pairs, headers and URLs: the value goes, the rest of the text stays."""
    assert mask_text(text.replace("§", SECRET)).replace(SECRET, "§") == masked.replace("#", MASK)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "an ordinary text",
        "at 10:30: all well, a=b",
        "basic economy is no fare",
        "basic basic_economy",
        "a basic fare: 12",
        "Bearer",
        "Bearer ",
        "token: ",
        "the key: 5",
        "=password",
        "InvalidTokenError: the signature differs",
        "https://h:8080/?q=a@b",
        "mailto: a@b://c",
        "max_tokens=5",
        "max_tokens[0]=5",
        "a[]=token",
        "]=token",
        "[token 1]: a",
        "unexpected token [3]: a",
        "TokenError[3]: a",
        "KeyError: 'token'",
        "100%: done",
    ],
)
def test_an_ordinary_text_is_the_same_object(text: str) -> None:
    """What holds no secret is not even copied."""
    assert mask_text(text) is text


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic", "BASIC"])
def test_a_scheme_alone_tells_a_secret(scheme: str) -> None:
    """Also in a text that has neither `=` nor `:`."""
    assert f"sent {scheme} {MASK}" == redact_text(f"sent {scheme} {SECRET}1")


@given(TEXTS)
def test_masking_twice_changes_nothing(text: str) -> None:
    """A masked text may pass a second mask on its way."""
    once = mask_text(text)
    assert once == mask_text(once)


@given(before=TEXTS, key=NAMED, separator=st.sampled_from(["=", ": ", "='", '": "']))
def test_what_precedes_a_pair_does_not_unmask_it(before: str, key: str, separator: str) -> None:
    """Whatever stands in front, the value of a secret key does not come out."""
    assert SECRET not in mask_text(f"{before} {key}{separator}{SECRET}")


@pytest.mark.parametrize(
    "unit",
    [
        "=",
        ":",
        "password=",
        "token: '",
        '\\"',
        "password=(",
        "://a:",
        "Bearer ",
        "a" * 50 + "!=",
        'cookie: "="',
        "%70",
        "basic ",
        "api ",
        "{",
        "password=,",
        "password=<'\"",
        "password=a('",
        "a(",
        "a()",
        "token=a(b)",
        "[a]",
        "token[]",
        "token[]=",
        'token=\\\\"',
        " ",
    ],
)
def test_a_long_text_of_one_unit_is_read_in_steps_that_grow_with_it(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the text takes about twice the looks at it, whatever it repeats."""
    looks = [0]

    class Counted:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self.pattern = pattern

        def search(self, text: str, position: int) -> re.Match[str] | None:
            looks[0] += 1
            return self.pattern.search(text, position)

    monkeypatch.setattr(_redact, "_TRIGGER", Counted(_redact._TRIGGER))
    counts = []
    for size in (1000, 2000):
        looks[0] = 0
        mask_text("password=x " + unit * size)
        counts.append(looks[0])
    assert counts[1] <= 2 * counts[0] + 2


def test_a_json_text_is_masked_by_its_keys() -> None:
    """A secret key masks what is nested below it; numbers stay."""
    text = json.dumps({"user": {"passwords": [SECRET, {"x": SECRET}], "token": 5}, "é": ["ok", None]})
    expected = {"user": {"passwords": [MASK, {"x": MASK}], "token": 5}, "é": ["ok", None]}
    assert expected == json.loads(redact_text(text))


def test_a_json_text_inside_a_json_text_is_masked() -> None:
    """Arguments are JSON strings in JSON strings."""
    text = json.dumps([json.dumps({"a": json.dumps({"api_key": SECRET})})])
    assert [json.dumps({"a": json.dumps({"api_key": MASK})})] == json.loads(redact_text(text))


def test_json_texts_nested_beyond_the_bound_are_masked_as_text() -> None:
    """However often a text was quoted, its secret does not come out."""
    text = json.dumps({"password": SECRET})
    for _ in range(8):
        text = json.dumps({"a": text})
    assert SECRET not in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        ' {"total": 12,  "a": [1]}',
        '{"key": NaN}',
        '{"key": 5}',
        "[1, 2]",
        '["token"]',
        '{"password": "[REDACTED]"}',
    ],
)
def test_a_json_text_without_secrets_is_the_same_object(text: str) -> None:
    """Its spacing and numbers are kept as they were written."""
    assert redact_text(text) is text


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "§", "password": null}',
        '{"password": "§", "n": ' + "9" * 5000 + "}",
        '{"a": "b", "password": "§"',
        "[" * 5000 + '{"password": "§"}',
        '{"https://h/?token=§": 1}',
        '{"password": "§", "fill": "' + "x" * 300_000 + '"}',
        "[password=§]",
    ],
    ids=["duplicate", "digits", "cut", "deep", "key", "long", "no json"],
)
def test_a_json_text_that_cannot_be_parsed_is_masked_as_text(text: str) -> None:
    """Whatever stops the parser does not stop the mask."""
    assert SECRET not in redact_text(text.replace("§", SECRET))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(string.ascii_letters),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    NAMED,
)
def test_a_secret_anywhere_in_a_json_text_is_masked(value: object, key: str) -> None:
    """Beside any other content."""
    assert SECRET not in redact_text(json.dumps([value, {"x": value, key: [value, SECRET]}]))
