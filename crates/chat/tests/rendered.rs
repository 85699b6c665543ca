//! Templates against what Jinja2 renders, from `scripts/chat_template_fixtures.py`.
//!
//! `TALLOW_CHAT_FIXTURE` names another output of the script, to compare with templates that are not kept here.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use tallow_chat::{ChatError, Context, DateTime, Message, Template};

#[derive(Deserialize)]
struct Fixture {
    now: DateTimeText,
    special_tokens: BTreeMap<String, String>,
    conversations: BTreeMap<String, Chat>,
    templates: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct DateTimeText(String);

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    add_generation_prompt: Option<bool>,
    #[serde(flatten)]
    variables: Map<String, Value>,
}

#[derive(Deserialize)]
struct Case {
    file: Option<PathBuf>,
    source: Option<String>,
    rendered: BTreeMap<String, Expected>,
}

#[derive(Deserialize, Debug, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Expected {
    Text(String),
    /// By the template, with this message.
    Raised(String),
    /// In this line.
    Syntax(usize),
    /// By Python, in its own words.
    Error(String),
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fixture() -> Fixture {
    let path = std::env::var_os("TALLOW_CHAT_FIXTURE")
        .map_or_else(|| root().join("tests/fixtures/rendered.json"), PathBuf::from);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn context(fixture: &Fixture, chat: &Chat) -> Context {
    Context {
        messages: chat.messages.clone(),
        tools: chat.tools.clone(),
        documents: chat.documents.clone(),
        add_generation_prompt: chat.add_generation_prompt.unwrap_or(true),
        special_tokens: fixture.special_tokens.clone(),
        variables: chat.variables.clone(),
        now: Some(fixture.now.0.parse::<DateTime>().unwrap()),
    }
}

fn source(case: &Case) -> String {
    match (&case.source, &case.file) {
        (Some(source), _) => source.clone(),
        (None, Some(file)) => std::fs::read_to_string(root().join(file)).unwrap(),
        (None, None) => panic!("a template needs a source or a file"),
    }
}

/// Snippets that Python refuses and the engine renders: it is stricter about types.
const LENIENT: [&str; 2] = ["snippet compare-types", "snippet undefined-less"];

/// Where `text` departs from `expected`, and what stands there in both.
fn difference(text: &str, expected: &str) -> String {
    let same = text.chars().zip(expected.chars()).take_while(|(a, b)| a == b).count();
    let near = |s: &str| s.chars().skip(same.saturating_sub(30)).take(90).collect::<String>();
    format!("\n  has   {:?}\n  wants {:?}", near(text), near(expected))
}

/// Nothing if the result is the expected one.
fn mismatch(result: &Result<String, ChatError>, expected: &Expected) -> Option<String> {
    match (result, expected) {
        (Ok(text), Expected::Text(wanted)) => (text != wanted).then(|| difference(text, wanted)),
        (Err(ChatError::Raised { message, .. }), Expected::Raised(wanted)) => {
            (*message != wanted.replace('\n', " ")).then(|| difference(message, wanted))
        }
        // Jinja2 looks up filters and tests when it parses.
        (Err(ChatError::Parse { at, .. } | ChatError::Render { at, .. }), Expected::Syntax(line))
            if at.line == *line =>
        {
            None
        }
        (Err(ChatError::Parse { .. } | ChatError::Render { .. }), Expected::Error(_)) => None,
        _ => Some(format!("\n  has   {result:?}\n  wants {expected:?}")),
    }
}

#[test]
fn templates_render_as_jinja2_renders_them() {
    let fixture = fixture();
    let (mut identical, mut failures) = (0, Vec::new());
    for (name, case) in &fixture.templates {
        let template = Template::parse(name, source(case));
        let wrong = failures.len();
        for (key, expected) in &case.rendered {
            let context = context(&fixture, &fixture.conversations[key]);
            let result =
                template.as_ref().map_err(Clone::clone).and_then(|template| template.render(&context));
            if LENIENT.contains(&name.as_str()) {
                assert!(
                    result.is_ok() && matches!(expected, Expected::Error(_)),
                    "{name} is lenient no more"
                );
                continue;
            }
            failures.extend(mismatch(&result, expected).map(|what| format!("{name}, {key}: {what}")));
        }
        identical += usize::from(failures.len() == wrong);
    }
    let total = fixture.templates.len();
    println!("{identical} of {total} templates render identically");
    assert!(failures.is_empty(), "{} renderings differ:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn assignments_and_raw_blocks_are_jinjas() {
    for (source, expected) in [
        ("{% set x = 1, %}{{ x | length }}{{ x[0] }}", "11"),
        ("{% set x = 1, -%} {{ x | length }}", "1"),
        ("{% set x = 1, 2 %}{{ x | length }}", "2"),
        ("{% set n = namespace() %}{% set n.x = 1, %}{{ n.x | length }}", "1"),
        ("{% set x = (1) %}{{ x }}", "1"),
        ("{% raw %}endraw {% set x = 1 %}{%- endraw -%} .", "endraw {% set x = 1 %}."),
    ] {
        let rendered = Template::parse("t", source).unwrap().render(&Context::default()).unwrap();
        assert_eq!(rendered, expected, "{source}");
    }
    for source in ["{% set x = a=1 %}", "{% set x = *[1] %}", "{% set x = 1) + (2 %}"] {
        assert!(matches!(Template::parse("t", source), Err(ChatError::Parse { .. })), "{source}");
    }
}
