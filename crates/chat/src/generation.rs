//! The tags `{% generation %}` and `{% endgeneration %}`.
//!
//! transformers finds the assistant's tokens for training by them. Their only effect on the text is a scope of
//! variables, which `{% with %}` has, too: they become that. Lines stay what they are, for errors.

use std::borrow::Cow;

/// The template with both tags replaced, outside of comments, raw blocks and expressions.
pub(crate) fn replace_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
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
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The first word of a statement, empty for other tags.
fn name(tag: &str) -> &str {
    let Some(inside) = tag.strip_prefix("{%") else { return "" };
    let inside = inside.trim_start_matches(['-', '+']).trim_start();
    inside.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("")
}

/// The length of `text`, which starts with a tag, up to and with `close`, which does not count in string literals.
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

#[cfg(test)]
mod tests {
    use super::replace_tags;

    #[test]
    fn tags_become_scopes_and_nothing_else_changes() {
        let replaced = |source| replace_tags(source).into_owned();
        assert_eq!(replaced("{%- generation -%}x{% endgeneration %}"), "{%- with -%}x{% endwith %}");
        for same in [
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ '{% generation %}' }}",
            "{% if '%}{% generation %}' %}{% endif %}",
            "{% if generation %}{% endif %}{ generation %}",
            "{% generations %}",
            "{% generation",
        ] {
            assert_eq!(replaced(same).replace("with", "generation"), same);
        }
        assert_eq!(replaced("{# {% generation %}"), "{# {% generation %}");
    }
}
