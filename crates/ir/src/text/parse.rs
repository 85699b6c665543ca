//! Text to graph. Every error names the line.

use std::collections::HashMap;
use std::sync::Arc;

use crate::attention::{Attention, AttentionSide};
use crate::custom::{Custom, CustomCode, CustomKernel, PushValue};
use crate::dim::{Dim, Symbol};
use crate::dtype::DType;
use crate::elementwise::ElementwiseOp;
use crate::fusion::{Fusion, FusionKind};
use crate::graph::{Graph, NodeId, Value};
use crate::op::{Op, ReduceKind, ScanKind, ScatterKind};
use crate::scalar::Scalar;
use crate::shape::{Shape, TensorType};
use crate::sort::SortSpan;

/// Why a text is not a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

/// Parses one graph. Lines that start with `;` and the rest of a line after ` ;` are comments.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let mut lines = Lines { rest: text.lines().enumerate().collect(), at: 0 };
    let (line, head) = lines.next().ok_or_else(|| error(1, "no graph"))?;
    let name = head
        .strip_prefix("graph ")
        .and_then(|r| r.strip_suffix('{'))
        .and_then(|r| unquote(r.trim()))
        .ok_or_else(|| error(line, "expected: graph \"name\" {"))?;
    let graph = body(&mut lines, &name, 0)?;
    match lines.next() {
        None => Ok(graph),
        Some((line, _)) => Err(error(line, "text after the graph")),
    }
}

struct Lines<'a> {
    rest: Vec<(usize, &'a str)>,
    at: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<(usize, &'a str)> {
        while let Some((i, raw)) = self.rest.get(self.at) {
            self.at += 1;
            let code = without_comment(raw).trim();
            if !code.is_empty() && !code.starts_with(';') {
                return Some((i + 1, code));
            }
        }
        None
    }
}

/// The part of a line before ` ;`, unless that stands in quotes.
fn without_comment(line: &str) -> &str {
    let (mut quoted, mut escaped, mut blank) = (false, false, false);
    for (at, c) in line.char_indices() {
        if c == ';' && blank && !quoted {
            return &line[..at];
        }
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && c == '\\' && !escaped;
        blank = c == ' ';
    }
    line
}

fn error(line: usize, message: impl Into<String>) -> ParseError {
    ParseError { line, message: message.into() }
}

/// Fusions hold no fusions, so two levels are all that a valid text needs; the limit keeps hostile text
/// from exhausting the stack.
const MAX_NESTING: usize = 8;

