//! Parsing and rendering, with limits on what a template may use.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::ZonedDateTime;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};

use crate::environment::{self, Raised};
use crate::error::one_line;
use crate::limits::{self, Failure, OUTPUT_BYTES, TooLong};
use crate::{ChatError, Context, Location, rewrite};

/// Steps of the template engine per rendering; it also counts 64 bytes of data as a step.
///
/// The largest known templates take about 20 steps per message and pair of messages: this is enough for 700 messages
/// where time grows with their square, and stops an endless loop in about a second.
const STEPS: u64 = 10_000_000;

/// Bytes that a template may have, four times the longest published ones; the engine recurses over long expressions.
const SOURCE_BYTES: usize = 128 << 10;

/// The name inside the environment: users' names must not choose an escaping or be included.
const NAME: &str = "chat";

/// A chat template, parsed.
#[derive(Debug, Clone)]
pub struct Template {
    name: String,
    source: String,
    environment: Arc<Environment<'static>>,
    /// What a rendering may take.
    time: Duration,
    /// Whether a rendering took longer. Its thread cannot be ended, so there shall be no second one.
    slow: Arc<AtomicBool>,
}

impl Template {
    /// Parses the Jinja text of a template; `name` is for its errors.
    pub fn parse(name: impl Into<String>, source: impl Into<String>) -> Result<Self, ChatError> {
        let (name, source) = (name.into(), source.into());
        let mut template =
            Self { name, source, environment: Arc::default(), time: limits::TIME, slow: Arc::default() };
        if template.source.len() > SOURCE_BYTES {
            let what = format!("{} bytes of template, more than {SOURCE_BYTES}", template.source.len());
            return Err(ChatError::Limit { at: template.location(0), what });
        }
        let jinja = rewrite::rewrite(&template.source);
        let parsed = limits::on_own_thread(template.time, move || {
            let mut environment = environment::new(STEPS);
            environment.add_template_owned(NAME, jinja).map(|()| environment)
        });
        match parsed.map_err(|failure| template.failed(failure))? {
            Ok(environment) => template.environment = Arc::new(environment),
            Err(error) => {
                return Err(ChatError::Parse { at: template.location_of(&error), why: why(&error) });
            }
        }
        Ok(template)
    }

    /// The name that the template was parsed under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Jinja text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the messages and other variables of `context` to the text that the model reads.
    ///
    /// The text has the special tokens in it that the template writes, often the one that begins a text: a tokenizer
    /// must recognize them and add none.
    ///
    /// A template that has once taken too much time is refused from then on, and so are its clones.
    pub fn render(&self, context: &Context) -> Result<String, ChatError> {
        if self.slow.load(Ordering::Relaxed) {
            return Err(self.failed(Failure::Slow));
        }
        let (environment, variables) = (Arc::clone(&self.environment), variables(context));
        let rendered = limits::on_own_thread(self.time, move || render(&environment, variables));
        if matches!(rendered, Err(Failure::Slow)) {
            self.slow.store(true, Ordering::Relaxed);
        }
        match rendered.map_err(|failure| self.failed(failure))? {
            Ok(text) => Ok(text),
            Err((error, full)) => Err(self.render_error(&error, full)),
        }
    }

    fn failed(&self, failure: Failure) -> ChatError {
        let what = match failure {
            Failure::Slow => format!("more than {} s", self.time.as_secs_f32()),
            Failure::Broken => "the template engine failed".to_owned(),
        };
        ChatError::Limit { at: self.location(0), what }
    }

    fn render_error(&self, error: &Error, full: bool) -> ChatError {
        let at = self.location_of(error);
        if full || find::<TooLong>(error).is_some() {
            return ChatError::Limit { at, what: format!("more than {} MiB of text", OUTPUT_BYTES >> 20) };
        }
        if let Some(Raised(message)) = find(error) {
            return ChatError::Raised { at, message: one_line(message) };
        }
        if out_of_fuel(error) {
            return ChatError::Limit { at, what: format!("more than {STEPS} steps") };
        }
        ChatError::Render { at, why: why(error) }
    }

    fn location_of(&self, error: &Error) -> Location {
        self.location(error.line().unwrap_or(0))
    }

    fn location(&self, line: usize) -> Location {
        Location::new(&self.name, &self.source, line)
    }
}

/// The text, or the error and whether the output was full.
fn render(environment: &Environment<'_>, variables: Value) -> Result<String, (Error, bool)> {
    let mut output = Output { text: Vec::new(), full: false };
    let template = environment.get_template(NAME).map_err(|error| (error, false))?;
    let rendered = template.render_captured_to(variables, &mut output).map(drop);
    rendered.map_err(|error| (error, output.full))?;
    String::from_utf8(output.text)
        .map_err(|error| (Error::new(ErrorKind::WriteFailure, error.to_string()), false))
}

/// The variables of `context` as the engine's values.
fn variables(context: &Context) -> Value {
    let mut pairs = vec![
        ("messages".to_owned(), Value::from(Serde(&context.messages))),
        ("tools".to_owned(), Value::from(Serde(&context.tools))),
        ("documents".to_owned(), Value::from(Serde(&context.documents))),
        ("add_generation_prompt".to_owned(), Value::from(context.add_generation_prompt)),
    ];
    let now = context.now.unwrap_or_else(|| ZonedDateTime::now().datetime());
    pairs.push(("strftime_now".to_owned(), Value::from_function(move |format: &str| strftime(format, now))));
    pairs
        .extend(context.special_tokens.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str()))));
    pairs.extend(context.variables.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value)))));
    Value::from_pairs(pairs)
}

fn strftime(format: &str, now: jiff::civil::DateTime) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// The engine's description of an error without the place, which the caller adds.
fn why(error: &Error) -> String {
    let text = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    one_line(&text)
}

/// The error of type `T` that caused `error`.
fn find<T: std::error::Error + 'static>(error: &Error) -> Option<&T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

fn out_of_fuel(error: &Error) -> bool {
    let fuel = |cause: &Error| matches!(cause.kind(), ErrorKind::OutOfFuel);
    fuel(error) || causes(error).filter_map(|cause| cause.downcast_ref()).any(fuel)
}

fn causes(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(error), |cause| cause.source())
}

/// Text that refuses to grow beyond [`OUTPUT_BYTES`].
struct Output {
    text: Vec<u8>,
    full: bool,
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > OUTPUT_BYTES {
            self.full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::Template;
    use crate::{ChatError, Context};

    #[test]
    fn a_slow_template_is_not_rendered_again() {
        let source = "{% if wait %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}";
        let mut template = Template::parse("slow", source).unwrap();
        let clone = template.clone();
        let mut context = Context::default();
        assert_eq!(clone.render(&context).unwrap(), "");

        context.variables.insert("wait".to_owned(), true.into());
        let time = std::mem::replace(&mut template.time, Duration::from_millis(5));
        let error = template.render(&context).unwrap_err();
        assert_eq!(error.to_string(), "chat template `slow`: stopped: more than 0.005 s");

        // Neither with variables that would be quick, nor by a clone from before.
        template.time = time;
        for template in [&template, &clone] {
            let error = template.render(&Context::default()).unwrap_err();
            assert!(matches!(error, ChatError::Limit { .. }), "{error}");
            assert_eq!(error.to_string(), "chat template `slow`: stopped: more than 10 s");
        }
    }
}
