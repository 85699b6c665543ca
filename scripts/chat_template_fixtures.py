#!/usr/bin/env python3
"""chat_template_fixtures.py OUT.json [TEMPLATE.jinja ...]: what Jinja2 renders, set up as Hugging Face's transformers does.

Needs the PyPI package jinja2 (3.1). Without templates it takes those of crates/chat and the snippets below, and its output
is committed as crates/chat/tests/fixtures/rendered.json. With templates it takes these alone and puts their text into the
output; `TALLOW_CHAT_FIXTURE=OUT.json cargo test -p tallow-chat --test rendered` then compares them.

Each template is rendered with each of the conversations below; a case has the text, the message of `raise_exception`, or
the kind of another error."""

import json
import sys
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2024, 7, 26, 14, 5, 9)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`: transformers also notes where the block begins and ends, which leaves the text as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("keep"), [], [], body).set_lineno(line)

    def keep(self, caller):
        return caller()


class Raised(jinja2.TemplateError):
    """What a template raises itself."""


def raise_exception(message):
    raise Raised(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def message(role, content, **more):
    return {"role": role, "content": content, **more}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather <now> & here: "°C" or \'°F\'',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "A city,\nwith its country"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": None},
                "days": {"type": ["integer", "null"], "minimum": 0.5, "nullable": True},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}},
        "return": {"type": "string", "description": "hh:mm"},
    },
}
ARGUMENTS = {"city": "Zürich, 🇨🇭", "days": 3, "exact": True, "limit": None, "ratio": 0.25, "tags": ["a", "b"]}


def tool_chat(arguments):
    call = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return [
        message("user", "What is the weather in Zürich?"),
        message("assistant", "", tool_calls=[call]),
        message("tool", '{"temperature": 21.5}', name="get_weather", tool_call_id="call12345"),
        message("assistant", "It is 21.5 °C."),
        message("user", "Thanks!"),
    ]


SYSTEM = message("system", "  You are a pirate.\nAnswer in rhymes. ")
HELLO = message("user", " Hello there! <b>&amp;</b>\n")
ANSWER = message("assistant", "Ahoy, 'matey'!\n\n")
THOUGHT = message("assistant", "<think>\nShe asks: 1 + 1.\n</think>\n\nIt is 2.")
REASONED = message("assistant", "It is 2.", reasoning_content="She asks: 1 + 1.\n")
BYE = message("user", "Good bye 日本語")

# What a template gets: messages, and what else is not the default.
CONVERSATIONS = {
    "user": {"messages": [HELLO]},
    "user-no-prompt": {"messages": [HELLO], "add_generation_prompt": False},
    "system": {"messages": [SYSTEM, HELLO]},
    "turns": {"messages": [HELLO, ANSWER, BYE]},
    "system-turns": {"messages": [SYSTEM, HELLO, ANSWER, BYE, THOUGHT, HELLO]},
    "ends-with-answer": {"messages": [SYSTEM, HELLO, ANSWER], "add_generation_prompt": False},
    "thought": {"messages": [HELLO, THOUGHT, BYE], "enable_thinking": True},
    "reasoned": {"messages": [HELLO, REASONED, BYE], "enable_thinking": False},
    "tools": {"messages": [HELLO], "tools": [WEATHER, CLOCK]},
    "system-tools": {"messages": [SYSTEM, BYE], "tools": [WEATHER]},
    "tool-call": {"messages": tool_chat(ARGUMENTS), "tools": [WEATHER, CLOCK]},
    "tool-call-string": {"messages": tool_chat(json.dumps(ARGUMENTS)), "tools": [WEATHER]},
    "tool-call-null": {
        "messages": [message(**{**m, "content": m["content"] or None}) for m in tool_chat(ARGUMENTS)],
        "tools": [WEATHER],
    },
    "parts": {
        "messages": [message("user", [{"type": "text", "text": "Look: "}, {"type": "text", "text": "a cat"}])]
    },
    "documents": {"messages": [HELLO], "documents": [{"title": "T", "text": "Some text."}]},
    "two-users": {"messages": [HELLO, BYE]},
    "no-messages": {"messages": []},
}

# What templates use of Jinja and Python, a few lines each; they see the conversation SNIPPET.
SNIPPET = {
    "messages": [SYSTEM, HELLO, THOUGHT, BYE],
    "tools": [WEATHER],
    "add_generation_prompt": True,
    "values": [0, -3, 2.0, 0.1, 1e-5, 1.5e-7, 1e16, 123456789012345680.0, 1e22, True, False, None, "x", [], {}, [1, "a'b", None]],
    "object": {"b": 1, "a": [1, 2.5], "c": {"d": None, "ключ": "значение"}, "items": 3},
    "text": "  <think>\na b  c\n</think>\n\nfoo, bar\tbaz \n",
}
SNIPPETS = {
    "blocks": "{% if true %}\n  a\n    {% if true %}\n  b\n    {% endif %}\n{% endif %}\n  {# note #}\nc\n {{ 1 }} \n",
    "blocks-kept": "a\n  {%+ if true %}\nb{% endif +%}\nc\n",
    "last-line": "a\n\n",
    "print-values": "{% for v in values %}{{ v }}|{{ v | string }}\n{% endfor %}",
    "print-joined": "{% for v in [0, -3, 2.0, 0.1, 123.456, true, none, 'x', [], {}, [1, 'a', none], {'a': 1.5}] %}{{ v ~ '|' ~ v }}\n{% endfor %}",
    "print-containers": "{{ values }}\n{{ object }}\n{{ tools[0].function.parameters }}\n{{ (1, 'a') }}{{ (1,) }}{{ () }}",
    "print-strings": "{{ ['it\\'s', 'a\"b', 'both\\'\"', 'tab\\t', 'nl\\n', '\\\\', 'é日🦀'] }}",
    "json": "{% for v in values %}{{ v | tojson }}\n{% endfor %}{{ object | tojson }}\n{{ tools | tojson }}",
    "json-indent": "{{ tools | tojson(indent=4) }}\n{{ object | tojson(indent=2) }}\n{{ [] | tojson(indent=2) }}"
    "{{ {} | tojson(indent=2) }}{{ values | tojson(indent=0) }}{{ object | tojson(indent='\\t') }}",
    "json-options": "{{ object | tojson(ensure_ascii=true) }}{{ object | tojson(true) }}"
    "{{ object | tojson(separators=(',', ':')) }}{{ object | tojson(sort_keys=true) }}"
    "{{ object | tojson(indent=1, separators=(' ;', '=')) }}{{ '🦀\\u007f\\x01\\x1f/' | tojson }}"
    "{{ '🦀\\u007f' | tojson(ensure_ascii=True) }}",
    "json-keys": "{{ {1: 2, true: 3, none: 4, 1.5: 5} | tojson }}",
    "json-undefined": "{{ nothing | tojson }}",
    "generation": "{% for m in messages %}{% generation %}\n{% set x = 1 %}{{ m.role }}\n{% endgeneration %}{{ x }}\n{% endfor %}",
    "generation-trim": "a\n  {%- generation -%}\n b {% endgeneration -%}\n c",
    "dates": "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%dT%H:%M:%S %A %B %j %p %I %y %%') }}",
    "raise": "a\n{{ raise_exception('no: ' ~ messages[0].role) }}",
    "undefined-print": "[{{ nothing }}][{{ messages[0].nothing }}][{{ messages[0]['nothing'] }}][{{ messages[0].get('nothing') }}]",
    "undefined-attribute": "{{ nothing.more }}",
    "undefined-item": "{{ messages[0].nothing['more'] }}",
    "undefined-add": "{{ 'a' + nothing }}",
    "undefined-tilde": "{{ 'a' ~ nothing ~ 'b' }}",
    "undefined-for": "{% for x in nothing %}a{% else %}none{% endfor %}",
    "undefined-length": "{{ nothing | length }}",
    "undefined-in": "{{ 'a' in nothing }}",
    "undefined-equal": "{{ nothing == none }}{{ nothing != '' }}{{ not nothing }}{{ nothing is defined }}{{ nothing == other }}",
    "undefined-default": "{{ nothing | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | default('d') }}"
    "{{ nothing | default }}{{ none | default('e', boolean=true) }}",
    "undefined-call": "{{ nothing('a') }}",
    "undefined-less": "{{ nothing < 1 }}",
    "out-of-range": "[{{ messages[9] }}]{{ messages[9] is defined }}",
    "add-string-number": "{{ 'a' + 1 }}",
    "add-lists": "{{ [1] + [2] }}{{ 'a' + 'b' }}{{ 1 + 1.5 }}{{ 7 // 2 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 7 / 2 }}{{ 4 / 2 }}{{ 2 ** 10 }}{{ 'ab' * 2 }}",
    "compare": "{{ 1 == 1.0 }}{{ '1' == 1 }}{{ true == 1 }}{{ [1] == [1] }}{{ {} == {} }}{{ 'a' < 'b' }}{{ 1 < 2 < 3 }}{{ none == false }}",
    "compare-types": "{{ 'a' < 1 }}",
    "and-or": "{{ 'a' and 'b' }}{{ '' or 'c' }}{{ 0 or none }}{{ not '' }}{{ (none or [])|length }}{{ 'x' if false }}{{ 'x' if true else 'y' }}",
    "tests": "{% for v in values + [object, text, messages] %}{{ v is string }}{{ v is mapping }}{{ v is iterable }}{{ v is sequence }}"
    "{{ v is number }}{{ v is integer }}{{ v is float }}{{ v is boolean }}{{ v is none }}{{ v is true }}{{ v is false }}{{ v is callable }}\n{% endfor %}",
    "tests-more": "{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 1 is in [1] }}{{ 'a' is eq 'a' }}{{ 'a' is not equalto('b') }}{{ 2 is gt 1 }}{{ none is not none }}"
    "{{ 'A' is upper }}{{ nothing is undefined }}{{ 'trim' is filter }}{{ 'odd' is test }}{{ 1 is sameas 1 }}",
    "loop": "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.previtem.role if loop.previtem is defined }}>{{ loop.nextitem.role if not loop.last }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ loop.depth }}\n{% endfor %}",
    "loop-edges": "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is undefined }}{% endfor %}",
    "loop-control": "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.role }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "loop-filter": "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{% else %}none{% endfor %}",
    "loop-recursive": "{% for k, v in {'a': {'b': 1}}.items() recursive %}{{ k }}{% if v is mapping %}({{ loop(v.items()) }}){% endif %}{% endfor %}",
    "loop-scope": "{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}",
    "namespace": "{% set ns = namespace(found=false, n=0, list=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.list = ns.list + [m.role] %}"
    "{% if m.role == 'assistant' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.n }}{{ ns.list }}{{ ns.nothing is defined }}{{ ns['n'] }}",
    "slices": "{{ messages[1:][0].role }}{{ messages[::-1][0].role }}{{ messages[-1].role }}{{ messages[:2] | length }}{{ text[2:9] }}{{ text[-4:] }}{{ 'abcdef'[::2] }}"
    "{{ 'abc'[1] }}{{ [1, 2, 3][-2:] }}{{ (1, 2, 3)[1:] }}{{ messages[1:0] }}{{ [1, 2, 3][::-1] }}",
    "split": "{{ text.split('</think>')[-1].lstrip('\\n') }}{{ text.split() }}{{ text.split(' ') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ''.split(',') }}"
    "{{ 'a b c'.split(maxsplit=1) }}{{ 'a  b '.split(None, 1) }}{{ 'a\\nb\\r\\nc\\n'.splitlines() }}{{ 'a\\nb'.splitlines(true) }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'ab'.partition('=') }}",
    "strip": "[{{ text.strip() }}][{{ text.lstrip() }}][{{ text.rstrip() }}][{{ '--a-'.strip('-') }}][{{ 'abcba'.strip('ab') }}][{{ 'xax'.lstrip('x') }}][{{ 'xax'.rstrip('x') }}]"
    "[{{ '\\u00a0a\\u3000\\x1c'.strip() }}][{{ text | trim }}][{{ 'xax' | trim('x') }}][{{ ' a '.strip(none) }}]",
    "string-methods": "{{ 'a'.upper() }}{{ 'A'.lower() }}{{ 'ab cd'.title() }}{{ 'ab CD'.capitalize() }}{{ 'abc'.startswith('a') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('c') }}"
    "{{ 'abab'.replace('a', 'x') }}{{ 'abab'.replace('a', 'x', 1) }}{{ 'abab'.count('a') }}{{ 'abc'.find('c') }}{{ 'abc'.rfind('z') }}{{ 'abc'.index('c') }}{{ ', '.join(['a', 'b']) }}{{ '12'.isdigit() }}{{ 'ab'.isalpha() }}"
    "{{ 'a1'.isalnum() }}{{ ' '.isspace() }}{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}"
    "{{ 'ab'.isupper() }}{{ 'ab'.islower() }}",
    "string-format": "{{ '{} {}'.format('a', 1) }}{{ '{0}{1}{0}'.format('a', 'b') }}{{ '{x}'.format(x=2) }}{{ '{:>5}|{:.2f}'.format('a', 1.5) }}{{ '%s-%d' | format('a', 3) }}",
    "string-in": "{{ '<think>' in text }}{{ 'x' not in text }}{{ 'content' in messages[0] }}{{ 1 in [1, 2] }}{{ 'name' in messages[0] }}{{ 'b' in object }}{{ 'z' in 'abc' }}",
    "string-in-number": "{{ 'a' in 1 }}",
    "string-escapes": "{{ 'a\\nb\\tc\\\\d\\'e\\x41\\u00e9' }}{{ \"it's\" }}{{ 'a' 'b' }}",
    "escaping": "{{ '<b> & \"q\"' }}{{ messages[1].content }}{{ '<' | e }}{{ '<' | safe }}{{ '<' | escape ~ '>' }}",
    "dicts": "{% for k, v in object.items() %}{{ k }}={{ v }};{% endfor %}{% for k in object %}{{ k }}{% endfor %}{{ object.keys() | list }}{{ object.values() | list }}"
    "{{ object.get('a') }}{{ object.get('z', 'dflt') }}{{ object.get('z') }}{{ object['a'] }}{{ object.c.d }}{{ object | length }}",
    "dict-filters": "{{ object | items | list }}{{ object | dictsort }}{% for k, v in object | dictsort %}{{ k }}{% endfor %}{% for k, v in object | items %}{{ k }}{% endfor %}{{ object | list }}{{ object | first }}",
    "dict-update": "{{ object.update({'x': 1}) }}",
    "dict-function": "{{ dict(a=1, b=2) }}{{ dict({'x': 1}, y=2) }}",
    "list-append": "{% set l = [] %}{{ l.append(1) }}",
    "list-methods": "{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}",
    "unknown-method": "{{ 'a'.nothing() }}",
    "unknown-filter": "{{ 'a' | nothing }}",
    "filters": "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='role') | list }}"
    "{{ messages | selectattr('nothing', 'defined') | list }}{{ [3, 1, 2] | sort }}{{ [3, 1, 2] | sort(reverse=true) }}{{ ['b', 'A'] | sort }}{{ [1, 2] | sum }}{{ [1, 2, 3] | reverse | list }}{{ 'abc' | reverse }}"
    "{{ ['a', 'b'] | map('upper') | list }}{{ [1, none, 2] | select | list }}{{ [1, 2, 3] | select('odd') | list }}{{ [1, 2] | reject('odd') | list }}{{ [1, 1, 2] | unique | list }}{{ ['x', 'y'] | last }}{{ [] | first is defined }}"
    "{{ [2, 3] | min }}{{ [2, 3] | max }}{{ 'abc' | list }}{{ [1, 2, 3] | batch(2) | list }}{{ [[1, 2], [3]] | map('join', '-') | list }}",
    "filters-text": "{{ 'ab cd' | title }}{{ 'ab' | capitalize }}{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\nb' | indent(2, first=true) }}|{{ 'a-b' | replace('-', '+') }}{{ 'aab' | replace('a', 'x', 1) }}"
    "{{ '3' | int + 1 }}{{ 'x' | int }}{{ 'x' | int(7) }}{{ '2.5' | float }}{{ 2.567 | round(1) }}{{ 2.5 | round }}{{ 3.5 | int }}{{ -3 | abs }}{{ [1, 'a', none] | join('-') }}{{ 'abc' | length }}"
    "",
    "filters-group": "{% for role, list in messages | groupby('role') %}{{ role }}{{ list | length }}{% endfor %}{{ {'b': 1, 'a': 2} | dictsort(by='value') }}{{ messages | map(attribute='content') | map('trim') | join('|') }}{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}{{ [{}] | map(attribute='a', default='d') | list }}",
    "filter-block": "{% filter upper %}a{{ 'b' }}{% endfilter %}",
    "set-block": "{% set x %}\na {{ 1 }}\n{% endset %}[{{ x }}]{% set y | trim %}  b  {% endset %}[{{ y }}]",
    "set-tuple": "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set (c, d) = [2, 3] %}{{ c + d }}",
    "macros": "{% macro f(a, b='d', c=none) %}\n{{ a }}{{ b }}{{ c }}\n{% endmacro %}{{ f(1) }}{{ f(1, c=2) }}{{ f(1, 2, 3) }}",
    "macros-scope": "{% set x = 1 %}{% macro f() %}{{ x }}{{ messages | length }}{{ y }}{% endmacro %}{% set y = 2 %}{{ f() }}{% for i in range(2) %}{{ f() }}{% endfor %}",
    "macros-recursive": "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{{ f(2) | trim | length }}",
    "macros-caller": "{% macro f(a) %}<{{ caller(a) }}>{% endmacro %}{% call(x) f(1) %}{{ x }}!{% endcall %}",
    "with": "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
    "raw": "{% raw %}{{ a }}{% b %}{% endraw %}",
    "comments": "a{# {{ x }} #}b\n  {#- c -#}  \nd",
    "globals": "{{ range(3) | list }}{{ range(1, 6, 2) | list }}{{ range(0) | list }}",
    "numbers": "{{ 1_000 }}{{ 0x1f }}{{ 1e3 }}{{ 1.50 }}{{ 10000000000000000000000 }}{{ 3 | string + 'a' }}{{ 1.0 | int }}{{ 5 | float }}",
    "syntax-unclosed": "a\n{% if x %}\nb",
    "syntax-expression": "a\n{{ 1 + }}",
    "syntax-tag": "a\n\n{% nothing %}",
    "syntax-quote": "{{ 'a }}",
    "attribute-order": "{{ object.b }}{{ object['items'] }}{{ messages[0]['role'] }}{{ messages[0].role }}{{ messages.0.role }}",
    "conditional": "{{ 'a' if messages[0].role == 'system' else 'b' }}{{ ('x' if false) ~ 'y' }}{{ 'p' if tools else 'q' }}{{ tools is not none and tools | length > 0 }}",
    "null-variables": "{{ documents is defined }}{{ documents is none }}{{ documents }}{{ bos_token }}{{ sep_token is defined }}{{ eos_token }}",
    "literals": "{{ none }}{{ None }}{{ true }}{{ True }}{{ false }}{{ False }}{{ [none, True] }}{{ {'a': None} }}",
    "iterate-string": "{% for c in 'añ🦀' %}{{ c }}.{% endfor %}{{ '🦀a' | length }}{{ 'aé🦀'[1:] }}",
    "whitespace-control": "  a  \n  {{- ' b ' -}}  \n  c\n{%- if true -%}\n  d\n{%- endif %}\n e\n\t{% if true %}\nf\n\t{% endif %}\t\ng",
    "windows-lines": "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\r\n",
    "inline-blocks": "x {% if true %} y {% endif %} z\n {{ 1 }}\n{% if true %}{% endif %}\n\nq",
}


def rendered(env, source, conversation):
    variables = {"tools": None, "documents": None, "add_generation_prompt": True, **TOKENS, **conversation}
    try:
        return {"text": env.from_string(source).render(variables)}
    except Raised as error:
        return {"raised": str(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"syntax": error.lineno}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    out, given = sys.argv[1], [Path(name) for name in sys.argv[2:]]
    crate = Path(__file__).resolve().parent.parent / "crates" / "chat"
    files = given or sorted(crate.glob("templates/*.jinja")) + sorted(crate.glob("tests/templates/*.jinja"))
    conversations = {**CONVERSATIONS, "snippet": SNIPPET}
    cases = {}
    for file in files:
        # newline="" keeps the line ends, which Jinja2 itself makes alike.
        with open(file, encoding="utf-8", newline="") as stream:
            source = stream.read()
        env = environment()
        name = {"source": source} if given else {"file": file.relative_to(crate).as_posix()}
        texts = {key: rendered(env, source, conversation) for key, conversation in CONVERSATIONS.items()}
        cases[file.stem] = {**name, "rendered": texts}
    for key, source in ({} if given else SNIPPETS).items():
        cases[f"snippet {key}"] = {"source": source, "rendered": {"snippet": rendered(environment(), source, SNIPPET)}}
    fixture = {
        "now": NOW.isoformat(),
        "special_tokens": TOKENS,
        "conversations": conversations,
        "templates": cases,
    }
    with open(out, "w", encoding="utf-8") as stream:
        # Lines for readable differences, no blanks: the size of the repository is limited.
        json.dump(fixture, stream, ensure_ascii=False, indent=0, separators=(",", ":"))
        stream.write("\n")


main()
