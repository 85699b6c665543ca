//! What is changed in a template's text before it is parsed; lines keep their numbers, for errors.
//!
//! - Line ends become `\n`, as in Jinja2.
//! - `{% generation %}` becomes `{% with %}`. transformers finds the assistant's tokens for training by these tags;
//!   their only effect on the text is a scope of variables.
//! - `{% set target = expression %}` becomes `{% set target = bounded((expression)) %}`, see [`crate::limits`]. In the
//!   inner parentheses a comma makes a tuple, at the end as well, and `name=value` stays an error.
//!
//! Where a tag ends must be where the engine says so: an assignment that is overlooked is not bounded. What the engine
//! refuses anyway, such as a bracket that nothing opened, is left as it is up to the end.

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
            // `{#}` begins a comment and does not end it.
            Some(b'#') => tag[2..].find("#}").map(|end| end + 4),
            Some(b'{') => tag_end(tag, "}}"),
            Some(b'%') if name(tag) == "raw" => raw_end(tag),
            Some(b'%') => tag_end(tag, "%}"),
            _ => Some(1),
        };
        let Some(length) = length else {
            rest = tag;
            break;
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

/// The length of `text`, which starts with a tag, up to and with `close`; string literals and brackets may contain that.
///
/// None if the tag does not end or closes more brackets than it opens.
fn tag_end(text: &str, close: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut quote = None;
    let mut open_brackets = 0_usize;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, _) if open_brackets == 0 && bytes[at..].starts_with(close.as_bytes()) => {
                return Some(at + close.len());
            }
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => open_brackets += 1,
            (None, b')' | b']' | b'}') => open_brackets = open_brackets.checked_sub(1)?,
            (None, _) => {}
        }
        at += 1;
    }
    None
}

/// The length of `text`, which starts with a raw block, up to and with the tag that ends it.
fn raw_end(text: &str) -> Option<usize> {
    text.match_indices("{%").find_map(|(start, open)| {
        let inside = &text[start + open.len()..];
        let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside);
        let rest = trim_space(trim_space(inside).strip_prefix("endraw")?);
        let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
        Some(text.len() - rest.len())
    })
}

/// The text without the space in front that the engine allows in a tag.
fn trim_space(text: &str) -> &str {
    text.trim_start_matches(|c: char| c.is_ascii_whitespace())
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
    for part in [target, "= ", bounded, "((", expression, ")) ", trim, "%}"] {
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
        assert_eq!(rewrite("{%- set x = 'a=%}' -%}"), "{%- set x = bounded__(( 'a=%}' )) -%}");
        assert_eq!(rewrite("{% set n.x=y == 1%}"), "{% set n.x= bounded_attribute__((y == 1)) %}");
    }

    #[test]
    fn tags_end_where_the_engine_ends_them() {
        for before in ["{#}{% raw %}#}", "{{ {'a': {}} ~ '{% raw %}' }}", "{% raw %}endraw{%- endraw +%}"] {
            let rewritten = before.to_owned() + "{% set x = bounded__(( 1)) %}";
            assert_eq!(rewrite(&(before.to_owned() + "{% set x = 1%}")), rewritten);
        }
    }

    #[test]
    fn nothing_else_changes() {
        for same in [
            "{# {% generation %} #}",
            "{# {% generation %}",
            "{% raw %}{% generation %}{% set x = 1 %}{% endraw %}",
            "{% raw %}endraw {% set x = 1 %}{%- endraw -%}",
            "{% raw %}{% endraw x %}{% set x = 1 %}{%+  endraw +%}",
            "{{ '{% generation %}' }}",
            "{{ {'a': {}} ~ '{% generation %}' }}",
            "{% set x = 1), (x %}",
            "{% set x = (1 %}",
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
