//! The table of pre-tokenizers: what each value of `tokenizer.ggml.pre` means.
//!
//! A pre-tokenizer is a list of regular expressions. They apply one after another, each to the pieces that
//! the one before left; matches and the text between them become pieces ([`super::split`]). Where llama.cpp
//! adapts an expression to its engine, the row holds the one that the model's `tokenizer.json` publishes.
//! `docs/tokenizers.md` lists the names and the differences.

/// One row: the names that share the rules, and the rules.
pub struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre`; the first one names the row.
    pub names: &'static [&'static str],
    /// Expressions in the order of their use.
    pub patterns: &'static [&'static str],
    /// What else differs from the common case.
    pub traits: Traits,
}

/// The flags of a row; [`PLAIN`] is the common case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// How text is spelled in the vocabulary.
    pub spelling: Spelling,
    /// A piece that is a token becomes that token, whether merges lead there or not.
    pub ignore_merges: bool,
    /// Whether the begin token is added where the metadata does not say.
    pub add_bos: bool,
    /// The begin token is added whatever the metadata says.
    pub force_bos: bool,
    /// A run of line feeds that is a token becomes that token.
    pub newline_runs: bool,
    /// Merges may be absent from the metadata.
    pub no_merges: bool,
}

/// How text is spelled in a BPE vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// Each byte is a printable character (GPT-2's table).
    Bytes,
    /// UTF-8 as it is, except that a space is `▁` (U+2581); missing characters are spelled as `<0x0A>`.
    Escaped,
    /// UTF-8 as it is; whitespace that is no token is dropped.
    Plain,
}

/// The flags of most rows.
const PLAIN: Traits = Traits {
    spelling: Spelling::Bytes,
    ignore_merges: false,
    add_bos: false,
    force_bos: false,
    newline_runs: false,
    no_merges: false,
};
const IGNORE_MERGES: Traits = Traits { ignore_merges: true, ..PLAIN };
const ADD_BOS: Traits = Traits { add_bos: true, ..PLAIN };
const IGNORE_MERGES_ADD_BOS: Traits = Traits { ignore_merges: true, add_bos: true, ..PLAIN };
const ESCAPED: Traits = Traits { spelling: Spelling::Escaped, ..PLAIN };
const GEMMA4: Traits = Traits { add_bos: true, force_bos: true, newline_runs: true, ..ESCAPED };
const KIMI: Traits = Traits { no_merges: true, ..PLAIN };
const WHITESPACE: Traits = Traits { spelling: Spelling::Plain, ..PLAIN };

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LINES: &str = r"[^\n]+|[\n]+";
/// Chinese and Japanese runs, as DeepSeek's models split them.
const CJK: &str = "[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// A row with the common flags.
const fn row(names: &'static [&'static str], patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { names, patterns, traits: PLAIN }
}

/// A row with flags of its own.
const fn row_with(
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    traits: Traits,
) -> PreTokenizer {
    PreTokenizer { names, patterns, traits }
}

/// The rule of files that name none.
pub const DEFAULT: &str = "default";

/// All pre-tokenizers.
pub const PRE_TOKENIZERS: &[PreTokenizer] = &[
    row(&[DEFAULT], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    row(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "mpt",
            "olmo",
            "jais",
            "exaone4",
            "trillion",
            "granite-docling",
        ],
        &[GPT2],
    ),
    row(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[r"\p{N}", GPT2],
    ),
    row_with(
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[LLAMA3],
        IGNORE_MERGES_ADD_BOS,
    ),
    row_with(&["glm4", "glm5"], &[LLAMA3], IGNORE_MERGES),
    row(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    row_with(
        &["minicpm5"],
        &[
            r"\p{N}{1,3}",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        IGNORE_MERGES,
    ),
    row(
        &["jais-2"],
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        ],
    ),
    row(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    row(
        &["qwen35"],
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    row(
        &["ufakzeka"],
        &[r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    ),
    row(
        &["seed-coder"],
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    // Published with the possessive `?+` and `++`. What follows them cannot match what they took, so the
    // greedy forms are equal.
    row(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
    ),
    row(
        &["exaone-moe"],
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
    ),
    row(&["laguna"], &[LINES, QWEN2]),
    row(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    // llama.cpp writes "a letter or mark except a-z" as a look-ahead; this is the same as a class.
    row_with(
        &["granite-embed-multi-97m"],
        &[
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}--[a-z]]*[\p{L}\p{M}--[A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}--[a-z]]+[\p{L}\p{M}--[A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        IGNORE_MERGES,
    ),
    row_with(
        &["tekken"],
        &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        IGNORE_MERGES_ADD_BOS,
    ),
    row(&["tiny_aya", "cohere2moe"], &[super::split::DIGIT_GROUPS, GPT4O]),
    row_with(
        &["kimi-k2"],
        &[
            r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        KIMI,
    ),
    row_with(
        &["youtu"],
        &[
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        IGNORE_MERGES,
    ),
    row(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ],
    ),
    row(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"]),
    row(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[r"\p{N}{1,3}", CJK, DEEPSEEK3]),
    row(
        &["spark2_5"],
        &[
            r"\p{N}{1,3}",
            CJK,
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
            r"\p{N}",
        ],
    ),
    row(
        &["afmoe"],
        &[
            super::split::NUMBER_GROUPS,
            "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
            DEEPSEEK3,
        ],
    ),
    row(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    row(&["poro-chat", "bloom", "gpt3-finnish"], &[r" ?[^(\s|.,!?…。，、।۔،)]+"]),
    row(&["viking"], &[r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"]),
    row_with(
        &["chameleon"],
        &[
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
        ADD_BOS,
    ),
    row(&["superbpe"], &[r"\p{N}+", super::split::DIGIT_CUTS]),
    row_with(&["gemma4", "granite-embed-multi-311m"], &[LINES], GEMMA4),
    row_with(&["sarvam-moe"], &[LINES], ESCAPED),
    row_with(&["whitespace"], &[r"\S+"], WHITESPACE),
];

/// The row of a name, and the name as the table has it.
pub fn find(name: &str) -> Option<(&'static str, &'static PreTokenizer)> {
    let row = |pre: &'static PreTokenizer| {
        pre.names.iter().find(|known| **known == name).map(|known| (*known, pre))
    };
    PRE_TOKENIZERS.iter().find_map(row)
}

/// All names, in the order of the table.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRE_TOKENIZERS.iter().flat_map(|pre| pre.names).copied()
}

/// Names that look most like one that is unknown, the nearest first.
pub fn nearest(name: &str) -> Vec<&'static str> {
    const SHOWN: usize = 3;
    let mut known: Vec<(usize, &str)> =
        names().map(|known| (strsim::damerau_levenshtein(name, known), known)).collect();
    known.sort_by_key(|&(distance, _)| distance);
    known.into_iter().take(SHOWN).map(|(_, known)| known).collect()
}

#[cfg(test)]
mod tests;
