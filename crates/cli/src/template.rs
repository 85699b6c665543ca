//! The chat template that a command uses.

use std::path::Path;

use tallow_chat::Template;
use tallow_models::ModelFile;
use tallow_models::chat::template_of;

use crate::error::{Error, Result};

/// The template that `--chat-template` gives, a file or the name of a built-in one; else the model file's own.
pub fn choose_template(requested: Option<&str>, file: &ModelFile) -> Result<Template> {
    let Some(requested) = requested else {
        if file.tokenizer().chat_template().is_none() {
            tracing::warn!("the file has no chat template: taking chatml (--chat-template names another)");
        }
        return template_of(file.tokenizer()).map_err(|why| Error::Template { why });
    };
    if !Path::new(requested).exists()
        && let Ok(template) = Template::builtin(requested)
    {
        return Ok(template);
    }
    let read = std::fs::read_to_string(requested);
    let source = read.map_err(|source| Error::ReadTemplate { requested: requested.into(), source })?;
    Template::parse(requested, source).map_err(|why| Error::Template { why })
}
