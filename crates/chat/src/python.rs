//! What Python and Jinja2 do otherwise than the engine: text of values, tests, filters, methods of strings.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use crate::{json, limits};

/// Adds filters, tests, methods and the text of printed values.
pub(crate) fn add(environment: &mut Environment<'_>) {
    environment.set_formatter(|out, state, value| {
        let text = text(value)?;
        limits::count_output(state, text.len())?;
        out.write_str(&text).map_err(Error::from)
    });
    environment.set_unknown_method_callback(method);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("int", int);
    environment.add_filter("float", |value: &Value, default: Option<Value>| {
        number(value).map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from)
    });
    environment.add_filter("string", |value: &Value| {
        if value.kind() == ValueKind::String { Ok(value.clone()) } else { text(value).map(Value::from) }
    });
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("trim", |value: &Value, chars: Option<&str>| {
        text(value).map(|text| trim(&text, chars, true, true).to_owned())
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", is_sequence);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    // What Jinja2 lacks, no template can want; these make values that are lazy in each other, or print such.
    for filter in ["chain", "zip", "lines", "pprint"] {
        environment.remove_filter(filter);
    }
    environment.remove_global("debug");
}

/// Python's `str` of a value.
pub(crate) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(value, 0, &mut out)?;
            Ok(out)
        }
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => Ok(value.to_string()),
    }
}

/// Appends Python's `repr` of a value.
fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    // Deeper values come from loops that nest them, see `limits`.
    if depth > 200 || out.len() > limits::OUTPUT_BYTES {
        return Err(invalid("the printed value is too large or too deeply nested"));
    }
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            let number = f64::try_from(value.clone())?;
            out.push_str(&if number.is_finite() {
                json::float(number)
            } else {
                number.to_string().to_lowercase()
            });
        }
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                repr(&item, depth + 1, out)?;
            }
            out.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                repr(&key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value:?}")?,
    }
    Ok(())
}

/// `default(value, default_value='', boolean=False)`; the engine's takes no names.
fn default(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (positional, named) = from_args::<(&[Value], Kwargs)>(&args)?;
    let argument = |index: usize, name: &str| match positional.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None => named.get::<Option<Value>>(name),
    };
    let other = argument(0, "default_value")?.unwrap_or_else(|| Value::from(""));
    let boolean = argument(1, "boolean")?.is_some_and(|boolean| boolean.is_true());
    named.assert_all_used()?;
    Ok(if value.is_undefined() || (boolean && !value.is_true()) { other } else { value.clone() })
}

/// `int(value, default=0)`, which never fails.
fn int(value: &Value, default: Option<Value>) -> Value {
    let text = text(value).unwrap_or_default();
    if value.is_integer() {
        return value.clone();
    }
    if let Ok(integer) = text.trim().parse::<i64>() {
        return Value::from(integer);
    }
    match number(value) {
        Some(number) if number.is_finite() => Value::from(number as i64),
        Some(_) | None => default.unwrap_or_else(|| Value::from(0)),
    }
}

/// The value as a float, also of a string.
fn number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    }
}

/// What has a length and items, in Python also strings, maps and what is undefined.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
}

/// Methods that `minijinja-contrib` lacks, or has with fewer arguments or other white space.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(result) = string_method(text, name, args)? {
            return Ok(result);
        }
    } else if value.kind() == ValueKind::Seq && name == "index" {
        let (wanted,): (&Value,) = from_args(args)?;
        let index = value.try_iter()?.position(|item| item == *wanted);
        return index.map(Value::from).ok_or_else(|| invalid("the list does not have this item"));
    }
    if name == "format" {
        check_widths(value.as_str().unwrap_or_default(), args)?;
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// Refuses to pad a value to more than 9999 characters, which the method does without using fuel.
fn check_widths(format: &str, args: &[Value]) -> Result<(), Error> {
    let long = format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4);
    // A width may be an argument: `{:{}}`.
    let from_argument = format.split('{').any(|part| part.ends_with([':', '>', '<', '^', '.']));
    let large = |value: &Value| value.as_i64().is_some_and(|number| number > 9999);
    if long || (from_argument && args.iter().any(large)) {
        return Err(invalid("a width of more than 9999 characters"));
    }
    // It prints them with the engine's own, unbounded text.
    args.iter().try_for_each(|arg| text(arg).map(drop))
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(trim(text, chars, name != "rstrip", name != "lstrip"))
        }
        "split" | "rsplit" => {
            let (sep, limit, named): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let sep = match sep {
                Some(sep) => Some(sep),
                None => named.get("sep")?,
            };
            let limit = limit.or(named.get("maxsplit")?).and_then(|limit| usize::try_from(limit).ok());
            named.assert_all_used()?;
            split(text, sep, limit.unwrap_or(usize::MAX), name == "rsplit")?
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            let parts = if name == "partition" { text.split_once(sep) } else { text.rsplit_once(sep) };
            let three = match (parts, name) {
                (Some((before, after)), _) => [before, sep, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Value::from(Tuple::new(three.map(Value::from).to_vec()))
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Value::from(rest.unwrap_or(text))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let at = if name == "index" { text.find(part) } else { text.rfind(part) };
            let at = at.ok_or_else(|| invalid("the string does not have this part"))?;
            Value::from(text[..at].chars().count())
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

/// `text` without the characters of `chars` at its start and end, white space if that is none.
fn trim<'t>(text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
    let stripped = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(stripped) } else { text };
    if end { text.trim_end_matches(stripped) } else { text }
}

/// Python counts the separators of ASCII as white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn split(text: &str, sep: Option<&str>, limit: usize, from_end: bool) -> Result<Value, Error> {
    let parts: Vec<&str> = match (sep, from_end) {
        (Some(""), _) => return Err(invalid("empty separator")),
        (Some(sep), false) => text.splitn(limit.saturating_add(1), sep).collect(),
        (Some(sep), true) => {
            let mut parts: Vec<_> = text.rsplitn(limit.saturating_add(1), sep).collect();
            parts.reverse();
            parts
        }
        (None, from_end) => split_at_space(text, limit, from_end),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The words of `text`; what is left after `limit` of them is one more, with the space inside it.
fn split_at_space(text: &str, limit: usize, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = trim(text, None, !from_end, from_end);
    while !rest.is_empty() {
        let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let (part, more) = match cut {
            Some(at) if parts.len() < limit => {
                let (before, after) = rest.split_at(at);
                if from_end { (trim(after, None, true, false), before) } else { (before, after) }
            }
            Some(_) | None => (rest, ""),
        };
        parts.push(part);
        rest = if from_end { trim(more, None, false, true) } else { trim(more, None, true, false) };
    }
    if from_end {
        parts.reverse();
    }
    parts
}

fn invalid(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}
