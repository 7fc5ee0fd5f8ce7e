"""Chat templates of untrusted files."""

from __future__ import annotations

import time
from typing import Any

import pytest

import ggml_backend as gb
from ggml_backend.models import ChatTemplate

MESSAGES = [{"role": "user", "content": 'Hi\u2028 <b> "x"'}, {"role": "assistant", "content": "🙂"}]


LOOP: list[Any] = []
LOOP.append(LOOP)


def test_a_template_gets_the_variables_of_transformers():
    template = ChatTemplate(
        "{{ bos_token }}{%- for m in messages %}\n    {% if m['role'] == 'user' -%}\n<{{ m.content|tojson }}>"
        "{% elif m.content is string %}[{{ m.content }}]{% endif %}{% if loop.last %}{% break %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ eos_token }}{% endif %}{{ tools[0].name if tools else '-' }}",
        "<s>",
        "</s>",
    )
    assert template.render(MESSAGES) == '<s><"Hi\u2028 <b> \\"x\\"">[🙂]</s>-'
    assert template.render(MESSAGES, add_generation_prompt=False, tools=[{"name": "f"}]).endswith("[🙂]f")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ '%099999999999d' % 1 }}",
        "{{ 'x'|center(99999999999) }}",
        "{{ 10**(10**10) }}",
        "{{ range(10**9)|list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(50000) %}{{ 'y' * 1000 }}{% endfor %}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    ],
)
def test_templates_without_an_end_are_errors(source):
    begin = time.monotonic()
    with pytest.raises(gb.errors.FileError, match="the chat template of the file fails"):
        ChatTemplate(source).render(MESSAGES)
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('echo x') }}",
        "{% include 'secret' %}",
        "{% import 'os' as os %}",
        "{{ open('/etc/passwd') }}",
        "{% if %}",
        "{{ nothing.at.all }}",
    ],
)
def test_templates_cannot_reach_python(source):
    with pytest.raises(gb.errors.FileError, match="the chat template of the file fails"):
        ChatTemplate(source).render(MESSAGES)


def test_a_template_may_refuse_messages():
    with pytest.raises(gb.errors.InvalidArgumentError, match="refuses the messages: no system role"):
        ChatTemplate("{{ raise_exception('no system role') }}").render(MESSAGES)


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        ("Hello", TypeError, "messages must be a list such as"),
        ([], ValueError, "messages is empty"),
        (["Hello"], TypeError, r"messages\[0\] must be a dictionary"),
        ([{"content": "x"}], ValueError, r"messages\[0\] has no role"),
        ([{"role": "user"}], ValueError, r"messages\[0\] has no content"),
        ([{"role": "user", "content": {1, 2}}], ValueError, "texts, numbers, lists and dictionaries, not set"),
        ([{"role": "user", "content": {(1, 2): 3}}], ValueError, "keys of their dictionaries must be texts"),
        ([{"role": "user", "content": LOOP}], ValueError, "must not contain themselves"),
    ],
)
def test_wrong_messages_are_errors(messages, error, words):
    with pytest.raises(error, match=words):
        ChatTemplate("{{ messages[0].content }}").render(messages)