fn body(lines: &mut Lines<'_>, name: &str, depth: usize) -> Result<Graph, ParseError> {
    let mut graph = Graph::new(name);
    let mut names: HashMap<String, NodeId> = HashMap::new();
    let mut symbols: HashMap<String, Symbol> = HashMap::new();
    loop {
        let Some((line, code)) = lines.next() else { return Err(error(lines.rest.len(), "missing }")) };
        let fail = |m: String| error(line, m);
        if code == "}" {
            return Ok(graph);
        }
        if depth > MAX_NESTING {
            return Err(fail("bodies are nested too deeply".into()));
        }
        if let Some(rest) = code.strip_prefix("symbol ") {
            let symbol =
                symbol(rest).ok_or_else(|| fail("expected: symbol [minimum <=] name <= maximum".into()))?;
            symbols.insert(symbol.name().into(), symbol);
        } else if let Some(rest) = code.strip_prefix("return ") {
            let (v, label) = match rest.split_once(" as ") {
                Some((v, label)) => (v, unquote(label.trim()).ok_or_else(|| fail("bad output name".into()))?),
                None => (rest, String::new()),
            };
            let v = operand(&graph, &names, v.trim()).map_err(fail)?;
            graph.output(&label, v).map_err(|e| fail(e.to_string()))?;
        } else {
            let (target, expr) =
                code.split_once(" = ").ok_or_else(|| fail(format!("cannot read '{code}'")))?;
            let (expr, opens) = match expr.strip_suffix('{') {
                Some(e) => (e.trim(), true),
                None => (expr, false),
            };
            let (expr, types) = split_types(expr).ok_or_else(|| fail("missing ': type'".into()))?;
            let types = types.iter().map(|t| ty(t, &symbols)).collect::<Result<Vec<_>, _>>().map_err(fail)?;
            let mut words = Words::new(expr).map_err(fail)?;
            let op_name = words.take().ok_or_else(|| fail("missing op".into()))?;
            let nested = if opens { Some((words.take(), body(lines, "", depth + 1)?)) } else { None };
            let mut operands = vec![];
            while words.peek().is_some_and(|w| w.starts_with('%')) {
                let word = words.take().unwrap_or_default();
                operands.push(operand(&graph, &names, &word).map_err(fail)?);
            }
            let op = op(&op_name, &mut words, &types, &symbols, nested).map_err(fail)?;
            if let Some(extra) = words.take() {
                return Err(fail(format!("unexpected '{extra}'")));
            }
            let id = graph.add_node(op, &operands).map_err(|e| fail(e.to_string()))?;
            if graph.node(id).types != types {
                let found: Vec<String> = graph.node(id).types.iter().map(|t| t.to_string()).collect();
                return Err(fail(format!("{op_name} has type {}", found.join(", "))));
            }
            if names.insert(target.trim().into(), id).is_some() {
                return Err(fail(format!("{target} is defined twice")));
            }
        }
    }
}

/// Splits at the last ` : ` outside quotes; types are separated by `, `.
fn split_types(expr: &str) -> Option<(&str, Vec<&str>)> {
    let cut = expr.rfind(" : ")?;
    Some((expr[..cut].trim(), expr[cut + 3..].split(", ").map(str::trim).collect()))
}

fn unquote(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return None,
            '\\' => match chars.next()? {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                '0' => out.push('\0'),
                'u' => {
                    let rest: String = chars.by_ref().take_while(|c| *c != '}').collect();
                    out.push(char::from_u32(u32::from_str_radix(rest.strip_prefix('{')?, 16).ok()?)?);
                }
                other => out.push(other),
            },
            other => out.push(other),
        }
    }
    Some(out)
}

fn operand(graph: &Graph, names: &HashMap<String, NodeId>, word: &str) -> Result<Value, String> {
    let (name, result) = match word.split_once('.') {
        Some((n, r)) => (n, r.parse().map_err(|_| format!("bad result number in '{word}'"))?),
        None => (word, 0),
    };
    let node = *names.get(name).ok_or_else(|| format!("{name} is not defined above"))?;
    if result as usize >= graph.node(node).types.len() {
        return Err(format!("{word} does not exist"));
    }
    Ok(Value { node, result })
}

/// What is declared as `name <= 9` or `2 <= name <= 9`.
fn symbol(text: &str) -> Option<Symbol> {
    let mut parts = text.rsplit("<=").map(str::trim);
    let (max, name) = (parts.next()?.parse().ok()?, parts.next()?);
    let min = parts.next().map_or(Some(0), |min| min.parse().ok()).filter(|min| *min <= max)?;
    parts.next().is_none().then(|| Symbol::new(name, max).at_least(min))
}

fn ty(text: &str, symbols: &HashMap<String, Symbol>) -> Result<TensorType, String> {
    let bad = || format!("'{text}' is not a type");
    let (dtype, dims) = text.strip_suffix(']').and_then(|t| t.split_once('[')).ok_or_else(bad)?;
    let dtype: DType = dtype.parse()?;
    let shape = if dims.is_empty() {
        Shape::scalar()
    } else {
        dims.split(',').map(|d| dim(d, symbols)).collect::<Result<Shape, _>>()?
    };
    Ok(TensorType { dtype, shape })
}

