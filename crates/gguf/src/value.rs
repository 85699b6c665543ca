//! Metadata values, and the typed questions that a program asks them.

use indexmap::IndexMap;

use crate::GgufError;

/// One metadata value (`gguf_metadata_value_type` in the GGUF specification).
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// 8-bit unsigned integer.
    U8(u8),
    /// 8-bit signed integer.
    I8(i8),
    /// 16-bit unsigned integer.
    U16(u16),
    /// 16-bit signed integer.
    I16(i16),
    /// 32-bit unsigned integer.
    U32(u32),
    /// 32-bit signed integer.
    I32(i32),
    /// 64-bit unsigned integer.
    U64(u64),
    /// 64-bit signed integer.
    I64(i64),
    /// 32-bit float.
    F32(f32),
    /// 64-bit float.
    F64(f64),
    /// Boolean.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Many values of one type.
    Array(Array),
}

/// A metadata array; all elements have one type. Arrays of arrays are not supported, as in ggml.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// 8-bit unsigned integers.
    U8(Vec<u8>),
    /// 8-bit signed integers.
    I8(Vec<i8>),
    /// 16-bit unsigned integers.
    U16(Vec<u16>),
    /// 16-bit signed integers.
    I16(Vec<i16>),
    /// 32-bit unsigned integers.
    U32(Vec<u32>),
    /// 32-bit signed integers.
    I32(Vec<i32>),
    /// 64-bit unsigned integers.
    U64(Vec<u64>),
    /// 64-bit signed integers.
    I64(Vec<i64>),
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
    /// Booleans.
    Bool(Vec<bool>),
    /// UTF-8 texts.
    String(Vec<String>),
}

impl Value {
    /// The value's type, and for arrays their length, for messages.
    pub fn describe(&self) -> String {
        match self {
            Value::U8(v) => format!("u8 {v}"),
            Value::I8(v) => format!("i8 {v}"),
            Value::U16(v) => format!("u16 {v}"),
            Value::I16(v) => format!("i16 {v}"),
            Value::U32(v) => format!("u32 {v}"),
            Value::I32(v) => format!("i32 {v}"),
            Value::U64(v) => format!("u64 {v}"),
            Value::I64(v) => format!("i64 {v}"),
            Value::F32(v) => format!("f32 {v}"),
            Value::F64(v) => format!("f64 {v}"),
            Value::Bool(v) => format!("bool {v}"),
            Value::String(_) => "a string".to_owned(),
            Value::Array(array) => format!("an array of {} {}", array.len(), array.element_type()),
        }
    }

    /// The value as an integer of any width, if it is one.
    fn integer(&self) -> Option<i128> {
        match self {
            Value::U8(v) => Some((*v).into()),
            Value::I8(v) => Some((*v).into()),
            Value::U16(v) => Some((*v).into()),
            Value::I16(v) => Some((*v).into()),
            Value::U32(v) => Some((*v).into()),
            Value::I32(v) => Some((*v).into()),
            Value::U64(v) => Some((*v).into()),
            Value::I64(v) => Some((*v).into()),
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
        }
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Name of the elements' type.
    pub fn element_type(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bool",
            Array::String(_) => "string",
        }
    }

    /// The elements as integers of any width, if they are integers.
    fn integers(&self) -> Option<Vec<i128>> {
        match self {
            Array::U8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::U16(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I16(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::U32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::U64(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I64(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) => None,
        }
    }
}

/// A file's metadata: keys and values, in file order.
///
/// The getters `get_*` fail with [`GgufError::MissingKey`] or [`GgufError::WrongType`], which name
/// the key; integers of every width are accepted as long as the value fits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: IndexMap<String, Value>,
}

impl Metadata {
    /// Metadata with no keys.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// Sets a key, and returns what it held before.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        self.entries.insert(key.into(), value)
    }

    /// Takes a key out, and returns what it held; the others keep their order.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.entries.shift_remove(key)
    }

    /// The value of a key, if it is there.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// Whether the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An integer that fits `u32`.
    pub fn get_u32(&self, key: &str) -> Result<u32, GgufError> {
        self.typed(key, "an integer that fits u32", |value| value.integer()?.try_into().ok())
    }

    /// An integer that fits `i32`.
    pub fn get_i32(&self, key: &str) -> Result<i32, GgufError> {
        self.typed(key, "an integer that fits i32", |value| value.integer()?.try_into().ok())
    }

