//! Conversations: what is rendered, saved and dropped.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use tallow_chat::{ChatError, Content, Context, Conversation, Message, Template, builtin_names};

fn prompt() -> Context {
    Context { add_generation_prompt: true, ..Context::default() }
}

fn chat() -> Conversation {
    let mut chat = Conversation::with_system("Be brief.");
    for turn in 1..=3 {
        chat.push_user(format!("question {turn}"));
        chat.push_assistant(format!("answer {turn}"));
    }
    chat
}

fn texts(chat: &Conversation) -> Vec<String> {
    chat.messages().iter().map(Message::text).collect()
}

#[test]
fn every_builtin_says_everything_in_order() {
    for name in builtin_names() {
        let template = Template::builtin(name).unwrap();
        let rendering = chat().render(&template, &prompt()).unwrap();
        let mut rest = rendering.text.as_str();
        for text in texts(&chat()) {
            let at = rest.find(&text).unwrap_or_else(|| panic!("{name} lacks {text}: {}", rendering.text));
            rest = &rest[at + text.len()..];
        }
        assert_eq!(rendering.system_in_user_message, ["gemma", "mistral"].contains(&name), "{name}");
    }
    let error = Template::builtin("llama9").unwrap_err().to_string();
    assert_eq!(
        error,
        "no built-in chat template is named `llama9`; there are chatml, gemma, llama2, llama3, mistral, phi3, zephyr"
    );
}

