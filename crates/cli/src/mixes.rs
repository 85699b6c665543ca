//! Which format each tensor of a quantized model gets: the mixes that llama.cpp made known, as a table.
//!
//! A mix has a base format and rules for the tensors that bear rounding worst: the projection to the vocabulary, the
//! values of attention, the way down in the feed-forward part, most of all in the first and the last layers. The rules
//! are those of `llama-quantize` for models without experts, so that a file of ours has the formats that one of the
//! same name has there.

use tallow_gguf::Format;
use tallow_models::formats::fitting;

/// What a file of this name is made of.
#[derive(Debug)]
pub struct Mix {
    /// Name, as users say it.
    pub name: &'static str,
    /// Its number in `general.file_type` (`enum llama_ftype`).
    pub file_type: u32,
    /// Format of all that no rule names.
    pub base: Format,
    /// Format of the projection to the vocabulary, also where the embedding serves as that.
    output: Format,
    /// The first that applies to a tensor holds.
    rules: &'static [Rule],
}

/// A format for one kind of tensor under conditions that must all hold.
#[derive(Debug)]
struct Rule {
    role: TensorRole,
    when: &'static [When],
    format: Format,
}

/// The kinds of tensors that rules tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorRole {
    Output,
    TokenEmbedding,
    /// Values, also where they lie in one tensor with queries and keys.
    Values,
    Keys,
    Queries,
    AttentionOutput,
    Down,
    Gate,
    Up,
    Other,
}

/// A condition on the layer (the number of the tensor among those of its kind) or on the model.
#[derive(Clone, Copy, Debug)]
enum When {
    /// One of so many first layers.
    First(usize),
    /// In the first of so many equal parts of the layers.
    FirstOf(usize),
    /// In the first or the last eighth of the layers, or every third between them.
    Spread,
    /// Between the first and the last eighth.
    Middle,
    /// Four or more heads share keys and values, so that these are small.
    Grouped,
    /// No importance matrix helps.
    NoImportance,
    /// There is an importance matrix.
    Importance,
}

use Format::{
    BF16, F16, F32, IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q2_K,
    Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, TQ1_0, TQ2_0,
};
use TensorRole::{AttentionOutput, Down, Gate, Keys, Queries, TokenEmbedding, Up, Values};
use When::{First, FirstOf, Grouped, Importance, Middle, NoImportance, Spread};

const fn mix(
    name: &'static str,
    file_type: u32,
    base: Format,
    output: Format,
    rules: &'static [Rule],
) -> Mix {
    Mix { name, file_type, base, output, rules }
}

const fn rule(role: TensorRole, when: &'static [When], format: Format) -> Rule {
    Rule { role, when, format }
}

/// The lowest formats keep values, the first layers' way down and the embedding at 2 bits and more.
const LOWEST: &[Rule] = &[
    rule(TokenEmbedding, &[], Q2_K),
    rule(Values, &[Grouped], Q4_K),
    rule(Values, &[], Q2_K),
    rule(Down, &[FirstOf(8)], Q2_K),
];
/// As [`LOWEST`], below 2 bits.
const BELOW_TWO: &[Rule] = &[
    rule(TokenEmbedding, &[], Q2_K),
    rule(Values, &[Grouped], Q4_K),
    rule(Values, &[], Q2_K),
    rule(Down, &[FirstOf(8)], Q2_K),
    rule(AttentionOutput, &[], IQ2_XXS),
];
/// The larger 2-bit mixes.
const TWO: &[Rule] = &[
    rule(TokenEmbedding, &[], IQ3_S),
    rule(Values, &[Grouped], Q4_K),
    rule(Values, &[], IQ3_S),
    rule(Down, &[FirstOf(8)], IQ3_S),
    rule(AttentionOutput, &[], IQ3_S),
];
/// The formats with uneven levels of 4 bits.
const UNEVEN: &[Rule] = &[rule(Values, &[Grouped], Q5_K), rule(Down, &[FirstOf(8), NoImportance], Q5_K)];

