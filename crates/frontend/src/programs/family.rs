//! The programs of one structure: which there are, which serves, and what the next one is like.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tallow_codegen::fit;
use tallow_ir::caps::DeviceCaps;
use tallow_ir::rewrite::rebuild;
use tallow_ir::{General, Graph, Op, Scalar, Symbol, generalize};

use super::instance::Instance;
use super::lock;
use super::program::Program;
use super::recorded::{Lowered, scalar_symbol};
use crate::error::Result;

/// So many programs at most keep some constants as literals; the next one is given all.
const SPECIAL: usize = 4;

/// So many instances are compared where the next program is made.
const INSTANCES: usize = 16;

/// So often are symbols tried in place of the same integers: a third instance tells more of them than two.
const TRIES: u32 = 2;

/// So many programs of one structure are usual; more cause a warning.
const USUAL: u64 = 8;

/// The programs of one structure.
#[derive(Default)]
pub(super) struct Family(Mutex<Programs>);

#[derive(Default)]
struct Programs {
    all: Vec<Special>,
    /// The integers of the instances that were compiled for, the last ones.
    instances: Vec<Vec<i64>>,
    /// Which integers differed where no op took symbols for them, and how often that was so.
    refused: HashMap<Vec<bool>, u32>,
    compiled: u64,
}

/// A program and what it serves.
struct Special {
    sizes: Sizes,
    /// The constants that it has as literals.
    literals: Vec<Option<Scalar>>,
    program: Arc<Program>,
}

/// The integers of the instances that a program serves.
enum Sizes {
    Literal(Vec<i64>),
    /// In the order in which instances have them.
    General(Box<General>),
}

impl Special {
    /// Whether this serves an instance, which is given the values of the symbols of extents then.
    fn bind(&self, instance: &mut Instance) -> bool {
        let serves =
            |(literal, scalar): (&Option<Scalar>, &Scalar)| literal.is_none_or(|literal| literal == *scalar);
        if !self.literals.iter().zip(instance.scalars()).all(serves) {
            return false;
        }
        match &self.sizes {
            Sizes::Literal(sizes) => sizes == instance.integers(),
            Sizes::General(general) => instance.bind(general),
        }
    }

    /// Whether it has these very numbers for extents.
    fn has_sizes(&self, integers: &[i64]) -> bool {
        matches!(&self.sizes, Sizes::Literal(sizes) if sizes == integers)
    }

    fn is_literal(&self) -> bool {
        matches!(self.sizes, Sizes::Literal(_))
    }
}

/// A graph to compile, and what it will serve.
pub(super) struct Next {
    pub graph: Graph,
    sizes: Sizes,
    literals: Vec<Option<Scalar>>,
    note: String,
}

impl Next {
    fn general(general: General, literals: Vec<Option<Scalar>>, note: String) -> Result<Next> {
        let graph = with_literals(general.graph(), &literals)?;
        Ok(Next { graph, sizes: Sizes::General(Box::new(general)), literals, note })
    }

    /// With ranges of symbols that one choice of kernels suits, the instance of these integers among them.
    pub fn fitted(self, integers: &[i64], caps: &DeviceCaps) -> Result<Next> {
        let Next { sizes: Sizes::General(general), literals, note, .. } = self else { return Ok(self) };
        let mut values = vec![];
        general.bind(integers, &mut values);
        let general = match fit(&general, &values, caps) {
            // What does not serve the instance that it was made for would be made forever.
            Ok(fitted) if fitted.bind(integers, &mut values) => fitted,
            Ok(other) => {
                tracing::debug!(
                    "ranges of symbols stay as they are, as these do not hold:\n{}",
                    other.explain()
                );
                *general
            }
            Err(error) => {
                tracing::debug!("ranges of symbols stay as they are: {error}");
                *general
            }
        };
        Next::general(general, literals, note)
    }

    /// Which extents are symbols, or why none is.
    pub fn note(&self) -> String {
        match &self.sizes {
            Sizes::Literal(_) => self.note.clone(),
            Sizes::General(general) => format!("{}{}", self.note, general.explain()),
        }
    }

    /// Whether some of its extents are symbols.
    pub fn is_general(&self) -> bool {
        matches!(self.sizes, Sizes::General(_))
    }

    /// The symbols of its extents, in the order in which instances are given their values.
    pub fn extents(&self) -> Vec<Symbol> {
        match &self.sizes {
            Sizes::Literal(_) => vec![],
            Sizes::General(general) => general.symbols().cloned().collect(),
        }
    }
}

impl Family {
    /// The program that serves an instance. Where several do, that of these very extents is taken, and else the one that was
    /// made last.
    pub fn find(&self, instance: &mut Instance) -> Option<Arc<Program>> {
        let programs = lock(&self.0);
        let of = |is_literal| {
            programs.all.iter().rev().filter(move |special: &&Special| special.is_literal() == is_literal)
        };
        let found = of(true).chain(of(false)).find(|special| special.bind(instance));
        found.map(|special| special.program.clone())
    }

    /// How many programs there are.
    pub fn len(&self) -> usize {
        lock(&self.0).all.len()
    }

