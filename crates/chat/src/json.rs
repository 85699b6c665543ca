//! The filter `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind};

use crate::limits;

/// Levels of nesting, enough for any schema and safe on the smallest thread's stack.
const MAX_DEPTH: usize = 200;

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn tojson(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let (positional, named) = from_args::<(&[Value], Kwargs)>(&args)?;
    let argument = |index: usize, name: &str| -> Result<Value, Error> {
        match positional.get(index) {
            Some(value) => Ok(value.clone()),
            None => Ok(named.get::<Option<Value>>(name)?.unwrap_or_default()),
        }
    };
    let indent = indentation(&argument(1, "indent")?)?;
    let (item, key) = separators(&argument(2, "separators")?, indent.is_some())?;
    let mut writer = Writer {
        out: String::new(),
        ascii: argument(0, "ensure_ascii")?.is_true(),
        indent,
        item,
        key,
        sort: argument(3, "sort_keys")?.is_true(),
    };
    named.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// Python's `repr` of a float, which is also its `str` and its JSON.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ ..-4 => format!("{mantissa}e-{:02}", -exponent),
        exponent @ 16.. => format!("{mantissa}e+{exponent:02}"),
        _ => format!("{value:?}"),
    }
}

/// What one level of nesting is indented by, from an integer or a string.
fn indentation(indent: &Value) -> Result<Option<String>, Error> {
    if indent.is_none() || indent.is_undefined() {
        return Ok(None);
    }
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    // In Python True is 1, and a negative width is none.
    let width = i64::try_from(indent.clone())?.clamp(0, 64);
    Ok(Some(" ".repeat(width as usize)))
}

/// The separators of items and of keys; each line of indented JSON ends in the former.
fn separators(pair: &Value, indented: bool) -> Result<(String, String), Error> {
    if pair.is_none() || pair.is_undefined() {
        let item = if indented { "," } else { ", " };
        return Ok((item.to_owned(), ": ".to_owned()));
    }
    Ok((pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()))
}

struct Writer {
    out: String,
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH || self.out.len() > limits::OUTPUT_BYTES {
            return Err(invalid("the value is too large or too deeply nested"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            kind => return Err(invalid(format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        let mut empty = true;
        self.out.push('[');
        for item in list.try_iter()? {
            self.start(depth + 1, empty);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.end(depth, empty);
        self.out.push(']');
        Ok(())
    }

    fn object(&mut self, map: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = map.try_iter()?.collect();
        if self.sort {
            keys.sort();
        }
        self.out.push('{');
        for (index, key) in keys.iter().enumerate() {
            self.start(depth + 1, index == 0);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    self.out.push('"');
                    self.value(key, depth + 1)?;
                    self.out.push('"');
                }
                kind => return Err(invalid(format!("a key of JSON cannot be {kind}"))),
            }
            self.out.push_str(&self.key);
            self.value(&map.get_item(key)?, depth + 1)?;
        }
        self.end(depth, keys.is_empty());
        self.out.push('}');
        Ok(())
    }

    /// What stands before an item, the first of its container or a later one.
    fn start(&mut self, depth: usize, first: bool) {
        if !first {
            self.out.push_str(&self.item);
        }
        self.line(depth);
    }

    /// What stands between the last item of a container and its bracket.
    fn end(&mut self, depth: usize, empty: bool) {
        if !empty {
            self.line(depth);
        }
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..' ' => self.escape(c),
                c if self.ascii && !(' '..='~').contains(&c) => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    /// The character as one or two UTF-16 units.
    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(self.out, "\\u{unit:04x}").expect("invariant: a string takes all writes");
        }
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {}", why.into()))
}
