//! Just enough of Rust's lexical rules to tell code from comments, literals and tests.

/// The text with every comment and literal turned to blanks; every byte stays where it is.
pub fn code_only(text: &str) -> String {
    let source: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < source.len() {
        let end = token_end(&source, at);
        if end == at + 1 {
            code.push(source[at]);
        } else {
            push_blank(&mut code, source[at..end].iter().copied());
        }
        at = end;
    }
    code
}

/// As many bytes of blanks as `text` has, with its line ends.
fn push_blank(out: &mut String, text: impl Iterator<Item = char>) {
    for c in text {
        if c == '\n' {
            out.push('\n');
        } else {
            out.extend(std::iter::repeat_n(' ', c.len_utf8()));
        }
    }
}

/// Where the comment or literal that starts at `at` ends; `at + 1` if none starts there.
fn token_end(source: &[char], at: usize) -> usize {
    let next = source.get(at + 1).copied();
    match source[at] {
        '/' if next == Some('/') => find(source, at, |i| source[i] == '\n'),
        '/' if next == Some('*') => block_comment_end(source, at),
        '"' => quoted_end(source, at, '"'),
        '\'' if next == Some('\\') || source.get(at + 2) == Some(&'\'') => quoted_end(source, at, '\''),
        'r' if !at.checked_sub(1).is_some_and(|i| is_word(source[i]) && source[i] != 'b') => {
            raw_end(source, at)
        }
        _ => at + 1,
    }
}

/// The first index from `from` on where `stop` holds, or the end of the text.
fn find(source: &[char], from: usize, stop: impl Fn(usize) -> bool) -> usize {
    (from..source.len()).find(|&i| stop(i)).unwrap_or(source.len())
}

fn block_comment_end(source: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < source.len() {
        match (source[i], source[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') if depth == 1 => return i + 2,
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
    }
    source.len()
}

fn quoted_end(source: &[char], at: usize, quote: char) -> usize {
    let mut i = at + 1;
    while i < source.len() && source[i] != quote {
        i += if source[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(source.len())
}

/// `r"..."`, `r#"..."#` and so on; `r` alone and `r#name` are code.
fn raw_end(source: &[char], at: usize) -> usize {
    let quote = find(source, at + 1, |i| source[i] != '#');
    let hashes = quote - at - 1;
    if source.get(quote) != Some(&'"') {
        return at + 1;
    }
    let closes =
        |i: usize| source[i] == '"' && source[i + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
    (find(source, quote + 1, closes) + 1 + hashes).min(source.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// True if `line` holds `word` with no letter, digit or `_` on either side.
pub fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(is_word)
            && !line[at + word.len()..].chars().next().is_some_and(is_word)
    })
}

/// Blanks each `#[cfg(test)]` item of `code` (which holds no comments or literals): up to the
/// brace that closes it, or the semicolon if that comes first.
pub fn without_tests(code: &str) -> String {
    let mut rest = code;
    let mut blanked = String::with_capacity(code.len());
    while let Some(at) = rest.find("#[cfg(test)]") {
        blanked.push_str(&rest[..at]);
        let (mut depth, mut end) = (0, rest.len());
        for (i, c) in rest[at..].char_indices() {
            match c {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => depth -= 1,
                _ => {}
            }
            if (c == '}' || c == ';') && depth == 0 {
                end = at + i + 1;
                break;
            }
        }
        push_blank(&mut blanked, rest[at..end].chars());
        rest = &rest[end..];
    }
    blanked + rest
}

/// Names of the modules that `code` declares as `#[cfg(test)] mod name;`.
pub fn test_modules(code: &str) -> Vec<&str> {
    let after = code.split("#[cfg(test)]").skip(1);
    let declared =
        after.filter_map(|text| text.trim_start().strip_prefix("mod ")?.split_once([';', '{', ' ']));
    declared.map(|(name, _)| name).collect()
}

#[test]
fn code_is_told_from_comments_and_literals() {
    for (text, code) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"f("x \" y", 'z', '\'', &'a b)"#, r#"f(        ,    ,     , &'a b)"#),
        (r##"let r = r#"a " b"#; r#fn"##, "let r =           ; r#fn"),
        (r#"b"x" br"y" var"z""#, "b    b     var   "),
        ("/* open", "       "),
        ("\"open", "     "),
        ("/* \u{20ac} */x", "         x"),
    ] {
        assert_eq!(code_only(text), code, "{text}");
    }
}

#[test]
fn words_have_borders() {
    assert!(has_word("if unsafe {", "unsafe"));
    assert!(!has_word("allow(unsafe_code), my_unsafe", "unsafe"));
}

#[test]
fn tests_are_cut_out() {
    let code = "a\n#[cfg(test)]\nmod t {\n { b([c; 3]); } \n}\nd\n#[cfg(test)]\nmod u;\ne";
    let blanked = without_tests(code);
    assert_eq!(blanked.lines().map(str::trim).collect::<Vec<_>>(), ["a", "", "", "", "", "d", "", "", "e"]);
    assert_eq!(blanked.len(), code.len());
    assert_eq!(test_modules(code), ["t", "u"]);
}
