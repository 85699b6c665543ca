//! `tallow tokenize`: ids and pieces of a text.

use std::io::{Read, Write};

use tallow_gguf::{GgufFile, Tokenizer, TokenizerOptions};

use crate::args::TokenizeArgs;
use crate::error::{Error, Result};
use crate::load::about;
use crate::terminal::escaped;

/// Runs the command.
pub fn tokenize(args: &TokenizeArgs) -> Result<()> {
    let wrong = |error: tallow_gguf::GgufError| about(&args.model, error.into());
    let file = GgufFile::open(&args.model).map_err(wrong)?;
    let options = TokenizerOptions { pre: args.pre.clone() };
    let tokenizer = Tokenizer::with_options(file.metadata(), &options).map_err(wrong)?;
    let text = match &args.text {
        Some(text) => text.clone(),
        None => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|source| Error::Read { path: "standard input".into(), source })?;
            text
        }
    };
    let encoded = match args.ordinary {
        true => tokenizer.encode_ordinary(&text, !args.bare),
        false => tokenizer.encode(&text, !args.bare),
    };
    let ids = encoded.map_err(|source| Error::Run(source.into()))?;
    let mut out = std::io::stdout().lock();
    if args.ids {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(","))?;
    } else {
        for &id in &ids {
            writeln!(out, "{id:>8}  {}", piece(&tokenizer, id))?;
        }
    }
    out.flush()?;
    Ok(())
}

/// What a token stands for, quoted; a control token's name in the vocabulary, not quoted.
fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    if tokenizer.is_control(id) {
        return escaped(tokenizer.token_text(id).unwrap_or_default());
    }
    match std::str::from_utf8(tokenizer.token_bytes(id)) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("{:02x?}", tokenizer.token_bytes(id)),
    }
}
