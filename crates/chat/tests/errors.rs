//! What errors say, and that broken templates give errors.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use tallow_chat::{ChatError, Context, Message, Template};

fn context() -> Context {
    let messages =
        ["system", "user", "assistant", "user"].map(|role| Message::new(role, format!("by {role}")));
    Context { messages: messages.to_vec(), add_generation_prompt: true, ..Context::default() }
}

fn error(source: &str) -> String {
    Template::parse("t", source).and_then(|template| template.render(&context())).unwrap_err().to_string()
}

#[test]
fn errors_name_the_template_and_show_the_line() {
    for (source, expected) in [
        (
            "a\n{% if x %}\nb\n{% endfor %}",
            "chat template `t`, line 4: cannot parse: syntax error: unknown statement endfor, in `{% endfor %}`",
        ),
        (
            "a\n  {{ 1 + }}",
            "chat template `t`, line 2: cannot parse: syntax error: unexpected end of variable block, in `{{ 1 + }}`",
        ),
        ("a\r\nb\r\n{{ x.y }}", "chat template `t`, line 3: cannot render: undefined value, in `{{ x.y }}`"),
        ("a\rb\r{{ x.y }}\rc", "chat template `t`, line 3: cannot render: undefined value, in `{{ x.y }}`"),
        (
            "{{ 'a' | nothing }}",
            "chat template `t`, line 1: cannot render: unknown filter: filter nothing is unknown, in `{{ 'a' | nothing }}`",
        ),
        (
            "\n{{ 1 + 'a' }}",
            "chat template `t`, line 2: cannot render: invalid operation: tried to use + operator on unsupported types number and string, in `{{ 1 + 'a' }}`",
        ),
        (
            "\n\n{{ raise_exception('Roles must\nalternate ' ~ 1) }}",
            "chat template `t`, line 3: the template raised: Roles must alternate 1",
        ),
        (
            "{% macro f() %}\n{{ raise_exception('deep') }}{% endmacro %}\n{% if true %}{{ f() }}{% endif %}",
            "chat template `t`, line 2: the template raised: deep",
        ),
        (
            "{% generation %}\n{{ x.y }}\n{% endgeneration %}",
            "chat template `t`, line 2: cannot render: undefined value, in `{{ x.y }}`",
        ),
        (
            "\n{% for i in range(99999) %}\n{% for j in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
            "chat template `t`, line 3: stopped: more than 10000000 steps, in `{% for j in range(99999) %}{{ '' }}{% endfor %}{% endfor %}`",
        ),
        (
            "\n{% for i in range(99999) %}\n{{ 'abcdefgh' * 999 }}{% endfor %}",
            "chat template `t`, line 3: stopped: more than 16 MiB of text, in `{{ 'abcdefgh' * 999 }}{% endfor %}`",
        ),
    ] {
        assert_eq!(error(source), expected);
    }
}

#[test]
fn the_shown_line_is_short_and_harmless() {
    let shown = error(&format!("{{{{ x.y }}}}\u{1b}[31m{}", "é".repeat(300)));
    assert!(!shown.contains('\u{1b}') && shown.contains("..."), "{shown}");
    assert!(shown.chars().count() < 200, "{shown}");
    let raised = error("{{ raise_exception('\u{1b}[31mred\r\n') }}");
    assert!(raised.ends_with("raised:  [31mred "), "{raised:?}");
}

#[test]
fn a_raised_message_is_the_templates_own() {
    let source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% endfor %}";
    let template = Template::parse("t", source).unwrap();
    let Err(ChatError::Raised { at, message }) = template.render(&context()) else { panic!("must raise") };
    assert_eq!((at.template.as_str(), at.line, message.as_str()), ("t", 1, "no system"));
}

/// Deterministic noise: numbers by the generator SplitMix64.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }
}

/// Parses and renders; a panic inside would be reported as a limit without a line.
fn try_template(source: &str) {
    let result = Template::parse("noise", source).and_then(|template| template.render(&context()));
    if let Err(error) = result {
        let text = error.to_string();
        assert!(!text.contains("engine failed"), "{source:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{source:?}: {text}");
    }
}

#[test]
fn random_bytes_give_errors_or_texts() {
    let mut noise = Noise(1);
    let words = [
        "{{", "}}", "{%", "%}", "{#", "#}", "-", "set", "x", "=", "for", "in", "end", "'", "\"", "\\", "|",
        "(", "é", "\n", "\r",
    ];
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..noise.below(60)).map(|_| noise.below(256) as u8).collect();
        try_template(&String::from_utf8_lossy(&bytes));
        let text: String = (0..noise.below(30)).map(|_| words[noise.below(words.len())]).collect();
        try_template(&text);
    }
}

#[test]
fn mutated_templates_give_errors_or_texts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates");
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            sources.push(std::fs::read_to_string(path).unwrap());
        }
    }
    assert_eq!(sources.len(), 8);
    let mut noise = Noise(2);
    for _ in 0..2000 {
        let mut chars: Vec<char> = sources[noise.below(sources.len())].chars().collect();
        for _ in 0..=noise.below(4) {
            let (at, from) = (noise.below(chars.len()), noise.below(chars.len()));
            let length = noise.below(20).min(chars.len() - from);
            match noise.below(4) {
                0 => drop(chars.remove(at)),
                1 => chars[at] = chars[from],
                2 => drop(chars.splice(at..at, chars[from..from + length].to_vec())),
                _ => drop(chars.drain(from..from + length)),
            }
            if chars.is_empty() {
                chars.push('{');
            }
        }
        try_template(&chars.into_iter().collect::<String>());
    }
}
