//! Lists of seeds on the command line.

use crate::error::{BenchError, Result};

/// Seeds of a list such as `1,2,5` or `1..10`, where the end is included.
///
/// # Errors
/// When it is no such list.
pub fn parse_seeds(text: &str) -> Result<Vec<u64>> {
    let wrong = || {
        let why = "expected numbers such as 1,2,5 or 1..10".to_string();
        BenchError::Option { option: "--seeds", value: text.into(), why }
    };
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
    let mut seeds = vec![];
    for part in text.split(',') {
        match part.split_once("..") {
            Some((first, last)) => seeds.extend(number(first)?..=number(last)?),
            None => seeds.push(number(part)?),
        }
    }
    if seeds.is_empty() { Err(wrong()) } else { Ok(seeds) }
}