    /// What to compile for an instance that no program serves: a graph with symbols where it is not the first one of its
    /// structure, `is_dynamic` says so and no op refuses them, else the instance itself.
    pub fn next(
        &self,
        lowered: &Lowered,
        integers: &[i64],
        scalars: &[Scalar],
        is_dynamic: bool,
    ) -> Result<Next> {
        let mut programs = lock(&self.0);
        let mut note = String::new();
        // Where only constants differ from those of a program of these very extents, the extents stay numbers.
        let is_new = !programs.all.iter().any(|special| special.has_sizes(integers));
        if is_dynamic && is_new && !programs.instances.is_empty() {
            match programs.generalize(lowered, integers) {
                Ok(general) => {
                    let literals = programs.literals(None, scalars);
                    note = format!(
                        "extents are symbols since instance {} of this structure\n",
                        programs.compiled + 1
                    );
                    return Next::general(general, literals, note);
                }
                Err(why) => note = format!("extents are numbers: {why}\n"),
            }
        }
        let literals = programs.literals(Some(integers), scalars);
        let graph = with_literals(&lowered.graph, &literals)?;
        Ok(Next { graph, sizes: Sizes::Literal(integers.to_vec()), literals, note })
    }

    /// Notes that what was compiled with symbols was refused after all.
    pub fn refuse(&self, integers: &[i64]) {
        let mut programs = lock(&self.0);
        let varying = programs.varying(integers);
        *programs.refused.entry(varying).or_default() += 1;
    }

    /// Keeps a program that was compiled for an instance.
    pub fn add(&self, next: Next, integers: Vec<i64>, program: Arc<Program>) {
        let mut programs = lock(&self.0);
        let note = next.note();
        let Next { sizes, literals, graph, .. } = next;
        tracing::debug!("compiled {} of {} steps\n{note}", graph.name(), graph.len());
        programs.all.push(Special { sizes, literals, program });
        programs.instances.push(integers);
        if programs.instances.len() > INSTANCES {
            programs.instances.remove(0);
        }
        programs.compiled += 1;
        if programs.compiled == USUAL + 1 {
            tracing::warn!(
                "one structure of {} steps was compiled {} times, as its extents or constants keep changing: \
                 the log at level debug says which, Tensor::explain says why\n{note}",
                graph.len(),
                programs.compiled
            );
        }
    }

    /// Drops the oldest program of literal extents, if there is more than one program.
    pub fn shrink(&self) {
        let mut programs = lock(&self.0);
        if programs.all.len() > 1 {
            let oldest = programs.all.iter().position(Special::is_literal).unwrap_or(0);
            programs.all.remove(oldest);
        }
    }
}

impl Programs {
    /// Which integers of an instance differ from those of an earlier one.
    fn varying(&self, integers: &[i64]) -> Vec<bool> {
        let differs = |(at, integer): (usize, &i64)| self.instances.iter().any(|other| other[at] != *integer);
        integers.iter().enumerate().map(differs).collect()
    }

    fn generalize(&mut self, lowered: &Lowered, integers: &[i64]) -> std::result::Result<General, String> {
        let varying = self.varying(integers);
        if self.refused.get(&varying).is_some_and(|times| *times >= TRIES) {
            return Err("symbols in their place were refused before".into());
        }
        let others: Vec<Vec<i64>> =
            self.instances.iter().filter_map(|other| lowered.integers(other)).collect();
        let others: Vec<&[i64]> = others.iter().map(Vec::as_slice).collect();
        match generalize(&lowered.graph, &others).map(|general| general.repeated(&lowered.places)) {
            // What does not serve the instance that it was made for would be made forever.
            Ok(general) if general.bind(integers, &mut vec![]) => Ok(general),
            Ok(_) => Err("their values are not those of the symbols".into()),
            Err(why) => {
                if why != tallow_ir::generalize::Refusal::Alone {
                    *self.refused.entry(varying).or_default() += 1;
                }
                Err(why.to_string())
            }
        }
    }

    /// Which constants the next program has as literals: those that are as in the last one of these extents; for any extents,
    /// those that are as in all programs.
    fn literals(&self, integers: Option<&[i64]>, scalars: &[Scalar]) -> Vec<Option<Scalar>> {
        let all = scalars.iter().map(|scalar| Some(*scalar));
        let Some(integers) = integers else {
            let is_same = |at: usize, now| self.all.iter().all(|special| special.literals[at] == now);
            return all.enumerate().map(|(at, now)| now.filter(|_| is_same(at, now))).collect();
        };
        let like = || self.all.iter().filter(|special| special.has_sizes(integers));
        match like().next_back() {
            None => all.collect(),
            Some(_) if like().count() >= SPECIAL => vec![None; scalars.len()],
            Some(last) => {
                all.zip(&last.literals).map(|(now, before)| now.filter(|_| now == *before)).collect()
            }
        }
    }
}

/// The graph with these constants as literals.
fn with_literals(graph: &Graph, literals: &[Option<Scalar>]) -> Result<Graph> {
    let known =
        literals.iter().enumerate().filter_map(|(at, literal)| Some((scalar_symbol(at), (*literal)?)));
    let known: HashMap<Symbol, Scalar> = known.collect();
    Ok(rebuild(graph, |new, node, _| match &node.op {
        Op::Scalar { symbol, .. } => match known.get(symbol) {
            Some(literal) => new.add(Op::Const(*literal), &[]).map(Some),
            None => Ok(None),
        },
        _ => Ok(None),
    })?)
}
