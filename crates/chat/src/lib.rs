//! Chat templates in Jinja, and the messages of a conversation.
//!
//! A language model that chats was trained on text in one format: who speaks, where a message ends, where the reply
//! begins. Model files carry that format as a Jinja template. [`Template`] renders it as `apply_chat_template` of
//! Hugging Face's transformers does; [`Template::builtin`] has a few formats for files without one. [`Conversation`]
//! keeps the messages, and puts the system prompt in front of the user's first message for a template that takes none.
//!
//! ```
//! use tallow_chat::{Context, Conversation, Template};
//!
//! let template = Template::parse(
//!     "tiny",
//!     "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}
//!      {%- if add_generation_prompt %}<assistant>{% endif %}",
//! )?;
//! let context = Context { add_generation_prompt: true, ..Context::default() };
//! let mut chat = Conversation::with_system("Be brief.");
//!
//! chat.push_user("Hello!");
//! let first = chat.render(&template, &context)?;
//! assert_eq!(first.text, "<system>Be brief.</s><user>Hello!</s><assistant>");
//!
//! // The model answered "Hi."
//! chat.push_assistant("Hi.");
//! chat.push_user("Bye!");
//! let second = chat.render(&template, &context)?;
//! assert_eq!(second.text, first.text + "Hi.</s><user>Bye!</s><assistant>");
//! # Ok::<(), tallow_chat::ChatError>(())
//! ```
//!
//! # Trust
//!
//! A template comes with a file, so it is not trusted. It cannot read files. Its steps, its output, the size and the
//! nesting of its values, its recursion and its time are bounded. An error names the template and the line, and shows
//! that line.
//!
//! # Differences from Jinja2
//!
//! Where Python fails, this sometimes renders: `none` is an empty list to a loop, lazy sequences have JSON, values of
//! different types compare. `safe` marks nothing: in Jinja2 it makes `+` escape what is added, which no model wants.
//! `'%s' % value`, `varargs` and `kwargs` in macros, and rare methods of strings are errors. `~` and `join` write floats
//! beyond 1e16 or below 1e-4 without an exponent.
//!
//! What it never does: read model files (`tallow-gguf`), tokenize, or run a model (`tallow-models`).

mod builtin;
mod context;
mod conversation;
mod environment;
mod error;
mod json;
mod limits;
mod message;
mod python;
mod rewrite;
mod template;

pub use builtin::builtin_names;
pub use context::Context;
pub use conversation::{Conversation, Rendering};
pub use error::{ChatError, Location};
pub use jiff::civil::DateTime;
pub use message::{Content, Message};
pub use template::Template;