fn dim(text: &str, symbols: &HashMap<String, Symbol>) -> Result<Dim, String> {
    Dim::parse(text.trim(), &|name| symbols.get(name).cloned())
}

/// Words of an expression: quoted strings and `[...]`, `{...}` groups are one word.
struct Words {
    words: std::collections::VecDeque<String>,
}

impl Words {
    fn new(text: &str) -> Result<Self, String> {
        let mut words = std::collections::VecDeque::new();
        let mut word = String::new();
        let (mut quoted, mut escaped) = (false, false);
        for c in text.chars() {
            if c == '"' && !escaped {
                quoted = !quoted;
            }
            escaped = quoted && c == '\\' && !escaped;
            if c.is_whitespace() && !quoted {
                if !word.is_empty() {
                    words.push_back(std::mem::take(&mut word));
                }
            } else {
                word.push(c);
            }
        }
        if quoted {
            return Err("unterminated string".into());
        }
        if !word.is_empty() {
            words.push_back(word);
        }
        Ok(Words { words })
    }

    fn take(&mut self) -> Option<String> {
        self.words.pop_front()
    }

    fn peek(&self) -> Option<&str> {
        self.words.front().map(String::as_str)
    }

    /// The value of `key=value`, if that comes next.
    fn optional(&mut self, key: &str) -> Option<String> {
        let value = self.peek()?.strip_prefix(key)?.strip_prefix('=')?.to_string();
        self.take();
        Some(value)
    }

    /// The value of `key=value`, which must come next.
    fn key(&mut self, key: &str) -> Result<String, String> {
        let word = self.take().unwrap_or_default();
        match word.split_once('=') {
            Some((k, v)) if k == key => Ok(v.into()),
            _ => Err(format!("expected {key}=..., got '{word}'")),
        }
    }
}

fn positive(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("expected a positive number, got '{text}'"))
}

fn sort(name: &str, words: &mut Words) -> Result<Op, String> {
    let axis = number(&words.key("axis")?)?;
    let descending = words.key("descending")?.parse().map_err(|_| "descending is true or false")?;
    if name == "merge_runs" {
        return Ok(Op::MergeRuns { axis, descending, run: positive(&words.key("run")?)? });
    }
    let span = match (words.optional("first"), words.optional("run")) {
        (Some(count), _) => SortSpan::First(positive(&count)?),
        (None, Some(run)) => SortSpan::Runs(positive(&run)?),
        (None, None) => SortSpan::All,
    };
    Ok(Op::ArgSort { axis, descending, span })
}

fn list(text: &str) -> Result<Vec<&str>, String> {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let inner = inner.ok_or_else(|| format!("'{text}' is not a list"))?;
    Ok(if inner.is_empty() { vec![] } else { inner.split(',').collect() })
}

fn numbers(text: &str) -> Result<Vec<usize>, String> {
    list(text)?.into_iter().map(number).collect()
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("'{text}' is not a number"))
}

fn scalar(dtype: DType, text: &str) -> Result<Scalar, String> {
    let bad = || format!("'{text}' is not a {dtype}");
    if dtype.is_float() {
        Ok(Scalar::float(dtype, text.parse().map_err(|_| bad())?))
    } else {
        Ok(Scalar::int(dtype, text.parse().map_err(|_| bad())?))
    }
}

