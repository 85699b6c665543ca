//! What is changed in a template's text before it is parsed; lines keep their numbers, for errors.
//!
//! - Line ends become `\n`, as in Jinja2.
//! - `{% generation %}` becomes `{% with %}`. transformers finds the assistant's tokens for training by these tags;
//!   their only effect on the text is a scope of variables.
//! - `{% set target = expression %}` becomes `{% set target = bounded(expression) %}`, see [`crate::limits`].

use crate::limits::{BOUNDED, BOUNDED_ATTRIBUTE};

/// The template as the engine gets it.
pub(crate) fn rewrite(source: &str) -> String {
    let source = normal_lines(source);
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find('{') {
        let (text, tag) = rest.split_at(start);
        out.push_str(text);
        let length = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'{') => tag_end(tag, "}}"),
            Some(b'%') if name(tag) == "raw" => tag.find("endraw").unwrap_or(tag.len()),
            Some(b'%') => tag_end(tag, "%}"),
            _ => 1,
        };
        let (tag, after) = tag.split_at(length);
        match name(tag) {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            "set" => push_set(tag, &mut out),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The text with `\n` as its only line end.
pub(crate) fn normal_lines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// The first word of a statement, empty for other tags.
fn name(tag: &str) -> &str {
    let Some(inside) = tag.strip_prefix("{%") else { return "" };
    let inside = inside.trim_start_matches(['-', '+']).trim_start();
    inside.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("")
}

/// The length of `text`, which starts with a tag, up to and with `close`; string literals may contain that.
fn tag_end(text: &str, close: &str) -> usize {
    let bytes = text.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(close.as_bytes()) => return at + close.len(),
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// Writes a `set` statement with its expression bounded; one that captures a block has none.
fn push_set(tag: &str, out: &mut String) {
    let parts = tag.strip_suffix("%}").and_then(|inside| inside.split_once('='));
    let Some((target, expression)) = parts.filter(|(target, _)| !target.contains(['|', '"', '\''])) else {
        return out.push_str(tag);
    };
    let bounded = if target.contains('.') { BOUNDED_ATTRIBUTE } else { BOUNDED };
    let trim = if expression.ends_with(['-', '+']) { 1 } else { 0 };
    let (expression, trim) = expression.split_at(expression.len() - trim);
    // An empty expression is an error of the template, which the call would hide.
    if expression.trim().is_empty() {
        return out.push_str(tag);
    }
    for part in [target, "= ", bounded, "(", expression, ") ", trim, "%}"] {
        out.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn generation_becomes_a_scope() {
        assert_eq!(rewrite("{%- generation -%}x{% endgeneration %}"), "{%- with -%}x{% endwith %}");
    }

    #[test]
    fn assignments_are_bounded() {
        assert_eq!(rewrite("{%- set x = 'a=%}' -%}"), "{%- set x = bounded__( 'a=%}' ) -%}");
        assert_eq!(rewrite("{% set n.x=y == 1%}"), "{% set n.x= bounded_attribute__(y == 1) %}");
    }

    #[test]
    fn nothing_else_changes() {
        for same in [
            "{# {% generation %} #}",
            "{# {% generation %}",
            "{% raw %}{% generation %}{% set x = 1 %}{% endraw %}",
            "{{ '{% generation %}' }}",
            "{% if '%}{% generation %}' %}{% endif %}",
            "{% if generation %}{% endif %}{ generation %}",
            "{% generations %}",
            "{% set x %}a = b{% endset %}",
            "{% set x | replace('a', '=') %}{% endset %}",
            "{% set x = %}",
            "{% set x = ",
            "{",
        ] {
            assert_eq!(rewrite(same), same);
        }
    }
}
