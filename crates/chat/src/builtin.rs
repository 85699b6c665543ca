//! Templates for model files that have none.

use crate::{ChatError, Template};

/// Names and texts. Each states the format that the model's authors published, in Jinja written for this crate.
const BUILTINS: &[(&str, &str)] = &[
    ("chatml", include_str!("../templates/chatml.jinja")),
    ("gemma", include_str!("../templates/gemma.jinja")),
    ("llama2", include_str!("../templates/llama2.jinja")),
    ("llama3", include_str!("../templates/llama3.jinja")),
    ("mistral", include_str!("../templates/mistral.jinja")),
    ("phi3", include_str!("../templates/phi3.jinja")),
    ("zephyr", include_str!("../templates/zephyr.jinja")),
];

/// The names that [`Template::builtin`] knows, in alphabetical order.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    BUILTINS.iter().map(|(name, _)| *name)
}

impl Template {
    /// The built-in template of this name, for a model file that has none; `chatml` is the usual guess.
    pub fn builtin(name: &str) -> Result<Self, ChatError> {
        let Some((name, source)) = BUILTINS.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = builtin_names().collect();
            return Err(ChatError::UnknownBuiltin { name: name.to_owned(), known: known.join(", ") });
        };
        Self::parse(*name, *source)
    }
}
