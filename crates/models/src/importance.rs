//! What goes into a model's matrices: for each column of each weight, the sum of the squares of what it is multiplied
//! with, over a text. Quantizers weight the error of the column by it (an importance matrix).
//!
//! The graph is that of prefill, and what is measured is read off it: every product with a weight, whatever the
//! architecture, gets an output more.

use std::collections::HashMap;

use indexmap::IndexMap;
use tallow::{Device, Executable};
use tallow_ir::{Dim, ElementwiseOp, Graph, GraphError, Op, ReduceKind, Symbol, Value};

use crate::decoder::{Source, extents, upload};
use crate::error::{Error, Result};
use crate::model::ModelFile;
use crate::model_graph::{POS, Rows, SEQ, TOKENS};
use crate::options::Progress;
use crate::step_graphs::with_cache;
use crate::tokens::{check_tokens, f32s};

/// Beginning of the names of the outputs that are measured.
const MEASURED: &str = "in_sum2.";

/// A model that measures what goes into its matrices.
#[derive(Debug)]
pub struct Measurement {
    executable: Executable,
    chunk: usize,
    vocabulary: usize,
    /// By name of the output, what is measured there.
    inputs: IndexMap<String, Input>,
    tokens: u64,
}

/// One value that is multiplied with one or more weights.
#[derive(Debug)]
struct Input {
    weights: Vec<String>,
    sums: Vec<f64>,
}

impl ModelFile {
    /// Copies the weights to the device and compiles a graph that measures the inputs of all products of whole texts,
    /// of up to `chunk` tokens each. (The projection to the vocabulary takes the last token alone and is left out.)
    ///
    /// # Errors
    /// When the chunk is 0 or more than the model's context, the weights do not fit the device, or compiling fails.
    pub fn measure_inputs(
        self,
        device: &Device,
        chunk: usize,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Measurement> {
        let options = crate::LoadOptions { context: Some(chunk), ..crate::LoadOptions::default() };
        let context = self.context(&options)?;
        let failed = |source| Error::Graph { graph: "measuring", source };
        let model = with_cache(self.model_graph(), &options)?;
        let mut graph = model.step(Rows::UpTo(chunk), context).map_err(failed)?;
        let rows = Dim::from(Symbol::new(SEQ, chunk as u32));
        let weights_of = measured(&mut graph, &rows).map_err(failed)?;
        let source = Source { file: &self.file, host_layers: 0 };
        let weights = upload(source, &model, device, &graph, progress)?;
        let mut states = HashMap::new();
        for (name, ty) in model.cache(context).map_err(failed)? {
            states.insert(name, device.state(ty.dtype, &extents(&ty))?);
        }
        progress(Progress::Compile { graph: "measuring" });
        let executable = device.compile(&graph, &weights, &states)?;
        let input = |(name, weights)| (name, Input { weights, sums: Vec::new() });
        Ok(Measurement {
            executable,
            chunk,
            vocabulary: model.vocabulary,
            inputs: weights_of.into_iter().map(input).collect(),
            tokens: 0,
        })
    }
}

/// Adds an output with the sums of squares of each value of `rows` rows that is multiplied with weights; gives the
/// outputs' names and those of the weights.
fn measured(graph: &mut Graph, rows: &Dim) -> Result<IndexMap<String, Vec<String>>, GraphError> {
    let mut inputs: IndexMap<Value, Vec<String>> = IndexMap::new();
    for (_, node) in graph.nodes() {
        let (Op::Matmul, [x, w]) = (&node.op, node.operands.as_slice()) else { continue };
        if let Some(name) = weight_behind(graph, *w)
            && graph.ty(*x).shape.dims().first() == Some(rows)
        {
            inputs.entry(*x).or_default().push(name.to_owned());
        }
    }
    let mut outputs = IndexMap::new();
    for (number, (x, weights)) in inputs.into_iter().enumerate() {
        let square = graph.elementwise(ElementwiseOp::Mul, &[x, x])?;
        let sum = graph.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![0] }, &[square])?;
        let name = format!("{MEASURED}{number}");
        graph.output(&name, sum)?;
        outputs.insert(name, weights);
    }
    Ok(outputs)
}

/// The name of the weight that a factor of a product is, unpacked and turned round.
fn weight_behind(graph: &Graph, factor: Value) -> Option<&str> {
    let mut value = factor;
    loop {
        let node = graph.node(value.node);
        if let Op::Weight { name, .. } = &node.op {
            return Some(name);
        }
        if !matches!(node.op, Op::Permute { .. } | Op::Dequantize(_) | Op::Cast(_)) {
            return None;
        }
        value = *node.operands.first()?;
    }
}

impl Measurement {
    /// Runs a text of its own (what was fed before is forgotten) and adds what it measures.
    ///
    /// # Errors
    /// When there are no tokens, more than a chunk has, ones that are not in the vocabulary, or the device fails.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens, 0, self.chunk, self.vocabulary)?;
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let symbols = [(POS, 0), (SEQ, tokens.len() as u64)];
        for output in self.executable.run(&symbols, &[(TOKENS, &bytes)])? {
            let Some(input) = self.inputs.get_mut(&output.name) else { continue };
            let values: Vec<f32> = f32s(&output.bytes).collect();
            input.sums.resize(values.len(), 0.0);
            for (sum, value) in input.sums.iter_mut().zip(values) {
                *sum += f64::from(value);
            }
        }
        self.tokens += tokens.len() as u64;
        Ok(())
    }

    /// Tokens that were fed.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Each weight with the sums of squares of its columns' inputs; empty before a text was fed.
    pub fn sums(&self) -> impl Iterator<Item = (&str, &[f64])> {
        self.inputs
            .values()
            .flat_map(|input| input.weights.iter().map(|name| (name.as_str(), input.sums.as_slice())))
    }
}