fn op(
    name: &str,
    words: &mut Words,
    types: &[TensorType],
    symbols: &HashMap<String, Symbol>,
    nested: Option<(Option<String>, Graph)>,
) -> Result<Op, String> {
    let first = types.first().ok_or("missing type")?;
    let (dtype, shape) = (first.dtype, &first.shape);
    if let Some((kind, body)) = nested {
        if name != "fusion" {
            return Err(format!("{name} has no body"));
        }
        let kind = kind.as_deref().and_then(FusionKind::from_name).ok_or("unknown fusion kind")?;
        let run = words.optional("run").map_or(Ok(0), |run| positive(&run))?;
        return Ok(Op::Fusion(Box::new(Fusion { kind, body, run })));
    }
    let mut label = || words.take().as_deref().and_then(unquote).ok_or("missing name");
    Ok(match name {
        "input" => Op::Input { name: label()?, ty: first.clone() },
        "weight" => Op::Weight { name: label()?, ty: first.clone() },
        "state" => Op::State { name: label()?, ty: first.clone() },
        "param" => {
            let index = words.take().unwrap_or_default();
            Op::Param { index: index.parse().map_err(|_| "param needs a number")?, ty: first.clone() }
        }
        "const" => Op::Const(scalar(dtype, &words.take().unwrap_or_default())?),
        "iota" => Op::Iota { len: shape.dims().first().cloned().ok_or("iota has one axis")?, dtype },
        "dim_value" => {
            let word = words.take().unwrap_or_default();
            let inner =
                word.strip_prefix('{').and_then(|w| w.strip_suffix('}')).ok_or("expected {extent}")?;
            Op::DimValue { dim: dim(inner, symbols)?, dtype }
        }
        "scalar" => {
            let word = words.take().unwrap_or_default();
            let name = word.strip_prefix('{').and_then(|w| w.strip_suffix('}')).ok_or("expected {symbol}")?;
            let symbol = symbols.get(name).ok_or("expected {symbol}")?.clone();
            Op::Scalar { symbol, dtype }
        }
        "cast" => Op::Cast(dtype),
        "reshape" => Op::Reshape(shape.clone()),
        "broadcast" => Op::Broadcast(shape.clone()),
        "permute" => Op::Permute(numbers(&words.take().unwrap_or_default())?),
        "slice" => Op::Slice {
            axis: number(&words.key("axis")?)?,
            start: dim(&words.key("start")?, symbols)?,
            len: dim(&words.key("len")?, symbols)?,
        },
        "flip" => Op::Flip { axis: number(&words.key("axis")?)? },
        "window" => Op::Window {
            axis: number(&words.key("axis")?)?,
            size: number(&words.key("size")?)?,
            stride: number(&words.key("stride")?)?,
            dilation: number(&words.key("dilation")?)?,
        },
        "pad" => Op::Pad {
            axis: number(&words.key("axis")?)?,
            before: dim(&words.key("before")?, symbols)?,
            after: dim(&words.key("after")?, symbols)?,
            value: scalar(dtype, &words.key("value")?)?,
        },
        "concat" => Op::Concat { axis: number(&words.key("axis")?)? },
        "gather" => Op::Gather { axis: number(&words.key("axis")?)? },
        "scan_sum" | "scan_prod" | "scan_linear" => Op::Scan {
            kind: match name {
                "scan_sum" => ScanKind::Sum,
                "scan_prod" => ScanKind::Prod,
                _ => ScanKind::Linear,
            },
            axis: number(&words.key("axis")?)?,
            part: words.optional("part").map(|part| number(&part)).transpose()?,
        },
        "scatter_add" => Op::Scatter(ScatterKind::Add),
        "scatter_max" => Op::Scatter(ScatterKind::Max),
        "index_add" => Op::IndexAdd,
        "dequantize" => Op::Dequantize(dtype),
        "quantize" => match dtype {
            DType::Block(format) => Op::Quantize(format),
            other => return Err(format!("{other} is no format of blocks")),
        },
        "argsort" | "merge_runs" => sort(name, words)?,
        "matmul" => Op::Matmul,
        "attention" => Op::Attention(attention(words)?),
        "attention_grad_queries" => Op::AttentionGrad(attention(words)?, AttentionSide::Queries),
        "attention_grad_keys" => Op::AttentionGrad(attention(words)?, AttentionSide::Keys),
        "state_update" | "state_update_rows" => {
            let rows = (name == "state_update_rows").then(|| number(&words.key("axis")?)).transpose()?;
            let at = words.key("at")?;
            let offsets = list(&at)?.into_iter().map(|d| dim(d, symbols)).collect::<Result<Vec<_>, _>>()?;
            Op::StateUpdate { offsets, rows }
        }
        "custom" => Op::Custom(Box::new(custom(label()?, words, types, symbols)?)),
        _ => match (ElementwiseOp::from_name(name), ReduceKind::ALL.into_iter().find(|k| k.name() == name)) {
            (Some(e), _) => Op::Elementwise(e),
            (None, Some(kind)) => Op::Reduce { kind, axes: numbers(&words.key("axes")?)? },
            (None, None) => return Err(format!("unknown op '{name}'")),
        },
    })
}

