//! Templates that try to crash, hang or fill the memory; each must end in an error or a text.

#![allow(clippy::unwrap_used)]

use tallow_chat::{ChatError, Context, Template};

/// The text or the error of a template; a panic inside of the engine, which is an error to callers, fails the test.
fn render(source: &str) -> Result<String, ChatError> {
    let rendered =
        Template::parse("hostile", source).and_then(|template| template.render(&Context::default()));
    if let Err(error) = &rendered {
        let shown: String = source.chars().take(100).collect();
        assert!(!error.to_string().contains("the template engine failed"), "{shown}: {error}");
    }
    rendered
}

/// The error of a template, which is one line and says where it stood.
fn refused(source: &str) -> ChatError {
    let shown: String = source.chars().take(100).collect();
    let error = render(source).expect_err(&shown);
    let text = error.to_string();
    assert!(text.starts_with("chat template `hostile`"), "{shown}: {text}");
    assert_eq!(text.lines().count(), 1, "{shown}: {text}");
    assert!(text.len() < 1000, "{shown}: {text}");
    error
}

/// `repeated` until the template has `size` bytes.
fn long(size: usize, before: &str, repeated: &str, after: &str) -> String {
    before.to_owned() + &repeated.repeat(size / repeated.len()) + after
}

/// Just within the limit of a template's size.
const LONG: usize = 127 << 10;

#[test]
fn endless_work_is_stopped() {
    for source in [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = 1 %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999) | map('string') | join | length }}{% endfor %}",
        "{{ range(1000000000000) | list }}",
        "{% include 'chat' %}",
        "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
    ] {
        refused(source);
    }
}

#[test]
fn output_is_bounded() {
    let error = refused("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}");
    assert!(matches!(error, ChatError::Limit { .. }), "{error}");
    assert!(render("{% for i in range(1500) %}{{ 'a' * 9999 }}{% endfor %}").is_ok());
}

#[test]
fn memory_is_bounded() {
    for source in [
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] | join(ns.s) %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s | tojson | tojson %}{% endfor %}",
        "{{ 'a' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{{ 'a' | indent(99999999999) * 9 }}",
        "{{ '%999999999999d' | format(1) }}",
        "{{ '{:>999999999999}'.format('a') }}",
        "{{ strftime_now('%999999999999d') }}",
        "{{ [1] | batch(99999999999, 1) | list }}",
    ] {
        refused(source);
    }
}

#[test]
fn nested_and_shared_values_are_bounded() {
    let grown = |step: &str| {
        format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for i in range(60) %}}{{% for j in range(2000) %}}\
             {{% set ns.x = {step} %}}{{% endfor %}}{{% endfor %}}{{{{ ns.x ~ '' }}}}"
        )
    };
    for step in [
        "[ns.x]",
        "[ns.x, ns.x]",
        "(ns.x, 1)",
        "ns.x, ns.x",
        "{'a': ns.x}",
        "{'a': ns.x}.items()",
        "{'a': ns.x}.values()",
        "[ns.x] | map('list')",
        "dict(a=ns.x)",
        "namespace(a=ns.x)",
        "ns",
        "[ns]",
        "{'a': {'b': ns}}",
    ] {
        refused(&grown(step));
    }
    refused(&long(LONG, "{% set x = [1] %}", "{% set x = [x] %}", "{{ x }}"));
    for value in ["a", "[a]", "{'b': a}", "namespace(b=a)", "b"] {
        refused(&format!(
            "{{% set a = namespace() %}}{{% set b = a %}}{{% set a.x = {value} %}}{{{{ a ~ '' }}}}"
        ));
    }
}

#[test]
fn no_assignment_escapes_its_bounds() {
    let grown = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% for j in range(2000) %}BEFORE\
                 {% set ns.x = STEP %}AFTER{% endfor %}{% endfor %}{{ ns.x ~ '' }}";
    for (before, step, after) in [
        ("", "1), (ns.x", ""),
        ("", "1)), ((ns.x", ""),
        ("", "ns.x,", ""),
        ("{#}{% raw %}#}", "[ns.x]", "{#{% endraw %}#}"),
        ("{{ {'a': {}} ~ '{% raw %}' }}", "[ns.x]", "{{ '{% endraw %}' }}"),
        ("{% raw %}endraw{% endraw %}", "[ns.x]", ""),
    ] {
        refused(&grown.replace("BEFORE", before).replace("STEP", step).replace("AFTER", after));
    }
}

#[test]
fn long_and_deep_sources_are_parsed_or_refused() {
    for (before, repeated, after) in [
        ("{{ x", "|list", " }}"),
        ("{{ [1]", "|reverse", "|list }}"),
        ("{{ 1", "+1", " }}"),
        ("{{ 'a'", "~'a'", " }}"),
        ("{{ x", ".a", " }}"),
        ("{{ x", "[0]", " }}"),
        ("{{ x", "()", " }}"),
        ("{{ ", "not ", "x }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "(", " }}"),
        ("{{ ", "[", " }}"),
        ("{{ ", "{1:", " }}"),
        ("{{ 1", " if 1 else 1", " }}"),
        ("{{ 1", " and 1", " }}"),
        ("{{ 1", " < 1", " }}"),
        ("{{ 2", "**2", " }}"),
        ("{{ x", " is x", " }}"),
        ("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
        ("", "{% if 1 %}", ""),
        ("", "{% for x in [1] %}", ""),
        ("", "{% macro x() %}", ""),
        ("", "{% with x = [x, x] %}", ""),
        ("", "{% generation %}", ""),
        ("", "{% raw %}", ""),
        ("", "{#", ""),
        ("", "{{", ""),
        ("", "{%", ""),
        ("{% set ", "x.", "y = 1 %}"),
        ("{% set ", "(", "y = 1 %}"),
        ("{% set ", "x,", "y = 1 %}"),
    ] {
        // The engine takes time quadratic in these: in a long template they reach the deadline.
        let size = if ["~'a'", "not ", "**2"].contains(&repeated) { 8 << 10 } else { LONG };
        // A text or an error, but neither a crash nor a hang.
        let _ = render(&long(size, before, repeated, after));
    }
    assert!(matches!(render(&"a".repeat(1 << 20)), Err(ChatError::Limit { .. })));
}

#[test]
fn files_cannot_be_read() {
    for source in ["{% include '/etc/passwd' %}", "{% import 'lib.rs' as x %}", "{% extends 'Cargo.toml' %}"]
    {
        assert!(matches!(refused(source), ChatError::Render { .. }));
    }
}