    /// An integer that fits `u64`.
    pub fn get_u64(&self, key: &str) -> Result<u64, GgufError> {
        self.typed(key, "an integer that fits u64", |value| value.integer()?.try_into().ok())
    }

    /// A float; a 64-bit one is rounded.
    pub fn get_f32(&self, key: &str) -> Result<f32, GgufError> {
        self.typed(key, "a float", |value| {
            if let Value::F64(v) = value {
                return Some(*v as f32);
            }
            if let Value::F32(v) = value { Some(*v) } else { None }
        })
    }

    /// A boolean.
    pub fn get_bool(&self, key: &str) -> Result<bool, GgufError> {
        self.typed(key, "a bool", |value| if let Value::Bool(v) = value { Some(*v) } else { None })
    }

    /// A string.
    pub fn get_str(&self, key: &str) -> Result<&str, GgufError> {
        self.typed(
            key,
            "a string",
            |value| if let Value::String(v) = value { Some(v.as_str()) } else { None },
        )
    }

    /// An array of strings.
    pub fn get_strs(&self, key: &str) -> Result<&[String], GgufError> {
        self.typed(key, "an array of strings", |value| {
            if let Value::Array(Array::String(v)) = value { Some(v.as_slice()) } else { None }
        })
    }

    /// An array of 32-bit floats.
    pub fn get_f32s(&self, key: &str) -> Result<&[f32], GgufError> {
        self.typed(key, "an array of f32", |value| {
            if let Value::Array(Array::F32(v)) = value { Some(v.as_slice()) } else { None }
        })
    }

    /// An array of integers, each of which fits `u32`.
    pub fn get_u32s(&self, key: &str) -> Result<Vec<u32>, GgufError> {
        self.typed(key, "an array of integers that fit u32", |value| {
            let Value::Array(array) = value else { return None };
            array.integers()?.into_iter().map(|v| v.try_into().ok()).collect()
        })
    }

    /// An array of integers, each of which fits `i32`.
    pub fn get_i32s(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        self.typed(key, "an array of integers that fit i32", |value| {
            let Value::Array(array) = value else { return None };
            array.integers()?.into_iter().map(|v| v.try_into().ok()).collect()
        })
    }

    /// An array of booleans.
    pub fn get_bools(&self, key: &str) -> Result<&[bool], GgufError> {
        self.typed(key, "an array of bool", |value| {
            if let Value::Array(Array::Bool(v)) = value { Some(v.as_slice()) } else { None }
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, GgufError> {
        let value = self.get(key).ok_or_else(|| GgufError::MissingKey(key.to_owned()))?;
        take(value).ok_or_else(|| GgufError::WrongType {
            key: key.to_owned(),
            expected,
            found: value.describe(),
        })
    }
}

/// Turns a missing key into `None` and leaves all other errors, for keys that a file may leave out:
/// `optional(metadata.get_f32("llama.rope.freq_base"))?.unwrap_or(10000.0)`.
pub fn optional<T>(result: Result<T, GgufError>) -> Result<Option<T>, GgufError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(GgufError::MissingKey(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_any_width_are_accepted_when_they_fit() {
        let mut metadata = Metadata::new();
        metadata.insert("a", Value::I64(7));
        metadata.insert("b", Value::I8(-1));
        metadata.insert("c", Value::U64(1 << 40));
        metadata.insert("d", Value::Array(Array::I16(vec![1, -2])));
        assert_eq!(metadata.get_u32("a").unwrap(), 7);
        assert_eq!(metadata.get_i32("b").unwrap(), -1);
        assert_eq!(metadata.get_u64("c").unwrap(), 1 << 40);
        assert_eq!(metadata.get_i32s("d").unwrap(), [1, -2]);
        let message = |error: GgufError| error.to_string();
        assert_eq!(
            metadata.get_u32("b").map_err(message).unwrap_err(),
            "metadata key b: expected an integer that fits u32, found i8 -1"
        );
        assert!(metadata.get_u32("c").is_err() && metadata.get_u32s("d").is_err());
        assert_eq!(
            metadata.get_str("d").map_err(message).unwrap_err(),
            "metadata key d: expected a string, found an array of 2 i16"
        );
        assert_eq!(metadata.get_f32("x").map_err(message).unwrap_err(), "metadata has no key x");
        assert_eq!(optional(metadata.get_f32("x")).unwrap(), None);
        assert!(optional(metadata.get_f32("a")).is_err());
    }
}