/// Every mix: name, number, base, output, rules.
pub const MIXES: &[Mix] = &[
    mix("F32", 0, F32, F32, &[]),
    mix("F16", 1, F16, F16, &[]),
    mix("BF16", 32, BF16, BF16, &[]),
    mix("Q8_0", 7, Q8_0, Q8_0, &[]),
    mix("Q4_0", 2, Q4_0, Q6_K, &[rule(Down, &[FirstOf(8), Importance], Q4_1)]),
    mix("Q4_1", 3, Q4_1, Q6_K, &[]),
    mix("Q5_0", 8, Q5_0, Q6_K, &[rule(Down, &[FirstOf(8), Importance], Q5_1)]),
    mix("Q5_1", 9, Q5_1, Q6_K, &[]),
    mix(
        "Q2_K",
        10,
        Q2_K,
        Q6_K,
        &[
            rule(Values, &[Grouped], Q4_K),
            rule(Values, &[], Q3_K),
            rule(Down, &[], Q3_K),
            rule(AttentionOutput, &[], Q3_K),
        ],
    ),
    mix("Q2_K_S", 21, Q2_K, Q6_K, &[rule(Values, &[Grouped], Q4_K), rule(Down, &[FirstOf(8)], Q4_K)]),
    mix("Q3_K_S", 11, Q3_K, Q6_K, &[]),
    mix(
        "Q3_K_M",
        12,
        Q3_K,
        Q6_K,
        &[
            rule(Values, &[First(2)], Q5_K),
            rule(Values, &[], Q4_K),
            rule(Down, &[FirstOf(16)], Q5_K),
            rule(Down, &[], Q4_K),
            rule(AttentionOutput, &[], Q4_K),
        ],
    ),
    mix(
        "Q3_K_L",
        13,
        Q3_K,
        Q6_K,
        &[rule(Values, &[], Q5_K), rule(Down, &[], Q5_K), rule(AttentionOutput, &[], Q5_K)],
    ),
    mix("Q4_K_S", 14, Q4_K, Q6_K, &[rule(Values, &[First(4)], Q5_K), rule(Down, &[FirstOf(8)], Q5_K)]),
    mix("Q4_K_M", 15, Q4_K, Q6_K, &[rule(Values, &[Spread], Q6_K), rule(Down, &[Spread], Q6_K)]),
    mix("Q5_K_S", 16, Q5_K, Q6_K, &[]),
    mix("Q5_K_M", 17, Q5_K, Q6_K, &[rule(Values, &[Spread], Q6_K), rule(Down, &[Spread], Q6_K)]),
    mix("Q6_K", 18, Q6_K, Q6_K, &[]),
    mix("IQ1_S", 24, IQ1_S, Q5_K, BELOW_TWO),
    mix("IQ1_M", 31, IQ1_M, Q5_K, BELOW_TWO),
    mix("IQ2_XXS", 19, IQ2_XXS, Q5_K, LOWEST),
    mix("IQ2_XS", 20, IQ2_XS, Q5_K, LOWEST),
    mix("IQ2_S", 28, IQ2_XS, Q5_K, TWO),
    mix("IQ2_M", 29, IQ2_S, Q5_K, TWO),
    mix(
        "IQ3_XXS",
        23,
        IQ3_XXS,
        Q5_K,
        &[
            rule(TokenEmbedding, &[], IQ3_S),
            rule(Values, &[Grouped], Q4_K),
            rule(Values, &[NoImportance], IQ3_S),
            rule(Keys, &[], IQ2_S),
            rule(Queries, &[], IQ2_S),
            rule(Down, &[NoImportance, FirstOf(8)], Q4_K),
            rule(Down, &[NoImportance], Q3_K),
            rule(AttentionOutput, &[], IQ3_S),
        ],
    ),
    mix(
        "IQ3_XS",
        22,
        IQ3_S,
        Q6_K,
        &[
            rule(Values, &[Grouped], Q4_K),
            rule(Keys, &[], IQ3_XXS),
            rule(Queries, &[], IQ3_XXS),
            rule(Gate, &[Middle], IQ3_XXS),
            rule(Up, &[Middle], IQ3_XXS),
        ],
    ),
    mix("IQ3_S", 26, IQ3_S, Q6_K, &[rule(Values, &[Grouped], Q4_K)]),
    mix(
        "IQ3_M",
        27,
        IQ3_S,
        Q6_K,
        &[rule(Values, &[], Q4_K), rule(Down, &[FirstOf(8)], Q4_K), rule(AttentionOutput, &[], Q4_K)],
    ),
    mix("IQ4_NL", 25, IQ4_NL, Q6_K, UNEVEN),
    mix("IQ4_XS", 30, IQ4_XS, Q6_K, UNEVEN),
    mix("TQ1_0", 36, TQ1_0, Q6_K, &[rule(TokenEmbedding, &[], Q4_K)]),
    mix("TQ2_0", 37, TQ2_0, Q6_K, &[rule(TokenEmbedding, &[], Q4_K)]),
    // There named MXFP4_MOE: all but experts is Q8_0 in its files.
    mix("MXFP4", 38, MXFP4, Q8_0, &[]),
    mix("NVFP4", 39, NVFP4, Q6_K, &[]),
];

/// Other names of mixes.
const ALIASES: &[(&str, &str)] =
    &[("Q3_K", "Q3_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M"), ("FP16", "F16"), ("FP32", "F32")];