#[test]
fn builtins_write_the_formats_of_their_models() {
    let mut chat = Conversation::with_system("S");
    chat.push_user("U");
    chat.push_assistant("A");
    chat.push_user("V");
    for (name, expected) in [
        (
            "chatml",
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n\
             <|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "gemma",
            "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n\
             <start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
        ),
        ("llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]"),
        (
            "llama3",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("mistral", "<s>[INST] S\n\nU [/INST] A</s>[INST] V [/INST]"),
        (
            "phi3",
            "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>\n<|assistant|>\n",
        ),
        (
            "zephyr",
            "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|user|>\nV</s>\n<|assistant|>\n",
        ),
    ] {
        let rendering = chat.render(&Template::builtin(name).unwrap(), &prompt()).unwrap();
        assert_eq!(rendering.text, expected, "{name}");
    }
}

#[test]
fn a_refused_system_prompt_is_folded() {
    let gemma = Template::builtin("gemma").unwrap();
    let mut chat = Conversation::with_system("Be brief.");
    chat.push_user("Hello");
    let rendering = chat.render(&gemma, &prompt()).unwrap();
    assert!(rendering.system_in_user_message);
    assert!(rendering.text.contains("user\nBe brief.\n\nHello<end_of_turn>"), "{}", rendering.text);

    // One that leaves it out without a word.
    let silent = "{% for m in messages if m.role != 'system' %}{{ m.content }}|{% endfor %}";
    let silent = Template::parse("silent", silent).unwrap();
    let rendering = chat.render(&silent, &prompt()).unwrap();
    assert_eq!((rendering.text.as_str(), rendering.system_in_user_message), ("Be brief.\n\nHello|", true));

    // Parts of content, and no user's message at all.
    let list = json!([{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]);
    let parts = Conversation::from_json(&list.to_string()).unwrap();
    let joined = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                  {% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
    let joined = Template::parse("joined", joined).unwrap();
    assert_eq!(parts.render(&joined, &prompt()).unwrap().text, "S\n\nU");
    let alone = Conversation::with_system("S").render(&gemma, &prompt()).unwrap();
    assert_eq!(alone.text, "<bos><start_of_turn>user\nS<end_of_turn>\n<start_of_turn>model\n");

    // What is refused for another reason stays so, and without a system prompt nothing is folded.
    let never = Template::parse("never", "{{ raise_exception('never') }}").unwrap();
    assert!(
        matches!(chat.render(&never, &prompt()), Err(ChatError::Raised { message, .. }) if message == "never")
    );
    let mut plain = Conversation::new();
    plain.push_user("Hello");
    assert!(!plain.render(&gemma, &prompt()).unwrap().system_in_user_message);
}

#[test]
fn a_system_prompt_is_not_mistaken_for_other_text() {
    let silent =
        "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
    let silent = Template::parse("silent", silent).unwrap();
    // The last is what `render` may look for itself.
    for system in ["assistant", "Hello", "e", "<", "\u{f8fe}"] {
        let mut chat = Conversation::with_system(system);
        chat.push_user("Hello \u{f8fe}\u{f8fe}");
        let rendering = chat.render(&silent, &prompt()).unwrap();
        let expected = format!("<user>{system}\n\nHello \u{f8fe}\u{f8fe}<assistant>");
        assert_eq!((rendering.text, rendering.system_in_user_message), (expected, true));
    }

    // Written in another form, it is there all the same.
    let json =
        Template::parse("json", "{% for m in messages %}{{ m.content | tojson }}{% endfor %}").unwrap();
    let mut chat = Conversation::with_system("two\nlines");
    chat.push_user("Hello");
    let rendering = chat.render(&json, &prompt()).unwrap();
    assert_eq!(
        (rendering.text.as_str(), rendering.system_in_user_message),
        (r#""two\nlines""Hello""#, false)
    );

    // In parts, of which the template writes each.
    let list = json!([
        {"role": "system", "content": [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]},
        {"role": "user", "content": [{"type": "text", "text": "U"}]},
    ]);
    let parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}";
    let parts = Template::parse("parts", parts).unwrap();
    let rendering = Conversation::from_json(&list.to_string()).unwrap().render(&parts, &prompt()).unwrap();
    assert_eq!((rendering.text.as_str(), rendering.system_in_user_message), ("[S][T][U]", false));

    // A template that takes no message at all stays as it is.
    let mut chat = Conversation::with_system("fixed");
    chat.push_user("Hello");
    let fixed = Template::parse("fixed", "a fixed text").unwrap();
    let rendering = chat.render(&fixed, &prompt()).unwrap();
    assert_eq!((rendering.text.as_str(), rendering.system_in_user_message), ("a fixed text", false));
}

#[test]
fn a_blank_system_prompt_that_is_refused_is_left_out() {
    let gemma = Template::builtin("gemma").unwrap();
    let chatml = Template::builtin("chatml").unwrap();
    let mut plain = Conversation::new();
    plain.push_user("Hello");
    let expected = plain.render(&gemma, &prompt()).unwrap();
    for blank in ["", " \n"] {
        let mut chat = Conversation::with_system(blank);
        chat.push_user("Hello");
        assert_eq!(chat.render(&gemma, &prompt()).unwrap(), expected);
        let rendering = chat.render(&chatml, &prompt()).unwrap();
        assert!(rendering.text.starts_with("<|im_start|>system\n"), "{}", rendering.text);
        assert!(!rendering.system_in_user_message);
    }
}

#[test]
fn the_oldest_turns_go_and_roles_still_alternate() {
    let mut chat = chat();
    assert_eq!(chat.turns(), 3);
    assert_eq!(chat.drop_oldest_turns(1), 1);
    assert_eq!(texts(&chat), ["Be brief.", "question 2", "answer 2", "question 3", "answer 3"]);
    assert_eq!(chat.drop_oldest_turns(0), 0);
    chat.push_user("question 4");
    assert_eq!(chat.drop_oldest_turns(9), 2);
    assert_eq!(texts(&chat), ["Be brief.", "question 4"]);
    assert_eq!(chat.drop_oldest_turns(1), 0);
    assert_eq!(Conversation::new().drop_oldest_turns(1), 0);

    // A turn has its calls of tools with it, and what stood before the first question.
    let roles = ["assistant", "user", "assistant", "tool", "assistant", "user"];
    let mut tools = Conversation::new();
    roles.iter().for_each(|role| tools.push(Message::new(*role, *role)));
    assert_eq!(tools.drop_oldest_turns(1), 1);
    assert_eq!(texts(&tools), ["user"]);
}

#[test]
fn turns_are_taken_back_and_forgotten() {
    let mut chat = chat();
    assert_eq!(chat.pop().unwrap().text(), "answer 3");
    chat.reset();
    assert_eq!(texts(&chat), ["Be brief."]);
    assert_eq!(chat.pop(), None);
    chat.set_system(Some("Be long.".to_owned()));
    assert_eq!(chat.system().as_deref(), Some("Be long."));
    chat.push_user("Hello");
    chat.set_system(None);
    assert_eq!((chat.system(), texts(&chat)), (None, vec!["Hello".to_owned()]));
    chat.set_system(Some("Back.".to_owned()));
    assert_eq!(texts(&chat), ["Back.", "Hello"]);
}

#[test]
fn json_keeps_all_fields_in_their_order() {
    let list = json!([
        {"role": "system", "content": "S", "zeta": 1, "alpha": {"y": null, "x": [1.5]}},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "url": "u"}], "name": "n"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": null},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ]);
    let chat = Conversation::from_json(&list.to_string()).unwrap();
    let saved = chat.to_json().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&saved).unwrap(), list);
    assert!(saved.find("zeta") < saved.find("alpha"), "{saved}");
    assert_eq!(Conversation::from_json(&saved).unwrap(), chat);
    assert_eq!(chat.messages()[2].content, Some(Content::Null));
    assert_eq!(chat.messages()[3].content, None);
    assert_eq!(texts(&chat), ["S", "a", "", "", "r"]);

    for (json, part) in [
        ("{}", "expected a sequence"),
        ("[{\"content\": \"a\"}]", "missing field `role`"),
        ("[", "line 1"),
        ("[{\"role\": \"user\", \"content\": 3}]", "line 1"),
        ("[{\"role\": 1}]", "expected a string"),
    ] {
        let error = Conversation::from_json(json).unwrap_err().to_string();
        assert!(error.starts_with("not a list of chat messages: ") && error.contains(part), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn variables_reach_the_template() {
    let mut context = prompt();
    context.token("bos_token", "<s>").token("eos_token", "</s>");
    context.variables.insert("enable_thinking".to_owned(), Value::Bool(false));
    context.messages.push(Message::new("user", "ignored by conversations"));
    let source = "{{ bos_token }}{{ eos_token }}{{ enable_thinking }}{{ messages | length }}{{ tools }}{{ pad_token }}";
    let template = Template::parse("variables", source).unwrap();
    assert_eq!(template.render(&context).unwrap(), "<s></s>False1None");
    assert_eq!(Conversation::new().render(&template, &context).unwrap().text, "<s></s>False0None");
    assert_eq!((template.name(), template.source()), ("variables", source));
}
