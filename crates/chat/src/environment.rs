//! The template engine, set up as Hugging Face's transformers sets up Jinja2.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use crate::{limits, python};

/// The message of a template that called `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub String);

/// An environment that gives a rendering `steps` of fuel.
pub(crate) fn new(steps: u64) -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("invariant: the default delimiters are valid"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(steps));
    // Debug information copies the template and all variables into each error.
    environment.set_debug(false);
    environment.add_function("raise_exception", raise_exception);
    python::add(&mut environment);
    limits::add_functions(&mut environment);
    environment
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = python::text(message)?;
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}