impl Mix {
    /// The mix of a name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<&'static Mix> {
        let alias = ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let name = alias.map_or(name, |(_, name)| name);
        MIXES.iter().find(|mix| mix.name.eq_ignore_ascii_case(name))
    }
}

/// What the choice of formats depends on.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Decoder layers.
    pub layers: usize,
    /// Heads that share one head of keys and values.
    pub heads_per_kv: usize,
    /// Whether the file has a projection to the vocabulary of its own; else the embedding is that.
    pub has_output: bool,
    /// Whether there is an importance matrix.
    pub importance: bool,
}

/// What users may choose beside the mix.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// The base format for all tensors.
    pub pure: bool,
    /// Format of the token embedding.
    pub token_embedding: Option<Format>,
    /// Format of the projection to the vocabulary.
    pub output: Option<Format>,
}

/// Chooses the formats of a model's tensors, which must be asked for in the order of layers.
#[derive(Debug)]
pub struct Chooser {
    mix: &'static Mix,
    model: Model,
    overrides: Overrides,
    /// Tensors of these kinds that were there already: that many layers have passed.
    seen: Vec<TensorRole>,
}

impl Chooser {
    /// A chooser for one model.
    pub fn new(mix: &'static Mix, model: Model, overrides: Overrides) -> Chooser {
        Chooser { mix, model, overrides, seen: Vec::new() }
    }

    /// The format of the tensor `name`, whose rows have `columns` elements.
    pub fn choose(&mut self, name: &str, columns: usize) -> Format {
        let role = role_of(name);
        let tied = role == TokenEmbedding && !self.model.has_output;
        let is_output = role == TensorRole::Output || tied;
        let requested = match role {
            TokenEmbedding if tied => self.overrides.token_embedding.or(self.overrides.output),
            TokenEmbedding => self.overrides.token_embedding,
            TensorRole::Output => self.overrides.output,
            Values | Keys | Queries | AttentionOutput | Down | Gate | Up | TensorRole::Other => None,
        };
        let layer = self.seen.iter().filter(|&&p| p == role).count();
        self.seen.push(role);
        let chosen = match requested {
            Some(format) => format,
            None if self.overrides.pure => self.mix.base,
            // As everywhere in these mixes: what does not fit the base takes 8 bits here.
            None if is_output && !columns.is_multiple_of(self.mix.base.block_elements()) => Q8_0,
            None if is_output => self.mix.output,
            None => self.by_rules(role, layer),
        };
        fitting(chosen, columns)
    }

    fn by_rules(&self, role: TensorRole, layer: usize) -> Format {
        let when_applies = |when: &When| self.applies(*when, layer);
        let applies = |rule: &&Rule| rule.role == role && rule.when.iter().all(when_applies);
        let format = self.mix.rules.iter().find(applies).map_or(self.mix.base, |rule| rule.format);
        // The values of the models of 80 layers (70 B) are an eighth as large as their queries: more bits cost little.
        match format {
            Q3_K | Q4_K if role == Values && self.model.layers == 80 => Q5_K,
            other => other,
        }
    }

    fn applies(&self, when: When, layer: usize) -> bool {
        let layers = self.model.layers;
        match when {
            First(count) => layer < count,
            FirstOf(parts) => layer < layers / parts,
            Spread => layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2,
            Middle => layer >= layers / 8 && layer < 7 * layers / 8,
            Grouped => self.model.heads_per_kv >= 4,
            NoImportance => !self.model.importance,
            Importance => self.model.importance,
        }
    }
}