fn attention(words: &mut Words) -> Result<Attention, String> {
    Ok(Attention {
        scale: scalar(DType::F64, &words.key("scale")?)?,
        causal: words.key("causal")?.parse().map_err(|_| "causal is true or false")?,
        window: words.optional("window").map(|w| w.parse()).transpose().map_err(|_| "window is a number")?,
        softcap: words.optional("softcap").map(|c| scalar(DType::F64, &c)).transpose()?,
        round_weights: flag(words, "round_weights")?,
        sinks: flag(words, "sinks")?,
    })
}

/// The value of `key=true` or `key=false`, if that comes next, else false.
fn flag(words: &mut Words, key: &str) -> Result<bool, String> {
    let found = words.optional(key).map(|text| text.parse()).transpose();
    Ok(found.map_err(|_| format!("{key} is true or false"))?.unwrap_or(false))
}

fn custom(
    name: String,
    words: &mut Words,
    types: &[TensorType],
    symbols: &HashMap<String, Symbol>,
) -> Result<Custom, String> {
    let inputs = words.key("inputs")?;
    let inputs = list(&inputs)?.into_iter().map(str::parse).collect::<Result<_, _>>()?;
    let push = words.key("push")?;
    let value = |text: &str| match text.strip_prefix("float:") {
        Some(x) => x.parse().map(PushValue::float).map_err(|_| format!("'{x}' is not a float")),
        None => dim(text, symbols).map(PushValue::Int),
    };
    let push = list(&push)?.into_iter().map(value).collect::<Result<Vec<_>, _>>()?;
    let workgroup = words.key("workgroup")?;
    let extent = |n: &str| n.parse().map_err(|_| format!("'{n}' is no extent of a workgroup"));
    let workgroup = list(&workgroup)?.into_iter().map(extent).collect::<Result<Vec<u32>, _>>()?;
    let workgroup = workgroup.try_into().map_err(|_| "a workgroup has three extents")?;
    let invocations = words.key("invocations")?;
    let invocations =
        list(&invocations)?.into_iter().map(|d| dim(d, symbols)).collect::<Result<Vec<_>, _>>()?;
    let invocations = invocations.try_into().map_err(|_| "invocations have three extents")?;
    let code = words.take().unwrap_or_default();
    let code = match code.split_once('=') {
        Some(("glsl", text)) => CustomCode::Glsl(unquote(text).ok_or("the GLSL is not a string")?),
        Some(("spirv", all)) => {
            let word =
                |w: &str| u32::from_str_radix(w, 16).map_err(|_| format!("'{w}' is not a word of SPIR-V"));
            CustomCode::Spirv(list(all)?.into_iter().map(word).collect::<Result<_, _>>()?)
        }
        _ => return Err(format!("expected glsl=.. or spirv=.., got '{code}'")),
    };
    let kernel = CustomKernel {
        name,
        code,
        inputs,
        outputs: types.iter().map(|t| t.dtype).collect(),
        push: push.iter().map(PushValue::ty).collect(),
        workgroup,
    };
    let shapes = types.iter().map(|t| t.shape.clone()).collect();
    Ok(Custom { kernel: Arc::new(kernel), shapes, push, invocations })
}