fn role_of(name: &str) -> TensorRole {
    const ROLES: &[(&str, TensorRole)] = &[
        ("attn_qkv.weight", Values),
        ("attn_kv_b.weight", Values),
        ("attn_v.weight", Values),
        ("attn_k.weight", Keys),
        ("attn_q.weight", Queries),
        ("attn_output.weight", AttentionOutput),
        ("ffn_up", Up),
        ("ffn_gate", Gate),
        ("ffn_down", Down),
    ];
    match name {
        "output.weight" => TensorRole::Output,
        "token_embd.weight" => TokenEmbedding,
        _ => ROLES.iter().find(|(role, _)| name.contains(role)).map_or(TensorRole::Other, |(_, role)| *role),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formats of a part in all layers of a model, as counts of runs.
    fn runs(mix: &str, layers: usize, role: &str, heads_per_kv: usize, importance: bool) -> String {
        let model = Model { layers, heads_per_kv, has_output: true, importance };
        let mix = Mix::from_name(mix).expect("a mix");
        let mut chooser = Chooser::new(mix, model, Overrides::default());
        let mut runs: Vec<(Format, usize)> = Vec::new();
        for layer in 0..layers {
            let format = chooser.choose(&format!("blk.{layer}.{role}.weight"), 4096);
            match runs.last_mut() {
                Some((last, count)) if *last == format => *count += 1,
                _ => runs.push((format, 1)),
            }
        }
        runs.iter().map(|(format, count)| format!("{count} {format}")).collect::<Vec<_>>().join(", ")
    }

    /// The formats that files of Llama 3 8B (32 layers, 4 heads a kv head) are known to have.
    #[test]
    fn thirty_two_layers() {
        let spread = |more: &str, less: &str| {
            let between = format!("2 {less}, 1 {more}, ").repeat(8);
            format!("4 {more}, {between}4 {more}")
                .replace(&format!("1 {more}, 4 {more}"), &format!("5 {more}"))
        };
        for role in ["attn_v", "ffn_down"] {
            assert_eq!(runs("Q4_K_M", 32, role, 4, false), spread("q6_k", "q4_k"), "{role}");
            assert_eq!(runs("Q5_K_M", 32, role, 4, false), spread("q6_k", "q5_k"), "{role}");
            assert_eq!(runs("Q4_K_S", 32, role, 4, false), "4 q5_k, 28 q4_k", "{role}");
        }
        for (mix, role, want) in [
            ("Q2_K", "attn_v", "32 q4_k"),
            ("Q2_K", "ffn_down", "32 q3_k"),
            ("Q2_K", "attn_output", "32 q3_k"),
            ("Q2_K", "attn_q", "32 q2_k"),
            ("Q3_K_S", "ffn_down", "32 q3_k"),
            ("Q3_K_M", "attn_v", "2 q5_k, 30 q4_k"),
            ("Q3_K_M", "ffn_down", "2 q5_k, 30 q4_k"),
            ("Q3_K_L", "ffn_down", "32 q5_k"),
            ("IQ4_XS", "attn_v", "32 q5_k"),
            ("IQ4_XS", "ffn_down", "4 q5_k, 28 iq4_xs"),
            ("IQ3_XS", "ffn_up", "4 iq3_s, 24 iq3_xxs, 4 iq3_s"),
        ] {
            assert_eq!(runs(mix, 32, role, 4, false), want, "{mix} {role}");
        }
        assert_eq!(runs("IQ4_XS", 32, "ffn_down", 4, true), "32 iq4_xs");
        assert_eq!(runs("Q4_0", 32, "ffn_down", 4, true), "4 q4_1, 28 q4_0");
        assert_eq!(runs("Q2_K", 32, "attn_v", 1, false), "32 q3_k");
        assert_eq!(runs("Q2_K", 80, "attn_v", 8, false), "80 q5_k");
    }

    #[test]
    fn ends_of_the_model() {
        let model = Model { layers: 4, heads_per_kv: 2, has_output: false, importance: false };
        let choose = |mix: &str, model: Model, overrides: Overrides, name: &str, columns: usize| {
            Chooser::new(Mix::from_name(mix).expect("a mix"), model, overrides).choose(name, columns)
        };
        let none = Overrides::default();
        let embedding = "token_embd.weight";
        assert_eq!(choose("q4_k", model, none, embedding, 256), Q6_K);
        assert_eq!(choose("q8_0", model, none, embedding, 256), Q8_0);
        assert_eq!(choose("Q4_K_M", model, none, embedding, 96), Q8_0);
        assert_eq!(choose("f16", model, none, embedding, 7), F16);
        let untied = Model { has_output: true, ..model };
        assert_eq!(choose("Q4_K_M", untied, none, embedding, 256), Q4_K);
        assert_eq!(choose("Q4_K_M", untied, none, "output.weight", 256), Q6_K);
        assert_eq!(choose("IQ2_XS", untied, none, embedding, 256), Q2_K);
        let overrides = Overrides { pure: true, token_embedding: Some(Q8_0), output: Some(F16) };
        assert_eq!(choose("Q4_K_M", untied, overrides, embedding, 256), Q8_0);
        assert_eq!(choose("Q4_K_M", untied, overrides, "output.weight", 256), F16);
        assert_eq!(choose("Q4_K_M", untied, overrides, "blk.0.attn_v.weight", 256), Q4_K);
        let output = Overrides { token_embedding: None, ..overrides };
        assert_eq!(choose("Q4_K_M", model, output, embedding, 256), F16);
    }

    #[test]
    fn names_and_numbers_are_unique() {
        for (i, mix) in MIXES.iter().enumerate() {
            assert!(
                MIXES[..i].iter().all(|m| m.name != mix.name && m.file_type != mix.file_type),
                "{}",
                mix.name
            );
            assert!(Mix::from_name(&mix.name.to_lowercase()).is_some());
        }
        assert!(ALIASES.iter().all(|(alias, _)| Mix::from_name(alias).is_some()));
        assert!(Mix::from_name("Q9_9").is_none());
    }
}
